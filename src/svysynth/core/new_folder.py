"""New folder: output always goes to a new folder, which appears complete or not at all.

The rule holds for releases, further files, frontiers and constants, in Python and at the command line: nothing is ever
overwritten, and a folder that could not be created is refused before the long computation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from svysynth.core.errors import SurveyError
from svysynth.core.hidden_folders import in_hiding


def refuse_existing(folder: Path) -> None:
    """Stop if the folder exists already or could not be created: before the work, not after the charge."""
    try:
        with contextlib.suppress(FileNotFoundError):
            folder.lstat()
            raise _folder_error(folder, "exists already", "choose a new folder with --out")
        in_hiding(nearest_folder(folder), lambda _: None)
    except (OSError, ValueError):
        raise _folder_error(folder, "cannot be made", "choose another with --out") from None


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a hidden folder, then rename it in one step; missing parent folders are created."""

    def build(building: Path) -> None:
        fill(building)
        building.rename(folder)

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        in_hiding(folder.parent, build)
    except OSError:
        if folder.is_dir():  # another process created it first
            raise _folder_error(folder, "exists already", "choose a new folder with --out") from None
        remedy = "check the free space, or choose another with --out"
        raise _folder_error(folder, "cannot be written", remedy) from None


def nearest_folder(path: Path) -> Path:
    """The nearest existing folder above a path."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _folder_error(folder: Path, problem: str, remedy: str) -> SurveyError:
    return SurveyError("file", f"folder '{folder.name}'", problem, remedy)
