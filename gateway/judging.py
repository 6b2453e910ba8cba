"""May this be admitted, as what, and within which limits: facts from ledger and snapshot, judged by the policies.

Admission asks before it reserves; a preview asks the same. Nothing here writes but the snapshot's own bytes, which are
content-addressed: storing them twice is storing them once.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import NoReturn

from sqlalchemy import Connection

from gateway.allowlist import CredentialPolicy
from gateway.authority import Allowed, Denied, GrantLimits, decide
from gateway.jobrequest import JobRequest
from gateway.ledger.catalog import list_plugin_versions
from gateway.ledger.grants import grants_of
from gateway.ledger.phases import Resolved, resolve, runtime_phase
from gateway.ledger.receipts import NewReceipt, ReceiptRow, find_receipt
from gateway.schemas import validate
from gateway.scopes import Action, Caller
from gateway.settings import Settings
from gateway.snapshots import Snapshot, SnapshotMismatch, Snapshots
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import timestamp
from workflows.contract.ids import Digest, JobId, Workspace
from workflows.contract.job import (
    Eligibility,
    EligibilityFacts,
    Initiator,
    JobStart,
    Limits,
    Phase,
    PluginRef,
    Status,
)
from workflows.policy.deadline import Denied as NoDeadline
from workflows.policy.deadline import resolve as resolve_deadline
from workflows.policy.eligibility import Verdict, classify


@dataclass(frozen=True, slots=True)
class Known:
    """One consistent look at the ledger: the key's row if it decides the answer, else all that judging needs too."""

    row: ReceiptRow | None
    authority: Allowed | Denied | None = None
    resolved: Resolved | None = None
    published: bool = False
    phase: Phase = "blocked_noop"


def look(caller: Caller, key: JobId, asked: JobRequest, conn: Connection) -> Known:
    """In one read transaction. A row that was refused by the engine does not decide: its key may be reserved anew."""
    row = find_receipt(conn, caller.workspace, key)
    if row is not None and not (row.refused_at and not row.accepted):
        return Known(row)
    now = datetime.now(UTC)
    grants = grants_of(conn, caller.workspace, caller.principal, now)
    resolved = resolve(conn, caller.workspace, asked.plugin, asked.version)
    return Known(
        row=row,
        authority=decide(caller, grants, Action.JOBS_SUBMIT, asked.plugin, now),
        resolved=resolved,
        published=resolved is not None or bool(list_plugin_versions(conn, caller.workspace, asked.plugin)),
        phase=runtime_phase(conn) if resolved is None else resolved.runtime_phase,
    )


