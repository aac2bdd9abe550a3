"""Hidden folders: output is written there until it is complete. Those that killed runs leave behind are removed.

A run that is killed outright cannot remove its hidden folders, and these may hold confidential columns. So each hidden
folder has a file `lock`, which its process keeps locked. The operating system releases the lock when the process ends,
for whatever reason. The next run that makes a hidden folder in the same place removes those of the user's hidden
folders that no process has locked.

Machines that share a disk must see each other's locks. NFS and the usual cluster file systems ensure this unless they
are mounted with local locks. On a file system without locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from svysynth.core.errors import file_error

PREFIX = ".svysynth-"
LOCK, ROOM = "lock", "room"
"""The contents of a hidden folder: the lock file, and the folder that is written to and may be renamed."""


_own: set[Path] = set()
"""The hidden folders that this process holds now."""


@contextlib.contextmanager
def appearing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """A temporary path that is renamed to `path` only if the block ends without an error.

    By default the file is readable by its owner only, because it may come from confidential data.
    """
    folder, held = _new_folder(path.parent), list[int]()
    temporary = folder / ROOM / f"new{path.suffix}"
    try:
        try:
            clear_leftovers(path.parent)
            _claim(folder, held)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except (OSError, ValueError):
            raise file_error(path, "cannot be written", "check that the folder exists and can be written to") from None
        try:
            yield temporary
            temporary.chmod(mode)
            temporary.replace(path)
        except OSError:
            raise file_error(path, "cannot be written", "check the free space and the permissions there") from None
    finally:
        _clear(folder, held)


def in_hiding(parent: Path, work: Callable[[Path], None]) -> None:
    """Let `work` fill a new folder that only its owner can enter; what `work` has not renamed is removed at the end.

    A signal may arrive between any two steps and leaves nothing behind: the name of the folder is recorded before the
    folder is made, and signals that arrive while the folder is being removed wait. (With a context manager there would
    be a moment at the start and at the end in which neither the block nor the manager would remove the folder.)
    """
    clear_leftovers(parent)
    folder, held, signals = _new_folder(parent), list[int](), _Signals()
    try:
        try:
            _claim(folder, held)
            work(folder / ROOM)
        finally:
            signals.hold()
    finally:
        _clear(folder, held)
        signals.let_go()


def clear_leftovers(parent: Path) -> None:
    """Remove the hidden folders in `parent` that no running process has locked, as far as they can be removed."""
    with contextlib.suppress(OSError):
        with os.scandir(parent) as entries:
            found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for folder in found:
            with contextlib.suppress(OSError):
                _clear_leftover(folder)


def _clear_leftover(folder: Path) -> None:
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        folder.rmdir()  # without a lock file it is empty, and a process that is about to lock it makes it again
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _clear(folder, [])
    finally:
        os.close(lock)


def clear_own() -> None:
    """Remove all hidden folders of this process: the last thing that the process does."""
    for folder in list(_own):
        _clear(folder, [])


def _new_folder(parent: Path) -> Path:
    return parent / f"{PREFIX}{secrets.token_hex(8)}"


def _claim(folder: Path, held: list[int]) -> None:
    """Make a hidden folder and lock it; start again if another process removed it before it was locked."""
    _own.add(folder)
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            held.append(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            _lock_if_possible(held[-1])
            if os.path.samestat(os.fstat(held[-1]), (folder / LOCK).stat()):
                (folder / ROOM).mkdir(mode=0o700)
                return


def _lock_if_possible(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # on a file system without locks no other process gets this one either
        return


def _clear(folder: Path, held: list[int]) -> None:
    """Remove a hidden folder, its lock last: if that is interrupted, the rest is still recognised as a leftover."""
    shutil.rmtree(folder / ROOM, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    _own.discard(folder)
    for lock in held:
        os.close(lock)


class _Signals:
    """Holds back the signals that end the program; other threads may receive them, so a signal mask is not enough."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.held: list[int] = []

    def hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # signals interrupt the main thread only
            return
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if (handler := signal.getsignal(number)) is not None:
                self.handlers[number] = handler
                signal.signal(number, lambda number, _: self.held.append(number))

    def let_go(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for number in self.held:
            signal.raise_signal(number)
