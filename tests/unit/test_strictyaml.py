"""Every text of a YAML file is what it looks like, or is refused with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from gateway.strictyaml import load_yaml
from workflows.contract.errors import ProblemCode, Refused

PLAIN = st.text("abcdefgh XYZ-_.", max_size=12)


def line_of(text: str) -> int:
    with pytest.raises(Refused) as caught:
        load_yaml(text, "plugin.yaml")
    refused = caught.value
    assert refused.code is ProblemCode.INPUT_INVALID
    assert refused.extras["file"] == "plugin.yaml"
    assert refused.detail.startswith(f"plugin.yaml:{refused.extras['line']}: ")
    return refused.extras["line"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3", 3),
        ("a:\n  b: 1\n  b: 2", 3),
        ("a: &x 1", 1),
        ("a: 1\nb: *x", 2),
        ("a: !!str 1", 1),
        ("a: !custom {}", 1),
        ("a: 1\n<<: {b: 2}", 2),
        ("a: 1\n---\nb: 2", 2),
        ("a: [1,\n", 2),
        ("a: 1\n\tb: 2", 2),
        ("", 1),
        ("# nothing", 1),
        ("a: 1\nb: \x01", 2),
        ("a: 1\nb: \ud800", 2),
        ("? [a]\n: 1", 1),
        ("[" * 100, 1),
    ],
)
def test_what_yaml_allows_and_we_do_not_is_refused_with_its_line(text: str, line: int) -> None:
    assert line_of(text) == line


@pytest.mark.parametrize(
    "text", ["yes", "No", "on", "OFF", "010", "0x1F", "1_000", "1:30", ".inf", "-.INF", ".nan", "+1"]
)
def test_a_plain_text_that_yaml_would_turn_into_something_else_is_refused(text: str) -> None:
    assert line_of(f"a: 1\nb: {text}") == 2


@pytest.mark.parametrize("text", ["9007199254740992", "1e400", "0.12345678901234567890"])
def test_numbers_follow_the_rules_of_json(text: str) -> None:
    assert line_of(f"a: {text}") == 1


def test_plain_values_are_read_as_they_look() -> None:
    text = (
        "text: a b\nversion: 1.0.0\ndate: 2024-01-01\nint: 3\nfloat: 0.5\nwhole: 1.0\nyes: true\nnull: null\n"
        'nothing:\nquoted: "1"\non: off the record\nblock: |\n  {{ x }}\n'
    )
    assert load_yaml(text, "f").value == {
        "text": "a b",
        "version": "1.0.0",
        "date": "2024-01-01",
        "int": 3,
        "float": 0.5,
        "whole": 1,
        "yes": True,
        "null": None,
        "nothing": None,
        "quoted": "1",
        "on": "off the record",
        "block": "{{ x }}\n",
    }


def test_a_place_is_found_by_the_nearest_line_around_it() -> None:
    document = load_yaml("a: 1\ntools:\n  - name: x\n    http: {path: /}\n  - name: y\n", "f")
    assert document.line_of(("tools", 0, "http", "path")) == 4
    assert document.line_of(("tools", 0, "missing")) == 3
    assert document.line_of(("tools", 1, "name")) == 5
    assert document.line_of(("nowhere",)) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | PLAIN,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PLAIN, inner, max_size=4),
    )
)
def test_json_is_yaml(value: JsonValue) -> None:
    assert load_yaml(json.dumps(value), "f").value == value
