"""Page: what the two HTML reports share. Each is one file that loads nothing from outside and runs no code.

Every value is escaped where it is put into a template. The content security policy allows the page's one style sheet,
by its hash, and images that the page itself carries. If anything else had got in, a browser would refuse it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from svysynth.core.errors import shown
from svysynth.estimation.layout import figure, percent

CODE = "txt"
"""The ending of templates that make program code: the code is escaped when it is put into the page, and not before."""


def render(template: str, **content: Any) -> str:
    """A page from its template."""
    style = source("style.css")
    return _environment().get_template(template).render(style=style, policy=policy(style), **content)


def render_part(template: str, **content: Any) -> str:
    """A part of a page from its template; what takes it in must not escape it again."""
    return _environment().get_template(template).render(**content)


def render_code(template: str, **content: Any) -> str:
    """Program code from its template."""
    return _environment().get_template(f"{template}.{CODE}").render(**content).strip() + "\n"


def source(template: str) -> str:
    """The text of a template as it stands."""
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), template)[0]


def policy(style: str) -> str:
    """The content security policy of a page with this style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def quoted(text: str) -> str:
    """Text as a string of R or Python.

    >>> print(quoted('say "a\\\\b"'))
    "say \\"a\\\\b\\""
    """
    return json.dumps(text, ensure_ascii=False)


def r_name(text: str) -> str:
    """A column's name as R code writes it.

    >>> r_name("salary"), r_name("my field"), r_name("if")
    ('salary', '`my field`', '`if`')
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9._]*", text) and text not in R_WORDS:
        return text
    return "`" + quoted(text)[1:-1].replace('\\"', '"').replace("`", "\\`") + "`"


R_WORDS = {
    *("if", "else", "repeat", "while", "function", "for", "next", "break", "in"),
    *("TRUE", "FALSE", "NULL", "Inf", "NaN", "NA", "NA_integer_", "NA_real_", "NA_complex_", "NA_character_"),
}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("svysynth.publishing.report"),
        autoescape=select_autoescape(default=True, default_for_string=True, disabled_extensions=(CODE,)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": figure,
        "percent": percent,
        "quoted": quoted,
        "r_name": r_name,
        "shown": shown,
    }
    return environment
