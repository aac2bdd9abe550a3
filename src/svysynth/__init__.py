"""Private tables and synthetic microdata from survey samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from svysynth.calibrated import calibrate
    from svysynth.design import Design
    from svysynth.errors import SurveyError
    from svysynth.files import write_frame
    from svysynth.ledger import open_budget
    from svysynth.microdata import read_synthetic
    from svysynth.models.fbp import FBP
    from svysynth.models.fbs import FBS
    from svysynth.models.numpyro import NumPyroModel
    from svysynth.pipeline import release
    from svysynth.postprocessing import more
    from svysynth.spec import EstimationSpec, Spec, TableSpec, load_spec
    from svysynth.streams import Streams
    from svysynth.survey import Survey, read_survey
    from svysynth.tables import tabulate, tabulate_all
    from svysynth.verification import verify_release as verify

__version__ = "0.2.0"

# Each name is imported when it is first used, so that the command line starts fast.
_HOMES = {
    "FBP": "models.fbp.FBP",
    "FBS": "models.fbs.FBS",
    "calibrate": "calibrated.calibrate",
    "Design": "design.Design",
    "EstimationSpec": "spec.EstimationSpec",
    "NumPyroModel": "models.numpyro.NumPyroModel",
    "Spec": "spec.Spec",
    "Streams": "streams.Streams",
    "Survey": "survey.Survey",
    "SurveyError": "errors.SurveyError",
    "TableSpec": "spec.TableSpec",
    "load_spec": "spec.load_spec",
    "more": "postprocessing.more",
    "open_budget": "ledger.open_budget",
    "read_survey": "survey.read_survey",
    "read_synthetic": "microdata.read_synthetic",
    "release": "pipeline.release",
    "tabulate": "tables.tabulate",
    "tabulate_all": "tables.tabulate_all",
    "verify": "verification.verify_release",
    "write_frame": "files.write_frame",
}

__all__ = [
    "FBP",
    "FBS",
    "Design",
    "EstimationSpec",
    "NumPyroModel",
    "Spec",
    "Streams",
    "Survey",
    "SurveyError",
    "TableSpec",
    "calibrate",
    "load_spec",
    "more",
    "open_budget",
    "read_survey",
    "read_synthetic",
    "release",
    "tabulate",
    "tabulate_all",
    "verify",
    "write_frame",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'svysynth' has no attribute '{name}'")
    home, _, attribute = _HOMES[name].rpartition(".")
    return getattr(import_module(f"svysynth.{home}"), attribute)


def __dir__() -> list[str]:
    return __all__
