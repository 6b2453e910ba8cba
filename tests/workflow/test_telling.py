"""What readers see: the `view` query's cursor, and memo, search attributes and details after each change of status."""

import contextlib

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowQueryFailedError

from tests.workflow.hands import Hands, Held, call, done, final, turn
from tests.workflow.jobs import PENDING, STATUS, Job, Jobs, story

REFUND = call(0, "refunds.create", "write", ask=True)


async def told(job: Job) -> tuple[str, int, str]:
    """Status and open requests by search attribute, and the last event by memo: what needs no worker."""
    described = await job.handle.describe()
    attributes = described.typed_search_attributes
    memo = await job.memo()
    assert attributes.get(STATUS) == memo.view.status
    return memo.view.status, attributes.get(PENDING) or 0, story([memo.view.last_event])[0]


async def details(job: Job) -> str:
    metadata: WorkflowMetadata = await job.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def test_every_change_of_status_is_told_to_readers_without_a_worker(jobs: Jobs) -> None:
    thinking, writing = Held(turn(1, REFUND)), Held(done())
    job = await jobs.start(Hands(model=[thinking, final(2)], tools={"refunds.create": [writing]}))
    await thinking.entered.wait()
    assert await told(job) == ("running", 0, "step.started turn 1")
    assert "**running**" in await details(job)
    thinking.go.set()
    [request] = await job.pending(1)
    assert await told(job) == ("waiting_for_human", 1, "request.opened r1 approval refunds.create")
    assert request in await details(job)
    await job.decide(request, "approve")
    await writing.entered.wait()
    assert await told(job) == ("running", 0, "tool.started refunds.create #0")
    assert request not in await details(job)
    await job.handle.cancel()
    await job.until("cancel.requested")
    assert (await told(job))[0] == "canceling"
    assert "**canceling**" in await details(job)
    writing.go.set()
    ended = await job.end()
    assert await told(job) == ("canceled", 0, "job.canceled")
    assert (await job.memo()).events == ended.record.events


async def test_step_in_flight_repeats_the_last_event_and_the_usage(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, call(0, "invoices.get"), input_tokens=7), final(2)]))
    await job.end()
    first, second = job.hands.asked_model
    [tool] = job.hands.asked_tool
    assert story([first.progress.event]) == ["step.started turn 1"]
    assert story([tool.progress.event]) == ["tool.started invoices.get #0"]
    assert (tool.progress.usage.steps, tool.progress.usage.input_tokens) == (2, 7)
    assert story([second.progress.event]) == ["step.started turn 2"]


async def test_view_query_gives_events_after_a_cursor_up_to_a_limit(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, call(0, "invoices.get")), final(2)]))
    ended = await job.end()
    assert (await job.look()).events == ended.record.events
    page = await job.look(after=2, limit=3)
    assert [event.seq for event in page.events] == [3, 4, 5]
    assert page.last_seq == 9
    assert (await job.look(after=9)).events == ()
    assert (await job.look(after=500)).events == ()
    assert (await job.look(after=-5, limit=2)).events == ended.record.events[:2]
    assert (await job.look(limit=0)).events == ()


@pytest.mark.parametrize("asked", [[], [None], ["text"], [{"after": "x"}], [{}, {}]])
async def test_query_that_is_not_understood_leaves_the_job_alone(jobs: Jobs, asked: list[object]) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]))
    [request] = await job.pending(1)
    before = len(await job.history_types())
    with contextlib.suppress(WorkflowQueryFailedError):
        await job.handle.query("view", args=asked)
    assert len(await job.history_types()) == before
    await job.decide(request, "reject")
    assert (await job.end()).story[-1] == "job.succeeded"


async def test_steps_that_follow_each_other_are_told_by_their_heartbeats_alone(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[*(turn(n, call(0, "invoices.get")) for n in range(1, 6)), final(6)]))
    await job.end()
    kinds = await job.history_types()
    assert kinds.count("WORKFLOW_PROPERTIES_MODIFIED") == 2
    assert kinds.count("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES") == 2
