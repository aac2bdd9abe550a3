"""The folder of a release: `public/` and `internal/`, bound to their charge. Both appear together or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from svysynth.core.new_folder import write_folder
from svysynth.mechanisms.base import Made
from svysynth.privacy.ledger import Charge, record_release
from svysynth.privacy.payment import ANCHOR
from svysynth.privacy.release import Release
from svysynth.privacy.tamper_marks import write_durably
from svysynth.publishing.internal_folder import write_internal
from svysynth.publishing.public_folder import checksum, publish
from svysynth.publishing.report.internal import Review
from svysynth.survey.survey import Survey


def write_release(
    folder: Path, finished: Release, survey: Survey, made: Made, direct: pl.DataFrame, review: Review
) -> None:
    """Build both folders beside the target, bind them to their charge, then give them their name in one step."""

    def build(building: Path) -> None:
        public, internal, anchor = (building / name for name in ("public", "internal", ANCHOR))
        public.mkdir()
        internal.mkdir(mode=0o700)
        manifest = publish(finished, public)
        write_internal(internal, finished, survey, made.synthetic, direct, review, made.evidence)
        _settle(building)
        if isinstance(finished.charge, Charge):
            write_durably(anchor, record_release(finished.charge, checksum(manifest)).to_json())
            anchor.chmod(0o644)
        building.chmod(0o755)

    write_folder(folder, build)


def _settle(folder: Path) -> None:
    """Wait until all is on disk, so that the new name never stands for half a release."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
