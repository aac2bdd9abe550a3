"""The public report of a release: one page that says what was released, what is promised, and how to use it.

The report is made from a `Release` and nothing else, so that it can show nothing that was not paid for.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import polars as pl

from svysynth.core.grouping import Floats
from svysynth.core.safe_repr import outlined
from svysynth.estimation.combining import SMOOTHED, UNSMOOTHED, Synthetic
from svysynth.estimation.layout import MARKS, WideRow, WideTable, figure, notes_on, wide_tables
from svysynth.mechanisms.synthetic_files import SHIFTS
from svysynth.privacy.guarantee import NOT_DIFFERENTIAL_PRIVACY
from svysynth.privacy.release import MICRODATA_DIGITS, NOT_FOR_RELEASE, TABLE_DIGITS, Release
from svysynth.publishing.report.page import render
from svysynth.publishing.report.plots import COLOURS, Image, answer_of, curves, plots_of_table, statistic_name
from svysynth.publishing.report.snippets import full_errors, number_of_table, released_by, rules_of, snippets
from svysynth.survey.formats.csv import guarded

MOST_ROWS_SHOWN = 2_000
MOST_TABLES_SHOWN = 40
MOST_TABLES_DRAWN = 6
CLASSES = 50
EMPTY = "A cell without records has a count of 0 and a standard error of 0, which do not say how rare its cases are."
KINDS = {
    "asymptotic": f"{NOT_DIFFERENTIAL_PRIVACY}: asymptotic, computed from the data at hand",
    "global": "holds for every data set, at every sample size",
}
FOLLOWS = "What the tables were made from, for programs"
ATTACHMENTS = {
    "measurement.json": "What was measured with noise, and public facts; all other files were made from it",
    "draws.parquet": "The posterior draws for each cell, from which tables and synthetic files were made",
    SHIFTS: "Shifts of the centre of the model in simulated surveys, which are a part of the standard errors",
}
"""The purpose of further public files."""
VARIANCES = {
    "taylor": "linearisation",
    "preston": "Preston’s half-sample bootstrap",
    "bootstrap": "the Rao–Wu bootstrap",
    "jackknife": "the jackknife",
    "brr": "balanced repeated replication",
}


def public_page(release: Release) -> str:
    """`report.html` of the public folder."""
    spec, guarantee, estimation = release.spec, release.guarantee, release.spec.estimation
    views = _views(release)
    caution, unreliable = estimation.cv_thresholds
    legend = (
        f"* coefficient of variation above {caution:.0%}: use with caution. ** above {unreliable:.0%}: unreliable. "
        "– not available. Rows in bold are margins and the total."
    )
    synthetic = rules_of(release)
    return render(
        "public.html",
        warning=NOT_FOR_RELEASE if release.seeded else None,
        title=release.title,
        producer=spec.about.producer,
        purpose=spec.about.purpose,
        figures=_key_figures(release),
        datasets=len(release.microdata),
        attachments=[release.file_name(name) for name in release.attachments],
        public=spec.survey.public,
        outcome=spec.survey.outcome,
        label=spec.survey.shown(spec.survey.outcome),
        files=_files(release),
        columns=_columns(release),
        sentences=guarantee.sentences(),
        promise=_promise(release),
        legend=legend,
        marks=MARKS,
        tables=views[:MOST_TABLES_SHOWN],
        tables_left_out=len(views[MOST_TABLES_SHOWN:]),
        confidence=_level(estimation.confidence),
        distribution=_distribution(release, synthetic),
        classes=CLASSES,
        log=spec.survey.transform == "log",
        strata=spec.survey.strata if synthetic.strata_in_variance else None,
        cluster=spec.survey.cluster,
        fpc=spec.survey.released_fpc,
        population=synthetic.rules == "population",
        full=full_errors(release),
        imputed=synthetic.rules == "imputed",
        answers=[*spec.survey.answers, *([] if spec.survey.weight_public else ["weights"])],
        several=spec.releases_answers,
        margins=spec.survey.calibration is not None,
        weight_public=spec.survey.weight_public,
        shifts=release.file_name(SHIFTS) if SHIFTS in release.attachments else None,
        two_columns=shlex.quote(",".join(spec.survey.public[:2])),
        formula=spec.model.formula or " + ".join(spec.survey.public),
        exact=estimation.variance == "taylor",
        variance=estimation.variance,
        snippets=snippets(release) if "csv" in release.endings and release.microdata and not release.seeded else {},
        coded=number_of_table(release),
        notes=_notes(release),
        created=release.created.isoformat(),
        version=version("svysynth"),
        anchor=release.anchor,
        stamp=release.file_name(""),
        counted=_counted,
        listed=_listed,
    )


def _level(confidence: float) -> str:
    return f"{100 * confidence:.4g}%"


def _counted(number: int, noun: str) -> str:
    """A number and a noun that agrees with it.

    >>> _counted(1, "table"), _counted(1200, "table")
    ('1 table', '1,200 tables')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them.

    >>> _listed(["field"]), _listed(["field", "age", "gender"])
    ('field', 'field, age and gender')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


