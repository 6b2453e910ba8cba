"""Two API processes and a worker on one PostgreSQL ledger: the promises of admission, decisions and cancel hold there,
and the server may die."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Generator

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import BOTH, CANARY, body_with, refused, replayed, submit_bytes, traces
from tests.http.test_retry import retry
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Behaviour
from tests.rig.plugins import ASK_ALL, call, final, publish_plugin, tool, turn
from tests.rig.postgres import Postgres
from tests.rig.stack import Stack

NAME = "postgres-writer"
ASKED = "postgres-asked"
CLOCK_S = 5.0
NUL = f"{CANARY}\0"


@pytest.fixture(scope="module")
def own_server() -> Generator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(own_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    own = Stack(tmp_path_factory.mktemp("postgres"), ledger_url=own_server.create_database("stack"))
    try:
        await own.start(apis=2)
        operator = own.client("operator")
        for name, policy in ((NAME, "permit (principal, action, resource);\n"), (ASKED, ASK_ALL)):
            await publish_plugin(
                operator,
                name,
                [turn(call(name, {"n": 1})), final()],
                tools=[tool(name, "write")],
                tools_url=own.effects.url,
                policy=policy,
            )
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


async def test_the_ledger_is_not_a_file(pair: Stack, first: Client) -> None:
    key = await first.accepted(NAME)
    assert await traces(pair, key) == BOTH
    await first.until_ended(key)
    assert not list(pair.data.glob("ledger.db*"))


async def test_of_retries_at_two_gateways_at_once_one_is_admitted(pair: Stack, first: Client, second: Client) -> None:
    """Writes that failed for certain: each retry that is admitted writes again, and does not end meanwhile."""
    for _ in range(5):
        pair.effects.reset()
        pair.effects.set_behaviour(NAME, Behaviour(status=422))
        source = await first.accepted(NAME)
        await first.until_ended(source)
        pair.effects.set_behaviour(NAME, Behaviour(delay_seconds=3))
        answers = await asyncio.gather(*(retry((first, second)[n % 2], source) for n in range(6)))
        assert sorted(answer.status_code for answer in answers) == [202, *[409] * 5]
        [admitted] = [answer.json()["job_id"] for answer in answers if answer.status_code == 202]
        await first.until_ended(admitted)
        assert [sent.job for sent in pair.effects.calls(NAME)] == [source, admitted]


async def test_thirty_racing_submissions_to_two_gateways_are_one_job(
    pair: Stack, first: Client, second: Client
) -> None:
    key, body = fresh_key(), body_with(NAME)
    answers = await asyncio.gather(*(submit_bytes((first, second)[n % 2], body, key) for n in range(30)))
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 29}
    (accepted,) = [answer for answer in answers if answer.status_code == 202]
    for answer in answers:
        if answer is not accepted:
            replayed(answer, accepted)
    assert (await first.until_ended(key))["status"] == "succeeded"
    assert len(pair.effects.calls(NAME, job=key)) == 1


async def test_an_approved_write_runs_once(pair: Stack, first: Client, second: Client) -> None:
    job = await first.accepted(ASKED)
    (request,) = await first.until_request(job)
    assert pair.effects.calls(ASKED, job=job) == []
    approver = pair.client("approver", api=1)
    shown = await approver.request(job, request)
    verdict = {"decision": "approve", "action_digest": shown["action_digest"]}
    path = f"/v1/jobs/{job}/requests/{request}/decision"
    said = await asyncio.gather(*(approver.http.post(path, json=verdict) for _ in range(10)))
    assert {answer.status_code for answer in said} <= {200, 202}
    assert (await second.until_ended(job))["status"] == "succeeded"
    assert len(pair.effects.calls(ASKED, job=job)) == 1


async def test_a_canceled_job_decides_and_sends_nothing_more(pair: Stack, first: Client, second: Client) -> None:
    job = await first.accepted(ASKED)
    (request,) = await first.until_request(job)
    answers = await asyncio.gather(*((first, second)[n % 2].cancel(job) for n in range(6)))
    assert {answer.status_code for answer in answers} <= {200, 202}
    assert len({answer.json()["cancel_requested_at"] for answer in answers}) == 1
    assert (await first.until_ended(job))["status"] == "canceled"
    approver = pair.client("approver")
    late = await approver.http.post(
        f"/v1/jobs/{job}/requests/{request}/decision",
        json={"decision": "approve", "action_digest": f"sha256:{'0' * 64}"},
    )
    assert late.status_code == 409
    assert pair.effects.calls(ASKED, job=job) == []


@pytest.mark.parametrize(
    "member",
    [
        {"version": NUL},
        {"session": NUL},
        {"plugin": NUL},
        {"initiator": {"kind": "user", "id": NUL}},
        {"initiator": {"kind": NUL, "id": "a"}},
        {"labels": {"a": NUL}},
        {"labels": {NUL: "a"}},
    ],
    ids=str,
)
async def test_a_nul_in_a_submission_is_refused_or_kept_and_never_an_outage(
    pair: Stack, first: Client, member: dict[str, object]
) -> None:
    key = fresh_key()
    answer = await submit_bytes(first, json.dumps({"plugin": NAME, "input": {}, **member}), key)
    if answer.status_code == 202:
        assert await traces(pair, key) == BOTH
        assert (await first.until_ended(key))["status"] == "succeeded"
    else:
        refused(answer, 422, "input-invalid")


async def test_an_input_with_a_nul_is_kept_to_the_byte(pair: Stack, first: Client) -> None:
    answer = await submit_bytes(first, json.dumps({"plugin": NAME, "input": {"said": "\0"}}), key := fresh_key())
    assert answer.status_code == 202
    assert (await first.until_ended(key))["status"] == "succeeded"


async def test_a_nul_in_a_reason_is_cleaned_or_refused(pair: Stack, first: Client) -> None:
    job = await first.accepted(ASKED)
    (request,) = await first.until_request(job)
    decided = await pair.client("approver").decide(job, request, "approve", reason=NUL)
    assert decided.status_code in (200, 202), decided.text
    assert (await first.until_ended(job))["status"] == "succeeded"
    withdrawal = f"/v1/plugins/{NAME}/versions/1.0.0/withdrawal"
    refused(await pair.client("operator").http.post(withdrawal, json={"reason": NUL}), 422, "input-invalid")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/a%00b",
        "/v1/jobs/a%00b/events",
        "/v1/jobs/a%00b/result",
        "/v1/jobs/a%00b/requests/r%00",
        "/v1/jobs?session=a%00b",
        "/v1/jobs?plugin=a%00b",
        "/v1/jobs?after=a%00b",
        "/v1/sessions/a%00b",
        "/v1/plugins/a%00b/versions",
        "/v1/plugins/a%00b/releases",
        "/v1/plugins/a/versions/1%00/readiness",
        "/v1/audit?after=%00",
        "/v1/operator/jobs/a%00b",
        "/v1/promotions/a%00b",
        "/v1/api-keys/a%00b",
        "/v1/grants/a%00b",
    ],
)
async def test_a_nul_in_an_address_is_refused_by_name(pair: Stack, path: str) -> None:
    for principal in ("app", "operator"):
        client = pair.client(principal)
        for method in ("GET", "POST", "DELETE"):
            answer = await client.http.request(method, path, json={} if method == "POST" else None)
            assert 400 <= answer.status_code < 500, (method, answer.text)
            assert answer.headers["Content-Type"] == "application/problem+json"


async def test_the_ledger_dies_and_comes_back(pair: Stack, first: Client, second: Client, own_server: Postgres) -> None:
    standing = fresh_key()
    receipt = await submit_bytes(first, body_with(NAME), standing)
    waiting = await first.accepted(ASKED)
    (request,) = await first.until_request(waiting)
    shown = await pair.client("approver").request(waiting, request)
    await first.until_ended(standing)
    key = fresh_key()
    own_server.kill()
    try:
        for client in (first, second):
            answers = await timed(*(submit_bytes(client, body_with(NAME), one) for one in (key, standing)))
            for answer in answers:
                assert answer.status_code in (503, 504), answer.text
                assert answer.headers["Content-Type"] == "application/problem+json"
            (ready,) = await timed(client.http.get("/readyz"))
            assert ready.status_code == 503
            assert (await client.http.get("/livez")).status_code == 200
    finally:
        own_server.start()
    for api in pair.apis:
        await pair.until_ready(api)
    replayed(await submit_bytes(second, body_with(NAME), standing), receipt)
    assert (await submit_bytes(first, body_with(NAME), key)).status_code == 202
    assert (await second.until_ended(key))["status"] == "succeeded"
    assert len(pair.effects.calls(NAME, job=key)) == 1
    said = {"decision": "approve", "action_digest": shown["action_digest"]}
    decided = await pair.client("approver").http.post(f"/v1/jobs/{waiting}/requests/{request}/decision", json=said)
    assert decided.status_code in (200, 202)
    assert (await first.until_ended(waiting))["status"] == "succeeded"
    assert len(pair.effects.calls(ASKED, job=waiting)) == 1


async def timed(*calls: Awaitable[httpx2.Response]) -> list[httpx2.Response]:
    """Their answers, all within the request clock."""
    started = time.monotonic()
    answers = await asyncio.gather(*calls)
    assert time.monotonic() - started < CLOCK_S + 2
    return answers
