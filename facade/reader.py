"""What the window may ask of the world: a `Reader` whose every verb only reads, and the facts that it brings.

The door (`gateway/reading.py`) implements it over Temporal, ledger and blobs; previews hand in one that counts. No verb
here changes anything, and none needs a worker except `query`, which says so by returning None.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from workflows.contract.ids import BlobRef, Digest, JobId, PluginName, PrincipalId, RequestId, Workspace
from workflows.contract.job import DecisionVerb, EndRecord, Initiator, MemoStart, Mode, OpenRequest, Progress
from workflows.contract.steps import ViewOutput

ReadAction = Literal["jobs:read", "jobs:decide"]
Ending = Literal["completed", "failed", "canceled", "terminated", "timed_out"]
Writes = Literal["none", "known", "not_known"]
"""What the ledger knows of a job's writes: it holds none; of each what came of it; of one it does not."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An activity in flight: whether a worker has begun it, and what its heartbeat tells of the job."""

    activity: str
    started: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Execution:
    """What one `describe` tells of the current run. `reset_at`: where an operator's reset made this very run, when.
    `first_run`: the run that the execution began with, before roll-overs and resets."""

    ending: Ending | None
    closed_at: datetime | None
    memo: MemoStart
    recorded: EndRecord | None
    """The newest memo that the workflow wrote; None until its first one."""
    pending: tuple[Pending, ...] = ()
    history_length: int = 0
    workflow_task_failing: bool = False
    reset_at: datetime | None = None
    first_run: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiptFacts:
    """What the ledger knows of an admission. `receipt` is the exact JSON text that was answered."""

    seq: int
    job_id: JobId
    plugin: PluginName
    principal: PrincipalId
    initiator: Initiator | None
    mode: Mode
    session: str | None
    receipt: bytes
    reserved_at: datetime
    confirmed_at: datetime | None
    refused_at: datetime | None
    deadline: datetime
    erased_at: datetime | None = None
    """Since when its content is gone."""


class Viewer(Protocol):
    """Who asks, as a verified credential says."""

    @property
    def principal(self) -> PrincipalId: ...
    @property
    def workspace(self) -> Workspace: ...
    @property
    def scopes(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Access:
    """For each reading action, the plugins that scope and grants open to a viewer; None = every plugin."""

    plugins: Mapping[ReadAction, frozenset[PluginName] | None]

    def allows(self, action: ReadAction, plugin: PluginName) -> bool:
        opened = self.plugins.get(action, frozenset())
        return opened is None or plugin in opened

    def nothing(self, action: ReadAction) -> bool:
        """Whether the viewer may do this nowhere."""
        return self.plugins.get(action, frozenset()) == frozenset()


@dataclass(frozen=True, slots=True)
class VoteFacts:
    """`counts`: false once whoever gave it may not decide any more."""

    principal: PrincipalId
    decision: DecisionVerb
    at: datetime
    counts: bool = True


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """What the ledger holds of a request: the verdict that stands, if one does, and the votes so far. `shown`: the
    request as people saw it, kept with the verdict; None where there is none, or only one of the first release."""

    request_id: RequestId
    verdict: DecisionVerb | Literal["expired", "voided"] | None
    action_digest: Digest | None
    decided_by: tuple[PrincipalId, ...]
    decided_at: datetime | None
    votes: tuple[VoteFacts, ...]
    shown: OpenRequest | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Who had a part in a job: on whose authority it ran, who submitted it, who caused it."""

    principal: PrincipalId
    submitted_by: PrincipalId | None
    initiator: Initiator | None


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """One ledger read of one job: its receipt (None: no such job here), the first stop's time, the viewer's access, who
    had a part in it and in what it repeats, and when its authority was taken away."""

    receipt: ReceiptFacts | None
    stop_at: datetime | None
    access: Access
    parts: tuple[Part, ...] = ()
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of receipts with their first stops, newest first; `more` tells whether older ones follow."""

    jobs: tuple[LedgerFacts, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Undecided:
    access: Access
    requests: frozenset[tuple[JobId, RequestId]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """An open execution that waits for people, from one visibility list call (may lag by a second or two)."""

    job_id: JobId
    memo: MemoStart
    recorded: EndRecord


@dataclass(frozen=True, slots=True)
class Health:
    """One rung of readyz: `ok` None = not known, which is not yes."""

    rung: str
    ok: bool | None
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Reader(Protocol):
    """Raises Refused(ENGINE_UNAVAILABLE | LEDGER_UNAVAILABLE | BLOBS_UNAVAILABLE); never returns half an answer."""

    async def execution(self, workspace: Workspace, job_id: JobId) -> Execution | None:
        """The current run, or None where the engine knows no such execution (never started, or past retention)."""
        ...

    async def newest_progress(self, workspace: Workspace, job_id: JobId) -> Progress | None:
        """From the last page of the history: the input of the newest step. For a running job whose step left no trace
        in `describe` (its worker died)."""
        ...

    async def end_record(self, workspace: Workspace, job_id: JobId) -> EndRecord | None:
        """Of a completed or failed execution: the record in its close event. None for the other endings."""
        ...

    async def query(
        self, workspace: Workspace, job_id: JobId, after: int, limit: int, timeout_s: float
    ) -> ViewOutput | None:
        """The `view` query; None when no worker answered in time."""
        ...

    def changes(self, workspace: Workspace, job_id: JobId) -> AsyncIterator[None]:
        """Yields whenever a workflow task of the job was done (one long poll at a time), ends when the execution
        closed."""
        ...

    async def ledger(self, viewer: Viewer, job_id: JobId) -> LedgerFacts:
        """Of the viewer's own workspace, in one transaction."""
        ...

    async def access(self, viewer: Viewer) -> Access: ...

    async def decision(self, workspace: Workspace, job_id: JobId, request_id: RequestId) -> DecisionFacts | None:
        """None where nobody has voted or decided."""
        ...

    async def undecided(self, viewer: Viewer, requests: Iterable[tuple[JobId, RequestId]]) -> Undecided:
        """Which of these requests have no verdict in the ledger, and belong to admitted jobs that neither a stop nor a
        revocation ends."""
        ...

    async def writes(self, workspace: Workspace, job_id: JobId) -> Writes: ...

    async def receipts(
        self,
        viewer: Viewer,
        *,
        plugin: PluginName | None,
        session: str | None,
        before: int | None,
        limit: int,
    ) -> Listed:
        """Receipts that are accepted or may be, of plugins whose jobs the viewer may read, newest first."""
        ...

    async def waiting(self, workspace: Workspace) -> tuple[Waiting, ...]:
        """Open executions with open requests (visibility)."""
        ...

    async def blob(self, workspace: Workspace, ref: BlobRef) -> bytes:
        """Verified bytes. Raises KeyError where there are none (erased content)."""
        ...

    async def health(self) -> tuple[Health, ...]:
        """engine, ledger, blobs, workers, in this order."""
        ...
