"""The audit trail: who did what, when, to which version. Of the caller's workspace and of the runtime; oldest first.

Lines are written in the transaction of what they tell (`gateway.ledger.journal`); nothing here can change one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from facade.cursors import read_place, write_place
from facade.documented import refusals
from gateway.doors import At, By, need_scope, permit
from gateway.ledger.journal import AuditRow, read_audit
from gateway.scopes import Action
from workflows.contract.errors import ProblemCode
from workflows.contract.events import Timestamp

router = APIRouter(prefix="/v1", tags=["operators"])


class AuditLine(BaseModel):
    """`workspace` null: it concerns the runtime, and so every workspace. `detail` differs by action."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "at": "2030-01-31T12:00:00.000000Z",
                    "workspace": "demo",
                    "actor": "operator",
                    "action": "release.set",
                    "subject": "support-refund",
                    "detail": {"version": "1.1.0"},
                }
            ]
        }
    )

    at: Timestamp
    workspace: str | None
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any]


class Audit(BaseModel):
    """`next_cursor` is also there at the end: kept, it reads on later from what is new."""

    data: tuple[AuditLine, ...]
    next_cursor: str | None
    has_more: bool


@router.get(
    "/audit",
    operation_id="readAudit",
    responses=refusals(ProblemCode.NOT_PERMITTED, ProblemCode.CURSOR_INVALID),
)
async def audit(
    doors: At,
    caller: By,
    after: Annotated[str | None, Query(description="A cursor; absent: from the start.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Audit:
    """Who did what, when, to which version; oldest first."""
    need_scope(caller, Action.OPERATOR_READ)
    place = 0 if after is None else read_place(after, "audit")

    def look(conn: Connection) -> list[AuditRow]:
        permit(caller, conn, Action.OPERATOR_READ)
        return read_audit(conn, caller.workspace, after=place, limit=limit + 1)

    rows = await doors.ledger.read(look)
    page = rows[:limit]
    lines = tuple(AuditLine(**{name: getattr(row, name) for name in AuditLine.model_fields}) for row in page)
    cursor = write_place(page[-1].audit_no, "audit") if page else after
    return Audit(data=lines, next_cursor=cursor, has_more=len(rows) > limit)
