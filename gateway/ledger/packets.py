"""Packets: each an approval for one canary job, used up once. Every move is one compare-and-set statement.

Proposed, then approved by somebody else, then redeemed by the first run of its job; revoked until it is redeemed,
expired when its time is over before that. What came of the job is the engine's to tell, not this row's.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from gateway.ledger.catalog_tables import packets
from gateway.ledger.journal import record
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.ids import Digest, JobId, PluginName, PrincipalId, Workspace


@dataclass(frozen=True)
class NewPacket:
    packet_id: str
    workspace: Workspace
    job_id: JobId
    plugin: PluginName
    version: str
    digest: Digest
    allowed_tools: tuple[str, ...]
    max_steps: int
    expires_at: datetime
    author: PrincipalId
    at: datetime


@dataclass(frozen=True)
class PacketRow(NewPacket):
    approved_by: PrincipalId | None
    approved_at: datetime | None
    revoked_by: PrincipalId | None
    revoked_at: datetime | None
    redeemed_run: str | None
    redeemed_at: datetime | None


_COLUMNS = columns_of(PacketRow, packets)
_THIS = (packets.c.workspace == bindparam("of_workspace"), packets.c.packet_id == bindparam("of_packet"))
_FIND = select(*_COLUMNS).where(*_THIS)
_OF_JOB = (
    select(*_COLUMNS)
    .where(packets.c.workspace == bindparam("of_workspace"), packets.c.job_id == bindparam("of_job"))
    .order_by(packets.c.at, packets.c.packet_id)
)
_OF_VERSION = (
    select(*_COLUMNS)
    .where(packets.c.workspace == bindparam("of_workspace"), packets.c.redeemed_at.is_not(None))
    .order_by(packets.c.redeemed_at.desc())
    .limit(bindparam("at_most"))
)
_OPEN = (packets.c.revoked_at.is_(None), packets.c.redeemed_at.is_(None))
_BEFORE_ITS_END = packets.c.expires_at > bindparam("now", type_=packets.c.at.type)
_INSERT = insert_if_absent(packets)
_APPROVE = (
    update(packets)
    .where(*_THIS, *_OPEN, packets.c.approved_at.is_(None), _BEFORE_ITS_END)
    .values(approved_by=bindparam("person"), approved_at=bindparam("now", type_=packets.c.at.type))
    .returning(*_COLUMNS)
)
_REVOKE = (
    update(packets)
    .where(*_THIS, *_OPEN)
    .values(revoked_by=bindparam("person"), revoked_at=bindparam("now", type_=packets.c.at.type))
    .returning(*_COLUMNS)
)
_REDEEM = (
    update(packets)
    .where(*_THIS, *_OPEN, packets.c.approved_at.is_not(None), _BEFORE_ITS_END)
    .values(redeemed_run=bindparam("run"), redeemed_at=bindparam("now", type_=packets.c.at.type))
    .returning(*_COLUMNS)
)


def insert_packet(conn: Connection, new: NewPacket) -> None:
    conn.execute(_INSERT, vars(new))
    _record(conn, new, "packet.proposed", new.author, new.at)


def find_packet(conn: Connection, workspace: Workspace, packet_id: str) -> PacketRow | None:
    row = conn.execute(_FIND, {"of_workspace": workspace, "of_packet": packet_id}).first()
    return None if row is None else _packet(row)


def packets_of(conn: Connection, workspace: Workspace, job_id: JobId) -> list[PacketRow]:
    """Every packet that names the job, oldest first."""
    return [_packet(row) for row in conn.execute(_OF_JOB, {"of_workspace": workspace, "of_job": job_id})]


def redeemed_packets(
    conn: Connection,
    workspace: Workspace,
    *,
    plugin: PluginName | None = None,
    digest: Digest | None = None,
    limit: int,
) -> list[PacketRow]:
    """Packets that were used, newest first; of one digest of a plugin, or any."""
    query = _OF_VERSION
    if plugin is not None:
        query = query.where(packets.c.plugin == plugin)
    if digest is not None:
        query = query.where(packets.c.digest == digest)
    return [_packet(row) for row in conn.execute(query, {"of_workspace": workspace, "at_most": limit})]


def approve_packet(
    conn: Connection, workspace: Workspace, packet_id: str, *, by: PrincipalId, now: datetime
) -> PacketRow | None:
    """None: it is approved, revoked, redeemed or expired already."""
    return _move(conn, _APPROVE, "packet.approved", workspace, packet_id, by, now)


def revoke_packet(
    conn: Connection, workspace: Workspace, packet_id: str, *, by: PrincipalId, now: datetime
) -> PacketRow | None:
    """None: it is revoked or redeemed already."""
    return _move(conn, _REVOKE, "packet.revoked", workspace, packet_id, by, now)


def redeem_packet(conn: Connection, packet: PacketRow, *, run: str, now: datetime) -> PacketRow | None:
    """Uses it up for this run of its job; of racing calls one gets it. None: somebody did, or it may not be used."""
    of = {"of_workspace": packet.workspace, "of_packet": packet.packet_id, "run": run, "now": now}
    row = conn.execute(_REDEEM, of).first()
    if row is None:
        return None
    redeemed = _packet(row)
    _record(conn, redeemed, "packet.redeemed", "job", now)
    return redeemed


def _move(
    conn: Connection, statement: Any, action: str, workspace: Workspace, packet_id: str, by: PrincipalId, now: datetime
) -> PacketRow | None:
    of = {"of_workspace": workspace, "of_packet": packet_id, "person": by, "now": now}
    row = conn.execute(statement, of).first()
    if row is None:
        return None
    moved = _packet(row)
    _record(conn, moved, action, by, now)
    return moved


def _record(conn: Connection, packet: NewPacket, action: str, actor: str, at: datetime) -> None:
    record(
        conn,
        packet.workspace,
        at=at,
        actor=actor,
        action=action,
        subject=packet.packet_id,
        job=packet.job_id,
        version=f"{packet.plugin}@{packet.version}",
        digest=packet.digest,
    )


def _packet(row: Row[Any]) -> PacketRow:
    packet = PacketRow(*row)
    return replace(packet, allowed_tools=tuple(packet.allowed_tools))