class Judge:
    def __init__(self, snapshots: Snapshots, allowlist: CredentialPolicy, settings: Settings) -> None:
        self._snapshots = snapshots
        self._allowlist = allowlist
        self._settings = settings
        self._allowed: dict[tuple[Workspace, Digest], bool] = {}
        """Whether a snapshot's references are on the allowlist; neither ever changes in this process."""

    async def judge(
        self, caller: Caller, key: JobId, asked: JobRequest, print_: Digest, known: Known
    ) -> tuple[NewReceipt, JobStart]:
        """The row to reserve and the job to start. Raises Refused: who may, what, whether it may run, how much."""
        if isinstance(known.authority, Denied):
            raise Refused(ProblemCode.NOT_PERMITTED, known.authority.reason)
        assert known.authority is not None
        if known.resolved is None and (asked.version is not None or not known.published):
            raise Refused(ProblemCode.PLUGIN_UNKNOWN, "There is no such plugin or version in this workspace.")
        if asked.session is not None:
            raise Refused(ProblemCode.FEATURE_NOT_AVAILABLE, "Sessions are not available in this release.")
        snapshot, facts = await self._facts(caller, known)
        verdict = classify(facts)
        refuse_by(verdict, asked)
        assert snapshot is not None
        assert known.resolved is not None
        limits = narrowed(snapshot.limits, known.authority.limits, asked)
        if limits.max_cost_usd is not None and not snapshot.price_known:
            raise Refused(ProblemCode.LIMIT_EXCEEDED, "A money limit needs a model whose price is known.")
        if snapshot.bundle.manifest.input_schema is not None:
            reasons = validate(snapshot.bundle.manifest.input_schema, asked.input)
            if reasons:
                raise Refused(ProblemCode.INPUT_INVALID, "input: " + "; ".join(reasons))
        now = datetime.now(UTC)
        deadline = resolve_deadline(asked.instant, asked.timeout_seconds, now, limits.max_duration_seconds)
        if isinstance(deadline, NoDeadline):
            code = ProblemCode.DEADLINE_INVALID if deadline.kind == "invalid" else ProblemCode.LIMIT_EXCEEDED
            raise Refused(code, deadline.reason)
        plugin = PluginRef(name=asked.plugin, version=known.resolved.version, digest=known.resolved.plugin_digest)
        start = JobStart(
            workspace=caller.workspace,
            job_id=key,
            principal=caller.principal,
            initiator=None if asked.initiator is None else Initiator(**asked.initiator.model_dump()),
            plugin=plugin,
            snapshot=snapshot.digest,
            mode=asked.mode,
            facts=facts,
            fingerprint=print_,
            accepted_at=now,
            deadline=deadline,
            limits=limits,
            tools=snapshot.table,
            labels=asked.labels,
            roll_over_after=self._settings.roll_over_after_events,
            heartbeat_s=self._settings.heartbeat_timeout_s,
        )
        return self._row(start, asked, verdict), start

    async def _facts(self, caller: Caller, known: Known) -> tuple[Snapshot | None, EligibilityFacts]:
        """The facts that `classify` judges, and the snapshot where there is one."""
        resolved = known.resolved
        if resolved is None:
            return None, EligibilityFacts(released=False, version_phase="blocked_noop", runtime_phase=known.phase)
        facts = EligibilityFacts(
            withdrawn=resolved.withdrawn,
            deployed=resolved.deployment_digest is not None,
            version_phase=resolved.version_phase,
            runtime_phase=resolved.runtime_phase,
        )
        if resolved.deployment_digest is None:
            return None, facts
        try:
            digest = await self._snapshots.put(caller.workspace, resolved.plugin_digest, resolved.deployment_digest)
            snapshot = await self._snapshots.load(caller.workspace, digest)
        except SnapshotMismatch:
            return None, facts.model_copy(update={"snapshot_ok": False})
        lanes = self._settings.lanes.values()
        needed = set(snapshot.bundle.manifest.requires)
        return snapshot, facts.model_copy(
            update={
                "scope_ok": self._references_allowed(caller.workspace, snapshot),
                "offload": snapshot.bundle.manifest.offload,
                "capabilities_met": any(needed <= set(lane.capabilities) for lane in lanes),
            }
        )

    def _references_allowed(self, workspace: Workspace, snapshot: Snapshot) -> bool:
        """Whether every credential reference of the deployment may be used by this workspace for its host."""
        key = (workspace, snapshot.digest)
        if key not in self._allowed:
            bound = [*snapshot.deployment.connections.values(), snapshot.deployment.model_connection]
            self._allowed[key] = not any(
                self._allowlist.refusal(bond.credential.ref, workspace=workspace, base_url=bond.base_url)
                for bond in bound
                if bond is not None and bond.credential is not None
            )
        return self._allowed[key]

    def _row(self, start: JobStart, asked: JobRequest, verdict: Verdict) -> NewReceipt:
        receipt = {
            "job_id": start.job_id,
            "status": Status.QUEUED,
            "mode": start.mode,
            "eligibility": verdict.eligibility,
            "blocker": verdict.blocker,
            "executed": "no",
            "accepted_at": timestamp(start.accepted_at),
            "deadline": timestamp(start.deadline),
            "fingerprint": start.fingerprint,
            "plugin": start.plugin.model_dump(),
            "snapshot": start.snapshot,
            "session": start.session,
            "retry_of": start.retry_of,
        }
        return NewReceipt(
            workspace=start.workspace,
            job_id=start.job_id,
            fingerprint=start.fingerprint,
            principal=start.principal,
            plugin=start.plugin.name,
            version=start.plugin.version,
            plugin_digest=start.plugin.digest,
            snapshot=start.snapshot,
            mode=start.mode,
            session=start.session,
            retry_of=start.retry_of,
            receipt=json.dumps(receipt, separators=(",", ":"), ensure_ascii=False).encode(),
            job_input=json.dumps(asked.input, separators=(",", ":"), ensure_ascii=False).encode(),
            start_input=start.model_dump_json().encode(),
            labels=asked.labels,
            initiator=None if asked.initiator is None else asked.initiator.model_dump(),
            deadline_at=start.deadline,
            reserved_at=start.accepted_at,
        )


def refuse_by(verdict: Verdict, asked: JobRequest) -> None:
    """Raise the refusal that this verdict means for this submission, if any."""
    if verdict.eligibility is Eligibility.BLOCKED:
        _not_yet(ProblemCode.BLOCKED, verdict)
    if asked.mode == "dry_run":
        return
    if verdict.eligibility is Eligibility.LOCAL_ONLY:
        _not_yet(ProblemCode.LOCAL_ONLY, verdict)
    if verdict.eligibility is Eligibility.DRY_RUN_ELIGIBLE and asked.on_blocked == "refuse":
        _not_yet(ProblemCode.NOT_LIVE_APPROVED, verdict)


def _not_yet(code: ProblemCode, verdict: Verdict) -> NoReturn:
    raise Refused(
        code,
        verdict.not_yet or "",
        eligibility=verdict.eligibility,
        blocker=verdict.blocker,
        executed="no",
        next_gate=verdict.next_gate,
        not_yet=verdict.not_yet,
    )


def narrowed(limits: Limits, granted: GrantLimits, asked: JobRequest) -> Limits:
    """What this job may spend: the least of snapshot, grant and what was asked. Asking for more is `limit-exceeded`."""
    allowed = least(limits, granted)
    budget = asked.budget
    wants: dict[str, int | Decimal | None] = {
        "max_steps": budget.max_steps if budget else None,
        "max_tokens": budget.max_tokens if budget else None,
        "max_cost_usd": asked.max_cost,
    }
    for name, want in wants.items():
        bound = getattr(allowed, name)
        if want is not None and bound is not None and want > bound:
            raise Refused(ProblemCode.LIMIT_EXCEEDED, f"budget.{name}: at most {bound} is allowed.", limit=name)
    return allowed.model_copy(update={name: want for name, want in wants.items() if want is not None})


def least(limits: Limits, granted: GrantLimits) -> Limits:
    """Per limit, the lower of what the snapshot allows and what the caller's grants state."""
    stated = granted.over(limits)
    costs = [cost for cost in (limits.max_cost_usd, stated.max_cost_usd) if cost is not None]
    return Limits(
        max_steps=min(limits.max_steps, stated.max_steps),
        max_duration_seconds=min(limits.max_duration_seconds, stated.max_duration_seconds),
        max_tokens=min(limits.max_tokens, stated.max_tokens),
        max_cost_usd=min(costs, default=None),
    )
