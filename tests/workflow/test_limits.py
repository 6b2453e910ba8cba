"""What a job may at most make of one turn is within what the engine takes: nothing of it ends the job."""

from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import TOOLS, Job, Jobs
from workflows.contract.ids import ToolName
from workflows.contract.job import ApprovalRule

ENGINE_TAKES = 5_000_000
WIDE = "💸" * 500
"""As long as a title or a message may be, in the characters that need the most bytes."""


async def history_bytes(job: Job) -> int:
    """Of the longest run."""
    handles = [job.client.get_workflow_handle(job.handle.id, run_id=run) for run in await job.runs()]
    described = [(await handle.describe()).raw_description for handle in handles]
    return max(one.workflow_execution_info.history_size_bytes for one in described)


async def test_hundred_requests_of_one_turn_are_decided_one_by_one_within_a_history(real_jobs: Jobs) -> None:
    asks = [call(n, "refunds.create", "write", ask=True) for n in range(100)]
    job = await real_jobs.start(Hands(model=[turn(1, *asks), final(2)]))
    for request in await job.pending(100):
        await job.decide(request, "approve")
        await job.until_ran(f"read_decision {request}")
    ended = await job.end()
    assert ended.story.count("tool.finished refunds.create #50 ok") == 1
    assert {request.state for request in ended.view.requests} == {"approved"}
    assert 0 < await history_bytes(job) < ENGINE_TAKES


async def test_requests_of_the_longest_texts_and_most_groups_do_not_end_a_job(real_jobs: Jobs) -> None:
    rule = ApprovalRule(groups=tuple(f"{n:02}" + "💸" * 60 for n in range(20)), quorum=2)
    row = TOOLS[ToolName("refunds.create")].model_copy(update={"approval": rule})
    tools = {**TOOLS, ToolName("refunds.create"): row}
    asks = [call(n, "refunds.create", "write", ask=True) for n in range(100)]
    wide = [one.model_copy(update={"title": WIDE, "message": WIDE}) for one in asks]
    job = await real_jobs.start(Hands(model=[turn(1, *wide, say=WIDE), final(2)]), tools=tools)
    requests = await job.pending(100)
    assert len((await job.look()).view.requests) == 100
    await job.decide(requests[0], "approve")
    await job.until_ran("refunds.create 1")
    await job.handle.cancel()
    ended = await job.end()
    assert [event.seq for event in ended.record.events] == list(range(1, len(ended.record.events) + 1))
    states = [request.state for request in ended.view.requests]
    assert (states.count("approved"), states.count("voided")) == (1, 99)
