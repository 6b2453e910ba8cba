"""What the ledger knows that judging a submission needs, in one consistent look. Nothing is judged here."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from gateway.authority import Allowed, Denied, decide
from gateway.jobrequest import JobRequest
from gateway.ledger.catalog import list_plugin_versions
from gateway.ledger.grants import grants_of
from gateway.ledger.journal import latest_change
from gateway.ledger.phases import Resolved, resolve, runtime_phase
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.ledger.sessions import SessionRow, find_session
from gateway.scopes import Action, Caller
from workflows.contract.gates import Phase
from workflows.contract.ids import JobId


@dataclass(frozen=True, slots=True)
class Known:
    """One consistent look at the ledger: the key's row if it decides the answer, else all that judging needs too."""

    row: ReceiptRow | None
    authority: Allowed | Denied | None = None
    resolved: Resolved | None = None
    published: bool = False
    phase: Phase = "blocked_noop"
    session: SessionRow | None = None
    change_no: int = 0


def look(
    caller: Caller, key: JobId | None, asked: JobRequest, conn: Connection, action: Action = Action.JOBS_SUBMIT
) -> Known:
    """In one read transaction. A row that was refused by the engine does not decide: its key may be reserved anew.
    Whoever only wants to know has no key, and may ask by another action than submitting."""
    row = None if key is None else find_receipt(conn, caller.workspace, key)
    if row is not None and not (row.refused_at and not row.accepted):
        return Known(row)
    now = datetime.now(UTC)
    grants = grants_of(conn, caller.workspace, caller.principal, now)
    session = None if asked.session is None else find_session(conn, caller.workspace, asked.session)
    bound = session.version if session is not None and asked.version is None else asked.version
    resolved = resolve(conn, caller.workspace, asked.plugin, bound)
    return Known(
        row=row,
        authority=decide(caller, grants, action, asked.plugin, now),
        resolved=resolved,
        published=resolved is not None or bool(list_plugin_versions(conn, caller.workspace, asked.plugin)),
        phase=runtime_phase(conn) if resolved is None else resolved.runtime_phase,
        session=session,
        change_no=latest_change(conn, caller.workspace),
    )
