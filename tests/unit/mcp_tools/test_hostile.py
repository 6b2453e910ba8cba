"""An MCP server that refuses, hangs, redirects, floods or answers what is not MCP: each has a typed end, and no call is
sent twice."""

from pathlib import Path
from typing import Any

import pytest

from gateway.calls.mcp_tool import BROKEN
from gateway.calls.mcp_wire import REDIRECTS
from gateway.calls.outbound import NotSent, ReplyLost
from gateway.calls.replies import TOO_LARGE
from tests.rig.mcp_log import CALL, McpLog
from tests.unit.mcp_tools.calls import STAMP, Caller, offers, rpc_result
from workflows.contract.errors import StepCode, StepError
from workflows.contract.job import EffectClass

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.mark.parametrize("code", [-32601, -32602])
@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("write", "failed")])
async def test_a_call_that_the_server_refuses_is_a_result(
    code: int, effect: EffectClass, state: str, server: McpLog, caller: Caller
) -> None:
    offers(server, {"rpc_error": code})
    assert (await caller.call(effect)).state == state


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_another_error_of_the_protocol_is_a_lost_reply(
    effect: EffectClass, server: McpLog, caller: Caller
) -> None:
    offers(server, {"rpc_error": -32603})
    lost = await caller.failure(effect)
    assert isinstance(lost, ReplyLost)
    assert lost.reason == BROKEN


LOST: dict[str, dict[str, Any]] = {
    "redirect": {"status": 307, "headers": {"location": "/elsewhere"}},
    "redirect away": {"status": 302, "headers": {"location": "http://169.254.169.254/"}},
    "endless": {"endless": True},
    "silent": {"silent": True},
    "not json": {"body": "{"},
    "not json-rpc": {"body": '{"hello": "world"}'},
    "another id": {"body": '{"jsonrpc": "2.0", "id": 77, "result": {}}'},
    "no result": rpc_result({"content": "text"}),
    "accepted": {"status": 202},
    "wrong type": {"headers": {"content-type": "text/html"}, "body": "<html>"},
}


@pytest.mark.parametrize("hostile", LOST)
@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_hostile_answer_is_a_lost_reply_and_the_call_is_sent_once(
    hostile: str, effect: EffectClass, server: McpLog, caller: Caller
) -> None:
    server.tell({"t": {}}, {CALL: LOST[hostile]})
    lost = await caller.failure(effect, timeout_seconds=1.5)
    assert isinstance(lost, ReplyLost)
    assert (lost.reason == REDIRECTS) == hostile.startswith("redirect")
    assert len(server.came(CALL)) == 1
    assert caller.permits == (["taken"] if effect == "write" else [])
    assert not [one for one in server.came() if one.rpc in ("GET",) and "elsewhere" in str(one)]


async def test_ten_megabytes_are_not_read(server: McpLog, caller: Caller) -> None:
    server.tell({"t": {}}, {CALL: {"size": 10 << 20}})
    assert (await caller.call("read")).result == {"error": TOO_LARGE}
    assert isinstance(await caller.failure("write"), ReplyLost)


@pytest.mark.parametrize(
    ("status", "read", "write"),
    [
        (400, "error", "failed"),
        (401, "error", "failed"),
        (404, StepCode.UNAVAILABLE, "failed"),
        (429, StepCode.RATE_LIMITED, "unknown"),
        (500, StepCode.UNAVAILABLE, "unknown"),
    ],
)
async def test_a_status_of_the_call_means_what_it_means_over_http(
    status: int, read: Any, write: str, server: McpLog, caller: Caller
) -> None:
    server.tell({"t": {}}, {CALL: {"status": status, "body": "{}"}})
    if isinstance(read, StepCode):
        failure = await caller.failure("read")
        assert isinstance(failure, StepError)
        assert failure.step_code is read
    else:
        assert (await caller.call("read")).state == read
    assert (await caller.call("write")).state == write


@pytest.mark.parametrize("raw", [{"silent": True}, {"status": 500}, {"body": "{"}, LOST["redirect"]])
async def test_a_session_that_does_not_open_leaves_nothing_sent(raw: Any, server: McpLog, caller: Caller) -> None:
    exchange = await caller.kind.ready(caller.prepared("write", timeout_seconds=1.0))
    server.tell({"t": {}}, {"initialize": raw})
    with pytest.raises(NotSent):
        await exchange(STAMP, lambda: pytest.fail("a permit was taken"))
    assert server.came(CALL) == []


async def test_a_server_that_refuses_us_is_asked_once(server: McpLog, caller: Caller) -> None:
    server.tell({"t": {}}, {"initialize": {"status": 401}})
    refused = await caller.failure("write")
    assert isinstance(refused, StepError)
    assert refused.step_code is StepCode.REJECTED


async def test_nobody_there_is_a_refused_connection(caller: Caller, tmp_path: Path) -> None:
    nobody = Caller(caller.door, "http://127.0.0.1:9/mcp")
    refused = await nobody.failure()
    assert isinstance(refused, StepError)
    assert refused.step_code is StepCode.CONNECT_REFUSED


async def test_a_private_address_is_refused_without_leave(server: McpLog, caller: Caller) -> None:
    proposed = caller.proposed()
    closed = proposed.connections["tools"].model_copy(update={"allow_private": False})
    with pytest.raises(StepError, match="may not be reached"):
        await caller.kind.judge(type(proposed)(proposed.receipt, proposed.tool, proposed.args, {"tools": closed}))
    assert server.came() == []
