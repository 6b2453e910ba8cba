"""Answers against the schemas of questions, which a model wrote: place and rule are named, and no schema costs much."""

import time
from typing import Any

import pytest
from pydantic import JsonValue

from gateway.questions import compile_question, misfits
from gateway.schemas import SchemaInvalid


def question(schema: JsonValue) -> dict[str, JsonValue]:
    return {"question": "How many?", "schema": schema}


@pytest.mark.parametrize("answer", ["a text", "", 0, False, [], {"a": None}])
def test_without_a_schema_any_answer_fits(answer: JsonValue) -> None:
    assert misfits({"question": "How many?"}, answer) == []


@pytest.mark.parametrize(
    ("schema", "answer", "reason"),
    [
        ({"type": "integer"}, "canary-answer", "at /: must be integer"),
        ({"properties": {"n": {"maximum": 3}}}, {"n": 4}, "at /n: is too large"),
        ({"required": ["n"]}, {}, "at /: the member n is missing"),
        ({"enum": ["yes", "no"]}, "canary-answer", "at /: is not one of the allowed values"),
        ({"items": {"pattern": "^[a-z]+$"}}, ["fine", "canary-1"], "at /1: does not match the pattern"),
        (False, "canary-answer", "at /: is not allowed"),
    ],
)
def test_a_misfit_names_place_and_rule_and_not_the_answer(schema: JsonValue, answer: JsonValue, reason: str) -> None:
    assert misfits(question(schema), answer) == [reason]


def doubled(levels: int) -> JsonValue:
    """A short schema whose references double at each level."""
    levels_of: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**levels_of, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> JsonValue:
    schema: JsonValue = {"type": "number"}
    for _ in range(levels):
        schema = {"anyOf": [schema, schema]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        doubled(40),
        nested(14),
        {"$dynamicRef": "#"},
        {"items": {"pattern": "^(a+)+\\1$"}},
        {"pattern": "(?<=a)b"},
        {"enum": list(range(3000))},
        {"type": "no such type"},
        7,
    ],
    ids=["references", "size", "dynamic", "back", "around", "values", "invalid", "number"],
)
def test_a_schema_that_could_be_endless_work_is_refused_at_once(schema: JsonValue) -> None:
    began = time.process_time()
    with pytest.raises(SchemaInvalid):
        compile_question(schema)
    assert time.process_time() - began < 5


def test_patterns_that_explode_elsewhere_take_time_linear_in_the_answer() -> None:
    schema: Any = {"allOf": [{"pattern": "^(a+)+$"}, {"pattern": "^(a|aa)+b?$"}, {"pattern": "(.*)*x(.*)*y$"}] * 50}
    began = time.process_time()
    assert misfits(question(schema), "a" * 30_000 + "!")
    assert time.process_time() - began < 5


def test_a_member_may_have_the_name_of_a_reference() -> None:
    assert misfits(question({"properties": {"$ref": {"type": "string"}}}), {"$ref": "x"}) == []
