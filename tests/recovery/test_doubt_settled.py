"""A person settles what came of a write: who may, on what, once; and what job, ledger and audit then say."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.http.decisions import person
from tests.http.submissions import refused
from tests.http.trail import audit_of
from tests.recovery.grounds import published
from tests.rig.client import Client, Json
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, tool, turn
from tests.rig.stack import Stack

DROPPED = Behaviour(answer=Answer.DROP_AFTER_RECORDING)


async def in_doubt(stack: Stack, app: Client, **options: Any) -> tuple[str, str, str]:
    """A job that waits for somebody to say whether its write took effect; its request, and the write's name."""
    name = fresh_name("pay")
    stack.effects.set_behaviour(name, DROPPED)
    groups = options.pop("groups", ())
    more: Json = {"approval": {"groups": list(groups)}} if groups else {}
    plugin = await published(
        stack, [turn(call(name, {"n": 1})), final({"ok": True})], tool(name, "write", **more), policy=ALLOW_ALL
    )
    job = await app.accepted(plugin, **options)
    [request] = await app.until_request(job)
    await app.until_status(job, "waiting_for_human")
    return job, request, name


async def effect_state(operator: Client, job: str) -> str:
    shown: Json = await operator.get(f"/v1/operator/jobs/{job}")
    [effect] = shown["effects"]
    return effect["state"]


async def settled_lines(operator: Client, job: str, request: str) -> list[tuple[str, str]]:
    """Who settled it as what, by the audit trail."""
    lines = [line for line in await audit_of(operator) if line["subject"] == f"{job}/{request}"]
    return [(line["actor"], line["detail"]["answer"]) for line in lines if line["action"] == "request.decided"]


@pytest.mark.parametrize(
    ("answer", "state", "ended"),
    [
        ("happened", "reconciled", ("succeeded", None, "yes")),
        ("did_not_happen", "failed", ("succeeded", None, "yes")),
        ("stop", "unknown", ("failed", "effect_unknown", "unknown")),
    ],
)
async def test_what_a_person_says_is_what_the_effect_is_and_the_job_goes_on_with(
    stack: Stack, app: Client, operator: Client, approver: Client, answer: str, state: str, ended: tuple[Any, ...]
) -> None:
    job, request, name = await in_doubt(stack, app)
    assert await effect_state(operator, job) == "unknown"
    said = await approver.decide(job, request, "settle", answer=answer)
    assert (said.status_code, said.json()["state"], said.json()["decided_by"]) == (200, "settled", ["approver"])
    view = await app.until_ended(job)
    failure = view["failure"]["code"] if view["failure"] else None
    assert (view["status"], failure, view["executed"]) == ended
    assert await effect_state(operator, job) == state
    assert len(stack.effects.calls(name)) == 1
    assert (await approver.request(job, request))["state"] == "settled"
    assert await settled_lines(operator, job, request) == [("approver", answer)]


async def test_a_settlement_is_given_once_and_the_opposite_is_told_what_stands(
    stack: Stack, app: Client, operator: Client, approver: Client
) -> None:
    job, request, _ = await in_doubt(stack, app)
    first = await approver.decide(job, request, "settle", answer="happened")
    again = await approver.decide(job, request, "settle", answer="happened")
    assert (first.status_code, again.status_code, again.text) == (200, 200, first.text)
    other = refused(await approver.decide(job, request, "settle", answer="did_not_happen"), 409, "already-decided")
    assert other["record"]["decided_by"] == ["approver"]
    another, _, _ = await person(stack, operator)
    refused(await another.decide(job, request, "settle", answer="stop"), 409, "already-decided")
    await app.until_ended(job)
    assert (await approver.decide(job, request, "settle", answer="happened")).text == first.text
    assert await effect_state(operator, job) == "reconciled"


