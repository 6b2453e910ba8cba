"""Two censuses compared: what changed, which side effect that is, and whether somebody else's record explains it.

Pure. A change that another principal's record explains, or a job that was running anyway, is *foreign*: it shows
nothing of the smoke, and spoils it. What nobody's record explains, and what the caller did, is the smoke's own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.census import Census
from gateway.executions import Execution, Growth
from gateway.ledger.census import WATCHED, Row, TableStock, Watched
from gateway.seams import Flag
from workflows.contract.ids import JobId, PrincipalId, Workspace, split_workflow_id

SYSTEM = frozenset({"job", "admission"})
"""Actors of the audit that act for a job: the job says whose act it is."""
_TELLING = (Flag.PHASE_PROMOTED, Flag.APPROVAL_CONSUMED, Flag.CONFIG_CHANGED)
"""Acts that parked jobs are told of, and which their histories then show."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, in words of the system; no input, argument or secret."""

    flag: Flag
    text: str
    foreign: bool


@dataclass(frozen=True, slots=True)
class _Moved:
    table: Watched
    key: str
    row: Row
    added: bool

    @property
    def flag(self) -> Flag:
        return self.row.flag if self.added else self.row.moved


def compare(
    first: Census, second: Census, workspace: Workspace, caller: PrincipalId, *, settled: bool = True
) -> tuple[Change, ...]:
    """`settled` False: running jobs were still being told of older changes when the first census was taken."""
    return tuple(_Comparison(first, second, workspace, caller, settled=settled).changes())


