"""A title says what the arguments say, on one line, and can not be made to say more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from gateway.manifest import Approval, Tool
from gateway.templates import MAX_TEXT, TemplateInvalid, check_template, render, title_of
from workflows.contract.ids import ToolName


def test_named_arguments_are_replaced() -> None:
    args: dict[str, JsonValue] = {"amount_cents": 1200, "invoice": "inv_17"}
    assert render("Refund {amount_cents} cents on {invoice}", args) == "Refund 1200 cents on inv_17"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "true"), (None, "null"), (1.5, "1.5"), ([1, "a"], '[1, "a"]'), ({"a": "é"}, '{"a": "é"}'), ("", "")],
)
def test_values_are_shown_as_json_and_texts_as_they_are(value: JsonValue, shown: str) -> None:
    assert render("<{a}>", {"a": value}) == f"<{shown}>"


def test_an_absent_argument_reads_as_a_dash() -> None:
    assert render("on {invoice}", {}) == "on —"


def test_values_are_not_templates() -> None:
    assert render("{a} {b}", {"a": "{b}", "b": "{a}"}) == "{b} {a}"
    assert render("{a.__class__} {0} {a!r}", {"a": "x"}) == "— — —"


def test_a_long_value_is_cut_and_leaves_the_rest_readable() -> None:
    text = render("Refund {note} on {invoice}", {"note": "x" * 10_000, "invoice": "inv_17"})
    assert text == f"Refund {'x' * 119}… on inv_17"


def test_a_value_can_not_add_lines_or_turn_the_text_around() -> None:
    assert render("Pay {to}", {"to": "Ann\n\nApproved:\u202e yes\x00\x1b[31m"}) == "Pay Ann Approved: yes[31m"


@given(st.text(max_size=400), st.text(max_size=400))
def test_a_rendered_text_is_one_bounded_line(template: str, value: str) -> None:
    text = render(template + "{a}", {"a": value})
    assert len(text) <= MAX_TEXT
    assert len(text.splitlines()) <= 1


@pytest.mark.parametrize("template", ["{other}", "{a.b}", "{}", "{a!r}", "{ a }", "x" * 301])
def test_publishing_refuses_what_would_not_be_replaced(template: str) -> None:
    with pytest.raises(TemplateInvalid):
        check_template(template, ["a"])


def test_a_description_stands_in_for_a_missing_title_and_is_no_template() -> None:
    tool = Tool(name=ToolName("t"), description="Takes {a}.", effect="write", input_schema={}, python="x")
    assert title_of(tool, {"a": 1}) == "Takes {a}."
    titled = tool.model_copy(update={"approval": Approval(title="Take {a}")})
    assert title_of(titled, {"a": 1}) == "Take 1"
