"""Two worlds: small generated surveys that differ in one respondent's answers, and what releases of them show.

Everything is made from public constants: the spec's mechanism, bounds and `[standin]` are kept, its data are never
read. The releases have seeds: they are charged to no budget and cannot go out. The respondent is one whose answers do
the most harm. For the censored mechanism these are the two answers between which the respondent's clipped term varies
most over the posterior of all others; for additive noise the corners of the bounds, which move every sum by its
sensitivity.

The white-box attack sees what the mechanism drew: the posterior draws, or the noisy sums. Its statistic is the
logarithm of the two worlds' densities' ratio, up to a constant, than which there is none better. The black-box attack
sees the public folders that `pipeline.release` wrote.

A release of m synthetic files serves as m runs of a release of one: their chains have random numbers of their own.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from scipy.special import ndtri

from svysynth.additive import additive_tables
from svysynth.attack import attack
from svysynth.censor import CensoredFit, censored_records, fit_censored, trusted_censored
from svysynth.clipped import clip_terms
from svysynth.errors import SurveyError
from svysynth.files import write_frame
from svysynth.groups import Floats, Integers
from svysynth.interval import Interval, place_interval
from svysynth.models.base import Model, Records
from svysynth.noise import Noise, OpenDPNoise, Use
from svysynth.outline import outlined
from svysynth.pipeline import make_model, release
from svysynth.releases import STAMP
from svysynth.spec import DRAWS_APART, BoundsSpec, ModelSpec, PrivacySpec, Spec, StandInSpec, SurveySpec, TableSpec
from svysynth.streams import Streams
from svysynth.survey import Survey, survey_from_frame

RECORDS_FOR_EPSILON = 50
"""Records for ε = 1, in inverse proportion: with fewer the posterior may give them up, and nothing is released."""
FEWEST_RECORDS = 20
PLACES = np.array([-4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
"""Where the respondent's outcome and weight are tried, in public spreads from the middle."""
LOOKED_AT = 500
"""Draws over which terms are compared."""
NOISY = 50_000
"""How often the noise of additive tables is drawn: it costs next to nothing."""

Progress = Callable[[str], None]


@outlined
@dataclass(frozen=True, eq=False)
class Worlds:
    """Two neighbouring surveys and the spec by which both are released."""

    spec: Spec
    frames: tuple[pl.DataFrame, pl.DataFrame]
    """The respondent who differs comes first."""

    @property
    def privacy(self) -> PrivacySpec:
        """The spec's own."""
        assert self.spec.privacy is not None
        return self.spec.privacy

    @property
    def bounds(self) -> BoundsSpec:
        """The public bounds."""
        assert self.privacy.bounds is not None
        return self.privacy.bounds

    @property
    def interval(self) -> Interval:
        """Of the censored mechanism: that of its releases."""
        assert self.spec.standin is not None
        return place_interval(self.privacy.epsilon, self.privacy.datasets, self.spec.standin)[0]

    @property
    def claim(self) -> float:
        """What is promised of one file, or of the tables, for a respondent changed."""
        return 2 * self.privacy.epsilon / self.privacy.datasets if self.privacy.censored else self.privacy.epsilon

    def survey(self, world: int) -> Survey:
        """The survey of a world."""
        return survey_from_frame(self.frames[world], self.spec.survey)


def require_promise(spec: Spec) -> PrivacySpec:
    """The spec's privacy part, if it promises something that an attack could refute."""
    privacy = spec.privacy
    if privacy is not None and (privacy.censored or privacy.mechanism == "laplace"):
        return privacy
    problem = "promises nothing that holds for every data set, and so nothing that this audit could refute"
    remedy = "use guarantee = 'global' or mechanism = 'laplace'; `svysynth audit exact` shows the asymptotic kind"
    raise SurveyError("spec", "privacy", problem, remedy)


