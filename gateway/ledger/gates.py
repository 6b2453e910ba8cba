"""Gates: whether a job that is held may run now. Read from the promotions that are done, never from a signal.

A held job is not released by a live phase alone: a promotion after its reservation must say `release_held`.
"""

from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, or_, select

from gateway.ledger.catalog_tables import promotions
from gateway.ledger.packets import PacketRow, packets_of, redeem_packet
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow
from workflows.contract.gates import PHASES
from workflows.policy.eligibility import lower

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


def redeem_for(conn: Connection, run: str, receipt: ReceiptRow, now: datetime) -> PacketRow | None:
    """The packet that lets this run of a held job go: the one it redeemed before, else one that it redeems now. Call it
    with the job's row held. A packet opens nothing below `live_canary`, and nothing of another digest."""
    resolved = resolve(conn, receipt.workspace, receipt.plugin, receipt.version)
    if resolved is None or resolved.withdrawn or resolved.plugin_digest != receipt.plugin_digest:
        return None
    if PHASES.index(lower(resolved.version_phase, resolved.runtime_phase)) < PHASES.index("live_canary"):
        return None
    known = [one for one in packets_of(conn, receipt.workspace, receipt.job_id) if one.digest == receipt.plugin_digest]
    if any(one.redeemed_run is not None for one in known):
        return next((one for one in known if one.redeemed_run == run), None)
    redeemed = (redeem_packet(conn, one, run=run, now=now) for one in known)
    return next((one for one in redeemed if one is not None), None)
