"""Releases that repeat, for tests of what real ones do.

A run with a seed is charged to no budget, stamped and refused by `verify`. Tests of charges, of verification and of
what goes out need real runs whose random numbers are known; nothing outside the tests makes such streams. The noise of
releases, which OpenDP draws, is replaced by noise of the same distribution from these streams.
"""

from svysynth.core.streams import Streams
from svysynth.mechanisms.noise import OpenDPNoise, StudyNoise


def repeatable(seed=1):
    """Streams that pass for fresh ones and repeat."""
    found = Streams(seed)
    object.__setattr__(found, "fresh", True)
    return found


def repeat(monkeypatch, seed=1):
    """From here on the operating system gives the same entropy each time, and noise follows from it."""
    noise = StudyNoise(repeatable(seed).split("noise"))
    monkeypatch.setattr(Streams, "from_system", classmethod(lambda cls: repeatable(seed)))
    monkeypatch.setattr(OpenDPNoise, "__call__", lambda self, values, use: noise(values, use))
