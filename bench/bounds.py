"""Times the pass that finds the bounds of all records, and compares it with the least time that the machine needs.

With S draws and n records, any method that leaves out no draws computes S·n terms of five multiplications with
additions each, and moves 28 bytes a record: t, v, the cell and the bound. The floor is the time for the terms at the
speed of a matrix product, or the time for moving the records at the speed of a copy, whichever is longer. Absolute
values and maxima are not counted, because processors can compute them in parallel with the multiplications. The machine
may be shared, so processor times are used with one thread; with more threads the times are wall-clock times.

    python bench/run.py --only bounds --device gpu
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from measuring import answer, keep, program, run
from svysynth.core.engine import BLOCK
from svysynth.mechanisms.pseudo_posterior.quadratics import Quadratics, device_bounds, make_quadratics
from svysynth.mechanisms.pseudo_posterior.record_bounds import make_bounds
from svysynth.models.fbs import FBS

DRAWS = 1000
FLOPS_A_TERM = 10
BYTES_A_RECORD = 28
SIZES = [100_000, 1_000_000, 10_000_000]
DEVICE_RECORDS = 100_000_000
DEVICE_BLOCK = 2**22
"""The number of records that a graphics processor works on at a time."""
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


def measure(device: str = "cpu") -> None:
    """Measure the pass on the processor, or on JAX's first device, and keep the rows."""
    found = run(program("bounds.py", device), environment=ONE_THREAD)
    for row in found.pop("rows"):
        keep("bounds", found | row)


def make_design() -> np.ndarray:
    """The design matrix of 8 fields × 2 genders, with main effects."""
    field, gender = np.divmod(np.arange(16), 2)
    return np.column_stack([np.ones(16), *(field == level for level in range(1, 8)), gender]).astype(float)


def make_draws(records: int, draws: int = DRAWS) -> dict[str, jax.Array]:
    """Random draws with about the spread of a posterior from this many records."""
    generator = np.random.default_rng(1)
    spread = 1 / np.sqrt(records)
    root = np.linalg.cholesky([[0.16, -0.096], [-0.096, 0.31]])
    noise = generator.standard_normal((draws, 2, 2)) * spread
    covariance = root @ (np.eye(2) + noise + noise.transpose(0, 2, 1)) @ root.T
    beta_y = np.r_[11.5, np.linspace(-0.2, 0.2, 7), -0.1] + 1.2 * spread * generator.standard_normal((draws, 9))
    beta_w = 1.5 * spread * generator.standard_normal((draws, 9))
    return {
        name: jnp.asarray(value)
        for name, value in zip(("beta_y", "beta_w", "covariance"), (beta_y, beta_w, covariance), strict=True)
    }


def make_records(rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random records: t, v and cell."""
    generator = np.random.default_rng(seed)
    cell = generator.integers(0, 16, rows, dtype=np.int32)
    t, v = 0.4 * generator.standard_normal(rows), 0.5 * generator.standard_normal(rows)
    v -= 0.6 * t
    t += (make_design() @ np.r_[11.5, np.linspace(-0.2, 0.2, 7), -0.1])[cell]
    return t, v, cell


def fastest(function: Callable[[], object], runs: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest run, after a first run, which compiles."""
    function()
    seconds = []
    for _ in range(runs):
        start = clock()
        function()
        seconds.append(clock() - start)
    return min(seconds)


def matrix_speed(clock: Callable[[], float] = time.process_time) -> float:
    """The GFLOP/s of a float64 matrix product on one thread."""
    matrix = np.random.default_rng(1).standard_normal((1500, 1500))
    return 2 * 1500**3 / fastest(lambda: matrix @ matrix, 5, clock) / 1e9


@partial(jax.jit, static_argnames="steps")
def _chains(x: jax.Array, y: jax.Array, steps: int) -> jax.Array:
    """Repeat four independent chains of 16 multiplications with additions."""

    def step(number: jax.Array, total: jax.Array) -> jax.Array:
        ends = []
        for chain in range(4):
            value = total + chain
            for _ in range(16):
                value = value * x + y
            ends.append(value)
        return sum(ends)

    return jax.lax.fori_loop(0, steps, step, jnp.zeros_like(x))


def loop_speed(lanes: int = 256, steps: int = 20_000, clock: Callable[[], float] = time.process_time) -> float:
    """The GFLOP/s of multiplications with additions in one loop that JAX compiles."""
    x, y = jnp.asarray(np.random.default_rng(1).uniform(-0.5, 0.5, (2, lanes)))
    seconds = fastest(lambda: jax.block_until_ready(_chains(x, y, steps)), clock=clock)
    return 2 * 64 * lanes * steps / seconds / 1e9


def copy_speed(clock: Callable[[], float] = time.process_time) -> float:
    """The GB/s, read and written together, of a copy that is too large for the caches."""
    source = np.ones(2**24)
    target = np.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: np.copyto(target, source), 5, clock) / 1e9


