"""Whatever is too large, be it said by a tool, a model or a person, is a typed outcome; what readers poll stays small.

Source: cases.md B40. Bodies of submissions: test_bodies.py; results that are artifacts: test_artifacts.py; what Python
and MCP tools raise or stream: test_tool_kinds.py and tests/unit/test_egress.py.
"""

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import pytest_asyncio

from activities.history import CUT_NOTE
from gateway.conversation import EARLIER
from gateway.ledger.effects import list_effects
from tests.rig.client import Client, Json
from tests.rig.doorstep import DEMO, Doorstep, Published
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.model_server import Completion, Failure, ModelServer, ToolCall
from tests.rig.plugins import ALLOW_ALL, call, final, tool, turn
from tests.rig.stack import SECRETS, Stack
from workflows.contract.ids import JobId, workflow_id

LARGE = 3_000_000
SMALL_ANSWER, SMALL_HISTORY = 8_000, 5_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as server:
        yield server


async def ended_small(doorstep: Doorstep, app: Client, job: JobId) -> Json:
    """The view of the job at its end, after judging what readers and the engine had to take of it."""
    view = await app.until_ended(job, 120)
    events = await app.events(job)
    assert len(json.dumps(view)) < SMALL_ANSWER
    assert max(len(json.dumps(event)) for event in events) < SMALL_ANSWER
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    async for run in doorstep.client.list_workflows(f"WorkflowId = '{workflow_id(DEMO, job)}'"):
        of = doorstep.client.get_workflow_handle(run.id, run_id=run.run_id)
        assert (await of.describe()).raw_description.workflow_execution_info.history_size_bytes < SMALL_HISTORY
    return view


async def told(doorstep: Doorstep, app: Client, job: JobId) -> Any:
    return (await ended_small(doorstep, app, job))["result"]


async def thinking(doorstep: Doorstep, stack: Stack, model: ModelServer, **fields: Any) -> Published:
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    return await doorstep.publish(
        [final()],
        tools=[tool("look"), tool("note", "idempotent_write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
        deployment={"model": "openai-chat:test-model", "model_connection": connection},
        **fields,
    )


async def test_three_megabytes_from_tools_are_a_typed_result(stack: Stack, doorstep: Doorstep, app: Client) -> None:
    kinds = [(effect, status) for effect in ("read", "write") for status in (200, 400)]
    names = [f"large-{effect}-{status}" for effect, status in kinds]
    for name, (_, status) in zip(names, kinds, strict=True):
        stack.effects.set_behaviour(name, Behaviour(Answer.OVERSIZE, status=status, size=LARGE))
    plugin = await doorstep.publish(
        [turn(*map(call, names)), final({name: f"{{{{ results['{name}'] }}}}" for name in names})],
        tools=[tool(name, effect) for name, (effect, _) in zip(names, kinds, strict=True)],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
    )
    job = await doorstep.start(plugin)
    result = await told(doorstep, app, job)
    assert {json.dumps(result[name]) for name in names} == {
        '{"error": "The tool\'s answer is larger than 1 MiB and was not kept."}'
    }
    effects = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, job))
    assert [effect.state for effect in effects] == ["confirmed", "failed"]
    assert all(len(stack.effects.calls(name, job=job)) == 1 for name in names)


async def test_three_megabytes_of_error_text_leave_a_write_in_doubt_and_nothing_else(
    stack: Stack, doorstep: Doorstep, app: Client, approver: Client
) -> None:
    stack.effects.set_behaviour("large-500", Behaviour(Answer.OVERSIZE, status=500, size=LARGE))
    plugin = await doorstep.publish(
        [turn(call("large-500")), final()],
        tools=[tool("large-500", "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
    )
    job = await doorstep.start(plugin)
    await app.give_up(job, approver)
    assert (await ended_small(doorstep, app, job))["failure"]["code"] == "effect_unknown"


async def test_three_megabytes_from_a_model_are_kept_apart_from_history_and_polls(
    stack: Stack, doorstep: Doorstep, app: Client, model: ModelServer
) -> None:
    pad = "x" * LARGE
    model.script(Completion(text=pad, calls=[ToolCall("note", {"pad": pad})]), Completion(text="Done."))
    job = await doorstep.start(await thinking(doorstep, stack, model))
    assert await told(doorstep, app, job) == {"message": "Done."}
    [noted] = stack.effects.calls("note", job=job)
    assert noted.args == {"pad": pad}
    model.script(Failure(400, message=pad))
    job = await doorstep.start(await thinking(doorstep, stack, model))
    assert (await ended_small(doorstep, app, job))["failure"]["code"] == "model_failed"


async def test_more_calls_than_a_turn_may_have_are_a_typed_failure(
    stack: Stack, doorstep: Doorstep, app: Client, model: ModelServer
) -> None:
    model.script(Completion(calls=[ToolCall("look", {})] * 101))
    job = await doorstep.start(await thinking(doorstep, stack, model))
    failure = (await ended_small(doorstep, app, job))["failure"]
    assert failure["code"] == "model_failed"
    assert "100 calls" in failure["message"]
    assert stack.effects.calls("look", job=job) == []


@pytest.mark.parametrize("turns", [2, pytest.param(10, marks=pytest.mark.slow)])
async def test_hundreds_of_results_of_a_hundred_kilobytes_leave_polls_small(
    stack: Stack, doorstep: Doorstep, app: Client, turns: int
) -> None:
    stack.effects.set_behaviour("bulky", Behaviour(Answer.OVERSIZE, size=100_000))
    reads = [call("bulky", {"n": n}) for n in range(100)]
    plugin = await doorstep.publish(
        [*[turn(*reads)] * turns, final({"length": "{{ results['bulky'].filler | length }}"})],
        tools=[tool("bulky")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
        manifest={"limits": {"max_steps": 2000}},
    )
    job = await doorstep.start(plugin, timeout_s=300)
    assert await told(doorstep, app, job) == {"length": 100_000}
    assert len(stack.effects.calls("bulky", job=job)) == turns * 100


async def test_a_model_is_shown_what_fits_of_a_conversation_that_does_not(
    stack: Stack, doorstep: Doorstep, app: Client, model: ModelServer
) -> None:
    """Of each turn and of all turns; its input always, and the newest turn."""
    stack.effects.set_behaviour("look", Behaviour(Answer.OVERSIZE, size=100_000))
    looks = [ToolCall("look", {"n": n}) for n in range(20)]
    said = [Completion(text=f"Turn {number}.", calls=looks) for number in range(1, 6)]
    model.script(*said, Completion(text="Done."))
    job = await doorstep.start(await thinking(doorstep, stack, model), {"item": "apples"}, timeout_s=120)
    assert await told(doorstep, app, job) == {"message": "Done."}
    sizes = [len(json.dumps(asked.body)) for asked in model.requests]
    assert sizes == sorted(sizes[:3]) + sizes[3:]
    assert max(sizes) < 700_000
    last = model.requests[-1].messages
    assert json.loads(last[1]["content"]) == {"item": "apples"}
    assert last[2]["content"] == EARLIER
    assert [message["content"] for message in last if message["role"] == "assistant"][-1] == "Turn 5."
    returned = [message["content"] for message in last if message["role"] == "tool"]
    assert len(returned) % 20 == 0
    assert all(text.endswith(CUT_NOTE) for text in returned)
    assert EARLIER not in json.dumps(model.requests[1].messages)
