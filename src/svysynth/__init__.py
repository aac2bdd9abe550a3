"""Private tables and synthetic microdata from survey samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from svysynth.design import Design
    from svysynth.errors import SurveyError
    from svysynth.files import write_frame
    from svysynth.models.fbp import FBP
    from svysynth.models.fbs import FBS
    from svysynth.models.numpyro import NumPyroModel
    from svysynth.pipeline import calibrate
    from svysynth.spec import EstimationSpec, Spec, TableSpec, load_spec
    from svysynth.streams import Streams
    from svysynth.survey import Survey, read_survey
    from svysynth.tables import tabulate, tabulate_all

__version__ = "0.1.0"

# Each name is imported when it is first used, so that the command line starts fast.
_HOMES = {
    "FBP": "models.fbp",
    "FBS": "models.fbs",
    "calibrate": "pipeline",
    "Design": "design",
    "EstimationSpec": "spec",
    "NumPyroModel": "models.numpyro",
    "Spec": "spec",
    "Streams": "streams",
    "Survey": "survey",
    "SurveyError": "errors",
    "TableSpec": "spec",
    "load_spec": "spec",
    "read_survey": "survey",
    "tabulate": "tables",
    "tabulate_all": "tables",
    "write_frame": "files",
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
    "read_survey",
    "tabulate",
    "tabulate_all",
    "write_frame",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'svysynth' has no attribute '{name}'")
    return getattr(import_module(f"svysynth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
