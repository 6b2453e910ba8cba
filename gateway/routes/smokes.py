"""POST a smoke: show an operator that looking and refusing changed nothing. What is measured: gateway/smoking.py."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field

from facade.clock import move_clock
from facade.documented import refusals
from gateway import plugins
from gateway.census import Census
from gateway.doors import At, By, body_of, need_scope, read_body, request_clock
from gateway.ledger.census import WATCHED
from gateway.scopes import Action
from gateway.seams import Flag
from gateway.smoking import NOT_YET, Smoked, Verdict, smoke
from workflows.contract.errors import ProblemCode as P
from workflows.contract.errors import Refused
from workflows.contract.events import Timestamp
from workflows.contract.gates import Phase
from workflows.contract.ids import PLUGIN_NAME
from workflows.policy.promotion import next_rung

router = APIRouter(prefix="/v1", tags=["smokes"])


class SmokeIn(BaseModel):
    """`plugin` null: the runtime's. `version` null: the current release, else the newest version."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"plugin": "support-refund", "version": None}]},
    )

    plugin: Annotated[str, Field(pattern=f"^{PLUGIN_NAME.pattern}$")] | None = None
    version: Annotated[str, Field(min_length=1, max_length=60)] | None = None


class FlagEvidence(BaseModel):
    """`found`: each difference that this flag is raised for."""

    means: str
    before: dict[str, int]
    after: dict[str, int]
    found: tuple[str, ...]


class UnexpectedAnswer(BaseModel):
    what: str
    expected: str
    got: str


class ExercisedAnswer(BaseModel):
    """`refused`: what was refused, as it must be; `unexpected`: probes that were answered otherwise."""

    reads: int
    refusals: int
    refused: tuple[str, ...]
    unexpected: tuple[UnexpectedAnswer, ...]


class NotExercised(BaseModel):
    what: str
    reason: str


class CensusAnswer(BaseModel):
    """`bounded`: what was only counted, or left out."""

    first_at: Timestamp
    second_at: Timestamp
    before: dict[str, int]
    after: dict[str, int]
    bounded: tuple[str, ...]


class ProcessSeen(BaseModel):
    kind: Literal["api", "worker"]
    identity: str
    lane: str | None
    build: str
    config: str
    warnings: int
    last_warning: str | None


class SmokeEvidence(BaseModel):
    """`reasons`: why the verdict is not green. `foreign`: what others did meanwhile."""

    smoke_id: str
    verdict: Verdict
    reasons: tuple[str, ...]
    plugin: str | None
    version: str | None
    digest: str | None
    flags: dict[Flag, FlagEvidence]
    foreign: tuple[str, ...]
    exercised: ExercisedAnswer
    not_exercised: tuple[NotExercised, ...]
    census: CensusAnswer
    processes: tuple[ProcessSeen, ...]
    started_at: Timestamp
    finished_at: Timestamp


class SmokeAnswer(BaseModel):
    """`rung`: the phase in force. `allowed`: the reads that succeeded, and must. Green: no flag, nothing foreign, every
    probe answered as it must, and all live processes of one build and configuration, without a warning."""

    rung: Phase
    allowed: tuple[str, ...]
    flags: dict[Flag, bool]
    evidence: SmokeEvidence
    next_gate: Phase | None
    not_yet: str


