"""What a line of retries has done: no write of it is repeated without a new decision, and one retry runs at a time."""

import asyncio

import pytest

from tests.http.jobs import plugin_of
from tests.http.submissions import refused, row_of
from tests.http.test_retry import done, retried, retry, writer
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Behaviour
from tests.rig.plugins import ALLOW_ALL, CONNECTION, CREDENTIAL, call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack

# ---- what it does not repeat


async def test_a_write_that_took_effect_is_repeated_only_by_a_new_decision_and_then_once(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """The policy lets it run unattended; for a repetition that is not enough."""
    plugin, name = await writer(stack, operator)
    job = await done(app, plugin)
    again = await retried(app, job)
    [request] = await app.until_request(again)
    shown = await approver.request(again, request)
    assert shown["kind"] == "approval"
    assert shown["title"].startswith(f"Again, after job {job}: ")
    assert len(stack.effects.calls(name)) == 1
    await approver.decide(again, request, "approve")
    assert (await app.until_ended(again))["status"] == "succeeded"
    first, second = stack.effects.calls(name)
    assert (first.job, second.job) == (job, again)
    assert first.idempotency_key != second.idempotency_key
    third = await retried(app, again)
    [request] = await app.until_request(third)
    await approver.decide(third, request, "reject")
    assert (await app.until_ended(third))["status"] == "succeeded"
    assert len(stack.effects.calls(name)) == 2


async def test_a_write_that_failed_for_certain_runs_again_unattended(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, name = await writer(stack, operator)
    stack.effects.set_behaviour(name, Behaviour(status=422, body={"error": "no"}, times=1))
    job = await done(app, plugin)
    assert (await app.until_ended(await retried(app, job)))["status"] == "succeeded"
    assert [sent.epoch for sent in stack.effects.calls(name)] == [1, 1]


@pytest.mark.parametrize("release", ["same", "current"])
async def test_another_version_knows_what_its_line_has_done(
    stack: Stack, operator: Client, app: Client, approver: Client, release: str
) -> None:
    plugin, name = await writer(stack, operator)
    job = await done(app, plugin)
    await publish_plugin(
        operator,
        plugin,
        [turn(call(name, {"n": 1}), call(name, {"n": 2})), final({"version": 2})],
        tools=[tool(name, "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
        version="2.0.0",
    )
    again = await retried(app, job, release=release)
    [request] = await app.until_request(again)
    await approver.decide(again, request, "reject")
    view = await app.until_ended(again)
    assert view["plugin"]["version"] == ("1.0.0" if release == "same" else "2.0.0")
    new = [sent.args for sent in stack.effects.calls(name, job=again)]
    assert new == ([] if release == "same" else [{"n": 2}])


async def test_a_retry_runs_in_the_deployment_of_now(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [turn(call("look")), final({"ok": True})], tool("look"))
    job = await done(app, plugin)
    other = {CONNECTION: {"base_url": f"{stack.effects.url}/", "allow_private": True, "credential": CREDENTIAL}}
    await operator.put(
        f"/v1/plugins/{plugin}/deployment",
        {"plugin": plugin, "model": "scripted:script.yaml", "connections": other, "limits": {"max_steps": 9}},
    )
    again = await retried(app, job)
    await app.until_ended(again)
    first, second = await row_of(stack, job), await row_of(stack, again)
    assert first is not None
    assert second is not None
    assert first.plugin_digest == second.plugin_digest
    assert first.snapshot != second.snapshot


# ---- races


async def test_of_two_retries_at_once_one_is_admitted(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """Thirty sources. Of two that ran at the same time each would not know what the other does."""
    plugin, name = await writer(stack, operator)
    sources = [await done(app, plugin) for _ in range(30)]
    gate = asyncio.Semaphore(3)

    async def race(source: str) -> None:
        async with gate:
            keys = [fresh_key(), fresh_key()]
            answers = await asyncio.gather(*(retry(app, source, key) for key in keys))
            codes = sorted(answer.status_code for answer in answers)
            assert codes == [202, 409], [answer.text for answer in answers]
            [admitted] = [answer.json()["job_id"] for answer in answers if answer.status_code == 202]
            [late] = [answer for answer in answers if answer.status_code == 409]
            refused(late, 409, "job-not-ended")
            [request] = await app.until_request(admitted)
            await approver.decide(admitted, request, "reject")
            await app.until_ended(admitted)

    await asyncio.gather(*map(race, sources))
    assert len(stack.effects.calls(name)) == len(sources)
