"""The loop of one job, from its receipt to its end, by one absolute deadline.

`run` reads top to bottom: pass the gate, think, act, until an answer; whatever happens meanwhile (cancel, deadline, a
failure) ends in one place. The end record is the result, the failure's details, or (canceled) in the memo.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.calls import Calls, Stopped
from workflows.contract.errors import FailureCode, JobFailed, JobgateError, StepError
from workflows.contract.events import Event
from workflows.contract.events import EventType as E
from workflows.contract.gates import Eligibility, PacketTerms
from workflows.contract.job import (
    INLINE_RESULT_BYTES,
    MEMO_START,
    SEGMENT_BYTES,
    SEGMENT_EVENTS,
    EndRecord,
    Failure,
    JobStart,
    LoopState,
    SegmentRef,
    Status,
)
from workflows.contract.steps import (
    Hint,
    ModelInput,
    ModelOutput,
    PublishInput,
    ViewInput,
    ViewOutput,
)
from workflows.journal import Journal, about, identity_of
from workflows.meter import Meter
from workflows.opening import memo_of, planned, queued_view
from workflows.people import People
from workflows.policy.deadline import remaining
from workflows.policy.eligibility import classify
from workflows.steps import Steps, uninterrupted

LAST_WORD = timedelta(seconds=3)
"""How long a job whose deadline passed waits for the word of a write that was already sent."""

HEARD_OF_BY = timedelta(seconds=10)
"""How long after its own timeout a write's word may take: its attempt's last heartbeat, and the next attempt's look."""


class RollOver(Exception):
    """The loop has reached a turn boundary at which the job continues in a new run."""


