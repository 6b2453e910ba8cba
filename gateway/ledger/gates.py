"""Gates: whether a job that is held may run now. Read from the promotions that are done, never from a signal.

A held job is not released by a live phase alone: the promotion that made it live must say `release_held`, and must
have come after what the job's admission saw.
"""

from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, or_, select

from gateway.ledger.authorities import find_authority
from gateway.ledger.catalog_tables import promotions
from gateway.ledger.journal import changes_since
from gateway.ledger.packets import PacketRow, packets_of, redeem_packet
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow
from workflows.contract.gates import PHASES
from workflows.policy.eligibility import lower

_OPENED_BY = (
    select(promotions.c.release_held)
    .where(
        or_(
            and_(promotions.c.workspace.is_(None), promotions.c.plugin.is_(None)),
            and_(
                promotions.c.workspace == bindparam("of_workspace"),
                promotions.c.plugin == bindparam("of_plugin"),
                promotions.c.version == bindparam("of_version"),
            ),
        ),
        promotions.c.state == "done",
    )
    .order_by(promotions.c.revision.desc())
    .limit(1)
)
"""Of a version and a runtime that are both live: the last step of either, so the one that opened the gate."""


def held_job_released(conn: Connection, receipt: ReceiptRow) -> bool:
    """A demotion takes a release back: who opens the gate again must say once more that held jobs go."""
    authority = find_authority(conn, receipt.workspace, receipt.job_id)
    resolved = resolve(conn, receipt.workspace, receipt.plugin, receipt.version)
    if authority is None or resolved is None or not resolved.version_phase == resolved.runtime_phase == "live":
        return False
    of = {"of_workspace": receipt.workspace, "of_plugin": receipt.plugin, "of_version": receipt.version}
    if not conn.execute(_OPENED_BY, of).scalar_one():
        return False
    subjects = ("runtime", f"{receipt.plugin}@{receipt.version}")
    since = changes_since(conn, receipt.workspace, authority.seen_change)
    return any(change.kind == "phase" and change.subject in subjects for change in since)


def packet_waits(conn: Connection, receipt: ReceiptRow, now: datetime) -> bool:
    """Whether the job would redeem a packet if it looked at its gate now."""
    resolved = resolve(conn, receipt.workspace, receipt.plugin, receipt.version)
    if resolved is None or PHASES.index(lower(resolved.version_phase, resolved.runtime_phase)) < PHASES.index(
        "live_canary"
    ):
        return False
    return any(
        one.approved_at is not None and one.revoked_at is None and one.redeemed_at is None and now < one.expires_at
        for one in packets_of(conn, receipt.workspace, receipt.job_id)
    )


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
