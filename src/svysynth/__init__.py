"""Private tables and synthetic microdata from survey samples.

`release`, `verify`, `more` and `open_budget` do what the command line does, including the charge to a budget.
`calibrate` runs the paper's mechanism step by step. Objects that hold data display their sizes and never a value, also
in a notebook. Results that have not been charged to a budget say so.
"""

import ast
import inspect
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each name is imported when it is first used, so that the command line starts fast
    from svysynth.core.errors import SurveyError
    from svysynth.core.spec.estimation import EstimationSpec, TableSpec
    from svysynth.core.spec.whole import Spec, load_spec
    from svysynth.core.streams import Streams
    from svysynth.estimation.combining import Synthetic
    from svysynth.estimation.regression import Regression
    from svysynth.estimation.tables import tabulate, tabulate_all
    from svysynth.mechanisms.pseudo_posterior.python_interface import Calibrated, calibrate
    from svysynth.mechanisms.synthetic_files import read_synthetic
    from svysynth.models.clustered_fbs import ClusteredFBS
    from svysynth.models.fbp import FBP
    from svysynth.models.fbs import FBS
    from svysynth.models.numpyro import NumPyroModel
    from svysynth.pipeline import release
    from svysynth.privacy.budgets import BudgetState
    from svysynth.privacy.guarantee import Guarantee
    from svysynth.privacy.ledger import open_budget
    from svysynth.privacy.release import Release
    from svysynth.publishing.from_public_folder import More, more
    from svysynth.publishing.regress import regress
    from svysynth.publishing.verification import Verified
    from svysynth.publishing.verification import verify_release as verify
    from svysynth.survey.survey import Survey, read_survey

__version__ = "0.2.0"

__all__ = [
    "FBP",
    "FBS",
    "BudgetState",
    "Calibrated",
    "ClusteredFBS",
    "EstimationSpec",
    "Guarantee",
    "More",
    "NumPyroModel",
    "Regression",
    "Release",
    "Spec",
    "Streams",
    "Survey",
    "SurveyError",
    "Synthetic",
    "TableSpec",
    "Verified",
    "calibrate",
    "load_spec",
    "more",
    "open_budget",
    "read_survey",
    "read_synthetic",
    "regress",
    "release",
    "tabulate",
    "tabulate_all",
    "verify",
]


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Where each public name lives: its module and its name there, read from the imports above."""
    tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found = {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
    return {name: found[name] for name in __all__}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'svysynth' has no attribute '{name}'")
    module, attribute = _homes()[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
