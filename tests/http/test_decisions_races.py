"""Decisions against the clock: given at once, given at the edge of their time, and a wait that no other clock ends."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.http.decisions import asking, question, raw_decision
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import call, final, fresh_name, publish_plugin, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

ROUNDS, JOBS = 100, 4
EDGE_JOBS, EDGE_CALLS = 5, 20
LIMITS = {"max_steps": 500, "max_duration_seconds": 3600, "max_tokens": 1_000_000}


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def at(moment: datetime) -> None:
    """Until the clock shows this time."""
    await wait_until(lambda: datetime.now(UTC) >= moment, 60, every=0.005)


async def test_a_decision_on_what_has_just_appeared_is_taken_once_or_refused_at_once(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """A hundred times: 0 to 50 ms after the event arrived; an id that was guessed before its time is unknown."""
    name, chance = fresh_name("asks"), random.Random(14)
    script = [*(turn(question(f"{n}?")) for n in range(ROUNDS // JOBS)), final()]
    await publish_plugin(operator, name, script, limits=LIMITS)
    jobs = [await app.accepted(name) for _ in range(JOBS)]
    answered = await asyncio.gather(*(answered_at_once(app, approver, job, chance) for job in jobs))
    for job, given in zip(jobs, answered, strict=True):
        assert (await app.until_ended(job))["status"] == "succeeded"
        log = await app.events(job)
        decided = [event["data"]["request_id"] for event in log if event["type"] == "request.decided"]
        assert (len(given), decided) == (ROUNDS // JOBS, given)
        assert "decision.refused" not in [event["type"] for event in log]


async def answered_at_once(app: Client, approver: Client, job: str, chance: random.Random) -> list[str]:
    """Every request of the job in the order of its stream, each answered and taken."""
    answered: list[str] = []
    async with app.stream(job) as events:
        async for frame in events:
            if frame.type != "request.opened":
                continue
            request: str = frame.event["data"]["request_id"]
            await at(datetime.now(UTC) + timedelta(seconds=chance.random() * 0.05))
            asked = await approver.request(job, request)
            body: Json = {"decision": "answer", "action_digest": asked["action_digest"], "answer": len(answered)}
            guessed = await raw_decision(approver, job, f"r{ROUNDS}-000000", body)
            assert problem(guessed) == (404, "not-found")
            given = await raw_decision(approver, job, request, body)
            assert given.status_code in (200, 202), given.text
            answered.append(request)
    return answered


async def test_at_the_edge_of_its_time_a_decision_counts_and_runs_or_is_late_and_does_not(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """A hundred requests, each decided at a random moment around its expiry."""
    calls = [call("pay", {"n": n}) for n in range(EDGE_CALLS)]
    name, chance = await asking(stack, operator, *calls, approval={"expires_in_seconds": 6}), random.Random(19)

    async def decided(job: str, request: str) -> tuple[int, int]:
        asked = await approver.request(job, request)
        body = {"decision": "approve", "action_digest": asked["action_digest"]}
        await at(instant(asked["expires_at"]) + timedelta(seconds=chance.uniform(-1.5, 0.5)))
        given = await raw_decision(approver, job, request, body)
        while given.status_code in (503, 504):  # a busy machine; the answer says to send the same again
            given = await raw_decision(approver, job, request, body)
        if given.status_code not in (200, 202):
            assert problem(given) == (410, "request-expired"), given.text
        return asked["args"]["n"], given.status_code

    async def outcome(job: str) -> list[tuple[str, int, int]]:
        requests = await app.until_request(job, count=EDGE_CALLS)
        answers = await asyncio.gather(*(decided(job, request) for request in requests))
        return [(job, n, code) for n, code in answers]

    jobs = [await app.accepted(name) for _ in range(EDGE_JOBS)]
    outcomes = [each for found in await asyncio.gather(*map(outcome, jobs)) for each in found]
    for job in jobs:
        assert (await app.until_ended(job))["status"] == "succeeded"
    ran = sorted((job, sent.args["n"]) for job in jobs for sent in stack.effects.calls("pay", job=job))
    assert ran == sorted((job, n) for job, n, code in outcomes if code in (200, 202))
    assert {code // 100 for _, _, code in outcomes} == {2, 4}  # else no edge was met
    assert len(outcomes) == EDGE_JOBS * EDGE_CALLS == 100


async def test_the_clock_of_a_step_does_not_end_the_wait_and_its_own_window_does(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    name = await asking(
        stack,
        operator,
        call("pay", {"n": 1}),
        call("pay", {"n": 2}),
        timeout_seconds=1,
        approval={"expires_in_seconds": 6},
    )
    job = await app.accepted(name, timeout_seconds=60)
    first, second = await app.until_request(job, count=2)
    asked = await approver.request(job, first)
    await at(instant(asked["opened_at"]) + timedelta(seconds=1.5))
    assert (await approver.decide(job, first, "approve")).status_code == 200
    await app.until_event(job, "request.expired")
    late = await approver.decide(job, second, "approve")
    assert problem(late) == (410, "request-expired")
    assert problem(await approver.decide(job, first, "reject")) == (409, "already-decided")
    unknown = await approver.decide(job, "r9-000000", "approve", digest=asked["action_digest"])
    assert problem(unknown) == (404, "not-found")
    ended = await app.until_ended(job)
    assert (ended["status"], ended["pending"], ended["next_action"]["code"]) == ("succeeded", [], "none")
    types = await app.event_types(job)
    assert types.index("request.expiring") < types.index("request.expired")
    assert [sent.args for sent in stack.effects.calls("pay", job=job)] == [{"n": 1}]
    shown = await approver.request(job, second)
    assert (shown["state"], shown["decided_by"]) == ("expired", [])


async def test_the_deadline_of_the_job_ends_the_wait(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job = await app.accepted(await asking(stack, operator), timeout_seconds=4)
    [request] = await app.until_request(job)
    asked: Json = await approver.request(job, request)
    ended: dict[str, Any] = await app.until_ended(job)
    assert (ended["failure"]["code"], ended["pending"]) == ("deadline_exceeded", [])
    late = await approver.decide(job, request, "approve", digest=asked["action_digest"])
    assert problem(late) in ((409, "request-voided"), (410, "request-expired"))
    assert stack.effects.calls("pay", job=job) == []
