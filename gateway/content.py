"""Who may have a job's content erased. What becomes of it then is `gateway.erasing`'s."""

from datetime import datetime

from sqlalchemy import Connection

from gateway.doors import Doors, need_scope, permit
from gateway.erasing import Eraser
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import KEY, JobId


async def erase_content(doors: Doors, caller: Caller, job_id: str) -> datetime:
    """Since when it is gone. Needs `grants:write`, by scope and grant on the job's plugin. Raises Refused."""
    need_scope(caller, Action.GRANTS_WRITE)

    def look(conn: Connection) -> ReceiptRow:
        row = find_receipt(conn, caller.workspace, JobId(job_id)) if KEY.fullmatch(job_id) else None
        if row is None:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")
        permit(caller, conn, Action.GRANTS_WRITE, row.plugin)
        return row

    row = await doors.ledger.read(look)
    return await Eraser(doors.ledger, doors.blobs, doors.engine).erase(row, caller.principal)
