"""What is true of a job before any worker saw it: one function that workflow and facade share.

`job.queued` (seq 1) and the view that goes with it are computed from the start input, so they exist with no worker.
"""

from typing import Literal

from workflows.contract.events import Event, EventType
from workflows.contract.job import ApprovalRule, JobStart, JobView, MemoStart, PlannedTool, Status, ToolRow
from workflows.policy.eligibility import classify


def memo_of(start: JobStart) -> MemoStart:
    """The part of the memo that never changes."""
    verdict = classify(start.facts)
    return MemoStart(
        fingerprint=start.fingerprint,
        principal=start.principal,
        plugin=start.plugin,
        mode=start.mode,
        snapshot=start.snapshot,
        accepted_at=start.accepted_at,
        deadline=start.deadline,
        eligibility=verdict.eligibility,
        blocker=verdict.blocker,
        session=start.session,
        retry_of=start.retry_of,
        labels=start.labels,
        initiator=start.initiator,
    )


def queued_event(memo: MemoStart) -> Event:
    kind = "Dry run" if memo.mode == "dry_run" else "Job"
    return Event(
        seq=1,
        at=memo.accepted_at,
        type=EventType.JOB_QUEUED,
        message=f"{kind} accepted: {memo.plugin.name} {memo.plugin.version}. Waiting to start.",
        data={
            "plugin": memo.plugin.name,
            "version": memo.plugin.version,
            "digest": memo.plugin.digest,
            "mode": memo.mode,
            "principal": memo.principal,
            "initiator": None if memo.initiator is None else memo.initiator.model_dump(),
        },
    )


def queued_view(memo: MemoStart) -> JobView:
    return JobView(
        status=Status.QUEUED,
        eligibility=memo.eligibility,
        blocker=memo.blocker,
        last_event=queued_event(memo),
    )


def planned(start: JobStart) -> tuple[PlannedTool, ...]:
    """A dry run's plan: what each tool would do live and whom it would ask, from the dispatch table alone."""
    return tuple(
        PlannedTool(
            tool=name,
            kind=row.kind,
            effect=row.effect,
            asks=asks,
            would_ask=None if asks == "never" else _whom(row.approval),
        )
        for name, row in start.tools.items()
        for asks in (_asks(start, row),)
        if not row.hidden
    )


def _asks(start: JobStart, row: ToolRow) -> Literal["never", "always", "policy"]:
    """Without a policy reads run and writes ask; a question to a person is always one."""
    if row.kind == "builtin":
        return "always"
    if start.has_policy:
        return "policy"
    return "never" if row.effect == "read" else "always"


def _whom(rule: ApprovalRule) -> str:
    who = " or ".join(rule.groups) or "anyone who may decide"
    return who if rule.quorum == 1 else f"{rule.quorum} of {who}"
