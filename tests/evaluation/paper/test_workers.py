"""Replicates in parallel: the same for any number of workers, and after being killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from places import importing
from svysynth.core.errors import SurveyError
from svysynth.core.streams import Streams
from svysynth.evaluation.paper.workers import ONE_THREAD, claim_folder, load_replicates, run_replicates

TOTAL = 6


def task(index):
    """A replicate that says in whose process it ran."""
    return {"value": Streams.seeded(1).generator("test", index).random(3), "process": np.array([os.getpid()])}


def endless(index):
    """The first two replicates; the others do not end."""
    if index >= 2:
        signal.pause()
    return task(index)


def refusing(index):
    raise SurveyError("data", "the sample", "is too small", "draw a larger one")


def environment(index):
    names = [name for name in ONE_THREAD if os.environ.get(name) == ONE_THREAD[name]]
    return {"right": np.array([len(names)])}


def values(folder):
    return np.array([one["value"] for one in load_replicates(folder, range(TOTAL))])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_results_are_the_same_for_any_number_of_workers(tmp_path, workers):
    seen = []
    run_replicates(task, range(TOTAL), tmp_path, workers, lambda done, total: seen.append((done, total)))
    assert np.array_equal(values(tmp_path), np.array([task(index)["value"] for index in range(TOTAL)]))
    assert seen == [(done, TOTAL) for done in range(TOTAL + 1)]


def test_a_worker_computes_on_one_thread_and_the_parent_is_left_alone(tmp_path):
    before = dict(os.environ)
    run_replicates(environment, [0], tmp_path, 1)
    assert load_replicates(tmp_path, [0])[0]["right"] == len(ONE_THREAD)
    assert dict(os.environ) == before


def test_a_finished_replicate_is_kept_and_a_damaged_one_is_made_again(tmp_path):
    run_replicates(task, range(3), tmp_path, 1)
    kept, damaged = tmp_path / "000000.npz", tmp_path / "000001.npz"
    stamp = kept.stat().st_mtime_ns
    damaged.write_bytes(damaged.read_bytes()[:50])
    (tmp_path / ".svysynth-half").mkdir()
    (tmp_path / ".svysynth-half" / "lock").touch()
    run_replicates(task, range(TOTAL), tmp_path, 1)
    assert kept.stat().st_mtime_ns == stamp
    assert np.array_equal(values(tmp_path), np.array([task(index)["value"] for index in range(TOTAL)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{index:06d}.npz" for index in range(TOTAL)]


def test_an_error_in_a_worker_comes_back_whole(tmp_path):
    with pytest.raises(SurveyError, match=r"^the sample: is too small\. Remedy: draw a larger one\.$"):
        run_replicates(refusing, range(2), tmp_path, 1)


def started(folder):
    """A run, in a process of its own, that does not end."""
    code = (
        "from pathlib import Path\nimport test_workers as t\n"
        f"if __name__ == '__main__':\n    t.run_replicates(t.endless, range(t.TOTAL), Path({str(folder)!r}), 2)\n"
    )
    script = folder.parent / "run.py"
    script.write_text(code)
    return subprocess.Popen([sys.executable, str(script)], env=importing(Path(__file__).parent))


def wait_until(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_killed_run_is_taken_up_and_leaves_no_worker_behind(tmp_path):
    folder = tmp_path / "replicates"
    run = started(folder)
    wait_until(lambda: len(list(folder.glob("0*.npz"))) >= 2)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = sorted(folder.glob("0*.npz"))
    assert len(done) == 2
    workers = {int(one["process"][0]) for one in load_replicates(folder, [int(path.stem) for path in done])}
    wait_until(lambda: not any(is_running(worker) for worker in workers))
    stamps = [path.stat().st_mtime_ns for path in done]
    run_replicates(task, range(TOTAL), folder, 2)
    assert [path.stat().st_mtime_ns for path in done] == stamps
    assert np.array_equal(values(folder), np.array([task(index)["value"] for index in range(TOTAL)]))


def test_a_folder_belongs_to_one_study(tmp_path):
    claim_folder(tmp_path / "study", {"seed": 1})
    claim_folder(tmp_path / "study", {"seed": 1})
    with pytest.raises(SurveyError, match="other settings"):
        claim_folder(tmp_path / "study", {"seed": 2})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("precious")
    with pytest.raises(SurveyError, match="holds no study"):
        claim_folder(tmp_path / "other", {"seed": 1})


def test_a_cluster_gives_the_same(tmp_path):
    from svysynth.core.engine import Dask

    engine = Dask.connect()
    try:
        seen = []
        run_replicates(task, range(TOTAL), tmp_path / "values", engine, lambda done, total: seen.append((done, total)))
        run_replicates(environment, range(TOTAL), tmp_path / "environment", engine)
        with pytest.raises(SurveyError, match="too small"):
            run_replicates(refusing, range(TOTAL), tmp_path / "refused", engine)
    finally:
        engine.close()
    assert np.array_equal(values(tmp_path / "values"), np.array([task(index)["value"] for index in range(TOTAL)]))
    assert seen == [(done, TOTAL) for done in range(TOTAL + 1)]
    assert {one["process"].item() for one in load_replicates(tmp_path / "values", range(TOTAL))} != {os.getpid()}
    assert {one["right"].item() for one in load_replicates(tmp_path / "environment", range(TOTAL))} == {len(ONE_THREAD)}
