"""One job as an operator sees it: whose it is, who worked on it where and when, what it sent, who decided.

Ledger and engine are read and nothing is changed; no worker is needed. Shown is an allow-list: no input, argument,
result, answer or free text of anybody, and no credential beyond the id of an API key.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from sqlalchemy import Connection

from facade.project import not_found, project
from facade.views import JobAnswer
from facade.window import Window
from gateway.doors import Doors, need_scope, permit
from gateway.inspections import Inspection
from gateway.ledger.authorities import AuthorityRow, find_authority
from gateway.ledger.decisions import DecisionRow, VoteRow, list_decisions, list_votes
from gateway.ledger.effects import EffectRow, list_effects
from gateway.ledger.presence import ProcessRow, live_processes
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.ledger.stops import StopRow, find_stop
from gateway.scopes import Action, Caller
from workflows.contract.errors import Refused
from workflows.contract.ids import KEY, JobId, RequestId, workflow_id

HISTORY_S = 2.5
"""How long the histories may be read for attempts: less than the request clock, so that the rest is answered."""


@dataclass(frozen=True)
class Poller:
    """Somebody who asked a lane for work; the record outlives a dead worker by minutes."""

    worker: str
    seen_at: datetime


@dataclass(frozen=True)
class LaneSeen:
    """A task queue that the job uses; `lane` None: no lane of these settings has it."""

    lane: str | None
    task_queue: str
    pollers: tuple[Poller, ...]


@dataclass(frozen=True)
class LedgerSide:
    receipt: ReceiptRow
    authority: AuthorityRow | None
    effects: list[EffectRow]
    decisions: list[DecisionRow]
    stop: StopRow | None
    live: Sequence[ProcessRow]


@dataclass(frozen=True)
class Inspected:
    answer: JobAnswer
    ledger: LedgerSide
    votes: dict[RequestId, list[VoteRow]]
    engine: Inspection
    lanes: tuple[LaneSeen, ...]
    temporal_url: str | None

    def build_lives(self) -> bool | None:
        """Whether a live worker of its lane has the build that the open job goes on with; None: it needs no certain
        one."""
        run = self.engine.run
        if run.build is None or run.closed_at is not None:
            return None
        lanes = {seen.lane for seen in self.lanes if seen.task_queue == run.task_queue}
        return any(row.kind == "worker" and row.build == run.build and row.lane in lanes for row in self.ledger.live)


async def inspect(doors: Doors, window: Window, caller: Caller, job_id: JobId) -> Inspected:
    """Raises Refused: NOT_FOUND, JOB_EXPIRED with the receipt, ADMISSION_UNKNOWN."""
    need_scope(caller, Action.OPERATOR_READ)
    if not KEY.fullmatch(job_id):
        raise not_found()
    workspace = caller.workspace

    def look(conn: Connection) -> LedgerSide:
        receipt = find_receipt(conn, workspace, job_id)
        if receipt is None:
            raise not_found()
        permit(caller, conn, Action.OPERATOR_READ, receipt.plugin)
        return LedgerSide(
            receipt,
            find_authority(conn, workspace, job_id),
            list_effects(conn, workspace, job_id),
            list_decisions(conn, workspace, job_id),
            find_stop(conn, workspace, job_id),
            live_processes(conn, datetime.now(UTC)),
        )

    side = await doors.ledger.read(look)
    facts, seen, engine = await asyncio.gather(
        window.reader.ledger(caller, job_id),
        window.sight.recorded(workspace, job_id),
        doors.engine.histories.inspection(workspace, job_id, HISTORY_S),
    )
    answer = project(seen, facts, datetime.now(UTC))
    if isinstance(answer, Refused):
        raise answer
    if engine is None:  # it went between the two reads
        raise not_found()
    asked = dict.fromkeys([row.request_id for row in side.decisions] + [one.request_id for one in answer.pending])
    votes = await doors.ledger.read(lambda conn: {one: list_votes(conn, workspace, job_id, one) for one in asked})
    lanes = await _lanes(doors, engine)
    return Inspected(answer, side, votes, engine, lanes, _temporal_url(doors, side.receipt, engine))


async def _lanes(doors: Doors, engine: Inspection) -> tuple[LaneSeen, ...]:
    names = {lane.task_queue: name for name, lane in doors.settings.lanes.items()}
    queues = dict.fromkeys([engine.run.task_queue, *(attempt.task_queue for attempt in engine.attempts)])

    async def seen(task_queue: str) -> LaneSeen:
        last: dict[str, datetime] = {}
        for poller in await doors.engine.histories.polling(task_queue):
            at = poller.last_access_time.ToDatetime(tzinfo=UTC)
            last[poller.identity] = max(at, last.get(poller.identity, at))
        pollers = tuple(Poller(worker, at) for worker, at in sorted(last.items()))
        return LaneSeen(names.get(task_queue), task_queue, pollers)

    return tuple(await asyncio.gather(*map(seen, queues)))


def _temporal_url(doors: Doors, receipt: ReceiptRow, engine: Inspection) -> str | None:
    """The page of this very run; None where `JOBGATE_TEMPORAL_UI_URL` is not set."""
    ui = doors.settings.temporal_ui_url
    if not ui:
        return None
    namespace, workflow = doors.engine.histories.namespace, workflow_id(receipt.workspace, receipt.job_id)
    parts = "/".join(quote(part, safe="") for part in ("namespaces", namespace, "workflows", workflow))
    return f"{ui.rstrip('/')}/{parts}/{quote(engine.run.run_id, safe='')}/history"
