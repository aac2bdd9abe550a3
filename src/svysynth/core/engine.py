"""Engine: the execution backend, which works on the parts of a survey. Its method `map` gives results in order.

`Local` uses the threads of this machine; `Dask` a cluster's workers, which need to see the same files. A part is a
range of records that starts at a multiple of BLOCK. What is computed for a block does not depend on the part it is in,
and results are put together block by block. So they are the same, to the last bit, however the records are divided.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, Protocol, TypeVar

import numpy.typing as npt

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import CHUNK

BLOCK = CHUNK
"""How many records are worked on together."""
BLOCKS_A_PART = 4
"""How many blocks a part has, unless a number of parts is asked for."""
BLOCKS_A_SUM = 2
"""How many blocks are added up at a time: with fewer but longer steps, threads wait less for each other."""
BLOCKS_A_FRAME = 16
"""How many blocks are written to a file at a time: about a million records."""
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
}
"""The environment of a worker process: with several threads, sums would depend on the number of threads."""
HERE: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
"""The settings of a cluster of processes on this machine. Its status page takes any free port, because several
clusters may run at once."""
PATIENCE = 3
"""How often a part is tried again when its worker was lost."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Arrays = tuple[npt.NDArray[Any], ...]


class Engine(Protocol):
    """An execution backend."""

    @property
    def parts(self) -> int | None:
        """Into how many parts records are divided; None for parts of a fixed size."""

    @property
    def remote(self) -> bool:
        """Whether other processes do the work: they see files, but not the memory of this process."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], a_core: int = 1) -> Iterator[Result]:
        """The function's results, in the order of the items.

        The function may be called more than once for an item, and in another process. `a_core` is how many items each
        core of this machine has at a time: work that waits for files is faster with more than one.
        """


def cores() -> int:
    """How many cores this process may use, or how many there are on a system that cannot tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """How many threads to use: OMP_NUM_THREADS where it is set, as in numerical libraries, else one per core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else cores()


@dataclass(frozen=True)
class Local:
    """Threads of this machine."""

    threads: int = field(default_factory=_threads)
    parts: int | None = None
    remote = False

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], a_core: int = 1) -> Iterator[Result]:
        """The function's results; no more than `threads` × `a_core` items are worked on at a time."""
        if self.threads < 2 or len(items) < 2:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(min(self.threads * a_core, len(items))) as pool:
            yield from pool.map(function, items)


LOCAL = Local()


@dataclass(frozen=True)
class Dask:
    """The workers of a Dask cluster; a lost worker costs only time, unless workers are lost too often."""

    client: Any
    parts: int | None = None
    remote = True

    @classmethod
    def connect(cls, scheduler: str | None = None, parts: int | None = None) -> Dask:
        """Connect to a cluster by its scheduler's address, or start one of processes on this machine."""
        try:
            from distributed import Client, WorkerPlugin
        except ImportError:
            remedy = "install svysynth[dask]"
            raise SurveyError("spec", "--engine", "'dask' needs a package that is missing", remedy) from None
        try:
            settings = {"address": scheduler, "timeout": 20} if scheduler else HERE
            client = Client(**settings)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TimeoutError):
            remedy = "start the scheduler, or leave --scheduler out to use this machine's processes"
            raise SurveyError("spec", "--scheduler", "cannot be reached", remedy) from None

        class OneThread(WorkerPlugin):
            """Sets every worker to one thread, also one that replaces a lost one, before its numerical imports."""

            def setup(self, worker: Any) -> None:
                os.environ.update(ONE_THREAD)

        client.register_plugin(OneThread(), name="svysynth")
        return cls(client, parts)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], a_core: int = 1) -> Iterator[Result]:
        """One task for each item; an error that a user can put right comes back as it is."""
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError

        futures = self.client.map(_Guarded(function), list(items), pure=False, retries=PATIENCE)
        for future in futures:
            try:
                result, refusal = future.result()
            except (KilledWorker, FutureCancelledError, CommClosedError):
                remedy = "look at the workers' logs: memory is a common reason; or use --engine local"
                raise SurveyError("data", "the cluster", "lost its workers too often", remedy) from None
            if refusal is not None:
                raise SurveyError(*refusal)
            future.release()
            yield result

    def close(self) -> None:
        """Disconnect from the cluster; a cluster that was started here is shut down."""
        self.client.close()


@dataclass(frozen=True)
class _Guarded:
    """A function that returns a SurveyError in parts, since exceptions of several arguments cannot be pickled."""

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> tuple[Any, tuple[Any, ...] | None]:
        try:
            return self.function(item), None
        except SurveyError as error:
            return None, (error.kind, error.place, error.problem, error.remedy)


EngineName = Literal["local", "dask"]


@contextlib.contextmanager
def chosen_engine(name: EngineName, scheduler: str | None = None) -> Iterator[Engine]:
    """The engine of that name, for as long as the block lasts."""
    if name == "local":
        if scheduler is not None:
            raise SurveyError("spec", "--scheduler", "is for another engine", "add --engine dask")
        yield LOCAL
        return
    engine = Dask.connect(scheduler)
    try:
        yield engine
    finally:
        engine.close()


def part_ranges(records: int, parts: int | None = None, blocks_a_part: int = BLOCKS_A_PART) -> list[range]:
    """The records in that many parts, or in parts of that many blocks; parts start at multiples of BLOCK."""
    blocks = -(-records // BLOCK)
    count = -(-blocks // blocks_a_part) if parts is None else min(parts, blocks)
    ends = [blocks * number // count * BLOCK for number in range(count)] + [records]
    return [range(start, stop) for start, stop in itertools.pairwise(ends)]


def frame_ranges(records: int) -> list[range]:
    """The ranges of records that are written to a file at a time."""
    return part_ranges(records, blocks_a_part=BLOCKS_A_FRAME)


def block_slices(part: range, blocks: int = 1) -> Iterator[slice]:
    """The blocks of a part, one by one or a few together."""
    for start in range(part.start, part.stop, blocks * BLOCK):
        yield slice(start, min(start + blocks * BLOCK, part.stop))


def map_blocks(engine: Engine, function: Callable[[slice], Result], records: int) -> list[Result]:
    """The results of every block, in order; `function` is called for one block at a time."""
    found: Iterable[list[Result]] = engine.map(_EachBlock(function), part_ranges(records, engine.parts))
    return [result for part in found for result in part]


def sum_blocks(engine: Engine, function: Callable[[slice], Arrays], records: int) -> Arrays:
    """The sums over all blocks of some arrays of whole numbers, which are exact in any order.

    The blocks of a part are added up where the part is worked on, and parts are added up as they come in, so that
    memory does not grow with the number of records.
    """
    return reduce(_add, engine.map(_SumOfBlocks(function), part_ranges(records, engine.parts)))


def each_block(engine: Engine, function: Callable[[slice], Result], records: int) -> Iterator[Result]:
    """The results of every block, in order and one at a time, for those who do not need all of them at once."""
    for part in engine.map(_EachBlock(function), part_ranges(records, engine.parts)):
        yield from part


def _add(one: Arrays, other: Arrays) -> Arrays:
    return tuple(mine + theirs for mine, theirs in zip(one, other, strict=True))


@dataclass(frozen=True)
class _SumOfBlocks:
    function: Callable[[slice], Any]

    def __call__(self, part: range) -> Arrays:
        return reduce(_add, map(self.function, block_slices(part, BLOCKS_A_SUM)))


@dataclass(frozen=True)
class _EachBlock:
    function: Callable[[slice], Any]

    def __call__(self, part: range) -> list[Any]:
        return [self.function(piece) for piece in block_slices(part)]
