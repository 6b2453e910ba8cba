"""An end that a worker would have written, had the engine not ended the job before: nobody hears of it."""

import pytest

from tests.conftest import FreshStack
from tests.recovery.grounds import published
from tests.rig.client import Json
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.waiting import wait_until

ENDS = {"job.succeeded", "job.failed", "job.canceled"}


@pytest.mark.parametrize(("how", "code"), [("terminated", "ended_by_operator"), ("timed out", "deadline_exceeded")])
async def test_a_job_ends_as_the_engine_says_also_where_a_worker_would_say_otherwise(
    fresh_stack: FreshStack, how: str, code: str
) -> None:
    """Nobody took up the cancel: the execution keeps it in its history, and no query tells of it."""
    stack = await fresh_stack()
    app = stack.client("app")
    stack.effects.set_behaviour("held", Behaviour(answer=Answer.HOLD))
    plugin = await published(stack, [turn(call("held")), final()], tool("held"))
    job = await app.accepted(plugin, timeout_seconds=8 if how == "timed out" else 600)
    await stack.effects.wait_for_calls("held", 1, job=job)
    stack.workers[0].kill()
    handle = (await stack.engine()).get_workflow_handle(f"demo.{job}")
    await handle.cancel()
    if how == "terminated":
        await handle.terminate()
    recorded = await app.until_ended(job, 40)
    assert (recorded["status"], recorded["failure"]["code"]) == ("failed", code)
    await stack.until_polling(stack.add_worker())

    async def told_by_a_worker() -> Json | None:
        view = await app.status(job, after="0", limit=500)
        return view if view["source"] == "live" else None

    live: Json = await wait_until(told_by_a_worker, 30, what="a worker tells of the job")
    same = ("status", "failure", "last_event", "finished_at", "executed", "next_action", "pending", "delivery")
    assert {name: live[name] for name in same} == {name: recorded[name] for name in same}
    assert [one["type"] for one in live["events"] if one["type"] in ENDS] == ["job.failed"]
    assert live["events"][-1]["type"] == "job.failed"
    assert not any(one["type"] == "cancel.requested" for one in live["events"])
    assert not live["has_more"]
    assert await app.event_types(job) == [one["type"] for one in live["events"]]
