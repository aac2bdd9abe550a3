"""Public constants for the guarantee `global`: proposed from published figures or a public file, with their reasons.

A release with this guarantee needs bounds of outcome and weight, and a stand-in of the survey needs a guess of their
spreads within cells (`[privacy.bounds]` and `[standin]` in the spec). All of them have to be public knowledge: taken
from the confidential sample they would be an uncharged release (docs/constants.md). Outcomes are taken to be lognormal,
or normal where `transform` is `identity`, and weights lognormal.
"""

from __future__ import annotations

import math
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from svysynth.core.errors import SurveyError
from svysynth.core.spec.privacy import BoundsSpec
from svysynth.core.spec.whole import Spec, StandInSpec, load_spec, validate_spec
from svysynth.core.transforms import Transform

PUBLISHED = "From published figures. Never take them from the confidential file."
PUBLIC_FILE = "From a public file. Never use the confidential file, nor anything made from it."
REACH = 4.0
"""Bounds lie this many spreads from the middle: 1 record in 16,000 lies outside."""
REACH_OF_EXTREMES = 3.0
"""The smallest and the largest plausible weight are taken to lie this many spreads from the middle."""
USUAL_WEIGHT_SPREAD = 0.5
LEAST_SPREAD, MOST_SPREAD = 1e-3, 4.0
"""Accepted spreads of a logarithm. Below, all records are alike; above, quartiles are further apart than 1 to 200."""
LARGEST = 1e40
MOST_RECORDS = 10**12
DISAGREEMENT = 1.25
"""Figures whose spreads differ by more than this factor are remarked upon."""
PAIRS = {"quartiles": 0.75, "deciles": 0.9}
LINE = 78


@dataclass(frozen=True)
class Published:
    """What is publicly known; each field is an option of `svysynth constants`."""

    mean: float | None = None
    median: float | None = None
    sd: float | None = None
    cv: float | None = None
    quartiles: tuple[float, float] | None = None
    """The first and the third."""
    deciles: tuple[float, float] | None = None
    """The first and the ninth."""
    range: tuple[float, float] | None = None
    explained: float = 0.0
    """The share of the outcome's variance, on the scale of the transform, that the public columns explain."""
    records: int | None = None
    population: float | None = None
    weight_range: tuple[float, float] | None = None
    weight_cv: float | None = None
    design_effect: float | None = None
    weight_explained: float = 0.0
    correlation: float = 0.0


@dataclass(frozen=True)
class Law:
    """A normal distribution of all records on the scale of a transform, by which the effect of bounds is judged."""

    middle: float
    spread: float
    transform: Transform

    def at(self, units: float) -> float:
        """The value this many spreads from the middle, on the scale of the tables."""
        value = self.middle + units * self.spread
        return math.exp(value) if self.transform == "log" else value


@dataclass(frozen=True)
class Proposal:
    """Proposed constants: what goes into the spec, why, and the distributions behind them."""

    bounds: BoundsSpec
    standin: StandInSpec
    reasons: dict[str, str]
    """Why each constant is what it is, by its key in the spec."""
    outcome: Law
    weight: Law
    source: str
    notes: tuple[str, ...] = ()
    population: float | None = None

    def fragment(self) -> str:
        """TOML for the end of a spec, with the reason above each line; short lines, so that no terminal breaks them."""
        total = "population_total" + ("" if self.population is None else f" = {_toml(self.population)}")
        lines = [
            *_comment(f"Public constants. {self.source}"),
            *_comment(f'For guarantee = "global"; {total} belongs in [survey].'),
            *("", "[privacy.bounds]"),
            *self._setting("outcome", _pair(self.bounds.outcome)),
            *self._setting("weight", _pair(self.bounds.weight)),
            *("", "[standin]"),
        ]
        for name in ("mean", "spread", "weight_spread", "correlation"):
            lines += self._setting(name, _toml(getattr(self.standin, name)))
        return "\n".join(lines) + "\n"

    def _setting(self, name: str, value: str) -> list[str]:
        return [*_comment(self.reasons[name]), f"{name} = {value}"]


# --- from published figures ---


def from_published(published: Published, transform: Transform = "log") -> Proposal:
    """Constants from published figures; missing or contradictory figures are an error or a note."""
    refuse_odd_figures(published, transform)
    outcome, how, notes = _outcome_law(published, transform)
    weight, how_weight, how_middle = _weight_law(published)
    inside, beyond = f"{REACH:g} spreads from the middle, rounded outwards", "given: no outcome lies beyond"
    bounds = {
        "outcome": published.range or round_outwards(outcome.at(-REACH), outcome.at(REACH)),
        "weight": published.weight_range or round_outwards(weight.at(-REACH), weight.at(REACH)),
    }
    reasons = {
        "outcome": beyond if published.range else inside,
        "weight": "given: the least and the greatest plausible weight"
        if published.weight_range
        else f"{inside}; {how_middle}",
        "mean": f"middle of {scale_of(transform)}, {how[0]}",
        "spread": f"spread of {scale_of(transform)}, {how[1]}{_left(published.explained)}",
        "weight_spread": f"spread of log weight, {how_weight}{_left(published.weight_explained)}",
        "correlation": f"of {scale_of(transform)} and log weight: "
        + ("a guess that was given" if published.correlation else "not given, taken as 0"),
    }
    spreads = (
        outcome.spread * math.sqrt(1 - published.explained),
        weight.spread * math.sqrt(1 - published.weight_explained),
    )
    return propose(
        bounds, (outcome, weight), spreads, published.correlation, reasons, PUBLISHED, notes, published.population
    )


