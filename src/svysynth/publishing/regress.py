"""Regress: linear and logistic regression from a release's synthetic files, or of a survey itself.

From a release it needs the public folder alone: every file is fitted by itself, the results are combined by the rules
of the release, and each coefficient says whether what it rests on was measured. This is post-processing and costs no ε.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from svysynth.core.errors import SurveyError
from svysynth.core.spec.estimation import EstimationSpec
from svysynth.core.spec.whole import ModelSpec
from svysynth.estimation.combined_regression import regression_of_files
from svysynth.estimation.combining import Synthetic
from svysynth.estimation.explained import Family
from svysynth.estimation.regression import Regression, regression_of
from svysynth.mechanisms.base import Mechanism, mechanism_of
from svysynth.mechanisms.measured_terms import MeasuredTerms, explain_unknown
from svysynth.mechanisms.synthetic_files import file_name, surveys_of_files
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import Release
from svysynth.publishing.from_public_folder import more
from svysynth.publishing.verification import open_release
from svysynth.survey.survey import Survey

USUAL_FILES = 10
"""How many files are made of a release that has none but allows them."""


def regress(
    formula: str,
    source: Survey | Synthetic | Release | str | Path,
    family: Family = "linear",
    *,
    domain: str | None = None,
    estimation: EstimationSpec | None = None,
    files: int | None = None,
) -> Regression:
    """Regress an answer on columns: `regress("salary ~ field + gender", "release/public")`.

    `source` is a survey, whose results are confidential, or a release: its folder, what `release` returned, or
    synthetic surveys. The left side is an amount or a yes/no answer, `log(amount)`, or a threshold such as `salary >
    50000`; the right side has columns with `+ * :`, and `0` leaves the intercept out. A logistic regression needs a
    yes/no answer or a threshold. `domain` restricts it to a part of the population.

    `files` is how many synthetic files to use of a folder; further ones are made where the release allows it.
    """
    if isinstance(source, Survey):
        _no_files(files)
        return regression_of(source, formula, family, estimation, domain)
    if isinstance(source, Synthetic):
        _no_files(files)
        return explain_unknown(regression_of_files(source, formula, family, estimation, domain))
    if isinstance(source, Release):
        _no_files(files)
        return _of_release(source, formula, family, estimation, domain)
    if isinstance(source, str | Path):
        return _of_folder(source, formula, family, estimation, domain, files)
    problem = f"is of the type '{type(source).__name__}'"
    remedy = "give a survey, a release, its folder, or synthetic surveys"
    raise SurveyError("spec", "the source of the regression", problem, remedy)


def _no_files(files: int | None) -> None:
    if files is not None:
        remedy = "leave it out, or give the public folder of a release"
        raise SurveyError("spec", "files", "is for the folder of a release", remedy)


def _of_release(
    release: Release, formula: str, family: Family, estimation: EstimationSpec | None, domain: str | None
) -> Regression:
    """The regression of a release in memory."""
    spec = release.spec
    assert spec.privacy is not None
    mechanism = mechanism_of(spec.privacy)
    _refuse_tables_only(mechanism, spec.privacy.mechanism, len(release.microdata))
    _refuse_unknown_domain(domain, spec.survey.domains)
    synthetic = mechanism.synthetic(release.microdata, spec.privacy.mechanism, spec.model)
    synthetic = replace(synthetic, standing="uncharged" if release.seeded else "post-processing")
    found = regression_of_files(synthetic, formula, family, estimation or spec.estimation, domain)
    return MeasuredTerms.of(spec.survey, spec.privacy, spec.model, spec.requested_tables).explain(found)


def _of_folder(
    folder: str | Path,
    formula: str,
    family: Family,
    estimation: EstimationSpec | None,
    domain: str | None,
    files: int | None,
) -> Regression:
    """The regression of a release's public folder."""
    public, manifest = open_release(folder)
    privacy = manifest.privacy
    mechanism = mechanism_of(privacy)
    _refuse_unknown_domain(domain, tuple(one.condition for one in manifest.survey.domains))
    with _synthetic(public, manifest, mechanism, files) as synthetic:
        found = regression_of_files(synthetic, formula, family, estimation or manifest.estimation, domain)
    return MeasuredTerms.of(manifest.survey, privacy, manifest.model, manifest.tables).explain(found)


@contextlib.contextmanager
def _synthetic(public: Path, manifest: Manifest, mechanism: Mechanism, files: int | None) -> Iterator[Synthetic]:
    """The synthetic files of a public folder, with further ones if more are asked for than it has."""
    privacy, own = manifest.privacy, manifest.privacy.datasets
    further = own == 0 and mechanism.further(public, manifest) is not None
    wanted = files if files is not None else USUAL_FILES if further else own
    if files is not None and files < 1:
        raise SurveyError("spec", "files", "is not a number of files", "give at least 1, and better 5 or more")
    _refuse_tables_only(mechanism, privacy.mechanism, own or int(further))
    made = more(public).synthetic(wanted - own).surveys if wanted > own else ()
    paths = [public / file_name(number, "parquet") for number in range(1, min(own, wanted) + 1)]
    with surveys_of_files(paths, manifest) as surveys:
        synthetic = mechanism.synthetic((*surveys, *made), privacy.mechanism, manifest.model or ModelSpec())
        yield replace(synthetic, standing="post-processing")


def _refuse_tables_only(mechanism: Mechanism, name: str, files: int) -> None:
    if not files:
        problem = f"has no synthetic files, and a regression needs records ({mechanism.title(name)})"
        remedy = "use its tables, or ask for a release of 'fbs' or 'fbp'"
        raise SurveyError("file", "the release", problem, remedy)


def _refuse_unknown_domain(domain: str | None, known: tuple[str, ...]) -> None:
    if domain is not None and domain not in known:
        remedy = "write one of them as the manifest has it: " + "; ".join(known) if known else "leave it out"
        raise SurveyError("spec", "domain", "is not one of the domains of this release", remedy)
