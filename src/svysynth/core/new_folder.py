"""New folder: whatever is written to a folder goes to a new one, which appears complete or not at all.

The rule holds for releases, further files, frontiers and constants, in Python and at the command line: nothing is ever
written on top of something else, and a folder that could not be made is refused before the long work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from svysynth.core.errors import SurveyError
from svysynth.core.hidden_folders import in_hiding


def refuse_existing(folder: Path) -> None:
    """Stop where the folder is there already, or could not be made: not at the end, when it is paid for."""
    try:
        with contextlib.suppress(FileNotFoundError):
            folder.lstat()
            raise _folder_error(folder, "exists already", "choose a new folder with --out")
        in_hiding(nearest_folder(folder), lambda _: None)
    except (OSError, ValueError):
        raise _folder_error(folder, "cannot be made", "choose another with --out") from None


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a hidden folder, then give it its name in one step; the folders above it are made too."""

    def build(building: Path) -> None:
        fill(building)
        building.rename(folder)

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        in_hiding(folder.parent, build)
    except OSError:
        if folder.is_dir():  # another process was faster
            raise _folder_error(folder, "exists already", "choose a new folder with --out") from None
        remedy = "check the free space, or choose another with --out"
        raise _folder_error(folder, "cannot be written", remedy) from None


def nearest_folder(path: Path) -> Path:
    """The nearest folder above a path that is there already."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _folder_error(folder: Path, problem: str, remedy: str) -> SurveyError:
    return SurveyError("file", f"folder '{folder.name}'", problem, remedy)
