"""One key, one job, for ever: also where the ledger was put back to an older state, or the engine forgot the job."""

import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from tests.http.submissions import (
    OLD,
    body_with,
    publish_writer,
    refused,
    rewrite_row,
    row_of,
    runs_of,
    submit_bytes,
)
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.recovery.operators import delete
from tests.rig.client import fresh_key
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

BUSY_S = 60.0
LEDGER = ("ledger.db", "ledger.db-wal", "ledger.db-shm")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("keys")) as stack:
        yield stack


class Backup:
    """A copy of the ledger, put back while nothing of ours runs; the engine goes on knowing everything."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack, self._copy = stack, folder / "ledger.db"

    def take(self) -> None:
        with (
            closing(sqlite3.connect(self._stack.data / "ledger.db")) as ledger,
            closing(sqlite3.connect(self._copy)) as copy,
        ):
            ledger.backup(copy)

    async def put_back(self) -> None:
        ours = (*self._stack.apis, *self._stack.workers)
        for process in ours:
            process.kill()
        for name in LEDGER:
            (self._stack.data / name).unlink(missing_ok=True)
        shutil.copy(self._copy, self._stack.data / LEDGER[0])
        for process in ours:
            process.start()
        await self._stack.until_ready(self._stack.apis[0], 120)
        await self._stack.until_polling(self._stack.workers[0], 120)


@pytest.fixture
def backup(ground: Stack, tmp_path: Path) -> Backup:
    return Backup(ground, tmp_path)


async def test_a_ledger_put_back_to_an_older_state_runs_nothing_again(ground: Stack, backup: Backup) -> None:
    """The engine remembers: of an ended job and a waiting one the first receipts are written once more, to the byte."""
    app, approver, operator = ground.client(), ground.client("approver"), ground.client("operator")
    await publish_writer(operator, "restored", ground.effects.url)
    asking = await published(
        ground, [turn(call("restored-ask")), final()], tool("restored-ask", "write"), policy=READS_RUN_WRITES_ASK
    )
    backup.take()
    ended, waiting, other = fresh_key(), fresh_key(), fresh_key()
    bodies = {ended: body_with("restored"), waiting: body_with(asking), other: body_with("restored")}
    receipts = {key: await submit_bytes(app, body, key) for key, body in bodies.items()}
    assert {answer.status_code for answer in receipts.values()} == {202}
    await app.until_ended(ended, BUSY_S)
    await app.until_ended(other, BUSY_S)
    [request] = await app.until_request(waiting)
    rows = {key: await row_of(ground, key) for key in bodies}
    await backup.put_back()
    assert await row_of(ground, ended) is None  # the mutant: the ledger has forgotten
    # Other content takes the engine's job over at no time, also when its reservation is too old to start.
    wrong = body_with("restored", timeout_seconds=77)
    refused(await submit_bytes(app, wrong, other), 409, "key-taken-outside")
    await age_row(ground, other)
    refused(await submit_bytes(app, wrong, other), 409, "key-taken-outside")
    row = await row_of(ground, other)
    assert row is not None
    assert not row.accepted
    for key in (ended, waiting):
        for _ in range(2):
            again = await submit_bytes(app, bodies[key], key)
            assert (again.status_code, again.content) == (200, receipts[key].content)
            assert again.headers["Idempotent-Replayed"] == "true"
        row, before = await row_of(ground, key), rows[key]
        assert row is not None
        assert before is not None
        assert (row.snapshot, row.deadline_at, row.first_run) == (before.snapshot, before.deadline_at, before.first_run)
        assert await runs_of(ground, key) == 1
    assert len(ground.effects.calls("restored")) == 2
    assert (await app.status(ended))["status"] == "succeeded"
    assert (await approver.decide(waiting, request, "approve")).status_code in (200, 202)
    assert (await app.until_ended(waiting, BUSY_S))["status"] == "succeeded"
    assert len(ground.effects.calls("restored-ask")) == 1


async def age_row(ground: Stack, key: str) -> None:
    row = await row_of(ground, key)
    assert row is not None
    await rewrite_row(ground, key, {"reserved_at": row.reserved_at - OLD})


async def test_a_deleted_execution_leaves_its_key_taken(ground: Stack) -> None:
    app, operator, key = ground.client(), ground.client("operator"), fresh_key()
    await publish_writer(operator, "deleted", ground.effects.url)
    receipt = await submit_bytes(app, body_with("deleted"), key)
    await app.until_ended(key, BUSY_S)
    await delete(ground, key)
    gone = refused(await app.http.get(f"/v1/jobs/{key}"), 410, "job-expired")
    assert gone["receipt"] == receipt.json()
    for _ in range(2):
        again = await submit_bytes(app, body_with("deleted"), key)
        assert (again.status_code, again.content) == (200, receipt.content)
    refused(await submit_bytes(app, body_with("deleted", timeout_seconds=77), key), 422, "idempotency-key-reused")
    refused(await app.cancel(key), 410, "job-expired")
    assert len(ground.effects.calls("deleted")) == 1
    refused(await app.http.get(f"/v1/jobs/{key}"), 410, "job-expired")
