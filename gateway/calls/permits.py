"""The leave to call, judged against what is true now: for every call the ledger, for a write the engine as well.

`standing` is one read of the ledger; model, read and write begin with it. `take` is a permit to send one write: one
engine read and one transaction that ends with the next epoch. A permit lives 250 ms: it is taken when the connection
stands. Every refusal is a StepError and means that nothing was sent.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import timedelta

from pydantic import JsonValue
from sqlalchemy import Connection

from gateway.calls.attempts import Attempt
from gateway.calls.standing import NO_RECEIPT, STALE, STOPPED, Denied, Granted, Standing, decided, examine, permit
from gateway.changes import accept_job
from gateway.ledger import effects
from gateway.ledger.authorities import mark_open, renew_authority
from gateway.ledger.effects import Intent
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.ledger.sessions import move_head
from gateway.ledger.spending import Spent, record_spent
from gateway.ledger.stops import find_stop
from gateway.metrics import Metrics
from gateway.retrying import done_before
from gateway.temporal import Engine
from workflows.contract.errors import Refused, StepCode, StepError
from workflows.contract.ids import BlobRef, Digest, EffectId, JobId, RequestId, ToolName
from workflows.contract.job import EffectClass
from workflows.contract.steps import DecisionHint

PERMIT_LIVES_S = 0.25
ENGINES_WORD_LIVES_S = 1.0
"""How old the engine's word, that it waits for this attempt, may be when the ledger gives the permit."""
ASKS_WITHIN_S, ASKS_LOOKED_AT_EVERY_S = 15.0, 1.0
"""From a job's last look at a write that it does not know of until it is seen to ask people about it."""
SETTLING_S = 60.0
"""How long an answer waits for a ledger that does not take its bill: another attempt would ask, and cost, again."""
BETWEEN_TRIES_S = 0.2
REMEMBERED = 10_000
"""So many runs are known to be of their jobs without asking the engine again."""


