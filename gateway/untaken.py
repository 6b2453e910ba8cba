"""Verdicts of people whose hint was lost: whoever decided died before the signal left, or the engine did not answer.

The verdict stands in the ledger and the job would wait for ever, so it is told once more. A job whose next workflow
task is due anyway has a hint, or will look; one without a worker so gets one signal however long it waits.
"""

import asyncio
from datetime import UTC, datetime

from temporalio.api.enums.v1 import WorkflowExecutionStatus

from gateway.ledger.engine import Ledger
from gateway.ledger.untaken import Untaken, claim_telling, take_decision, untaken_decisions
from gateway.telemetry import log
from gateway.temporal import Engine
from workflows.contract.steps import Activity, DecisionHint

LOOKED_AT = 16
"""A sweep, all at once: what else is swept does not wait for an engine that answers slowly."""


class Reminder:
    """One per process; several may look at the same time, one tells."""

    def __init__(self, ledger: Ledger, engine: Engine) -> None:
        self._ledger = ledger
        self._engine = engine

    async def tell(self) -> None:
        """Raises Refused."""
        now = datetime.now(UTC)
        due = await self._ledger.read(lambda conn: untaken_decisions(conn, now, LOOKED_AT))
        if due:
            mine = await self._ledger.write(lambda conn: [one for one in due if claim_telling(conn, one, now)])
            await asyncio.gather(*map(self._tell, mine))

    async def _tell(self, one: Untaken) -> None:
        of = one.workspace, one.job_id
        found = await self._engine.histories.described(*of)
        running = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        if found is None or found.workflow_execution_info.status != running:
            now = datetime.now(UTC)  # nobody is left to take it
            await self._ledger.write(lambda conn: take_decision(conn, *of, one.request_id, now))
            return
        reads = any(each.activity_type.name == Activity.READ_DECISION for each in found.pending_activities)
        if reads or found.HasField("pending_workflow_task"):
            return
        log.info("a verdict that its job has not taken is told of again", job=one.job_id, request=one.request_id)
        await self._engine.hint_decision(*of, DecisionHint(request_id=one.request_id))
