"""Shared pieces of the tests: the demo survey, and the switch for the slower studies."""

import os
from importlib.metadata import version
from pathlib import Path

import hypothesis
import polars as pl
import pytest

# Compiled programs are shared by the test processes and kept between runs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache/jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Compiling takes most of the time of the tests, and half as long with XLA's older code generator for loops. Versions
# that do not know a flag stop at it.
if tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 10):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import svysynth
from paper_settings import with_paper_settings
from svysynth.cli.release import open_demo_budget, write_example
from svysynth.survey.doctorates import doctorates


def pytest_addoption(parser):
    parser.addoption("--run-study", action="store_true", help="run the slower statistical studies too")


def pytest_configure(config):
    config.addinivalue_line("markers", "study: a slower statistical study, run by `make study`")
    # Everybody tries the same examples, so that a change is blamed only for what it breaks. To look for new ones:
    # pytest --hypothesis-profile=search
    slow = [hypothesis.HealthCheck.too_slow]  # machines are shared: how long an example takes says nothing about it
    hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=slow)
    hypothesis.settings.register_profile("search", deadline=None, suppress_health_check=slow)
    if not config.getoption("--hypothesis-profile"):
        hypothesis.settings.load_profile("same")


def pytest_collection_modifyitems(config, items):
    """The studies are another command's work: leave them out of the ordinary run rather than skip them."""
    if not config.getoption("--run-study"):
        studies = [item for item in items if item.get_closest_marker("study")]
        config.hook.pytest_deselected(items=studies)
        items[:] = [item for item in items if not item.get_closest_marker("study")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The demo's survey and spec, with its budget opened and nothing released."""
    folder = tmp_path_factory.mktemp("demo")
    open_demo_budget(svysynth.load_spec(write_example(folder)))
    return folder


@pytest.fixture(scope="module")
def paper_demo(tmp_path_factory) -> Path:
    """The same with the paper's mechanism, ε = 10.8 for three files, and a budget for it."""
    folder = tmp_path_factory.mktemp("paper-demo")
    spec = write_example(folder)
    spec.write_text(with_paper_settings(spec.read_text()))
    open_demo_budget(svysynth.load_spec(spec))
    return folder


@pytest.fixture(scope="session")
def doctorate_frame() -> pl.DataFrame:
    return doctorates()


@pytest.fixture(scope="session")
def doctorate_survey(doctorate_frame) -> svysynth.Survey:
    return svysynth.read_survey(
        doctorate_frame, outcome="salary", weight="weight", strata="field", public=["field", "gender"]
    )
