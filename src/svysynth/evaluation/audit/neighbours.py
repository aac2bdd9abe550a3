"""Two worlds: small generated surveys that differ in one respondent's answers, and what releases of them show.

Everything is made from public constants: the spec's mechanism and bounds are kept, its data are never read. The
releases have seeds: they are charged to no budget and cannot be published. The respondent's answers are the worst case
for privacy: the corners of the bounds, which move every sum by its sensitivity.

The white-box attack sees the noisy sums that the mechanism drew. Its statistic is, up to a constant, the log ratio of
the densities of the two worlds, which is the most powerful one. The black-box attack sees the public folders that
`pipeline.release` wrote.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from svysynth.core.errors import SurveyError
from svysynth.core.grouping import Floats, Integers
from svysynth.core.safe_repr import outlined
from svysynth.core.spec.estimation import TableSpec
from svysynth.core.spec.privacy import BoundsSpec, PrivacySpec
from svysynth.core.spec.survey import SurveySpec
from svysynth.core.spec.whole import Spec
from svysynth.core.streams import Streams
from svysynth.evaluation.audit.attack import attack
from svysynth.mechanisms.base import mechanism_of
from svysynth.mechanisms.noise import Noise, OpenDPNoise, Use
from svysynth.mechanisms.noisy_tables.tables import additive_tables
from svysynth.pipeline import release
from svysynth.privacy.release import STAMP
from svysynth.survey.files import write_frame
from svysynth.survey.survey import Survey, survey_from_frame

RECORDS = 20
NOISY = 50_000
"""How many times the noise of additive tables is drawn: this takes little time."""

Progress = Callable[[str], None]


@outlined
@dataclass(frozen=True, eq=False)
class Worlds:
    """Two neighbouring surveys and the spec by which both are released."""

    spec: Spec
    frames: tuple[pl.DataFrame, pl.DataFrame]
    """In both frames the first record is that of the respondent who differs."""

    @property
    def privacy(self) -> PrivacySpec:
        """The privacy part of the spec."""
        assert self.spec.privacy is not None
        return self.spec.privacy

    @property
    def bounds(self) -> BoundsSpec:
        """The public bounds."""
        assert self.privacy.bounds is not None
        return self.privacy.bounds

    @property
    def claim(self) -> float:
        """The ε that is promised for a respondent changed."""
        return self.privacy.epsilon

    def survey(self, world: int) -> Survey:
        """The survey of a world."""
        return survey_from_frame(self.frames[world], self.spec.survey)


def require_promise(spec: Spec) -> PrivacySpec:
    """The spec's privacy part, if it promises something that an attack could refute."""
    privacy = spec.privacy
    if privacy is not None and privacy.guarantee == "global":
        if not mechanism_of(privacy).modelled:
            return privacy
        problem = "uses noisy sums of a model, which this audit does not cover"
        raise SurveyError("spec", "privacy.mechanism", problem, "use mechanism = 'laplace'")
    problem = "promises nothing that holds for every data set, and so nothing that this audit could refute"
    remedy = "use mechanism = 'laplace' with guarantee = 'global'; `svysynth audit exact` shows the asymptotic kind"
    raise SurveyError("spec", "privacy", problem, remedy)


def make_worlds(spec: Spec, epsilon: float, records: int | None = None) -> Worlds:
    """Worst-case neighbours for the spec's bounds: the largest outcome and weight become the smallest."""
    privacy, size = require_promise(spec), records or RECORDS
    assert privacy.bounds is not None
    (low, high), (least, most) = privacy.bounds.outcome, privacy.bounds.weight
    small = Spec(
        survey=SurveySpec(
            data=Path("data.csv"),
            outcome="y",
            weight="w",
            public=("cell",),
            transform=spec.survey.transform,
            population_total=size * (math.sqrt(least * most) if least > 0 else most / 2),
        ),
        privacy=privacy.model_copy(update={"epsilon": epsilon}),
        tables=(TableSpec(by=()),),
    )
    part = (np.arange(size - 1) + 0.5) / (size - 1)
    lowest = max(low, high * 1e-6) if spec.survey.transform == "log" else low
    others = low + (high - low) * part, least + (most - least) * part
    return Worlds(small, (_frame(high, most, *others), _frame(lowest, max(least, most * 1e-12), *others)))


