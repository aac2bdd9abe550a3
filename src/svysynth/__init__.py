"""Private tables and synthetic microdata from survey samples."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from svysynth.core.errors import SurveyError
    from svysynth.core.spec import EstimationSpec, Spec, TableSpec, load_spec
    from svysynth.core.streams import Streams
    from svysynth.estimation.tables import tabulate, tabulate_all
    from svysynth.mechanisms.pseudo_posterior.calibrated import calibrate
    from svysynth.mechanisms.synthetic_files import read_synthetic
    from svysynth.models.fbp import FBP
    from svysynth.models.fbs import FBS
    from svysynth.models.numpyro import NumPyroModel
    from svysynth.pipeline import release
    from svysynth.privacy.ledger import open_budget
    from svysynth.publishing.further import more
    from svysynth.publishing.verification import verify_release as verify
    from svysynth.survey.design import Design
    from svysynth.survey.files import write_frame
    from svysynth.survey.survey import Survey, read_survey

__version__ = "0.2.0"

# Each name is imported when it is first used, so that the command line starts fast.
_HOMES = {
    "FBP": "models.fbp.FBP",
    "FBS": "models.fbs.FBS",
    "calibrate": "mechanisms.pseudo_posterior.calibrated.calibrate",
    "Design": "survey.design.Design",
    "EstimationSpec": "core.spec.EstimationSpec",
    "NumPyroModel": "models.numpyro.NumPyroModel",
    "Spec": "core.spec.Spec",
    "Streams": "core.streams.Streams",
    "Survey": "survey.survey.Survey",
    "SurveyError": "core.errors.SurveyError",
    "TableSpec": "core.spec.TableSpec",
    "load_spec": "core.spec.load_spec",
    "more": "publishing.further.more",
    "open_budget": "privacy.ledger.open_budget",
    "read_survey": "survey.survey.read_survey",
    "read_synthetic": "mechanisms.synthetic_files.read_synthetic",
    "release": "pipeline.release",
    "tabulate": "estimation.tables.tabulate",
    "tabulate_all": "estimation.tables.tabulate_all",
    "verify": "publishing.verification.verify_release",
    "write_frame": "survey.files.write_frame",
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
