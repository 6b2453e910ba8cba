"""Answers that vendors send later: one token, one call, one answer, while the job still waits and may still use it.

The token is all that proves the sender, so an unknown one is answered before anything of the request is read. What is
kept is scrubbed of the credential that went with the call: this process resolves the same reference, and the token
proves that the value is the same. Where it is not (rotated, or not to be had here) the answer's word counts and its
text is not kept. The hint to the job follows the commit; one that is lost is given again by a repeated answer, and at
the latest the end of the wait reads the ledger.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue
from sqlalchemy import Connection

from gateway.allowlist import CredentialPolicy
from gateway.authority import Action, Denied, granted
from gateway.blobs import Blobs
from gateway.callback_tokens import hash_of, went_with
from gateway.credentials import Scrubber, Secret, resolve_credential
from gateway.ledger.callbacks import (
    CallbackRow,
    CallOutcome,
    Late,
    answer_callback,
    callbacks_of,
    find_callback,
    lateness,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.schemas import validate
from gateway.snapshots import SnapshotMismatch, Snapshots
from gateway.telemetry import log
from gateway.temporal import Engine
from workflows.contract.errors import ProblemCode, Refused, StepError
from workflows.contract.steps import CallbackHint

ENGINE_S = 1.0
"""How long the engine may take to say whether the job is open."""
HINT_S = 2.0
UNFIT = "Its result does not fit the tool's output_schema."
WITHHELD = "The tool's answer could not be checked for secrets and was not kept."


@dataclass(frozen=True, slots=True)
class Said:
    """What a vendor says: whether it succeeded, and any JSON value."""

    outcome: CallOutcome
    result: JsonValue


@dataclass(frozen=True, slots=True)
class Awaited:
    """A token whose answer would count now, and the job that waits for it."""

    token: str
    row: CallbackRow
    job: ReceiptRow


class Callbacks:
    """One per API process. Every method raises Refused, also where a store does not answer."""

    def __init__(
        self, ledger: Ledger, blobs: Blobs, snapshots: Snapshots, engine: Engine, credentials: CredentialPolicy
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._snapshots = snapshots
        self._engine = engine
        self._credentials = credentials

    async def awaited(self, token: str) -> Awaited:
        """Raises NOT_FOUND for whatever is no token of ours, CALLBACK_ANSWERED and CALLBACK_OVER."""
        token_hash = hash_of(token)
        if token_hash is None:
            raise _unknown()

        def look(conn: Connection) -> tuple[CallbackRow, ReceiptRow, Late | None, bool]:
            row = find_callback(conn, token_hash)
            job = None if row is None else find_receipt(conn, row.workspace, row.job_id)
            if row is None or job is None:
                raise _unknown()
            untold = any(one.answered_at and not one.closed_at for one in callbacks_of(conn, row))
            return row, job, _late(conn, row, job, datetime.now(UTC)), untold

        row, job, late, untold = await self._ledger.read(look)
        if late == "answered" and untold:
            await self.tell(row)
        if late is None and await self._job_has_ended(row):
            late = (await self._ledger.read(look))[2] or "over"  # an answer that came meanwhile may have ended it
        if late is not None:
            raise _refusal(late)
        return Awaited(token, row, job)

    async def answer(self, awaited: Awaited, said: Said) -> CallOutcome:
        """Keeps the answer and settles the write it tells of; returns as what it counts. Whoever lost a race is
        refused as `awaited` would."""
        kept = await self._fit_to_keep(awaited, said)
        data = json.dumps(kept.result, ensure_ascii=False, separators=(",", ":")).encode()
        row = awaited.row
        ref = await self._blobs.keep(row.workspace, row.job_id, data)

        def record(conn: Connection) -> Late | None:
            lock_job(conn, row.workspace, row.job_id)
            now = datetime.now(UTC)
            late = _late(conn, row, awaited.job, now)
            return late or answer_callback(conn, row, outcome=kept.outcome, result_ref=ref, at=now)

        late = await self._ledger.write(record)
        if late is not None:
            raise _refusal(late)
        log.info("a callback was answered", job=row.job_id, tool=row.tool, outcome=kept.outcome)
        return kept.outcome

    async def tell(self, row: CallbackRow) -> None:
        """A hint to the job that its answer is in the ledger; lost where the engine does not answer now."""
        hint = CallbackHint(step=row.step, call=row.call)
        try:
            async with asyncio.timeout(HINT_S):
                await self._engine.hint_callback(row.workspace, row.job_id, hint)
        except (Refused, TimeoutError):
            log.warning("a job was not told of its callback", job=row.job_id, tool=row.tool)

    async def _job_has_ended(self, row: CallbackRow) -> bool:
        """An engine that does not answer keeps no answer out: the job may well be waiting for it."""
        with contextlib.suppress(Refused, TimeoutError):
            async with asyncio.timeout(ENGINE_S):
                execution = await self._engine.describe(row.workspace, row.job_id)
            return execution is None or execution.ending is not None
        return False

    async def _fit_to_keep(self, awaited: Awaited, said: Said) -> Said:
        """The answer without secrets, and as the tool declares its results."""
        checks = await self._checks(awaited)
        # Where the text can not be kept, of a write it still counts whether it happened; a read is nothing without it.
        without_text: CallOutcome = "error" if awaited.row.effect_id is None else said.outcome
        if checks is None:
            return Said(without_text, {"error": WITHHELD})
        scrubber, schema = checks
        result = scrubber.scrub_json(said.result)
        reasons = validate(schema, result) if schema is not None and said.outcome == "ok" else []
        if reasons:
            return Said(without_text, {"error": UNFIT, "reasons": list[JsonValue](reasons)})
        return Said(said.outcome, result)

    async def _checks(self, awaited: Awaited) -> tuple[Scrubber, JsonValue] | None:
        """What finds the token and the credential that the call carried, and the schema of the tool's results. None
        where that very value is not to be had here."""
        row, token = awaited.row, awaited.token
        try:
            snapshot = await self._snapshots.load(row.workspace, awaited.job.snapshot)
            tool = snapshot.bundle.manifest.tool(row.tool)
            if tool is None or tool.http is None:
                return None
            connection = snapshot.deployment.connections[tool.http.connection]
            credential = connection.credential
            secrets, injected = [Secret(token)], ""
            if credential is not None:
                secret = resolve_credential(
                    self._credentials, credential.ref, workspace=row.workspace, base_url=connection.base_url
                )
                secrets, injected = [secret, *secrets], credential.prefix + secret.reveal()
        except (SnapshotMismatch, StepError):
            log.warning("the text of a callback was not kept: no credential to scrub it of", job=row.job_id)
            return None
        if not went_with(token, injected):
            log.warning("the text of a callback was not kept: its call carried another credential", job=row.job_id)
            return None
        return Scrubber(secrets, [injected] if injected else []), tool.output_schema


def _late(conn: Connection, row: CallbackRow, job: ReceiptRow, now: datetime) -> Late | None:
    """What the ledger says of the token, and whether the job could still use what it brings."""
    late = lateness(conn, row, now)
    if late is not None:
        return late
    grants = grants_of(conn, job.workspace, job.principal, now)
    return "over" if isinstance(granted(grants, Action.JOBS_SUBMIT, job.plugin, now), Denied) else None


def _unknown() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "No call waits behind this token.")


def _refusal(late: Late) -> Refused:
    if late == "answered":
        return Refused(ProblemCode.CALLBACK_ANSWERED, "This call was answered before; the first answer stands.")
    return Refused(ProblemCode.CALLBACK_OVER, "The wait for this answer is over; nothing was changed.")
