"""A write whose outcome is not known: its reconciling tool is asked, else a person; the write itself never again.

The ledger owns what came of it: every question is put to it first, and whatever a tool or a person says is written
there before it is believed here. Where nobody can tell, the job ends `effect_unknown`.
"""

from datetime import datetime

from temporalio import workflow

from workflows.contract.errors import FailureCode, JobFailed, StepError
from workflows.contract.events import EventType as E
from workflows.contract.ids import EffectId
from workflows.contract.job import JobStart
from workflows.contract.steps import PlannedCall, ReconcileInput, ReconcileOutput, ToolOutput, Whom
from workflows.journal import Journal
from workflows.people import People
from workflows.steps import Steps

ASKED_AGAIN_AFTER_S = 5.0
"""A tool that has not found the effect is asked once more, so much later and not before the write's own time is over:
what was sent may still be on its way."""
NOT_KNOWN = ReconcileOutput(outcome="not_known")


class Doubt:
    def __init__(self, start: JobStart, journal: Journal, steps: Steps, people: People) -> None:
        self._start = start
        self._journal = journal
        self._steps = steps
        self._people = people

    async def resolve(self, step: int, call: PlannedCall, effect: EffectId, over_at: datetime) -> ToolOutput:
        """What came of it, as the model is told. `over_at`: when the time of the write's last attempt is over. Raises
        JobFailed(EFFECT_UNKNOWN) where nobody knows; what ends the job meanwhile is raised as everywhere."""
        told = await self._ask_tool(step, call, effect, over_at)
        if told.outcome == "not_known":
            told = await self._ask_person(step, call, effect)
        happened = told.outcome == "happened"
        message = f"{call.tool} {'took effect' if happened else 'did not take effect'}, as was found out afterwards."
        self._journal.doubts.discard(effect)
        self._journal.emit(
            E.EFFECT_RECONCILED,
            message,
            {"tool": call.tool, "effect_id": effect, "outcome": told.outcome},
            executed=self._journal.executed(),
        )
        return ToolOutput(outcome="ok" if happened else "error", result_ref=told.result_ref, message=message)

    async def _ask_tool(self, step: int, call: PlannedCall, effect: EffectId, over_at: datetime) -> ReconcileOutput:
        """`not_known` also where the question itself fails: then a person is asked."""
        told = await self._ask(step, call, effect, ask="tool")
        if told.outcome == "did_not_happen" and told.by == "tool":
            await self._steps.pause(max(ASKED_AGAIN_AFTER_S, (over_at - workflow.now()).total_seconds()))
            told = await self._ask(step, call, effect, ask="believe_tool")
        return told

    async def _ask_person(self, step: int, call: PlannedCall, effect: EffectId) -> ReconcileOutput:
        self._steps.may_go_on()
        request = self._people.open_reconciliation(call, effect)
        told = NOT_KNOWN

        async def known() -> bool:
            nonlocal told
            told = await self._ask(step, call, effect, ask="ledger")
            return told.outcome != "not_known"

        ruling = await self._people.ruling(request, known)
        if told.outcome != "not_known":
            return told
        if ruling.verdict == "settle" and ruling.answer != "stop":
            told = await self._ask(step, call, effect, ask="ledger")
            if told.outcome != "not_known":
                return told
        raise JobFailed(FailureCode.EFFECT_UNKNOWN, f"It is not known whether {call.tool} took effect.")

    async def _ask(
        self,
        step: int,
        call: PlannedCall,
        effect: EffectId,
        *,
        ask: Whom,
    ) -> ReconcileOutput:
        def asked(attempt: int) -> ReconcileInput:
            return ReconcileInput(
                step=step,
                call=call.call,
                attempt=attempt,
                tool=call.tool,
                effect_id=effect,
                ask=ask,
                progress=self._journal.progress(),
                action_digest=call.action_digest,
            )

        def replaced(attempt: int, failure: StepError, delay: float) -> None:
            if self._steps.over():
                return
            self._journal.emit(
                E.ATTEMPT_REPLACED,
                f"Finding out what came of {call.tool} did not succeed: {failure.detail} "
                f"Attempt {attempt} follows in {delay:g} s.",
                {
                    "step": step,
                    "attempt": attempt,
                    "reason": failure.step_code,
                    "retry_in_s": delay,
                    "tool": call.tool,
                },
            )

        try:
            return await self._steps.reconcile(asked, replaced, f"what came of {call.tool}?")
        except StepError:
            return NOT_KNOWN
