"""Accounting: amounts of ε in whole millionths, and the two kinds of ε, which are never added.

Under `differential privacy` an amount is the ε for a respondent whose answer is changed, and holds for every data set.
Under `asymptotic` it is the paper's figure 2·Δ·m, computed from the data at hand. A sum of the two would mean nothing,
so each kind has budgets of its own.
"""

from __future__ import annotations

import contextlib
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from typing import get_args

from svysynth.core.errors import SurveyError
from svysynth.core.registry import Accounting

ACCOUNTINGS: tuple[Accounting, ...] = get_args(Accounting)
LARGEST_EPSILON = Decimal(10**9)
_MILLIONTH = Decimal("0.000001")
_EXACT = Context(prec=50)


def millionths(amount: str | float | Decimal, rounding: str = ROUND_CEILING) -> int:
    """An amount of ε, as a user reads it, in millionths: a charge is rounded up, a total (`ROUND_FLOOR`) down.

    >>> from decimal import ROUND_FLOOR
    >>> millionths(0.1), millionths("10.8"), millionths("0.0000001"), millionths("1.9999999", ROUND_FLOOR)
    (100000, 10800000, 1, 1999999)
    """
    with contextlib.suppress(InvalidOperation):
        value = Decimal(str(amount))
        if value.is_finite() and 0 < value <= LARGEST_EPSILON:
            return int(value.quantize(_MILLIONTH, rounding, _EXACT).scaleb(6, _EXACT))
    remedy = f"give a number above 0 and at most {LARGEST_EPSILON:,}"
    raise SurveyError("spec", "epsilon", "is not an amount that can be accounted for", remedy)


def epsilon_text(amount: int) -> str:
    """Millionths as a user reads them.

    >>> epsilon_text(10_800_000), epsilon_text(1), epsilon_text(3_000_000)
    ('10.8', '0.000001', '3')
    """
    return f"{amount // 10**6}.{amount % 10**6:06d}".rstrip("0").rstrip(".")
