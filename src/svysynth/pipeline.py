"""The whole way, in one screen: survey → fit → bounds → α ⇄ calibrate to ε → charge → m draws → Release → two folders.

`release` writes `public/`, made from a `Release` alone, and `internal/`, which says how it went and must never leave
the house. Both appear together or not at all. The charge comes before anything is drawn: a run that fails after it has
spent it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from svysynth.additive import additive_tables, check_additive
from svysynth.calibration import Calibration, calibrate_records
from svysynth.combine import Synthetic, make_synthetic
from svysynth.errors import SurveyError, is_plain
from svysynth.guarantee import Guarantee, additive, asymptotic
from svysynth.internal import write_internal
from svysynth.ledger import Charge, charge, millionths, show
from svysynth.models.base import Model, make_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.publish import publish
from svysynth.release import TABLE_DIGITS, Release, microdata, round_microdata, rounded
from svysynth.spec import ModelSpec, PrivacySpec, Scheme, Spec
from svysynth.streams import Streams
from svysynth.survey import Survey, survey_from_file
from svysynth.synthesis import synthesize_surveys

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A survey's model, calibrated to ε: what `synthesize` draws from."""

    survey: Survey
    calibration: Calibration
    streams: Streams

    def synthesize(self) -> Synthetic:
        """The m synthetic surveys. The same ones each time: every further draw would cost more of the budget."""
        model = self.calibration.fit.model
        surveys = synthesize_surveys(self.calibration.fit, self.survey, self.calibration.datasets, self.streams)
        return make_synthetic(surveys, model.name, getattr(model, "smoothing", "full"))


def calibrate(
    model: Model,
    survey: Survey,
    epsilon: float,
    datasets: int = 3,
    *,
    formula: str | None = None,
    scheme: Scheme = "inverse",
    draws: int = 1000,
    streams: Streams | None = None,
    progress: Progress = lambda _: None,
) -> Calibrated:
    """Calibrate a model to a survey so that m draws meet the asymptotic guarantee at ε = 2·Δ_α·m."""
    streams = streams or Streams.from_system()
    records = make_records(survey, formula)
    found = calibrate_records(model, records, epsilon, datasets, streams, scheme, draws, progress)
    return Calibrated(survey, found, streams)


def release(
    spec: Spec, folder: Path, streams: Streams, *, seeded: bool, progress: Progress = lambda _: None
) -> Release:
    """Run the whole way and write `public/` and `internal/` into a new folder."""
    privacy, budget = _ready(spec, folder)
    progress("reading the survey")
    survey = survey_from_file(spec.survey)
    roles = {"confidential": (survey.outcome, survey.design.weight), "public": _published_columns(survey)}
    calibration = None
    if privacy.mechanism == "laplace":
        guarantee = additive(privacy.epsilon, **roles)
        assert privacy.bounds is not None
        check_additive(survey, spec.requested_tables, privacy.epsilon, privacy.bounds, spec.estimation)
        paid = _charge(privacy, budget, folder, guarantee, progress)
        noisy = additive_tables(
            survey, spec.requested_tables, privacy.epsilon, privacy.bounds, estimation=spec.estimation
        )
        synthetic, tables, notes = Synthetic(()), noisy.tables, (noisy.budget, *noisy.notes)
    else:
        if survey.population_total is None:
            remedy = "declare the published figure that released weights are scaled to"
            raise SurveyError("spec", "survey.population_total", "is not declared", remedy)
        found = calibrate(
            make_model(privacy, spec.model),
            survey,
            privacy.epsilon,
            privacy.datasets,
            formula=spec.model.formula,
            scheme=privacy.scheme,
            draws=privacy.draws,
            streams=streams,
            progress=progress,
        )
        calibration = found.calibration
        guarantee = asymptotic(
            privacy.mechanism,
            privacy.epsilon,
            privacy.datasets,
            transform=survey.transform,
            draws=privacy.draws,
            **roles,
        )
        paid = _charge(privacy, budget, folder, guarantee, progress)
        synthetic = round_microdata(found.synthesize())
        progress("making tables")
        tables, notes = synthetic.tabulate_all(spec.requested_tables, spec.estimation), ()
    finished = Release(
        paid,
        guarantee,
        spec,
        {column: survey.levels(column) for column in survey.public},
        len(survey),
        rounded(tables, TABLE_DIGITS),
        tuple(microdata(one) for one in synthetic.surveys),
        notes,
        seeded,
    )
    progress("writing")
    _write(folder, finished, survey, synthetic, calibration)
    return finished


def _ready(spec: Spec, folder: Path) -> tuple[PrivacySpec, str]:
    """Stop before the long work if the release could not be written or paid for."""
    privacy = spec.privacy
    if privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with mechanism, epsilon and datasets")
    if privacy.mechanism == "laplace-paper":
        problem = "'laplace-paper' is a comparison without a guarantee and cannot be released"
        raise SurveyError("spec", "privacy.mechanism", problem, "use 'fbs', 'fbp' or 'laplace'")
    if folder.exists():
        raise SurveyError("file", f"folder '{folder.name}'", "exists already", "choose a new folder with --out")
    if privacy.budget is None:
        remedy = "name the population's budget, and open it once with `svysynth ledger open SPEC --total EPSILON`"
        raise SurveyError("spec", "privacy.budget", "is not declared", remedy)
    left = {state.name: state.left for state in show(privacy.ledger)}.get(privacy.budget)
    if left is None:
        remedy = "open it once with `svysynth ledger open SPEC --total EPSILON`, or correct privacy.budget"
        raise SurveyError("spec", f"budget '{privacy.budget}'", f"is not in '{privacy.ledger.name}'", remedy)
    if left < millionths(privacy.epsilon):
        remedy = "use a smaller privacy.epsilon, or release nothing more; `svysynth ledger show SPEC` lists the charges"
        raise SurveyError("spec", f"budget '{privacy.budget}'", "has less left than privacy.epsilon", remedy)
    return privacy, privacy.budget


def _charge(privacy: PrivacySpec, budget: str, folder: Path, guarantee: Guarantee, progress: Progress) -> Charge:
    progress("charging the ledger")
    purpose = folder.name if is_plain(folder.name) and folder.name.strip() else "release"
    return charge(privacy.ledger, budget, privacy.epsilon, purpose[:200].strip(), guarantee.kind)


def _published_columns(survey: Survey) -> tuple[str, ...]:
    strata = survey.design.strata
    return tuple(dict.fromkeys([*survey.public, *([strata] if strata else [])]))


def make_model(privacy: PrivacySpec, model: ModelSpec) -> Model:
    """The model that a spec asks for."""
    return FBS() if privacy.mechanism == "fbs" else FBP(smoothing=model.smoothing)


def _write(
    folder: Path, finished: Release, survey: Survey, synthetic: Synthetic, calibration: Calibration | None
) -> None:
    """Build both folders beside the target, then give them its name in one step."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".svysynth-", dir=folder.parent))
    except OSError:
        raise SurveyError("file", f"folder '{folder.name}'", "cannot be made", "choose another with --out") from None
    try:
        public, internal = building / "public", building / "internal"
        public.mkdir()
        internal.mkdir(mode=0o700)
        publish(finished, public)
        write_internal(internal, finished, survey, synthetic, calibration)
        anchor = building / "anchor.json"
        anchor.write_text(finished.charge.anchor.to_json(), encoding="utf-8")
        _settle(building)
        building.chmod(0o755)
        building.rename(folder)
    except OSError:
        raise SurveyError("file", f"folder '{folder.name}'", "cannot be written", "check the free space") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Wait until all is on disk, so that the new name never stands for half a release."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
