"""One key, one job, for ever: also where the ledger was put back to an older state, or the engine forgot the job."""

import shutil
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import (
    OLD,
    body_with,
    known_to_engine,
    publish_writer,
    refused,
    rewrite_row,
    row_of,
    runs_of,
    submit_bytes,
)
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.recovery.operators import delete
from tests.rig.client import Client, fresh_key
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


async def test_every_door_of_a_deleted_job_says_that_it_is_gone_and_changes_nothing(ground: Stack) -> None:
    """Its sessions, its requests, its effects: what the ledger keeps is read, and nothing is run or decided again."""
    app, approver, operator, key = ground.client(), ground.client("approver"), ground.client("operator"), fresh_key()
    plugin = await published(
        ground, [turn(call("gone-ask")), final()], tool("gone-ask", "write"), policy=READS_RUN_WRITES_ASK
    )
    receipt = await app.submit(plugin, key=key, session="gone-session")
    [request] = await app.until_request(key)
    shown = await approver.request(key, request)
    assert (await approver.decide(key, request, "approve")).status_code in (200, 202)
    await app.until_ended(key, BUSY_S)
    [sent] = ground.effects.calls("gone-ask")
    job = f"/v1/jobs/{key}"
    decision = {"decision": "approve", "action_digest": shown["action_digest"]}
    doors = [
        app.http.build_request("GET", job),
        app.http.build_request("GET", job, params={"after": "0"}),
        app.http.build_request("GET", job, params={"after": "0"}, headers={"Prefer": "wait=2"}),
        app.http.build_request("GET", f"{job}/events"),
        app.http.build_request("GET", f"{job}/result"),
        app.http.build_request("GET", f"{job}/preview"),
        app.http.build_request("POST", f"{job}/cancel"),
        approver.http.build_request("GET", f"{job}/requests/{request}"),
        approver.http.build_request("POST", f"{job}/requests/{request}/decision", json=decision),
        operator.http.build_request("GET", f"/v1/operator/jobs/{key}"),
    ]
    before = await doors_of(doors, app)
    assert 410 not in before  # the mutant: while the engine knows it they all have another answer
    await delete(ground, key)
    for door in doors:
        gone = refused(await app.http.send(door), 410, "job-expired")
        assert gone["receipt"] == receipt.json(), door.url
    assert (await app.get("/v1/jobs", params={"plugin": plugin}))["data"] == []
    assert key not in (await approver.http.get("/v1/requests")).text
    line = await app.get("/v1/sessions/gone-session")
    assert line["open_job"] is None
    settled = await approver.http.post(f"{job}/effects/{sent.idempotency_key}/settlement", json={"answer": "happened"})
    refused(settled, 409, "already-decided")
    again = await app.submit(plugin, key=key, session="gone-session")
    assert (again.status_code, again.content) == (200, receipt.content)
    assert ground.effects.calls("gone-ask") == [sent]
    assert not await known_to_engine(ground, key)
    # A retry is a new job, and knows what the forgotten one did.
    other = fresh_key()
    retried = await app.http.post(f"{job}/retry", json={}, headers={"Idempotency-Key": other})
    assert (retried.status_code, retried.json()["retry_of"]) == (202, key)
    [anew] = await app.until_request(other)
    assert (await approver.request(other, anew))["title"].startswith(f"Again, after job {key}: ")
    assert (await operator.http.delete(f"{job}/content")).status_code == 200
    await app.cancel(other)
    assert (await app.until_ended(other, BUSY_S))["status"] == "canceled"
    assert ground.effects.calls("gone-ask") == [sent]


async def doors_of(doors: Sequence[httpx2.Request], app: Client) -> list[int]:
    return [(await app.http.send(door)).status_code for door in doors]


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