class _Comparison:
    def __init__(
        self, first: Census, second: Census, workspace: Workspace, caller: PrincipalId, *, settled: bool
    ) -> None:
        self.first, self.second, self.workspace, self.caller, self.settled = first, second, workspace, caller, settled
        self.moved = [one for table in WATCHED for one in _moved(table, first, second)]
        submitted = second.tables["authorities"].rows
        self.own_jobs = {job for job, row in submitted.items() if row.by == caller} - first.executions.keys()
        self.foreign_jobs = self._foreign_jobs()

    def changes(self) -> Iterator[Change]:
        found = [*self._rows(), *self._unseen_rows(), *self._executions(), *self._started(), *self._processes()]
        yield from found
        if self.first.blobs != self.second.blobs:
            count, size = (after - before for before, after in zip(self.first.blobs, self.second.blobs, strict=True))
            foreign = any(change.foreign for change in found)
            yield Change(Flag.STATE_MUTATED, f"blobs: {count:+d}, {size:+d} bytes", foreign)

    # ---- whose is it

    def _foreign_jobs(self) -> frozenset[str]:
        """Jobs that were running anyway, that only their own clock woke, or that somebody else did something with."""
        busy = {job for job, seen in self.first.executions.items() if seen.status == "running" and not seen.parked}
        woken = {job for job, growth in self.second.grown.items() if growth.own_clock}
        named = {one.row.job for one in self.moved if one.added and one.row.job and self._by_other(one.row.by)}
        # What runs for an agent is the act of whoever submitted it.
        return frozenset({*busy, *woken, *(named - self.own_jobs)})

    def _by_other(self, by: str | None) -> bool:
        return by is not None and by != self.caller and by not in SYSTEM

    def _is_foreign(self, one: _Moved) -> bool:
        if one.added and one.row.by is not None and one.row.by not in SYSTEM:
            of_job = one.table.job == "job_id" and one.row.job in self.own_jobs
            return one.row.by != self.caller and not of_job
        if one.row.job is not None:
            return one.row.job in self.foreign_jobs
        return self._act(one.flag) is False

    def _act(self, *flags: Flag) -> bool | None:
        """Whether an act of these kinds was the caller's; False: others' alone; None: there was no such act."""
        acts = [one.row for one in self.moved if one.table.table.name == "audit" and one.flag in flags]
        if not acts:
            return None
        return not all(self._by_other(act.by) or act.job in self.foreign_jobs for act in acts)

    # ---- what changed

    def _rows(self) -> Iterator[Change]:
        for one in self.moved:
            if one.table.table.name == "processes" and one.added:
                continue
            verb = "a new row" if one.added else "a row changed"
            by = f" by {one.row.by}" if one.added and one.row.by else ""
            of = f" of job {one.row.job}" if one.row.job and one.row.job != one.key else ""
            text = f"{one.table.table.name}: {verb} ({one.key}{of}){by}"
            yield Change(one.flag, text, self._is_foreign(one))

    def _unseen_rows(self) -> Iterator[Change]:
        """Changes among the rows that are only counted."""
        for watched in WATCHED:
            name = watched.table.name
            before, after = self.first.tables[name], self.second.tables[name]
            of_table = [one for one in self.moved if one.table is watched]
            added = after.count - before.count - sum(one.added for one in of_table)
            if added > 0 or after.count < before.count:
                yield Change(watched.flag, f"{name}: {added:+d} rows beyond those told apart", foreign=False)
            elif not of_table and before.marks != after.marks:
                flag = watched.moved or watched.flag
                yield Change(flag, f"{name}: a row changed beyond those told apart", foreign=False)

    def _executions(self) -> Iterator[Change]:
        for job, growth in self.second.grown.items():
            yield from self._grown(job, self.first.executions[job], growth)

    def _grown(self, job: JobId, seen: Execution, growth: Growth) -> Iterator[Change]:
        now = self.second.executions[job]
        text = f"job {job}: history {seen.length} -> {now.length} events"
        foreign, told = job in self.foreign_jobs or not self.settled, self._act(*_TELLING)
        if growth.steps or seen.status != "running":
            again = "" if seen.status == "running" else ", after its end"
            act_of_others = told is False
            yield Change(Flag.WORKER_EXECUTED, f"{text}, {growth.steps} steps{again}", foreign=foreign or act_of_others)
            if not growth.signals:
                return
        if told is not None and not foreign:  # the hints of an act that has its own flag
            flag = next(flag for flag in _TELLING if self._act(flag) is not None)
            yield Change(flag, f"{text}, told of it", foreign=told is False)
            return
        yield Change(Flag.STATE_MUTATED, f"{text}, {growth.signals} signals", foreign=foreign)

    def _started(self) -> Iterator[Change]:
        """Executions that neither census knew as a job that was there before."""
        before = {seen.run for seen in self.first.executions.values()} | self.first.listed.began.keys()
        for run, (workflow, began) in self.second.listed.began.items():
            ids = split_workflow_id(workflow)
            job = ids[1] if ids is not None and ids[0] == self.workspace else None
            if run in before or job in self.first.executions:
                continue
            if job is not None and job in self.first.tables["receipts"].rows and began < self.first.at:
                continue  # it began before, and visibility lagged
            yield Change(Flag.WORKER_EXECUTED, f"execution {workflow} was started", foreign=job in self.foreign_jobs)

    def _processes(self) -> Iterator[Change]:
        known = self.first.tables["processes"].rows.keys() | {one.process_id for one in self.first.processes}
        identities = {process.identity for process in self.first.processes}
        for process in self.second.processes:
            if process.process_id not in known:
                text = f"a {process.kind} process started ({process.identity})"
                yield Change(Flag.PROCESS_STARTED, text, foreign=False)
        for lane, pollers in self.second.pollers.items():
            for identity in sorted(pollers - self.first.pollers.get(lane, frozenset()) - identities):
                yield Change(Flag.PROCESS_STARTED, f"lane {lane}: {identity} polls", foreign=False)
        for pid in sorted(self.second.children.keys() - self.first.children.keys()):
            yield Change(Flag.PROCESS_STARTED, f"child process {pid} of the API process", foreign=False)
        live = {process.process_id for process in self.second.processes}
        for process in self.first.processes:
            if process.process_id not in live:
                text = f"a {process.kind} process went away ({process.identity})"
                yield Change(Flag.PROCESS_STARTED, text, foreign=True)


def _moved(table: Watched, first: Census, second: Census) -> Iterable[_Moved]:
    before: TableStock = first.tables[table.table.name]
    for key, row in second.tables[table.table.name].rows.items():
        known = before.rows.get(key)
        if known is None or known.state != row.state:
            yield _Moved(table, key, row, added=known is None)
