"""API keys, usage and the journal of changes: revoked once, added up exactly, told until delivered."""

import asyncio
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gateway.ledger.api_keys import (
    ApiKeyRow,
    NewApiKey,
    find_api_key,
    insert_api_key,
    list_api_keys,
    revoke_api_key,
    revoke_api_keys_of,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.journal import (
    announce,
    changes_since,
    latest_change,
    mark_delivered,
    read_audit,
    undelivered_changes,
)
from gateway.ledger.receipts import reserve
from gateway.ledger.spending import Bill, Spent, bills, record_spent
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, OPERATOR, REFUND, SECOND, receipt
from workflows.contract.ids import JobId, PrincipalId, Workspace

OTHER = Workspace("other")
EVE = PrincipalId("eve")


def key(key_id: str = "key_1", **changed: Any) -> NewApiKey:
    row: dict[str, Any] = {"key_id": key_id, "workspace": DEMO, "principal": APP, "secret_hash": "ab" * 32}
    row |= {
        "scopes": ("jobs:submit", "jobs:read"),
        "groups": ("finance",),
        "expires_at": None,
        "by": OPERATOR,
        "at": AT,
    }
    return NewApiKey(**(row | changed))


async def kept(ledger: Ledger, *keys: NewApiKey) -> None:
    for new in keys:
        await ledger.write(lambda conn, new=new: insert_api_key(conn, new))


async def revoke(
    ledger: Ledger, key_id: str = "key_1", workspace: Workspace = DEMO, after: int = 0
) -> ApiKeyRow | None:
    at = AT + after * SECOND
    return await ledger.write(lambda conn: revoke_api_key(conn, workspace, key_id, by=OPERATOR, at=at))


async def test_a_key_is_kept_as_its_hash_and_found_by_its_id(ledger: Ledger) -> None:
    await kept(ledger, key(), key("key_2", at=AT + SECOND), key("key_3", workspace=OTHER))
    row = await ledger.read(lambda conn: find_api_key(conn, "key_1"))
    assert row == ApiKeyRow(**vars(key()), revoked_at=None)
    assert await ledger.read(lambda conn: find_api_key(conn, "key_9")) is None
    assert [one.key_id for one in await ledger.read(lambda conn: list_api_keys(conn, DEMO))] == ["key_1", "key_2"]


async def test_a_key_is_revoked_once_in_its_own_workspace_and_stays_so(ledger: Ledger) -> None:
    await kept(ledger, key())
    assert await revoke(ledger, workspace=OTHER) is None
    assert await revoke(ledger, "key_9") is None
    assert await revoke(ledger) == ApiKeyRow(**vars(key()), revoked_at=AT)
    assert await revoke(ledger, after=5) is None
    row = await ledger.read(lambda conn: find_api_key(conn, "key_1"))
    assert row is not None
    assert row.revoked_at == AT


async def test_of_racing_revocations_of_a_key_one_is_told(ledger: Ledger, ledger_url: str) -> None:
    await kept(ledger, key())
    other = Ledger.open(ledger_url)
    said = await asyncio.gather(*(revoke((ledger, other)[n % 2], after=n) for n in range(10)))
    await other.close()
    assert len([row for row in said if row is not None]) == 1
    told = await ledger.read(lambda conn: undelivered_changes(conn, limit=10))
    assert [(change.kind, change.subject) for change in told] == [("key", "key_1")]


async def test_revoking_a_principal_takes_its_keys_here_and_says_so_of_each(ledger: Ledger) -> None:
    await kept(ledger, key(), key("key_2"), key("key_3", principal=EVE), key("key_4", workspace=OTHER))
    await revoke(ledger, "key_2")
    revoked = await ledger.write(lambda conn: revoke_api_keys_of(conn, DEMO, APP, by=OPERATOR, at=AT))
    assert [row.key_id for row in revoked] == ["key_1"]
    assert await ledger.write(lambda conn: revoke_api_keys_of(conn, DEMO, APP, by=OPERATOR, at=AT)) == []
    lines = await ledger.read(lambda conn: read_audit(conn, DEMO, after=0, limit=20))
    assert [(line.action, line.detail["key_id"]) for line in lines if line.action == "api_key.revoked"] == [
        ("api_key.revoked", "key_2"),
        ("api_key.revoked", "key_1"),
    ]
    assert all(key().secret_hash not in str(line) for line in lines)


def spent(step: int = 1, attempt: int = 1, **changed: Any) -> Spent:
    row: dict[str, Any] = {"workspace": DEMO, "job_id": JOB, "step": step, "attempt": attempt, "principal": APP}
    row |= {"plugin": REFUND, "kind": "model", "input_tokens": 10, "output_tokens": 2, "cost_usd": Decimal("0.1")}
    row |= {"estimated": False, "at": AT}
    return Spent(**(row | changed))


@pytest.fixture
async def jobs(ledger: Ledger) -> None:
    for new in (receipt(), receipt("k-2"), receipt(workspace=OTHER)):
        await ledger.write(lambda conn, new=new: reserve(conn, new))


async def recorded(ledger: Ledger, *rows: Spent) -> None:
    for row in rows:
        await ledger.write(lambda conn, row=row: record_spent(conn, row))


async def billed(ledger: Ledger, since: datetime = AT, seconds: int = 60, **of: Any) -> dict[PrincipalId, Bill]:
    until = since + timedelta(seconds=seconds)
    return dict(await ledger.read(lambda conn: bills(conn, DEMO, since=since, until=until, **of)))


@pytest.mark.usefixtures("jobs")
async def test_a_bill_sums_attempts_counts_steps_once_and_adds_money_exactly(ledger: Ledger) -> None:
    await recorded(ledger, spent(1, 1), spent(1, 2), spent(2, cost_usd=Decimal("0.20")), spent(3, cost_usd=Decimal(0)))
    await recorded(ledger, spent(1, job_id=JobId("k-2"), cost_usd=Decimal("1E-10")))
    await recorded(ledger, spent(1, workspace=OTHER), spent(9, principal=EVE, job_id=JobId("k-2"), kind="tool"))
    everyone = await billed(ledger)
    assert everyone == {
        APP: Bill(2, 4, 50, 10, Decimal("0.4000000001")),
        EVE: Bill(1, 1, 10, 2, Decimal("0.1")),
    }
    assert await billed(ledger, principal=EVE) == {EVE: everyone[EVE]}
    assert await billed(ledger, principal=PrincipalId("nobody")) == {}


@pytest.mark.usefixtures("jobs")
async def test_a_bill_begins_with_its_first_moment_and_ends_before_its_last(ledger: Ledger) -> None:
    await recorded(ledger, *(spent(step, at=AT + step * SECOND) for step in range(1, 5)))
    assert (await billed(ledger, AT + 2 * SECOND, 2))[APP].steps == 2
    assert await billed(ledger, AT + 9 * SECOND) == {}


@pytest.mark.usefixtures("jobs")
async def test_the_first_account_of_an_attempt_stands(ledger: Ledger) -> None:
    await asyncio.gather(*(recorded(ledger, spent(input_tokens=n)) for n in (7, 7, 7)))
    await recorded(ledger, spent(input_tokens=99))
    assert (await billed(ledger))[APP].input_tokens == 7


@pytest.mark.usefixtures("jobs")
async def test_counts_past_32_bits_are_kept(ledger: Ledger) -> None:
    await recorded(ledger, spent(1, input_tokens=2**40), spent(2, input_tokens=2**40))
    assert (await billed(ledger))[APP].input_tokens == 2**41


async def announced(ledger: Ledger, *changes: tuple[Workspace | None, str]) -> list[int]:
    numbers: list[int] = []
    for workspace, subject in changes:
        numbers.append(await ledger.write(lambda c, w=workspace, s=subject: announce(c, w, at=AT, kind="k", subject=s)))
    return numbers


async def test_a_change_waits_until_it_was_delivered(ledger: Ledger) -> None:
    numbers = await announced(ledger, (DEMO, "a"), (OTHER, "b"), (None, "c"))
    assert [one.subject for one in await ledger.read(lambda conn: undelivered_changes(conn, limit=2))] == ["a", "b"]
    for _ in range(2):
        await ledger.write(lambda conn: mark_delivered(conn, numbers[0], AT))
    await ledger.write(lambda conn: mark_delivered(conn, 10**6, AT))
    assert [one.subject for one in await ledger.read(lambda conn: undelivered_changes(conn, limit=9))] == ["b", "c"]


async def test_changes_are_those_of_the_workspace_and_of_the_runtime(ledger: Ledger) -> None:
    assert await ledger.read(lambda conn: latest_change(conn, DEMO)) == 0
    numbers = await announced(ledger, (DEMO, "a"), (None, "b"), (DEMO, "c"), (OTHER, "d"))
    assert await ledger.read(lambda conn: latest_change(conn, DEMO)) == numbers[2]
    assert await ledger.read(lambda conn: latest_change(conn, Workspace("third"))) == numbers[1]

    async def since(seen: int) -> list[str]:
        return sorted(one.subject for one in await ledger.read(lambda conn: changes_since(conn, DEMO, seen)))

    assert await since(0) == ["a", "b", "c"]
    assert await since(numbers[0]) == ["b", "c"]
    assert await since(numbers[3]) == []


async def test_every_change_of_racing_writers_is_seen_in_order(ledger: Ledger, ledger_url: str) -> None:
    other = Ledger.open(ledger_url)
    numbers = await asyncio.gather(*(announced((ledger, other)[n % 2], (DEMO, f"s{n}")) for n in range(20)))
    await other.close()
    assert sorted(number for (number,) in numbers) == list(range(1, 21))
