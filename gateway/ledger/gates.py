"""Gates: whether a job that is held may run now. Read from the promotions that are done, never from a signal.

A held job is not released by a live phase alone: a promotion after its reservation must say `release_held`.
"""

from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, or_, select

from gateway.ledger.catalog_tables import promotions
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow

_RELEASED = (
    select(promotions.c.revision)
    .where(
        or_(
            promotions.c.workspace.is_(None),
            and_(
                promotions.c.workspace == bindparam("of_workspace"),
                promotions.c.plugin == bindparam("of_plugin"),
                promotions.c.version == bindparam("of_version"),
            ),
        ),
        promotions.c.state == "done",
        promotions.c.release_held,
        promotions.c.at >= bindparam("since", type_=promotions.c.at.type),
    )
    .limit(1)
)


def phase_is_live(conn: Connection, receipt: ReceiptRow) -> bool:
    """Both the version's phase and the runtime's are `live`; the lower rules."""
    resolved = resolve(conn, receipt.workspace, receipt.plugin, receipt.version)
    return resolved is not None and resolved.version_phase == resolved.runtime_phase == "live"


def held_job_released(conn: Connection, receipt: ReceiptRow) -> bool:
    of: dict[str, str | datetime] = {
        "of_workspace": receipt.workspace,
        "of_plugin": receipt.plugin,
        "of_version": receipt.version,
        "since": receipt.reserved_at,
    }
    return phase_is_live(conn, receipt) and conn.execute(_RELEASED, of).first() is not None
