"""Cedar verdicts: what runs, what asks, what is refused, and which policies are never published."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cedar import (
    ASK,
    DENIED,
    RESERVED,
    RUN,
    UNDECIDED,
    UNKNOWN_TOOL,
    Policy,
    PolicyInvalid,
    Verdict,
    compile_policy,
)
from workflows.contract.ids import PrincipalId, ToolName, Workspace
from workflows.contract.job import EffectClass

GET, FIND, CREATE = ToolName("invoices.get"), ToolName("refunds.find"), ToolName("refunds.create")
TOOLS: dict[ToolName, EffectClass] = {GET: "read", FIND: "idempotent_write", CREATE: "write"}
POLICY = """\
permit (principal, action in [Action::"call", Action::"call_unattended"], resource) when { resource.effect == "read" };
permit (principal, action == Action::"call", resource == Tool::"refunds.create")
when { context.args has amount_cents && context.args.amount_cents > 0 && context.args.amount_cents <= 500000 };
permit (principal, action == Action::"call_unattended", resource == Tool::"refunds.create")
when { context.args has amount_cents && context.args.amount_cents <= 100 };
"""
PERMIT = "permit (principal, action, resource)"


def judge(policy: Policy, tool: ToolName, args: dict[str, Any], *, workspace: str = "demo") -> Verdict:
    return policy.evaluate(PrincipalId("app"), Workspace(workspace), tool, TOOLS[tool], args)


def verdict(text: str, args: dict[str, Any]) -> Verdict:
    return judge(compile_policy(text, TOOLS), CREATE, args)


def test_without_a_policy_reads_run_and_writes_ask() -> None:
    policy = compile_policy(None, TOOLS)
    assert [judge(policy, tool, {}) for tool in TOOLS] == [RUN, ASK, ASK]
    assert judge(policy, GET, {"__entity": 1}) == RESERVED


def test_an_empty_policy_allows_nothing() -> None:
    assert judge(compile_policy("", TOOLS), GET, {}) == DENIED


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, DENIED),
        ({"amount_cents": 0}, DENIED),
        ({"amount_cents": 1}, RUN),
        ({"amount_cents": 100.0}, RUN),
        ({"amount_cents": 101}, ASK),
        ({"amount_cents": 500_001}, DENIED),
        ({"amount_cents": None}, DENIED),
        ({"amount_cents": 99.5}, UNDECIDED),
        ({"amount_cents": "50"}, UNDECIDED),
        ({"amount_cents": True}, UNDECIDED),
    ],
)
def test_the_contracts_example_decides_as_written(args: dict[str, Any], expected: Verdict) -> None:
    assert judge(compile_policy(POLICY, TOOLS), CREATE, args) == expected


def test_a_forbid_that_errors_refuses_although_cedar_skips_it() -> None:
    assert verdict(f"{PERMIT}; forbid (principal, action, resource) when {{ context.args.x == 1 }};", {}) == UNDECIDED


def test_an_error_in_the_unattended_step_alone_refuses_too() -> None:
    text = f'{PERMIT}; permit (principal, action == Action::"call_unattended", resource) when {{ context.args.x > 1 }};'
    assert verdict(text, {}) == UNDECIDED


def test_call_unattended_without_call_is_refused() -> None:
    assert verdict('permit (principal, action == Action::"call_unattended", resource);', {}) == DENIED


def test_principal_and_workspace_are_what_the_gateway_says() -> None:
    policy = compile_policy(
        'permit (principal == Principal::"app", action, resource) when { principal.workspace == "demo" };', TOOLS
    )
    assert judge(policy, CREATE, {}) == RUN
    assert judge(policy, CREATE, {}, workspace="other") == DENIED


@pytest.mark.parametrize("key", ["__entity", "__extn", "__expr"])
def test_reserved_keys_refuse_at_any_depth(key: str) -> None:
    assert verdict(f"{PERMIT};", {"a": [{"b": {key: {"type": "Action", "id": "call"}}}]}) == RESERVED


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1e300, float("nan"), float("inf"), "\ud800", {"\ud800": 1}])
def test_values_that_cedar_can_not_hold_refuse(value: Any) -> None:
    assert verdict(f"{PERMIT};", {"a": [{"b": value}]}) == UNDECIDED


def test_deep_arguments_refuse() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert verdict(f"{PERMIT};", {"a": deep}) == UNDECIDED


def test_nulls_are_dropped_and_floats_become_integers_or_text() -> None:
    text = f"""{PERMIT} when {{
        !(context.args has gone) && !(context.args.a has gone) && context.args.list == [1] && context.args.whole == 2
        && context.args.zero == 0 && context.args.part == "2.5" && context.args.tiny == "1e-7"
    }};"""
    args = {"gone": None, "a": {"gone": None}, "list": [None, 1], "whole": 2.0, "zero": -0.0, "part": 2.5, "tiny": 1e-7}
    assert verdict(text, args) == RUN


def test_a_tool_or_effect_that_the_policy_was_not_made_for_is_refused() -> None:
    policy = compile_policy(f"{PERMIT};", TOOLS)
    assert policy.evaluate(PrincipalId("app"), Workspace("demo"), ToolName("other"), "read", {}) == UNKNOWN_TOOL
    assert policy.evaluate(PrincipalId("app"), Workspace("demo"), CREATE, "read", {}) == UNKNOWN_TOOL


def test_a_hostile_principal_name_is_only_a_name() -> None:
    policy = compile_policy('permit (principal == Principal::"app", action, resource);', TOOLS)
    hostile = PrincipalId('app" , action, resource); //\n\\')
    assert policy.evaluate(hostile, Workspace("demo"), CREATE, "write", {}) == DENIED


def test_equal_policies_are_compiled_once_and_serve_every_thread() -> None:
    policy = compile_policy(POLICY, TOOLS)
    assert compile_policy(POLICY, dict(reversed(TOOLS.items()))) is policy
    seen: list[Verdict] = []
    thread = threading.Thread(target=lambda: seen.append(judge(policy, GET, {})))
    thread.start()
    thread.join()
    assert seen == [RUN]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f"{PERMIT};\npermit (principal, action,, resource);", 2, "unexpected token"),
        (f"{PERMIT};\n\n{PERMIT}\n", 3, "unexpected end of input"),
        (f"{PERMIT};\n{PERMIT} when {{\n foo }};", 3, "invalid variable"),
        (f"{PERMIT} when {{\n context.args.a == 1.5 }};", 2, "unexpected token"),
        (f"{PERMIT} when {{\n\n context.args.a == 99999999999999999999 }};", 3, "integer parse error"),
        (f'{PERMIT} when {{\n "never closed }};', 2, "invalid token"),
        (f"// fine;\n{PERMIT};\n@@", 3, "unexpected token"),
        (f'{PERMIT};\npermit (principal, action == Tool::"x", resource);', 2, "expected an entity uid"),
        (f'// Tool::"none"\n{PERMIT}\nwhen {{ resource ==\n Tool :: "none" }};', 4, "unknown tool"),
        ('permit (principal,\naction == Action::"run", resource);', 2, "unknown action"),
        ('permit (principal in\nGroup::"finance", action, resource);', 2, "unknown entity type"),
        (f"{PERMIT} when {{\nprincipal is User }};", 2, "unknown entity type"),
        (f"{PERMIT} when {{\nresource is Shop::Tool }};", 2, "unknown entity type"),
        ('permit (principal, action, resource == Shop::Tool::"refunds.create");', 1, "unknown entity type"),
        ("permit (principal == ?principal, action, resource);", 1, "template"),
        (f"{PERMIT} when {{\n{'(' * 1000}true{')' * 1000} }};", 2, "nested deeper"),
        (f"{PERMIT};\n{PERMIT} when {{ {'true && ' * 3000}true }};", 2, "words and signs"),
        (f'{PERMIT} when {{ "\ud800" == "" }};', 1, "invalid token"),
    ],
)
def test_a_policy_that_can_not_be_published_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(PolicyInvalid) as invalid:
        compile_policy(text, TOOLS)
    assert invalid.value.line == line
    assert reason in invalid.value.reason


def test_text_and_comments_that_look_like_names_are_no_names() -> None:
    compile_policy(f'// Tool::"x"\n{PERMIT} when {{ context.args.a == "Tool::\\"x\\"" || resource is Tool }};', TOOLS)


def test_the_largest_policies_that_are_let_through_do_not_end_the_process() -> None:
    brackets = f"{PERMIT} when {{ {'(' * 60}true{')' * 60} }};"
    assert verdict(brackets, {}) == RUN
    assert verdict(f"{PERMIT} when {{ {'true && ' * 1990}true }};", {}) == RUN


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_no_arguments_get_past_a_forbid(args: dict[str, Any]) -> None:
    text = f"{PERMIT}; forbid (principal, action, resource) when {{ context.args has blocked }};"
    got = verdict(text, args | {"blocked": 0})
    assert got.verdict == "refuse"
    assert verdict(text, args).verdict in ("run", "refuse")


@given(st.text(max_size=200) | st.lists(st.sampled_from(POLICY.split()), max_size=40).map(" ".join))
def test_every_text_is_compiled_or_refused_with_a_line_of_its_own(text: str) -> None:
    lines = 1
    try:
        compile_policy(text, TOOLS)
    except PolicyInvalid as invalid:
        lines = invalid.line
    assert 1 <= lines <= text.count("\n") + 1
