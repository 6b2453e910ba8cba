"""Every flag of a smoke has a mutant: damage done between its censuses turns that flag, and only it, red."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from gateway.ledger.authority_tables import usage
from gateway.ledger.catalog import insert_release
from gateway.ledger.packets import NewPacket, approve_packet, find_packet, insert_packet, redeem_packet
from gateway.ledger.phases import NewPromotion, insert_promotion
from gateway.ledger.receipts import find_receipt
from gateway.ledger.tables import votes
from gateway.seams import Flag
from gateway.smoking import Smoked
from gateway.temporal import WORKSPACE
from tests.rig.client import Client
from tests.rig.plugins import final, fresh_name, publish_plugin
from tests.rig.stack import Stack
from tests.smoke.inside import DEMO, OPERATOR, Inside, Plant, held_job, until_parked, waiting_job
from workflows.contract.ids import JobId, PluginName, PrincipalId
from workflows.contract.steps import WORKFLOW_TYPE


def only(flag: Flag, smoked: Smoked) -> None:
    assert {one for one, raised in smoked.flags.items() if raised} == {flag}, smoked.reasons
    assert smoked.verdict == "red"
    assert not [change for change in smoked.changes if change.foreign]


async def add(inner: Inside, table: Table, row: Mapping[str, Any]) -> None:
    def write(conn: Connection) -> None:
        conn.execute(insert(table), row)

    await inner.doors.ledger.write(write)


async def test_an_idle_stack_is_green_with_jobs_that_wait(
    inner: Inside, quiet: Stack, app: Client, operator: Client
) -> None:
    plugin, held = await held_job(app, operator)
    waiting, _ = await waiting_job(quiet, app, operator)
    for job in (held, waiting):
        await until_parked(inner, job)
    smoked = await inner.smoke(plugin)
    assert (smoked.verdict, smoked.reasons, set(smoked.flags.values())) == ("green", (), {False})
    assert smoked.ground.phase == "live_canary"
    assert not smoked.exercised.unexpected
    assert "a job's event stream, opened and dropped" in smoked.exercised.allowed
    assert (await inner.smoke()).verdict == "green"


@pytest.mark.parametrize("named", ["demo.{}", "by-hand-{}"])
async def test_a_planted_start_is_a_worker_that_executed(inner: Inside, quiet: Stack, named: str) -> None:
    engine, name = await quiet.engine(), named.format(uuid.uuid4().hex)
    pairs = [] if name.startswith("demo.") else [SearchAttributePair(WORKSPACE, "demo")]

    async def plant() -> None:
        await engine.start_workflow(
            WORKFLOW_TYPE,
            id=name,
            task_queue="nobody-polls",
            search_attributes=TypedSearchAttributes(pairs),
            execution_timeout=timedelta(minutes=1),
        )

    only(Flag.WORKER_EXECUTED, await inner.smoke(plant=plant))
    await engine.get_workflow_handle(name).terminate()


async def test_a_start_of_another_type_for_our_workers_is_one_too(inner: Inside, quiet: Stack) -> None:
    engine, name = await quiet.engine(), f"handmade-{uuid.uuid4().hex}"
    queue = next(iter(inner.doors.settings.lanes.values())).task_queue

    async def plant() -> None:
        await engine.start_workflow("Other", id=name, task_queue=queue, execution_timeout=timedelta(minutes=1))

    only(Flag.WORKER_EXECUTED, await inner.smoke(plant=plant))
    assert (await inner.smoke()).verdict == "green", "what was there before is no change"


@pytest.mark.parametrize("signal", ["gate", "nobody-knows-this"])
async def test_a_planted_signal_to_a_parked_job_is_state(
    inner: Inside, quiet: Stack, app: Client, operator: Client, signal: str
) -> None:
    plugin, job = await held_job(app, operator)
    await until_parked(inner, job)
    handle = (await quiet.engine()).get_workflow_handle(f"demo.{job}")
    only(Flag.STATE_MUTATED, await inner.smoke(plugin, lambda: handle.signal(signal)))


async def test_a_planted_row_is_state(inner: Inside, app: Client, operator: Client) -> None:
    plugin, job = await held_job(app, operator)
    await until_parked(inner, job)
    row = {
        "workspace": DEMO,
        "job_id": job,
        "step": 1,
        "call": 0,
        "attempt": 1,
        "principal": "app",
        "plugin": plugin,
        "kind": "model",
        "input_tokens": 1,
        "output_tokens": 1,
        "cost_usd": "0",
        "estimated": False,
        "at": datetime.now(UTC),
    }
    only(Flag.STATE_MUTATED, await inner.smoke(plugin, lambda: add(inner, usage, row)))


async def test_a_planted_blob_is_state(inner: Inside) -> None:
    content = uuid.uuid4().hex.encode()
    only(Flag.STATE_MUTATED, await inner.smoke(plant=lambda: inner.doors.blobs.put(DEMO, content)))


async def approved_packet(inner: Inside, job: str) -> str:
    """A packet that was approved past the API, which would have told the job."""
    now, name = datetime.now(UTC), f"packet_{uuid.uuid4().hex}"
    receipt = await inner.doors.ledger.read(lambda conn: find_receipt(conn, DEMO, JobId(job)))
    assert receipt is not None
    new = NewPacket(
        packet_id=name,
        workspace=DEMO,
        job_id=receipt.job_id,
        plugin=receipt.plugin,
        version=receipt.version,
        digest=receipt.plugin_digest,
        allowed_tools=(),
        max_steps=1,
        expires_at=now + timedelta(minutes=10),
        author=OPERATOR,
        at=now,
    )
    await inner.doors.ledger.write(lambda conn: insert_packet(conn, new))
    boss = PrincipalId("boss")
    await inner.doors.ledger.write(lambda conn: approve_packet(conn, DEMO, name, by=boss, now=now))
    return name


async def test_an_approved_packet_is_not_consumed_and_a_planted_redemption_is_seen(
    inner: Inside, app: Client, operator: Client
) -> None:
    plugin, job = await held_job(app, operator)
    packet = await approved_packet(inner, job)
    await until_parked(inner, job)
    before = await inner.doors.ledger.read(lambda conn: find_packet(conn, DEMO, packet))
    assert before is not None
    smoked = await inner.smoke(plugin)
    assert (smoked.verdict, smoked.reasons) == ("green", ())
    assert "a packet" in smoked.exercised.allowed
    assert await inner.doors.ledger.read(lambda conn: find_packet(conn, DEMO, packet)) == before
    assert (await app.status(job))["executed"] == "no"

    def redeem() -> Awaitable[object]:
        now = datetime.now(UTC)
        return inner.doors.ledger.write(lambda conn: redeem_packet(conn, before, run="planted", now=now))

    only(Flag.APPROVAL_CONSUMED, await inner.smoke(plugin, redeem))


async def test_a_planted_vote_is_an_approval(inner: Inside, quiet: Stack, app: Client, operator: Client) -> None:
    job, request = await waiting_job(quiet, app, operator)
    await until_parked(inner, job)
    row = {
        "workspace": DEMO,
        "job_id": job,
        "request_id": request,
        "principal": OPERATOR,
        "decision": "approve",
        "action_digest": "sha256:" + "0" * 64,
        "reason": None,
        "at": datetime.now(UTC),
    }
    only(Flag.APPROVAL_CONSUMED, await inner.smoke(plant=lambda: add(inner, votes, row)))


@asynccontextmanager
async def child_of_the_api() -> AsyncGenerator[Plant]:
    started: list[asyncio.subprocess.Process] = []

    async def plant() -> None:
        started.append(await asyncio.create_subprocess_exec("sleep", "60"))

    try:
        yield plant
    finally:
        for child in started:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def test_a_planted_child_is_a_process(inner: Inside) -> None:
    async with child_of_the_api() as plant:
        only(Flag.PROCESS_STARTED, await inner.smoke(plant=plant))


async def test_a_planted_worker_is_a_process(inner: Inside, quiet: Stack) -> None:
    async def plant() -> None:
        await quiet.until_polling(quiet.add_worker())

    only(Flag.PROCESS_STARTED, await inner.smoke(plant=plant))
    quiet.workers.pop().stop()
    await inner.settled()


async def test_a_planted_promotion_is_a_phase_even_where_held_jobs_are_told(
    inner: Inside, app: Client, operator: Client
) -> None:
    plugin, job = await held_job(app, operator)
    await until_parked(inner, job)
    row = await inner.doors.ledger.read(lambda conn: find_receipt(conn, DEMO, JobId(job)))
    assert row is not None
    promotion = NewPromotion(
        promotion_id=f"promo_{uuid.uuid4().hex}",
        workspace=DEMO,
        plugin=row.plugin,
        version=row.version,
        digest=row.plugin_digest,
        phase="live",
        state="done",
        by=OPERATOR,
        approved_by=None,
        reason="a test",
        break_glass=True,
        release_held=False,
        at=datetime.now(UTC),
    )

    async def plant() -> None:
        await inner.doors.ledger.write(lambda conn: insert_promotion(conn, promotion))
        await inner.doors.changes.deliver()

    only(Flag.PHASE_PROMOTED, await inner.smoke(plugin, plant))


async def test_a_planted_release_is_configuration(inner: Inside, operator: Client) -> None:
    plugin = fresh_name("released")
    await publish_plugin(operator, plugin, [final()], phase=None)
    await publish_plugin(operator, plugin, [final()], version="1.1.0", phase=None)

    def release(version: str) -> Plant:
        return lambda: inner.doors.ledger.write(
            lambda conn: insert_release(
                conn, DEMO, PluginName(plugin), version, expected_current=None, by=OPERATOR, at=datetime.now(UTC)
            )
        )

    only(Flag.CONFIG_CHANGED, await inner.smoke(plugin, release("1.0.0")))