# --- what was released and promised ---


def _key_figures(release: Release) -> list[tuple[str, str]]:
    total = release.spec.survey.population_total
    found = [
        ("Released", release.created.isoformat()),
        ("Respondents, with noise" if _whole(release) else "Respondents", figure(release.records)),
        ("Population", "" if total is None else f"{total:,.10g}"),
        ("Tables", figure(len(release.requested_tables))),
        ("Synthetic files", figure(len(release.microdata)) if release.microdata else ""),
        ("Privacy loss", f"ε = {release.guarantee.charged:g}"),
    ]
    return [(name, value) for name, value in found if value]


def _whole(release: Release) -> bool:
    """Whether whole records are protected, so that numbers of records are noisy."""
    return release.guarantee.protects == "record"


def _files(release: Release) -> list[tuple[str, str, str]]:
    """Every file, what it is for, and its twin in another format."""
    files = []
    for number in range(1, len(release.microdata) + 1):
        *twins, first = (f"microdata-{number}.{ending}" for ending in release.endings)
        files.append((first, f"Synthetic file {number}", "".join(twins)))
    found = [
        ("tables.xlsx", "All tables as a workbook, for reading", ""),
        ("tables.csv", "All tables in one long layout, with intervals and degrees of freedom, for programs", ""),
        *files,
        *((name, ATTACHMENTS.get(name, FOLLOWS), "") for name in release.attachments),
        ("manifest.json", "Promise, settings, versions and checksums, for machines", ""),
        ("SHA256SUMS", "Checksums of all files", ""),
    ]
    return [(release.file_name(name), purpose, twin and release.file_name(twin)) for name, purpose, twin in found]


def _columns(release: Release) -> list[tuple[str, str]]:
    """What each column of the synthetic files holds."""
    if not release.microdata:
        return []
    survey = release.spec.survey
    meanings = {
        "id": "The row’s number in the file; it means nothing else",
        survey.outcome: "The outcome, synthetic",
        SMOOTHED: "The weight for estimates: synthetic and smoothed, that is, the model’s expected weight for the row",
        UNSMOOTHED: f"The weight as the model drew it, for {_use_of_unsmoothed(release)}; not for estimates",
    }
    if rules_of(release).rules == "imputed":
        meanings |= {
            "id": "The row’s number, the same in every file; it means nothing else",
            survey.outcome: "The outcome, synthetic, within the public bounds",
            SMOOTHED: "The weight: synthetic, not smoothed; for estimates and standard errors",
        }
    for name, variable in survey.variables.items():
        if name != survey.outcome:
            gaps = "; empty where there is no answer" if survey.may_miss(name) else ""
            meanings[name] = f"An answer ({variable.kind}), synthetic{gaps}"
    if survey.weight_public:
        meanings |= {SMOOTHED: "The weight: public, as in the survey", UNSMOOTHED: "The same"}
    for column, labels in release.levels.items():
        how = "in groups of the survey's values" if survey.made(column).is_grouped else "as in the survey"
        meanings[column] = f"Public, {how}: {_counted(len(labels), 'label')}"
    if survey.strata:
        known = meanings.get(survey.strata, "Public, as in the survey")
        meanings[survey.strata] = f"{known}. The strata of the sample"
    if survey.cluster:
        known = meanings.get(survey.cluster, "Which rows share a cluster, as in the survey, under new numbers")
        meanings[survey.cluster] = f"{known}. The clusters of the sample"
    if survey.fpc:
        meanings[survey.fpc] = "Public: the finite population correction of the stratum, as in the survey"
    described = {name: f"{label}. {meanings.get(name, '')}" for name, label in survey.variable_labels.items()}
    return [(name, described.get(name, meanings.get(name, ""))) for name in release.previews[0].columns]


def _use_of_unsmoothed(release: Release) -> str:
    return "standard errors" if full_errors(release) else "studies of the weights"


def _promise(release: Release) -> list[tuple[str, str]]:
    """The facts of the guarantee, for those who want them one by one."""
    guarantee, privacy, whole = release.guarantee, release.spec.privacy, _whole(release)
    shown = ", ".join(guarantee.public) + ", and the number of records in each of their cells"
    shown += f"; which records share a {guarantee.cluster}" if guarantee.cluster else ""
    found = [
        ("Guarantee", KINDS[guarantee.kind]),
        ("Mechanism", released_by(release).title(guarantee.mechanism)),
        ("Covers", guarantee.covers),
        ("ε, taking part or not" if whole else "ε, answers blanked out", f"{guarantee.epsilon_blanked:g}"),
        ("ε, record changed" if whole else "ε, answers changed", f"{guarantee.epsilon_changed:g}"),
        ("Confidential", ", ".join(guarantee.confidential) + (", and who takes part" if whole else "")),
        ("Public", "the declared levels of columns, the population total and the settings" if whole else shown),
        ("Scale of the outcome", guarantee.transform),
        ("Units", guarantee.units),
        ("Sampler", guarantee.sampler or ""),
        ("Bounds of records taken over", f"{guarantee.draws:,} draws" if guarantee.draws else ""),
    ]
    outcome = release.spec.survey.outcome
    if privacy is not None and privacy.bounds is not None:
        (low, high), (least, most) = privacy.bounds.outcome, privacy.bounds.weight
        of_weight = "" if release.spec.survey.weight_public else f", weight {least:,.10g} to {most:,.10g}"
        others = [(name, one.bounds) for name, one in release.spec.survey.variables.items() if one.bounds]
        more = "".join(f", {name} {ends[0]:,.10g} to {ends[1]:,.10g}" for name, ends in others if name != outcome)
        found.append(("Public bounds", f"outcome {low:,.10g} to {high:,.10g}{of_weight}{more}"))
    return [(name, value) for name, value in found if value]


