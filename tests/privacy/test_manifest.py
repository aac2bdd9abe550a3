"""The manifest: its published schema, what the schema accepts, and the page that says what each field means."""

import json
import math
import re
from copy import deepcopy
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from generate import manifest_schema
from places import DOCS
from svysynth.core.spec.whole import parse_spec
from svysynth.privacy.guarantee import additive, asymptotic
from svysynth.privacy.ledger import Charge
from svysynth.privacy.manifest import Manifest
from svysynth.privacy.release import NOT_FOR_RELEASE, NotCharged, Release
from svysynth.privacy.tamper_marks import Anchor
from svysynth.publishing.public_folder import make_manifest

SCHEMA = json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "manifest.md").read_text(encoding="utf-8")
SPEC = """
[survey]
data = "/vault/secret.csv"
outcome = "salary"
weight = "wt"
strata = "region"
cluster = "village"
fpc = "drawn"
public = ["region", "sex"]
population_total = 5000
where = "status = 'kept'"
universe = ["status"]

[survey.labels.sex]
1 = "secret"

[privacy]
mechanism = "{mechanism}"
guarantee = "{promise}"
epsilon = 12.0
datasets = 2
budget = "secret"
ledger = "/vault/secret.sqlite"

[privacy.bounds]
outcome = [1000.0, 200000.0]
weight = [0.0, 100.0]

[about]
title = "Züge & <Löhne>"
producer = "The office"

[standin]
mean = 10
spread = 0.4
"""


def make(mechanism="fbs", **changes):
    """The manifest of a release, as text."""
    roles = {"confidential": ("salary", "wt"), "public": ("region", "sex"), "universe": "status = 'kept'"}
    anchor = Anchor("0" * 32, 2, "f" * 64)
    sampled = mechanism != "laplace"
    promise = (
        asymptotic(mechanism, 12.0, 2, transform="log", draws=1000, **roles) if sampled else additive(12.0, **roles)
    )
    settings = {
        "charge": Charge(Path("/vault/secret.sqlite"), "secret", promise.accounting, 12_000_000, anchor),
        "guarantee": promise,
        "spec": parse_spec(SPEC.format(mechanism=mechanism, promise=promise.kind)),
        "levels": {"region": ("east", "north"), "sex": ("F", "M")},
        "records": 300,
        "tables": pl.DataFrame({"estimate": [1.0]}),
        "microdata": (pl.DataFrame({"id": [1]}),) * (2 if sampled else 0),
        "created": date(2031, 2, 3),
    }
    release = Release(**settings | changes)
    return make_manifest(release, {"tables.csv": "a" * 64, "report.html": "b" * 64}).to_json()


# --- the schema ---


def test_the_published_schema_is_the_model_s():
    assert Manifest.model_json_schema() == SCHEMA, "run `make docs`"
    assert (DOCS / "manifest.schema.json").read_text(encoding="utf-8") == manifest_schema()


TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "boolean": bool,
}
PASSED_OVER = {"title", "description", "default", "$defs", "type", "properties", "required"}


