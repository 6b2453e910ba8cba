"""A packet moves by compare-and-set: approved once, redeemed once by one run, revoked until then, over at its end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from gateway.calls.attempts import Attempt
from gateway.calls.standing import Denied, Standing, examine
from gateway.ledger.authorities import insert_authority
from gateway.ledger.catalog import insert_plugin_version
from gateway.ledger.engine import Ledger
from gateway.ledger.gates import redeem_for
from gateway.ledger.grants import insert_grant
from gateway.ledger.packets import (
    NewPacket,
    PacketRow,
    approve_packet,
    find_packet,
    insert_packet,
    packets_of,
    redeem_packet,
    revoke_packet,
)
from gateway.ledger.phases import insert_promotion
from gateway.ledger.receipts import accept, find_receipt, lock_job, reserve
from tests.unit.ledger_rows import (
    AT,
    DEMO,
    JOB,
    OPERATOR,
    REFUND,
    SECOND,
    authority,
    grant,
    promotion,
    receipt,
    version,
)
from workflows.contract.ids import PrincipalId

BOSS = PrincipalId("boss")
LATER = AT + SECOND


def packet(packet_id: str = "packet_1") -> NewPacket:
    return NewPacket(
        packet_id=packet_id,
        workspace=DEMO,
        job_id=JOB,
        plugin=REFUND,
        version="1.0.0",
        digest=version().digest,
        allowed_tools=("invoices.get",),
        max_steps=5,
        expires_at=AT + timedelta(minutes=5),
        author=OPERATOR,
        at=AT,
    )


def proposed(conn: Connection) -> None:
    insert_plugin_version(conn, version())
    insert_promotion(conn, promotion("p-version", phase="live_canary"))
    insert_promotion(conn, promotion("p-run", workspace=None, plugin=None, version=None, digest=None))
    reserve(conn, receipt(plugin_digest=version().digest))
    insert_packet(conn, packet())


def found(conn: Connection) -> PacketRow:
    row = find_packet(conn, DEMO, "packet_1")
    assert row is not None
    return row


def approve(conn: Connection) -> PacketRow | None:
    return approve_packet(conn, DEMO, "packet_1", by=BOSS, now=LATER)


def revoke(conn: Connection) -> PacketRow | None:
    return revoke_packet(conn, DEMO, "packet_1", by=OPERATOR, now=LATER)


def redeem(conn: Connection, run: str = "run-1") -> PacketRow | None:
    return redeem_packet(conn, found(conn), run=run, now=LATER)


@pytest.mark.parametrize(
    ("before", "then", "works"),
    [
        ((), approve, True),
        ((), redeem, False),
        ((), revoke, True),
        ((approve,), approve, False),
        ((approve,), redeem, True),
        ((approve,), revoke, True),
        ((revoke,), approve, False),
        ((revoke,), revoke, False),
        ((approve, revoke), redeem, False),
        ((approve, redeem), redeem, False),
        ((approve, redeem), revoke, False),
        ((approve, redeem), approve, False),
    ],
)
async def test_every_move(
    ledger: Ledger,
    before: tuple[Callable[[Connection], object], ...],
    then: Callable[[Connection], PacketRow | None],
    works: bool,
) -> None:
    await ledger.write(proposed)
    for move in before:
        assert await ledger.write(move) is not None
    standing = await ledger.read(found)
    assert (await ledger.write(then) is not None) is works
    if not works:
        assert await ledger.read(found) == standing


async def test_a_packet_whose_time_is_over_is_neither_approved_nor_redeemed(ledger: Ledger) -> None:
    await ledger.write(proposed)
    over = packet().expires_at
    assert await ledger.write(lambda conn: approve_packet(conn, DEMO, "packet_1", by=BOSS, now=over)) is None
    await ledger.write(approve)
    assert await ledger.write(lambda conn: redeem_packet(conn, found(conn), run="run-1", now=over)) is None


async def test_of_fifty_racing_runs_one_redeems(ledger: Ledger, ledger_url: str) -> None:
    await ledger.write(proposed)
    await ledger.write(approve)
    others = [Ledger.open(ledger_url) for _ in range(5)]
    racing = [others[number % 5].write(lambda conn, n=number: redeem(conn, f"run-{n}")) for number in range(50)]
    won = [row for row in await asyncio.gather(*racing) if row is not None]
    for other in others:
        await other.close()
    assert len(won) == 1
    assert (await ledger.read(found)).redeemed_run == won[0].redeemed_run


def at_the_gate(run: str) -> Callable[[Connection], PacketRow | None]:
    def look(conn: Connection) -> PacketRow | None:
        lock_job(conn, DEMO, JOB)
        job = find_receipt(conn, DEMO, JOB)
        assert job is not None
        return redeem_for(conn, run, job, LATER)

    return look


async def test_of_fifty_runs_racing_at_the_gate_one_passes(ledger: Ledger, ledger_url: str) -> None:
    await ledger.write(proposed)
    await ledger.write(approve)
    others = [Ledger.open(ledger_url) for _ in range(5)]
    racing = [others[number % 5].write(at_the_gate(f"run-{number % 10}")) for number in range(50)]
    passed = [row.redeemed_run for row in await asyncio.gather(*racing) if row is not None]
    for other in others:
        await other.close()
    assert set(passed) == {(await ledger.read(found)).redeemed_run}
    assert len(passed) == 5, "the run that was first passes as often as it looks, and no other one does"


async def test_the_run_that_redeemed_it_passes_the_gate_again_and_no_other_does(ledger: Ledger) -> None:
    await ledger.write(proposed)
    assert await ledger.write(at_the_gate("run-1")) is None
    await ledger.write(approve)
    first = await ledger.write(at_the_gate("run-1"))
    assert first is not None
    assert await ledger.write(at_the_gate("run-1")) == first
    assert await ledger.write(at_the_gate("run-2")) is None
    await ledger.write(lambda conn: insert_packet(conn, replace(packet("packet_2"), at=LATER)))
    await ledger.write(lambda conn: approve_packet(conn, DEMO, "packet_2", by=BOSS, now=LATER))
    assert await ledger.write(at_the_gate("run-2")) is None, "a job runs by one packet"
    assert [row.packet_id for row in await ledger.read(lambda conn: packets_of(conn, DEMO, JOB))] == [
        "packet_1",
        "packet_2",
    ]


async def test_a_packet_opens_nothing_below_live_canary_and_nothing_of_another_digest(ledger: Ledger) -> None:
    await ledger.write(proposed)
    await ledger.write(approve)
    await ledger.write(lambda conn: insert_promotion(conn, promotion("p-down", phase="stateful_noop")))
    assert await ledger.write(at_the_gate("run-1")) is None
    assert (await ledger.read(found)).redeemed_at is None


async def test_a_run_that_a_packet_lets_go_may_call_only_what_it_names(ledger: Ledger) -> None:
    def run_by_it(conn: Connection) -> None:
        proposed(conn)
        insert_grant(conn, grant())
        insert_authority(conn, authority())
        accept(conn, DEMO, JOB, AT)
        approve(conn)
        redeem(conn)

    await ledger.write(run_by_it)
    run, other = (Attempt(DEMO, JOB, name, "7", 1) for name in ("run-1", "run-2"))
    standing = await ledger.read(lambda conn: examine(conn, run, LATER))
    assert isinstance(standing, Standing)
    assert (standing.names("invoices.get"), standing.names("orders.get")) == (True, False)
    assert replace(standing, packet=None).names("orders.get"), "a job that runs by its phase calls any"
    assert isinstance(await ledger.read(lambda conn: examine(conn, other, LATER)), Denied)
