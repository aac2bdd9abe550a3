"""Payment: how a run uses its ledger. The budget is checked first, then charged; a refusal is recorded.

A run also looks for releases beside its own folder. A ledger that lacks the entry of one of them was put back from an
older copy, and is not charged.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from svysynth.core.errors import SurveyError, is_plain
from svysynth.core.spec.privacy import PrivacySpec
from svysynth.privacy.accounting import epsilon_text, millionths
from svysynth.privacy.budgets import BudgetState
from svysynth.privacy.fingerprint import fingerprint
from svysynth.privacy.guarantee import Guarantee
from svysynth.privacy.ledger import Charge, charge, fingerprint_key, record_refusal, show, verify_own
from svysynth.privacy.tamper_marks import Anchor, read_seal
from svysynth.survey.survey import Survey

ANCHOR = "anchor.json"
"""The file beside public/ and internal/ that names the release's entry in the ledger."""


def check_budget(privacy: PrivacySpec, guarantee: Guarantee, folder: Path) -> None:
    """Stop before the long work if the release could not be paid for."""
    if privacy.budget is None:
        remedy = "name the population's budget, and open it once with `svysynth ledger open SPEC --total EPSILON`"
        raise SurveyError("spec", "privacy.budget", "is not declared", remedy)
    states = {(state.name, state.accounting): state for state in show(privacy.ledger)}
    state = states.get((privacy.budget, privacy.accounting))
    place = f"budget '{privacy.budget}'"
    if state is None:
        remedy = "open it once with `svysynth ledger open SPEC --total EPSILON`, or correct privacy.budget"
        raise SurveyError("spec", place, f"is not open for {privacy.accounting} in '{privacy.ledger.name}'", remedy)
    due = millionths(guarantee.charged or 0.0)
    if state.left < due:
        remedy = "use a smaller privacy.epsilon, or release nothing more; `svysynth ledger show SPEC` lists the charges"
        problem = f"has less left (ε = {epsilon_text(state.left)}) than privacy.epsilon asks for ({epsilon_text(due)})"
        raise SurveyError("spec", place, problem, remedy)
    _verify_beside(privacy.ledger, folder)


def pay(privacy: PrivacySpec, folder: Path, survey: Survey, guarantee: Guarantee) -> Charge:
    """Charge what a guarantee promises; when it returns, the charge is on disk and stays spent."""
    _verify_beside(privacy.ledger, folder)  # again, as the fit may have taken hours
    found = fingerprint(survey, fingerprint_key(privacy.ledger))
    due = guarantee.charged or 0.0
    clusters = (guarantee.cluster or "") if guarantee.unit == "cluster" else ""
    return charge(privacy.ledger, privacy.budget or "", due, _purpose(folder), guarantee.accounting, found, clusters)


def budget_after(paid: Charge) -> BudgetState:
    """The state of the budget that was charged."""
    states = show(paid.ledger)
    return next(state for state in states if (state.name, state.accounting) == (paid.budget, paid.accounting))


@contextlib.contextmanager
def refusals_recorded(privacy: PrivacySpec, folder: Path, paid: list[Charge]) -> Iterator[None]:
    """Record in the ledger a refusal in this block, which looks at confidential data, if nothing was charged before.

    A refusal depends on the data, and whoever sees it learns something. The record is for those who review releases. It
    names the place and nothing else. Files that cannot be read or written are not recorded.
    """
    try:
        yield
    except SurveyError as error:
        if not paid and error.kind != "file" and privacy.budget is not None:
            with contextlib.suppress(SurveyError):  # the first error is the one to show
                record_refusal(privacy.ledger, privacy.budget, privacy.accounting, _purpose(folder), error.place)
        raise


def _verify_beside(ledger: Path, folder: Path) -> None:
    """Stop where a release beside this one was charged to this ledger, but the ledger lacks its entry."""
    seal = read_seal(ledger.resolve())
    found = []
    for path in _anchor_files(folder):
        anchor = _read_anchor(path)
        if anchor is None and not _names_ledger(path.parent, ledger):
            continue  # some other file of that name
        if anchor is None:
            remedy = "put it back as it was written, or keep that release elsewhere"
            raise SurveyError("file", f"anchor of '{path.parent.name}'", "cannot be read", remedy)
        found.append(anchor)
        if seal and anchor.ledger != seal.ledger and _names_ledger(path.parent, ledger):
            problem = f"is not the one that the release '{path.parent.name}' beside was charged to, under the same name"
            remedy = "put the old ledger back, or keep the releases that were charged to it elsewhere"
            raise SurveyError("file", f"ledger '{ledger.name}'", problem, remedy)
    verify_own(ledger, found)


def _anchor_files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in sorted(folder.absolute().parent.glob(f"*/{ANCHOR}")) if path.is_file()]
    return []


def _read_anchor(path: Path) -> Anchor | None:
    """The anchor in a file, or None where it has none."""
    with contextlib.suppress(OSError, UnicodeDecodeError, SurveyError):
        return Anchor.from_json(path.read_text(encoding="utf-8"))
    return None


def _names_ledger(release: Path, ledger: Path) -> bool:
    """Whether the internal folder of a release says that it was charged to a ledger of this path."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        named = json.loads((release / "internal/run.json").read_text(encoding="utf-8")).get("ledger")
        return Path(str(named)) == ledger.resolve()
    return False


def _purpose(folder: Path) -> str:
    return folder.name[:200].strip() if is_plain(folder.name) and folder.name.strip() else "release"
