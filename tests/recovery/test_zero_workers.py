"""Status is true with zero workers: every field but the events equals the last answer that a worker helped to give."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, published, running_stack
from tests.rig.client import Client
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("zero")) as stack:
        yield stack


COMPARED_NOT = frozenset({"events", "as_of", "source", "next_cursor", "has_more"})
"""What tells of the answer itself, not of the job."""


async def told(app: Client, job: str, **asked: Any) -> dict[str, Any]:
    view = await app.status(job, **asked)
    return {name: value for name, value in view.items() if name not in COMPARED_NOT}


def terminate_by_cli(stack: Stack, job: str) -> None:
    temporal = Path(sys.executable).with_name("temporal")
    where = ["--address", stack.address, "--namespace", stack.settings.namespace, "--workflow-id", f"demo.{job}"]
    subprocess.run([temporal, "workflow", "terminate", *where, "--reason", "operator's words"], check=True)


async def jobs_in_every_state(stack: Stack) -> dict[str, str]:
    """Running in a read, running in a write, waiting, and ended in each way but by the engine's clock."""
    app = stack.client()
    for name in ("reading", "writing"):
        stack.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    asked = [turn(call("paid-later")), final()]
    plugins = {
        "reading": await published(stack, [turn(call("reading"), say="Looking."), final()], tool("reading")),
        "writing": await published(stack, [turn(call("writing")), final()], tool("writing", "write")),
        "waiting": await published(stack, asked, tool("paid-later", "write"), policy=READS_RUN_WRITES_ASK),
        "succeeded": await published(stack, [final({"sum": 3})]),
        "failed": await published(stack, [final(fail={"status": 400, "times": 9})]),
        "thinking": await published(stack, [final(delay_seconds=50)]),
    }
    states = {state: await app.accepted(plugin, labels={"state": state}) for state, plugin in plugins.items()}
    for state in ("canceled", "terminated"):
        states[state] = await app.accepted(plugins["waiting"])
    states["terminated-reading"] = await app.accepted(plugins["reading"])
    for state in ("waiting", "canceled", "terminated"):
        await app.until_request(states[state], BUSY_S)
    await stack.effects.wait_for_calls("reading", 2, BUSY_S)
    await stack.effects.wait_for_calls("writing", 1, BUSY_S)
    await app.cancel(states["canceled"])
    for state in ("terminated", "terminated-reading"):
        terminate_by_cli(stack, states[state])
    for state in ("canceled", "terminated", "terminated-reading", "succeeded", "failed"):
        await app.until_ended(states[state], BUSY_S)
    return states


async def test_every_field_is_the_same_after_the_worker_is_gone(ground: Stack) -> None:
    app = ground.client()
    states = await jobs_in_every_state(ground)

    async def beaten() -> bool:
        views = [await app.status(states[state]) for state in ("reading", "writing", "thinking")]
        return all(view["last_event"]["type"] in ("tool.started", "step.started") for view in views)

    await wait_until(beaten, BUSY_S, what="the running steps are seen")
    live = {state: await told(app, job, after="0") for state, job in states.items()}
    sources = {state: (await app.status(job, after="0"))["source"] for state, job in states.items()}
    assert {sources[state] for state in ("reading", "writing", "thinking", "waiting")} == {"live"}
    kill_workers(ground)
    at_once = {state: await told(app, job) for state, job in states.items()}
    assert differing(live, at_once) == {}
    # Even when the engine has given the dead worker's steps up, and nobody is there to hear of it.
    await wait_until(no_step_pending(ground, states), 60, every=0.2, what="the steps are given up")
    assert differing(live, {state: await told(app, job) for state, job in states.items()}) == {}
    assert differing(live, {state: await told(app, job, after="0") for state, job in states.items()}) == {}


def differing(live: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """State and field -> (live, recorded), where they differ."""
    return {
        f"{state}.{field}": (value, recorded[state][field])
        for state, fields in live.items()
        for field, value in fields.items()
        if json.dumps(value) != json.dumps(recorded[state][field])
    }


def no_step_pending(stack: Stack, states: dict[str, str]) -> Callable[[], Any]:
    async def given_up() -> bool:
        engine = await stack.engine()
        open_steps = 0
        for state in ("reading", "writing", "thinking"):
            described = await engine.get_workflow_handle(f"demo.{states[state]}").describe()
            open_steps += len(described.raw_description.pending_activities)
        return open_steps == 0

    return given_up
