"""What leaves for an MCP server, when, and what is made of what it answers."""

import json
from typing import Any

import pytest
from mcp_types import ToolAnnotations

from gateway.calls.mcp_tool import NOT_OFFERED, NOT_TEXT, RAISED, raised
from gateway.calls.outbound import ReplyLost
from gateway.calls.replies import MAX_RESULT_BYTES, TOO_LARGE
from tests.rig.mcp_log import CALL, McpLog
from tests.unit.mcp_tools.calls import CANARY, STAMP, TEXT, Caller, offers, rpc_result
from workflows.contract.errors import StepCode, StepError
from workflows.contract.job import EffectClass

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


# ---- what leaves


async def test_a_write_carries_its_marks_as_headers_and_in_meta_on_the_call_alone(
    server: McpLog, caller: Caller
) -> None:
    await caller.call("write")
    (sent,) = server.came(CALL)
    marks = {"jobgate-job": "k-1", "idempotency-key": STAMP.effect_id, "jobgate-epoch": "3"}
    assert {name: sent.headers[name] for name in marks} == marks
    assert {name.lower(): value for name, value in sent.meta.items()} == marks
    assert sent.args == {"n": 1}
    others = [one for one in server.came() if one.rpc != CALL]
    assert {one.rpc for one in others} >= {"initialize", "notifications/initialized", "tools/list"}
    assert all("idempotency-key" not in one.headers for one in others)
    assert all(one.headers["jobgate-job"] == "k-1" for one in others)
    assert all(one.headers["authorization"] == f"Bearer {CANARY}" for one in server.came())


async def test_a_read_carries_no_effect(server: McpLog, caller: Caller) -> None:
    await caller.call("read")
    (sent,) = server.came(CALL)
    assert "idempotency-key" not in sent.headers
    assert dict(sent.meta) == {"Jobgate-Job": "k-1"}


async def test_the_permit_is_taken_when_only_the_call_is_left_to_send(server: McpLog, caller: Caller) -> None:
    seen: list[list[str]] = []

    async def permit() -> None:
        seen.append([one.rpc for one in server.came()])

    await caller.call("write", permit)
    (before,) = seen
    assert before.count("initialize") == 2  # the listing's session and the call's
    assert CALL not in before
    assert len(server.came(CALL)) == 1


async def test_a_permit_that_is_refused_sends_nothing(server: McpLog, caller: Caller) -> None:
    refusal = StepError(StepCode.STOPPED, "The job is being canceled; nothing was sent.")

    async def permit() -> None:
        raise refusal

    with pytest.raises(StepError) as raised_error:
        await caller.call("write", permit)
    assert raised_error.value is refusal
    assert server.came(CALL) == []
    await caller.call("write")
    assert len(server.came(CALL)) == 1


async def test_the_server_is_told_that_the_session_is_over(server: McpLog, caller: Caller) -> None:
    await caller.call("read")
    assert await server.wait_for("DELETE", 2)


# ---- annotations


@pytest.mark.parametrize(
    ("declared", "hints", "effect"),
    [
        ("read", None, "read"),
        ("read", {}, "read"),
        ("read", {"readOnlyHint": True}, "read"),
        ("read", {"idempotentHint": False}, "read"),
        ("read", {"readOnlyHint": False}, "write"),
        ("read", {"destructiveHint": True}, "write"),
        ("read", {"readOnlyHint": True, "destructiveHint": True}, "write"),
        ("read", {"readOnlyHint": False, "idempotentHint": True}, "idempotent_write"),
        ("read", {"readOnlyHint": False, "destructiveHint": False}, "write"),
        ("idempotent_write", {"readOnlyHint": True}, "idempotent_write"),
        ("idempotent_write", {"readOnlyHint": False}, "idempotent_write"),
        ("idempotent_write", {"readOnlyHint": False, "idempotentHint": False}, "write"),
        ("write", {"readOnlyHint": True, "idempotentHint": True}, "write"),
    ],
)
async def test_annotations_only_raise(
    declared: EffectClass, hints: Any, effect: EffectClass, server: McpLog, caller: Caller
) -> None:
    assert raised(declared, None if hints is None else ToolAnnotations.model_validate(hints)) == effect
    offers(server, **({} if hints is None else {"annotations": hints}))
    assert await caller.kind.judge(caller.proposed(declared)) == effect


async def test_an_effect_raised_since_the_plan_is_refused_and_nothing_is_sent(server: McpLog, caller: Caller) -> None:
    assert await caller.kind.judge(caller.proposed("read")) == "read"
    offers(server, annotations={"readOnlyHint": False})
    refused = await caller.failure("read")
    assert isinstance(refused, StepError)
    assert (refused.step_code, refused.detail) == (StepCode.REJECTED, RAISED)
    assert server.came(CALL) == []
    await caller.call("write", declared="read")
    assert len(server.came(CALL)) == 1


