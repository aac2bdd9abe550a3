"""The public folder of a release: it is made from a `Release` and nothing else.

The files reveal nothing by their metadata: the day is the only time, there are no names, and the order of rows has no
meaning. `SHA256SUMS` covers every file, the manifest too, so that one changed byte anywhere is noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, time
from importlib.metadata import version
from pathlib import Path

from svysynth.core.engine import frame_ranges
from svysynth.core.spec.requests import explicit
from svysynth.estimation.layout import notes_on
from svysynth.mechanisms.base import mechanism_of
from svysynth.mechanisms.synthetic_files import file_name
from svysynth.privacy.manifest import (
    FORMAT,
    DomainFacts,
    LedgerEntry,
    Manifest,
    PrivacyFacts,
    Rounding,
    SurveyFacts,
    VariableFacts,
)
from svysynth.privacy.release import MICRODATA_DIGITS, NOT_FOR_RELEASE, TABLE_DIGITS, Release, microdata
from svysynth.publishing.report.excel import write_workbook
from svysynth.publishing.report.public import public_page
from svysynth.survey.domains import domain_column
from svysynth.survey.files import write_frame, write_parts

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
PACKAGES = ("svysynth", "numpy", "polars", "scipy")
"""The packages whose versions every manifest states."""


def publish(release: Release, folder: Path) -> Path:
    """Fill an empty folder with the public files of a release; return the path of the manifest."""
    if not isinstance(release, Release):
        raise TypeError("only a Release can be published")

    def place(name: str) -> Path:
        return folder / release.file_name(name)

    write_frame(release.tables, place("tables.csv"))
    write_workbook(release.tables, place("tables.xlsx"), _notes(release), release.spec.survey.variable_labels)
    for number, survey in enumerate(release.microdata, start=1):
        for ending in release.endings:
            parts = (microdata(survey, part.start, part.stop) for part in frame_ranges(len(survey)))
            write_parts(parts, place(file_name(number, ending)))
    for name, content in release.attachments.items():
        place(name).write_bytes(content)
    place("report.html").write_text(public_page(release), encoding="utf-8")
    manifest = make_manifest(release, checksums(folder))
    place(MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    place(SUMS).write_text(sums_text(checksums(folder)), encoding="utf-8")
    day = datetime.combine(release.created, time(), UTC).timestamp()
    for path in folder.iterdir():
        path.chmod(0o644)
        os.utime(path, (day, day))
    folder.chmod(0o755)
    os.utime(folder, (day, day))
    return place(MANIFEST)


def make_manifest(release: Release, files: dict[str, str]) -> Manifest:
    """The manifest of a release whose files have these checksums."""
    spec, privacy = release.spec, release.spec.privacy
    assert privacy is not None
    mechanism = mechanism_of(privacy)
    settings = {name: getattr(privacy, name) for name in mechanism.stated}
    return Manifest(
        format=FORMAT,
        created=release.created.isoformat(),
        warning=NOT_FOR_RELEASE if release.seeded else None,
        about=spec.about,
        guarantee=release.guarantee,
        statement=release.guarantee.sentences(),
        privacy=PrivacyFacts(
            mechanism=privacy.mechanism,
            epsilon=privacy.epsilon,
            datasets=len(release.microdata),
            guarantee="asymptotic" if release.guarantee.kind == "asymptotic" else "global",
            protect=privacy.protect,
            unit=privacy.unit,
            scales=settings.get("scales"),
            constants=spec.standin if privacy.scales == "standin" else None,
            scheme=settings.get("scheme"),
            draws=settings.get("draws"),
            bounds=privacy.bounds,
            correction=settings.get("correction"),
        ),
        survey=SurveyFacts(
            outcome=spec.survey.outcome,
            transform=spec.survey.transform,
            weight=spec.survey.weight,
            weight_public=spec.survey.weight_public,
            strata=spec.survey.strata,
            cluster=spec.survey.cluster,
            fpc=spec.survey.released_fpc,
            public=spec.survey.public,
            where=spec.survey.where,
            universe=spec.survey.universe,
            levels={column: tuple(labels) for column, labels in release.levels.items()},
            variable_labels=spec.survey.variable_labels,
            population_total=spec.survey.population_total,
            calibration=spec.survey.calibration,
            records=release.records,
            domain=spec.survey.domain,
            variables=_variables(release),
            domains=_domains(release),
        ),
        model=spec.model if mechanism.modelled else None,
        estimation=spec.estimation,
        tables=tuple(explicit(table, spec.survey.outcome, spec.survey.kinds) for table in release.requested_tables),
        rounding=Rounding(microdata=MICRODATA_DIGITS, tables=TABLE_DIGITS),
        notes=release.notes,
        versions={package: version(package) for package in PACKAGES + mechanism.packages},
        files=files,
        ledger=LedgerEntry(**vars(release.anchor)) if release.anchor else None,
    )


def _variables(release: Release) -> dict[str, VariableFacts]:
    survey = release.spec.survey
    return {
        name: VariableFacts(
            kind=variable.kind,
            levels=tuple((survey.declared(name) or {}).values()) if variable.kind == "category" else (),
            bounds=variable.bounds,
            may_miss=survey.may_miss(name),
        )
        for name, variable in survey.variables.items()
    }


def _domains(release: Release) -> tuple[DomainFacts, ...]:
    conditions = {domain_column(condition): condition for condition in release.spec.survey.domains}
    return tuple(
        DomainFacts(condition=conditions[name], columns=domain.columns, parts=tuple(domain.parts(release.levels)))
        for name, domain in release.domains.items()
    )


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by name."""
    return {path.name: checksum(path) for path in sorted(folder.iterdir())}


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums_text(sums: Mapping[str, str]) -> str:
    """Checksums in the form that `sha256sum --check` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums.items())


def _notes(release: Release) -> list[str]:
    about = release.spec.about
    told = [release.title, about.producer, about.purpose, *release.guarantee.sentences(), *release.notes]
    told += notes_on(release.tables)
    warning = [NOT_FOR_RELEASE] if release.seeded else []
    return [*warning, *(line for line in told if line)]