def floor_seconds(records: int, speed: float, bandwidth: float, draws: int = DRAWS) -> float:
    """The least seconds that a pass needs at a speed in GFLOP/s and a bandwidth in GB/s."""
    return max(FLOPS_A_TERM * records * draws / speed, BYTES_A_RECORD * records / bandwidth) / 1e9


def pass_over(
    records: tuple[np.ndarray, np.ndarray, np.ndarray], draws: dict[str, jax.Array], threads: int
) -> np.ndarray:
    """Find all bounds as for a fit: the preparation, and all blocks on several threads."""
    t, v, cell = records
    find = make_bounds(FBS(), draws, make_design())
    pieces = [slice(start, start + BLOCK) for start in range(0, len(t), BLOCK)]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda piece: find(t[piece], v[piece], cell[piece]), pieces)))


def measure_processor(sizes: list[int] = SIZES, threads: tuple[int, ...] = (1, os.cpu_count() or 1)) -> list[dict]:
    """A row for each number of records and threads; with one thread the seconds are processor time."""
    speed, bandwidth = matrix_speed(), copy_speed()
    rows = []
    for size in sizes:
        records, draws = make_records(size), make_draws(size)
        for count in threads:
            clock = time.process_time if count == 1 else time.perf_counter
            seconds = fastest(partial(pass_over, records, draws, count), 3 if size < 5_000_000 else 1, clock)
            floor = floor_seconds(size, count * speed, bandwidth)
            rows.append(row("cpu", size, count, seconds, floor))
    return rows


def row(device: str, records: int, threads: int, seconds: float, floor: float) -> dict:
    return {
        "device": device,
        "records": records,
        "draws": DRAWS,
        "threads": threads,
        "seconds": seconds,
        "floor_seconds": floor,
    }


@partial(jax.jit, static_argnames="rows")
def _device_records(key: jax.Array, mean: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    cells, first, second = jax.random.split(key, 3)
    cell = jax.random.randint(cells, (rows,), 0, 16, dtype=jnp.int32)
    t, v = 0.4 * jax.random.normal(first, (rows,)), 0.5 * jax.random.normal(second, (rows,))
    return t + mean[cell], v - 0.6 * t, cell


def measure_device(records: int = DEVICE_RECORDS) -> list[dict]:
    """Two rows for JAX's first device: records that are in its memory already, and records that are moved there."""
    speed, bandwidth = device_speeds()
    x = make_design()
    quadratics: Quadratics = make_quadratics(FBS(), make_draws(records), x)
    mean = jnp.asarray(x @ np.r_[11.5, np.linspace(-0.2, 0.2, 7), -0.1])
    blocks = -(-records // DEVICE_BLOCK)
    there = [_device_records(key, mean, DEVICE_BLOCK) for key in jax.random.split(jax.random.key(1), min(blocks, 4))]
    floor = floor_seconds(blocks * DEVICE_BLOCK, speed, bandwidth)

    def resident() -> None:
        jax.block_until_ready([device_bounds(quadratics, *there[number % len(there)]) for number in range(blocks)])

    here = [tuple(np.asarray(column) for column in block) for block in there]
    find = make_bounds(FBS(), make_draws(records), x)

    def moved() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: find(*here[number % len(here)]), range(blocks)))

    size = blocks * DEVICE_BLOCK
    name = jax.devices()[0].device_kind
    return [
        row(f"{name}, records on it", size, 1, fastest(resident, 2), floor),
        row(f"{name}, records moved there", size, 4, fastest(moved, 1), floor),
    ]


def device_speeds() -> tuple[float, float]:
    """The GFLOP/s of a loop of multiplications with additions, and the GB/s of a copy, on JAX's first device."""
    speed = loop_speed(2**24, 20, time.perf_counter)
    source = jnp.ones(2**26)
    copy = jax.jit(lambda source: source + 1)
    seconds = fastest(lambda: copy(source).block_until_ready(), 5)
    return speed, 2 * source.nbytes / seconds / 1e9


if __name__ == "__main__":
    answer(rows=measure_device() if sys.argv[1] == "gpu" else measure_processor())
