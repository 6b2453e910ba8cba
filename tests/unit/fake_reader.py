"""A `Reader` that plays one job: its log grows by `emit`, and every call to the engine is counted.

It replaces the seam, not internals: the same protocol that gateway/reading.py implements.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from facade.reader import (
    Access,
    DecisionFacts,
    Ending,
    Execution,
    Health,
    LedgerFacts,
    Listed,
    Undecided,
    Viewer,
    Waiting,
    Writes,
)
from tests.unit.facts import FULL_ACCESS, REQUEST, event, execution, ledger, view
from workflows.contract.events import Event, EventType
from workflows.contract.ids import BlobRef, JobId, PluginName, RequestId, Workspace
from workflows.contract.job import EndRecord, JobView, Progress, SegmentRef, Status
from workflows.contract.steps import ViewOutput


class FakeReader:
    """A job with `seq` events. `worker` says whether queries are answered."""

    def __init__(self, seq: int = 5, *, worker: bool = True, status: Status = Status.WAITING_FOR_HUMAN) -> None:
        self.seq = seq
        self.worker = worker
        self.status = status
        self.ending: Ending | None = None
        self.known = True
        self.facts = ledger()
        self.tail_from = 1
        """The first event that is recorded without a worker."""
        self.segments: tuple[SegmentRef, ...] = ()
        self.blobs: dict[BlobRef, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.queried_at: list[float] = []
        self.grown = asyncio.Condition()
        self.growths = 0

    async def emit(self, count: int = 1, *, ending: Ending | None = None, status: Status | None = None) -> None:
        self.seq += count
        self.ending = ending
        self.status = status or self.status
        async with self.grown:
            self.growths += 1
            self.grown.notify_all()

    def events(self, first: int) -> tuple[Event, ...]:
        last = {self.seq: EventType.JOB_SUCCEEDED} if self.status is Status.SUCCEEDED else {}
        return tuple(event(seq, last.get(seq, EventType.BUDGET_WARNING)) for seq in range(first, self.seq + 1))

    def view(self) -> JobView:
        return view(self.status, self.seq, last_event=self.events(self.seq)[-1], requests=(REQUEST,))

    # ---- Reader

    async def execution(self, workspace: Workspace, job_id: JobId) -> Execution | None:
        self.calls["describe"] += 1
        await asyncio.sleep(0)
        if not self.known:
            return None
        recorded = EndRecord(view=self.view(), events=self.events(self.tail_from), segments=self.segments)
        return execution(recorded, self.ending)

    async def newest_progress(self, workspace: Workspace, job_id: JobId) -> Progress | None:
        self.calls["history"] += 1
        return None

    async def end_record(self, workspace: Workspace, job_id: JobId) -> EndRecord | None:
        self.calls["history"] += 1
        return EndRecord(view=self.view(), events=self.events(1))

    async def query(
        self, workspace: Workspace, job_id: JobId, after: int, limit: int, timeout_s: float
    ) -> ViewOutput | None:
        self.calls["query"] += 1
        self.queried_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if not self.worker:
            return None
        held = self.events(max(after + 1, self.segments[-1].last + 1 if self.segments else 1))
        return ViewOutput(view=self.view(), events=held[:limit], segments=self.segments, last_seq=self.seq)

    async def changes(self, workspace: Workspace, job_id: JobId) -> AsyncIterator[None]:
        seen = 0
        while self.ending is None:
            async with self.grown:
                while self.growths == seen:
                    await self.grown.wait()
                seen = self.growths
            self.calls["poll"] += 1
            yield

    async def ledger(self, viewer: Viewer, job_id: JobId) -> LedgerFacts:
        self.calls["ledger"] += 1
        return self.facts

    async def access(self, viewer: Viewer) -> Access:
        return FULL_ACCESS

    async def decision(self, workspace: Workspace, job_id: JobId, request_id: RequestId) -> DecisionFacts | None:
        return None

    async def undecided(self, viewer: Viewer, requests: Iterable[tuple[JobId, RequestId]]) -> Undecided:
        return Undecided(FULL_ACCESS, frozenset(requests))

    async def writes(self, workspace: Workspace, job_id: JobId) -> Writes:
        return "none"

    async def receipts(
        self, viewer: Viewer, *, plugin: PluginName | None, session: str | None, before: int | None, limit: int
    ) -> Listed:
        return Listed((), more=False)

    async def waiting(self, workspace: Workspace) -> tuple[Waiting, ...]:
        return ()

    async def blob(self, workspace: Workspace, ref: BlobRef) -> bytes:
        return self.blobs[ref]

    async def health(self) -> tuple[Health, ...]:
        return ()

    @property
    def engine_calls(self) -> int:
        return sum(count for name, count in self.calls.items() if name != "ledger")
