"""Named random streams: every random number comes from a stream with a name and an index.

A stream is fixed by (entropy, name, index) and never by the order in which things run, so replicate 17 of a bootstrap
is the same on one worker or on eight. Entropy comes from the operating system unless a test or a study gives a seed.

The key of a stream is a keyed BLAKE2b hash of the stream's purpose, index and name; the key of the hash is the 256 bits
of entropy. So whoever learns one stream, including its whole state, learns nothing about another. NumPy's generator is
Philox with a key of 128 bits; jax_keys.py makes JAX keys of the same length.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from svysynth.core.errors import SurveyError
from svysynth.core.safe_repr import outlined

ENTROPY_BYTES = 32


@outlined
@dataclass(frozen=True)
class Streams:
    """The source of all randomness of one run.

    >>> first = Streams.seeded(1).generator("replicates", 0).random()
    >>> first == Streams.seeded(1).generator("replicates", 0).random()
    True
    """

    entropy: int = field(repr=False)
    """256 bits, which must not be shown: all streams follow from them."""
    fresh: bool = field(default=False, init=False)
    """Whether the entropy comes from the operating system; output of any other is marked as not for release."""

    @classmethod
    def from_system(cls) -> Streams:
        """A source with fresh entropy from the operating system, which every release must use."""
        found = cls(secrets.randbits(8 * ENTROPY_BYTES))
        object.__setattr__(found, "fresh", True)  # a caller cannot declare its own entropy fresh
        return found

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """A repeatable source, for tests and studies only."""
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise SurveyError("spec", "seed", "is not a whole number of at least 0", "give one")
        digest = hashlib.blake2b(str(int(seed)).encode(), digest_size=ENTROPY_BYTES, person=b"seed").digest()
        return cls(int.from_bytes(digest, "little"))

    def generator(self, name: str, index: int = 0) -> np.random.Generator:
        """The NumPy generator of one stream."""
        key = np.frombuffer(self._derived("numpy", name, index, 16), dtype="<u8")
        return np.random.Generator(np.random.Philox(key=key.astype(np.uint64)))

    def key_data(self, name: str, index: int = 0) -> npt.NDArray[np.uint32]:
        """128 bits of one stream, for a JAX key (jax_keys.py)."""
        return np.frombuffer(self._derived("jax", name, index, 16), dtype="<u4").astype(np.uint32)

    def words(self, name: str, index: int, count: int) -> npt.NDArray[np.uint64]:
        """At most eight words of 64 bits, for keys of other kinds."""
        return np.frombuffer(self._derived("words", name, index, 8 * count), dtype="<u8").astype(np.uint64)

    def split(self, name: str, index: int = 0) -> Streams:
        """A separate source for one part of a run; anything made from it is not for release."""
        return Streams(int.from_bytes(self._derived("split", name, index, ENTROPY_BYTES), "little"))

    def _derived(self, purpose: str, name: str, index: int, size: int) -> bytes:
        """The index has a fixed length, so that no two pairs of index and name are hashed as the same bytes."""
        message = index.to_bytes(8, "little") + name.encode()
        secret = self.entropy.to_bytes(ENTROPY_BYTES, "little")
        return hashlib.blake2b(message, digest_size=size, key=secret, person=purpose.encode()).digest()
