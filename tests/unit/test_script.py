"""A script is checked before anybody plays it, and its expressions can neither escape nor burn the worker."""

import time
from collections.abc import Mapping

import pytest
from pydantic import JsonValue

from gateway.expressions import EvaluationFailed, ExpressionInvalid, compile_text
from gateway.script import parse_script
from workflows.contract.errors import ProblemCode, Refused

NAMES: Mapping[str, JsonValue] = {
    "input": {"items": [1, 2], "text": "123", "number": 5, "half": 0.5, "nothing": None, "big": "x" * 100_000},
    "results": {"invoices.get": {"overage_cents": 1200}},
    "turn": 2,
    "attempt": 1,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ input.text }}", "123"),
        ("{{ input.number }}", 5),
        ("{{ input.half * 2 }}", 1),
        ("{{ input.nothing }}", None),
        ("{{ input.items }}", [1, 2]),
        ("{{ results['invoices.get'].overage_cents > 0 }}", True),
        ("{{ results['invoices.get'] }}", {"overage_cents": 1200}),
        ("{{ {'a': [input.number, turn]} }}", {"a": [5, 2]}),
        ("{{- input.number -}}", 5),
        ("{{ -input.number }}", -5),
        ("{{ ' }} {{ ' }}", " }} {{ "),
        ("{{ results['refunds.create'] is defined }}", False),
        ("{{ input.other | default('x') }}", "x"),
        ("{{ input.text | int + 1 }}", 124),
        ("{{ input.items | join(', ') }}", "1, 2"),
        ("{{ input.text[:2] }}", "12"),
        ("{{ input | tojson | length > 10 }}", True),
    ],
)
def test_one_expression_keeps_its_type(text: str, value: JsonValue) -> None:
    expression = compile_text(text)
    assert expression.typed
    answer = expression.evaluate(NAMES)
    assert answer == value
    assert type(answer) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{ input.text }}{{ input.text }}", "123123"),
        ("Turn {{ turn }}.", "Turn 2."),
        ("{% if turn > 1 %}again{% else %}first{% endif %}", "again"),
        ("{% for n in input['items'] %}{{ n }};{% endfor %}", "1;2;"),
        ('{{ "<" }}&{{ ">" }}', "<&>"),
    ],
)
def test_mixed_text_is_text(text: str, value: str) -> None:
    expression = compile_text(text)
    assert not expression.typed
    assert expression.evaluate(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "{{ other }}",
        "{{ input.other }}",
        "{{ input.other.deeper }}",
        "{{ [other] }}",
        "{{ {'a': input.other} }}",
        "x {{ other }}",
        "{{ results['refunds.create'] }}",
        "{{ results['refunds.create'].id }}",
        "{{ 'x' if turn > 5 }}",
        "{{ other | tojson }}",
    ],
)
def test_an_undefined_name_fails(text: str) -> None:
    with pytest.raises(EvaluationFailed):
        compile_text(text).evaluate(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "{{ input.keys }}",
        "{{ range(3) }}",
        "{{ input.items | map('string') }}",
        "{{ 1 / 0 }}",
        "{{ input.number + 'x' }}",
        "{{ 1e400 }}",
        "{{ 'nan' | float }}",
        "{{ 9007199254740992 }}",
        "{{ {1: 2} }}",
    ],
)
def test_what_json_does_not_know_fails(text: str) -> None:
    with pytest.raises(EvaluationFailed):
        compile_text(text).evaluate(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 9**9**9 }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ '%01000000000d' % 1 }}",
        "{{ '{:01000000000}'.format(1) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 1 | round(1000000000) }}",
        "{{ range(1000000000) | list }}",
        "{{ range(1000) | join(input.big) }}",
        "{{ lipsum(1000) }}",
        "{% for a in range(1000) %}{{ input.big }}{% endfor %}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% set a = 'x' %}{{ a }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'x' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ input.items.append(1) }}",
        "{{ input.update({}) }}",
        "{{ compile_text.__globals__ }}",
        "{{ (input | attr('__class__')) }}",
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "x" * 8001,
    ],
)
def test_an_expression_can_neither_escape_nor_burn_the_worker(text: str) -> None:
    started = time.process_time()
    with pytest.raises((EvaluationFailed, ExpressionInvalid)):
        compile_text(text).evaluate(NAMES)
    assert time.process_time() - started < 2


def test_a_long_chain_of_filters_compiles_in_no_time() -> None:
    began = time.process_time()
    compile_text("{{ 'a'" + "|sort" * 150 + " }}")
    assert time.process_time() - began < 0.5


def test_evaluation_changes_nothing() -> None:
    before = repr(NAMES)
    compile_text("{{ [input.items, results] }}").evaluate(NAMES)
    assert repr(NAMES) == before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("[]", 1),
        ("say: hi", 1),
        ("- say: hi\n  SECRET: 1", 2),
        ("- say: hi\n- say: '{{ input. }}'", 2),
        ("- calls:\n    - tool: a\n      args:\n        x: [{y: '{{ }}'}]", 4),
        ("- calls:\n    - tool: a\n      when: 'x {{ turn }}'", 3),
        ("- calls:\n    - tool: a\n      when: 'true'", 3),
        ("- calls:\n    - args: {}", 2),
        ("- final: {}\n  calls: [{tool: a}]", 1),
        ("- say: hi\n- delay_seconds: -1", 2),
        ("- fail: {status: 200}", 1),
        ("- fail: {status: 500, times: 0}", 1),
        ("- usage: {input_tokens: -1}", 1),
        ("- final: x\n- final: x\n  final: y", 3),
    ],
)
def test_a_fault_of_a_script_is_named_by_file_and_line(text: str, line: int) -> None:
    with pytest.raises(Refused) as caught:
        parse_script(text, "script.yaml")
    assert caught.value.code is ProblemCode.INPUT_INVALID
    assert dict(caught.value.extras) == {"file": "script.yaml", "line": line}
    assert "SECRET" not in caught.value.detail
