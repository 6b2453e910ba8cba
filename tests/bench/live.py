"""How soon people see and are obeyed: an event at the stream's client, a decision at the tool.

All clocks are this machine's. An event's `at` is the workflow's own time, which is when its workflow task began.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from statistics import median

from tests.bench.admission import start_bare
from tests.bench.caller import Caller
from tests.bench.contents import BARE_QUEUE, BARE_SIGNALED
from tests.bench.figures import Figure, Round, Target
from tests.bench.jobs import bare_worker
from tests.bench.stage import INPUT, WRITE, Bench, publish_asking
from tests.rig.client import StreamEvent
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack

QUIET_S = 0.4
"""Between two held calls: what came before them has reached the stream, and its watcher waits for news."""


async def measure_events(bench: Bench) -> list[Figure]:
    """One job per round: each of its calls is held at the effect log, released, and its `tool.finished` awaited."""
    turns = bench.size(20)
    tools = [f"held.{number}" for number in range(turns)]
    delays: list[Round] = []
    whole: list[Round] = []
    async with bench.stack(workers=1) as stack:
        script = [*[turn(call(name)) for name in tools], final()]
        limits = {"max_steps": 4 * turns}
        rows = [tool(name) for name in tools]
        operator = stack.client("operator")
        await publish_plugin(operator, "held", script, tools=rows, tools_url=stack.effects.url, limits=limits)
        for number in range(bench.rounds):
            seen, released = await _watched(stack, tools)
            delays.append(Round(median(seen)))
            whole.append(Round(median(released)))
            shown = f"{delays[-1].ours:.1f} ms after the event, {whole[-1].ours:.1f} ms after the tool's answer"
            bench.say(f"event to stream: round {number + 1} of {bench.rounds}: {shown}")
    return [
        Figure("event to stream client", "ms", tuple(delays), Target("ours", "at most", 50)),
        Figure("tool's answer to stream client", "ms", tuple(whole)),
    ]


async def _watched(stack: Stack, tools: list[str]) -> tuple[list[float], list[float]]:
    """Milliseconds from each `tool.finished` event's `at`, and from each release, to its arrival in the stream."""
    for name in tools:
        stack.effects.set_behaviour(name, Behaviour(Answer.HOLD, times=1))
    job = await stack.client("app").accepted("held")
    since_event: list[float] = []
    since_release: list[float] = []
    async with stack.client("app").stream(job, after="0") as events:
        for name in tools:
            await stack.effects.wait_for_calls(name, job=job)
            await asyncio.sleep(QUIET_S)
            released = datetime.now(UTC)
            await asyncio.to_thread(stack.effects.release, name)
            event = await _next(events, "tool.finished", name)
            arrived = datetime.now(UTC)
            since_event.append((arrived - datetime.fromisoformat(event)).total_seconds() * 1000)
            since_release.append((arrived - released).total_seconds() * 1000)
    return since_event, since_release


async def _next(events: AsyncIterator[StreamEvent], type: str, name: str) -> str:
    """The `at` of the next event of this type that is about this tool."""
    async for frame in events:
        if frame.type == type and frame.event["data"]["tool"] == name:
            return frame.event["at"]
    raise AssertionError(f"the stream ended before {type} of {name}")


async def measure_decisions(bench: Bench) -> list[Figure]:
    """From POST decision to the tool call's arrival, against a bare signal to its workflow's result; jobs in a row."""
    count = bench.size(20)
    async with bench.stack(workers=1) as stack, bare_worker(stack):
        plugin = await publish_asking(stack)

        async def ours() -> float:
            return median([await _decided(stack, plugin) for _ in range(count)])

        async def bare() -> float:
            return median([await _signaled(stack) for _ in range(count)])

        await ours()
        await bare()
        rounds = await bench.in_turn("decision to tool call", "ms", ours, bare)
    note = "bare: signal to result; ours reads the decision, takes a permit and sends the call in that time"
    return [Figure("decision to tool call", "ms", rounds, note=note)]


async def _decided(stack: Stack, plugin: str) -> float:
    app, approver = stack.client("app"), stack.client("approver", groups=["finance"])
    job = await app.accepted(plugin, INPUT)
    [request] = await app.until_request(job)
    shown = await approver.request(job, request)
    body = json.dumps({"decision": "approve", "action_digest": shown["action_digest"]}).encode()
    async with Caller(stack.apis[0].url, stack.token("approver", groups=["finance"])) as caller:
        sent = time.monotonic_ns()
        await caller.post(f"/v1/jobs/{job}/requests/{request}/decision", body, 200)
    [arrived] = await stack.effects.wait_for_calls(WRITE, job=job)
    await app.until_ended(job)
    return (arrived.monotonic_ns - sent) / 1e6


async def _signaled(stack: Stack) -> float:
    engine = await stack.engine()
    handle = engine.get_workflow_handle(await start_bare(engine, BARE_QUEUE, BARE_SIGNALED))
    await handle.query("waiting")
    sent = time.monotonic_ns()
    await handle.signal("tell")
    await handle.result()
    return (time.monotonic_ns() - sent) / 1e6
