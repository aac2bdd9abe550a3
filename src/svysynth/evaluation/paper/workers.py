"""Workers: processes that compute the replicates of a study in parallel, and keep each in a file of its own.

A replicate depends on the study's settings and its own number alone, and every worker computes on one thread. The
results are therefore the same for any number of workers. A study that was stopped or killed continues when it is run
again; a finished study can be run again with more replicates.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from svysynth.core.engine import ONE_THREAD, Engine
from svysynth.core.errors import Kind, SurveyError
from svysynth.core.grouping import Floats
from svysynth.core.hidden_folders import appearing, clear_leftovers

Arrays = dict[str, Floats]
Task = Callable[[int], Mapping[str, Floats]]
Progress = Callable[[int, int], None]
"""Called with the number of replicates that are done, and the number of all replicates."""
Refusal = tuple[Kind, str, str, str]

SETTINGS = "study.json"


def claim_folder(folder: Path, settings: Mapping[str, Any], mode: int = 0o777) -> None:
    """Make a folder for a study, or continue the same study in it; a folder with anything else is refused."""
    content = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    place = f"folder '{folder.name}'"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=mode, exist_ok=True)
        known = folder / SETTINGS
        if known.is_file():
            if known.read_text(encoding="utf-8") != content:
                problem = "holds a study with other settings or of another version of svysynth"
                raise SurveyError("file", place, problem, "choose another folder with --out")
        elif any(folder.iterdir()):
            raise SurveyError("file", place, "is not empty and holds no study", "choose another folder with --out")
        else:
            folder.chmod(folder.stat().st_mode & mode)  # an empty folder that was there may be open to others
            with appearing(known) as temporary:
                temporary.write_text(content, encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise SurveyError("file", place, "cannot be written", "choose another folder with --out") from None


def run_replicates(
    task: Task,
    indices: Sequence[int],
    folder: Path,
    workers: int | Engine,
    progress: Progress = lambda done, total: None,
) -> None:
    """Compute the replicates that the folder does not hold yet; `task` must be a picklable function of the index.

    `workers` is a number of processes on this machine, or an engine whose processes see the same folder.
    """
    pending = unfinished(folder, indices)
    progress(len(indices) - len(pending), len(indices))
    if not pending:
        return
    if not isinstance(workers, int):
        _map_replicates(
            task, pending, folder.resolve(), workers, lambda done: progress(len(indices) - done, len(indices))
        )
        return
    try:
        with processes(min(workers, len(pending))) as pool:
            futures = [pool.submit(_work, task, folder, index) for index in pending]
            for done, future in enumerate(as_completed(futures), start=1):
                refusal = future.result()
                if refusal is not None:
                    raise SurveyError(*refusal)
                progress(len(indices) - len(pending) + done, len(indices))
    finally:
        clear_leftovers(folder)


def unfinished(folder: Path, indices: Sequence[int]) -> list[int]:
    """The replicates that the folder does not hold yet; the folder is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    clear_leftovers(folder)
    return [index for index in indices if not _is_complete(_path(folder, index))]


@contextlib.contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """This many processes; each computes on one thread of the CPU and ends when this process ends."""
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    with _environment(ONE_THREAD | {"JAX_PLATFORMS": "cpu"}):
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(workers, context, _leave_with_parent)
        try:
            yield pool
        except (KeyboardInterrupt, SystemExit):
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # otherwise the shutdown below would wait for its work
            raise
        except BrokenProcessPool:
            remedy = "run the same command again: it continues where it stopped; use fewer --workers if memory is short"
            raise SurveyError("data", "the study", "a worker was killed", remedy) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _map_replicates(
    task: Task, pending: Sequence[int], folder: Path, engine: Engine, missing: Callable[[int], None]
) -> None:
    for done, refusal in enumerate(engine.map(partial(_work, task, folder), pending), start=1):
        if refusal is not None:
            raise SurveyError(*refusal)
        missing(len(pending) - done)


def load_replicates(folder: Path, indices: Sequence[int]) -> list[Arrays]:
    """The finished replicates, in the order of their numbers."""
    return [_read(_path(folder, index)) for index in indices]


def keep_replicate(folder: Path, index: int, result: Mapping[str, Floats]) -> None:
    """Write the file of a replicate."""
    with appearing(_path(folder, index)) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **result)


def _work(task: Task, folder: Path, index: int) -> Refusal | None:
    """Compute one replicate in a worker. A `SurveyError` is returned in parts, because it cannot be pickled."""
    try:
        keep_replicate(folder, index, task(index))
    except SurveyError as error:
        return error.kind, error.place, error.problem, error.remedy
    return None


def _leave_with_parent() -> None:
    """End this worker when the process that started it has ended, in whatever way."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.npz"


def _read(path: Path) -> Arrays:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        return dict(content)


def _is_complete(path: Path) -> bool:
    try:
        return bool(_read(path))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False
