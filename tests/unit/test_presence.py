"""Presence: a process is seen while it lives, and not longer; what must agree is told apart; loud lines are counted."""

import asyncio
import io
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import Connection, func, select

from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate
from gateway.ledger.presence import (
    NewProcess,
    ProcessRow,
    Seen,
    live_processes,
    note_process,
    recent_processes,
    stop_process,
)
from gateway.ledger.tables import processes
from gateway.logcounts import WITHIN_S, Warnings
from gateway.presence import PACKAGES, build_of, config_of, present, process_of, shared_config
from gateway.settings import SettingsInvalid, load_settings
from gateway.telemetry import configure_logging, log
from tests.rig.waiting import wait_until
from tests.unit.ledger_rows import AT, SECOND

ROOT = Path(__file__).resolve().parents[2]
WORKER = NewProcess("proc_1", "worker", "7@host", "default", 7, "host", "0.1.0+aa", "sha256:c", ("add",), AT)
SEEN = Seen(AT, AT + 7 * SECOND, 0, None)


def live(now: datetime) -> Callable[[Connection], list[str]]:
    def look(conn: Connection) -> list[str]:
        return [row.process_id for row in live_processes(conn, now)]

    return look


async def test_a_row_is_written_once_and_then_refreshed(ledger: Ledger) -> None:
    await ledger.write(lambda conn: note_process(conn, WORKER, SEEN))
    later = Seen(AT + SECOND, AT + 8 * SECOND, 2, "presence not written")
    await ledger.write(lambda conn: note_process(conn, replace(WORKER, build="other"), later))
    assert await ledger.read(lambda conn: live_processes(conn, AT)) == [
        ProcessRow(**vars(later), **vars(WORKER), stopped_at=None)
    ]


async def test_whoever_is_not_heard_of_in_time_is_dead_and_stays_on_record(ledger: Ledger) -> None:
    await ledger.write(lambda conn: note_process(conn, WORKER, SEEN))
    assert await ledger.read(live(SEEN.good_until - SECOND)) == ["proc_1"]
    assert await ledger.read(live(SEEN.good_until)) == []
    (row,) = await ledger.read(lambda conn: recent_processes(conn, AT))
    assert (row.lives(AT), row.lives(SEEN.good_until)) == (True, False)


async def test_whoever_stopped_is_dead_at_once_and_a_late_word_does_not_wake_it(ledger: Ledger) -> None:
    await ledger.write(lambda conn: note_process(conn, WORKER, SEEN))
    await ledger.write(lambda conn: stop_process(conn, "proc_1", AT))
    await ledger.write(lambda conn: note_process(conn, WORKER, replace(SEEN, good_until=AT + 9 * SECOND)))
    assert await ledger.read(live(AT)) == []


async def test_a_process_is_there_while_it_runs_and_stopped_after_it(ledger: Ledger) -> None:
    process, warnings = replace(WORKER, started_at=datetime.now(UTC)), Warnings()

    async def row() -> ProcessRow | None:
        return next(iter(await ledger.read(lambda conn: recent_processes(conn, AT - timedelta(days=9999)))), None)

    async with present(ledger, process, warnings, every_s=0.02):
        first = await wait_until(row)
        warnings(None, "", {"level": "error", "event": "a request failed"})

        async def told() -> bool:
            now = await row()
            return now is not None and now.warnings == 1 and now.seen_at > first.seen_at

        await wait_until(told)
    last = await row()
    assert last is not None
    assert (last.last_warning, last.stopped_at is None) == ("a request failed", False)
    assert not last.lives(datetime.now(UTC))


async def test_a_ledger_that_is_away_is_told_once_each_time_and_the_row_comes_with_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url)
    lines = io.StringIO()
    warnings = configure_logging("test", stream=lines)
    async with present(ledger, WORKER, warnings, every_s=0.005) as presence:
        await wait_until(lambda: warnings.count)
        assert not presence.heard
        await asyncio.to_thread(migrate, url)
        await wait_until(lambda: ledger.read(live(datetime.now(UTC))))
        await wait_until(lambda: presence.heard)
        (tmp_path / "ledger.db").rename(tmp_path / "away.db")
        await wait_until(lambda: not presence.heard)
        (tmp_path / "away.db").rename(tmp_path / "ledger.db")
        await wait_until(lambda: presence.heard)
    await ledger.close()
    assert lines.getvalue().count("presence not written") == warnings.count == 2
    assert warnings.last == "presence not written"


def test_what_was_loud_more_than_an_hour_ago_counts_no_more() -> None:
    now = 0.0
    warnings = Warnings(clock=lambda: now)
    warnings(None, "", {"level": "error", "event": "a request failed"})
    now = WITHIN_S
    assert (warnings.count, warnings.last) == (1, "a request failed")
    now = WITHIN_S + 1
    assert (warnings.count, warnings.last) == (0, None)


