"""The calls of one turn: refuse, ask or run. Reads run in parallel, writes one at a time as they become permitted.

A write that may have left is never abandoned: it runs in a task of its own that a cancel does not reach, and the job
waits for its word. An outcome that is not known is called unknown and ends the job; it is never repeated.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

from workflows.contract.errors import FailureCode, JobFailed, JobgateError, StepCode, StepError
from workflows.contract.events import EventType as E
from workflows.contract.gates import PacketTerms
from workflows.contract.ids import EffectId, effect_id
from workflows.contract.job import CallResult, JobStart, OpenRequest
from workflows.contract.steps import CallbackInput, PlannedCall, ToolInput, ToolOutput
from workflows.doubt import Doubt
from workflows.journal import Journal
from workflows.meter import Meter
from workflows.people import People
from workflows.policy.deadline import remaining
from workflows.steps import Steps

MAY_HAVE_LEFT = frozenset({StepCode.LOST, StepCode.DEADLINE, StepCode.INTERNAL, StepCode.EFFECT_UNKNOWN})
"""Ends of a `write` after which nobody here can say whether it was sent."""

MAYBE_DONE = MAY_HAVE_LEFT | {StepCode.UNAVAILABLE, StepCode.RATE_LIMITED}
"""The same of an `idempotent_write`, which is tried again after answers that leave it open, too."""

CUT_OFF = frozenset({FailureCode.TOOL_FAILED, FailureCode.MODEL_FAILED, FailureCode.EFFECT_UNKNOWN})
AT_THE_DEADLINE = timedelta(seconds=0.5)
CALLED = frozenset(
    {StepCode.UNAVAILABLE, StepCode.RATE_LIMITED, StepCode.REJECTED, StepCode.RESULT_TOO_LARGE, StepCode.LOST}
)
"""Ends of an attempt that a worker had begun: the job has been executing."""

FAILURE_OF_STEP = {
    StepCode.AUTHORITY_REVOKED: FailureCode.AUTHORITY_REVOKED,
    StepCode.PHASE_CLOSED: FailureCode.AUTHORITY_REVOKED,
    StepCode.DEADLINE: FailureCode.DEADLINE_EXCEEDED,
    StepCode.SNAPSHOT_MISMATCH: FailureCode.SNAPSHOT_MISMATCH,
    StepCode.EFFECT_UNKNOWN: FailureCode.EFFECT_UNKNOWN,
    StepCode.NO_RECEIPT: FailureCode.INPUT_REJECTED,
    StepCode.RESULT_TOO_LARGE: FailureCode.RESULT_TOO_LARGE,
    StepCode.INTERNAL: FailureCode.INTERNAL,
}


class Stopped(JobgateError):
    """The ledger holds a stop for this job: nothing was sent, and the cancel that goes with it is on its way."""

    def __init__(self) -> None:
        super().__init__("stopped", "A stop stands in the ledger.")


class Calls:
    def __init__(
        self,
        start: JobStart,
        journal: Journal,
        steps: Steps,
        meter: Meter,
        people: People,
        may_start: Callable[[], None],
    ) -> None:
        self._start = start
        self._journal = journal
        self._steps = steps
        self._meter = meter
        self._people = people
        self._may_start = may_start
        self._doubt = Doubt(start, journal, steps, people)
        self._revoked = False
        self._write_turn = asyncio.Lock()
        self.writes: set[asyncio.Task[CallResult]] = set()
        self.packet: PacketTerms | None = None

    async def act(self, step: int, calls: Sequence[PlannedCall]) -> tuple[CallResult, ...]:
        """All results of the turn that model step `step` proposed, in call order.

        Every request of the turn opens before anything runs. The step that proposed a call is part of its effect id:
        unlike the step that runs it, it does not depend on the order in which people decide.
        """
        self._stay_a_canary(calls)
        asked = {call.call: self._people.open(call) for call in calls if call.verdict == "ask"}
        tasks = [asyncio.create_task(self._settle(step, call, asked.get(call.call))) for call in calls]
        if not tasks:
            return ()
        try:
            await workflow.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()  # raises the failure that ended the wait
            return tuple(task.result() for task in tasks)
        finally:
            for task in tasks:
                if not task.cancel() and not task.cancelled():
                    task.exception()  # seen: the first failure is the one that is raised

    def _stay_a_canary(self, calls: Sequence[PlannedCall]) -> None:
        """A job that runs by a packet calls only what the packet names, and nothing that writes."""
        for call in calls:
            if self.packet is None or call.verdict == "refuse" or call.kind == "question":
                continue
            if call.effect != "read" or call.tool not in self.packet.tools:
                detail = f"It would call {call.tool}, which its packet does not allow; nothing of that ran."
                raise JobFailed(FailureCode.CANARY_INCONCLUSIVE, detail)

    async def _settle(self, step: int, call: PlannedCall, request: OpenRequest | None) -> CallResult:
        if call.verdict == "refuse":
            return self._refuse(call, call.reason)
        if call.verdict == "ask":
            if request is None:
                return self._refuse(call, "The same call was proposed to people too often.")
            try:
                ruling = await self._people.ruling(request)
            except StepError as error:
                raise self.failure(error, FailureCode.INTERNAL) from None
            request = self._people.current(request)
            if ruling.verdict == "answer":
                return CallResult(call=call.call, tool=call.tool, outcome="answered", result_ref=ruling.answer_ref)
            if ruling.verdict != "approve":
                outcome = "expired" if ruling.verdict == "expired" else "rejected"
                return CallResult(call=call.call, tool=call.tool, outcome=outcome, result_ref=ruling.answer_ref)
        if call.effect == "read":
            return await self._run(step, call, None, request)
        async with self._write_turn:
            self._may_start()
            task = asyncio.create_task(self._run(step, call, self._effect_id(step, call), request))
            self.writes.add(task)
            task.add_done_callback(self.writes.discard)
            return await asyncio.shield(task)

    async def _run(
        self, step: int, call: PlannedCall, effect: EffectId | None, request: OpenRequest | None
    ) -> CallResult:
        self._meter.spend_step()
        named = {"tool": call.tool, "call": call.call, "effect": call.effect, "effect_id": effect}
        self._journal.steps_running += 1
        self._journal.emit(E.TOOL_STARTED, call.message, {**named, "attempt": 1})
        lost: list[StepError] = []
        timeout_s = self._start.tools[call.tool].timeout_s
        over_at = workflow.now()

        def asked(attempt: int) -> ToolInput:
            nonlocal over_at
            over_at = workflow.now() + timedelta(seconds=timeout_s)
            return ToolInput(
                step=step,
                call=call.call,
                attempt=attempt,
                tool=call.tool,
                effect=call.effect,
                action_digest=call.action_digest,
                args_ref=call.args_ref,
                effect_id=effect,
                request_id=request.request_id if request else None,
                timeout_s=timeout_s,
                progress=self._journal.progress(),
            )

        def replaced(attempt: int, failure: StepError, delay: float) -> None:
            lost.append(failure)
            again = call.effect != "write" or failure.step_code not in MAY_HAVE_LEFT
            then = "follows" if again else "sends nothing and finds out what is known of it"
            self.replace_attempt(f"Calling {call.tool}", step, attempt, failure, delay, then, tool=call.tool)

        try:
            try:
                reply = await self._steps.tool(call.effect, asked, replaced, f"{call.tool} ({call.effect})")
                if reply.outcome == "pending":
                    reply = await self._answered_later(step, call, reply)
            finally:
                self._journal.steps_running -= 1
        except StepError as error:
            if call.effect != "write" or error.step_code not in MAY_HAVE_LEFT:
                self._tell_doubt(call, effect, [*lost, error])
                raise self.failure(error, FailureCode.TOOL_FAILED, call.tool) from None
            reply = ToolOutput(outcome="unknown", message="")
        except (asyncio.CancelledError, JobFailed):
            if call.effect != "write" or not any(failure.step_code in MAY_HAVE_LEFT for failure in lost):
                self._tell_doubt(call, effect, lost)
                raise
            reply = ToolOutput(outcome="unknown", message="")
        if reply.outcome == "unknown" or reply.outcome == "pending":
            self._doubtful(call, effect)
            self._may_start()
            if effect is None or not workflow.patched("reconcile"):
                raise self._ended(FailureCode.EFFECT_UNKNOWN, f"The outcome of {call.tool} is not known.")
            reply = await self._doubt.resolve(step, call, effect, over_at)
            assert reply.outcome == "ok" or reply.outcome == "error"
        self._journal.amend(executed=self._journal.executed())
        self._journal.emit(E.TOOL_FINISHED, reply.message, {**named, "outcome": reply.outcome})
        self._meter.warn()
        return CallResult(call=call.call, tool=call.tool, outcome=reply.outcome, result_ref=reply.result_ref)

    def _tell_doubt(self, call: PlannedCall, effect: EffectId | None, failures: Sequence[StepError]) -> None:
        """A write that the job gives up, for whatever reason, may have left by any of its attempts."""
        doubtful = MAY_HAVE_LEFT if call.effect == "write" else MAYBE_DONE
        if effect is not None and any(failure.step_code in doubtful for failure in failures):
            self._doubtful(call, effect)

    def _doubtful(self, call: PlannedCall, effect: EffectId | None) -> None:
        if effect is not None:
            self._journal.doubts.add(effect)
        self._journal.emit(
            E.EFFECT_UNKNOWN,
            f"It is not known whether {call.tool} took effect; it is not repeated.",
            {"tool": call.tool, "call": call.call, "effect_id": effect},
            executed="unknown",
        )

    async def _answered_later(self, step: int, call: PlannedCall, accepted: ToolOutput) -> ToolOutput:
        """Wait for the callback of a tool that took the call, with no process held. Silence is an error where the call
        only read, and an unknown effect where it wrote."""
        self._journal.amend(executed=self._journal.executed())
        self._journal.publish()  # no step's heartbeat tells readers of this call any more
        until = min(accepted.callback_until or self._start.deadline, self._start.deadline)
        silence = ToolOutput(outcome="unknown", message="")
        if call.effect == "read":
            silence = ToolOutput(outcome="error", message=f"{call.tool} did not answer in time.")
        while True:
            hinted = await self._people.called_back(step, call.call, until)
            if self._steps.over():
                return silence
            try:
                answer = await self._steps.read_callback(CallbackInput(step=step, call=call.call, close=not hinted))
            except StepError:
                if call.effect == "read":
                    raise
                return silence
            if answer.outcome is not None:
                said = "answered." if answer.outcome == "ok" else "answered that it did not succeed."
                return ToolOutput(outcome=answer.outcome, result_ref=answer.result_ref, message=f"{call.tool} {said}")
            if not hinted:
                return silence

    def _effect_id(self, step: int, call: PlannedCall) -> EffectId:
        return effect_id(self._start.workspace, self._start.job_id, step, call.call, call.action_digest)

    def _refuse(self, call: PlannedCall, reason: str) -> CallResult:
        self._journal.emit(
            E.TOOL_REFUSED,
            f"Refused: {call.tool}. {reason}",
            {"tool": call.tool, "call": call.call, "reason": reason},
        )
        return CallResult(call=call.call, tool=call.tool, outcome="refused", note=reason)

    def replace_attempt(
        self, what: str, step: int, attempt: int, failure: StepError, delay: float, then: str = "follows", **more: Any
    ) -> None:
        """The event between two attempts at one step; `then`: what the next one does."""
        self._journal.amend(executed=self._journal.executed())
        self._journal.emit(
            E.ATTEMPT_REPLACED,
            f"{what} did not succeed: {failure.detail} Attempt {attempt} {then} in {delay:g} s.",
            {"step": step, "attempt": attempt, "reason": failure.step_code, "retry_in_s": delay, **more},
        )

    def failure(self, error: StepError, otherwise: FailureCode, tool: str | None = None) -> JobgateError:
        """How a step without further attempts ends the job; a stop in the ledger only waits for its cancel.

        Raises instead where a cancel or the deadline is the reason.
        """
        if error.step_code is StepCode.STOPPED:
            return Stopped()
        self._may_start()  # the deadline is the reason for whatever a step says at that instant
        if error.step_code in CALLED and self._journal.view.executed == "no":
            self._journal.amend(executed=self._journal.executed())
        code = FAILURE_OF_STEP.get(error.step_code, otherwise)
        if code is FailureCode.AUTHORITY_REVOKED:
            self._tell_revoked(error.detail, error.step_code)
        return self._ended(code, f"{tool}: {error.detail}" if tool else error.detail)

    def revoked(self, reason: str) -> JobFailed:
        """How a job ends whose authority is gone; the event that says so comes first."""
        self._tell_revoked(reason, StepCode.AUTHORITY_REVOKED)
        return JobFailed(FailureCode.AUTHORITY_REVOKED, reason)

    def _tell_revoked(self, reason: str, code: StepCode) -> None:
        """Once: a call that was refused and the hint that goes with it may arrive together."""
        if not self._revoked:
            self._revoked = True
            self._journal.emit(E.AUTHORITY_REVOKED, reason, {"reason": code})

    def _ended(self, code: FailureCode, detail: str) -> JobFailed:
        """A call is cut off by the deadline a moment before the deadline's own timer: then that is the reason."""
        if code in CUT_OFF and remaining(self._start.deadline, workflow.now()) < AT_THE_DEADLINE:
            return JobFailed(FailureCode.DEADLINE_EXCEEDED, f"The deadline passed before the job was done. {detail}")
        return JobFailed(code, detail)
