"""Publish: the public folder of a release. Its functions accept a `Release` and nothing else.

The files' metadata say nothing: no times but the day, no names, no row order. `SHA256SUMS` covers every file, the
manifest too, so that one changed byte anywhere is noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, time
from pathlib import Path

from svysynth.engine import frame_ranges
from svysynth.files import write_frame, write_parts
from svysynth.manifest import NOT_FOR_RELEASE, make_manifest
from svysynth.releases import Release, microdata
from svysynth.report.excel import write_workbook
from svysynth.report.public import public_page

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"


def publish(release: Release, folder: Path) -> Path:
    """Fill an empty folder with the public files of a release; the path of its manifest."""
    if not isinstance(release, Release):
        raise TypeError("only a Release can be published")

    def place(name: str) -> Path:
        return folder / release.file_name(name)

    write_frame(release.tables, place("tables.csv"))
    write_workbook(release.tables, place("tables.xlsx"), _notes(release))
    for number, survey in enumerate(release.microdata, start=1):
        for ending in release.endings:
            parts = (microdata(survey, part.start, part.stop) for part in frame_ranges(len(survey)))
            write_parts(parts, place(f"microdata-{number}.{ending}"))
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
    warning = [NOT_FOR_RELEASE] if release.seeded else []
    return [*warning, *(line for line in told if line)]