async def test_only_who_may_decide_settles_and_exactly_what_was_shown(
    stack: Stack, app: Client, operator: Client
) -> None:
    job, request, _ = await in_doubt(stack, app, groups=["finance"])
    outsider, _, _ = await person(stack, operator)
    insider, _, _ = await person(stack, operator, groups=["finance"])
    _, own, _ = await person(stack, operator, "jobs:decide", "jobs:submit", "jobs:read")
    mine = stack.client(own, groups=["finance"])
    refused(await outsider.decide(job, request, "settle", answer="happened"), 403, "not-an-approver")
    wrong = "sha256:" + "0" * 64
    refused(
        await insider.decide(job, request, "settle", answer="happened", digest=wrong), 412, "action-digest-mismatch"
    )
    refused(await insider.decide(job, request, "approve"), 422, "input-invalid")
    for answer in (None, "yes", "Happened", True, ["happened"]):
        refused(await insider.decide(job, request, "settle", answer=answer), 422, "input-invalid")
    own_job, own_request, _ = await in_doubt(stack, mine, groups=["finance"])
    refused(await mine.decide(own_job, own_request, "settle", answer="happened"), 403, "self-approval")
    for waiting in (job, own_job):
        assert await effect_state(operator, waiting) == "unknown"
        assert (await app.status(waiting))["status"] == "waiting_for_human"
    assert (await insider.decide(job, request, "settle", answer="happened")).status_code == 200
    assert (await insider.decide(own_job, own_request, "settle", answer="stop")).status_code == 200


async def test_after_a_cancel_nothing_is_left_to_settle_and_the_effect_stays_unknown(
    stack: Stack, app: Client, operator: Client, approver: Client
) -> None:
    job, request, name = await in_doubt(stack, app)
    await app.cancel(job)
    refused(await approver.decide(job, request, "settle", answer="happened"), 409, "request-voided")
    view = await app.until_ended(job)
    assert (view["status"], view["executed"], view["next_action"]["code"]) == ("canceled", "unknown", "ask_operator")
    late = await approver.decide(job, request, "settle", answer="happened")
    assert late.status_code == 409
    assert await effect_state(operator, job) == "unknown"
    assert len(stack.effects.calls(name)) == 1


async def test_the_deadline_ends_the_question_and_the_effect_stays_unknown(
    stack: Stack, app: Client, operator: Client, approver: Client
) -> None:
    job, request, _ = await in_doubt(stack, app, timeout_seconds=6)
    view = await app.until_ended(job)
    assert (view["failure"]["code"], view["executed"]) == ("deadline_exceeded", "unknown")
    late = await approver.decide(job, request, "settle", answer="happened")
    assert late.status_code in (409, 410)
    assert await effect_state(operator, job) == "unknown"


async def test_of_two_settlements_at_once_one_counts_and_everybody_is_told_the_same(
    stack: Stack, app: Client, operator: Client
) -> None:
    """Fifty jobs; the effect, the audit and the answers agree on each."""
    one, one_name, _ = await person(stack, operator)
    two, two_name, _ = await person(stack, operator)
    outcomes: Counter[str] = Counter()
    gate = asyncio.Semaphore(5)
    name = fresh_name("pay")
    stack.effects.set_behaviour(name, DROPPED)
    plugin = await published(
        stack, [turn(call(name, {"n": 1})), final({"ok": True})], tool(name, "write"), policy=ALLOW_ALL
    )

    async def race(number: int) -> None:
        async with gate:
            job = await app.accepted(plugin)
            [request] = await app.until_request(job, 60)
            digest = (await one.request(job, request))["action_digest"]
            pair = [(one, one_name, "happened"), (two, two_name, "did_not_happen")]
            if number % 2:
                pair.reverse()
            answers = await asyncio.gather(
                *(who.decide(job, request, "settle", answer=said, digest=digest) for who, _, said in pair)
            )
            codes = [answer.status_code for answer in answers]
            assert sorted(codes) in ([200, 409], [202, 409]), [answer.text for answer in answers]
            winner = pair[0] if codes[0] != 409 else pair[1]
            loser = answers[1] if codes[0] != 409 else answers[0]
            assert loser.json()["record"]["decided_by"] == [winner[1]]
            await app.until_ended(job, 60)
            assert (
                await effect_state(operator, job) == {"happened": "reconciled", "did_not_happen": "failed"}[winner[2]]
            )
            reconciled = await app.until_event(job, "effect.reconciled")
            assert reconciled["data"]["outcome"] == winner[2]
            assert len(stack.effects.calls(name, job=job)) == 1
            outcomes[winner[2]] += 1

    await asyncio.gather(*map(race, range(50)))
    assert outcomes.total() == 50
