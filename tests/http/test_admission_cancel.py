"""The cancel route's answers: once for ever, for whom it may be, and for what has already ended."""

import asyncio
from datetime import UTC, datetime

from tests.http.submissions import publish_brisk, refused
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Answer, Behaviour, EffectLog
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack


async def test_second_cancel_has_the_first_ones_time(stack: Stack, app: Client, effects: EffectLog) -> None:
    name = "cancel-held"
    await publish_plugin(
        stack.client("operator"),
        name,
        [turn(call(name)), turn(call(name)), final()],
        tools=[tool(name)],
        tools_url=effects.url,
    )
    effects.set_behaviour(name, Behaviour(Answer.HOLD))
    key, before = await app.accepted(name), datetime.now(UTC)
    await effects.wait_for_calls(name)
    assert (await app.status(key))["cancel_requested_at"] is None
    answers = await asyncio.gather(*(app.cancel(key) for _ in range(5)))
    effects.release(name)
    assert {answer.status_code for answer in answers} <= {200, 202}
    bodies = [answer.json() for answer in answers]
    times = {body["cancel_requested_at"] for body in bodies}
    assert len(times) == 1
    asked_at = times.pop()
    assert before <= datetime.fromisoformat(asked_at) <= datetime.now(UTC)
    assert all((body["job_id"], body["in_flight"]) == (key, []) for body in bodies)
    assert {body["status"] for body in bodies} <= {"canceling", "canceled"}
    ended = await app.until_ended(key)
    assert (ended["status"], ended["cancel_requested_at"]) == ("canceled", asked_at)
    late = await app.cancel(key)
    assert late.status_code == 200
    assert late.json() == {
        "job_id": key,
        "status": "canceled",
        "cancel_requested_at": asked_at,
        "finished_at": ended["finished_at"],
        "in_flight": [],
    }
    # The first call had left; the second, which the job's script holds, never does.
    assert len(effects.calls(name)) == 1


async def test_cancel_of_an_ended_job_changes_nothing(stack: Stack, app: Client) -> None:
    name = await publish_brisk(stack.client("operator"), "cancel-ended")
    key = await app.accepted(name)
    ended = await app.until_ended(key)
    response = await app.cancel(key)
    assert response.status_code == 200
    assert response.json() == {
        "job_id": key,
        "status": "succeeded",
        "cancel_requested_at": None,
        "finished_at": ended["finished_at"],
        "in_flight": [],
    }
    assert {**await app.status(key), "as_of": None} == {**ended, "as_of": None}


async def test_cancel_of_nothing_and_by_nobody(stack: Stack, app: Client) -> None:
    for key in (fresh_key(), "..", "a%20b", "x" * 201):
        refused(await app.cancel(key), 404, "not-found")
    name = await publish_brisk(stack.client("operator"), "cancel-mine")
    key = await app.accepted(name)
    refused(await stack.client("app", scopes=["jobs:read"]).cancel(key), 403, "not-permitted")
    refused(await stack.client("approver").cancel(key), 403, "not-permitted")
    assert (await app.until_ended(key))["status"] == "succeeded"
