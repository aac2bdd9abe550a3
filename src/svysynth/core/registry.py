"""The lists of models and of mechanisms. A new model or mechanism is a file or a folder of its own, and one entry here.

An entry has all that is needed to read a spec: the names that a user may write as `mechanism`, the promise that is
written as `guarantee`, and whether synthetic files are made. The class itself is imported when it is first asked for
(`mechanism_of` in mechanisms/base.py): fits need JAX, which takes a second to load, and a spec is read without it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Promise = Literal["asymptotic", "global", "none"]
Accounting = Literal["differential privacy", "asymptotic"]
"""The kind of ε that a promise is charged in (`privacy/accounting.py`)."""


class ListedModel(NamedTuple):
    """An entry in the list of models."""

    name: str
    """What a user writes as `mechanism`."""
    home: str
    """The class, as module and name."""
    described: str
    """A description of what it models, for readers of a release."""
    promises: tuple[Promise, ...] = ("asymptotic",)
    """The guarantees with which it can be released."""
    clustered: str = ""
    """The class of the same model with effects of clusters, as module and name; empty without one."""

    @property
    def title(self) -> str:
        """The description that readers of a release see."""
        return f"{self.name.upper()}: synthetic data from {self.described}"


MODELS: tuple[ListedModel, ...] = (
    ListedModel(
        "fbs",
        "svysynth.models.fbs.FBS",
        "a model of the observed sample",
        ("asymptotic", "global"),
        "svysynth.models.clustered_fbs.ClusteredFBS",
    ),
    ListedModel(
        "fbp", "svysynth.models.fbp.FBP", "a model of the population and of the sampling", ("asymptotic", "global")
    ),
)


def find_model(name: str) -> ListedModel:
    """The entry of a model."""
    return next(model for model in MODELS if model.name == name)


class ListedMechanism(NamedTuple):
    """An entry in the list of mechanisms."""

    own_names: tuple[str, ...]
    """The names of the mechanism itself. Empty if users name a model instead: any model that has its promise."""
    promise: Promise
    microdata: bool
    """Whether synthetic files are released, or tables alone."""
    home: str
    """The class, as module and name."""
    files: int = 3
    """The number of synthetic files if the spec does not state one."""
    fewest: int = 1
    """The fewest synthetic files that may be asked for; 0 if tables can be released alone."""
    whole_records: bool = False
    """Whether whole records can be protected: public columns and participation too."""
    scaled: bool = False
    """Whether sums are measured in scales of outcome and weight (`privacy.scales`), which may be public constants."""
    clusters: bool = False
    """Whether standard errors take clusters of the design into account."""
    calibration: bool = False
    """Whether released weights can be calibrated to public totals."""
    quantiles: bool = False
    """Whether its tables can have quantiles, and shares above a threshold: tables of records can, those of sums not."""
    answers: bool = False
    """Whether further answers (`survey.variables`) are released, and outcomes that are yes/no answers."""
    every_cell: bool = False
    """Whether sums of every combination of public columns are measured, so that files have interactions that the model
    does not name; with a formula its terms are all."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a user may write as `mechanism`."""
        return self.own_names or tuple(model.name for model in MODELS if self.promise in model.promises)

    def makes(self, files: int) -> bool:
        """Whether a release may have this many synthetic files."""
        return files >= self.fewest if self.microdata else files == 0


MECHANISMS: tuple[ListedMechanism, ...] = (
    ListedMechanism(
        (),
        "asymptotic",
        True,
        "svysynth.mechanisms.pseudo_posterior.mechanism.PseudoPosterior",
        clusters=True,
        calibration=True,
        quantiles=True,
    ),
    ListedMechanism(
        (),
        "global",
        True,
        "svysynth.mechanisms.noisy_sums.mechanism.NoisySums",
        files=10,
        fewest=0,
        whole_records=True,
        scaled=True,
        clusters=True,
        calibration=True,
        every_cell=True,
    ),
    ListedMechanism(
        ("margins",),
        "global",
        True,
        "svysynth.mechanisms.margins.mechanism.Margins",
        files=10,
        quantiles=True,
        answers=True,
    ),
    ListedMechanism(
        ("laplace",), "global", False, "svysynth.mechanisms.noisy_tables.mechanism.NoisyTables", clusters=True
    ),
    ListedMechanism(("laplace-paper",), "none", False, "svysynth.mechanisms.paper_comparison.mechanism.PaperLaplace"),
)


def mechanism_names(*, released: bool = False) -> tuple[str, ...]:
    """The names that `mechanism` may have; with `released`, only those of mechanisms that promise something."""
    found = (name for member in MECHANISMS if not released or member.promise != "none" for name in member.names)
    return tuple(dict.fromkeys(found))


def promises_of(name: str) -> tuple[Promise, ...]:
    """The promises that a mechanism can make."""
    return tuple(member.promise for member in MECHANISMS if name in member.names)


def find_mechanism(name: str, promise: str) -> ListedMechanism | None:
    """The entry for a mechanism's name and a promise, or None."""
    return next((member for member in MECHANISMS if name in member.names and member.promise == promise), None)
