"""Evidence of mechanisms that are made for tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from svysynth.mechanisms.base import Rows, Section


@dataclass(frozen=True)
class NoEvidence:
    """Of a mechanism that has nothing to say of how it went."""

    complaints: tuple[str, ...] = ()

    def summary(self) -> Rows:
        """No lines."""
        return []

    def sections(self) -> Sequence[Section]:
        """No sections."""
        return []

    def write(self, folder: Path) -> None:
        """No files."""
