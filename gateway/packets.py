"""Packets: one approval for one canary job that is held, and what came of it.

Proposed by one person, approved by another, redeemed by the job itself (`gateway.ledger.gates`). Its state is the row's
and the engine's: a redeemed packet whose job ended otherwise than in success is inconclusive. The proof is computed
from the job's own end each time; nothing here consumes a packet, and looking at one changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import uuid4

from sqlalchemy import Connection

from facade.cursors import START
from facade.project import Look, ended, project, state_of
from facade.views import JobAnswer
from facade.window import Window
from gateway.deciders import has_part
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.journal import announce
from gateway.ledger.lines import people_of_line
from gateway.ledger.packets import (
    NewPacket,
    PacketRow,
    approve_packet,
    find_packet,
    insert_packet,
    packets_of,
    revoke_packet,
)
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.scopes import Action, Caller
from gateway.snapshots import SnapshotMismatch
from gateway.strictjson import digest_of
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import EventType
from workflows.contract.gates import PHASES, Eligibility, Phase
from workflows.contract.ids import KEY, Digest, JobId
from workflows.contract.job import Status
from workflows.policy.eligibility import lower
from workflows.policy.promotion import next_rung

PAGE = 500
PacketState = Literal["proposed", "approved", "redeemed", "expired", "revoked", "inconclusive"]


@dataclass(frozen=True)
class Proof:
    """What one canary job showed: `read_back` is what its app sees of it."""

    status: Status
    result_digest: Digest | None
    tools: tuple[str, ...]
    read_back: JobAnswer


@dataclass(frozen=True, slots=True)
class Packet:
    row: PacketRow
    state: PacketState
    proof: Proof | None = None


async def propose_packet(
    doors: Doors, caller: Caller, job_id: str, allowed_tools: Sequence[str], max_steps: int, expires_in_s: int
) -> PacketRow:
    """Raises Refused: 404, GATE_NOT_MET below live_canary and for a job that is not held, INPUT_INVALID for a tool that
    is unknown or not read-only."""
    need_scope(caller, Action.PROMOTIONS_WRITE)

    def look(conn: Connection) -> ReceiptRow:
        row = find_receipt(conn, caller.workspace, JobId(job_id)) if KEY.fullmatch(job_id) else None
        if row is None or not row.accepted:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")
        permit(caller, conn, Action.PROMOTIONS_WRITE, row.plugin)
        _need_canary_phase(conn, row)
        return row

    job = await doors.ledger.read(look)
    await _need_held(doors, job)
    await _need_read_only(doors, job, allowed_tools)
    now = datetime.now(UTC)
    new = NewPacket(
        packet_id=f"packet_{uuid4().hex}",
        workspace=caller.workspace,
        job_id=job.job_id,
        plugin=job.plugin,
        version=job.version,
        digest=job.plugin_digest,
        allowed_tools=tuple(sorted(set(allowed_tools))),
        max_steps=max_steps,
        expires_at=min(now + timedelta(seconds=expires_in_s), job.deadline_at),
        author=caller.principal,
        at=now,
    )

    def write(conn: Connection) -> PacketRow:
        look(conn)
        insert_packet(conn, new)
        row = find_packet(conn, caller.workspace, new.packet_id)
        assert row is not None
        return row

    return await doors.ledger.write(write)


async def approve_it(doors: Doors, caller: Caller, packet_id: str) -> PacketRow:
    """By somebody else than its author and whose job it is; the job is then told to look at its gate. Whoever repeats
    their approval gets it again. Raises Refused: 404, SELF_APPROVAL, PACKET_SPENT, GATE_NOT_MET."""
    need_scope(caller, Action.PROMOTIONS_APPROVE)

    def look(conn: Connection) -> tuple[PacketRow, ReceiptRow]:
        packet = _find(conn, caller, packet_id, Action.PROMOTIONS_APPROVE)
        job = find_receipt(conn, packet.workspace, packet.job_id)
        assert job is not None, "a packet names a job that is there"
        if caller.principal == packet.author or has_part(caller.principal, people_of_line(conn, job)):
            raise Refused(ProblemCode.SELF_APPROVAL, "Its author, and whose job it is, do not approve a packet.")
        return packet, job

    packet, job = await doors.ledger.read(look)
    if _repeated(packet, caller):
        return packet
    _need_unused(packet)
    await _need_held(doors, job)

    def write(conn: Connection) -> PacketRow:
        lock_job(conn, job.workspace, job.job_id)
        standing, _ = look(conn)
        if _repeated(standing, caller):
            return standing
        _need_canary_phase(conn, job)
        now = datetime.now(UTC)
        _need_only_one(conn, standing, now)
        approved = approve_packet(conn, caller.workspace, packet_id, by=caller.principal, now=now)
        if approved is None:
            raise _spent(standing)
        announce(conn, job.workspace, at=now, kind="packet", subject=job.job_id)
        return approved

    approved = await doors.ledger.write(write)
    doors.changes.wake()
    return approved


async def revoke_it(doors: Doors, caller: Caller, packet_id: str) -> PacketRow:
    """Until it is redeemed; repeating it changes nothing. Raises Refused: 404, PACKET_SPENT."""
    need_scope(caller, Action.PROMOTIONS_WRITE)

    def write(conn: Connection) -> PacketRow:
        packet = _find(conn, caller, packet_id, Action.PROMOTIONS_WRITE)
        if packet.revoked_at is not None:
            return packet
        revoked = revoke_packet(conn, caller.workspace, packet_id, by=caller.principal, now=datetime.now(UTC))
        if revoked is None:
            raise _spent(packet)
        return revoked

    return await doors.ledger.write(write)


async def look_at(doors: Doors, window: Window, caller: Caller, packet_id: str) -> Packet:
    """Its state now, and of a redeemed one what its job showed."""
    need_scope(caller, Action.OPERATOR_READ)
    row = await doors.ledger.read(lambda conn: _find(conn, caller, packet_id, Action.OPERATOR_READ))
    if row.redeemed_at is None:
        return Packet(row, _unused(row, datetime.now(UTC)))
    look = await window.sight.recorded(row.workspace, row.job_id)
    if look.execution is None:
        return Packet(row, "inconclusive")
    if not ended(look):
        return Packet(row, "redeemed")
    answer = project(look, await window.reader.ledger(caller, row.job_id), datetime.now(UTC))
    if isinstance(answer, Refused):
        raise answer
    proof = Proof(
        status=answer.status,
        result_digest=None if answer.result is None else digest_of(answer.result),
        tools=await _tools(window, row),
        read_back=answer,
    )
    return Packet(row, "redeemed" if answer.status is Status.SUCCEEDED else "inconclusive", proof)


def _unused(row: PacketRow, now: datetime) -> PacketState:
    if row.revoked_at is not None:
        return "revoked"
    if now >= row.expires_at:
        return "expired"
    return "proposed" if row.approved_at is None else "approved"


async def _tools(window: Window, row: PacketRow) -> tuple[str, ...]:
    """The tools that the job called, each once, by name; from its own log."""
    called: set[str] = set()
    cursor = START
    while True:
        _, page = await window.sight.page(row.workspace, row.job_id, cursor, PAGE)
        if page is None:
            return tuple(sorted(called))
        called |= {str(event.data["tool"]) for event in page.events if event.type is EventType.TOOL_STARTED}
        if page.complete or not page.events:
            return tuple(sorted(called))
        cursor = page.cursor


def _find(conn: Connection, caller: Caller, packet_id: str, action: Action) -> PacketRow:
    packet = find_packet(conn, caller.workspace, packet_id)
    if packet is None:
        permit(caller, conn, action)
        raise Refused(ProblemCode.NOT_FOUND, "There is no such packet.")
    permit(caller, conn, action, packet.plugin)
    return packet


def _repeated(packet: PacketRow, caller: Caller) -> bool:
    return packet.approved_by == caller.principal and packet.revoked_at is None


def _need_canary_phase(conn: Connection, job: ReceiptRow) -> None:
    resolved = resolve(conn, job.workspace, job.plugin, job.version)
    if resolved is None or resolved.withdrawn or resolved.plugin_digest != job.plugin_digest:
        sentence = "Not yet: the version of this job was withdrawn; nothing of it runs any more."
        raise _not_met(sentence, "a version that stands")
    phase = lower(resolved.version_phase, resolved.runtime_phase)
    if PHASES.index(phase) < PHASES.index("live_canary"):
        sentence = f"Not yet: a packet needs phase live_canary, of the version and of the runtime; it is {phase}."
        raise _not_met(sentence, "phase live_canary", next_rung(phase))


async def _need_held(doors: Doors, job: ReceiptRow) -> None:
    execution = await doors.engine.describe(job.workspace, job.job_id)
    view = None if execution is None else state_of(Look(execution))
    held = view is not None and view.status is Status.QUEUED and view.eligibility is Eligibility.DRY_RUN_ELIGIBLE
    if job.mode != "live" or not held:
        sentence = "Not yet: a packet names a job that is held; this one is not."
        raise _not_met(sentence, "a job that is held")


async def _need_read_only(doors: Doors, job: ReceiptRow, tools: Sequence[str]) -> None:
    try:
        snapshot = await doors.snapshots.load(job.workspace, job.snapshot)
    except SnapshotMismatch as broken:
        raise Refused(ProblemCode.BLOCKED, broken.detail, blocker="snapshot_mismatch", executed="no") from None
    effects = snapshot.bundle.manifest.effects
    if any(effects.get(name) != "read" for name in tools):  # pyright: ignore[reportArgumentType]  # any text may be asked for
        raise Refused(
            ProblemCode.INPUT_INVALID, "allowed_tools: A canary calls read-only tools of its plugin and nothing else."
        )


def _need_only_one(conn: Connection, packet: PacketRow, now: datetime) -> None:
    """A job runs by one packet: a second approval would stand for nothing, or let through what the first did not."""
    for other in packets_of(conn, packet.workspace, packet.job_id):
        if other.packet_id == packet.packet_id:
            continue
        if other.redeemed_at is not None or _unused(other, now) == "approved":
            sentence = "Not yet: another packet of this job was approved; revoke that one first, unless it is redeemed."
            raise _not_met(sentence, "a job without another approved packet")


def _need_unused(packet: PacketRow) -> None:
    if packet.approved_at is not None or _unused(packet, datetime.now(UTC)) != "proposed":
        raise _spent(packet)


def _spent(packet: PacketRow) -> Refused:
    """Says what became of it; what happened to it this very moment is told by reading it."""
    state = "redeemed" if packet.redeemed_at is not None else _unused(packet, datetime.now(UTC))
    words = {
        "redeemed": "The packet was redeemed: its job runs or ran by it.",
        "revoked": "The packet was revoked.",
        "expired": "The packet has expired. Propose a new one.",
    }
    return Refused(
        ProblemCode.PACKET_SPENT, words.get(state, "Somebody else was first: the packet was approved before.")
    )


def _not_met(sentence: str, missing: str, next_gate: Phase | None = None) -> Refused:
    return Refused(
        ProblemCode.GATE_NOT_MET, sentence, missing=[missing], not_yet=sentence, next_gate=next_gate, executed="no"
    )
