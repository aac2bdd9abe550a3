"""What is promised, in words: never more than the kind allows."""

import json

import pytest
from pydantic import ValidationError

from svysynth.privacy.guarantee import Guarantee, additive, asymptotic, no_guarantee

ROLES = {"confidential": ("salary", "weight"), "public": ("field", "gender")}
KINDS = {
    "asymptotic": asymptotic("fbs", 10.8, 3, transform="log", draws=1000, **ROLES),
    "global": additive(2.0, **ROLES),
    "none": no_guarantee("laplace-paper", **ROLES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_prints_as_sentences_and_comes_back_from_json(kind):
    guarantee = KINDS[kind]
    assert guarantee.kind == kind
    assert Guarantee.model_validate_json(guarantee.model_dump_json()) == guarantee
    assert all(sentence.endswith(".") for sentence in guarantee.sentences())


def test_the_asymptotic_kind_never_sounds_like_another():
    text = (" ".join(KINDS["asymptotic"].sentences()) + KINDS["asymptotic"].model_dump_json()).lower()
    assert "asymptotic" in text
    assert "not a promise for every possible data set" in text
    for word in ("ε-dp", "pure", "every data set"):
        assert word not in text
    assert text.count("differential") == 1
    assert KINDS["asymptotic"].sentences()[0].startswith("This is not differential privacy")


def test_numbers_are_those_of_the_adjacency():
    found = KINDS["asymptotic"]
    assert (found.epsilon_blanked, found.epsilon_changed) == (10.8, 21.6)
    assert found.epsilon_blanked == 2 * found.largest_bound * found.datasets
    assert (KINDS["global"].epsilon_blanked, KINDS["global"].epsilon_changed) == (2.0, 2.0)
    assert KINDS["none"].epsilon_blanked is None
    for text in ("10.8", "21.6", "3 synthetic files", "field, gender", "salary and weight"):
        assert text in " ".join(found.sentences())


def test_it_is_frozen_and_closed():
    with pytest.raises(ValidationError):
        KINDS["global"].epsilon_blanked = 1.0
    with pytest.raises(ValidationError):
        Guarantee(**json.loads(KINDS["global"].model_dump_json()) | {"delta": 0.1})
