"""What admission writes and starts, and the receipt's exact bytes. Nothing is judged here."""

import json
from dataclasses import dataclass

from gateway.jobrequest import JobRequest
from gateway.ledger.authorities import NewAuthority
from gateway.ledger.receipts import NewReceipt
from gateway.ledger.sessions import SessionRow
from gateway.scopes import Caller
from workflows.contract.events import timestamp
from workflows.contract.ids import PrincipalId
from workflows.contract.job import Initiator, JobStart, Status
from workflows.policy.eligibility import Verdict


@dataclass(frozen=True, slots=True)
class Admissible:
    """What admission writes and starts: the receipt, the job, the authority it runs on. `session`: the row as it was
    seen where the job continues one; `max_open`: of the principal, where its grants bound it."""

    receipt: NewReceipt
    start: JobStart
    authority: NewAuthority
    session: SessionRow | None
    max_open: int | None


def row_of(start: JobStart, asked: JobRequest, verdict: Verdict) -> NewReceipt:
    receipt = {
        "job_id": start.job_id,
        "status": Status.QUEUED,
        "mode": start.mode,
        "eligibility": verdict.eligibility,
        "blocker": verdict.blocker,
        "executed": "no",
        "accepted_at": timestamp(start.accepted_at),
        "deadline": timestamp(start.deadline),
        "fingerprint": start.fingerprint,
        "plugin": start.plugin.model_dump(),
        "snapshot": start.snapshot,
        "session": start.session,
        "retry_of": start.retry_of,
    }
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
        receipt=json.dumps(receipt, separators=(",", ":"), ensure_ascii=False).encode(),
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
