"""Random keys of 128 bits for JAX: Threefry with four words of 32 bits and 20 rounds (Salmon and others 2011).

JAX's own Threefry has keys of 64 bits, few enough for a search through all keys. JAX's `rbg` keys have 128 bits, but
`vmap` over several keys does not draw what each key draws alone, on which the fits of many surveys in one program rely.
Their numbers also differ between devices. Numbers drawn, keys split off and keys folded in come from separate counters,
so that drawn numbers do not reveal a key.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.random import define_prng_impl

from svysynth.core.streams import Streams

WORDS = 4
"""The number of 32-bit words in a key, and in a block of numbers."""
ROTATIONS = np.array(
    [[(10, 26), (11, 21), (13, 27), (23, 5)], [(6, 20), (17, 11), (25, 10), (18, 20)]], dtype=np.uint32
)
"""The rotations of the two kinds of four rounds, which alternate."""
PARITY = np.uint32(0x1BD11BDA)
SPLIT, DRAW, FOLD, SEED = (np.uint32(number) for number in range(4))
"""The last word of the counter, for each purpose."""


def jax_key(streams: Streams, name: str, index: int = 0) -> jax.Array:
    """The JAX key of one stream."""
    return wrapped(streams.key_data(name, index))


def wrapped(key_data: npt.NDArray[np.uint32] | jax.Array) -> jax.Array:
    """The key, or the keys, with these words; the words are the last axis."""
    keys: jax.Array = jax.random.wrap_key_data(jnp.asarray(key_data), impl=_THREEFRY)
    return keys


def threefry(key: Any, counter: tuple[Any, ...]) -> tuple[Any, ...]:
    """The four words that a key makes from the four words of a counter.

    The rounds are a loop: written out, they take XLA minutes to compile on a CPU.
    """
    schedule = jnp.append(key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ PARITY)
    rotations = jnp.asarray(ROTATIONS)

    def four_rounds(step: Any, x: tuple[Any, ...]) -> tuple[Any, ...]:
        a, b, c, d = x
        turns = rotations[step % 2]
        for turn in range(4):
            if turn % 2 == 0:
                a, c = a + b, c + d
                b, d = _rotated(b, turns[turn, 0]) ^ a, _rotated(d, turns[turn, 1]) ^ c
            else:
                a, c = a + d, c + b
                d, b = _rotated(d, turns[turn, 0]) ^ a, _rotated(b, turns[turn, 1]) ^ c
        w, x_, y, z = (schedule[(step + 1 + place) % (WORDS + 1)] for place in range(WORDS))
        return a + w, b + x_, c + y, d + z + (step + 1).astype(jnp.uint32)

    start = tuple(word + schedule[place] for place, word in enumerate(counter))
    found: tuple[Any, ...] = jax.lax.fori_loop(0, 5, four_rounds, start)
    return found


def _rotated(word: Any, by: Any) -> Any:
    return (word << by) | (word >> (np.uint32(32) - by))


def _blocks(key: Any, low: Any, purpose: np.uint32) -> Any:
    """A block of words for each counter, the words as the last axis."""
    nothing = jnp.zeros_like(low)
    return jnp.stack(threefry(key, (low, nothing, nothing, nothing + purpose)), axis=-1)


def _counters(count: int) -> Any:
    if count > 2**32:
        raise ValueError("more blocks than counters")
    return jnp.arange(count, dtype=jnp.uint32)


def _seed(seed: Any) -> Any:
    """A key from a seed: JAX requires this function, but the keys of a run come from its streams."""
    return _blocks(jnp.zeros(WORDS, jnp.uint32), jnp.asarray(seed).astype(jnp.uint32), SEED)


def _split(key: Any, shape: tuple[int, ...]) -> Any:
    return _blocks(key, _counters(math.prod(shape)), SPLIT).reshape(*shape, WORDS)


def _fold_in(key: Any, data: Any) -> Any:
    return _blocks(key, jnp.asarray(data).astype(jnp.uint32), FOLD)


def _random_bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    words = _blocks(key, _counters(-(-count * max(width, 32) // (32 * WORDS))), DRAW).reshape(-1)
    if width == 64:
        pairs = words.reshape(-1, 2).astype(jnp.uint64)
        words = (pairs[:, 0] << np.uint64(32)) | pairs[:, 1]
    return words[:count].astype(f"uint{width}").reshape(shape)


_THREEFRY = define_prng_impl(
    key_shape=(WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry4x32",
    tag="fry4",
)
