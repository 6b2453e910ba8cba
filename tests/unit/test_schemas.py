"""Schemas are checked before they are used, and a reason never holds what was judged."""

import time

import pytest
from pydantic import JsonValue

from gateway.schemas import MAX_REASON, MAX_REASONS, SchemaInvalid, check_schema, validate

REFUND: JsonValue = {
    "type": "object",
    "required": ["invoice", "amount_cents"],
    "properties": {"invoice": {"type": "string"}, "amount_cents": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ({"invoice": "inv_17", "amount_cents": 5}, []),
        ({"invoice": "inv_17", "amount_cents": 5.0}, []),
        ({"invoice": "inv_17", "amount_cents": "SECRET"}, ["at /amount_cents: must be integer"]),
        ({"invoice": "inv_17", "amount_cents": 0}, ["at /amount_cents: is too small"]),
        ({"invoice": "inv_17"}, ["at /: the member amount_cents is missing"]),
        ("SECRET", ["at /: must be object"]),
    ],
)
def test_a_reason_names_place_and_rule(value: JsonValue, reasons: list[str]) -> None:
    assert validate(REFUND, value) == reasons


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (REFUND, {"invoice": "i", "amount_cents": 1, "SECRET": 1}),
        ({"additionalProperties": {"type": "integer"}}, {"SECRET": "SECRET"}),
        ({"enum": ["a"]}, "SECRET"),
        ({"const": 1}, "SECRET"),
        ({"pattern": "^a$"}, "SECRET"),
        ({"propertyNames": {"maxLength": 2}}, {"SECRET": 1}),
        ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, "SECRET"),
        ({"not": {}}, "SECRET"),
        ({"unevaluatedProperties": False}, {"SECRET": 1}),
        ({"dependentRequired": {"SECRET": ["b"]}, "properties": {"a": True}}, {"SECRET": 1}),
    ],
)
def test_a_reason_holds_neither_values_nor_undeclared_names(schema: JsonValue, value: JsonValue) -> None:
    reasons = validate(schema, value)
    assert reasons
    assert "SECRET" not in " ".join(reasons)


def test_reasons_are_bounded_in_number_and_size() -> None:
    name = "n" * 1000
    schema: JsonValue = {"items": {"properties": {name: {"type": "integer"}}}}
    values: list[JsonValue] = [{name: "x"}] * 40
    reasons = validate(schema, values)
    assert len(reasons) == MAX_REASONS
    assert all(len(reason) <= MAX_REASON for reason in reasons)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "intger"}, ("type",)),
        ({"properties": {"a": {"minimum": "x"}}}, ("properties", "a", "minimum")),
        ({"properties": {"a": {"pattern": "("}}}, ("properties", "a", "pattern")),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, ("$schema",)),
        ({"$ref": "https://example.test/schema.json"}, ()),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, ()),
        ({"$ref": "other.json"}, ()),
        ({"$ref": "#/$defs/nowhere"}, ()),
        ([], ()),
        ("text", ()),
        ({"const": float("inf")}, ()),
    ],
)
def test_what_is_no_schema_of_its_own_is_refused(schema: JsonValue, path: tuple[str | int, ...]) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        check_schema(schema)
    assert caught.value.path == path


def test_references_inside_the_schema_are_followed() -> None:
    schema: JsonValue = {"$defs": {"id": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/id"}}}
    assert validate(schema, {"a": "x"}) == []
    assert validate(schema, {"a": 1}) == ["at /a: must be string"]


def test_data_that_looks_like_a_reference_is_data() -> None:
    assert validate({"enum": [{"$ref": "https://example.test"}]}, {"$ref": "https://example.test"}) == []


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=a)(a+)+$", "^(?:a|aa)+(?<!b)$"])
def test_a_hostile_pattern_answers_at_once(pattern: str) -> None:
    started = time.process_time()
    assert validate({"pattern": pattern}, "a" * 5000 + "b")
    assert time.process_time() - started < 2
