"""Guessing roles: what public survey files call their weights, strata, clusters and identifiers.

`drafting.py` guesses roles by these names. Names from well-known files are matched as a whole and come first; patterns
serve for all other names. A weight, an identifier or a sampling unit that is taken for an outcome or a public column
could be published, so these lists are wide: a column that is excluded by mistake can be added to the draft by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Role = Literal["weight", "strata", "cluster", "fpc", "outcome", "identifier", "code"]

FEWEST_REPLICATES = 4
"""This many numbered weights of one name, or more, are replicate weights."""
KNOWN: dict[Role, tuple[str, ...]] = {
    # In the order of preference: a person's weight before a household's.
    "weight": (
        *("PWGTP", "WGTP"),  # American Community Survey
        *("ASECWT", "MARSUPWT", "WTFINL", "PWSSWGT", "PWCMPWGT", "EARNWT", "HWTFINL", "HWHHWGT", "A_FNLWGT"),  # CPS
        *("WTMEC2YR", "WTMECPRP", "WTINT2YR", "WTINTPRP", "WTSAF2YR", "WTDRD1", "WTDR2D"),  # NHANES
        *("pw", "WTSURVY", "NWEIGHT"),  # R survey's schools; Survey of Doctorate Recipients; RECS
        *("PB040", "RB050", "DB090", "PB060", "RB060", "RL070"),  # EU-SILC
        *("WTSSPS", "WTSSALL", "WTSSNRPS", "WTSSNR", "WTSS", "COMPWT"),  # General Social Survey
        *("v005", "mv005", "hv005", "d005"),  # Demographic and Health Surveys
        *("_LLCPWT", "_LLCPWT2", "_WT2RAKE", "_FINALWT", "_CLLCPWT"),  # BRFSS
        *("WTFA_A", "WTFA_C", "WTFA_SA", "WTFA_SC", "WTFA", "WTIA", "WTFA_HH", "WTFA_FAM"),  # NHIS
        *("anweight", "pspwght", "dweight", "pweight"),  # European Social Survey
        *("W_FSTUWT", "W_SCHGRNRABWT", "TOTWGT", "SENWT", "HOUWGT"),  # PISA, TIMSS
        *("WPFINWGT", "FINLWT21", "PERWT", "HHWT"),  # SIPP, Consumer Expenditure, IPUMS
    ),
    "strata": (
        "SDMVSTRA",
        "VSTRAT",
        "NSDRMEMTOD",
        "_STSTR",
        "PSTRAT",
        "VARSTR",
        "v022",
        "hv022",
        "v023",
        "DB050",
        "stype",
    ),
    "cluster": (
        "SDMVPSU",
        "VPSU",
        "_PSU",
        "PPSU",
        "VARPSU",
        "v021",
        "hv021",
        "v001",
        "hv001",
        "DB060",
        "dnum",
        "CNTSCHID",
    ),
    "fpc": ("fpc",),
    "outcome": ("PINCP", "WAGP", "PERNP", "HINCP", "INCWAGE", "INCTOT", "SALARY", "SALARYP", "HY020", "PY010G"),
    "identifier": (
        *("SERIALNO", "SPORDER", "SEQN", "CASEID", "IDNUMBER", "REFID", "OBSNUM", "DOEID", "ID_"),
        *("HRHHID", "HRHHID2", "PULINENO", "OCCURNUM", "QSTNUM", "PERIDNUM", "PH_SEQ", "H_SEQ", "PPPOS", "A_LINENO"),
        *("CPSID", "CPSIDP", "CPSIDV", "PERNUM", "SAMPLE", "cds", "snum", "flag"),
        *("DB030", "HB030", "RB030", "PB030", "RX030", "PX030", "RB040", "v002", "v003", "hv002", "hvidx", "hhid"),
        *("SEQNO", "HHX", "FMX", "FPX", "DUID", "PID", "DUPERSID", "idno", "CNTSTUID", "SSUID", "PNUM", "NEWID"),
    ),
    # Numbers that are not measurements: places, years, adjustment factors.
    "code": (
        *("ST", "STATE", "PUMA", "POWPUMA", "POWSP", "COUNTY", "STATEFIP", "COUNTYFIP", "GESTFIPS", "GTCBSA", "GTCO"),
        *("_STATE", "CNTRY", "CNTRYID", "CNT", "cnum", "DIVISION", "REGION", "REGIONC", "DB040", "DB020", "RB020"),
        *("PB020", "ADJINC", "ADJHSG", "YEAR", "IYEAR", "MONTH", "SRVY_YR", "HRYEAR4", "essround", "PANEL"),
    ),
}
PATTERNS: dict[Role, str] = {
    "weight": (
        r"weight|gewicht|w(gh?)?ts?(\d*|fin(al)?|surv\w*|\d\df)($|[_. ])|^wt[a-z]+\d*(yr|prp)?$|(^|[_. ])w$|"
        r"^(rep\w*|brr|jk|rw|w_fsturwt|w_fstr)_?\d+$"
    ),
    "strata": r"strat(a|um|e)?\d*($|[_. ])|strat(a|um)",
    "cluster": r"(^|[_. ])(psu|clusters?|clust|ea|segment)($|[_. ]|id|\d)|psu$",
    "fpc": r"(^|[_. ])fpc",
    "outcome": r"salar|income|wage|earn|pay|expend|spend|revenue|turnover|sales|cost|amount|value|hours|outcome|^y$",
    "identifier": (
        r"(^|[_. ])(id|ident\w*|key|uuid|guid|refid|caseid|serial|seq\w*|record|row)($|[_. ]|no|num)|"
        r"^(case|pers(on)?|resp(ondent)?|hh|household|fam(ily)?|school|student|record|obs|unit|subject|line|interview(er)?)"
        r"s?[_. ]?(id|no|nr|num|number|line|key)$|(name|address|phone|email)$"
    ),
    "code": r"(^|[_. ])(zip|postcode|postal|fips|latitude|longitude|county|puma\d*|nuts\d?|tract)($|[_. ]|code)",
}


def is_called(name: str, *roles: Role) -> bool:
    """Whether a column's name is usual for any of these roles."""
    return any(is_known(name, role) or re.search(PATTERNS[role], name, re.IGNORECASE) is not None for role in roles)


def is_known(name: str, role: Role) -> bool:
    """Whether a well-known file has a column of that name in this role."""
    return rank(name, role) < len(KNOWN[role])


def rank(name: str, role: Role) -> int:
    """The place of a name among the well-known names of a role, the preferred first; others come last."""
    known = [one.lower() for one in KNOWN[role]]
    return known.index(name.lower()) if name.lower() in known else len(known)


def replicate_weights(names: Sequence[str]) -> frozenset[str]:
    """The columns that are replicate weights: numbered, and several of one name."""
    numbered = [
        name
        for name in names
        if name[-1:].isdigit() and (is_called(_stem(name), "weight") or is_called(name, "weight"))
    ]
    sizes = Counter(_stem(name) for name in numbered)
    return frozenset(name for name in numbered if sizes[_stem(name)] >= FEWEST_REPLICATES)


def _stem(name: str) -> str:
    return name.rstrip("0123456789").lower()
