"""A ledger of the first release with a row in every table is brought to this version's: nothing old changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, MetaData, func, insert, select

import gateway.ledger
from gateway.ledger import authority_tables, catalog_tables
from gateway.ledger.authorities import find_authority
from gateway.ledger.database import open_engines
from gateway.ledger.decisions import find_decision
from gateway.ledger.journal import undelivered_changes
from gateway.ledger.migrate import migrate
from gateway.ledger.tables import metadata
from tests.unit.ledger_rows import ACTION, APP, AT, DEMO, JOB, REFUND, REQUEST, SECOND
from workflows.contract.ids import JobId, sha256_of

__all__ = ["authority_tables", "catalog_tables"]

FIRST = "0001"
MICROS = 1_900_000_000_123_456
OF_JOB = {"workspace": DEMO, "job_id": JOB}
RECEIPT = {
    **OF_JOB,
    "fingerprint": sha256_of(b"f"),
    "principal": APP,
    "plugin": REFUND,
    "version": "1.0.0",
    "plugin_digest": sha256_of(b"p"),
    "snapshot": sha256_of(b"s"),
    "mode": "live",
    "receipt": b'{"job_id": "k-1"}\x00\xff',
    "job_input": b'{"n":1.0}',
    "start_input": b"{}",
    "labels": '{"a":"\u00e4"}',
    "initiator": None,
    "deadline_at": MICROS + 7,
    "reserved_at": MICROS,
    "confirmed_at": MICROS + 1,
}
VERSION = {"workspace": DEMO, "version": "1.0.0", "digest": sha256_of(b"p"), "published_by": "operator"}
EFFECT = {"step": 2, "call": 1, "tool": "refunds.create", "effect": "write", "action_digest": ACTION, "attempt": 1}
BY_AT = {"by": "operator", "at": MICROS}
FIRST_ROWS: dict[str, list[dict[str, Any]]] = {
    "receipts": [RECEIPT, {**RECEIPT, "job_id": "k-2", "confirmed_at": None, "refused_at": MICROS + 2}],
    "plugin_versions": [{**VERSION, "name": REFUND, "manifest": '{"tools":[]}', "published_at": MICROS}],
    "deployments": [{"workspace": DEMO, "plugin": REFUND, "revision": 1, "digest": "d", "body": "{}", **BY_AT}],
    "releases": [{"workspace": DEMO, "plugin": REFUND, "revision": 1, "version": "1.0.0", "previous": None, **BY_AT}],
    "promotions": [
        {"promotion_id": "p1", "phase": "live", "state": "done", "reason": "r", "break_glass": True}
        | {"release_held": False, **BY_AT}
    ],
    "grants": [
        {"grant_id": "g1", "workspace": DEMO, "principal": APP, "actions": '["*"]', "plugins": '["*"]', "limits": "{}"}
        | BY_AT
    ],
    "stops": [{**OF_JOB, "requested_at": MICROS, "by": APP}],
    "votes": [
        {**OF_JOB, "request_id": REQUEST, "principal": "ann", "decision": "approve", "action_digest": ACTION}
        | {"reason": "fine", "at": MICROS}
    ],
    "decisions": [
        {**OF_JOB, "request_id": REQUEST, "decision": "approve", "action_digest": ACTION, "answer": None}
        | {"reason": "fine", "decided_by": '["ann"]', "decided_at": MICROS}
    ],
    "effects": [
        {**OF_JOB, **EFFECT, "effect_id": "eff_1", "state": "confirmed", "epoch": 3, "sent_at": MICROS}
        | {"finished_at": MICROS, "outcome_ref": "ref", "request_id": REQUEST}
    ],
    "changes": [{"workspace": DEMO, "kind": "grant", "subject": APP, "at": MICROS}, {"kind": "phase"} | {"at": MICROS}],
    "audit": [{"workspace": None, "at": MICROS, "actor": "operator", "action": "a", "subject": "s", "detail": "{}"}],
}
FIRST_ROWS["changes"][1]["subject"] = "runtime"


@pytest.fixture
def database(empty_url: str) -> Iterator[Engine]:
    """The first release's schema with its rows; not yet upgraded."""
    engines = open_engines(empty_url, make=True)
    upgrade(engines.writer, FIRST)
    with engines.writer.begin() as conn:
        tables = _reflected(conn)
        for name, rows in FIRST_ROWS.items():
            for row in rows:
                conn.execute(insert(tables.tables[name]), row)
    yield engines.writer
    engines.reader.dispose()
    engines.writer.dispose()


