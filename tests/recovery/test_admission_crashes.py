"""Accepted means kept, and one key is one job, while gateways, the engine and the ledger die, hang or lock.

One stack of two gateways for the whole file: every test leaves it whole.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import (
    BOTH,
    NONE,
    body_with,
    known_to_engine,
    publish_brisk,
    publish_writer,
    refused,
    row_of,
    runs_of,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Api, Stack
from tests.rig.waiting import wait_until

NAME = "crash-writer"
BODY = body_with(NAME)
CLOCK_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Two gateways, one worker, and a plugin whose jobs call one write tool."""
    own = Stack(tmp_path_factory.mktemp("pair"))
    try:
        await own.start(apis=2)
        await publish_writer(own.client("operator"), NAME, own.effects.url)
        yield own
    finally:
        await own.close()


@pytest.fixture
def first(pair: Stack) -> Client:
    pair.effects.reset()
    return pair.client("app", api=0)


@pytest.fixture
def second(pair: Stack) -> Client:
    return pair.client("app", api=1)


async def burst(clients: list[Client], key: str, count: int = 30) -> list[httpx2.Response]:
    return await asyncio.gather(*(submit_bytes(clients[n % len(clients)], BODY, key) for n in range(count)))


async def one_run(pair: Stack, client: Client, key: str) -> None:
    """The job ends, and the effect log has seen it run once."""
    assert (await client.until_ended(key))["status"] == "succeeded"
    assert len(pair.effects.calls(NAME, job=key)) == 1
    assert await wait_until(lambda: runs_of(pair, key), what="the run is visible") == 1


async def reserved(pair: Stack, key: str) -> bool:
    return await row_of(pair, key) is not None


async def restart(pair: Stack, api: Api) -> None:
    api.start()
    await pair.until_ready(api)


async def test_burst_on_two_gateways_is_one_job(pair: Stack, first: Client, second: Client) -> None:
    for _ in range(3):
        key = fresh_key()
        answers = await burst([first, second], key)
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 29}
        assert len({answer.content for answer in answers}) == 1
        replays = [answer for answer in answers if answer.headers.get("Idempotent-Replayed") == "true"]
        assert len(replays) == 29
        await one_run(pair, first, key)


async def test_gateway_killed_between_reserving_and_starting(pair: Stack, first: Client, second: Client) -> None:
    """Temporal is down, so the start can not have been sent; the other gateway starts the job that was reserved."""
    key = fresh_key()
    pair.temporal.kill()
    lost = asyncio.create_task(submit_bytes(first, BODY, key))
    await wait_until(lambda: reserved(pair, key), what="the key is reserved")
    assert not lost.done()
    pair.apis[0].kill()
    with pytest.raises(httpx2.HTTPError):
        await lost
    await pair.start_temporal()
    row = await row_of(pair, key)
    assert row is not None
    assert not row.accepted
    assert not await known_to_engine(pair, key)
    answers = await burst([second], key)
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 29}
    assert {answer.content for answer in answers} == {row.receipt}
    await restart(pair, pair.apis[0])
    await pair.until_polling(pair.workers[0])
    again = await submit_bytes(first, BODY, key)
    assert (again.status_code, again.content) == (200, row.receipt)
    await one_run(pair, first, key)


async def test_gateway_killed_while_its_start_hangs(pair: Stack, first: Client, second: Client) -> None:
    """Temporal is frozen: whether the start got through is decided when it thaws. Either way there is one job."""
    key = fresh_key()
    pair.temporal.freeze()
    try:
        lost = asyncio.create_task(submit_bytes(first, BODY, key))
        await wait_until(lambda: reserved(pair, key), what="the key is reserved")
        pair.apis[0].kill()
        with pytest.raises(httpx2.HTTPError):
            await lost
    finally:
        pair.temporal.resume()
    row = await row_of(pair, key)
    assert row is not None
    answers = await burst([second], key)
    counted = Counter(answer.status_code for answer in answers)
    assert counted in ({202: 1, 200: 29}, {200: 30})
    assert {answer.content for answer in answers} == {row.receipt}
    await restart(pair, pair.apis[0])
    await one_run(pair, second, key)


async def test_gateway_killed_after_the_receipt_loses_nothing(pair: Stack, first: Client, second: Client) -> None:
    key = fresh_key()
    receipt = await submit_bytes(first, BODY, key)
    pair.apis[0].kill()
    assert receipt.status_code == 202
    assert (await second.http.get(f"/v1/jobs/{key}")).status_code == 200
    replay = await submit_bytes(second, BODY, key)
    assert (replay.status_code, replay.content) == (200, receipt.content)
    await one_run(pair, second, key)
    await restart(pair, pair.apis[0])
    later = await submit_bytes(first, BODY, key)
    assert (later.status_code, later.content) == (200, receipt.content)
    assert len(pair.effects.calls(NAME)) == 1


async def test_replay_after_the_deadline_and_restarts_of_everything(pair: Stack, first: Client, second: Client) -> None:
    brisk = await publish_brisk(pair.client("operator"), "crash-brisk")
    key, body = fresh_key(), body_with(brisk, timeout_seconds=2)
    receipt = await submit_bytes(first, body, key)
    assert receipt.status_code == 202
    await first.until_ended(key)
    for api in pair.apis:
        assert api.stop() == 0
    pair.temporal.stop()
    await pair.start_temporal()
    for api in pair.apis:
        api.start()
    await asyncio.gather(*(pair.until_ready(api) for api in pair.apis))
    deadline = datetime.fromisoformat(receipt.json()["deadline"])
    await wait_until(lambda: datetime.now(UTC) > deadline, what="the deadline has passed")
    for client in (first, second):
        replay = await submit_bytes(client, body, key)
        assert (replay.status_code, replay.content) == (200, receipt.content)
    assert (await second.status(key))["status"] == "succeeded"
    # What is new needs a deadline that is ahead: only the known key is past judging.
    past = body_with(brisk, deadline=receipt.json()["deadline"])
    refused(await submit_bytes(first, past), 422, "deadline-invalid")


