"""The pipeline of a release, on one screen: survey → checks → mechanism, with its charge → Release → two folders.

`release` writes `public/`, made from a `Release` alone, and `internal/`, the evidence for disclosure review, which is
confidential. Both appear together or not at all. The charge comes before anything is made that will be published: a run
that fails after its charge has spent it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import polars as pl

from svysynth.core.engine import LOCAL, Engine
from svysynth.core.errors import SurveyError, require_type
from svysynth.core.new_folder import nearest_folder, refuse_existing
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.core.spec.whole import Spec, load_spec
from svysynth.core.streams import Streams
from svysynth.estimation.tables import tabulate_all
from svysynth.mechanisms.base import Made, find_public, mechanism_of, refuse_other_machines, undivided_setting
from svysynth.mechanisms.findings import WITH_REPLACEMENT_NOTE, first_stage_alone, refuse, unknown_domains
from svysynth.mechanisms.suitability import Examined
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import Charge
from svysynth.privacy.payment import budget_after, check_budget, pay, refusals_recorded
from svysynth.privacy.release import NOT_FOR_RELEASE, TABLE_DIGITS, NotCharged, Release, rounded
from svysynth.publishing.release_folder import write_release
from svysynth.publishing.report.internal import Review
from svysynth.publishing.verdict import Reason, ReleaseVerdict, beside, beyond_the_data, judge_release
from svysynth.survey.large_files import Read, with_reader
from svysynth.survey.survey import Survey

Progress = Callable[[str], None]


def release(
    spec: Spec | str | Path,
    folder: str | Path,
    streams: Streams | None = None,
    progress: Progress = lambda _: None,
    engine: Engine = LOCAL,
    judged: Callable[[ReleaseVerdict], None] = lambda _: None,
) -> Release:
    """Make a release: write `public/` and `internal/` into a new folder, as `svysynth release` does.

    `spec` is a spec or its path; the budget that it names is charged. A run with streams that are not fresh (with a
    seed) is charged to no budget, and its files are stamped NOT FOR RELEASE. A survey that is too large for memory, or
    that an engine of several processes works on, is kept in a hidden folder beside the new one while the work lasts.
    """
    spec, folder, streams, privacy, notes = _ready(spec, folder, streams, engine)

    def run(read: Read) -> Release:
        paid: list[Charge] = []
        with refusals_recorded(privacy, folder, paid) if streams.fresh else contextlib.nullcontext():
            progress("reading the survey")
            survey = read(mechanism_of(privacy).reads(spec))
            found, verdict = _whole_way(spec, privacy, survey, folder, streams, paid, progress, notes)
        judged(verdict)
        return found

    return with_reader(spec.survey, undivided_setting(spec), nearest_folder(folder), engine, run)


def _whole_way(
    spec: Spec,
    privacy: PrivacySpec,
    survey: Survey,
    folder: Path,
    streams: Streams,
    paid: list[Charge],
    progress: Progress,
    notes: tuple[str, ...],
) -> tuple[Release, ReleaseVerdict]:
    """From the survey to the two folders; what is refused before the charge costs nothing."""
    mechanism = mechanism_of(privacy)
    refuse(unknown_domains(survey))
    direct = tabulate_all(survey, spec.requested_tables, spec.direct_estimation)
    mechanism.check(survey, spec)
    examined = mechanism.examine(survey, spec, direct)
    refuse(examined.findings)

    def charged(guarantee: Guarantee) -> Charge | NotCharged:
        progress("charging the ledger")
        paid.extend([pay(privacy, folder, survey, guarantee)] if streams.fresh else [])
        return paid[0] if paid else NotCharged()

    made = mechanism.run(survey, spec, charged, streams, progress)
    finished = Release(
        made.paid,
        made.guarantee,
        spec,
        {column: survey.levels(column) for column in survey.public},
        len(survey) if made.records is None else made.records,
        rounded(made.tables, TABLE_DIGITS),
        made.synthetic.surveys,
        (*notes, *made.notes),
        made.attachments,
        domains=survey.domains,
    )
    review = _review(finished, survey, made, direct, examined)
    progress("writing")
    write_release(folder, finished, survey, made, direct, review)
    return finished, review.verdict


def _review(finished: Release, survey: Survey, made: Made, direct: pl.DataFrame, examined: Examined) -> Review:
    """Compare the finished release with the confidential data, and reach the verdict."""
    compared = beside(finished.tables, direct)
    state = budget_after(finished.charge) if isinstance(finished.charge, Charge) else None
    reasons = beyond_the_data(survey, made.synthetic.surveys)
    if state is None:
        reasons.append(Reason("do not publish", NOT_FOR_RELEASE))
    verdict = judge_release(compared, examined.findings, made.evidence.complaints, state, reasons)
    return Review(compared, examined, verdict, state)


def _ready(
    spec: Spec | str | Path, folder: str | Path, streams: Streams | None, engine: Engine
) -> tuple[Spec, Path, Streams, PrivacySpec, tuple[str, ...]]:
    """What was asked for, in order, and notes for readers; stops early what could not be made, written or paid for."""
    spec = load_spec(spec) if isinstance(spec, str | Path) else spec
    require_type(spec, Spec, "the spec", "give its path, or what svysynth.load_spec makes of it")
    require_type(folder, str | Path, "the folder", "give the path of a new folder")
    require_type(streams, Streams | None, "streams", "leave it out, or use svysynth.Streams.seeded for tests")
    if streams is None or streams.fresh:  # every release has entropy of its own, whatever it is given
        streams = Streams.from_system()
    if engine.remote:
        refuse_other_machines(spec)
    folder, privacy = Path(folder), spec.privacy
    if privacy is None:
        raise SurveyError("spec", "privacy", "is not declared", "add [privacy] with mechanism, epsilon and datasets")
    refuse_existing(folder)
    refuse(find_public(spec))
    notes = (WITH_REPLACEMENT_NOTE,) if first_stage_alone(spec.survey) else ()
    spec = spec.first_stage.of_release
    if streams.fresh:
        check_budget(privacy, mechanism_of(privacy).guarantee(spec.survey, privacy), folder)
    return spec, folder, streams, privacy, notes