def _outcome_law(published: Published, transform: Transform) -> tuple[Law, tuple[str, str], tuple[str, ...]]:
    """The distribution of the outcome, how its middle and its spread were found, and notes."""
    scaled: Callable[[float], float] = math.log if transform == "log" else float
    ways = _spreads(published, transform, scaled)
    if not ways:
        remedy = "give --quartiles, --deciles, --sd or --cv (with --mean), or --mean and a smaller --median"
        raise bad_figure("the outcome's spread", "does not follow from the figures given", remedy)
    how_spread, spread = next(iter(ways.items()))
    if transform == "log":
        require_sensible(spread, "the outcome's spread")
    notes = tuple(
        f"The {other} would give a spread of {value:.2g}, not {spread:.2g}: no "
        f"{'lognormal' if transform == 'log' else 'normal'} distribution has all these figures. Choose wide bounds."
        for other, value in ways.items()
        if max(value, spread) > DISAGREEMENT * min(value, spread)
    )
    pair = next((name for name in PAIRS if getattr(published, name)), None)
    if published.median is not None:
        middle, how = scaled(published.median), "from the median"
    elif pair:
        middle, how = sum(scaled(value) for value in getattr(published, pair)) / 2, f"halfway between the {pair}"
    elif published.mean is not None:
        middle, how = scaled(published.mean), "from the mean"
        if transform == "log":
            middle, how = middle - spread**2 / 2, "from the mean, less half the squared spread"
    else:
        raise bad_figure("the outcome's middle", "does not follow from the figures given", "give --median or --mean")
    return Law(middle, spread, transform), (how, f"from the {how_spread}"), notes


def _spreads(published: Published, transform: Transform, scaled: Callable[[float], float]) -> dict[str, float]:
    """Every way in which the figures give a spread, the most robust first."""
    ways = {}
    for name, level in PAIRS.items():
        if pair := getattr(published, name):
            ways[name] = (scaled(pair[1]) - scaled(pair[0])) / (2 * float(ndtri(level)))
    mean, median = published.mean, published.median
    if published.sd is not None and (transform == "identity" or mean):
        ways["standard deviation"] = published.sd if transform == "identity" else _of_cv(published.sd / (mean or 1.0))
    if published.cv is not None and transform == "log":
        ways["CV"] = _of_cv(published.cv)
    elif published.cv is not None and mean:
        ways["CV"] = published.cv * abs(mean)
    if transform == "log" and mean and median and mean > median:
        ways["mean and median"] = math.sqrt(2 * math.log(mean / median))
    return ways


def _weight_law(published: Published) -> tuple[Law, str, str]:
    """The distribution of all weights, how its spread was found, and how its middle was found."""
    if published.weight_cv is not None:
        spread, how = _of_cv(published.weight_cv), "from the weights' CV"
    elif published.design_effect is not None:
        spread, how = math.sqrt(math.log(published.design_effect)), "from the design effect 1 + CV² of the weights"
    elif published.weight_range is not None:
        spread = math.log(published.weight_range[1] / published.weight_range[0]) / (2 * REACH_OF_EXTREMES)
        how = f"if the extremes lie {REACH_OF_EXTREMES:g} spreads from the middle"
    else:
        spread, how = USUAL_WEIGHT_SPREAD, "no figure given: a usual one"
    require_sensible(spread, "the weights' spread")
    if published.records and published.population:
        mean = published.population / published.records
        return Law(math.log(mean) - spread**2 / 2, spread, "log"), how, f"the mean weight is N/n = {mean:.4g}"
    if published.weight_range is None:
        remedy = "give --records and --population, whose ratio is the mean weight, or --weight-range"
        raise bad_figure("the weights' bounds", "do not follow from the figures given", remedy)
    return Law(sum(map(math.log, published.weight_range)) / 2, spread, "log"), how, ""


