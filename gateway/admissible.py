"""What admission writes and starts, and the receipt's exact bytes. Nothing is judged here."""

import json
from dataclasses import dataclass, replace

from gateway.jobrequest import JobRequest
from gateway.ledger.authorities import NewAuthority
from gateway.ledger.receipts import NewReceipt, ReceiptRow
from gateway.ledger.sessions import SessionRow
from gateway.scopes import Caller
from workflows.contract.events import timestamp
from workflows.contract.ids import JobId, PrincipalId
from workflows.contract.job import Initiator, JobStart, MemoStart, Status
from workflows.opening import memo_of


@dataclass(frozen=True, slots=True)
class Admissible:
    """What admission writes and starts: the receipt, the job, the authority it runs on. `session`: the row as it was
    seen where the job continues one; `max_open`: of the principal, where its grants bound it."""

    receipt: NewReceipt
    start: JobStart
    authority: NewAuthority
    session: SessionRow | None
    max_open: int | None


def receipt_bytes(job_id: JobId, memo: MemoStart) -> bytes:
    """The receipt's exact bytes, from what the engine keeps with the job for ever: they can be written once more."""
    receipt = {
        "job_id": job_id,
        "status": Status.QUEUED,
        "mode": memo.mode,
        "eligibility": memo.eligibility,
        "blocker": memo.blocker,
        "executed": "no",
        "accepted_at": timestamp(memo.accepted_at),
        "deadline": timestamp(memo.deadline),
        "fingerprint": memo.fingerprint,
        "plugin": memo.plugin.model_dump(),
        "snapshot": memo.snapshot,
        "session": memo.session,
        "retry_of": memo.retry_of,
    }
    return json.dumps(receipt, separators=(",", ":"), ensure_ascii=False).encode()


def as_started(row: ReceiptRow, memo: MemoStart) -> NewReceipt:
    """The receipt of the job that the engine holds for this reservation: of the same content, admitted earlier. It lets
    nothing run longer than the reservation would."""
    return replace(
        row,
        receipt=receipt_bytes(row.job_id, memo),
        version=memo.plugin.version,
        plugin_digest=memo.plugin.digest,
        snapshot=memo.snapshot,
        deadline_at=min(memo.deadline, row.deadline_at),
        reserved_at=memo.accepted_at,
    )


def row_of(start: JobStart, asked: JobRequest) -> NewReceipt:
    return NewReceipt(
        workspace=start.workspace,
        job_id=start.job_id,
        fingerprint=start.fingerprint,
        principal=start.principal,
        plugin=start.plugin.name,
        version=start.plugin.version,
        plugin_digest=start.plugin.digest,
        snapshot=start.snapshot,
        mode=start.mode,
        session=start.session,
        retry_of=start.retry_of,
        line=asked.line,
        receipt=receipt_bytes(start.job_id, memo_of(start)),
        job_input=json.dumps(asked.input, separators=(",", ":"), ensure_ascii=False).encode(),
        start_input=start.model_dump_json().encode(),
        labels=asked.labels,
        initiator=None if start.initiator is None else start.initiator.model_dump(),
        deadline_at=start.deadline,
        reserved_at=start.accepted_at,
    )


def initiator_of(caller: Caller, principal: PrincipalId, asked: JobRequest) -> Initiator | None:
    """Who caused the job; of one that runs on an agent's authority that is at least the caller."""
    if asked.initiator is not None:
        return Initiator(**asked.initiator.model_dump())
    return None if principal == caller.principal else Initiator(kind="principal", id=caller.principal)
