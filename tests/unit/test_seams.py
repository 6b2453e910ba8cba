"""Under a watch every door that changes something refuses and is counted to its one flag; without one none does."""

import asyncio
import contextlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, text
from temporalio.client import OutboundInterceptor

from gateway.blobs import Blobs
from gateway.ledger.api_keys import NewApiKey, insert_api_key
from gateway.ledger.catalog import insert_plugin_version, insert_release
from gateway.ledger.decisions import cast_vote
from gateway.ledger.engine import Ledger
from gateway.ledger.evidence import EvidenceRow, insert_evidence
from gateway.ledger.grants import insert_grant, revoke_principal
from gateway.ledger.journal import announce, record
from gateway.ledger.packets import find_packet
from gateway.ledger.phases import insert_promotion
from gateway.ledger.receipts import find_receipt, reserve
from gateway.ledger.stops import stop_job
from gateway.ledger.tables import metadata
from gateway.seams import ClientSeam, Flag, Seen, WouldChange, watching
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, OPERATOR, REFUND, grant, promotion, receipt, version, vote
from tests.unit.test_ledger_packets import approve, proposed, redeem
from workflows.contract.ids import sha256_of


def only(flag: Flag | None) -> dict[Flag, bool]:
    return {each: each is flag for each in Flag}


# ---- the ledger


def seed(conn: Connection) -> None:
    proposed(conn)
    approve(conn)
    insert_grant(conn, grant())


def census(conn: Connection) -> dict[str, int]:
    return {
        table.name: conn.execute(select(func.count()).select_from(table)).scalar_one()
        for table in metadata.sorted_tables
    } | {"redeemed": conn.execute(text("SELECT count(*) FROM packets WHERE redeemed_at IS NOT NULL")).scalar_one()}


def simulated(conn: Connection) -> None:
    row = EvidenceRow(DEMO, REFUND, "1.0.0", sha256_of(b"1.0.0"), "simulation", True, {}, OPERATOR, AT)
    insert_evidence(conn, row)


def key_made(conn: Connection) -> None:
    insert_api_key(
        conn,
        NewApiKey(
            key_id="key_1",
            workspace=DEMO,
            principal=APP,
            secret_hash="x",
            scopes=(),
            groups=(),
            expires_at=None,
            by=OPERATOR,
            at=AT,
        ),
    )


def banished(conn: Connection) -> None:
    """As `gateway.granting` does it: its line of audit comes first, and says nothing of what was changed."""
    record(conn, DEMO, at=AT, actor=OPERATOR, action="principal.revoked", subject=APP)
    revoke_principal(conn, DEMO, APP, by=OPERATOR, at=AT)


CHANGES: list[tuple[Callable[[Connection], Any], Flag]] = [
    (redeem, Flag.APPROVAL_CONSUMED),
    (lambda conn: cast_vote(conn, vote("bob"), quorum=1), Flag.APPROVAL_CONSUMED),
    (lambda conn: insert_promotion(conn, promotion("p-2")), Flag.PHASE_PROMOTED),
    (simulated, Flag.PHASE_PROMOTED),
    (lambda conn: insert_plugin_version(conn, version("2.0.0")), Flag.CONFIG_CHANGED),
    (
        lambda conn: insert_release(conn, DEMO, REFUND, "1.0.0", expected_current=None, by=OPERATOR, at=AT),
        Flag.CONFIG_CHANGED,
    ),
    (lambda conn: insert_grant(conn, grant("g-2")), Flag.CONFIG_CHANGED),
    (key_made, Flag.CONFIG_CHANGED),
    (banished, Flag.CONFIG_CHANGED),
    (lambda conn: reserve(conn, receipt("k-2")), Flag.STATE_MUTATED),
    (lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=AT), Flag.STATE_MUTATED),
    (lambda conn: announce(conn, DEMO, at=AT, kind="phase", subject="x"), Flag.STATE_MUTATED),
    (lambda conn: record(conn, DEMO, at=AT, actor=APP, action="a", subject="s"), Flag.STATE_MUTATED),
    (lambda conn: conn.execute(text("DELETE FROM packets")), Flag.STATE_MUTATED),
]


@pytest.mark.parametrize(("change", "flag"), CHANGES)
async def test_a_write_is_refused_counted_by_its_table_and_leaves_nothing(
    ledger: Ledger, change: Callable[[Connection], Any], flag: Flag
) -> None:
    await ledger.write(seed)
    before = await ledger.read(census)
    for refused in (ledger.write(change), ledger.write_grouped(change, key="k")):
        with watching() as seen, pytest.raises(WouldChange):
            await refused
        assert seen.flags() == only(flag)
        assert await ledger.read(census) == before
    # The mutant: without a watch the same call changes the ledger.
    await ledger.write(change)
    assert await ledger.read(census) != before


async def test_a_refusal_that_is_swallowed_still_refuses_the_whole(ledger: Ledger) -> None:
    await ledger.write(seed)
    before = await ledger.read(census)

    def quietly(conn: Connection) -> str:
        record(conn, DEMO, at=AT, actor=APP, action="a", subject="s")
        with contextlib.suppress(WouldChange), conn.begin_nested():
            insert_grant(conn, grant("g-2"))
        return "done"

    with watching() as seen, pytest.raises(WouldChange):
        await ledger.write(quietly)
    assert seen.flags() == only(Flag.CONFIG_CHANGED)
    assert await ledger.read(census) == before