def make_worlds(spec: Spec, epsilon: float, files: int, records: int | None, streams: Streams) -> Worlds:
    """Worst-case neighbours for the spec's mechanism; ε is that of one file, for a respondent blanked out."""
    privacy = require_promise(spec)
    assert privacy.bounds is not None
    files = files if privacy.censored else 1
    size = records or max(FEWEST_RECORDS, math.ceil(RECORDS_FOR_EPSILON / epsilon) if privacy.censored else 0)
    (least, most), transform = privacy.bounds.weight, spec.survey.transform
    middle = math.sqrt(least * most) if least > 0 else most / 2
    small = Spec(
        survey=SurveySpec(
            data=Path("data.csv"),
            outcome="y",
            weight="w",
            public=("cell",),
            transform=transform,
            population_total=size * middle,
        ),
        privacy=privacy.model_copy(
            update={
                "epsilon": epsilon * files,
                "datasets": files,
                "draws": max(privacy.draws, DRAWS_APART * files),
            }
        ),
        model=ModelSpec(formula="1", smoothing=spec.model.smoothing),
        standin=spec.standin,
        tables=(TableSpec(by=()),),
    )
    if not privacy.censored:
        return Worlds(small, _corners(size, privacy.bounds, transform == "log"))
    return _farthest_apart(Worlds(small, (pl.DataFrame(), pl.DataFrame())), size, middle, streams)


