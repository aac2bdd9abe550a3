"""Snippets: code that makes the first table of a release from its synthetic files, in R, Stata and Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from svysynth.core.spec.requests import only_direct
from svysynth.core.spec.statistics import Quantile, Share, number, of_distribution, parse_statistic
from svysynth.estimation.combining import SMOOTHED, UNSMOOTHED, Synthetic
from svysynth.mechanisms.base import Mechanism, mechanism_of
from svysynth.mechanisms.synthetic_files import SHIFTS
from svysynth.privacy.release import Release
from svysynth.publishing.report.domain_code import domain_code
from svysynth.publishing.report.page import r_name, render_code
from svysynth.survey.formats.csv import guarded


def number_of_table(release: Release) -> int | None:
    """The number of the first table of the outcome by public columns; None without one."""
    survey, tables = release.spec.survey, enumerate(release.requested_tables, start=1)
    return next((number for number, one in tables if only_direct(one, survey.outcome, survey.public) is None), None)


def snippets(release: Release) -> Mapping[str, str]:
    """Code that makes the first table of the outcome by public columns from the synthetic files; none without one."""
    spec = release.spec
    number = number_of_table(release)
    if number is None:
        return {}
    table = release.requested_tables[number - 1]
    synthetic, calibration = rules_of(release), spec.survey.calibration
    columns = release.previews[0].columns
    declared = spec.survey.strata
    strata = declared if synthetic.strata_in_variance else None
    text = [name for name, dtype in release.previews[0].schema.items() if dtype == pl.String]
    settings = {
        "confidence": spec.estimation.confidence,
        "lonely": spec.estimation.lonely,
        "variance": spec.estimation.variance,
        "standard_errors": spec.estimation.standard_errors,
        "quantile_rule": spec.estimation.quantile_rule,
        "quantile_interval": spec.estimation.quantile_interval,
    }
    defaults = {name: field.default for name, field in type(spec.estimation).model_fields.items()}
    content: dict[str, Any] = {
        "datasets": len(release.microdata),
        "outcome": guarded(spec.survey.outcome),
        "declared_strata": declared and guarded(declared),
        "strata": strata and guarded(strata),
        "cluster": spec.survey.cluster and guarded(spec.survey.cluster),
        "fpc": spec.survey.released_fpc and guarded(spec.survey.released_fpc),
        "public": [guarded(name) for name in spec.survey.public],
        "text": [guarded(name) for name in text],
        "by": [guarded(name) for name in table.by],
        "cells": " + ".join(r_name(guarded(name)) for name in table.by),
        "all_statistics": [name for name in table.statistics if name != "proportion" or table.by],
        "statistics": [name for name in table.sums if name != "proportion" or table.by],
        "distribution": [_in_r(name, place) for place, name in enumerate(of_distribution(table.statistics), start=1)],
        "qrule": spec.estimation.quantile_rule,
        "interval_type": spec.estimation.quantile_interval,
        "population": synthetic.rules == "population",
        "full": full_errors(release),
        "imputed": synthetic.rules == "imputed",
        "shifts": SHIFTS if SHIFTS in release.attachments else None,
        # the columns whose totals are known, and whether weights add up to one known total at least
        "margins": [[guarded(name) for name in margin.by] for margin in calibration.margins] if calibration else [],
        "calibration": calibration and calibration.model_dump(),
        "calibrated": calibration is not None
        or full_errors(release)
        or (synthetic.rules == "imputed" and not spec.survey.weight_public),
        "weight_public": spec.survey.weight_public,
        "lonely": spec.estimation.lonely,
        "confidence": spec.estimation.confidence,
        "transform": spec.survey.transform,
        "estimation": ", ".join(f"{name}={value!r}" for name, value in settings.items() if value != defaults[name]),
    }
    stata = _stata(columns, text, content, spec.survey.public)
    domain = domain_code(release, dict(stata["variables"]))
    return {name: render_code(name, **content, **stata, domain=domain.get(name)) for name in ("r", "python", "stata")}


class _OfDistribution(NamedTuple):
    """A statistic that needs the distribution of the outcome, for the code in R."""

    written: str
    name: str
    """Its name as a variable."""
    share: str
    """The share of a quantile; empty otherwise."""
    condition: str
    """The condition of a share, after the outcome; empty otherwise."""


def _in_r(name: str, place: int) -> _OfDistribution:
    match parse_statistic(name):
        case Quantile(share):
            return _OfDistribution(name, f"quantile_{place}", number(share), "")
        case Share(comparison, threshold):
            return _OfDistribution(name, f"share_{place}", "", f"{comparison} {number(threshold)}")
        case other:
            raise ValueError(f"{other} follows from sums")


STATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
STATA_WORDS = {
    *("_all", "_b", "byte", "_coef", "_cons", "double", "float", "if", "in", "int", "long", "_n", "_N", "_pi", "_pred"),
    *("_rc", "_skip", "strL", "using", "with", "cell", "stratum", "psu", "one", "share", "known", "inside", "post"),
}
"""Names that Stata, or the code itself, uses for other purposes."""


def _stata(
    columns: Sequence[str], text: Sequence[str], content: Mapping[str, Any], public: Sequence[str]
) -> dict[str, Any]:
    """The columns' names in Stata: their own, or v1, v2 … where one of them cannot be a name there."""
    plain = all(STATA_NAME.fullmatch(name) and name not in STATA_WORDS for name in columns)
    names = {guarded(name): name if plain else f"v{place}" for place, name in enumerate(columns, start=1)}
    lonely = {"certainty": " singleunit(certainty)", "adjust": " singleunit(centered)"}
    options = [f"strata(stratum){lonely.get(content['lonely'], '')}"] if content["strata"] else []
    options += [f"fpc({names[content['fpc']]})"] if content["fpc"] else []
    if content["calibrated"]:
        options += [f"poststrata({'post' if len(content['margins']) == 1 else 'one'}) postweight(known)"]
    return {
        "reading": "varnames(1) case(preserve)" if plain else "varnames(nonames) rowrange(2)",
        "variables": list(names.items()),
        "text_places": [place for place, name in enumerate(columns, start=1) if name in text],
        "stata_by": [names[name] for name in content["by"]],
        "stata_public": [names[guarded(name)] for name in public],
        "stata_margins": [[names[name] for name in margin] for margin in content["margins"]],
        "stata_strata": content["strata"] and names[content["strata"]],
        "stata_cluster": content["cluster"] and names[content["cluster"]],
        "stata_weight": names[SMOOTHED],
        "stata_outcome": names[content["outcome"]],
        "stata_drawn": names.get(UNSMOOTHED),
        "stata_options": f", {' '.join(options)}" if options else "",
    }


def rules_of(release: Release) -> Synthetic:
    """The rules by which tables are made from the synthetic files of the release, without the files."""
    return released_by(release).synthetic((), release.guarantee.mechanism, release.spec.model)


def full_errors(release: Release) -> bool:
    """Whether files have smoothed weights, while standard errors use the weights as drawn."""
    smoothed = not release.spec.survey.weight_public and rules_of(release).rules != "imputed"
    return release.spec.estimation.standard_errors == "full" and smoothed


def released_by(release: Release) -> Mechanism:
    """The mechanism that made the release."""
    assert release.spec.privacy is not None
    return mechanism_of(release.spec.privacy)
