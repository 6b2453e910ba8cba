"""Verdicts of people whose hint was lost: whoever decided died before the signal left, or the engine did not answer.

The verdict stands in the ledger and the job would wait for ever, so it is told once more. A job whose next workflow
task is due anyway has a hint, or will look; one without a worker so gets one signal and not one every few seconds.
"""

from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import WorkflowExecutionStatus

from gateway.ledger.engine import Ledger
from gateway.ledger.untaken import claim_telling, take_decision, untaken_decisions
from gateway.telemetry import log
from gateway.temporal import Engine
from workflows.contract.ids import JobId, RequestId, Workspace
from workflows.contract.steps import Activity, DecisionHint

TAKEN_WITHIN = timedelta(seconds=4)
"""A verdict that its job has not read by then, or so long after it was last told, is told of once more."""
LOOKED_AT = 100


class Untaken:
    """One per process; several may look at the same time, one tells."""

    def __init__(self, ledger: Ledger, engine: Engine) -> None:
        self._ledger = ledger
        self._engine = engine

    async def tell(self) -> None:
        """Raises Refused."""
        before = datetime.now(UTC) - TAKEN_WITHIN
        for of in await self._ledger.read(lambda conn: untaken_decisions(conn, before=before, limit=LOOKED_AT)):
            now = datetime.now(UTC)
            if await self._ledger.write(lambda conn, of=of, now=now: claim_telling(conn, *of, before=before, at=now)):
                await self._tell(*of)

    async def _tell(self, workspace: Workspace, job_id: JobId, request_id: RequestId) -> None:
        found = await self._engine.histories.described(workspace, job_id)
        running = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        if found is None or found.workflow_execution_info.status != running:
            now = datetime.now(UTC)  # nobody is left to take it
            await self._ledger.write(lambda conn: take_decision(conn, workspace, job_id, request_id, now))
            return
        reads = any(one.activity_type.name == Activity.READ_DECISION for one in found.pending_activities)
        if reads or found.HasField("pending_workflow_task"):
            return
        log.info("a verdict that its job has not taken is told of again", job=job_id, request=request_id)
        await self._engine.hint_decision(workspace, job_id, DecisionHint(request_id=request_id))
