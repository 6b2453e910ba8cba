"""A held job: nothing scheduled, words that say so, the clock running; what releases it, and what does not."""

import asyncio

from tests.conftest import FreshStack
from tests.http.ladder import activities_of, canary_plugin, demote, held_job, url_of
from tests.rig.client import Client
from tests.rig.plugins import promote
from tests.rig.stack import Stack

HELD = {"code": "ask_operator", "message": "Held: not yet approved to run live. An operator must open the gate."}
SAID = "Held. Not yet: this version awaits promotion; until then it may only be rehearsed."


async def to_live(operator: Client, plugin: str, *, release_held: bool) -> None:
    order = {"to": "live", "break_glass": {"reason": "a test"}, "release_held": release_held}
    await operator.post(url_of(plugin), order, expect=201)


async def runs_now(app: Client, plugin: str) -> None:
    """A later job of the same version has come to its end, so an earlier one has had the time to move."""
    assert (await app.until_ended(await app.accepted(plugin)))["status"] == "succeeded"


async def test_a_held_job_says_so_in_words_and_its_history_has_no_activity(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await canary_plugin(stack, operator, phase="stateful_noop")
    job = await held_job(app, plugin)
    view = await app.status(job)
    told = {name: view[name] for name in ("status", "eligibility", "blocker", "executed", "next_action", "started_at")}
    assert told == {
        "status": "queued",
        "eligibility": "dry_run_eligible",
        "blocker": "awaiting_promotion",
        "executed": "no",
        "next_action": HELD,
        "started_at": None,
    }
    assert [(event["type"], event["message"]) for event in await app.events(job)][1:] == [("job.held", SAID)]
    assert view["last_event"]["message"] == SAID
    assert await activities_of(stack, job) == []
    # The witness: activities of a job that runs are found.
    await to_live(operator, plugin, release_held=False)
    ran = await app.accepted(plugin)
    await app.until_ended(ran)
    assert await activities_of(stack, ran) == ["model", "tool", "model"]


async def test_the_deadline_ends_a_held_job(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await canary_plugin(stack, operator)
    job = await held_job(app, plugin, timeout_seconds=2)
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"], view["executed"]) == ("failed", "deadline_exceeded", "no")
    assert await activities_of(stack, job) == []


async def test_a_cancel_ends_a_held_job_without_an_activity(stack: Stack, operator: Client, app: Client) -> None:
    job = await held_job(app, await canary_plugin(stack, operator))
    assert (await app.cancel(job)).status_code == 202
    view = await app.until_ended(job)
    assert (view["status"], view["executed"]) == ("canceled", "no")
    assert await app.event_types(job) == ["job.queued", "job.held", "cancel.requested", "job.canceled"]
    assert await activities_of(stack, job) == []


async def test_release_held_releases_the_held_jobs_of_that_version_and_no_others(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, other = [await canary_plugin(stack, operator) for _ in range(2)]
    jobs, others = [[await held_job(app, one) for _ in range(3)] for one in (plugin, other)]
    await to_live(operator, plugin, release_held=True)
    ended = await asyncio.gather(*(app.until_ended(job) for job in jobs))
    assert [view["status"] for view in ended] == ["succeeded"] * 3
    assert "job.released" in await app.event_types(jobs[0])
    assert [(await app.event_types(job))[-1] for job in others] == ["job.held"] * 3
    await to_live(operator, other, release_held=False)
    await runs_now(app, other)
    assert [(await app.event_types(job))[-1] for job in others] == ["job.held"] * 3
    assert stack.effects.calls(job=others[0]) == []


async def test_a_release_below_live_is_none_and_a_demotion_takes_one_back(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await canary_plugin(stack, operator, phase="stateful_noop")
    job = await held_job(app, plugin)
    order = {"to": "live_canary", "break_glass": {"reason": "a test"}, "release_held": True}
    await operator.post(url_of(plugin), order, expect=201)
    await to_live(operator, plugin, release_held=False)
    await runs_now(app, plugin)
    assert (await app.event_types(job))[-1] == "job.held"
    assert await activities_of(stack, job) == [], "what does not let it go does not wake it"
    await demote(operator, plugin, "live_canary")
    await to_live(operator, plugin, release_held=True)
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert (await activities_of(stack, job))[0] == "read_gate"


async def test_a_release_that_a_demotion_overtook_releases_nothing_when_it_is_live_again(
    fresh_stack: FreshStack,
) -> None:
    stack = await fresh_stack()
    operator, app = stack.client("operator"), stack.client("app")
    plugin = await canary_plugin(stack, operator)
    job = await held_job(app, plugin)
    stack.workers[0].freeze()
    await to_live(operator, plugin, release_held=True)
    await demote(operator, plugin, "live_canary")
    await promote(operator, plugin, "1.0.0")
    stack.workers[0].resume()
    await runs_now(app, plugin)
    assert (await app.event_types(job))[-1] == "job.held"
    await demote(operator, plugin, "live_canary")
    await to_live(operator, plugin, release_held=True)
    assert (await app.until_ended(job))["status"] == "succeeded"
