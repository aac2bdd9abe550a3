"""Named random streams: every random number comes from a stream with a name and an index.

A stream is fixed by (entropy, name, index) and never by the order in which things run, so replicate 17 of a bootstrap
is the same on one worker or on eight. Entropy comes from the operating system unless a test or a study gives a seed.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from svysynth.errors import SurveyError
from svysynth.outline import outlined


@outlined
@dataclass(frozen=True)
class Streams:
    """The source of all randomness of one run.

    >>> first = Streams.seeded(1).generator("replicates", 0).random()
    >>> first == Streams.seeded(1).generator("replicates", 0).random()
    True
    """

    entropy: int
    fresh: bool = False
    """Whether the entropy is the operating system's; anything else is stamped as not for release."""

    @classmethod
    def from_system(cls) -> Streams:
        """Fresh entropy from the operating system: what any release must use."""
        return cls(secrets.randbits(256), fresh=True)

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """A repeatable source, for tests and studies only."""
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise SurveyError("spec", "seed", "is not a whole number from 0 on", "give one")
        return cls(int(seed))

    def generator(self, name: str, index: int = 0) -> np.random.Generator:
        """The generator of one stream."""
        return np.random.Generator(np.random.PCG64DXSM(self._sequence(name, index)))

    def key_data(self, name: str, index: int = 0) -> npt.NDArray[np.uint32]:
        """64 bits of one stream, for a JAX key (which made from an integer would keep 32 bits only)."""
        return self._sequence(name, index).generate_state(2, np.uint32).astype(np.uint32)

    def split(self, name: str, index: int = 0) -> Streams:
        """A source of its own for one part of a run; what is made from it is not for release."""
        return Streams(int.from_bytes(self.generator(name, index).bytes(32), "little"))

    def _sequence(self, name: str, index: int) -> np.random.SeedSequence:
        words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype=np.uint32)
        return np.random.SeedSequence(self.entropy, spawn_key=(*(int(word) for word in words), index))
