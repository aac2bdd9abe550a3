"""Synthetic files: their names, the checks of their contents, and how tables are made from them again.

All of this needs the public folder only. Verification and the mechanisms that release synthetic files use it.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from svysynth.core.engine import LOCAL, frame_ranges
from svysynth.core.errors import SurveyError
from svysynth.core.spec.calibration import CalibrationSpec
from svysynth.core.spec.estimation import EstimationSpec, TableSpec
from svysynth.core.spec.whole import Spec
from svysynth.core.transforms import Transform
from svysynth.estimation.calibration import uncalibrated
from svysynth.estimation.centre_shifts import CentreShifts
from svysynth.estimation.combining import SMOOTHED, UNSMOOTHED, Rules, Synthetic, combine
from svysynth.estimation.tables import tabulate_all
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import MICRODATA_DIGITS, endings, rounded, survey_of_microdata
from svysynth.survey.files import open_data, read_columns
from svysynth.survey.formats.base import DataFile
from svysynth.survey.formats.csv import as_written
from svysynth.survey.formats.parquet import count_rows, read_rows
from svysynth.survey.large_files import is_large, read_large
from svysynth.survey.survey import Survey, SurveyInMemory, read_survey

SHIFTS = "centre-shifts.parquet"
"""The file that belongs to the synthetic files of a sample of clusters, with the centre shifts for standard errors."""
AGREEMENT = 1e-8
"""The relative difference allowed in what is made again, because floats depend on the machine."""
ROUNDED = AGREEMENT + 5 * 10.0**-MICRODATA_DIGITS
"""The relative difference allowed in the sum of a file's weights: equal weights are all rounded in the same way."""


def file_name(number: int, ending: str) -> str:
    """The name of a synthetic file; the first has the number 1."""
    return f"microdata-{number}.{ending}"


def file_names(datasets: int, records: int) -> tuple[str, ...]:
    """The names of all synthetic files of a release."""
    return tuple(file_name(number, ending) for number in range(1, datasets + 1) for ending in endings(records))


def remake_tables(public: Path, manifest: Manifest, rules: Synthetic) -> pl.DataFrame:
    """Check the synthetic files, and make the tables again from them by the rules of their model."""
    spec = manifest.spec()
    numbers = range(1, manifest.privacy.datasets + 1)
    paths = [public / file_name(number, "parquet") for number in numbers]
    tables = [_tables_of_microdata(path, manifest, spec, rules) for path in paths]
    shifts = len(rules.shifts) if rules.shifts else 0
    clusters, imputed = spec.survey.cluster is not None, rules.rules == "imputed"
    return combine(tables, spec.estimation, imputed=imputed, clusters=clusters, shifts=shifts)


def read_synthetic(
    files: Sequence[Any],
    *,
    outcome: str,
    public: str | Sequence[str],
    strata: str | None = None,
    cluster: str | None = None,
    fpc: str | None = None,
    transform: Transform = "log",
    weight_public: bool = False,
    calibration: CalibrationSpec | Mapping[str, Any] | None = None,
    rules: Rules = "weighted",
    strata_in_variance: bool = True,
    domain: str | None = None,
    domains: Sequence[str] = (),
    shifts: Any = None,
) -> Synthetic:
    """Read the synthetic files of a release, each with all its weights, to make tables from all of them.

    `domain` restricts all tables to a part of the population, and `domains` can be those of single tables. Their
    conditions use the values in the synthetic files: labels, where the survey has codes with labels.

    `shifts` is the file of centre shifts that a release of a sample of clusters has. Without it standard errors are too
    small where the weights α move the centre of the model.

    The files may be frames. `weight_public` and `calibration` are those of the spec. `rules` and `strata_in_variance`
    are those of the model that made the files; the report of the release states them.
    """
    remedy = "give a list with the paths of all synthetic files of a release"
    if isinstance(files, str | os.PathLike) or not isinstance(files, Sequence) or not files:
        raise SurveyError("spec", "read_synthetic", "needs a list of synthetic files", remedy)

    def read(file: Any, weight: str) -> SurveyInMemory:
        return read_survey(
            file,
            outcome=outcome,
            weight=weight,
            public=public,
            strata=strata,
            cluster=cluster,
            fpc=fpc,
            transform=transform,
            weight_public=weight_public,
            calibration=calibration,
            domain=domain,
            domains=domains,
        )

    if rules == "imputed":  # the weights of imputations are not smoothed
        return Synthetic(tuple(read(file, SMOOTHED) for file in files), rules, strata_in_variance, "files")
    surveys = [(read(file, SMOOTHED), read(file, UNSMOOTHED)) for file in files]
    both = tuple(replace(one, frame=one.frame.with_columns(other.frame[UNSMOOTHED])) for one, other in surveys)
    found = None if shifts is None else _read_shifts(shifts, both[0])
    return Synthetic(both, rules, strata_in_variance, "files", found)


def _read_shifts(shifts: Any, survey: Survey) -> CentreShifts:
    """The centre shifts in a file or a frame."""
    if not isinstance(shifts, pl.DataFrame):
        file = open_data(shifts)
        shifts = read_columns(file, file.columns)
    return CentreShifts.of_frame(shifts, survey.public, survey.outcome)


