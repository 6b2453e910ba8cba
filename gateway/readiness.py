"""How ready a plugin version is, or the runtime: everything is looked at when it is asked, and nothing is changed.

The phase in force is the lower one of version and runtime. An engine or a store that does not answer makes rungs "not
known"; without the ledger nobody can say who may ask.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from gateway import configured, rungs
from gateway.climbing import OnRecord, Succeeded, facts_of, first_success, on_record
from gateway.doors import Doors, need_scope, permit
from gateway.histories import unless_silent
from gateway.lanes import fitting
from gateway.ledger.catalog import (
    DeploymentRow,
    PluginVersionRow,
    ReleaseRow,
    current_deployment,
    current_release,
    find_plugin_version,
)
from gateway.ledger.migrate import is_current
from gateway.ledger.phases import phase_of, runtime_phase
from gateway.ledger.presence import ProcessRow, recent_processes
from gateway.plugins import plugin_unknown
from gateway.rungs import Needed, Rung
from gateway.scopes import Action, Caller
from gateway.versioning import takers
from gateway.workers import LOOKED_BACK, Queue, asked
from workflows.contract.gates import Phase
from workflows.contract.ids import JobId, PluginName
from workflows.policy.eligibility import lower
from workflows.policy.promotion import NotMet, Recorded, judge, next_rung


@dataclass(frozen=True, slots=True)
class Readiness:
    """`rungs`: all six, in their order. `next_gate` None: at the top."""

    phase: Phase
    rungs: tuple[Rung, ...]
    next_gate: Phase | None
    not_yet: str


@dataclass(frozen=True, slots=True)
class _Version:
    """The ledger's part, in one look."""

    row: PluginVersionRow
    deployment: DeploymentRow | None
    release: ReleaseRow | None
    phase: Phase
    runtime: Phase
    record: OnRecord
    processes: Sequence[ProcessRow]


@dataclass(frozen=True, slots=True)
class _Climbed:
    """`known` False: the engine did not say how the jobs ended."""

    dry_run: Succeeded | None
    packet: Succeeded | None
    known: bool


async def of_version(doors: Doors, caller: Caller, plugin: PluginName, version: str) -> Readiness:
    """Raises Refused: NOT_PERMITTED, PLUGIN_UNKNOWN."""
    need_scope(caller, Action.OPERATOR_READ)
    now = datetime.now(UTC)

    def look(conn: Connection) -> _Version:
        permit(caller, conn, Action.OPERATOR_READ, plugin)
        row = find_plugin_version(conn, caller.workspace, plugin, version)
        if row is None:
            raise plugin_unknown()
        return _Version(
            row,
            current_deployment(conn, caller.workspace, plugin),
            current_release(conn, caller.workspace, plugin),
            phase_of(conn, caller.workspace, plugin, version),
            runtime_phase(conn),
            on_record(conn, caller.workspace, row),
            recent_processes(conn, now - LOOKED_BACK),
        )

    side = await doors.ledger.read(look)
    needed, queues = _needed(doors, side.row)
    setting, calling, climbed = await asyncio.gather(
        configured.of_version(doors, side.row, side.deployment, side.release, now),
        _asked(doors, queues, side.processes, now),
        _climbed(doors, caller, side.record),
    )
    known = facts_of(side.record, climbed.dry_run, climbed.packet)
    seen = (
        setting,
        rungs.loaded(doors.process, side.processes, needed, now),
        rungs.callable_(calling, now),
        *_climbed_rungs(side.record, climbed, now, f"jobgate smoke --plugin {plugin}"),
    )
    return Readiness(
        phase := lower(side.phase, side.runtime),
        seen,
        next_rung(phase),
        _version_not_yet(side, phase, seen, known, now),
    )


