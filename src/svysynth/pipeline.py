"""The whole way, in one screen: survey → fit → bounds → α ⇄ calibrate to ε → m draws → synthetic surveys → tables.

`release` writes two folders: `public/`, made from the synthetic surveys alone, and `internal/`, which says how it went
and must never leave the house. Both appear together or not at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.calibration import Calibration, calibrate_records
from svysynth.combine import Synthetic
from svysynth.errors import SurveyError
from svysynth.files import write_frame
from svysynth.models.base import Model, make_records
from svysynth.models.fbp import FBP
from svysynth.models.fbs import FBS
from svysynth.spec import ModelSpec, PrivacySpec, Scheme, Spec
from svysynth.streams import Streams
from svysynth.survey import Survey, survey_from_file
from svysynth.synthesis import synthesize_surveys

NOT_FOR_RELEASE = "NOT FOR RELEASE: made with a seed, which undoes the protection."
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
        if isinstance(model, FBP):
            return Synthetic(surveys, "population", strata_in_variance=model.smoothing == "full")
        return Synthetic(surveys)


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


def release(spec: Spec, folder: Path, streams: Streams, *, seeded: bool, progress: Progress = lambda _: None) -> Path:
    """Run the whole way and write `public/` and `internal/` into a new folder."""
    if spec.privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with mechanism, epsilon and datasets")
    if folder.exists():
        raise SurveyError("file", f"folder '{folder.name}'", "exists already", "choose a new folder with --out")
    progress("reading the survey")
    survey = survey_from_file(spec.survey)
    if survey.population_total is None:
        remedy = "declare the published figure that released weights are scaled to"
        raise SurveyError("spec", "survey.population_total", "is not declared", remedy)
    privacy = spec.privacy
    model = make_model(privacy, spec.model)
    found = calibrate(
        model,
        survey,
        privacy.epsilon,
        privacy.datasets,
        formula=spec.model.formula,
        scheme=privacy.scheme,
        draws=privacy.draws,
        streams=streams,
        progress=progress,
    )
    progress("synthesizing")
    synthetic = found.synthesize()
    progress("making tables")
    tables = synthetic.tabulate_all(spec.requested_tables, spec.estimation)
    progress("writing")
    return _write(folder, spec, privacy, found.calibration, synthetic, tables, seeded)


def make_model(privacy: PrivacySpec, model: ModelSpec) -> Model:
    """The model that a spec asks for."""
    match privacy.mechanism:
        case "fbs":
            return FBS()
        case "fbp":
            return FBP(smoothing=model.smoothing)
        case _:
            raise SurveyError("spec", "privacy.mechanism", "'laplace' is not built yet", "use 'fbs' or 'fbp'")


def _write(
    folder: Path,
    spec: Spec,
    privacy: PrivacySpec,
    calibration: Calibration,
    synthetic: Synthetic,
    tables: pl.DataFrame,
    seeded: bool,
) -> Path:
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
        write_frame(tables, public / "tables.csv")
        for number, survey in enumerate(synthetic.surveys, start=1):
            write_frame(_microdata(survey), public / f"microdata-{number}.parquet")
        _write_json(public / "manifest.json", _manifest(spec, privacy, synthetic, seeded))
        for path in public.iterdir():
            path.chmod(0o644)
        _write_internal(internal, calibration)
        building.chmod(0o755)
        building.rename(folder)
    except OSError:
        raise SurveyError("file", f"folder '{folder.name}'", "cannot be written", "check the free space") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _microdata(survey: Survey) -> pl.DataFrame:
    labels = [pl.col(column).cast(pl.String) for column in survey.public]
    return survey.frame.with_columns(labels).with_row_index("id", offset=1)


def _manifest(spec: Spec, privacy: PrivacySpec, synthetic: Synthetic, seeded: bool) -> dict[str, Any]:
    first = synthetic.surveys[0]
    manifest: dict[str, Any] = {
        "guarantee": {
            "kind": "asymptotic",
            "statement": "ε = 2·Δ·m for the data at hand; the guarantee holds asymptotically and with a probability "
            "over data sets. It is not plain differential privacy.",
            "epsilon": privacy.epsilon,
            "datasets": privacy.datasets,
            "largest_bound": privacy.epsilon / (2 * privacy.datasets),
        },
        "mechanism": privacy.mechanism,
        "scheme": privacy.scheme,
        "draws": privacy.draws,
        "sampler": "Hamiltonian Monte Carlo on a whitened density (approximate)",
        "outcome": {"name": first.outcome, "transform": first.transform, "weights": "scaled to mean 1 in the model"},
        "formula": spec.model.formula or " + ".join(first.public),
        "public_columns": list(first.public),
        "population_total": first.population_total,
        "records": len(first),
        "versions": {package: version(package) for package in ("svysynth", "jax", "blackjax", "numpy")},
    }
    if privacy.mechanism == "fbp":
        manifest["smoothing"] = spec.model.smoothing
    return manifest | ({"warning": NOT_FOR_RELEASE} if seeded else {})


def _write_internal(folder: Path, calibration: Calibration) -> None:
    verdict = calibration.fit.verdict
    _write_json(
        folder / "diagnostics.json",
        {
            "r_hat": verdict.rhat,
            "ess_bulk": verdict.ess_bulk,
            "ess_tail": verdict.ess_tail,
            "divergences": verdict.divergences,
            "e_bfmi": verdict.ebfmi,
            "target": calibration.target,
            "largest_bound": calibration.largest_bound,
            "unweighted_largest_bound": float(np.max(calibration.bounds)),
        },
    )
    write_frame(
        pl.DataFrame(
            {
                "bound": calibration.bounds,
                "alpha": calibration.fit.alpha,
                "weighted_bound": calibration.weighted_bounds,
            }
        ),
        folder / "records.parquet",
    )
    trials: Sequence[tuple[float, float]] = [(trial.constant, trial.largest_bound) for trial in calibration.trials]
    write_frame(pl.DataFrame(trials, schema=["constant", "largest_bound"], orient="row"), folder / "calibration.csv")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
