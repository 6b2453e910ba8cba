"""MCP tools and Python tools in real jobs: what policy and people see of them, and what a job is told of them."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from gateway.ledger.effects import list_effects
from gateway.ledger.grants import NewGrant, insert_grant
from tests.rig.doorstep import APP, DEMO, Doorstep
from tests.rig.mcp_log import CALL, McpLog
from tests.rig.plugins import ALLOW_ALL, CREDENTIAL, call, final, turn
from tests.rig.python_tools import distribution
from tests.rig.stack import SECRETS, Stack
from tests.rig.waiting import wait_until
from workflows.contract.errors import FailureCode
from workflows.contract.events import EventType
from workflows.contract.ids import JobId
from workflows.contract.job import EndRecord, Status

CANARY = SECRETS["TOOL_TOKEN"]
READS_ONLY = 'permit (principal, action, resource) when { resource.effect == "read" };'
SOURCE = """
import os

def run(arguments, context):
    if arguments.get("fail"):
        raise RuntimeError(os.environ["TOOL_TOKEN"] * 100_000)
    if arguments.get("crash"):
        os._exit(1)
    return {"key": context.idempotency_key, "token": os.environ["TOOL_TOKEN"], "n": arguments.get("n")}
"""


@dataclass
class Ground:
    stack: Stack
    doorstep: Doorstep
    mcp: McpLog

    async def run(self, *script: Any, effect: str = "read", policy: str | None = ALLOW_ALL, **fields: Any) -> EndRecord:
        """A job of one tool `t`, of kind `mcp` unless `python` names an entry point; `named`: the server's name for it,
        fresh where a listing that is still remembered would tell of another test."""
        return await self.doorstep.end(await self.start(*script, effect=effect, policy=policy, **fields))

    async def in_doubt(self, *script: Any, **fields: Any) -> EndRecord:
        """The same of a write that nobody can tell what came of."""
        return await self.doorstep.give_up(await self.start(*script, effect="write", policy=ALLOW_ALL, **fields))

    async def start(self, *script: Any, effect: str, policy: str | None, named: str = "t", **fields: Any) -> JobId:
        kind = {} if "python" in fields else {"mcp": {"connection": "kb", "tool": named}}
        tool = {"name": "t", "description": "A tool.", "effect": effect, "input_schema": {"type": "object"}}
        plugin = await self.doorstep.publish(
            script or (turn(call("t", {"n": 1})), final({"got": "{{ results['t'] | default('nothing') }}"})),
            tools=[{**tool, **kind, **fields}],
            policy=policy,
            manifest={"services": ["kb"]},
            deployment={
                "connections": {"kb": {"base_url": self.mcp.url, "allow_private": True, "credential": CREDENTIAL}}
            },
        )
        return await self.doorstep.start(plugin)

    async def result(self, record: EndRecord) -> Any:
        assert record.view.result_ref is not None, record.view.failure
        return json.loads(await self.doorstep.blobs.get(DEMO, record.view.result_ref))

    async def allow_python(self) -> None:
        new = NewGrant("grant_py", DEMO, APP, ("tools:python",), ("*",), {}, None, "operator", datetime.now(UTC))
        await self.doorstep.ledger.write(lambda conn: insert_grant(conn, new))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Ground]:
    """A stack whose worker has a distribution with Python tools on its path."""
    folder = tmp_path_factory.mktemp("kinds")
    found = distribution(folder, "rig", SOURCE)
    stack, mcp = Stack(folder / "stack", settings=found), McpLog(folder / "mcp")
    try:
        mcp.start()
        await stack.start()
        doorstep = await Doorstep.open(stack.settings)
        yield Ground(stack, doorstep, mcp)
        await doorstep.close()
    finally:
        await stack.close()
        mcp.stop()


@pytest.fixture
def ground(own: Ground) -> Ground:
    own.mcp.tell({"t": {}})
    return own


def types(record: EndRecord) -> list[EventType]:
    return [event.type for event in record.events]


def failure(record: EndRecord) -> FailureCode | None:
    return record.view.failure.code if record.view.failure else None


async def test_an_mcp_read_brings_its_result_and_no_secret(ground: Ground) -> None:
    ground.mcp.tell({"t": {"answer": {"echo_headers": True}}})
    record = await ground.run()
    said = json.dumps(await ground.result(record))
    assert "[secret]" in said
    assert CANARY not in said
    (sent,) = ground.mcp.came(CALL)
    assert sent.headers["authorization"] == f"Bearer {CANARY}"
    assert sent.headers["traceparent"].split("-")[1] == sent.meta["traceparent"].split("-")[1]


async def test_an_mcp_write_is_sent_once_under_its_permit(ground: Ground) -> None:
    record = await ground.run(effect="write")
    assert await ground.result(record) == {"got": {"text": "done"}}
    (sent,) = ground.mcp.came(CALL)
    job = JobId(sent.meta["Jobgate-Job"])
    (row,) = await ground.doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, job))
    assert (row.state, row.effect_id, str(row.epoch)) == (
        "confirmed",
        sent.headers["idempotency-key"],
        sent.headers["jobgate-epoch"],
    )


async def test_a_read_that_the_server_calls_a_write_is_judged_as_one(ground: Ground) -> None:
    ground.mcp.tell(
        {"changes": {"annotations": {"readOnlyHint": False}}, "looks": {"annotations": {"readOnlyHint": True}}}
    )
    record = await ground.run(policy=READS_ONLY, named="changes")
    assert await ground.result(record) == {"got": "nothing"}
    assert EventType.TOOL_REFUSED in types(record)
    assert ground.mcp.came(CALL) == []
    assert await ground.result(await ground.run(policy=READS_ONLY, named="looks")) == {"got": {"text": "done"}}
    assert len(ground.mcp.came(CALL)) == 1


async def test_people_are_asked_about_a_read_that_was_raised(ground: Ground) -> None:
    ground.mcp.tell({"sends": {"annotations": {"readOnlyHint": False}}})
    job = await ground.start(effect="read", policy=None, named="sends")

    async def waiting() -> bool:
        execution = await ground.doorstep.engine.describe(DEMO, job)
        return (
            execution is not None
            and execution.recorded is not None
            and (execution.recorded.view.status is Status.WAITING_FOR_HUMAN)
        )

    await wait_until(waiting, 30)
    assert ground.mcp.came(CALL) == []
    await ground.doorstep.engine.cancel(DEMO, job)
    await ground.doorstep.end(job)


async def test_a_raised_read_runs_as_a_write(ground: Ground) -> None:
    ground.mcp.tell({"destroys": {"annotations": {"destructiveHint": True}}})
    record = await ground.run(named="destroys")
    assert await ground.result(record) == {"got": {"text": "done"}}
    (started,) = [event for event in record.events if event.type is EventType.TOOL_STARTED]
    assert started.data["effect"] == "write"
    (sent,) = ground.mcp.came(CALL)
    assert sent.headers["idempotency-key"] == started.data["effect_id"]


async def test_a_lost_reply_of_a_write_is_unknown_and_not_repeated(ground: Ground) -> None:
    ground.mcp.tell({"t": {}}, {CALL: {"body": "{"}})
    record = await ground.in_doubt()
    assert failure(record) is FailureCode.EFFECT_UNKNOWN
    assert len(ground.mcp.came(CALL)) == 1


async def test_a_read_is_tried_again(ground: Ground) -> None:
    ground.mcp.tell({"t": {}}, {CALL: {"status": 503}})
    record = await ground.run()
    assert failure(record) is FailureCode.TOOL_FAILED
    assert len(ground.mcp.came(CALL)) == 4


@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("write", "ok")])
async def test_a_result_must_fit_what_the_plugin_says(effect: str, state: str, ground: Ground) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "integer"}}}
    record = await ground.run(effect=effect, output_schema=schema)
    (finished,) = [event for event in record.events if event.type is EventType.TOOL_FINISHED]
    assert finished.data["outcome"] == state
    assert (await ground.result(record))["got"] == {
        "error": "Its result does not fit the tool's output_schema.",
        "reasons": ["at /text: must be integer"],
    }


async def test_a_python_tool_needs_a_grant_of_its_own_and_then_runs(ground: Ground) -> None:
    refused = await ground.run(python="rig")
    (event,) = [event for event in refused.events if event.type is EventType.TOOL_REFUSED]
    assert "tools:python" in event.data["reason"]
    await ground.allow_python()
    record = await ground.run(python="rig", effect="write")
    (started,) = [event for event in record.events if event.type is EventType.TOOL_STARTED]
    got = (await ground.result(record))["got"]
    assert got == {"key": started.data["effect_id"], "token": "[secret]", "n": 1}


async def test_what_a_python_tool_raises_stays_in_the_worker(ground: Ground) -> None:
    await ground.allow_python()
    fails = turn(call("t", {"fail": True})), final({"got": "{{ results['t'] }}"})
    record = await ground.run(*fails, python="rig")
    assert await ground.result(record) == {"got": {"error": "The Python tool raised an error."}}
    assert failure(await ground.in_doubt(*fails, python="rig")) is FailureCode.EFFECT_UNKNOWN
    logs = "".join(worker.output for worker in ground.stack.workers)
    assert "python tool raised" in logs
    assert CANARY not in logs


async def test_an_unknown_python_tool_is_refused_to_the_model(ground: Ground) -> None:
    await ground.allow_python()
    record = await ground.run(python="made.up")
    (event,) = [event for event in record.events if event.type is EventType.TOOL_REFUSED]
    assert event.data["reason"] == "There is no Python tool of this name."


async def test_a_python_write_that_kills_its_worker_is_unknown(ground: Ground) -> None:
    await ground.allow_python()
    crash = turn(call("t", {"crash": True})), final()
    job = await ground.start(*crash, effect="write", policy=ALLOW_ALL, python="rig")
    (worker,) = ground.stack.workers
    worker.wait(60)
    worker.start()
    await ground.stack.until_polling(worker)
    assert failure(await ground.doorstep.give_up(job)) is FailureCode.EFFECT_UNKNOWN
