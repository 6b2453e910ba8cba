"""No schema and no value costs more than its share: what multiplies is refused before use, the rest stays free."""

import time
from typing import Any

import pytest
from pydantic import JsonValue

from gateway.schemas import DOES_NOT_FIT, TOO_LARGE, SchemaInvalid, check_schema, validate

TREE: Any = {
    "$defs": {
        "node": {
            "type": "object",
            "required": ["value"],
            "properties": {
                "value": {"type": "integer"},
                "left": {"$ref": "#/$defs/node"},
                "right": {"$ref": "#/$defs/node"},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
    "$ref": "#/$defs/node",
}
ANY_JSON: Any = {
    "$anchor": "json",
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "items": {"$ref": "#json"}},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
    ],
}
FILTER: Any = {
    "$defs": {
        "filter": {
            "oneOf": [
                {"required": ["and"], "properties": {"and": {"type": "array", "items": {"$ref": "#/$defs/filter"}}}},
                {"required": ["or"], "properties": {"or": {"type": "array", "items": {"$ref": "#/$defs/filter"}}}},
                {"required": ["not"], "properties": {"not": {"$ref": "#/$defs/filter"}}},
                {"required": ["field"], "properties": {"field": {"type": "string"}}},
            ]
        }
    },
    "$ref": "#/$defs/filter",
}
MONEY: Any = {"type": "object", "properties": {"cents": {"type": "integer"}, "currency": {"enum": ["EUR", "USD"]}}}
INVOICE: Any = {
    "$id": "https://example.test/invoice",
    "$defs": {"money": MONEY, "line": {"properties": {name: {"$ref": "#/$defs/money"} for name in "abcdefghij"}}},
    "properties": {
        **{f"sum_{n}": {"$ref": "#/$defs/money"} for n in range(200)},
        "lines": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/line"}, {"required": ["a"]}]}},
        "id": {"pattern": "^(?=.*[0-9])(?=.*[a-z]).{8,}$"},
    },
    "unevaluatedProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (TREE, {"value": 1, "left": {"value": 2, "more": [{"value": 3}]}}, {"value": 1, "right": {"value": "x"}}),
        (ANY_JSON, {"a": [1, {"b": None}]}, None),
        (FILTER, {"and": [{"not": {"field": "x"}}, {"field": "y"}]}, {"and": [{"field": 7}]}),
        (INVOICE, {"lines": [{"a": {"cents": 1}}], "id": "abcdefg1"}, {"lines": [{"b": {"cents": 1}}]}),
        ({"properties": {"$ref": {"type": "string"}, "$id": {"const": "x"}}}, {"$ref": "a"}, {"$ref": 1}),
        ({"prefixItems": [{"type": "string"}], "items": {"$ref": "#/prefixItems/0"}}, ["a", "b"], ["a", 1]),
    ],
    ids=["tree", "any-json", "filter", "invoice", "names", "tuple"],
)
def test_ordinary_references_and_recursion_are_taken(schema: Any, good: JsonValue, bad: JsonValue) -> None:
    check_schema(schema)
    assert validate(schema, good) == []
    assert bad is None or validate(schema, bad)


def doubled(levels: int, word: str = "allOf") -> Any:
    """A short schema whose references double at each level."""
    levels_of: dict[str, Any] = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**levels_of, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def forked(*branches: Any) -> Any:
    """A schema that leads to the same member by several branches, at every level of a value."""
    return {"$defs": {"n": {"anyOf": list(branches)}}, "$ref": "#/$defs/n"}


def asked_again(levels: int) -> Any:
    schema: Any = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


TO_C: Any = {"properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c", "z"]}


@pytest.mark.parametrize(
    "schema",
    [
        doubled(22),
        doubled(60, "oneOf"),
        forked(TO_C, TO_C),
        forked(TO_C, {"additionalProperties": {"$ref": "#/$defs/n"}}),
        forked(TO_C, {"patternProperties": {"c": {"$ref": "#/$defs/n"}}}),
        forked({"items": {"$ref": "#/$defs/n"}}, {"contains": {"$ref": "#/$defs/n"}}),
        forked({"prefixItems": [{"$ref": "#/$defs/n"}]}, {"items": {"$ref": "#/$defs/n"}}),
        {"$dynamicAnchor": "n", "anyOf": [{"properties": {"c": {"$dynamicRef": "#n"}}}] * 2},
        asked_again(30),
        {"$ref": "#"},
        {"allOf": [{"not": {"$ref": "#"}}]},
        {"items": {"allOf": [{"pattern": f"^(?={n})"} for n in range(50)]}},
        {"allOf": [{"$ref": "#/$defs/a"}] * 400, "$defs": {"a": {"allOf": [{"type": "string"}] * 400}}},
        {"properties": {f"p{n}": True for n in range(12_000)}},
        {"allOf": [{"properties": {f"p{n}": {"type": "string"}}} for n in range(4_000)]},
    ],
    ids=[
        "references", "choices", "member", "other", "pattern", "element", "tuple", "dynamic", "unevaluated", "itself",
        "not-itself", "look-around", "wide", "members", "names",
    ],
)  # fmt: skip
def test_what_multiplies_is_refused_at_once(schema: Any) -> None:
    began = time.monotonic()
    with pytest.raises(SchemaInvalid, match="multiply"):
        check_schema(schema)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$id": "other", "type": "string"}}, "$ref": "other"},
        {"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}, "$ref": "#x"},
        {"$id": "https://example.test/a", "properties": {"a": {"$ref": "https://example.test/a"}}},
    ],
    ids=["another-document", "two-of-a-name", "by-address"],
)
def test_a_reference_that_can_not_be_counted_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaInvalid):
        check_schema(schema)


@pytest.mark.parametrize(
    ("items", "reasons"),
    [
        ({"type": "string"}, ["at /0: must be string"]),
        ({"enum": ["a", "b"]}, ["at /0: is not one of the allowed values"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, [DOES_NOT_FIT]),
        ({"oneOf": [{"const": n} for n in range(-100, 0)]}, [DOES_NOT_FIT]),
        ({"allOf": [{"type": "string"}] * 2_000}, [TOO_LARGE]),
    ],
    ids=["type", "enum", "any-of", "one-of", "work"],
)
def test_a_hundred_thousand_faults_are_told_at_once(items: Any, reasons: list[str]) -> None:
    """All of them made first, as the library does, take 9 s to minutes (measured)."""
    schema = {"type": "array", "items": items}
    value: Any = [1] * 100_000
    began = time.monotonic()
    assert validate(schema, value) == reasons
    assert time.monotonic() - began < 4


def test_one_fault_in_a_large_value_has_its_place() -> None:
    value: JsonValue = [*["x"] * 50_000, 7]
    assert validate({"items": {"type": "string"}}, value) == ["at /50000: must be string"]


def test_long_texts_and_backtracking_patterns_are_counted() -> None:
    texts: Any = ["a" * 60 + "b"] * 4_000
    began = time.monotonic()
    assert validate({"items": {"pattern": "^(?=a)(a+)+$"}}, texts)
    assert validate({"items": {"not": {"pattern": "^(?=a)(a+)+$"}}}, texts) == [TOO_LARGE]
    assert time.monotonic() - began < 10