async def of_runtime(doors: Doors, caller: Caller) -> Readiness:
    """What jobs of the caller's workspace showed of it. Raises Refused(NOT_PERMITTED)."""
    need_scope(caller, Action.OPERATOR_READ)
    now = datetime.now(UTC)

    def look(conn: Connection) -> tuple[Phase, OnRecord, Sequence[ProcessRow], bool]:
        permit(caller, conn, Action.OPERATOR_READ)
        record = on_record(conn, caller.workspace, None)
        return runtime_phase(conn), record, recent_processes(conn, now - LOOKED_BACK), is_current(conn)

    phase, record, processes, migrated = await doors.ledger.read(look)
    setting, calling, climbed = await asyncio.gather(
        configured.of_runtime(doors, now, migrated=migrated),
        _asked(doors, _start_queues(doors), processes, now),
        _climbed(doors, caller, record),
    )
    known = facts_of(record, climbed.dry_run, climbed.packet)
    seen = (
        setting,
        rungs.loaded(doors.process, processes, Needed(None, any_lane=True), now),
        rungs.callable_(calling, now),
        *_climbed_rungs(record, climbed, now, "jobgate smoke"),
    )
    gate = _gate("the runtime", phase, seen, known, now)
    return Readiness(phase, seen, next_rung(phase), gate)


def _needed(doors: Doors, row: PluginVersionRow) -> tuple[Needed, Sequence[Queue]]:
    """What a worker must be to carry out this version's jobs, and what must be asked for."""
    lane = fitting(doors.settings, row.manifest.get("requires", ()))
    tools = frozenset(tool["python"] for tool in row.manifest.get("tools", ()) if tool.get("python"))
    if lane is None:
        return Needed(None, tools), ()
    queues = (*_start_queues(doors), Queue(lane.lane, lane.task_queue, "activity"))
    return Needed(lane.lane, tools), tuple(dict.fromkeys(queues))


def _start_queues(doors: Doors) -> tuple[Queue, ...]:
    name = doors.settings.lane
    queue = doors.settings.lanes[name].task_queue
    return Queue(name, queue, "workflow"), Queue(name, queue, "activity")


async def _asked(
    doors: Doors, queues: Sequence[Queue], processes: Sequence[ProcessRow], now: datetime
) -> Mapping[Queue, datetime | None] | None:
    """Of those alone that new jobs may go to."""
    may_take = await takers(doors.engine.histories, doors.settings, processes)
    return await asked(doors.engine.histories, queues, may_take, now)


async def _climbed(doors: Doors, caller: Caller, record: OnRecord) -> _Climbed:
    async def succeeded(jobs: Sequence[JobId]) -> tuple[Succeeded | None]:
        return (await first_success(doors, caller.workspace, jobs),)

    dry_run, packet = await asyncio.gather(
        unless_silent(succeeded([row.job_id for row in record.dry_runs])),
        unless_silent(succeeded([row.job_id for row in record.packets])),
    )
    if dry_run is None or packet is None:
        return _Climbed(None, None, known=False)
    return _Climbed(*dry_run, *packet, known=True)


def _climbed_rungs(record: OnRecord, climbed: _Climbed, now: datetime, smoke: str) -> tuple[Rung, ...]:
    return (
        rungs.blocked_noop(record, now, smoke),
        rungs.stateful_noop(record, climbed.dry_run, now, known=climbed.known),
        rungs.live_canary(record, climbed.packet, now, known=climbed.known),
    )


def _version_not_yet(side: _Version, phase: Phase, seen: Sequence[Rung], known: Recorded, now: datetime) -> str:
    if side.row.withdrawn_at is not None:
        return "Not yet, and not ever: this version was withdrawn; release another one."
    if phase == side.phase:
        also = f" The runtime is at {side.runtime}, too." if side.runtime == phase != "live" else ""
        return _gate("this version", phase, seen, known, now) + also
    return (
        f"Not yet: the runtime is at {side.runtime} and rules this version, which is at {side.phase}; "
        "GET /v1/readiness (jobgate readiness) says what the runtime lacks."
    )


def _gate(who: str, phase: Phase, seen: Sequence[Rung], known: Recorded, now: datetime) -> str:
    """What the next gate asks for; at the top, what is still not proven."""
    to = next_rung(phase)
    if to is None:
        open_ = [rung.rung for rung in seen if not rung.reached]
        unproven = f"{', '.join(open_)} (see the evidence), and " if open_ else ""
        return (
            f"Not yet proven: {unproven}what no rung proves: that every write does what people mean by it. "
            f"Each one is permitted, and decided where a person is asked, on its own."
        )
    verdict = judge(phase, to, break_glass=False, recorded=known, now=now)
    if isinstance(verdict, NotMet):
        return f"Not yet: {who} is at {phase}; {to} asks for {' and '.join(verdict.missing)}."
    return f"Not yet: {who} is at {phase}; what {to} asks for is there, and a promotion may be proposed."