def _tables_of_microdata(path: Path, manifest: Manifest, spec: Spec, rules: Synthetic) -> pl.DataFrame:
    """The tables of one synthetic file."""
    _check_microdata(open_data(path), manifest)
    with surveys_of_files([path], manifest) as (survey,):
        if not _meets_totals(survey):
            raise wrong(f"has a synthetic file whose weights do not have the declared totals ({path.name})")
        return replace(rules, surveys=(survey,)).tables_by_file(spec.requested_tables, spec.estimation)[0]


@contextlib.contextmanager
def surveys_of_files(paths: Sequence[Path], manifest: Manifest) -> Iterator[tuple[Survey, ...]]:
    """The surveys in synthetic files of a public folder; a large one is on disk, as it was when it was made."""
    spec = manifest.spec()
    with contextlib.ExitStack() as stack:
        yield tuple(_survey_of_file(path, manifest, spec, stack) for path in paths)


def _survey_of_file(path: Path, manifest: Manifest, spec: Spec, stack: contextlib.ExitStack) -> Survey:
    file, domains = open_data(path), manifest.survey.known_domains
    source = spec.survey.model_copy(update={"data": path, "weight": SMOOTHED})
    if spec.estimation.variance != "taylor" or not is_large(source):
        return survey_of_microdata(read_columns(file, file.columns), spec, manifest.survey.levels, domains)
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svysynth-")))
    labels = {name: {label: label for label in levels} for name, levels in manifest.survey.levels.items()}
    source = source.model_copy(update={"labels": labels})
    also = (UNSMOOTHED,) if UNSMOOTHED in file.columns else ()
    survey: Survey = read_large(source, scratch, LOCAL, also=also)
    survey = replace(survey, weight_public=spec.survey.weight_public)
    return replace(survey, domain=spec.survey.domain, domains=domains)


def _meets_totals(survey: Survey) -> bool:
    """Whether the counts of a synthetic file are the totals that its weights were calibrated to, up to rounding."""
    if survey.calibration is None:
        return True
    tables = [TableSpec(by=margin.by, statistics=("count",)) for margin in survey.calibration.margins]
    for weight in (SMOOTHED, UNSMOOTHED):
        one, anything = (
            replace(survey, design=replace(survey.design, weight=weight)),
            EstimationSpec(lonely="certainty"),
        )
        counts, totals = (tabulate_all(each, tables, anything)["estimate"] for each in (uncalibrated(one), one))
        if not np.allclose(counts, totals, rtol=ROUNDED, atol=0):
            return False
    return True


def _check_microdata(file: DataFile, manifest: Manifest) -> None:
    """Check that a file is the same in both formats, with the rows and the sum of weights that the manifest states."""
    survey = manifest.survey
    total, weights = survey.population_total or 0.0, [name for name in (SMOOTHED, UNSMOOTHED) if name in file.columns]
    sums = dict.fromkeys(weights, 0.0)
    as_it_should_be = count_rows(file) == survey.records
    for rows in frame_ranges(survey.records):
        frame = read_rows(file, list(file.columns), rows)
        ids = pl.Series("id", range(rows.start + 1, rows.stop + 1), dtype=frame["id"].dtype)
        as_it_should_be &= frame["id"].equals(ids) and frame.equals(rounded(frame, MICRODATA_DIGITS))
        sums = {name: before + float(frame[name].sum()) for name, before in sums.items()}
    if survey.weight_public:  # the weights are unchanged, whatever their sum
        total = sums[weights[-1]]
    as_it_should_be &= all(math.isclose(found, total, rel_tol=ROUNDED) for found in sums.values())
    if as_it_should_be and "csv" in endings(survey.records):
        as_it_should_be = same_text(file.path.with_suffix(".csv"), read_columns(file, file.columns))
    if not as_it_should_be:
        raise wrong(f"has a synthetic file that does not belong to its manifest ({file.path.name})")


def same_text(path: Path, frame: pl.DataFrame) -> bool:
    """Whether a CSV file has the contents of a synthetic file."""
    text = as_written(frame)
    return read_csv(path, text).equals(text.cast({"id": pl.Float64}))


def read_csv(path: Path, like: pl.DataFrame, source: str = "synthetic files") -> pl.DataFrame:
    """A CSV file with the columns and rows of a frame; its numbers are floats."""
    file = open_data(path)
    if tuple(file.columns) != tuple(like.columns):
        raise wrong(f"has other columns in {path.name} than follow from its {source}")
    frame = read_columns(file, file.columns)
    if frame.height != like.height:
        raise wrong(f"has other rows in {path.name} than follow from its {source}")
    numbers = [column for column, dtype in like.schema.items() if dtype.is_numeric()]
    return frame.with_columns(pl.col(numbers).cast(pl.Float64))


def wrong(problem: str) -> SurveyError:
    """The error for a release that must not be published."""
    return SurveyError("file", "the release", problem, "do not publish it; release again from the spec")