def _corners(size: int, bounds: BoundsSpec, positive: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """For additive noise: from the largest outcome and weight to the least; the others anywhere."""
    (low, high), (least, most) = bounds.outcome, bounds.weight
    part = (np.arange(size - 1) + 0.5) / (size - 1)
    lowest = max(low, high * 1e-6) if positive else low
    y, w = low + (high - low) * part, least + (most - least) * part
    return _frame(high, most, y, w), _frame(lowest, max(least, most * 1e-12), y, w)


def _farthest_apart(empty: Worlds, size: int, middle: float, streams: Streams) -> Worlds:
    """For the censored mechanism: the two answers whose terms' difference varies most over the others' posterior."""
    constants, model = empty.spec.standin, make_model(empty.privacy, empty.spec.model)
    assert constants is not None
    generator = streams.generator("audit worlds")
    score = ndtri((np.arange(size - 1) + 0.5) / (size - 1))
    others = _answers(empty, constants, middle, score, generator.permutation(score))
    places = _answers(empty, constants, middle, *(axis.ravel() for axis in np.meshgrid(PLACES, PLACES)))
    frame = pl.DataFrame({"cell": "all", "y": others[0], "w": others[1]})
    found = fit_censored(model, _records(empty, frame), empty.interval, 1, streams, "audit worlds")
    tried = _records(empty, pl.DataFrame({"cell": "all", "y": places[0], "w": places[1]}), size)
    covariance = np.cov(_terms(found, tried), rowvar=False)
    variance = np.diagonal(covariance)
    gap = variance[:, np.newaxis] + variance - 2 * covariance
    pair = np.unravel_index(int(np.argmax(gap)), gap.shape)
    frames = [_frame(places[0][place], places[1][place], *others) for place in pair]
    return replace(empty, frames=(frames[0], frames[1]))


def _answers(worlds: Worlds, constants: StandInSpec, middle: float, t: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Outcomes and weights at these scores, within the public bounds."""
    y = constants.mean + constants.spread * t
    y = np.exp(y) if worlds.spec.survey.transform == "log" else y
    return np.clip(y, *worlds.bounds.outcome), np.clip(
        middle * np.exp(constants.weight_spread * v), *worlds.bounds.weight
    )


def _frame(first_y: float, first_w: float, y: Floats, w: Floats) -> pl.DataFrame:
    return pl.DataFrame({"cell": "all", "y": np.append(first_y, y), "w": np.append(first_w, w)})


def _records(worlds: Worlds, frame: pl.DataFrame, size: int | None = None) -> Records:
    """The records as the mechanism sees them; `size` is that of the survey whose records they would be."""
    survey = survey_from_frame(frame, worlds.spec.survey)
    records = censored_records(survey, worlds.bounds, "1")
    return replace(records, v=records.v + np.log((size or len(frame)) / len(frame)))


def _terms(found: CensoredFit, tried: Records) -> Floats:
    """The clipped terms of records at draws of a fit: draw × record."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in found.history.items()}
    chosen = np.linspace(0, len(next(iter(flat.values()))) - 1, LOOKED_AT).astype(int)
    return _clipped_terms(found.model, {name: value[chosen] for name, value in flat.items()}, tried, found.interval)


def _clipped_terms(model: Model, draws: Mapping[str, Any], records: Records, interval: Interval) -> Floats:
    t, v, x = (jnp.asarray(values) for values in (records.t, records.v, records.x[records.cell]))

    def of_draw(parameters: Any) -> Any:
        return clip_terms(model.log_likelihood(parameters, t, v, x), interval.low, interval.high)

    return np.asarray(jax.vmap(of_draw)({name: jnp.asarray(value) for name, value in draws.items()}))


# --- what each world shows ---


@outlined
@dataclass(frozen=True, eq=False)
class Seen:
    """Statistics of many runs of both worlds, and how many runs were refused in each."""

    names: tuple[str, ...]
    samples: tuple[Floats, Floats]
    """Sample × statistic, of each world."""
    refused: tuple[int, int] = (0, 0)


def white_box(worlds: Worlds, runs: int, streams: Streams) -> Seen:
    """The log of the two densities' ratio, at `runs` draws of each world."""
    if not worlds.privacy.censored:
        return noisy_sums(worlds, NOISY)
    model = make_model(worlds.privacy, worlds.spec.model)
    records = [_records(worlds, frame) for frame in worlds.frames]
    both = replace(records[0], t=_firsts(records, "t"), v=_firsts(records, "v"), cell=np.zeros(2, np.int64))

    def once(world: int, number: int) -> Floats:
        own = streams.split(f"white box {world}", number)
        found = trusted_censored(fit_censored(model, records[world], worlds.interval, worlds.privacy.datasets, own))
        terms = _clipped_terms(model, found.draws, both, worlds.interval)
        return terms[:, :1] - terms[:, 1:]

    return _repeat(("the ratio of densities",), once, runs)


def _firsts(records: Sequence[Records], name: str) -> Floats:
    return np.array([getattr(own, name)[0] for own in records])


@outlined
@dataclass
class _Recorder:
    """Notes what noise would be added to, and adds none."""

    seen: list[tuple[Integers, Use]] = field(default_factory=list)

    def __call__(self, values: Integers, use: Use) -> Integers:
        self.seen.append((values, use))
        return values


def noisy_sums(worlds: Worlds, runs: int, noise: Noise | None = None) -> Seen:
    """The sums that `additive_tables` measures, with its noise, many times over."""
    measured = []
    for world in (0, 1):
        recorder = _Recorder()
        tables = worlds.spec.requested_tables
        additive_tables(worlds.survey(world), tables, worlds.privacy.epsilon, worlds.bounds, noise=recorder)
        measured.append(recorder.seen)
    ratios = []
    for world in (0, 1):
        ratio = np.zeros(runs)
        for (one, use), (other, _) in zip(*measured, strict=True):
            values = (one, other)[world]
            noisy = (noise or OpenDPNoise())(np.tile(values, runs), use).reshape(runs, -1)
            ratio += (np.abs(noisy - other) - np.abs(noisy - one)).sum(axis=1) / use.scale
        ratios.append(ratio[:, np.newaxis])
    return Seen(("the ratio of densities",), (ratios[0], ratios[1]))


def black_box(worlds: Worlds, runs: int, folder: Path, streams: Streams, progress: Progress = lambda _: None) -> Seen:
    """Statistics of what `release` published, in `runs` releases of each world made in this folder."""
    names = FILE_STATISTICS if worlds.privacy.censored else TABLE_STATISTICS
    specs = [_placed(worlds, world, folder / f"world-{world + 1}") for world in (0, 1)]

    def once(world: int, number: int) -> Floats:
        progress(f"release {number + 1} of {runs}, world {world + 1}")
        target = folder / f"world-{world + 1}" / f"release-{number + 1}"
        release(specs[world], target, streams.split(f"black box {world}", number))
        found = _of_files(target / "public") if worlds.privacy.censored else _of_tables(target / "public")
        shutil.rmtree(target)
        return found

    return _repeat(names, once, runs)


def _placed(worlds: Worlds, world: int, folder: Path) -> Spec:
    folder.mkdir(parents=True)
    write_frame(worlds.frames[world], folder / "data.csv")
    survey = worlds.spec.survey.model_copy(update={"data": folder / "data.csv"})
    return worlds.spec.model_copy(update={"survey": survey})


FILE_STATISTICS = (
    *("mean outcome", "spread of outcomes", "least outcome", "largest outcome"),
    *("mean log weight", "spread of log weights", "correlation", "spread of smoothed log weights"),
)
TABLE_STATISTICS = tuple(
    f"{column} of the {statistic}" for statistic in ("count", "mean") for column in ("estimate", "se")
)


def _of_files(public: Path) -> Floats:
    return np.stack([_of_file(pl.read_csv(path)) for path in sorted(public.glob(f"{STAMP}microdata-*.csv"))])


def _of_file(frame: pl.DataFrame) -> Floats:
    y, weight, smoothed = (frame[name].to_numpy() for name in ("y", "weight_unsmoothed", "weight"))
    t = np.log(y) if (y > 0).all() else y
    v = np.log(weight)
    return np.array(
        [t.mean(), t.std(), t.min(), t.max(), v.mean(), v.std(), np.corrcoef(t, v)[0, 1], np.log(smoothed).std()]
    )


def _of_tables(public: Path) -> Floats:
    tables = pl.read_csv(public / f"{STAMP}tables.csv").sort("statistic")
    return tables.select("estimate", "se").fill_null(0.0).to_numpy().reshape(1, -1)


def _repeat(names: tuple[str, ...], once: Callable[[int, int], Floats], runs: int) -> Seen:
    """Runs of both worlds, as many of each as in the one that was refused the more often."""
    found: tuple[list[Floats], list[Floats]] = [], []
    refused = [0, 0]
    for number in range(runs):
        for world in (0, 1):
            try:
                found[world].append(once(world, number))
            except SurveyError as error:
                if error.place != "the posterior draws":
                    raise
                refused[world] += 1
    if not (found[0] and found[1]):
        remedy = "use more --records, or a larger --epsilon"
        raise SurveyError("data", "the generated survey", "every release was refused", remedy)
    size = min(sum(map(len, world)) for world in found)
    one, other = (np.concatenate(world)[:size] for world in found)
    return Seen(names, (one, other), (refused[0], refused[1]))


# --- the audit ---


def audit_sampled(
    spec: Spec,
    epsilons: Sequence[float],
    runs: int,
    folder: Path,
    streams: Streams,
    *,
    files: int = 25,
    records: int | None = None,
    confidence: float = 0.95,
    progress: Progress = lambda _: None,
) -> pl.DataFrame:
    """One row for each ε and attack: the lower bound it proves, beside the claim; `holds` unless it is above that.

    `runs` releases of each world are made in the folder, which should be thrown away.
    """
    rows = []
    for number, epsilon in enumerate(epsilons):
        progress(f"ε = {epsilon:g}: choosing the worst neighbours")
        worlds = make_worlds(spec, epsilon, files, records, streams.split("worlds", number))
        for name, seen in _attacks(worlds, runs, folder / str(number), streams.split("runs", number), progress):
            found = attack(*seen.samples, seen.names, confidence)
            rows.append(
                {
                    "mechanism": worlds.privacy.mechanism,
                    "records": worlds.frames[0].height,
                    "epsilon": epsilon,
                    "claim": worlds.claim,
                    "attack": name,
                    "lower bound": found.epsilon,
                    "confidence": confidence,
                    "statistic": found.statistic,
                    "frequency": found.frequency,
                    "other frequency": found.other_frequency,
                    "counted": found.runs,
                    "refused": seen.refused[0],
                    "refused other": seen.refused[1],
                    "holds": found.epsilon <= worlds.claim,
                }
            )
    return pl.DataFrame(rows)


def _attacks(
    worlds: Worlds, runs: int, folder: Path, streams: Streams, progress: Progress
) -> Iterator[tuple[str, Seen]]:
    progress(f"ε = {worlds.privacy.epsilon / worlds.privacy.datasets:g}: white box")
    yield "white box", white_box(worlds, runs, streams)
    yield "black box", black_box(worlds, runs, folder, streams, progress)
