"""The scripted model answers a turn the same way on every attempt and process, and fails as a real one does."""

from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import JsonValue

from activities.scripted import ScriptedReply, play
from gateway.script import parse_script
from workflows.contract.errors import StepCode, StepError

REFUND = (Path(__file__).parents[2] / "examples" / "support_refund" / "script.yaml").read_text()


def turn_of(text: str, turn: int = 1, *, attempt: int = 1, **results: JsonValue) -> ScriptedReply:
    named = {name.replace("_", "."): value for name, value in results.items()}
    return play(parse_script(text), turn, input={"invoice": "inv_17"}, results=named, attempt=attempt)


def test_the_example_reads_proposes_and_finishes() -> None:
    invoice: JsonValue = {"overage_cents": 1200, "note": "Charged twice."}
    first = turn_of(REFUND, 1)
    assert (first.turn_used, first.calls) == (1, (("invoices.get", {"id": "inv_17"}),))
    second = turn_of(REFUND, 2, invoices_get=invoice)
    assert second.calls == (("refunds.create", {"invoice": "inv_17", "amount_cents": 1200}),)
    third = turn_of(REFUND, 3, invoices_get=invoice)
    assert third.calls == ()
    assert third.final == {"message": "Invoice inv_17: Charged twice. Nothing was refunded."}


def test_a_turn_whose_calls_are_all_off_moves_on() -> None:
    reply = turn_of(REFUND, 2, invoices_get={"overage_cents": 0, "note": "Fine."})
    assert (reply.turn_used, reply.calls) == (3, ())
    assert reply.final == {"message": "Invoice inv_17: Fine. Nothing was refunded."}


def test_a_call_that_is_off_is_left_out() -> None:
    reply = turn_of("- calls: [{tool: a, when: false}, {tool: b}, {tool: c, when: '{{ turn == 1 }}'}]")
    assert [tool for tool, _ in reply.calls] == ["b", "c"]


def test_past_the_last_entry_the_job_ends_with_nothing() -> None:
    reply = turn_of("- calls: [{tool: a, when: false}]\n- calls: [{tool: a, when: '{{ 0 }}'}]")
    assert (reply.calls, reply.final) == ((), {})


def test_the_last_entry_repeats() -> None:
    text = "- calls: [{tool: a}]\n- calls: [{tool: b, args: {turn: '{{ turn }}'}}]"
    assert turn_of(text, 2).calls == (("b", {"turn": 2}),)
    assert turn_of(text, 900).calls == (("b", {"turn": 900}),)


def test_a_text_alone_is_the_final_answer() -> None:
    reply = turn_of("- say: 'Turn {{ turn }}.'")
    assert (reply.say, reply.final) == ("Turn 1.", "Turn 1.")


@pytest.mark.parametrize("final", ["null", "{}", "[1, '{{ turn }}']", "text", "false"])
def test_a_final_may_be_any_json(final: str) -> None:
    expected: dict[str, JsonValue] = {"null": None, "{}": {}, "text": "text", "false": False}
    reply = turn_of(f"- final: {final}")
    assert reply.calls == ()
    assert reply.final == expected.get(final, [1, 1])


def test_nested_arguments_are_filled_and_keys_are_not() -> None:
    reply = turn_of("- calls: [{tool: a, args: {x: [{'{{ y }}': '{{ input.invoice }}', n: 1}], t: 'on {{ turn }}'}}]")
    assert reply.calls == (("a", {"x": [{"{{ y }}": "inv_17", "n": 1}], "t": "on 1"}),)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, StepCode.RATE_LIMITED),
        (500, StepCode.UNAVAILABLE),
        (503, StepCode.UNAVAILABLE),
        (408, StepCode.UNAVAILABLE),
        (400, StepCode.REJECTED),
        (401, StepCode.REJECTED),
        (404, StepCode.REJECTED),
    ],
)
def test_a_failure_wins_while_the_attempt_is_at_most_its_times(status: int, code: StepCode) -> None:
    text = f"- fail: {{status: {status}, times: 2}}\n  final: done"
    for attempt in (1, 2):
        with pytest.raises(StepError) as caught:
            turn_of(text, attempt=attempt)
        assert caught.value.step_code is code
    assert turn_of(text, attempt=3).final == "done"


@pytest.mark.parametrize(
    "text",
    [
        "- final: '{{ SECRET }}'",
        "- say: 'x {{ input.SECRET }}'\n  final: x",
        "- calls: [{tool: a, args: {x: '{{ results.SECRET }}'}}]",
        "- calls: [{tool: a, when: '{{ results[\"SECRET\"].x > 1 }}'}]",
        "- calls: [{tool: a, when: '{{ input.invoice }}'}]",
    ],
)
def test_a_text_without_a_value_is_rejected_by_entry(text: str) -> None:
    with pytest.raises(StepError) as caught:
        turn_of(text)
    assert caught.value.step_code is StepCode.REJECTED
    assert caught.value.detail.startswith("Entry 1 of the script: ")
    assert "SECRET" not in caught.value.detail
    assert caught.value.__suppress_context__


def test_an_answer_is_bounded() -> None:
    text = "- final: [" + "'{{ input.big }} ', " * 40 + "0]"
    with pytest.raises(StepError) as caught:
        play(parse_script(text), 1, input={"big": "x" * 100_000}, results={}, attempt=1)
    assert caught.value.step_code is StepCode.REJECTED


def test_usage_and_delay_are_the_entrys_own() -> None:
    text = "- {final: x, delay_seconds: 0.25, usage: {input_tokens: 10, output_tokens: 3, cost_usd: '0.0125'}}"
    reply = turn_of(text)
    assert reply.delay_seconds == 0.25
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 3)
    assert reply.usage.cost_usd == Decimal("0.0125")
    assert turn_of("- final: x").usage.cost_usd == 0


def test_a_cost_may_be_a_number() -> None:
    assert turn_of("- {final: x, usage: {cost_usd: 0.1}}").usage.cost_usd == Decimal("0.1")