def upgrade(engine: Engine, to: str) -> None:
    config = Config()
    folder = Path(gateway.ledger.__path__[0]) / "migrations"
    config.set_main_option("script_location", str(folder))
    with engine.begin() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, to)


def _reflected(conn: Connection) -> MetaData:
    """The tables as the database knows them: no type of ours stands between a test and what is kept."""
    found = MetaData()
    found.reflect(conn)
    return found


def everything(engine: Engine, columns: dict[str, list[str]] | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, or these columns of them."""
    with engine.connect() as conn:
        tables = _reflected(conn).tables
        wanted = columns or {name: [column.name for column in table.columns] for name, table in tables.items()}
        return {
            name: sorted((tuple(row) for row in conn.execute(select(*(tables[name].c[one] for one in of)))), key=repr)
            for name, of in wanted.items()
            if name != "alembic_version"
        }


def columns_of(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {name: [column.name for column in table.columns] for name, table in _reflected(conn).tables.items()}


def test_every_table_of_the_first_release_has_a_row(database: Engine) -> None:
    kept = everything(database)
    assert set(kept) == set(FIRST_ROWS)
    assert {name: len(rows) for name, rows in kept.items()} == {name: len(rows) for name, rows in FIRST_ROWS.items()}


def test_an_upgrade_changes_no_old_row(database: Engine, empty_url: str) -> None:
    columns, before = columns_of(database), everything(database)
    migrate(empty_url)
    assert everything(database, columns) == before
    assert set(columns_of(database)) - {"alembic_version"} == set(metadata.tables)


def test_the_check_of_old_rows_sees_a_changed_one(database: Engine, empty_url: str) -> None:
    columns, before = columns_of(database), everything(database)
    migrate(empty_url)
    with database.begin() as conn:
        conn.exec_driver_sql("UPDATE audit SET actor = 'eve'")
    assert everything(database, columns) != before


def test_every_old_job_has_the_authority_of_its_receipt(database: Engine, empty_url: str) -> None:
    migrate(empty_url)
    with database.connect() as conn:
        count = conn.execute(select(func.count()).select_from(authority_tables.authorities)).scalar_one()
        assert count == len(FIRST_ROWS["receipts"])
        for job in (JOB, JobId("k-2")):
            row = find_authority(conn, DEMO, job)
            assert row is not None
            assert (row.principal, row.submitted_by, row.credential) == (APP, APP, None)
            assert (row.plugin, row.version, row.snapshot) == (REFUND, "1.0.0", sha256_of(b"s"))
            assert (row.limits, row.seen_change, row.revoked_at, row.ended_at) == ({}, 0, None, None)
            assert (row.expires_at - row.minted_at) / SECOND == pytest.approx(7e-6)


def test_old_changes_are_delivered_and_old_decisions_show_nothing(database: Engine, empty_url: str) -> None:
    migrate(empty_url)
    with database.connect() as conn:
        assert undelivered_changes(conn, limit=10) == []
        decision = find_decision(conn, DEMO, JOB, REQUEST)
    assert decision is not None
    assert decision.decided_by == ("ann",)


def test_what_is_announced_after_an_upgrade_waits_for_delivery(database: Engine, empty_url: str) -> None:
    migrate(empty_url)
    with database.begin() as conn:
        conn.execute(insert(metadata.tables["changes"]), {"workspace": DEMO, "kind": "k", "subject": "s", "at": AT})
    with database.connect() as conn:
        assert [change.subject for change in undelivered_changes(conn, limit=10)] == ["s"]


def test_retries_find_the_first_job_of_their_line_and_old_verdicts_count_as_taken(
    database: Engine, empty_url: str
) -> None:
    upgrade(database, "0004")
    with database.begin() as conn:
        kept = _reflected(conn).tables["receipts"]
        for job, source in (("k-3", str(JOB)), ("k-4", "k-3"), ("k-5", str(JOB))):
            conn.execute(insert(kept), {**RECEIPT, "job_id": job, "retry_of": source})
    migrate(empty_url)
    with database.connect() as conn:
        tables = _reflected(conn).tables
        receipts, decisions = tables["receipts"].c, tables["decisions"].c
        lines = {row.job_id: row.line for row in conn.execute(select(receipts.job_id, receipts.line))}
        taken = conn.execute(select(decisions.taken_at, decisions.decided_at)).all()
    assert lines == {str(JOB): None, "k-2": None, "k-3": str(JOB), "k-4": str(JOB), "k-5": str(JOB)}
    assert [tuple(row) for row in taken] == [(MICROS, MICROS)]
