"""Two censuses compared: whose a change is, where no stack can be made to show it in time."""

from dataclasses import replace
from datetime import UTC, datetime

from gateway.census import Census
from gateway.comparing import Change, compare
from gateway.executions import Execution, Growth, Listing
from gateway.ledger.census import WATCHED, Row, TableStock
from gateway.ledger.presence import ProcessRow
from gateway.seams import Flag
from workflows.contract.ids import JobId, PrincipalId, Workspace

DEMO, ME = Workspace("demo"), PrincipalId("me")
AT = datetime(2030, 1, 31, 12, tzinfo=UTC)
JOB = JobId("k-1")
PARKED = Execution("run-1", "running", 10, 0, parked=True)
PROCESS = ProcessRow(
    process_id="proc_1",
    kind="worker",
    identity="12@host",
    lane="default",
    pid=12,
    host="host",
    build="b",
    config="c",
    tools=(),
    started_at=AT,
    seen_at=AT,
    good_until=AT,
    warnings=0,
    last_warning=None,
    stopped_at=None,
)
EMPTY = Census(
    at=AT,
    tables={watched.table.name: TableStock(0, (), {}) for watched in WATCHED},
    executions={},
    listed=Listing({}, 0, whole=True),
    blobs=(0, 0),
    processes=(PROCESS,),
    pollers={"default": frozenset({"12@host"})},
    children={},
    bounds=(),
)


def row(flag: Flag, by: str | None = None, job: str | None = None, state: str = "") -> Row:
    return Row(flag, flag, by, job, state)


def holding(census: Census, table: str, *rows: tuple[str, Row], count: int | None = None) -> Census:
    stock = TableStock(len(rows) if count is None else count, tuple(one.state for _, one in rows), dict(rows))
    return replace(census, tables={**census.tables, table: stock})


def grown(growth: Growth, seen: Execution = PARKED) -> tuple[Census, Census]:
    first = replace(EMPTY, executions={JOB: seen})
    return first, replace(first, executions={JOB: replace(seen, length=seen.length + 4)}, grown={JOB: growth})


def found(first: Census, second: Census, *, settled: bool = True) -> list[tuple[Flag, bool]]:
    changes: tuple[Change, ...] = compare(first, second, DEMO, ME, settled=settled)
    return [(change.flag, change.foreign) for change in changes]


def test_nothing_is_nothing() -> None:
    assert found(EMPTY, EMPTY) == []


def test_a_parked_job_that_grew_is_ours_unless_its_own_clock_woke_it_or_older_hints_were_under_way() -> None:
    signaled, woken = grown(Growth(0, 1, own_clock=False)), grown(Growth(0, 0, own_clock=True))
    assert found(*signaled) == [(Flag.STATE_MUTATED, False)]
    assert found(*signaled, settled=False) == [(Flag.STATE_MUTATED, True)]
    assert found(*woken) == [(Flag.STATE_MUTATED, True)]


def test_a_step_of_a_parked_job_executed_and_one_of_a_busy_job_is_foreign() -> None:
    assert found(*grown(Growth(1, 0, own_clock=False))) == [(Flag.WORKER_EXECUTED, False)]
    busy = replace(PARKED, parked=False)
    assert found(*grown(Growth(1, 0, own_clock=False), busy)) == [(Flag.WORKER_EXECUTED, True)]


def test_a_job_that_goes_on_after_its_end_executed() -> None:
    ended = Execution("run-1", "completed", 10, 0, parked=False)
    assert found(*grown(Growth(0, 0, own_clock=False), ended)) == [(Flag.WORKER_EXECUTED, False)]


def test_what_a_parked_job_is_told_of_an_act_is_that_act() -> None:
    first, second = grown(Growth(0, 1, own_clock=False))
    act = ("1", row(Flag.PHASE_PROMOTED, "me"))
    assert set(found(first, holding(second, "audit", act))) == {(Flag.PHASE_PROMOTED, False)}
    act = ("1", row(Flag.PHASE_PROMOTED, "other"))
    assert set(found(first, holding(second, "audit", act))) == {(Flag.PHASE_PROMOTED, True)}