async def test_nothing_but_one_row_is_written(ledger: Ledger) -> None:
    def rows(conn: Connection) -> int:
        return conn.execute(select(func.count()).select_from(processes)).scalar_one()

    for second in range(50):
        seen = replace(SEEN, seen_at=AT + second * SECOND)
        await ledger.write(lambda conn, seen=seen: note_process(conn, WORKER, seen))
    assert await ledger.read(rows) == 1


# ---- what is counted


def test_loud_lines_are_counted_and_the_last_one_is_named_by_a_fixed_text() -> None:
    warnings = configure_logging("test", stream=io.StringIO())
    log.info("quiet")
    assert (warnings.count, warnings.last) == (0, None)
    log.warning("credential not usable", ref="env:canary")
    assert (warnings.count, warnings.last) == (1, "credential not usable")
    logging.getLogger("some.library").warning("canary %s", "value")
    assert (warnings.count, warnings.last) == (2, "a line of some.library")
    structlog.get_logger().error("x" * 1000)
    assert (warnings.count, len(warnings.last or "")) == (3, 200)


# ---- what must agree


def test_the_build_is_the_text_of_our_own_files(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = build_of(tmp_path)
    assert before == build_of(tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "more.py").write_text("")
    assert build_of(tmp_path) == before
    with (tmp_path / "gateway" / "presence.py").open("a") as file:
        file.write("\n")
    assert build_of(tmp_path) != before


LEDGER = "postgresql+psycopg://app:s3cret@db:5432/jobgate"


@pytest.mark.parametrize(
    "other",
    [
        {"ledger_url": LEDGER.replace("/jobgate", "/other")},
        {"blobs_url": "s3://bucket/other"},
        {"namespace": "other"},
        {"temporal_address": "other:7233"},
        {"development": True},
        {"lanes": {"default": {"task_queue": "other"}}},
        {"lanes": {"default": {"task_queue": "jobgate-default", "capabilities": ["gpu"]}}},
    ],
)
def test_what_api_and_worker_must_share_is_in_the_digest(tmp_path: Path, other: dict[str, Any]) -> None:
    given: dict[str, Any] = {"data": tmp_path, "ledger_url": LEDGER}
    assert config_of(load_settings(**given)) != config_of(load_settings(**{**given, **other}))


@pytest.mark.parametrize(
    "other",
    [
        {"ledger_url": LEDGER.replace("app:s3cret", "worker:an0ther")},
        {"ledger_url": f"{LEDGER}?sslkey=/worker.key"},
        {"api_port": 9999},
        {"worker_grace_s": 1},
        {"log_level": "error"},
        {"token": "t0ken"},
    ],
)
def test_what_they_need_not_share_is_not(tmp_path: Path, other: dict[str, Any]) -> None:
    given: dict[str, Any] = {"data": tmp_path, "ledger_url": LEDGER}
    assert config_of(load_settings(**given)) == config_of(load_settings(**{**given, **other}))


def test_the_allowlist_counts_by_its_content_and_no_secret_is_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "allowed.yaml"
    settings = load_settings(data=tmp_path, ledger_url=LEDGER, credentials_file=file)
    with pytest.raises(SettingsInvalid):
        config_of(settings)
    file.write_text("entries: []\n")
    before = config_of(settings)
    file.write_text("entries: [ ]\n")
    assert config_of(settings) != before
    assert "s3cret" not in str(shared_config(settings))
    assert "app" not in str(shared_config(settings)["ledger"])


def test_a_process_is_named_as_the_engine_names_it(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path)
    api, worker = process_of(settings, "api"), process_of(settings, "worker", identity="1@pod", tools=("add",))
    assert api.identity == f"{api.pid}@{api.host}"
    assert (worker.identity, worker.lane, api.lane, worker.tools) == ("1@pod", "default", None, ("add",))
    assert api.process_id != worker.process_id
    assert (api.build, api.config) == (worker.build, worker.config)


def test_a_step_that_failed_and_an_answer_that_came_late_are_no_word_on_the_process() -> None:
    warnings = configure_logging("test", stream=io.StringIO())
    failed = {"__temporal_error_identifier": "ActivityFailure"}
    logging.getLogger("temporalio.activity").warning("Completing activity as failed", extra=failed)
    core = logging.getLogger("temporal.core")
    core.warning("[sdk_core::worker::workflow] Query not found when attempting to respond to it")
    core.warning("[sdk_core::worker::activities] Activity not found on completion. This may happen if the activity")
    assert (warnings.count, warnings.last) == (0, None)
    logging.getLogger("temporalio.activity").warning("Completing activity as failed")
    core.warning("[sdk_core::worker] Task not found when completing")
    logging.getLogger("other").warning("Query not found when attempting to respond to it")
    assert (warnings.count, warnings.last) == (3, "a line of other")