def _notes(release: Release) -> list[str]:
    estimation = release.spec.estimation
    imputed = rules_of(release).rules == "imputed"
    if not release.microdata or release.spec.survey.weight_public or imputed:
        weights = ""
    elif estimation.standard_errors == "full":
        weights = " Standard errors count the spread of the weights as the model drew them."
    else:
        weights = (
            " Standard errors count the spread of smoothed weights only, as in the paper, which makes those of counts "
            "too small."
        )
    found = [
        f"Standard errors are by {VARIANCES[estimation.variance]}; intervals have a nominal level of "
        f"{_level(estimation.confidence)}.{weights}",
        *([] if _whole(release) else [EMPTY]),
        *notes_on(release.tables),
        f"Numbers are rounded to {TABLE_DIGITS} significant digits in the tables{_digits_of_files(release)}.",
    ]
    texts = [*release.levels, *(label for labels in release.levels.values() for label in labels)]
    if any(guarded(text) != text for text in texts):
        found.append(
            "In the CSV files an apostrophe stands before text that a spreadsheet could run as a formula: text that "
            "starts with =, +, - or @ and is not a number."
        )
    return [*found, *_calibration(release), *release.notes]


def _calibration(release: Release) -> list[str]:
    """What readers have to know of calibrated weights."""
    calibration = release.spec.survey.calibration
    if calibration is None:
        return []
    names = _listed([" × ".join(margin.by) for margin in calibration.margins])
    how = "raked" if len(calibration.margins) > 1 else "post-stratified"
    return [
        f"Synthetic weights are {how} to public totals by {names}, which manifest.json lists. The counts of their "
        "levels are these totals and have no error; other standard errors take the totals into account."
    ]


def _digits_of_files(release: Release) -> str:
    if not release.microdata:
        return ""
    after = "" if rules_of(release).rules == "imputed" else "; the tables were made from the rounded files"
    return f" and to {MICRODATA_DIGITS} in the synthetic files{after}"


# --- tables and their figures ---


@outlined
@dataclass(frozen=True, eq=False)
class _View:
    """A table as the page shows it."""

    number: int
    table: WideTable
    rows: list[tuple[WideRow, tuple[int, ...]]]
    left_out: int
    statistics: list[str]
    places: list[int]
    images: list[tuple[str, Image]]


def _views(release: Release) -> list[_View]:
    survey, views = release.spec.survey, []
    for number, table in enumerate(wide_tables(release.tables, survey.variable_labels), start=1):
        outcome = answer_of(table.title, release.spec)
        names = [statistic_name(statistic, outcome) for statistic in table.statistics]
        shown = min(len(table.rows), MOST_ROWS_SHOWN)
        rows = list(zip(table.rows[:shown], table.spans(shown), strict=True))
        places = [table.decimals(position) for position in range(len(names))]
        images = plots_of_table(table, outcome) if number <= MOST_TABLES_DRAWN else []
        views.append(_View(number, table, rows, len(table.rows) - shown, names, places, images))
    return views


def _distribution(release: Release, synthetic: Synthetic) -> Image | None:
    """The outcome's distribution in the population, by each synthetic file."""
    if not release.microdata:
        return None
    survey = release.spec.survey
    log = survey.transform == "log"
    frames = release.previews[: len(COLOURS)]
    weight = pl.col(SMOOTHED)
    if synthetic.rules == "population":
        weight = weight.mean().over(list(survey.public))
    values = [frame[survey.outcome].to_numpy() for frame in frames]
    weights = [frame.select(weight.alias(SMOOTHED))[SMOOTHED].to_numpy() for frame in frames]
    low, high = min(map(np.min, values)), max(map(np.max, values))
    if not low < high:
        return None
    edges: Floats = np.geomspace(low, high, CLASSES + 1) if log else np.linspace(low, high, CLASSES + 1)
    edges[0], edges[-1] = low, high
    shares = [np.histogram(y, edges, weights=w)[0] / w.sum() for y, w in zip(values, weights, strict=True)]
    names = [f"file {number}" for number in range(1, len(frames) + 1)]
    alt = f"Distribution of {survey.outcome} in the synthetic files, weighted to the population."
    return curves(edges, shares, names, survey.shown(survey.outcome), alt, log=log)