def test_a_row_is_whose_who_wrote_it_and_without_a_writer_its_jobs() -> None:
    busy = replace(EMPTY, executions={JOB: replace(PARKED, parked=False)})
    assert found(EMPTY, holding(EMPTY, "votes", ("v", row(Flag.APPROVAL_CONSUMED, "me", JOB)))) == [
        (Flag.APPROVAL_CONSUMED, False)
    ]
    assert found(busy, holding(busy, "votes", ("v", row(Flag.APPROVAL_CONSUMED, "me", JOB)))) == [
        (Flag.APPROVAL_CONSUMED, False)
    ]
    assert found(busy, holding(busy, "usage", ("u", row(Flag.STATE_MUTATED, None, JOB)))) == [
        (Flag.STATE_MUTATED, True)
    ]
    assert found(EMPTY, holding(EMPTY, "usage", ("u", row(Flag.STATE_MUTATED, None, JOB)))) == [
        (Flag.STATE_MUTATED, False)
    ]


def test_a_row_that_changed_is_explained_by_an_act_of_its_kind_by_others_alone() -> None:
    before = holding(EMPTY, "grants", ("g", row(Flag.CONFIG_CHANGED, "me", state="valid")))
    after = holding(before, "grants", ("g", row(Flag.CONFIG_CHANGED, "me", state="revoked")))
    assert found(before, after) == [(Flag.CONFIG_CHANGED, False)]
    by_other = holding(after, "audit", ("1", row(Flag.CONFIG_CHANGED, "other")))
    assert set(found(before, by_other)) == {(Flag.CONFIG_CHANGED, True)}
    by_both = holding(after, "audit", ("1", row(Flag.CONFIG_CHANGED, "other")), ("2", row(Flag.CONFIG_CHANGED, "me")))
    assert (Flag.CONFIG_CHANGED, False) in found(before, by_both)


def test_what_is_only_counted_is_seen_too() -> None:
    many = holding(EMPTY, "receipts", ("k", row(Flag.STATE_MUTATED, "other", "k")), count=900)
    more = holding(EMPTY, "receipts", ("k", row(Flag.STATE_MUTATED, "other", "k")), count=901)
    assert found(many, more) == [(Flag.STATE_MUTATED, False)]
    assert found(more, many) == [(Flag.STATE_MUTATED, False)]
    marked = replace(many.tables["receipts"], marks=("later",))
    assert found(many, replace(many, tables={**many.tables, "receipts": marked})) == [(Flag.STATE_MUTATED, False)]


def test_processes_pollers_and_children_that_came_are_ours_and_one_that_went_is_foreign() -> None:
    other = replace(PROCESS, process_id="proc_2", identity="13@host")
    assert found(EMPTY, replace(EMPTY, processes=(PROCESS, other))) == [(Flag.PROCESS_STARTED, False)]
    polled = replace(EMPTY, pollers={"default": frozenset({"12@host", "13@host"})})
    assert found(EMPTY, polled) == [(Flag.PROCESS_STARTED, False)]
    assert found(polled, EMPTY) == [], "an old record of a poller may go"
    assert found(EMPTY, replace(EMPTY, children={77: "1"})) == [(Flag.PROCESS_STARTED, False)]
    assert found(replace(EMPTY, children={77: "1"}), replace(EMPTY, children={77: "2"})) == []
    assert found(EMPTY, replace(EMPTY, processes=())) == [(Flag.PROCESS_STARTED, True)]
    rebuilt = ("proc_1", row(Flag.CONFIG_CHANGED, state="new"))
    first = holding(EMPTY, "processes", ("proc_1", row(Flag.CONFIG_CHANGED, state="old")))
    assert found(first, holding(first, "processes", rebuilt)) == [(Flag.CONFIG_CHANGED, False)]


def test_an_execution_that_visibility_shows_late_is_none_that_was_started() -> None:
    listed = Listing({"run-9": ("demo.k-9", AT.replace(hour=11))}, 1, whole=True)
    late = replace(EMPTY, listed=listed)
    assert found(EMPTY, late) == [(Flag.WORKER_EXECUTED, False)], "no receipt knew it"
    known = holding(EMPTY, "receipts", ("k-9", row(Flag.STATE_MUTATED, "other", "k-9")))
    assert found(known, replace(known, listed=listed)) == []
    again = Listing({"run-9": ("demo.k-9", AT.replace(hour=13))}, 1, whole=True)
    assert found(known, replace(known, listed=again)) == [(Flag.WORKER_EXECUTED, False)], "it was reset"
