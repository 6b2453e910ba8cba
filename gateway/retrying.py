"""A retry is a new admission that names its source, and knows what the source, and every other retry of it, has done.

What took effect there is not repeated without a new decision: the policy's own leave is not enough for it. Asked when a
call is planned and again when it is made.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import JsonValue
from sqlalchemy import Connection

from facade.project import content_erased
from gateway.actions import action_digest
from gateway.authority import Denied, decide
from gateway.jobrequest import InitiatorIn, RetryIn, RetryRequest
from gateway.ledger.authorities import find_authority
from gateway.ledger.grants import grants_of
from gateway.ledger.lines import done_in_line, line_of, versions_in_line
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import KEY, JobId, PrincipalId, ToolName


def look_at_source(
    caller: Caller, key: JobId, source: JobId, conn: Connection
) -> tuple[ReceiptRow | None, ReceiptRow | None]:
    """The row that holds the key, and that of a job which is to be repeated; one look at the ledger. A job whose
    receipt was given a moment ago may not be accepted yet; one that the engine refused never was.

    Raises Refused(NOT_PERMITTED): to repeat what somebody else submitted takes `jobs:read`, for it uses its input."""
    row = find_receipt(conn, caller.workspace, key)
    repeated = find_receipt(conn, caller.workspace, source) if KEY.fullmatch(source) else None
    if repeated is not None and repeated.refused_at and not repeated.accepted:
        repeated = None
    if row is None and repeated is not None and caller.principal not in _whose(conn, repeated):
        now = datetime.now(UTC)
        grants = grants_of(conn, caller.workspace, caller.principal, now)
        verdict = decide(caller, grants, Action.JOBS_READ, repeated.plugin, now)
        if isinstance(verdict, Denied):
            raise Refused(ProblemCode.NOT_PERMITTED, f"The job is of somebody else. {verdict.reason}")
    return row, repeated


def _whose(conn: Connection, job: ReceiptRow) -> tuple[PrincipalId, ...]:
    authority = find_authority(conn, job.workspace, job.job_id)
    return (job.principal,) if authority is None else (job.principal, authority.submitted_by)


def again(source: ReceiptRow, asked: RetryIn) -> RetryRequest:
    """Raises Refused(JOB_EXPIRED) where the input was erased.

    What is asked for: mode, input, labels and initiator of the source; not its session, whose line has gone on."""
    if source.erased_at is not None:
        raise content_erased(source.receipt)
    return RetryRequest(
        source=source.job_id,
        first=line_of(source),
        plugin=source.plugin,
        version=source.version if asked.release == "same" else None,
        input=json.loads(source.job_input),
        mode=source.mode,
        timeout_seconds=asked.timeout_seconds,
        initiator=None if source.initiator is None else InitiatorIn.model_validate(source.initiator),
        labels=dict(source.labels),
    )


def done_before(conn: Connection, job: ReceiptRow, tool: ToolName, args: Mapping[str, JsonValue]) -> JobId | None:
    """The job of this one's line of retries in which this very call took effect; None for what is new."""
    digests = [action_digest(tool, version, dict(args)) for version in versions_in_line(conn, job)]
    return done_in_line(conn, job, digests)