@router.post(
    "/smokes",
    operation_id="smoke",
    responses=refusals(P.NOT_PERMITTED, P.PLUGIN_UNKNOWN, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    openapi_extra=body_of(SmokeIn),
)
async def smokes(
    request: Request,
    doors: At,
    caller: By,
    deadline: Annotated[str | None, Header(alias="Jobgate-Http-Deadline", description="The request clock.")] = None,
) -> SmokeAnswer:
    """Census, every read and every refusal, census: nothing may have changed. Its clock is the longest by default."""
    until = request_clock(request, doors.settings)
    need_scope(caller, Action.OPERATOR_READ)
    asked = await read_body(request, SmokeIn)
    longest = doors.settings.http_deadline_max_s
    move_clock(request.scope, longest if deadline is None else until - asyncio.get_running_loop().time())
    return answer_of(await _smoke(request, doors, caller, asked))


async def _smoke(request: Request, doors: At, caller: By, asked: SmokeIn) -> Smoked:
    if asked.plugin is None and asked.version is not None:
        raise Refused(P.INPUT_INVALID, "version: A version goes with a plugin.")
    plugin = None if asked.plugin is None else plugins.plugin_name(asked.plugin)
    return await smoke(doors, request.app, caller, request.headers["authorization"], plugin, asked.version)


MEANING: Mapping[Flag, str] = MappingProxyType(
    {
        Flag.WORKER_EXECUTED: "an execution was started, or a worker tried a model or tool step",
        Flag.STATE_MUTATED: "a parked job's history grew, or a row or a blob was added or changed",
        Flag.PROCESS_STARTED: "a process, a poller or a child of the API process came up",
        Flag.APPROVAL_CONSUMED: "a packet moved on, or somebody voted or decided",
        Flag.CONFIG_CHANGED: "a version, deployment, release, grant, key, workspace or configuration changed",
        Flag.PHASE_PROMOTED: "a promotion was proposed or done",
    }
)


def _rows(flag: Flag) -> Callable[[Census], Mapping[str, int]]:
    names = [watched.table.name for watched in WATCHED if flag in (watched.flag, watched.moved)]
    return lambda census: {name: census.tables[name].count for name in names}


_COUNTS: Mapping[Flag, Callable[[Census], Mapping[str, int]]] = MappingProxyType(
    {
        **{flag: _rows(flag) for flag in Flag},
        Flag.WORKER_EXECUTED: lambda census: {
            "executions": census.listed.total,
            "open_executions": len(census.executions),
            "pending_attempts": census.attempts,
        },
        Flag.STATE_MUTATED: lambda census: {
            "history_events": census.history_events,
            "blobs": census.blobs[0],
            "blob_bytes": census.blobs[1],
            **_rows(Flag.STATE_MUTATED)(census),
        },
        Flag.PROCESS_STARTED: lambda census: {
            "processes": len(census.processes),
            "pollers": sum(map(len, census.pollers.values())),
            "child_processes": len(census.children),
        },
    }
)


def answer_of(smoked: Smoked) -> SmokeAnswer:
    rung = smoked.ground.phase
    return SmokeAnswer(
        rung=rung,
        allowed=tuple(smoked.exercised.allowed),
        flags=smoked.flags,
        evidence=_evidence(smoked),
        next_gate=next_rung(rung),
        not_yet=NOT_YET[rung],
    )


def _evidence(smoked: Smoked) -> SmokeEvidence:
    done, row, first, second = smoked.exercised, smoked.ground.version, smoked.first, smoked.second
    return SmokeEvidence(
        smoke_id=smoked.smoke_id,
        verdict=smoked.verdict,
        reasons=smoked.reasons,
        plugin=None if row is None else row.name,
        version=None if row is None else row.version,
        digest=None if row is None else row.digest,
        flags={flag: _of_flag(smoked, flag) for flag in Flag},
        foreign=tuple(change.text for change in smoked.changes if change.foreign),
        exercised=ExercisedAnswer(
            reads=len(done.allowed),
            refusals=len(done.refused),
            refused=tuple(done.refused),
            unexpected=tuple(
                UnexpectedAnswer(what=one.what, expected=one.expected, got=one.got) for one in done.unexpected
            ),
        ),
        not_exercised=tuple(NotExercised(what=what, reason=reason) for what, reason in done.not_exercised.items()),
        census=CensusAnswer(
            first_at=first.at, second_at=second.at, before=_all(first), after=_all(second), bounded=second.bounds
        ),
        processes=tuple(
            ProcessSeen.model_validate({name: getattr(one, name) for name in ProcessSeen.model_fields})
            for one in second.processes
        ),
        started_at=smoked.started_at,
        finished_at=smoked.finished_at,
    )


def _of_flag(smoked: Smoked, flag: Flag) -> FlagEvidence:
    found = [change.text for change in smoked.changes if change.flag is flag and not change.foreign]
    if tried := smoked.exercised.tried.get(flag):
        found.append(f"a probe tried {tried} times, and was refused")
    return FlagEvidence(
        means=MEANING[flag],
        before=dict(_COUNTS[flag](smoked.first)),
        after=dict(_COUNTS[flag](smoked.second)),
        found=tuple(found),
    )


def _all(census: Census) -> dict[str, int]:
    return {name: count for flag in Flag for name, count in _COUNTS[flag](census).items()}
