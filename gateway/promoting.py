"""Promotions and demotions of versions and of the runtime: proposed by one person, approved by another, on record.

A gate is judged at the proposal and again at the approval, each time from what the system itself recorded; `evidence`
of a caller is a note that the audit trail keeps. A proposal older than the last move of its phase is void. Break-glass
needs its own scope and a reason, and is done at once, as a demotion is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn
from uuid import uuid4

from pydantic import JsonValue
from sqlalchemy import Connection

from gateway.climbing import recorded
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.authorities import open_authorities
from gateway.ledger.catalog import PluginVersionRow, find_plugin_version
from gateway.ledger.journal import one_at_a_time
from gateway.ledger.phases import (
    NewPromotion,
    find_promotion,
    insert_promotion,
    moved_since,
    phase_of,
    runtime_phase,
)
from gateway.plugins import plugin_unknown
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import Phase
from workflows.contract.ids import PluginName, Workspace
from workflows.policy.promotion import NotMet, Recorded, judge, judge_demotion, next_rung

MOVED = "a proposal made after the phase moved last; propose it again"
"""A demotion takes back what was on its way up: nobody who looked before it decides what comes after it."""


@dataclass(frozen=True, slots=True)
class Climber:
    """What changes its phase: a plugin version of a workspace, or (without a plugin) the runtime."""

    workspace: Workspace
    plugin: PluginName | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Demoted:
    """`open_jobs` were running or held on the version when it went down."""

    promotion: NewPromotion
    previous: Phase
    open_jobs: int


async def propose(
    doors: Doors,
    caller: Caller,
    climber: Climber,
    to: Phase,
    *,
    note: Mapping[str, JsonValue],
    break_glass: str | None,
    release_held: bool,
) -> NewPromotion:
    """A proposal, or with `break_glass` (its reason) the promotion itself. Raises Refused(GATE_NOT_MET)."""
    need_scope(caller, Action.PROMOTIONS_WRITE)
    if break_glass is not None:
        need_scope(caller, Action.PROMOTIONS_BREAK_GLASS)

    def check(conn: Connection) -> PluginVersionRow | None:
        permit(caller, conn, Action.PROMOTIONS_WRITE, climber.plugin)
        if break_glass is not None:
            permit(caller, conn, Action.PROMOTIONS_BREAK_GLASS, climber.plugin)
        return _version(conn, climber)

    version = await doors.ledger.read(check)
    known = Recorded() if break_glass is not None else await recorded(doors, caller.workspace, version)
    now = datetime.now(UTC)
    new = NewPromotion(
        promotion_id=f"promo_{uuid4().hex}",
        workspace=None if climber.plugin is None else caller.workspace,
        plugin=climber.plugin,
        version=climber.version,
        digest=None if version is None else version.digest,
        phase=to,
        state="proposed" if break_glass is None else "done",
        by=caller.principal,
        approved_by=None,
        reason=break_glass or "",
        break_glass=break_glass is not None,
        release_held=release_held,
        at=now,
    )

    def write(conn: Connection) -> None:
        one_at_a_time(conn)
        check(conn)
        _judge(conn, climber, to, known, now, break_glass=break_glass is not None)
        insert_promotion(conn, new, note=note)

    await doors.ledger.write(write)
    doors.changes.wake()
    return new


async def approve(doors: Doors, caller: Caller, promotion_id: str) -> NewPromotion:
    """The promotion as done. Whoever repeats an approval gets it again. Raises Refused: 404, `self-approval`,
    `gate-not-met`."""
    need_scope(caller, Action.PROMOTIONS_APPROVE)

    def look(conn: Connection) -> tuple[NewPromotion, PluginVersionRow | None, bool]:
        rows = [row for row in find_promotion(conn, promotion_id) if row.workspace in (None, caller.workspace)]
        if not rows:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such promotion.")
        proposal = rows[0]
        permit(caller, conn, Action.PROMOTIONS_APPROVE, proposal.plugin)
        version = _version(conn, Climber(caller.workspace, proposal.plugin, proposal.version))
        return rows[-1], version, rows[-1].state == "done"

    row, version, done = await doors.ledger.read(look)
    if done:
        return row
    if caller.principal == row.by or (version is not None and caller.principal == version.published_by):
        raise Refused(
            ProblemCode.SELF_APPROVAL, "Who proposed a promotion or published the version does not approve it."
        )
    known = await recorded(doors, caller.workspace, version)
    now = datetime.now(UTC)
    climber = Climber(caller.workspace, row.plugin, row.version)
    new = replace(_plain(row), state="done", approved_by=caller.principal, at=now)

    def write(conn: Connection) -> NewPromotion:
        one_at_a_time(conn)
        permit(caller, conn, Action.PROMOTIONS_APPROVE, row.plugin)
        proposal, *after = find_promotion(conn, promotion_id)
        if after:
            return after[-1]
        _judge(conn, climber, row.phase, known, now, break_glass=False)
        if moved_since(conn, proposal):
            _not_met(NotMet((MOVED,)), _phase(conn, climber))
        insert_promotion(conn, new)
        return new

    approved = await doors.ledger.write(write)
    doors.changes.wake()
    return approved


async def demote(doors: Doors, caller: Caller, climber: Climber, to: Phase, reason: str) -> Demoted:
    """At once: permits given from now on are refused. Raises Refused(GATE_NOT_MET) where it would not go down."""
    need_scope(caller, Action.PROMOTIONS_WRITE)
    now = datetime.now(UTC)

    def write(conn: Connection) -> Demoted:
        one_at_a_time(conn)
        permit(caller, conn, Action.PROMOTIONS_WRITE, climber.plugin)
        version = _version(conn, climber)
        current = _phase(conn, climber)
        verdict = judge_demotion(current, to)
        if isinstance(verdict, NotMet):
            _not_met(verdict, current)
        new = NewPromotion(
            promotion_id=f"promo_{uuid4().hex}",
            workspace=None if climber.plugin is None else caller.workspace,
            plugin=climber.plugin,
            version=climber.version,
            digest=None if version is None else version.digest,
            phase=to,
            state="done",
            by=caller.principal,
            approved_by=None,
            reason=reason,
            break_glass=False,
            release_held=False,
            at=now,
        )
        insert_promotion(conn, new, word="demotion", previous=current)
        open_ = open_authorities(conn, caller.workspace, plugin=climber.plugin, version=climber.version)
        return Demoted(new, current, len(open_))

    demoted = await doors.ledger.write(write)
    doors.changes.wake()
    return demoted


def _version(conn: Connection, climber: Climber) -> PluginVersionRow | None:
    if climber.plugin is None or climber.version is None:
        return None
    row = find_plugin_version(conn, climber.workspace, climber.plugin, climber.version)
    if row is None:
        raise plugin_unknown()
    return row


def _phase(conn: Connection, climber: Climber) -> Phase:
    if climber.plugin is None or climber.version is None:
        return runtime_phase(conn)
    return phase_of(conn, climber.workspace, climber.plugin, climber.version)


def _judge(conn: Connection, climber: Climber, to: Phase, known: Recorded, now: datetime, *, break_glass: bool) -> None:
    current = _phase(conn, climber)
    verdict = judge(current, to, break_glass=break_glass, recorded=known, now=now)
    if isinstance(verdict, NotMet):
        _not_met(verdict, current)


def _not_met(verdict: NotMet, current: Phase) -> NoReturn:
    sentence = "Not yet: " + "; ".join(verdict.missing) + "."
    raise Refused(
        ProblemCode.GATE_NOT_MET,
        sentence,
        missing=list(verdict.missing),
        not_yet=sentence,
        next_gate=next_rung(current),
        executed="no",
    )


def _plain(row: NewPromotion) -> NewPromotion:
    """Without the number that the ledger gave the row."""
    return NewPromotion(**{name: value for name, value in vars(row).items() if name != "revision"})
