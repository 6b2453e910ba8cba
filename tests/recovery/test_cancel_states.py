"""Cancel wherever a job may be: in the queue, before a person, in a back-off, in a slow step, and after its end."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, new_worker, published, running_stack
from tests.rig.client import Client, Json, problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

RACES, AT_ONCE = 100, 5


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("cancel")) as stack:
        yield stack


async def asking(stack: Stack, name: str) -> str:
    """One write that a person must approve, then the end."""
    return await published(
        stack, [turn(call(name, {"n": 1})), final()], tool(name, "write"), policy=READS_RUN_WRITES_ASK
    )


async def canceled(app: Client, job: str) -> Json:
    response = await app.cancel(job)
    assert response.status_code == 202, response.text
    return response.json()


def without_clock(view: Json) -> Json:
    return {name: value for name, value in view.items() if name != "as_of"}


async def test_cancel_in_the_queue_without_a_worker_runs_nothing(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("queued-write")), final()], tool("queued-write", "write"))
    app = ground.client()
    kill_workers(ground)
    job = await app.accepted(plugin)
    first = await canceled(app, job)
    assert (first["status"], first["in_flight"], first["finished_at"]) == ("canceling", [], None)
    view = await app.status(job)
    assert (view["status"], view["executed"], view["cancel_requested_at"]) == (
        "canceling",
        "no",
        first["cancel_requested_at"],
    )
    assert await canceled(app, job) == first
    await new_worker(ground)
    end = await app.until_ended(job)
    assert (end["status"], end["executed"], end["cancel_requested_at"]) == (
        "canceled",
        "no",
        first["cancel_requested_at"],
    )
    assert await app.event_types(job) == ["job.queued", "cancel.requested", "job.canceled"]
    assert ground.effects.calls("queued-write") == []


async def test_cancel_before_a_person_voids_the_request_for_ever(ground: Stack) -> None:
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(await asking(ground, "unasked"))
    [request] = await app.until_request(job)
    digest = (await approver.request(job, request))["action_digest"]
    await canceled(app, job)
    late = await approver.decide(job, request, "approve", digest=digest)
    assert problem(late) in [(409, "request-voided"), (409, "job-ended")]
    assert job not in (await approver.http.get("/v1/requests")).text
    end = await app.until_ended(job, 10)
    assert (end["status"], end["pending"], end["executed"]) == ("canceled", [], "yes")
    assert (await approver.request(job, request))["state"] == "voided"
    kill_workers(ground)
    await new_worker(ground)
    assert problem(await approver.decide(job, request, "approve", digest=digest))[0] == 409
    assert without_clock(await app.status(job)) == without_clock(end)
    assert ground.effects.calls("unasked") == []


async def ended(stack: Stack, how: str) -> str:
    """A job that has ended so."""
    app = stack.client()
    if how == "succeeded":
        job = await app.accepted(await published(stack, [final()]))
    elif how == "failed":
        job = await app.accepted(await published(stack, [final(fail={"status": 400, "times": 9})]))
    elif how == "timed_out":
        plugin = await published(stack, [final()])
        kill_workers(stack)
        job = await app.accepted(plugin, timeout_seconds=1)
        await app.until_ended(job, 30)
        await new_worker(stack)
    else:
        job = await app.accepted(await asking(stack, "never"))
        await app.until_request(job)
        if how == "canceled":
            await canceled(app, job)
        else:
            await (await stack.engine()).get_workflow_handle(f"demo.{job}").terminate("operator's words")
    await app.until_ended(job)
    return job


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("canceled", "canceled"),
        ("terminated", "failed"),
        ("timed_out", "failed"),
    ],
)
async def test_cancel_of_an_ended_job_changes_nothing(ground: Stack, how: str, status: str) -> None:
    app = ground.client()
    job = await ended(ground, how)
    before, events = await app.status(job), await app.events(job)
    answers = [await app.cancel(job) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    told = answers[0].json()
    assert told == answers[1].json()
    assert (told["status"], told["finished_at"]) == (status, before["finished_at"])
    assert (told["cancel_requested_at"], told["in_flight"]) == (before["cancel_requested_at"], [])
    assert without_clock(await app.status(job)) == without_clock(before)
    assert await app.events(job) == events


async def test_cancel_of_an_unknown_job_is_404(ground: Stack) -> None:
    app = ground.client()
    assert problem(await app.cancel("never-submitted")) == (404, "not-found")
    assert problem(await app.cancel("..%2fetc")) == (404, "not-found")


async def test_cancel_in_a_back_off_sends_no_further_attempt(ground: Stack) -> None:
    ground.effects.set_behaviour("limited", Behaviour(status=503, headers={"Retry-After": "60"}))
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("limited")), final()], tool("limited")))
    await app.until_event(job, "attempt.replaced")
    await canceled(app, job)
    end = await app.until_ended(job, 10)
    assert (end["status"], end["failure"]) == ("canceled", None)
    assert len(ground.effects.calls("limited")) == 1
    assert (await app.event_types(job))[-3:] == ["attempt.replaced", "cancel.requested", "job.canceled"]


async def test_cancel_in_a_slow_read_starts_no_write_and_never_goes_back(ground: Stack) -> None:
    ground.effects.set_behaviour("slow-read", Behaviour(answer=Answer.HOLD))
    script = [turn(call("slow-read")), turn(call("later-write")), turn(call("later-write", {"n": 2})), final()]
    plugin = await published(ground, script, tool("slow-read"), tool("later-write", "write"))
    app = ground.client()
    job = await app.accepted(plugin)
    await ground.effects.wait_for_calls("slow-read", job=job)
    seen: list[str] = []

    async def over() -> bool:
        seen.append((await app.status(job))["status"])
        return seen[-1] == "canceled"

    answers = [await canceled(app, job)]
    watching = asyncio.create_task(wait_until(over, 30, what=f"{job} is canceled"))
    answers += [(await app.cancel(job)).json() for _ in range(5)]
    await watching
    assert {answer["cancel_requested_at"] for answer in answers} == {answers[0]["cancel_requested_at"]}
    assert seen[:-1] == ["canceling"] * (len(seen) - 1)
    ground.effects.release("slow-read")
    assert problem(await app.http.get(f"/v1/jobs/{job}/result")) == (404, "not-found")
    assert ground.effects.calls("later-write") == []
    assert (await app.status(job))["status"] == "canceled"


async def test_cancel_and_approval_at_the_same_instant_agree(ground: Stack) -> None:
    """Both replies, the end and the effect log tell one story, whoever was first."""
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    order = random.Random(seed)
    plugin = await asking(ground, "raced")
    app, approver = ground.client(), ground.client("approver")
    jobs = await asyncio.gather(*(app.accepted(plugin) for _ in range(RACES)))
    opened = {job: (await app.until_request(job, 60))[0] for job in jobs}
    leads = {job: order.uniform(-0.02, 0.02) for job in jobs}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: str) -> bool:
        async with gate:
            digest = (await approver.request(job, opened[job]))["action_digest"]
            return await race(ground, app, approver, job, opened[job], digest, leads[job])

    stood = sum(await asyncio.gather(*map(one, jobs)))
    sys.stdout.write(f"{stood} approvals of {RACES} stood\n")
    assert 0 < stood < RACES, "else nothing was raced"


async def race(
    ground: Stack, app: Client, approver: Client, job: str, request: str, digest: str, lead_s: float
) -> bool:
    """Whether the approval stood. `lead_s`: how much later than the cancel it is sent."""

    async def cancel() -> tuple[httpx2.Response, int]:
        await asyncio.sleep(max(-lead_s, 0))
        return await app.cancel(job), time.monotonic_ns()

    async def approve() -> httpx2.Response:
        await asyncio.sleep(max(lead_s, 0))
        return await approver.decide(job, request, "approve", digest=digest)

    (stop, answered_ns), verdict = await asyncio.gather(cancel(), approve())
    end = await app.until_ended(job)
    sent = ground.effects.calls("raced", job=job)
    shown: dict[str, Any] = await approver.request(job, request)
    told: Json = stop.json()
    named = {one["effect_id"] for one in told["in_flight"]}
    facts = (told, verdict.status_code, verdict.text, end["status"], len(sent), shown["state"])
    assert [one for one in sent if one.monotonic_ns > answered_ns and one.idempotency_key not in named] == [], facts
    assert len(sent) <= 1, facts
    if stop.status_code == 200:
        assert told["status"] == end["status"], facts
    else:
        assert (stop.status_code, end["status"]) == (202, "canceled"), facts
        assert told["cancel_requested_at"] == end["cancel_requested_at"], facts
    if verdict.status_code in (200, 202):
        assert (verdict.json()["state"], shown["state"]) == ("approved", "approved"), facts
        return True
    assert problem(verdict) in [(409, "request-voided"), (409, "job-ended")], facts
    assert (shown["state"], sent, end["status"]) == ("voided", [], "canceled"), facts
    return False
