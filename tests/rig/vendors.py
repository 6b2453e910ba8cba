"""Vendors that answer later: jobs that wait for their callback, and real POSTs to a stack's API.

A stack that callbacks reach has a worker that knows its API: `await callback_stack(stack)`.
"""

from typing import Any

import httpx2

from gateway.ledger.effects import list_effects
from gateway.ledger.engine import Ledger
from tests.rig.effect_log import Behaviour, Call
from tests.rig.overheard import Overhearing
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, Workspace

TAKEN = Behaviour(status=202, body={"ticket": 7})


async def callback_stack(stack: Stack) -> None:
    """Start it: one API, and one worker that tells vendors where that is."""
    await stack.start(workers=0)
    worker = stack.add_worker({"JOBGATE_PUBLIC_URL": stack.apis[0].url})
    await stack.until_polling(worker)


async def plugin_of(stack: Stack, effect: str, *, expires: int = 60, **more: Any) -> str:
    """One call of a tool `t` that answers later, and its result as the job's."""
    stack.effects.reset()
    stack.effects.set_behaviour("t", TAKEN)
    name = fresh_name("later")
    await publish_plugin(
        stack.client("operator"),
        name,
        [turn(call("t", {"n": 1})), final({"got": "{{ results['t'] | default('silence') }}"})],
        tools=[tool("t", effect, callback={"expires_in_seconds": expires}, **more)],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
    )
    return name


async def waiting(stack: Stack, effect: str = "read", **options: Any) -> tuple[str, Call]:
    """A job that waits for its callback with no step running, and the call that it made."""
    job = await stack.client().accepted(await plugin_of(stack, effect, **options))
    [sent] = await stack.effects.wait_for_calls("t", job=job)
    await nothing_pending(stack, job)
    return job, sent


async def nothing_pending(stack: Stack, job: str) -> None:
    engine = await stack.engine()

    async def idle() -> bool:
        described = await engine.get_workflow_handle(f"demo.{job}").describe()
        types = [event["type"] for event in await stack.client().events(job)]
        return "tool.started" in types and not described.raw_description.pending_activities

    await wait_until(idle, 20, what=f"{job} waits with no step running")


async def post(url: str, value: Any = None, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=30, transport=Overhearing()) as http:
        return await http.post(
            url, json=value, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )


def way_back(sent: Call) -> str:
    url = sent.header("jobgate-callback")
    assert url is not None
    return url


async def effects_of(stack: Stack, job: str) -> list[tuple[str, int]]:
    ledger = Ledger.open(stack.settings.ledger_url)
    try:
        rows = await ledger.read(lambda conn: list_effects(conn, Workspace("demo"), JobId(job)))
    finally:
        await ledger.close()
    return [(row.state, row.epoch) for row in rows]