# ---- the request clock


async def timed(asking: asyncio.Task[httpx2.Response]) -> tuple[httpx2.Response, float]:
    began = asyncio.get_running_loop().time()
    return await asking, asyncio.get_running_loop().time() - began


async def test_frozen_engine_is_answered_inside_the_clock_and_converges(
    pair: Stack, first: Client, second: Client
) -> None:
    given, usual, fresh = fresh_key(), fresh_key(), fresh_key()
    pair.temporal.freeze()
    try:
        until = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        asks = [
            submit_bytes(first, BODY, given, Jobgate_Http_Deadline=until),
            submit_bytes(second, BODY, usual),
            first.http.get(f"/v1/jobs/{given}"),
            second.cancel(usual),
        ]
        submitted, slow, read, stop = await asyncio.gather(*(timed(asyncio.ensure_future(ask)) for ask in asks))
        for response, took, clock in ((*submitted, 1.0), (*slow, CLOCK_S)):
            assert refused(response, 503, "admission-unknown")["retry_after_s"] >= 1
            assert took < clock + 0.5
        for response, took in (read, stop):
            assert response.status_code in (404, 503, 504)
            assert took < CLOCK_S + 1
        past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
        late = await submit_bytes(first, BODY, fresh, Jobgate_Http_Deadline=past)
        refused(late, 504, "http-deadline-exceeded")
    finally:
        pair.temporal.resume()
    assert await traces(pair, fresh) == NONE
    for key in (given, usual):
        row = await row_of(pair, key)
        assert row is not None
        answers = await burst([first, second], key, 6)
        assert Counter(answer.status_code for answer in answers) in ({202: 1, 200: 5}, {200: 6})
        assert {answer.content for answer in answers} == {row.receipt}
        await one_run(pair, second, key)


async def test_engine_that_is_down_is_answered_inside_the_clock_and_converges(pair: Stack, first: Client) -> None:
    key = fresh_key()
    pair.temporal.kill()
    try:
        until = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        hurried = submit_bytes(first, BODY, key, Jobgate_Http_Deadline=until)
        response, took = await timed(asyncio.ensure_future(hurried))
        refused(response, 503, "admission-unknown")
        assert took < 2.5
        # A gateway that never reached the engine says the same.
        newborn = pair.add_api()
        client = pair.client("app", api=len(pair.apis) - 1)
        await wait_until(lambda: _lives(client), 30, what="the new gateway lives")
        response, took = await timed(asyncio.ensure_future(submit_bytes(client, BODY, key)))
        refused(response, 503, "admission-unknown")
        assert took < CLOCK_S + 0.5
        refused(await client.http.get("/readyz"), 503, "engine-unavailable")
        assert (await client.http.get("/livez")).status_code == 200
    finally:
        await pair.start_temporal()
    assert not await known_to_engine(pair, key)
    answers = await burst([first, client], key, 6)
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 5}
    await pair.until_polling(pair.workers[0])
    await one_run(pair, first, key)
    assert newborn.stop() == 0
    pair.apis.remove(newborn)


async def test_locked_ledger_starts_nothing(pair: Stack, first: Client, second: Client) -> None:
    key, known = fresh_key(), fresh_key()
    receipt = await submit_bytes(first, BODY, known)
    await one_run(pair, first, known)
    with closing(sqlite3.connect(pair.data / "ledger.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        response, took = await timed(asyncio.ensure_future(submit_bytes(first, BODY, key)))
        assert refused(response, 503, "ledger-unavailable")["retry_after_s"] >= 1
        assert took < CLOCK_S + 0.5
        until = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
        hurried = await submit_bytes(second, BODY, key, Jobgate_Http_Deadline=until)
        refused(hurried, 504, "http-deadline-exceeded")
        assert not await known_to_engine(pair, key)
        # Readers never wait for a writer: what is known is answered all the while.
        replay = await submit_bytes(second, BODY, known)
        assert (replay.status_code, replay.content) == (200, receipt.content)
        holder.execute("ROLLBACK")
    assert not await known_to_engine(pair, key)
    # The mutant: unlocked, the same two submissions leave traces.
    answers = await burst([first, second], key, 6)
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 5}
    assert await traces(pair, key) == BOTH
    await one_run(pair, first, key)


async def test_start_that_the_engine_refuses_for_good_frees_the_key(pair: Stack, first: Client) -> None:
    """A gateway whose namespace does not exist: nothing can have started, and the same key works elsewhere."""
    key = fresh_key()
    lost = pair.add_api({"TEMPORAL_NAMESPACE": "no-such-namespace"})
    client = pair.client("app", api=len(pair.apis) - 1)
    await wait_until(lambda: _lives(client), 30, what="the lost gateway lives")
    refused(await submit_bytes(client, BODY, key), 503, "engine-unavailable")
    row = await row_of(pair, key)
    assert row is not None
    assert row.refused_at is not None
    refused(await first.http.get(f"/v1/jobs/{key}"), 404, "not-found")
    assert pair.effects.calls(NAME) == []
    answer = await submit_bytes(first, BODY, key)
    assert answer.status_code == 202
    assert answer.content != row.receipt
    await one_run(pair, first, key)
    lost.kill()
    pair.apis.remove(lost)


async def _lives(client: Client) -> bool:
    try:
        return (await client.http.get("/livez")).status_code == 200
    except httpx2.HTTPError:
        return False