class Loop:
    def __init__(self, start: JobStart) -> None:
        self._start = start
        self._memo = memo_of(start)
        opening = queued_view(self._memo)
        state = start.state or LoopState(view=opening, seq=1, events=(opening.last_event,))
        identity = identity_of(start) if start.state is None else ()
        self._journal = Journal(state.view, state.events, state.segments, state.seq, identity, about(start))
        self._steps = Steps(start.deadline, start.heartbeat_s, self._may_start, start.tool_queue)
        self._meter = Meter(self._journal, start.limits, self._may_start, state.step, state.warned)
        self._people = People(
            self._journal,
            self._steps,
            start,
            opened=state.requests_opened,
            refused=state.refused_decisions,
            asked=state.asked,
            inbox=state.inbox,
        )
        self._calls = Calls(start, self._journal, self._steps, self._meter, self._people, self._may_start)
        self._turn, self._results = state.turn, state.results
        self._conversation = state.conversation if start.state is not None else start.conversation
        self._ending = self._looking = False
        self._packet: PacketTerms | None = None

    async def run(self) -> EndRecord:
        self._publisher = asyncio.create_task(self._publish())
        work = asyncio.create_task(self._work())
        clock = asyncio.create_task(workflow.sleep(remaining(self._start.deadline, workflow.now()), summary="deadline"))
        guard = asyncio.create_task(self._guard())
        for task in (work, guard):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # none is left unheard
        try:
            await workflow.wait([work, clock, guard], return_when=asyncio.FIRST_COMPLETED)
            stopped = work.done() and isinstance(work.exception(), Stopped)
            if stopped:
                await clock  # the cancel that goes with the stop ends this wait
            if workflow.cancellation_reason() is not None:
                raise asyncio.CancelledError
            if guard.done() and not work.done():
                guard.result()
            if stopped or not work.done():
                raise JobFailed(FailureCode.DEADLINE_EXCEEDED, "The deadline passed before the job was done.")
            self._succeed(work.result())
            return self._journal.end_record()
        except RollOver:
            self._continue_as_new()
        except asyncio.CancelledError:
            await self._end_canceled(work)
            raise
        except JobgateError as error:
            failure = await self._end_failed(work, error)
        raise ApplicationError(failure.message, self._journal.end_record(), type=failure.code, non_retryable=True)

    def view(self, asked: ViewInput) -> ViewOutput:
        """The job as it is now, with the events after a cursor."""
        return ViewOutput(
            view=self._journal.view,
            events=self._journal.after(asked.after, asked.limit),
            segments=tuple(self._journal.segments),
            last_seq=self._journal.seq,
        )

    def hint(self, name: str, args: Sequence[RawValue]) -> None:
        """A signal arrived; what it claims is read from the ledger."""
        if not self._ending:
            self._people.receive(name, args)

    def recovered(self, tag: str) -> None:
        """An operator reset the job to here. What ran since is not seen, so it is not denied; nobody's word from before
        counts; and whether the job may go on is asked of the ledger."""
        if not workflow.patched("recovered"):
            return
        self._journal.recovered(tag)
        view = self._journal.view
        if self._start.mode == "live" and view.executed == "no" and view.eligibility is Eligibility.LIVE_APPROVED:
            self._journal.amend(executed="unknown")
        if not self._ending:
            self._people.ask_anew(tag)
            self._people.inbox.add(Hint.AUTHORITY)

    # ---- the loop

    async def _work(self) -> ModelOutput | None:
        """The final answer, or None for a dry run, which ends without one activity."""
        self._may_start()
        await self._pass_gate()
        if self._start.mode == "dry_run":
            return None
        if self._journal.view.status is Status.QUEUED:
            self._journal.emit(E.JOB_STARTED, "The job started.", started_at=workflow.now())
        while True:
            await self._keep_small()
            step, reply = await self._think()
            if reply.final_ref is not None:
                await self._deliver(reply)
                return reply
            self._results = await self._calls.act(step, reply.calls)

    async def _guard(self) -> None:
        """Ends the job when the ledger says that its authority is gone; a hint only makes it look."""
        while True:
            await workflow.wait_condition(lambda: self._start.mode == "live" and Hint.AUTHORITY in self._people.inbox)
            self._people.inbox.discard(Hint.AUTHORITY)
            self._looking = True
            try:
                ruling = await self._steps.read_authority()
            except StepError as error:
                raise self._calls.failure(error, FailureCode.INTERNAL) from None
            self._looking = False
            if ruling.revoked:
                raise self._calls.revoked(ruling.reason)

    async def _pass_gate(self) -> None:
        """Judge once more what admission judged; a live job whose gate is not open is held until the gate opens."""
        verdict, dry = classify(self._start.facts), self._start.mode == "dry_run"
        if verdict.eligibility is Eligibility.BLOCKED or (verdict.eligibility is Eligibility.LOCAL_ONLY and not dry):
            raise JobFailed(FailureCode.INPUT_REJECTED, "This job may not run.")
        if dry or self._journal.view.eligibility is Eligibility.LIVE_APPROVED:
            return
        self._journal.emit(E.JOB_HELD, f"Held. {verdict.not_yet}", {"blocker": verdict.blocker})
        while True:
            await workflow.wait_condition(lambda: Hint.GATE in self._people.inbox)
            self._people.inbox.discard(Hint.GATE)
            try:
                gate = await self._steps.read_gate()
            except StepError as error:
                raise self._calls.failure(error, FailureCode.INTERNAL) from None
            if gate.revoked:
                raise self._calls.revoked("The principal's authority was revoked.")
            if gate.open:
                self._be_canary(gate.packet)
                self._journal.emit(
                    E.JOB_RELEASED, "Released to run.", eligibility=Eligibility.LIVE_APPROVED, blocker=None
                )
                return

    def _be_canary(self, terms: PacketTerms | None) -> None:
        """A job that a packet let run: so many steps, these tools, and anything but success proves nothing."""
        if terms is not None:
            self._packet = self._calls.packet = terms
            self._meter.allow_steps(terms.max_steps)

    async def _keep_small(self) -> None:
        """At a turn boundary: archive full segments of events, and roll over when the history has grown enough."""
        while (events := self._journal.segment(SEGMENT_EVENTS, SEGMENT_BYTES)) and await self._archive(events):
            pass
        info, knob = workflow.info(), self._start.roll_over_after
        due = info.get_current_history_length() >= knob if knob else info.is_continue_as_new_suggested()
        if self._packet is not None:
            return  # a packet is redeemed by one run of its job, and lets no other one call
        if due and workflow.all_handlers_finished() and workflow.cancellation_reason() is None:
            raise RollOver

    async def _archive(self, events: tuple[Event, ...]) -> bool:
        """Whether more may follow: until now, only so many events were a segment, and one for each turn."""
        many = workflow.patched("segments-by-size")
        if not many and len(events := tuple(self._journal.events[:SEGMENT_EVENTS])) < SEGMENT_EVENTS:
            return False
        try:
            ref = await self._steps.archive(events)
        except StepError as error:
            raise self._calls.failure(error, FailureCode.INTERNAL) from None
        last = self._journal.seq - len(self._journal.events) + len(events)
        self._journal.archived(SegmentRef(first=last - len(events) + 1, last=last, ref=ref))
        return many

    async def _think(self) -> tuple[int, ModelOutput]:
        """One model step: its number and what the model wants next."""
        step = self._meter.spend_step()
        self._turn += 1
        turn = self._turn
        self._journal.steps_running += 1
        self._journal.emit(E.STEP_STARTED, f"Turn {turn}: asking the model.", {"turn": turn, "attempt": 1})

        def asked(attempt: int) -> ModelInput:
            return ModelInput(
                step=step,
                turn=turn,
                attempt=attempt,
                conversation=self._conversation,
                results=self._results,
                progress=self._journal.progress(),
            )

        def replaced(attempt: int, failure: StepError, delay: float) -> None:
            self._calls.replace_attempt("Asking the model", step, attempt, failure, delay)

        try:
            reply = await self._steps.model(asked, replaced, f"turn {turn}")
        except StepError as error:
            raise self._calls.failure(error, FailureCode.MODEL_FAILED) from None
        finally:
            self._journal.steps_running -= 1
        self._turn, self._conversation, self._results = reply.turn, reply.conversation, ()
        self._meter.spend_tokens(reply)
        self._journal.amend(executed="yes")
        self._journal.emit(
            E.STEP_FINISHED,
            reply.say or f"Turn {reply.turn}: the model answered.",
            {
                "turn": reply.turn,
                "calls": len(reply.calls),
                "input_tokens": reply.input_tokens,
                "output_tokens": reply.output_tokens,
                "estimated": reply.estimated,
            },
        )
        self._meter.warn()
        return step, reply

    async def _deliver(self, reply: ModelOutput) -> None:
        """A result too large for a status is published as an artifact before the job calls itself done."""
        if reply.final_bytes <= INLINE_RESULT_BYTES or reply.final_ref is None or not workflow.patched("artifacts"):
            return
        ref = reply.final_ref
        self._journal.amend(delivery="pending")

        def asked(attempt: int) -> PublishInput:
            progress = self._journal.progress()
            return PublishInput(
                ref=ref, name="result.json", bytes=reply.final_bytes, attempt=attempt, progress=progress
            )

        def replaced(attempt: int, failure: StepError, delay: float) -> None:
            self._calls.replace_attempt("Publishing the result", self._meter.step, attempt, failure, delay)

        self._journal.steps_running += 1
        try:
            published = (await self._steps.publish(asked, replaced)).artifact
        except StepError as error:
            raise self._calls.failure(error, FailureCode.INTERNAL) from None
        finally:
            self._journal.steps_running -= 1
        self._journal.emit(
            E.ARTIFACT_PUBLISHED,
            f"Published {published.name}, {published.bytes} bytes.",
            {"artifact_id": published.artifact_id, "name": published.name, "bytes": published.bytes},
            artifacts=(*self._journal.view.artifacts, published),
            delivery="delivered",
        )

    def _succeed(self, reply: ModelOutput | None) -> None:
        now = workflow.now()
        if reply is None:
            plan = planned(self._start)
            message = f"Dry run planned: {len(plan)} tools could be called. Nothing ran."
            self._journal.emit(E.JOB_SUCCEEDED, message, {"planned": len(plan)}, plan=plan, finished_at=now)
        elif reply.final_bytes <= INLINE_RESULT_BYTES or self._journal.view.delivery == "delivered":
            inline = reply.final_ref if reply.final_bytes <= INLINE_RESULT_BYTES else None
            self._journal.emit(E.JOB_SUCCEEDED, "Done.", result_ref=inline, finished_at=now)
        else:
            raise JobFailed(
                FailureCode.RESULT_TOO_LARGE,
                f"The result has {reply.final_bytes} bytes; at most {INLINE_RESULT_BYTES} are kept.",
            )
        self._journal.publish()

    def _may_start(self) -> None:
        """Asked before every attempt: nothing starts after a cancel or the deadline."""
        if workflow.cancellation_reason() is not None or self._ending:
            raise asyncio.CancelledError
        if workflow.now() >= self._start.deadline:
            raise JobFailed(FailureCode.DEADLINE_EXCEEDED, "The deadline passed before the job was done.")

    # ---- endings

    async def _publish(self) -> None:
        """Once everything else of this workflow task has settled, tell readers; the endings publish themselves."""
        while not self._ending:
            await workflow.wait_condition(self._journal.due)
            if not self._ending:
                self._journal.publish()

    async def _end_canceled(self, work: "asyncio.Task[ModelOutput | None]") -> None:
        self._ending = True
        await self._people.hear_out()
        self._journal.emit(E.CANCEL_REQUESTED, "Cancel requested.", cancel_requested_at=workflow.now())
        self._people.void_all()
        if self._calls.writes:
            self._journal.publish()
        await self._wind_down(
            work, self._longest_write() if self._calls.writes and workflow.patched("bounded-wind-down") else None
        )
        self._journal.emit(E.JOB_CANCELED, "Canceled.", finished_at=workflow.now())
        self._journal.publish()

    async def _end_failed(self, work: "asyncio.Task[ModelOutput | None]", error: JobgateError) -> Failure:
        self._ending = True
        code = error.failure if isinstance(error, JobFailed) else FailureCode.INTERNAL
        message = error.detail
        if self._packet is not None and code is not FailureCode.AUTHORITY_REVOKED:
            code, message = FailureCode.CANARY_INCONCLUSIVE, f"The canary proves nothing ({code}). {error.detail}"
        failure = Failure(code=code, message=message)
        await self._people.hear_out()
        self._people.void_all()
        await self._wind_down(work, LAST_WORD if code is FailureCode.DEADLINE_EXCEEDED else None)
        self._journal.emit(
            E.JOB_FAILED, f"Failed: {failure.message}", {"code": code}, failure=failure, finished_at=workflow.now()
        )
        self._journal.publish()
        return failure

    async def _wind_down(self, work: "asyncio.Task[ModelOutput | None]", at_most: timedelta | None) -> None:
        """Stop what only reads, and wait for the word of writes that may have left."""
        if self._journal.steps_running and self._journal.view.executed == "no":
            self._journal.amend(executed="unknown")  # the first step is cut off, and nobody here saw whether it began
        work.cancel()
        if writes := list(self._calls.writes):
            timeout = None if at_most is None else at_most.total_seconds()
            await uninterrupted(workflow.wait(writes, timeout=timeout))
        for task in writes:
            if task.done() and not task.cancelled():
                task.exception()  # its event is in the log; the job ends for its own reason
            elif not task.done():
                self._journal.amend(executed="unknown")

    def _longest_write(self) -> timedelta:
        """A write that was sent is heard of by then; one that no worker took is not waited for."""
        timeouts = [row.timeout_s for row in self._start.tools.values() if row.effect != "read"]
        return timedelta(seconds=max(timeouts, default=0.0)) + HEARD_OF_BY

    def _continue_as_new(self) -> NoReturn:
        state = LoopState(
            view=self._journal.view,
            seq=self._journal.seq,
            events=self._journal.tail(),
            segments=tuple(self._journal.segments),
            turn=self._turn,
            step=self._meter.step,
            requests_opened=self._people.opened,
            refused_decisions=self._people.refused,
            warned=tuple(sorted(self._meter.warned)),
            asked=self._people.asked,
            conversation=self._conversation,
            results=self._results,
            inbox=tuple(sorted(self._people.inbox | ({Hint.AUTHORITY} if self._looking else set()))),
        )
        workflow.continue_as_new(
            self._start.model_copy(update={"state": state}), memo={MEMO_START: self._memo, **self._journal.memo()}
        )