def _frame(first_y: float, first_w: float, y: Floats, w: Floats) -> pl.DataFrame:
    return pl.DataFrame({"cell": "all", "y": np.append(first_y, y), "w": np.append(first_w, w)})


# --- what each world shows ---


@outlined
@dataclass(frozen=True, eq=False)
class Seen:
    """Statistics of many runs of both worlds."""

    names: tuple[str, ...]
    samples: tuple[Floats, Floats]
    """Sample × statistic, of each world."""


@outlined
@dataclass
class _Recorder:
    """Records the sums that noise would be added to, and adds none."""

    seen: list[tuple[Integers, Use]] = field(default_factory=list)

    def __call__(self, values: Integers, use: Use) -> Integers:
        self.seen.append((values, use))
        return values


def white_box(worlds: Worlds, runs: int, noise: Noise | None = None) -> Seen:
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


TABLE_STATISTICS = tuple(
    f"{column} of the {statistic}" for statistic in ("count", "mean") for column in ("estimate", "se")
)


def black_box(worlds: Worlds, runs: int, folder: Path, streams: Streams, progress: Progress = lambda _: None) -> Seen:
    """Statistics of what `release` published, in `runs` releases of each world made in this folder."""
    specs = [_placed(worlds, world, folder / f"world-{world + 1}") for world in (0, 1)]

    def once(world: int, number: int) -> Floats:
        progress(f"release {number + 1} of {runs}, world {world + 1}")
        target = folder / f"world-{world + 1}" / f"release-{number + 1}"
        release(specs[world], target, streams.split(f"black box {world}", number))
        found = _of_tables(target / "public")
        shutil.rmtree(target)
        return found

    one, other = (np.concatenate([once(world, number) for number in range(runs)]) for world in (0, 1))
    return Seen(TABLE_STATISTICS, (one, other))


def _placed(worlds: Worlds, world: int, folder: Path) -> Spec:
    folder.mkdir(parents=True)
    write_frame(worlds.frames[world], folder / "data.csv")
    survey = worlds.spec.survey.model_copy(update={"data": folder / "data.csv"})
    return worlds.spec.model_copy(update={"survey": survey})


def _of_tables(public: Path) -> Floats:
    tables = pl.read_csv(public / f"{STAMP}tables.csv").sort("statistic")
    return tables.select("estimate", "se").fill_null(0.0).to_numpy().reshape(1, -1)


# --- the audit ---


def audit_sampled(
    spec: Spec,
    epsilons: Sequence[float],
    runs: int,
    folder: Path,
    streams: Streams,
    *,
    records: int | None = None,
    confidence: float = 0.95,
    progress: Progress = lambda _: None,
) -> pl.DataFrame:
    """One row for each ε and attack: the lower bound that it proves, beside the claim. `holds` is false above it.

    `runs` releases of each world are made in the folder, which should be deleted afterwards.
    """
    rows = []
    for number, epsilon in enumerate(epsilons):
        worlds = make_worlds(spec, epsilon, records)
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
                    "holds": found.epsilon <= worlds.claim,
                }
            )
    return pl.DataFrame(rows)


def _attacks(
    worlds: Worlds, runs: int, folder: Path, streams: Streams, progress: Progress
) -> Iterator[tuple[str, Seen]]:
    progress(f"ε = {worlds.privacy.epsilon:g}: white box")
    yield "white box", white_box(worlds, NOISY)
    yield "black box", black_box(worlds, runs, folder, streams, progress)
