"""Hidden folders: where things are written until they are complete, and how those of killed runs are cleared away.

A run that is killed outright cannot clear away what it had hidden, and there may be confidential columns in it. So each
hidden folder has a file `lock`, which its process keeps locked. The operating system lets go of the lock when the
process ends, however that was. Whoever hides something next in the same place removes those of the user's hidden
folders that nobody has locked.

Machines that share a disk must see each other's locks. NFS and the usual cluster file systems do so unless they are
mounted with local locks; where there are no locks at all, nothing is removed.
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
"""What a hidden folder has: the room is what is written to, and may be renamed."""


_own: set[Path] = set()
"""The hidden folders that this process holds now."""


@contextlib.contextmanager
def appearing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """A temporary path that takes the name `path` only when the block ends well.

    What is written from confidential data is readable by its owner only.
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
    """Let `work` fill a new folder that only its owner can enter; what it has not renamed is gone in the end.

    A signal, which may come between any two steps, leaves nothing behind: the folder is named before it is made, and
    what comes while it is cleared away waits. (With a context manager there would be a moment at either end in which
    neither the block nor the manager is in charge.)
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
    """Remove the hidden folders in a folder that no living process holds; what cannot be removed is left alone."""
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
        folder.rmdir()  # it was killed, or will notice, before it had a lock: then there is nothing in it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _clear(folder, [])
    finally:
        os.close(lock)


def clear_own() -> None:
    """Remove all that this process has hidden: the last thing that it does."""
    for folder in list(_own):
        _clear(folder, [])


def _new_folder(parent: Path) -> Path:
    return parent / f"{PREFIX}{secrets.token_hex(8)}"


def _claim(folder: Path, held: list[int]) -> None:
    """Make a hidden folder and lock it; once more if another process took it for a leftover before it was locked."""
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
    except OSError:  # a file system without locks, where nobody else gets this one either
        return


def _clear(folder: Path, held: list[int]) -> None:
    """Remove a hidden folder, the lock last: what is half removed is still known to be a leftover."""
    shutil.rmtree(folder / ROOM, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    _own.discard(folder)
    for lock in held:
        os.close(lock)


class _Signals:
    """Holds back those signals that end the program; other threads may receive them, so a mask would not do."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.held: list[int] = []

    def hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # where signals interrupt nothing
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