async def test_what_only_reads_is_answered_under_a_watch(ledger: Ledger) -> None:
    await ledger.write(seed)

    def look(conn: Connection) -> tuple[object, ...]:
        return find_packet(conn, DEMO, "packet_1"), find_receipt(conn, DEMO, JOB), find_receipt(conn, DEMO, JOB)

    with watching() as seen:
        found = [await ledger.read(look), await ledger.write(look), await ledger.write_grouped(look, key="k")]
    assert found == [await ledger.read(look)] * 3
    assert seen.flags() == only(None)


async def test_a_write_through_a_read_is_counted_too(ledger: Ledger) -> None:
    with watching() as seen, pytest.raises(WouldChange):
        await ledger.read(lambda conn: insert_grant(conn, grant()))
    assert seen.flags() == only(Flag.CONFIG_CHANGED)


async def test_others_write_while_somebody_watches(ledger: Ledger) -> None:
    """A watch is of one task and what it starts: the process goes on."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def look() -> Seen:
        with watching() as seen:
            begun.set()
            await over.wait()
        return seen

    looking = asyncio.create_task(look())
    await begun.wait()
    await ledger.write(seed)
    await ledger.write_grouped(lambda conn: insert_grant(conn, grant("g-2")), key="k")
    over.set()
    assert (await looking).flags() == only(None)
    assert (await ledger.read(census))["grants"] == 2


async def test_what_a_watched_task_starts_is_watched(ledger: Ledger) -> None:
    with watching() as seen:
        (error,) = await asyncio.gather(ledger.write(lambda conn: insert_grant(conn, grant())), return_exceptions=True)
    assert isinstance(error, WouldChange)
    assert seen.flags() == only(Flag.CONFIG_CHANGED)


# ---- blobs


async def test_no_blob_is_stored_or_mended(tmp_path: Path) -> None:
    blobs = Blobs.open(tmp_path.as_uri())
    kept = await blobs.put(DEMO, b"kept")
    for store in (blobs.put, blobs.mend):
        with watching() as seen, pytest.raises(WouldChange):
            await store(DEMO, b"new")
        assert seen.flags() == only(Flag.STATE_MUTATED)
    assert len(list((tmp_path / DEMO).iterdir())) == 1
    with watching() as seen:
        assert await blobs.verify(DEMO, kept) == b"kept"
    assert seen.flags() == only(None)


# ---- processes

TRUE = [sys.executable, "-c", ""]


def forked() -> None:
    if os.fork() == 0:
        os._exit(0)


STARTS: list[Callable[[], Any]] = [
    lambda: subprocess.run(TRUE, check=True),
    lambda: os.posix_spawn(sys.executable, TRUE, {}),
    lambda: os.forkpty(),
    forked,
]


@pytest.mark.parametrize("start", STARTS)
def test_no_process_is_started(start: Callable[[], Any]) -> None:
    with watching() as seen, pytest.raises(WouldChange):
        start()
    assert seen.flags() == only(Flag.PROCESS_STARTED)
    assert seen.counts[Flag.PROCESS_STARTED] == 1


async def test_no_process_is_started_from_a_task_or_its_threads() -> None:
    with watching() as seen:
        with pytest.raises(WouldChange):
            await asyncio.create_subprocess_exec(*TRUE)
        with pytest.raises(WouldChange):
            await asyncio.to_thread(subprocess.run, TRUE)
    assert seen.flags() == only(Flag.PROCESS_STARTED)
    assert (await asyncio.to_thread(subprocess.run, TRUE, check=False)).returncode == 0


def test_a_process_of_uvloop_is_at_least_counted() -> None:
    """The API runs on it, and it starts processes without asking the interpreter."""
    script = (
        "import asyncio, sys, uvloop\n"
        "from gateway.seams import watching\n"
        "async def main():\n"
        "    with watching() as seen:\n"
        "        await (await asyncio.create_subprocess_exec(sys.executable, '-c', '')).wait()\n"
        "    print([str(flag) for flag in seen.raised()])\n"
        "uvloop.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['process_started']"


# ---- the engine

VERBS = sorted(name for name in vars(OutboundInterceptor) if not name.startswith("_"))
READS = {
    *("describe_workflow", "fetch_workflow_history_events", "list_workflows", "count_workflows", "query_workflow"),
    *("describe_activity", "list_activities", "count_activities", "describe_schedule", "list_schedules"),
    *("get_worker_build_id_compatibility", "get_worker_task_reachability"),
    *("describe_nexus_operation", "get_nexus_operation_result", "list_nexus_operations", "count_nexus_operations"),
}
STARTERS = {"start_workflow", "start_update_with_start_workflow", "start_activity", "start_nexus_operation"}


class Reached(OutboundInterceptor):
    """The engine's end of the chain: says which verb came through."""

    def __init__(self) -> None:
        self.verbs: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in VERBS:
            return super().__getattribute__(name)

        def reached(_input: object) -> None:
            self.verbs.append(name)

        return reached


@pytest.mark.parametrize("verb", VERBS)
async def test_of_the_engine_only_what_reads_is_reached(verb: str) -> None:
    engine = Reached()
    seam = ClientSeam().intercept_client(engine)

    async def call() -> None:
        answer = getattr(seam, verb)(None)
        if inspect.isawaitable(answer):
            with contextlib.suppress(TypeError):  # the far end answers at once
                await answer

    with watching() as seen:
        if verb in READS:
            await call()
        else:
            with pytest.raises(WouldChange):
                await call()
    told = None if verb in READS else Flag.WORKER_EXECUTED if verb in STARTERS else Flag.STATE_MUTATED
    assert seen.flags() == only(told)
    assert engine.verbs == ([verb] if verb in READS else [])
    await call()
    assert engine.verbs[-1] == verb, "without a watch it passes"
