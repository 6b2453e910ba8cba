"""Previews: what a submission would be told, and what becomes of a job by itself; judged by admission's own code.

The judging runs under a watch (`gateway.seams`), so nothing is changed even where something tries to; `side_effects`
are what the watch saw, never constants. A preview explains: what is not eligible is an answer here and no refusal.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from sqlalchemy import Connection

from facade.views import JobAnswer
from facade.window import Window
from gateway.authority import Allowed, granted
from gateway.dependencies import dependency_withdrawn
from gateway.doors import Doors
from gateway.jobrequest import read_job_request
from gateway.judging import refusal_of, terms_of
from gateway.known import look
from gateway.lanes import fitting
from gateway.ledger.authorities import find_authority
from gateway.ledger.gates import held_job_released
from gateway.ledger.grants import grants_of
from gateway.ledger.packets import PacketRow, packets_of
from gateway.ledger.phases import Resolved, resolve
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.manifest import Manifest
from gateway.scopes import Action, Caller
from gateway.seams import Seen, WouldChange, watching
from gateway.snapshots import SnapshotMismatch
from gateway.telemetry import log
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import PHASES, Eligibility, EligibilityFacts
from workflows.contract.ids import JobId
from workflows.contract.job import TERMINAL, Mode, Status
from workflows.policy.eligibility import Verdict, classify, lower

T = TypeVar("T")

UNJUDGED = Verdict(
    Eligibility.BLOCKED,
    None,
    None,
    "Not yet: judging this tried to change something; an operator must look at the log.",
)
"""Where the judging itself was refused under the watch, so that it came to no verdict."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """`projected`: the status that follows, None where nothing would exist. `would_change`: a job would be made, or one
    that is there would go on by itself; `would_execute`: a model or tool would be called on the way."""

    verdict: Verdict
    projected: Status | None = None
    would_change: bool = False
    would_execute: bool = False


async def preview_submission(doors: Doors, caller: Caller, body: bytes, until: float) -> tuple[Outlook, Seen]:
    """What POST /v1/jobs would make of this body by now. Raises Refused for what is no question of eligibility, and
    HTTP_DEADLINE_EXCEEDED after `until` (event loop time)."""
    return await measured(doors, _in_time(_of_submission(doors, caller, body), until), Outlook(UNJUDGED))


async def preview_job(doors: Doors, window: Window, caller: Caller, job_id: str, until: float) -> tuple[Outlook, Seen]:
    """What becomes of a job by itself, by the facts of now. Raises Refused as its status read does."""
    return await measured(doors, _in_time(_of_job(doors, window, caller, JobId(job_id)), until), Outlook(UNJUDGED))


async def measured(doors: Doors, judging: Awaitable[T], unjudged: T) -> tuple[T, Seen]:
    """`judging` under a watch, and what the watch saw; `unjudged` where a refused change ended it."""
    with watching() as seen:
        try:
            return await judging, seen
        except WouldChange:
            return unjudged, seen
        finally:
            for flag in seen.raised():
                log.error("preview.would_change", flag=flag)
                doors.telemetry.metrics.side_effects.add(1, {"flag": flag})


# ---- a submission


async def _of_submission(doors: Doors, caller: Caller, body: bytes) -> Outlook:
    asked = read_job_request(body)
    known = await doors.ledger.read(partial(look, caller, None, asked))
    weighed = await doors.judge.weigh(caller, asked, known)
    if refusal_of(weighed.verdict, asked) is not None:
        return Outlook(weighed.verdict)
    terms_of(weighed, asked)
    return _admitted(weighed.verdict, asked.mode)


def _admitted(verdict: Verdict, mode: Mode) -> Outlook:
    if mode == "dry_run":
        return Outlook(verdict, Status.SUCCEEDED, would_change=True)
    if verdict.eligibility is Eligibility.LIVE_APPROVED:
        return Outlook(verdict, Status.RUNNING, would_change=True, would_execute=True)
    return Outlook(verdict, Status.QUEUED, would_change=True)


# ---- a job that is there


async def _of_job(doors: Doors, window: Window, caller: Caller, job_id: JobId) -> Outlook:
    job = await window.job(caller, job_id)
    held = job.mode == "live" and job.status is Status.QUEUED and job.eligibility is Eligibility.DRY_RUN_ELIGIBLE
    facts = await _facts_now(doors, caller, job_id, held=held)
    verdict = classify(facts)
    return Outlook(verdict, *_goes_on(job, verdict, held=held, authorised=facts.authority_ok))


_ENDS: MappingProxyType[Status, tuple[Status, bool, bool]] = MappingProxyType(
    {status: (status, True, False) for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)}
)


def _goes_on(job: JobAnswer, verdict: Verdict, *, held: bool, authorised: bool) -> tuple[Status, bool, bool]:
    """Its next status, whether it gets there by itself, and whether a model or tool would be called for it."""
    status, may_run = job.status, verdict.eligibility is Eligibility.LIVE_APPROVED
    if status in TERMINAL:
        return status, False, False
    if status is Status.CANCELING:
        return _ENDS[Status.CANCELED]
    if job.overdue or (job.mode == "live" and not authorised):
        return _ENDS[Status.FAILED]
    if job.mode == "dry_run":
        return _ENDS[Status.SUCCEEDED]
    if held and not may_run:
        return Status.QUEUED, False, False
    if status is Status.WAITING_FOR_HUMAN:
        return status, False, False
    if verdict.eligibility in (Eligibility.BLOCKED, Eligibility.DRY_RUN_ELIGIBLE):
        return _ENDS[Status.FAILED]
    return Status.RUNNING, True, True


@dataclass(frozen=True, slots=True)
class _Now:
    row: ReceiptRow
    resolved: Resolved | None
    authorised: bool
    packets: list[PacketRow]
    released: bool


async def _facts_now(doors: Doors, caller: Caller, job_id: JobId, *, held: bool) -> EligibilityFacts:
    """What admission and gate would judge of this job at this moment. A job that is held stays below the top rung until
    a promotion releases it."""
    now = datetime.now(UTC)

    def read(conn: Connection) -> _Now:
        row = find_receipt(conn, caller.workspace, job_id)
        assert row is not None, "its status was read, and rows are never deleted"
        authority = find_authority(conn, row.workspace, job_id)
        grants = grants_of(conn, row.workspace, row.principal, now)
        may = isinstance(granted(grants, Action.JOBS_SUBMIT, row.plugin, now), Allowed)
        return _Now(
            row=row,
            resolved=resolve(conn, row.workspace, row.plugin, row.version),
            authorised=may and authority is not None and authority.revoked_at is None,
            packets=[one for one in packets_of(conn, row.workspace, job_id) if one.digest == row.plugin_digest],
            released=not held or held_job_released(conn, row),
        )

    known = await doors.ledger.read(read)
    row, resolved = known.row, known.resolved
    if resolved is None or resolved.plugin_digest != row.plugin_digest:
        return EligibilityFacts(snapshot_ok=False, version_phase="blocked_noop", runtime_phase="blocked_noop")
    phase = resolved.version_phase if known.released else lower(resolved.version_phase, "live_canary")
    canary = PHASES.index(lower(phase, resolved.runtime_phase)) >= PHASES.index("live_canary")
    facts = EligibilityFacts(
        authority_ok=known.authorised,
        withdrawn=resolved.withdrawn,
        version_phase=phase,
        runtime_phase=resolved.runtime_phase,
        packet_redeemed=canary and _lets_run(known.packets, now, held=held),
    )
    try:
        snapshot = await doors.snapshots.load(row.workspace, row.snapshot)
    except SnapshotMismatch:
        return facts.model_copy(update={"snapshot_ok": False})
    manifest = snapshot.bundle.manifest
    return facts.model_copy(
        update={
            "scope_ok": doors.judge.references_allowed(row.workspace, snapshot),
            "withdrawn": facts.withdrawn or await _pin_withdrawn(doors, caller, manifest),
            "offload": manifest.offload,
            "capabilities_met": fitting(doors.settings, manifest.requires) is not None,
        }
    )


def _lets_run(packets: list[PacketRow], now: datetime, *, held: bool) -> bool:
    """Whether one was redeemed by this job, or is approved and will be as soon as the job looks at its gate. A job that
    is held although one was redeemed is another run of it (an operator's reset), and no packet lets that one run."""
    if any(one.redeemed_at is not None for one in packets):
        return not held
    return any(one.approved_at is not None and one.revoked_at is None and now < one.expires_at for one in packets)


async def _pin_withdrawn(doors: Doors, caller: Caller, manifest: Manifest) -> bool:
    if not manifest.dependencies:
        return False
    return await doors.ledger.read(lambda conn: dependency_withdrawn(conn, caller.workspace, manifest))


async def _in_time(judging: Awaitable[T], until: float) -> T:
    try:
        async with asyncio.timeout_at(until):
            return await judging
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out before this was judged: nothing was changed."
        ) from None