class Permits:
    """One per process."""

    def __init__(self, ledger: Ledger, engine: Engine, metrics: Metrics, authority_ttl_s: float = 300.0) -> None:
        self._ledger = ledger
        self._engine = engine
        self._metrics = metrics
        self._ttl = timedelta(seconds=authority_ttl_s)
        self._descendants: set[tuple[str, str]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    async def standing(self, attempt: Attempt) -> Standing:
        """The job's receipt and its authority, renewed where less than half of its time is left. Raises StepError where
        the job may not call anything now."""
        await self._waited_for(attempt)
        standing = await self._ledger.read(lambda conn: examine(conn, attempt, attempt.clock.now()))
        if not isinstance(standing, Denied) and not standing.receipt.accepted:
            await self._confirm(attempt, standing.receipt)
            standing = await self._ledger.read(lambda conn: examine(conn, attempt, attempt.clock.now()))
        if isinstance(standing, Denied):
            raise await self.refuse(attempt, standing)
        await self._of_this_job(attempt, standing.receipt)
        authority = standing.authority
        if authority.ended_at is not None or authority.expires_at - attempt.clock.now() < self._ttl / 2:
            await self._renew(attempt)
        return standing

    async def _of_this_job(self, attempt: Attempt, row: ReceiptRow) -> None:
        """Whether this run goes back to the one that was admitted. A job that neither rolled over nor was reset is not
        asked about; another one once in each process. Raises StepError for an execution that was started by hand."""
        if row.first_run in (None, attempt.run_id) or (row.first_run, attempt.run_id) in self._descendants:
            return
        first = await self._engine.first_run(attempt.workspace, attempt.job_id, attempt.run_id)
        if first not in (None, row.first_run):
            raise await self.refuse(attempt, NO_RECEIPT)
        if len(self._descendants) >= REMEMBERED:
            self._descendants.clear()
        self._descendants.add((row.first_run or "", attempt.run_id))

    async def settle(
        self, attempt: Attempt, receipt: ReceiptRow, spent: Spent, conversation: BlobRef | None = None
    ) -> None:
        """An answer has arrived: record what it cost and, of a session, where its conversation stands; then look again
        whether the job may still use it. Raises StepError where its authority is gone."""

        def write(conn: Connection) -> Standing | Denied:
            record_spent(conn, spent)
            if receipt.session is not None and conversation is not None:
                move_head(
                    conn,
                    receipt.workspace,
                    receipt.session,
                    job_id=receipt.job_id,
                    step=spent.step,
                    attempt=spent.attempt,
                    conversation=conversation,
                )
            return examine(conn, attempt, attempt.clock.now())

        until = asyncio.get_running_loop().time() + SETTLING_S
        while True:
            try:
                standing = await self._ledger.write_grouped(write, key=attempt.key)
                break
            except Refused:
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(BETWEEN_TRIES_S)
        if isinstance(standing, Denied):
            raise await self.refuse(attempt, standing)

    async def look_again(self, attempt: Attempt) -> None:
        """Just before the bytes of a call without a permit leave. Raises StepError. What was seen is good for as long
        as a permit; whoever takes authority away waits so long before they say that nothing starts any more."""
        await self._waited_for(attempt)
        while True:
            began = time.monotonic()
            standing = await self._ledger.read(lambda conn: examine(conn, attempt, attempt.clock.now()))
            if isinstance(standing, Denied):
                raise await self.refuse(attempt, standing)
            if time.monotonic() - began <= PERMIT_LIVES_S:
                return

    async def need_decision(self, attempt: Attempt, request_id: RequestId | None, action: Digest) -> None:
        """For a call without an effect row that the policy asks about."""

        def look(conn: Connection) -> Denied | None:
            row = find_receipt(conn, attempt.workspace, attempt.job_id)
            return NO_RECEIPT if row is None else decided(conn, row, request_id, action, attempt.clock.now())

        refusal = await self._ledger.read(look)
        if refusal is not None:
            raise await self.refuse(attempt, refusal)

    async def done_before(
        self, job: ReceiptRow, tool: ToolName, effect: EffectClass, args: Mapping[str, JsonValue]
    ) -> JobId | None:
        """The job that this one repeats and in which this very write took effect."""
        if job.retry_of is None or effect == "read":
            return None
        return await self._ledger.read(lambda conn: done_before(conn, job, tool, args))

    async def take(self, attempt: Attempt, intent: Intent, seen_epoch: int) -> Granted:
        """The permit to send this write now. Raises StepError, and then nothing is sent."""
        began = time.monotonic()
        stop, _ = await asyncio.gather(
            self._ledger.read(lambda conn: find_stop(conn, attempt.workspace, attempt.job_id)),
            self._need_standing(attempt),
        )
        given = await self._ledger.write_grouped(
            lambda conn: permit(conn, attempt, intent, seen_epoch, authority_ttl=self._ttl), key=attempt.key
        )
        if isinstance(given, Denied):
            raise await self.refuse(attempt, given)
        if stop is not None:  # read apart from the permit, so that it tells on a permit that overlooked it
            self._metrics.writes_after_cancel.add(1)
        if time.monotonic() - given.at > PERMIT_LIVES_S or given.at - began > ENGINES_WORD_LIVES_S:
            await self.give_back(attempt, intent, given)
            raise await self.refuse(attempt, Denied(StepCode.STALE, "The permit ran out before anything was sent."))
        self._metrics.permits.add(1, {"outcome": "granted"})
        return given

    async def _waited_for(self, attempt: Attempt) -> None:
        """Where it is not sure what time it is, only the engine knows whether the deadline has come: it then waits for
        no attempt any more. Raises StepError."""
        if attempt.clock.differs:
            await self._need_standing(attempt)

    async def _need_standing(self, attempt: Attempt) -> None:
        """Raises StepError unless the engine waits for this very attempt."""
        standing = await self._engine.standing(
            attempt.workspace,
            attempt.job_id,
            run_id=attempt.run_id,
            activity_id=attempt.activity_id,
            attempt=attempt.number,
        )
        if standing != "current":
            raise await self.refuse(attempt, STOPPED if standing == "stopped" else STALE)

    async def give_back(self, attempt: Attempt, intent: Intent, given: Granted) -> None:
        """Nothing left under this permit: the next attempt may take another one."""

        def give(conn: Connection) -> bool:
            row = effects.hold_effect(conn, intent.effect_id)
            given_up = row is not None and row.state == "unknown"
            return effects.mark_not_sent(conn, intent.effect_id, given.epoch) and given_up

        if await self._ledger.write_grouped(give, key=attempt.key):
            self.tell_known(attempt, intent.effect_id)

    def tell_known(self, attempt: Attempt, effect: EffectId) -> asyncio.Task[None]:
        """What the job gave up as unknown is known after all: if it asks people about it, let it look once more. It may
        have looked a moment ago and be about to ask, so the question is waited for: apart from this attempt, which is
        not waited for any more and may be ended at any moment."""
        task = asyncio.create_task(self._tell_known(attempt, effect))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _tell_known(self, attempt: Attempt, effect: EffectId) -> None:
        until = time.monotonic() + ASKS_WITHIN_S
        while time.monotonic() < until:
            with contextlib.suppress(Refused):  # it stands in the ledger; whoever settles it is told so
                execution = await self._engine.describe(attempt.workspace, attempt.job_id)
                if execution is None or execution.ending is not None:
                    return
                for request in () if execution.recorded is None else execution.recorded.view.requests:
                    if request.effect_id == effect and request.state == "pending":
                        hint = DecisionHint(request_id=request.request_id)
                        await self._engine.hint_decision(attempt.workspace, attempt.job_id, hint)
                        return
            await asyncio.sleep(ASKS_LOOKED_AT_EVERY_S)

    async def refuse(self, attempt: Attempt, denied: Denied) -> StepError:
        """The error to raise; a stop also cancels the workflow, because whoever set it may have died before that."""
        self._metrics.permits.add(1, {"outcome": denied.code.value})
        if denied.code is StepCode.STOPPED:
            await self._engine.cancel(attempt.workspace, attempt.job_id)
        return denied.error()

    async def _confirm(self, attempt: Attempt, row: ReceiptRow) -> None:
        """A running job whose acceptance is not recorded yet: the engine knows it, if it is the job of this receipt."""
        execution = await self._engine.describe(attempt.workspace, attempt.job_id)
        if execution is None or execution.memo.fingerprint != row.fingerprint:
            raise await self.refuse(attempt, NO_RECEIPT)
        await self._ledger.write_grouped(
            lambda conn: accept_job(conn, row, attempt.clock.now(), execution.first_run), key=attempt.key
        )

    async def _renew(self, attempt: Attempt) -> None:
        """Its grants were found valid a moment ago; a job that calls is open, whatever was known of it."""

        def write(conn: Connection) -> None:
            mark_open(conn, attempt.workspace, attempt.job_id)
            renew_authority(conn, attempt.workspace, attempt.job_id, attempt.clock.now() + self._ttl)

        await self._ledger.write_grouped(write, key=attempt.key)
