"""One write, sent at most as its class allows: what the ledger knows of it, the permit, the sending, the outcome.

A `write` found sent without an outcome is unknown and is not sent again; an outcome that is recorded is given again
without sending, also after an operator's reset. What was sent is awaited to its own timeout even if the engine gave the
attempt up, and its outcome is recorded under the attempt's own epoch.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime

from sqlalchemy import Connection
from temporalio import activity

from gateway.blobs import Blobs
from gateway.calls.attempts import Attempt
from gateway.calls.egress import BeforeBytes, NotSent, ReplyLost
from gateway.calls.http_tool import ToolOutcome
from gateway.calls.permits import Permits
from gateway.calls.replies import OUTCOME_OF, RECORDED_AS, answers_later, result_bytes, sentence
from gateway.calls.standing import Granted
from gateway.ledger import effects
from gateway.ledger.callbacks import OfCall, standing_callback
from gateway.ledger.effects import EffectRow, Intent
from gateway.ledger.engine import Ledger
from workflows.contract.errors import Refused, StepCode, StepError
from workflows.contract.ids import BlobRef
from workflows.contract.steps import ToolOutput

RECORDING_S = 2.0
"""An outcome is tried to be recorded at least for so long, however much of its time the call used."""
BETWEEN_TRIES_S = 0.1

Send = Callable[[int, BeforeBytes], Awaitable[ToolOutcome]]
"""Sends with this epoch; raises NotSent, ReplyLost, what the permit raises, and StepError for a retryable answer."""
UNKNOWN = ToolOutcome("unknown", 0)


def overtaken() -> StepError:
    return StepError(StepCode.STALE, "Another attempt has taken this effect over.")


class _Sending:
    """The permit of one sending. `left`: bytes may have left, so the permit is used up."""

    def __init__(self, permits: Permits, attempt: Attempt, intent: Intent, seen_epoch: int) -> None:
        self._permits = permits
        self._attempt = attempt
        self._intent = intent
        self._seen_epoch = seen_epoch
        self._asking: asyncio.Task[Granted] | None = None
        self.left = False

    async def take(self) -> None:
        """Shielded: a transaction that is under way may commit, and then its permit must not be forgotten."""
        self._asking = asyncio.create_task(self._permits.take(self._attempt, self._intent, self._seen_epoch))
        await asyncio.shield(self._asking)
        self.left = True

    async def give_back(self) -> None:
        if self._asking is None or self.left:
            return
        with contextlib.suppress(StepError, Refused):
            await self._permits.give_back(self._attempt, self._intent, await self._asking)


class Writes:
    """One per process."""

    def __init__(self, ledger: Ledger, blobs: Blobs, permits: Permits) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._permits = permits

    async def run(self, attempt: Attempt, intent: Intent, send: Send, *, timeout_s: float) -> ToolOutput:
        row = await self._ledger.read(lambda conn: effects.find_effect(conn, intent.effect_id))
        if row is not None and (known := await self._known(attempt, row)) is not None:
            return known
        seen = 0 if row is None else row.epoch
        sending = _Sending(self._permits, attempt, intent, seen)
        until = asyncio.get_running_loop().time() + timeout_s + RECORDING_S
        work = asyncio.create_task(self._send(attempt, intent, seen + 1, send, sending, until))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not sending.left or _going_down():
                work.cancel()
            with contextlib.suppress(StepError, Refused, asyncio.CancelledError):
                await work
            raise

    async def _known(self, attempt: Attempt, row: EffectRow) -> ToolOutput | None:
        """What the ledger already knows to tell; None where the effect may be sent (again)."""
        match row.state:
            case "confirmed" | "reconciled":
                return _output(row.tool, ToolOutcome("confirmed", 0), row.outcome_ref, row.epoch)
            case "failed":
                return _output(row.tool, ToolOutcome("failed", 0), row.outcome_ref, row.epoch)
            case "sent" | "unknown" if row.effect == "write":
                if row.state == "sent" and (until := await self._awaited_until(row)) is not None:
                    return answers_later(row.tool, until, row.epoch)
                await self._ledger.write_grouped(
                    lambda conn: effects.record_outcome(
                        conn, row.effect_id, row.epoch, "unknown", None, at=attempt.clock.now()
                    ),
                    key=attempt.key,
                )
                return _output(row.tool, UNKNOWN, None, row.epoch)
            case _:
                return None

    async def _awaited_until(self, row: EffectRow) -> datetime | None:
        """Whoever sent it may have died before it told that the tool answers later: the tool still can."""
        of = OfCall(row.workspace, row.job_id, row.step, row.call)
        standing = await self._ledger.read(lambda conn: standing_callback(conn, of))
        return None if standing is None else standing.expires_at

    async def _send(
        self, attempt: Attempt, intent: Intent, epoch: int, send: Send, sending: _Sending, until: float
    ) -> ToolOutput:
        try:
            outcome = await send(epoch, sending.take)
        except NotSent as failure:
            await sending.give_back()
            raise StepError(StepCode.CONNECT_REFUSED, failure.reason) from None
        except ReplyLost as failure:
            await self._record(attempt, intent, epoch, UNKNOWN, until)
            if intent.effect == "idempotent_write":
                raise StepError(StepCode.UNAVAILABLE, failure.reason) from None
            return _output(intent.tool, UNKNOWN, None, epoch)
        except StepError:
            if sending.left:  # an answer after which the same effect may be sent again
                await self._record(attempt, intent, epoch, UNKNOWN, until)
            raise
        except asyncio.CancelledError:
            await sending.give_back()
            raise
        if outcome.until is not None:
            return answers_later(intent.tool, outcome.until, epoch)
        ref = await self._record(attempt, intent, epoch, outcome, until)
        return _output(intent.tool, outcome, ref, epoch)

    async def _record(
        self, attempt: Attempt, intent: Intent, epoch: int, outcome: ToolOutcome, until: float
    ) -> BlobRef | None:
        """Keeps result and outcome, trying again while there is time. Without a blob store the outcome still counts; an
        answer to an attempt that was overtaken leaves no bytes behind."""
        ref: BlobRef | None = None
        state, at = RECORDED_AS[outcome.state], attempt.clock.now()
        if state != "unknown":
            with contextlib.suppress(Refused):
                row = await self._ledger.read(lambda conn: effects.find_effect(conn, intent.effect_id))
                if row is None or row.epoch != epoch or row.state not in effects.NOT_KNOWN:
                    raise overtaken()
                ref = await self._blobs.keep(attempt.workspace, attempt.job_id, result_bytes(outcome))

        def record(conn: Connection) -> tuple[bool, bool]:
            row = effects.hold_effect(conn, intent.effect_id)
            mine = effects.record_outcome(conn, intent.effect_id, epoch, state, ref, at=at)
            return mine, row is not None and row.state == "unknown" != state

        while True:
            try:
                mine, late = await self._ledger.write_grouped(record, key=attempt.key)
            except Refused:
                if asyncio.get_running_loop().time() + BETWEEN_TRIES_S > until:
                    raise
                await asyncio.sleep(BETWEEN_TRIES_S)
                continue
            if not mine:
                raise overtaken()
            if late:
                self._permits.tell_known(attempt, intent.effect_id)
            return ref


def _output(tool: str, outcome: ToolOutcome, ref: BlobRef | None, epoch: int) -> ToolOutput:
    return ToolOutput(
        outcome=OUTCOME_OF[outcome.state],
        result_ref=ref,
        message=sentence(tool, outcome.state, outcome.message),
        epoch=epoch,
    )


def _going_down() -> bool:
    details = activity.cancellation_details()
    return details is not None and details.worker_shutdown
