"""A verdict stands in the ledger and its signal was lost: the job is told of it by whoever sweeps, once and soon."""

import asyncio
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType

from gateway.ledger.decisions import VoteRow, cast_vote
from gateway.ledger.engine import Ledger
from gateway.ledger.untaken import TAKEN_WITHIN
from tests.conftest import FreshStack
from tests.http.jobs import waiting_job, waiting_plugin
from tests.rig.client import Client
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import Digest, JobId, PrincipalId, RequestId, Workspace


async def vote_without_hint(stack: Stack, approver: Client, job: str, request: str) -> None:
    """As a process leaves it that dies between the ledger's commit and the signal."""
    digest = (await approver.request(job, request))["action_digest"]
    vote = VoteRow(
        workspace=Workspace("demo"),
        job_id=JobId(job),
        request_id=RequestId(request),
        principal=PrincipalId("approver"),
        decision="approve",
        action_digest=Digest(digest),
        reason=None,
        at=datetime.now(UTC),
    )
    ledger = Ledger.open(stack.settings.ledger_url)
    try:
        await ledger.write(lambda conn: cast_vote(conn, vote, quorum=1))
    finally:
        await ledger.close()


async def signals(stack: Stack, job: str) -> int:
    handle = (await stack.engine()).get_workflow_handle(f"demo.{job}")
    signaled = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return sum([event.event_type == signaled async for event in handle.fetch_history_events()])


async def test_a_verdict_whose_hint_was_lost_reaches_its_job_once(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    await vote_without_hint(stack, approver, job, request)
    assert (await app.until_ended(job))["status"] == "succeeded"
    types = await app.event_types(job)
    assert (types.count("request.decided"), types.count("decision.refused")) == (1, 0)
    assert len(stack.effects.calls("pay", job=job)) == 1


async def test_a_job_without_a_worker_is_told_once_however_long_it_waits(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack()
    app, approver = stack.client("app"), stack.client("approver")
    job, request = await waiting_job(app, await waiting_plugin(stack, stack.client("operator")))
    stack.workers[0].kill()
    await vote_without_hint(stack, approver, job, request)

    async def told() -> bool:
        return await signals(stack, job) == 1

    await wait_until(told, 30)
    await asyncio.sleep(2.5 * TAKEN_WITHIN.total_seconds())  # two more sweeps would tell it again by now
    assert await signals(stack, job) == 1
    await stack.until_polling(stack.add_worker())
    assert (await app.until_ended(job))["status"] == "succeeded"
