"""The negative smoke: a census, every probe, a census, and what lies between the two.

Green says that looking and refusing changed nothing, by what the engine, the ledger, the blob store, the processes and
the pollers show, and that all processes alive are of one build and one configuration and logged no warning. Foreign
traffic makes it inconclusive. After everything was measured it adds the one thing that a smoke adds: that it ran.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal
from uuid import uuid4

from sqlalchemy import Connection
from starlette.types import ASGIApp

from gateway.census import Census, settle, take
from gateway.comparing import Change, compare
from gateway.doors import Doors, need_scope, permit
from gateway.exercising import Exercised, exercise
from gateway.ground import Ground, survey
from gateway.ledger.evidence import EvidenceRow, insert_evidence
from gateway.ledger.journal import record
from gateway.scopes import Action, Caller
from gateway.seams import Flag
from workflows.contract.gates import Phase
from workflows.contract.ids import PluginName

Verdict = Literal["green", "red", "inconclusive"]
Exercise = Callable[[ASGIApp, str, Ground], Awaitable[Exercised]]


@dataclass(frozen=True)
class Smoked:
    """`reasons`: why it is not green; empty where it is."""

    smoke_id: str
    ground: Ground
    exercised: Exercised
    first: Census
    second: Census
    changes: tuple[Change, ...]
    reasons: tuple[str, ...]
    verdict: Verdict
    started_at: datetime
    finished_at: datetime

    def raised(self, flag: Flag) -> bool:
        own = any(change.flag is flag and not change.foreign for change in self.changes)
        return own or flag in self.exercised.tried

    @property
    def flags(self) -> dict[Flag, bool]:
        return {flag: self.raised(flag) for flag in Flag}


async def smoke(
    doors: Doors,
    app: ASGIApp,
    caller: Caller,
    authorization: str,
    plugin: PluginName | None,
    version: str | None,
    exercise: Exercise = exercise,
) -> Smoked:
    """Raises Refused: NOT_PERMITTED, PLUGIN_UNKNOWN, and where engine, ledger or blobs do not answer. `exercise` is
    what happens between the two censuses: tests do damage there, and every flag must see its own."""
    need_scope(caller, Action.OPERATOR_READ)
    started_at = datetime.now(UTC)
    ground = await survey(doors, caller, plugin, version)
    settled = await settle(doors)
    first = await take(doors, caller.workspace)
    exercised = await exercise(app, authorization, ground)
    second = await take(doors, caller.workspace, first)
    changes = compare(first, second, caller.workspace, caller.principal, settled=settled)
    verdict, reasons = judge(changes, exercised, [*_faults(doors, second)])
    smoked = Smoked(
        smoke_id=f"smoke_{uuid4().hex}",
        ground=ground,
        exercised=exercised,
        first=first,
        second=second,
        changes=changes,
        reasons=reasons,
        verdict=verdict,
        started_at=started_at,
        finished_at=datetime.now(UTC),
    )
    await doors.ledger.write(lambda conn: _record(conn, caller, smoked))
    return smoked


def judge(changes: Sequence[Change], exercised: Exercised, faults: Sequence[str]) -> tuple[Verdict, tuple[str, ...]]:
    """Red by anything of one's own, else inconclusive by anything of others, else green."""
    own = [f"{change.flag}: {change.text}" for change in changes if not change.foreign]
    own += [f"{flag}: a probe tried {count} times, and was refused" for flag, count in exercised.tried.items()]
    own += [f"{one.what}: answered {one.got}, not {one.expected}" for one in exercised.unexpected]
    own += faults
    foreign = [f"somebody else's: {change.text}" for change in changes if change.foreign]
    if own:
        return "red", (*own, *foreign)
    return ("inconclusive", tuple(foreign)) if foreign else ("green", ())


def _faults(doors: Doors, census: Census) -> list[str]:
    """What is not as expected of the processes that live: those of the build and configuration of this one, silent."""
    own, said = doors.process, list[str]()
    for process in census.processes:
        name = f"{process.kind} {process.identity}"
        if process.build != own.build:
            said.append(f"{name} runs another build ({process.build}) than this API ({own.build})")
        if process.config != own.config:
            said.append(f"{name} is configured otherwise than this API")
        if process.warnings:
            said.append(
                f"{name} logged {process.warnings} warnings within the hour, the last one: {process.last_warning}"
            )
    if not any(process.process_id == own.process_id for process in census.processes):
        said.append("this API process is not on record as alive")
    if not any(process.kind == "worker" for process in census.processes):
        said.append("no worker is alive, so nothing is known of its build and configuration")
    return said


def _record(conn: Connection, caller: Caller, smoked: Smoked) -> None:
    row = smoked.ground.version
    permit(caller, conn, Action.OPERATOR_READ, None if row is None else row.name)
    workspace = None if row is None else caller.workspace
    detail = {"smoke_id": smoked.smoke_id, "verdict": smoked.verdict, "flags": smoked.flags}
    insert_evidence(
        conn,
        EvidenceRow(
            workspace=workspace,
            plugin=None if row is None else row.name,
            version=None if row is None else row.version,
            digest=None if row is None else row.digest,
            kind="smoke",
            green=smoked.verdict == "green",
            detail=detail,
            by=caller.principal,
            at=smoked.finished_at,
        ),
    )
    record(
        conn,
        workspace,
        at=smoked.finished_at,
        actor=caller.principal,
        action="smoke.recorded",
        subject="runtime" if row is None else f"{row.name}@{row.version}",
        **detail,
    )


_SHOWN = "Not yet: this shows that looking and refusing change nothing"
NOT_YET: Mapping[Phase, str] = MappingProxyType(
    {
        "blocked_noop": f"{_SHOWN}; it starts no job, so it shows nothing of one, not even of a dry run.",
        "stateful_noop": f"{_SHOWN}; that a dry run succeeds and that a lane fits is still to be shown.",
        "live_canary": f"{_SHOWN}; what a job really does is for a canary to show, by a packet.",
        "live": f"{_SHOWN}; it does not show that a job succeeds, nor that its effects are the right ones.",
    }
)
"""Per rung, what a smoke does not prove."""
