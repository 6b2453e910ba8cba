"""What people are asked: the inbox, and one request in full. A decision covers exactly what is shown here.

`jobs:decide` or `jobs:read` opens them, each with a grant on the plugin, so that whoever is on call need not have
submitted the job. The ledger owns verdicts: what is decided there is decided, read by a worker or not, and it keeps
what was shown with each, so that a request can be read when its job has long forgotten it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from facade.project import ERASED_TITLE, Look, no_execution, state_of, unheard
from facade.reader import DecisionFacts, LedgerFacts, Viewer
from facade.views import Inbox, InboxItem, PluginAnswer, PolicyAnswer, RequestAnswer, VoteAnswer
from facade.window import Window
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import JobId, RequestId
from workflows.contract.job import TERMINAL, OpenRequest, RequestState

_REQUEST_ID = re.compile(r"r[0-9]{1,9}-[0-9a-f]{6}")

STATE_OF_VERDICT: Mapping[str, RequestState] = MappingProxyType(
    {
        "approve": "approved",
        "reject": "rejected",
        "answer": "answered",
        "settle": "settled",
        "expired": "expired",
        "voided": "voided",
    }
)


@dataclass(frozen=True, slots=True)
class Found:
    """A request of a job, and what the ledger holds of it. `forgotten`: the job itself does not know it any more."""

    look: Look
    request: OpenRequest
    ruling: DecisionFacts | None
    forgotten: bool = False


async def inbox(window: Window, viewer: Viewer) -> Inbox:
    """Open requests of the workspace that the viewer may see, oldest first; may lag by a second or two."""
    waiting = await window.reader.waiting(viewer.workspace)
    now = datetime.now(UTC)
    opened = [
        (job, request)
        for job in waiting
        for request in job.recorded.view.requests
        if request.state == "pending" and now < request.expires_at
    ]
    known = await window.reader.undecided(viewer, [(job.job_id, request.request_id) for job, request in opened])
    if known.access.nothing("jobs:decide") and known.access.nothing("jobs:read"):
        raise Refused(ProblemCode.NOT_PERMITTED, "This needs the scope and a grant of jobs:decide or jobs:read.")
    shown = [
        InboxItem(
            job_id=job.job_id,
            request_id=request.request_id,
            kind=request.kind,
            title=request.title,
            tool=request.tool,
            action_digest=request.action_digest,
            plugin=PluginAnswer.of(job.memo.plugin),
            opened_at=request.opened_at,
            expires_at=request.expires_at,
        )
        for job, request in opened
        if (job.job_id, request.request_id) in known.requests
        and any(known.access.allows(action, job.memo.plugin.name) for action in ("jobs:decide", "jobs:read"))
    ]
    return Inbox(data=tuple(sorted(shown, key=lambda item: (item.opened_at, item.job_id, item.request_id))))


async def request_answer(window: Window, viewer: Viewer, job_id: JobId, request_id: RequestId) -> RequestAnswer:
    """One request with its arguments in full (null where they were erased)."""
    ledger = await window.admitted(viewer, job_id, "jobs:decide", "jobs:read")
    found = await find_request(window, viewer, ledger, request_id)
    request, ruling = found.request, found.ruling
    erased = ledger.receipt is None or ledger.receipt.erased_at is not None
    try:
        if erased:
            raise KeyError(request.args_ref)
        args = json.loads(await window.reader.blob(viewer.workspace, request.args_ref))
    except KeyError:
        args = None
    return RequestAnswer(
        job_id=job_id,
        request_id=request.request_id,
        kind=request.kind,
        title=ERASED_TITLE if erased else request.title,
        tool=request.tool,
        effect_id=request.effect_id,
        args=args,
        action_digest=request.action_digest,
        opened_at=request.opened_at,
        expires_at=request.expires_at,
        policy=PolicyAnswer.of(request.approval),
        votes=tuple(
            VoteAnswer(principal=vote.principal, decision=vote.decision, at=vote.at, counts=vote.counts)
            for vote in (ruling.votes if ruling is not None else ())
        ),
        state=state_of_request(found, ledger, datetime.now(UTC)),
        decided_by=ruling.decided_by if ruling is not None and ruling.verdict else request.decided_by,
        decided_at=ruling.decided_at if ruling is not None and ruling.verdict else request.decided_at,
    )


async def find_request(
    window: Window, viewer: Viewer, ledger: LedgerFacts, request_id: RequestId, *, to_decide: bool = False
) -> Found:
    """The request as the job recorded it, else as it was shown when its verdict was written. Raises Refused(NOT_FOUND)
    for one that neither knows, and what the job itself would answer where its record is gone. `to_decide`: of a job
    that was reset, such a one may be from before the reset, and is void."""
    assert ledger.receipt is not None
    if not _REQUEST_ID.fullmatch(request_id):
        raise _unknown()
    look = await window.sight.recorded(viewer.workspace, ledger.receipt.job_id)
    if look.execution is None:
        raise no_execution(ledger.receipt)
    ruling = await window.reader.decision(viewer.workspace, ledger.receipt.job_id, request_id)
    for request in state_of(look).requests:
        if request.request_id == request_id:
            return Found(look, request, ruling)
    if ruling is not None and ruling.shown is not None:
        return Found(look, ruling.shown, ruling, forgotten=True)
    if to_decide and (state_of(look).resets or unheard(look)):
        raise Refused(
            ProblemCode.REQUEST_VOIDED,
            "An operator reset the job, and requests from before are void; what is still open has another id.",
        )
    raise _unknown()


def state_of_request(found: Found, ledger: LedgerFacts, now: datetime) -> RequestState:
    """The ledger's verdict first; then what the job recorded; an open request of a job that ends is void."""
    if found.ruling is not None and found.ruling.verdict is not None:
        return STATE_OF_VERDICT[found.ruling.verdict]
    if found.request.state != "pending":
        return found.request.state
    if ledger.stop_at is not None or ledger.revoked_at is not None or state_of(found.look).status in TERMINAL:
        return "voided"
    return "expired" if now >= found.request.expires_at else "pending"


def _unknown() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "This job has no such request.")
