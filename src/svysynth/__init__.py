"""Private tables and synthetic microdata from survey samples."""

from svysynth.design import Design
from svysynth.errors import SurveyError
from svysynth.files import write_frame
from svysynth.spec import EstimationSpec, Spec, TableSpec, load_spec
from svysynth.streams import Streams
from svysynth.survey import Survey, read_survey
from svysynth.tables import tabulate, tabulate_all

__version__ = "0.1.0"

__all__ = [
    "Design",
    "EstimationSpec",
    "Spec",
    "Streams",
    "Survey",
    "SurveyError",
    "TableSpec",
    "load_spec",
    "read_survey",
    "tabulate",
    "tabulate_all",
    "write_frame",
]
