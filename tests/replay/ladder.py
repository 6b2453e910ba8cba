"""The ladder's named stories: canaries that a packet let run, a dry run's plan, and tools that run on another lane."""

from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import TOOLS, Job, Jobs
from workflows.contract.gates import EligibilityFacts, PacketTerms
from workflows.contract.ids import ToolName
from workflows.contract.job import ApprovalRule
from workflows.contract.steps import GateOutput

READ = call(0, "invoices.get")
WRITE = call(1, "refunds.create", "write")
CANARY = EligibilityFacts(version_phase="live_canary", runtime_phase="live")
BY_PACKET = GateOutput(open=True, packet=PacketTerms(tools=(ToolName("invoices.get"),), max_steps=5))


async def released_by_a_packet(jobs: Jobs, name: str) -> Job:
    hands = Hands(model=[turn(1, READ), final(2)], gates=[GateOutput(open=False), BY_PACKET])
    job = await jobs.start(hands, job_id=name, facts=CANARY)
    await job.until("job.held")
    await job.handle.signal("gate")
    await job.until_ran("read_gate")
    await job.handle.signal("gate")
    return job


async def canary_inconclusive(jobs: Jobs, name: str) -> Job:
    hands = Hands(model=[turn(1, READ), turn(2, READ, WRITE)], gates=[BY_PACKET])
    job = await jobs.start(hands, job_id=name, facts=CANARY)
    await job.until("job.held")
    await job.handle.signal("gate")
    return job


async def tools_on_another_lane(jobs: Jobs, name: str) -> Job:
    lane = f"{name}-lane"
    hands = Hands(model=[turn(1, READ, WRITE), final(2)])
    job = await jobs.start(hands, job_id=name, tool_queue=lane)
    await job.until("tool.started", 2)
    async with jobs.worker(lane):
        await job.end()
    return job


async def dry_run_with_a_plan(jobs: Jobs, name: str) -> Job:
    refund = ToolName("refunds.create")
    rule = ApprovalRule(groups=("finance", "legal"), quorum=2)
    tools = {**TOOLS, refund: TOOLS[refund].model_copy(update={"approval": rule})}
    return await jobs.start(Hands(), job_id=name, mode="dry_run", facts=CANARY, tools=tools, has_policy=True)


LADDER = (released_by_a_packet, canary_inconclusive, tools_on_another_lane, dry_run_with_a_plan)
