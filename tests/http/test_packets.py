"""One packet lets one held job run, once; its proof lets the version go live; nothing else moves."""

import asyncio

import pytest

from tests.http.ladder import (
    BOSS,
    approve,
    boss_of,
    canary_plugin,
    held_job,
    order,
    packet_state,
    propose,
    run_by_packet,
)
from tests.http.submissions import refused
from tests.rig.client import Client, problem
from tests.rig.plugins import call, fresh_name, promote
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until


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
    plugin = await canary_plugin(stack, operator, calls=(call("look", {"n": 1}), call("pay", {"n": 1})))
    boss = await boss_of(stack, operator)
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


async def test_a_packet_refused_says_what_became_of_it(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    other = await boss_of(stack, operator)
    job, quick, taken = [await held_job(app, plugin) for _ in range(3)]
    expired = await propose(operator, quick, "look", expires_in_seconds=1)
    revoked = await propose(operator, taken, "look")
    await operator.http.delete(f"/v1/packets/{revoked}")
    redeemed = await run_by_packet(operator, boss, job, "look")
    await app.until_ended(job)

    async def over() -> bool:
        return await packet_state(operator, expired) == "expired"

    await wait_until(over, 10, what="the packet expires")
    said = {
        expired: "The packet has expired. Propose a new one.",
        revoked: "The packet was revoked.",
        redeemed: "The packet was redeemed: its job runs or ran by it.",
    }
    for packet, detail in said.items():
        assert refused(await approve(other, packet), 409, "packet-spent")["detail"] == detail
    assert (
        refused(await operator.http.delete(f"/v1/packets/{redeemed}"), 409, "packet-spent")["detail"] == said[redeemed]
    )
    again = await approve(boss, redeemed)
    assert (again.status_code, again.json()) == (200, {"packet_id": redeemed, "state": "approved"})


async def test_looking_at_a_packet_and_its_job_consumes_nothing(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose(operator, job, "look")
    before = await operator.get(f"/v1/packets/{packet}")
    for _ in range(20):
        await app.status(job, after="0")
        await app.get(f"/v1/jobs/{job}/preview")
        await operator.get(f"/v1/operator/jobs/{job}")
        assert await operator.get(f"/v1/packets/{packet}") == before
    assert (await app.event_types(job))[-1] == "job.held"
    assert (await approve(boss, packet)).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"


async def test_whose_job_it_is_does_not_approve_under_any_name(stack: Stack, operator: Client) -> None:
    plugin = await canary_plugin(stack, operator)
    submitter, boss, name = await boss_of(stack, operator, "*"), await boss_of(stack, operator), fresh_name("cause")
    await operator.post("/v1/grants", {"principal": name, "actions": BOSS, "plugins": ["*"]}, expect=201)
    caused = stack.client(name)
    job = await held_job(submitter, plugin, initiator={"kind": "user", "id": name})
    packet = await propose(operator, job, "look")
    assert problem(await approve(submitter, packet)) == (403, "self-approval")
    assert problem(await approve(caused, packet)) == (403, "self-approval")
    assert await packet_state(operator, packet) == "proposed"
    assert (await approve(boss, packet)).status_code == 200


async def test_a_packet_of_a_job_that_is_over_or_withdrawn_is_not_approved(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job, left = [await held_job(app, plugin) for _ in range(2)]
    packet, other = await propose(operator, job, "look"), await propose(operator, left, "look")
    await app.cancel(job)
    await app.until_ended(job)
    assert refused(await approve(boss, packet), 409, "gate-not-met")["missing"] == ["a job that is held"]
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal", {"reason": "a test"})
    assert refused(await approve(boss, other), 409, "gate-not-met")["missing"] == ["a version that stands"]
    assert [await packet_state(operator, one) for one in (packet, other)] == ["proposed", "proposed"]
    assert (await operator.http.post("/v1/packets", json=order(left, "look"))).status_code == 409


async def test_the_jobs_deadline_caps_its_packet(stack: Stack, operator: Client, app: Client) -> None:
    job = await held_job(app, await canary_plugin(stack, operator), timeout_seconds=60)
    packet = await propose(operator, job, "look", expires_in_seconds=600)
    shown = await operator.get(f"/v1/packets/{packet}")
    assert shown["expires_at"] == (await app.status(job))["deadline"]


async def test_a_dry_run_is_no_job_for_a_packet(stack: Stack, operator: Client, app: Client) -> None:
    job = await app.accepted(await canary_plugin(stack, operator), mode="dry_run")
    assert problem(await operator.http.post("/v1/packets", json=order(job, "look"))) == (409, "gate-not-met")


@pytest.mark.parametrize("members", [{"max_steps": 0}, {"max_steps": 1001}, {"expires_in_seconds": 0}, {"extra": 1}])
async def test_what_is_not_a_packet_is_input_invalid(operator: Client, members: dict[str, int]) -> None:
    refused(await operator.http.post("/v1/packets", json=order("any", "look", **members)), 422, "input-invalid")


@pytest.mark.parametrize("after", ["approved", "redeemed"])
async def test_a_job_has_one_approved_packet_at_most(stack: Stack, operator: Client, app: Client, after: str) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packets = [await propose(operator, job, "look") for _ in range(4)]
    if after == "redeemed":
        assert (await approve(boss, packets[0])).status_code == 200
        await app.until_ended(job)
    answers = await asyncio.gather(*(approve(boss, packet) for packet in packets))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    lost = [problem(answer) for answer in answers if answer.status_code == 409]
    assert lost == [(409, "gate-not-met")] * 3
    await app.until_ended(job)
    states = sorted([await packet_state(operator, packet) for packet in packets])
    assert states == ["proposed"] * 3 + ["redeemed"]


async def test_what_a_packet_lacks_says_its_next_gate(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await canary_plugin(stack, operator, phase="stateful_noop")
    job = await held_job(app, plugin)
    refusal = refused(await operator.http.post("/v1/packets", json=order(job, "look")), 409, "gate-not-met")
    assert (refusal["next_gate"], refusal["executed"], refusal["missing"]) == (
        "live_canary",
        "no",
        ["phase live_canary"],
    )
