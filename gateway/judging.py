"""May this be admitted, as what, and within which limits: facts from ledger and snapshot, judged by the policies.

Admission asks before it reserves; previews and simulations ask the same, up to what would be told. Only `judge`, which
makes a job, writes: the snapshot's own bytes, which are content-addressed: storing them twice is storing them once.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.admissible import Admissible, initiator_of, row_of
from gateway.allowlist import CredentialPolicy
from gateway.authority import Allowed, Denied, granted
from gateway.dependencies import dependency_withdrawn
from gateway.jobrequest import JobRequest
from gateway.known import Known
from gateway.lanes import fitting
from gateway.ledger.authorities import NewAuthority
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.sessions import SessionRow
from gateway.limits import day_is_bounded, day_is_spent, narrowed
from gateway.schemas import validate
from gateway.scopes import Action, Caller
from gateway.settings import Settings
from gateway.snapshots import Snapshot, SnapshotMismatch, Snapshots
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import Eligibility, EligibilityFacts
from workflows.contract.ids import Digest, JobId, PrincipalId, Workspace
from workflows.contract.job import JobStart, Limits, PluginRef
from workflows.policy.deadline import Denied as NoDeadline
from workflows.policy.deadline import resolve as resolve_deadline
from workflows.policy.eligibility import Verdict, classify


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a submission comes to before anything is made of it: the verdict, and all that it was drawn from."""

    verdict: Verdict
    facts: EligibilityFacts
    snapshot: Snapshot | None
    principal: PrincipalId
    granted: Allowed | Denied
    at: datetime


@dataclass(frozen=True, slots=True)
class Terms:
    limits: Limits
    deadline: datetime


class Judge:
    def __init__(self, ledger: Ledger, snapshots: Snapshots, allowlist: CredentialPolicy, settings: Settings) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._allowlist = allowlist
        self._settings = settings
        self._allowed: dict[tuple[Workspace, Digest], bool] = {}
        """Whether a snapshot's references are on the allowlist; neither ever changes in this process."""

    async def weigh(self, caller: Caller, asked: JobRequest, known: Known) -> Weighed:
        """Who may, what, and whether it may run. Raises Refused for what is no question of eligibility."""
        if isinstance(known.authority, Denied):
            raise Refused(ProblemCode.NOT_PERMITTED, known.authority.reason)
        assert known.authority is not None
        _fits_session(asked, known.session)
        if known.resolved is None and (asked.version is not None or not known.published):
            raise Refused(ProblemCode.PLUGIN_UNKNOWN, "There is no such plugin or version in this workspace.")
        now = datetime.now(UTC)
        snapshot, facts = await self._facts(caller, known)
        principal, granted_ = await self._principal(caller, known.authority, asked, snapshot, now)
        facts = await self._with_authority(caller, facts, principal, granted_, now)
        return Weighed(classify(facts), facts, snapshot, principal, granted_, now)

    async def judge(self, caller: Caller, key: JobId, asked: JobRequest, print_: Digest, known: Known) -> Admissible:
        """The row to reserve and the job to start; its snapshot is stored. Raises Refused: who may, what, whether it
        may run, how much."""
        weighed = await self.weigh(caller, asked, known)
        refuse_by(weighed.verdict, asked)
        terms = terms_of(weighed, asked)
        snapshot, granted_, principal, now = weighed.snapshot, weighed.granted, weighed.principal, weighed.at
        assert snapshot is not None
        assert known.resolved is not None
        assert isinstance(granted_, Allowed)
        if known.session is None and known.resolved.deployment_digest is not None:
            await self._snapshots.put(caller.workspace, known.resolved.plugin_digest, known.resolved.deployment_digest)
        start = JobStart(
            workspace=caller.workspace,
            job_id=key,
            principal=principal,
            initiator=initiator_of(caller, principal, asked),
            plugin=PluginRef(name=asked.plugin, version=known.resolved.version, digest=known.resolved.plugin_digest),
            snapshot=snapshot.digest,
            mode=asked.mode,
            facts=weighed.facts,
            fingerprint=print_,
            accepted_at=now,
            deadline=terms.deadline,
            limits=terms.limits,
            tools=snapshot.table,
            session=asked.session,
            conversation=None if known.session is None else known.session.conversation,
            retry_of=asked.retry_of,
            labels=asked.labels,
            tool_queue=self._tool_queue(snapshot),
            has_policy=snapshot.bundle.manifest.policy is not None,
            roll_over_after=self._settings.roll_over_after_events,
            heartbeat_s=self._settings.heartbeat_timeout_s,
        )
        return Admissible(
            receipt=row_of(start, asked),
            start=start,
            authority=NewAuthority(
                workspace=start.workspace,
                job_id=start.job_id,
                principal=principal,
                submitted_by=caller.principal,
                credential=caller.credential,
                plugin=start.plugin.name,
                version=start.plugin.version,
                snapshot=start.snapshot,
                model=snapshot.deployment.model,
                limits={**terms.limits.model_dump(mode="json"), "tools": granted_.limits.tools},
                seen_change=known.change_no,
                minted_at=now,
                expires_at=now + timedelta(seconds=self._settings.authority_ttl_s),
            ),
            session=known.session,
            max_open=granted_.limits.max_concurrent_jobs,
        )

    def _tool_queue(self, snapshot: Snapshot) -> str | None:
        """Where tool calls are routed to, where the job's own lane lacks what the plugin requires."""
        lane = fitting(self._settings, snapshot.bundle.manifest.requires)
        return None if lane is None or lane.lane == self._settings.lane else lane.task_queue

    async def _facts(self, caller: Caller, known: Known) -> tuple[Snapshot | None, EligibilityFacts]:
        """The facts of what is to run, and the snapshot where there is one. A session keeps the one it is bound to."""
        resolved = known.resolved
        if resolved is None:
            return None, EligibilityFacts(released=False, version_phase="blocked_noop", runtime_phase=known.phase)
        bound = None if known.session is None else known.session.snapshot
        facts = EligibilityFacts(
            withdrawn=resolved.withdrawn,
            deployed=bound is not None or resolved.deployment_digest is not None,
            version_phase=resolved.version_phase,
            runtime_phase=resolved.runtime_phase,
        )
        try:
            if bound is not None:
                snapshot = await self._snapshots.load(caller.workspace, bound)
            elif resolved.deployment_digest is not None:
                snapshot = await self._snapshots.assemble(
                    caller.workspace, resolved.plugin_digest, resolved.deployment_digest
                )
            else:
                return None, facts
        except SnapshotMismatch:
            return None, facts.model_copy(update={"snapshot_ok": False})
        manifest = snapshot.bundle.manifest
        withdrawn = facts.withdrawn or (
            bool(manifest.dependencies)
            and await self._ledger.read(lambda conn: dependency_withdrawn(conn, caller.workspace, manifest))
        )
        return snapshot, facts.model_copy(
            update={
                "withdrawn": withdrawn,
                "scope_ok": self.references_allowed(caller.workspace, snapshot),
                "offload": manifest.offload,
                "capabilities_met": fitting(self._settings, manifest.requires) is not None,
            }
        )

    async def _principal(
        self, caller: Caller, own: Allowed, asked: JobRequest, snapshot: Snapshot | None, now: datetime
    ) -> tuple[PrincipalId, Allowed | Denied]:
        """Whose authority and bill the job is: the caller's, or that of the agent which the deployment names, whose
        principal is the whole `agent:NAME`. What the caller may do is then no part of it."""
        if snapshot is None or snapshot.deployment.identity == "caller":
            return caller.principal, own
        agent = PrincipalId(snapshot.deployment.identity)
        grants = await self._ledger.read(lambda conn: grants_of(conn, caller.workspace, agent, now))
        return agent, granted(grants, Action.JOBS_SUBMIT, asked.plugin, now)

    async def _with_authority(
        self,
        caller: Caller,
        facts: EligibilityFacts,
        principal: PrincipalId,
        granted_: Allowed | Denied,
        now: datetime,
    ) -> EligibilityFacts:
        if isinstance(granted_, Denied):
            return facts.model_copy(update={"authority_ok": False})
        limits = granted_.limits
        if not day_is_bounded(limits):
            return facts
        spent = await self._ledger.read(lambda conn: day_is_spent(conn, caller.workspace, principal, limits, now))
        return facts.model_copy(update={"limits_ok": not spent})

    def references_allowed(self, workspace: Workspace, snapshot: Snapshot) -> bool:
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