def problems(value, schema):
    """Why a value does not follow a schema, by the rules of JSON Schema 2020-12 that the schema uses and no others."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from problems(value, SCHEMA["$defs"][name])
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"not of type {kind}"
        return
    for rule, wanted in schema.items():
        match rule:
            case "anyOf":
                if all(any(problems(value, choice)) for choice in wanted):
                    yield "follows none of its choices"
            case "enum":
                if value not in wanted:
                    yield "not one of its values"
            case "const":
                if value != wanted:
                    yield "not its value"
            case "pattern":
                if not re.search(wanted, value):
                    yield "does not match"
            case "minLength" | "minItems":
                if len(value) < wanted:
                    yield "too short"
            case "maxLength" | "maxItems":
                if len(value) > wanted:
                    yield "too long"
            case "minimum" | "exclusiveMinimum":
                if not (value > wanted or (rule == "minimum" and value == wanted)):
                    yield "too small"
            case "maximum" | "exclusiveMaximum":
                if not (value < wanted or (rule == "maximum" and value == wanted)):
                    yield "too large"
            case "items":
                yield from (problem for item in value for problem in problems(item, wanted))
            case "prefixItems":
                for item, part in zip(value, wanted, strict=False):
                    yield from problems(item, part)
            case "additionalProperties":
                others = [content for name, content in value.items() if name not in schema.get("properties", {})]
                if wanted is False and others:
                    yield "has unknown fields"
                elif isinstance(wanted, dict):
                    yield from (problem for content in others for problem in problems(content, wanted))
            case "$ref":
                pass
            case _:
                assert rule in PASSED_OVER, f"a rule that is not checked here: {rule}"
    for name, part in schema.get("properties", {}).items():
        if name in value:
            yield from problems(value[name], part)
        elif name in schema.get("required", ()):
            yield f"lacks {name}"


def test_every_reference_leads_somewhere_and_every_object_is_closed():
    text = json.dumps(SCHEMA)
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == set(SCHEMA["$defs"])
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        assert part["type"] == "object"
        assert part["additionalProperties"] is False
        assert set(part.get("required", ())) <= set(part["properties"])


@pytest.mark.parametrize("mechanism", ["fbs", "fbp", "laplace"])
@pytest.mark.parametrize("seeded", [False, True])
def test_manifests_follow_the_schema(mechanism, seeded):
    text = make(mechanism, notes=("a note",), **({"charge": NotCharged()} if seeded else {}))
    assert list(problems(json.loads(text), SCHEMA)) == []
    assert Manifest.model_validate_json(text).to_json() == text


def places(content, path=()):
    """The path of every field of a manifest."""
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, name)
        if isinstance(value, dict | list):
            yield from places(value, (*path, name))


def changed(content, path, value):
    content = deepcopy(content)
    place = content
    for name in path[:-1]:
        place = place[name]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


def taken(content):
    """Whether the model takes a manifest as it stands; None where what it refuses is nothing a schema can say."""
    text = json.dumps(content)
    try:
        found = Manifest.model_validate_json(text)
    except ValidationError as error:
        return None if {detail["type"] for detail in error.errors()} == {"clash"} else False
    return json.dumps(json.loads(found.to_json())) == text or None


def test_schema_and_model_agree():
    """At every field: another type, nothing, something more. What one of them refuses the other does not take."""
    manifest = json.loads(make("laplace"))
    assert taken(manifest)
    refused = 0
    for path in places(manifest):
        for value in (None, "x", 3, 1.5, True, [], ["x"], {}, {"x": 1}, -1):
            other = changed(manifest, path, value)
            found = any(problems(other, SCHEMA))
            assert taken(other) in (None, not found), (path, value)
            refused += found
    assert refused > 500


# --- what it says and what it does not ---


def test_nothing_of_the_house_is_in_it():
    text = make()
    for secret in ("secret", "vault", "drawn", "standin", "12000000"):
        assert secret not in text


def test_it_states_the_target_and_the_promise():
    manifest = json.loads(make())
    assert manifest["guarantee"]["largest_bound"] == 3.0
    assert manifest["statement"] == list(Manifest.model_validate(manifest).guarantee.sentences())
    assert manifest["created"] == "2031-02-03"
    assert manifest["about"]["title"] == "Züge & <Löhne>"
    assert manifest["warning"] is None
    seeded = json.loads(make(charge=NotCharged()))
    assert (seeded["warning"], seeded["ledger"]) == (NOT_FOR_RELEASE, None)
    assert {"svysynth", "polars", "jax", "blackjax"} <= set(manifest["versions"])
    assert "opendp" in json.loads(make("laplace"))["versions"]


def test_numbers_that_json_does_not_have_are_not_written():
    for value in (math.nan, math.inf):
        text = make(guarantee=asymptotic_with(largest_bound=value))
        json.loads(text, parse_constant=pytest.fail)


def asymptotic_with(**changes):
    roles = {"confidential": ("salary", "wt"), "public": ("region", "sex")}
    return asymptotic("fbs", 12.0, 2, transform="log", draws=1000, **roles).model_copy(update=changes)


def test_the_spec_in_it_makes_the_tables_again():
    spec = Manifest.model_validate_json(make()).spec()
    original = parse_spec(SPEC.format(mechanism="fbs", promise="asymptotic"))
    assert spec.requested_tables == original.requested_tables
    assert spec.estimation == original.estimation
    assert spec.survey.public == original.survey.public


# --- the page ---


def leaves(schema, path=""):
    """The names of all fields, as the page writes them."""
    for name, part in schema["properties"].items():
        place = f"{path}{name}"
        choices = [part, part.get("items", {}), *part.get("anyOf", ())]
        inner = [choice["$ref"] for choice in choices if "$ref" in choice]
        if inner:
            many = "[]" if part.get("type") == "array" else ""
            yield from leaves(SCHEMA["$defs"][inner[0].removeprefix("#/$defs/")], f"{place}{many}.")
        else:
            yield place


def test_the_page_describes_every_field_once():
    table = PAGE[: PAGE.index("## For the")]
    described = [
        name for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    ]
    assert sorted(described) == sorted(leaves(SCHEMA))


REGISTRY = {
    1: {"name", "data_curators", "description", "intended_use", "data_product_type", "publication_date"},
    2: {"variant_name", "privacy_unit", "privacy_parameters", "model_name", "release_type", "access_type"},
    3: {
        *("data_domain", "unprotected_quantities", "privacy_unit_details", "post_processing", "composition"),
        *("preprocessing_and_hyperparameter_tuning", "mechanisms", "justification", "actors"),
    },
}


def dots(name):
    return [place for place, character in enumerate(name) if character == "."]


def test_the_page_answers_the_registry_s_questions_with_fields_that_exist():
    """Every question of a tier is in a row of that tier, and every field a row names is in the manifest."""
    found = re.findall(r"^\|( \d \|.+)\|$", PAGE, re.MULTILINE)
    rows = [[cell.strip() for cell in row.split("|")] for row in found]
    fields = set(leaves(SCHEMA))
    known = {name[:end].removesuffix("[]") for name in fields for end in [*dots(name), len(name)]}
    for tier, questions in REGISTRY.items():
        asked = {name for row in rows if row[0] == str(tier) for name in re.findall(r"`(\w+)`", row[1])}
        assert questions <= asked, tier
    for row in rows:
        assert len(row) == 4, row
        for name in re.findall(r"`([\w.]+)`", row[2]):
            assert name in known or name in ("global", "asymptotic", "laplace"), name
