"""One packet lets one held job run, once; its proof lets the version go live; nothing else moves."""

from typing import Any

import pytest

from tests.conftest import FreshStack
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BOSS = ["promotions:approve", "operator:read", "promotions:write"]


async def boss_of(stack: Stack, operator: Client) -> Client:
    """Somebody else who may approve."""
    name = fresh_name("boss")
    await operator.post("/v1/grants", {"principal": name, "actions": BOSS, "plugins": ["*"]}, expect=201)
    return stack.client(name)


async def canary_plugin(stack: Stack, operator: Client, *, writes: bool = False) -> str:
    name = fresh_name("canary")
    calls = [call("look", {"n": 1}), *([call("pay", {"n": 1})] if writes else [])]
    await publish_plugin(
        operator,
        name,
        [turn(*calls), final({"seen": True})],
        tools=[tool("look"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
        phase=None,
    )
    await promote(operator, name, "1.0.0", to="live_canary")
    return name


async def held_job(app: Client, plugin: str) -> str:
    job = await app.accepted(plugin)
    await app.until_event(job, "job.held")
    return job


def order(job: str, *tools: str, **members: Any) -> Json:
    return {"job_id": job, "allowed_tools": list(tools), "max_steps": 10, "expires_in_seconds": 600, **members}


async def propose(operator: Client, job: str, *tools: str, **members: Any) -> str:
    made = await operator.post("/v1/packets", order(job, *tools, **members), expect=201)
    assert made["state"] == "proposed"
    return made["packet_id"]


async def approve(boss: Client, packet: str) -> Any:
    return await boss.http.post(f"/v1/packets/{packet}/approval")


async def test_an_approved_packet_runs_its_job_and_proves_the_version(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    jobs = [await held_job(app, plugin) for _ in range(5)]
    before = {job: len(await app.events(job)) for job in jobs}
    packet = await propose(operator, jobs[0], "look")
    assert (await operator.get(f"/v1/packets/{packet}"))["state"] == "proposed"
    answer = await approve(boss, packet)
    assert (answer.status_code, answer.json()["state"]) == (200, "approved")
    assert (await app.until_ended(jobs[0]))["status"] == "succeeded"
    shown = await operator.get(f"/v1/packets/{packet}")
    proof = shown["proof"]
    assert (shown["state"], proof["status"], proof["tools"]) == ("redeemed", "succeeded", ["look"])
    assert proof["read_back"]["result"] == {"seen": True}
    assert proof["result_digest"].startswith("sha256:")
    assert {job: len(await app.events(job)) for job in jobs[1:]} == {job: before[job] for job in jobs[1:]}
    assert [len(stack.effects.calls(job=job)) for job in jobs] == [1, 0, 0, 0, 0]
    again = await approve(boss, packet)
    assert again.status_code == 200, "the same person again gets the same answer"
    assert len(stack.effects.calls(job=jobs[0])) == 1

    url = f"/v1/plugins/{plugin}/versions/1.0.0/promotions"
    proposal = await operator.post(url, {"to": "live"}, expect=201)
    assert proposal["state"] == "proposed"
    approval = f"/v1/promotions/{proposal['promotion_id']}/approval"
    assert problem(await operator.http.post(approval)) == (403, "self-approval")
    assert problem(await app.http.post(approval)) == (403, "not-permitted")
    done = await boss.post(approval)
    assert (done["state"], done["phase"]) == ("done", "live")
    assert await boss.post(approval) == done
    # Held jobs stay held: a live phase alone releases none.
    assert [(await app.status(job))["status"] for job in jobs[1:]] == ["queued"] * 4
    assert (await app.until_ended(await app.accepted(plugin)))["status"] == "succeeded"


async def test_nobody_approves_their_own_packet_and_a_spent_one_is_no_ones(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    other = await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose(operator, job, "look")
    assert problem(await approve(operator, packet)) == (403, "self-approval")
    assert (await operator.http.delete(f"/v1/packets/{packet}")).json()["state"] == "revoked"
    assert problem(await approve(boss, packet)) == (409, "packet-spent")
    packet = await propose(operator, job, "look")
    assert (await approve(boss, packet)).status_code == 200
    await app.until_ended(job)
    assert problem(await approve(other, packet)) == (409, "packet-spent")
    assert problem(await operator.http.delete(f"/v1/packets/{packet}")) == (409, "packet-spent")
    assert len(stack.effects.calls("look", job=job)) == 1


async def test_an_expired_packet_changes_nothing(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose(operator, job, "look", expires_in_seconds=1)

    async def expired() -> bool:
        return (await operator.get(f"/v1/packets/{packet}"))["state"] == "expired"

    await wait_until(expired, 10, what="the packet expires")
    assert problem(await approve(boss, packet)) == (409, "packet-spent")
    assert (await app.status(job))["status"] == "queued"
    assert stack.effects.calls(job=job) == []


async def test_a_canary_that_would_write_is_inconclusive_and_the_phase_stays(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator, writes=True), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose(operator, job, "look")
    assert (await approve(boss, packet)).status_code == 200
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "canary_inconclusive")
    assert (await operator.get(f"/v1/packets/{packet}"))["state"] == "inconclusive"
    assert stack.effects.calls(job=job) == []
    refused = await operator.http.post(f"/v1/plugins/{plugin}/versions/1.0.0/promotions", json={"to": "live"})
    assert problem(refused) == (409, "gate-not-met")
    assert (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"][0]["phase"] == "live_canary"


@pytest.mark.parametrize("tools", [["pay"], ["look", "pay"], ["nothing"], ["ask_human"]])
async def test_a_packet_names_read_only_tools(stack: Stack, operator: Client, app: Client, tools: list[str]) -> None:
    job = await held_job(app, await canary_plugin(stack, operator))
    assert problem(await operator.http.post("/v1/packets", json=order(job, *tools))) == (422, "input-invalid")


async def test_a_packet_needs_a_held_job_and_phase_live_canary(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await canary_plugin(stack, operator)
    job = await held_job(app, plugin)
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/demotions", {"to": "stateful_noop", "reason": "a test"})
    assert problem(await operator.http.post("/v1/packets", json=order(job, "look"))) == (409, "gate-not-met")
    await promote(operator, plugin, "1.0.0", to="live")
    ran = await app.accepted(plugin)
    await app.until_ended(ran)
    assert problem(await operator.http.post("/v1/packets", json=order(ran, "look"))) == (409, "gate-not-met")
    assert problem(await operator.http.post("/v1/packets", json=order("unknown-job", "look"))) == (404, "not-found")
    assert problem(await operator.http.get("/v1/packets/packet_0")) == (404, "not-found")


async def test_a_demotion_stops_a_canary_before_its_next_call(fresh_stack: FreshStack) -> None:
    own = await fresh_stack()
    operator, app = own.client("operator"), own.client("app")
    plugin, boss = await canary_plugin(own, operator), await boss_of(own, operator)
    job = await held_job(app, plugin)
    for worker in own.workers:
        worker.kill()
    packet = await propose(operator, job, "look")
    assert (await approve(boss, packet)).status_code == 200
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/demotions", {"to": "stateful_noop", "reason": "a test"})
    await own.until_polling(own.add_worker())
    await promote(operator, other := await canary_plugin(own, operator), "1.0.0", to="live")
    await app.until_ended(await app.accepted(other))  # so the worker works, and has taken what was there before
    assert (await app.status(job))["status"] == "queued"
    assert (await operator.get(f"/v1/packets/{packet}"))["state"] in ("approved", "redeemed")
    assert own.effects.calls(job=job) == []