def refuse_odd_figures(published: Published, transform: Transform) -> None:
    """Refuse numbers that are not finite, not positive where they must be, in the wrong order, or out of range."""
    positive = {"sd", "cv", "weight_cv", "population", "weight_range"}
    positive |= {"mean", "median", "quartiles", "deciles", "range"} if transform == "log" else set()
    for name, value in vars(published).items():
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        if not all(math.isfinite(number) and abs(number) < LARGEST for number in numbers):
            raise bad_figure(_option(name), "is not a number that can be used", "write it like 52000")
        if name in positive and not all(number > 1 / LARGEST for number in numbers):
            hint = "; where the outcome can be zero or less, use --transform identity" if transform == "log" else ""
            raise bad_figure(_option(name), "must be above zero", f"give the published figure{hint}")
        if isinstance(value, tuple) and not value[0] < value[1]:
            raise bad_figure(_option(name), "must be in ascending order", "write it like 30000,90000")
    for name in ("explained", "weight_explained"):
        if not 0 <= getattr(published, name) <= 0.99:
            raise bad_figure(_option(name), "must lie between 0 and 0.99", "give a share, such as 0.2")
    if not -0.99 <= published.correlation <= 0.99:
        raise bad_figure("--correlation", "must lie between -0.99 and 0.99", "give 0 where nothing is known")
    if published.design_effect is not None and published.design_effect <= 1:
        raise bad_figure("--design-effect", "must be above 1", "give 1 + CV² of the weights, such as 1.3")
    if published.records is not None and not 1 <= published.records <= MOST_RECORDS:
        raise bad_figure("--records", "must be a positive number", "give the number of records of the sample")
    if published.records and published.population and published.population < published.records:
        raise bad_figure(
            "--population", "is smaller than the sample", "give the population total N, and n as --records"
        )
    if published.range is not None:
        _require_inside(published, published.range)


def _require_inside(published: Published, bounds: tuple[float, float]) -> None:
    for name in ("mean", "median", *PAIRS):
        value = getattr(published, name)
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        if not all(bounds[0] <= number <= bounds[1] for number in numbers):
            raise bad_figure("--range", f"does not contain {_option(name)}", "give the least and the greatest outcome")


def require_sensible(spread: float, place: str) -> None:
    """Refuse a spread of logarithms that no survey has."""
    if not LEAST_SPREAD <= spread <= MOST_SPREAD:
        problem = f"is not between {LEAST_SPREAD:g} and {MOST_SPREAD:g} on the scale of logarithms"
        raise bad_figure(
            place, problem, "check the figures; if the outcome is far from lognormal, use --transform identity"
        )


# --- what any proposal shares ---


def propose(
    bounds: dict[str, tuple[float, float]],
    laws: tuple[Law, Law],
    spreads: tuple[float, float],
    correlation: float,
    reasons: dict[str, str],
    source: str,
    notes: tuple[str, ...] = (),
    population: float | None = None,
) -> Proposal:
    """A proposal with rounded constants; `laws` and `spreads` are those of the outcome and the weight."""
    outcome, weight = laws
    places = 1 - math.floor(math.log10(spreads[0]))
    try:
        return Proposal(
            BoundsSpec(**bounds),
            StandInSpec(
                mean=round(outcome.middle, places),
                spread=float(f"{spreads[0]:.2g}"),
                weight_spread=float(f"{spreads[1]:.2g}"),
                correlation=round(correlation, 2),
            ),
            reasons,
            outcome,
            weight,
            source,
            notes,
            population,
        )
    except SurveyError:
        raise bad_figure("the constants", "are beyond what a spec can hold", "check the figures given") from None


def load_unfinished(path: Path) -> Spec:
    """A spec that may lack the public constants; placeholders then stand in for them."""
    try:
        return load_spec(path)
    except SurveyError as error:
        if not any(lacking in error.problem for lacking in ("'privacy.bounds' is required", "and [standin] lacks")):
            raise
    content: dict[str, Any] = tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    content["privacy"].setdefault("bounds", {"outcome": [1, 2], "weight": [1, 2]})
    if content["privacy"].get("scales") == "standin":
        content["standin"] = {"mean": 1, "spread": 1, "weight_spread": 1} | content.get("standin", {})
    spec = validate_spec(content, path.name)
    return spec.model_copy(update={"survey": spec.survey.model_copy(update={"data": path.parent / spec.survey.data})})


def round_outwards(low: float, high: float) -> tuple[float, float]:
    """Both ends to one significant digit, away from what lies between.

    >>> round_outwards(13_200, 418_000), round_outwards(-0.31, 2)
    ((10000.0, 500000.0), (-0.4, 2.0))
    """
    return _round(low, ROUND_FLOOR), _round(high, ROUND_CEILING)


def scale_of(transform: Transform) -> str:
    """What the outcome is called on the scale of a transform."""
    return "log outcome" if transform == "log" else "the outcome"


def bad_figure(place: str, problem: str, remedy: str) -> SurveyError:
    """The error of figures that cannot be used."""
    return SurveyError("spec", place, problem, remedy)


def _round(value: float, rounding: str) -> float:
    exact = Decimal(f"{value:.9e}")  # ten digits: 0.3 is three tenths, not a little less
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted()), rounding)) if value else 0.0


def _of_cv(variation: float) -> float:
    """The spread of the logarithm of a lognormal variable with this coefficient of variation."""
    return math.sqrt(math.log1p(variation**2))


def _left(explained: float) -> str:
    return f"; {1 - explained:.0%} of its square is left within cells" if explained else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# ")


def _pair(values: tuple[float, float]) -> str:
    return f"[{', '.join(map(_toml, values))}]"


def _toml(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
