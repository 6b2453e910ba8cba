"""The catalog and the phases: published versions, deployments, releases, promotions, and what admission resolves."""

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection

from gateway.ledger.catalog import (
    ReleaseConflict,
    ReleaseRow,
    current_deployment,
    current_release,
    insert_deployment,
    insert_plugin_version,
    insert_release,
    list_plugin_versions,
    list_releases,
    withdraw_version,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.phases import find_promotion, insert_promotion, phase_of, resolve, runtime_phase
from tests.unit.ledger_rows import AT, DEMO, OPERATOR, REFUND, SECOND, promotion, version
from workflows.contract.ids import Workspace, sha256_of

OTHER = Workspace("other")


async def test_a_published_version_never_changes(ledger: Ledger) -> None:
    first = await ledger.write(lambda conn: insert_plugin_version(conn, version()))
    same = await ledger.write(lambda conn: insert_plugin_version(conn, version(published_at=AT + SECOND)))
    other = await ledger.write(lambda conn: insert_plugin_version(conn, version(digest=sha256_of(b"other"))))
    assert first[0]
    assert same == other == (False, first[1])
    assert first[1].manifest == {"name": REFUND, "tools": []}


async def test_a_version_is_withdrawn_once(ledger: Ledger) -> None:
    await ledger.write(lambda conn: insert_plugin_version(conn, version()))

    def withdraw(reason: str) -> Callable[[Connection], str | None]:
        def run(conn: Connection) -> str | None:
            row = withdraw_version(conn, DEMO, REFUND, "1.0.0", reason=reason, by=OPERATOR, at=AT)
            return None if row is None else row.withdrawn_reason

        return run

    assert await ledger.write(withdraw("leaks")) == "leaks"
    assert await ledger.write(withdraw("again")) == "leaks"
    (row,) = await ledger.read(lambda conn: list_plugin_versions(conn, DEMO, REFUND))
    assert row.withdrawn_at == AT


async def test_a_deployment_is_a_new_revision_unless_it_is_the_current_one(ledger: Ledger) -> None:
    def deploy(text: bytes) -> Callable[[Connection], int]:
        return lambda conn: (
            insert_deployment(
                conn, DEMO, REFUND, digest=sha256_of(text), body={"of": text.decode()}, by=OPERATOR, at=AT
            ).revision
        )

    assert [await ledger.write(deploy(text)) for text in (b"a", b"a", b"b", b"a")] == [1, 1, 2, 3]
    current = await ledger.read(lambda conn: current_deployment(conn, DEMO, REFUND))
    assert current is not None
    assert current.body == {"of": "a"}


def release(number: str, expected: str | None = None) -> Callable[[Connection], ReleaseRow | ReleaseConflict]:
    return lambda conn: insert_release(conn, DEMO, REFUND, number, expected_current=expected, by=OPERATOR, at=AT)


async def publish(ledger: Ledger, *numbers: str) -> None:
    for number in numbers:
        await ledger.write(lambda conn, n=number: insert_plugin_version(conn, version(n)))


async def test_a_release_moves_only_from_what_was_expected_and_rollback_is_one_more_entry(ledger: Ledger) -> None:
    await publish(ledger, "1", "2")
    conflict = await ledger.write(release("1", expected="0"))
    assert conflict == ReleaseConflict(None)
    await ledger.write(release("1"))
    await ledger.write(release("2", expected="1"))
    refused = await ledger.write(release("2", expected="1"))
    assert isinstance(refused, ReleaseConflict)
    assert refused.current is not None
    assert refused.current.version == "2"
    await ledger.write(release("1", expected="2"))
    history = await ledger.read(lambda conn: list_releases(conn, DEMO, REFUND))
    assert [(row.revision, row.version, row.previous) for row in history] == [
        (3, "1", "2"),
        (2, "2", "1"),
        (1, "1", None),
    ]
    assert await ledger.read(lambda conn: current_release(conn, DEMO, REFUND)) == history[0]


async def test_of_racing_releases_that_expect_the_same_one_wins(ledger: Ledger, ledger_url: str) -> None:
    await publish(ledger, "1", *(f"2.{number}" for number in range(10)))
    await ledger.write(release("1"))
    other = Ledger.open(ledger_url)
    results = await asyncio.gather(
        *((ledger if number % 2 else other).write(release(f"2.{number}", expected="1")) for number in range(10))
    )
    await other.close()
    assert [isinstance(result, ReleaseRow) for result in results].count(True) == 1


async def test_a_phase_is_the_latest_promotion_that_is_done(ledger: Ledger) -> None:
    async def phases() -> tuple[str, str]:
        return await ledger.read(lambda conn: (phase_of(conn, DEMO, REFUND, "1.0.0"), runtime_phase(conn)))

    assert await phases() == ("blocked_noop", "blocked_noop")
    await ledger.write(lambda conn: insert_promotion(conn, promotion("p1", phase="stateful_noop", state="proposed")))
    assert await phases() == ("blocked_noop", "blocked_noop")
    await ledger.write(lambda conn: insert_promotion(conn, promotion("p2", phase="live_canary")))
    done = promotion("p1", phase="stateful_noop", approved_by="approver")
    assert await ledger.write(lambda conn: insert_promotion(conn, done)) is not None
    assert await ledger.write(lambda conn: insert_promotion(conn, done)) is None
    runtime = promotion("p3", workspace=None, plugin=None, version=None, digest=None, phase="live")
    await ledger.write(lambda conn: insert_promotion(conn, runtime))
    await ledger.write(lambda conn: insert_promotion(conn, promotion("p4", version="2", phase="live")))
    assert await phases() == ("stateful_noop", "live")
    rows = await ledger.read(lambda conn: find_promotion(conn, "p1"))
    assert [row.state for row in rows] == ["proposed", "done"]


async def test_resolving_answers_the_released_or_the_named_version_as_it_stands(ledger: Ledger) -> None:
    def resolved(number: str | None) -> Callable[[Connection], object]:
        return lambda conn: resolve(conn, DEMO, REFUND, number)

    assert await ledger.read(resolved(None)) is None
    await publish(ledger, "1.0.0", "2.0.0")
    assert await ledger.read(resolved(None)) is None
    await ledger.write(release("1.0.0"))
    await ledger.write(lambda conn: insert_promotion(conn, promotion("p1")))
    one = await ledger.read(lambda conn: resolve(conn, DEMO, REFUND, None))
    assert one is not None
    assert (one.version, one.plugin_digest, one.withdrawn) == ("1.0.0", sha256_of(b"1.0.0"), False)
    assert (one.deployment_digest, one.version_phase, one.runtime_phase) == (None, "live", "blocked_noop")
    digest = sha256_of(b"d")
    await ledger.write(lambda conn: insert_deployment(conn, DEMO, REFUND, digest=digest, body={}, by=OPERATOR, at=AT))
    await ledger.write(lambda conn: withdraw_version(conn, DEMO, REFUND, "2.0.0", reason="-", by=OPERATOR, at=AT))
    two = await ledger.read(lambda conn: resolve(conn, DEMO, REFUND, "2.0.0"))
    assert two is not None
    assert (two.version, two.withdrawn, two.deployment_digest) == ("2.0.0", True, digest)
    assert two.version_phase == "blocked_noop"
    assert await ledger.read(resolved("3")) is None
    assert await ledger.read(lambda conn: resolve(conn, OTHER, REFUND, "1.0.0")) is None