async def test_a_listing_is_asked_for_once_while_it_is_fresh(server: McpLog, caller: Caller) -> None:
    fresh = Caller(caller.door, caller.url, fresh_s=600)
    await fresh.kind.judge(fresh.proposed())
    await fresh.call()
    assert len(server.came("tools/list")) == 1


async def test_a_tool_that_the_server_does_not_offer_is_refused(server: McpLog, caller: Caller) -> None:
    server.tell({"other": {}})
    refused = await caller.failure()
    assert isinstance(refused, StepError)
    assert (refused.step_code, refused.detail) == (StepCode.REJECTED, NOT_OFFERED)


# ---- results


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (TEXT, {"text": "done"}),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"text": "a\nb"}),
        ({**TEXT, "structuredContent": {"n": [1, None]}}, {"n": [1, None]}),
        ({"content": []}, {"text": ""}),
        ({"content": [{"type": "text", "text": "\u202ebell\u0007"}]}, {"text": "\u202ebell\ufffd"}),
    ],
)
@pytest.mark.parametrize(("effect", "state"), [("read", "ok"), ("idempotent_write", "ok"), ("write", "confirmed")])
async def test_a_result_is_its_structured_content_or_its_text(
    answer: Any, result: Any, effect: EffectClass, state: str, server: McpLog, caller: Caller
) -> None:
    offers(server, answer)
    outcome = await caller.call(effect)
    assert (outcome.state, outcome.result) == (state, result)


@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("idempotent_write", "error"), ("write", "failed")])
async def test_an_error_of_the_tool_is_a_result(
    effect: EffectClass, state: str, server: McpLog, caller: Caller
) -> None:
    offers(server, {"content": [{"type": "text", "text": "no such invoice"}], "isError": True})
    outcome = await caller.call(effect)
    assert (outcome.state, outcome.result) == (state, {"error": "no such invoice"})


@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("write", "confirmed")])
async def test_what_is_neither_text_nor_json_is_not_kept(
    effect: EffectClass, state: str, server: McpLog, caller: Caller
) -> None:
    offers(server, {"content": [*TEXT["content"], IMAGE]})
    outcome = await caller.call(effect)
    assert (outcome.state, outcome.result, outcome.message) == (state, {"error": NOT_TEXT}, NOT_TEXT)


async def test_a_long_text_is_cut_and_a_large_value_is_not_kept(server: McpLog, caller: Caller) -> None:
    offers(server, {"content": [{"type": "text", "text": "x" * 900_000}]})
    assert len(json.dumps((await caller.call()).result)) < 20_000
    offers(server, {"content": [], "structuredContent": {"x": "x" * MAX_RESULT_BYTES}})
    outcome = await caller.call()
    assert (outcome.state, outcome.result) == ("error", {"error": TOO_LARGE})


@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("write", "confirmed")])
@pytest.mark.parametrize("structured", [{"structuredContent": {"n": "CANARY"}}, {}])
async def test_a_result_that_does_not_fit_the_servers_schema_is_told_without_values(
    effect: EffectClass, state: str, structured: Any, server: McpLog, caller: Caller
) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }
    server.tell({"t": {"outputSchema": schema}}, {CALL: rpc_result({**TEXT, **structured})})
    outcome = await caller.call(effect)
    assert outcome.state == state
    assert "does not fit" in json.dumps(outcome.result)
    assert "CANARY" not in json.dumps(outcome.result)


# ---- secrets


@pytest.mark.parametrize("failed", [False, True])
async def test_a_credential_that_comes_back_is_masked(failed: bool, server: McpLog, caller: Caller) -> None:
    offers(server, {"echo_headers": True, "isError": failed})
    outcome = await caller.call()
    said = json.dumps(outcome.result)
    assert "authorization" in said
    assert CANARY not in said


async def test_a_credential_in_an_error_of_the_protocol_is_masked(server: McpLog, caller: Caller) -> None:
    offers(server, {"rpc_error": -32602, "message": f"bad token {CANARY}"})
    outcome = await caller.call()
    assert (outcome.state, outcome.result) == ("error", {"error": "bad token [secret]"})


async def test_the_sdk_logs_nothing_that_a_server_says(
    server: McpLog, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    server.tell({"t": {}}, {CALL: {"body": f"not json: {CANARY}"}})
    assert isinstance(await caller.failure(), ReplyLost)
    assert CANARY not in caplog.text