def _fits_session(asked: JobRequest, session: SessionRow | None) -> None:
    """A session stays with the plugin and version of its first job."""
    if session is None:
        return
    if session.plugin != asked.plugin:
        raise Refused(ProblemCode.INPUT_INVALID, "session: This session belongs to another plugin.")
    if asked.version not in (None, session.version):
        raise Refused(
            ProblemCode.INPUT_INVALID,
            "version: The session is bound to another one; leave it out, or open another.",
        )


def terms_of(weighed: Weighed, asked: JobRequest) -> Terms:
    """How much and until when, of a submission that its verdict lets through. Raises Refused: 422."""
    snapshot, granted_ = weighed.snapshot, weighed.granted
    assert snapshot is not None
    assert isinstance(granted_, Allowed)
    limits = narrowed(snapshot.limits, granted_.limits, asked)
    if limits.max_cost_usd is not None and not snapshot.price_known:
        raise Refused(ProblemCode.LIMIT_EXCEEDED, "A money limit needs a model whose price is known.")
    if snapshot.bundle.manifest.input_schema is not None:
        reasons = validate(snapshot.bundle.manifest.input_schema, asked.input)
        if reasons:
            raise Refused(ProblemCode.INPUT_INVALID, "input: " + "; ".join(reasons))
    deadline = resolve_deadline(asked.instant, asked.timeout_seconds, weighed.at, limits.max_duration_seconds)
    if isinstance(deadline, NoDeadline):
        code = ProblemCode.DEADLINE_INVALID if deadline.kind == "invalid" else ProblemCode.LIMIT_EXCEEDED
        raise Refused(code, deadline.reason)
    return Terms(limits, deadline)


def refusal_of(verdict: Verdict, asked: JobRequest) -> ProblemCode | None:
    """The refusal that this verdict means for this submission; None: it is admitted."""
    if verdict.eligibility is Eligibility.BLOCKED:
        return ProblemCode.BLOCKED
    if asked.mode == "dry_run":
        return None
    if verdict.eligibility is Eligibility.LOCAL_ONLY:
        return ProblemCode.LOCAL_ONLY
    held = verdict.eligibility is Eligibility.DRY_RUN_ELIGIBLE
    return ProblemCode.NOT_LIVE_APPROVED if held and asked.on_blocked == "refuse" else None


def refuse_by(verdict: Verdict, asked: JobRequest) -> None:
    """Raise the refusal that this verdict means for this submission, if any."""
    code = refusal_of(verdict, asked)
    if code is not None:
        raise Refused(
            code,
            verdict.not_yet or "",
            eligibility=verdict.eligibility,
            blocker=verdict.blocker,
            executed="no",
            next_gate=verdict.next_gate,
            not_yet=verdict.not_yet,
        )
