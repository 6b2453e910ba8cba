"""A gateway outside development verifies by published keys alone: rotated, down, hanging, and never there at all."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import publish_brisk, refused
from tests.rig.client import Client
from tests.rig.key_server import KeyServer, SigningKey
from tests.rig.plugins import fresh_name
from tests.rig.stack import Api, Stack, free_port
from tests.rig.waiting import wait_until

EC = SigningKey("ec-1")
RSA = SigningKey("rsa-1", "RS256")
Production = Callable[..., Awaitable[Api]]


@pytest_asyncio.fixture(loop_scope="session")
async def issuer() -> AsyncGenerator[KeyServer]:
    async with KeyServer(EC, RSA) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def production(stack: Stack) -> AsyncGenerator[Production]:
    """One more gateway over the same ledger that knows no development, and where its keys are published."""
    started: list[Api] = []

    async def start(url: str, **settings: str) -> Api:
        named = {f"JOBGATE_{name}".upper(): value for name, value in settings.items()}
        api = stack.add_api({"JOBGATE_DEVELOPMENT": "false", "JOBGATE_JWKS_URL": url, **named})
        started.append(api)
        await stack.until_ready(api)
        return api

    yield start
    for api in started:
        api.stop()


async def jobs(api: Api, token: str, **headers: str) -> httpx2.Response:
    async with Client(api.url, token) as client:
        return await client.http.get("/v1/jobs", headers=headers)


async def answers(api: Api, token: str, status: int) -> None:
    """Until the gateway answers this token so."""

    async def so() -> bool:
        return (await jobs(api, token)).status_code == status

    await wait_until(so, what=f"the answer is {status}")


async def test_published_keys_let_their_callers_in_and_the_folders_key_lets_nobody(
    stack: Stack, production: Production, issuer: KeyServer, operator: Client
) -> None:
    plugin = await publish_brisk(operator, fresh_name("jwks"))
    api = await production(issuer.url)
    for key in (EC, RSA):
        async with Client(api.url, key.token("app")) as app:
            job = await app.accepted(plugin)
            assert (await app.until_ended(job))["status"] == "succeeded"
    refused(await jobs(api, stack.token("app")), 401, "unauthenticated")
    now = int(datetime.now(UTC).timestamp())
    claims: list[dict[str, Any]] = [
        {"iss": "x"},
        {"aud": "x"},
        {"exp": now - 5},
        {"exp": None},
        {"workspace": None},
        {"sub": None},
    ]
    for wrong in claims:
        refused(await jobs(api, EC.token(**wrong)), 401, "unauthenticated")
    refused(await jobs(api, SigningKey("ec-1").token()), 401, "unauthenticated")


async def test_in_development_both_are_let_in(stack: Stack, issuer: KeyServer, production: Production) -> None:
    api = await production(issuer.url, development="true")
    for token in (EC.token(), stack.token("app")):
        assert (await jobs(api, token)).status_code == 200


async def test_rotated_keys_are_taken_and_refused_within_the_refresh_time(
    issuer: KeyServer, production: Production
) -> None:
    api = await production(issuer.url, jwks_refresh_s="0.3")
    old, new = EC.token(), SigningKey("ec-2")
    await answers(api, old, 200)
    issuer.publish(new)
    await answers(api, new.token(), 200)
    await answers(api, old, 401)


async def test_a_new_key_is_looked_for_without_waiting_for_the_refresh(
    issuer: KeyServer, production: Production
) -> None:
    api = await production(issuer.url, jwks_refresh_s="3600")
    await answers(api, EC.token(), 200)
    new = SigningKey("ec-2")
    issuer.publish(EC, new)
    assert (await jobs(api, new.token())).status_code == 200


async def test_invented_key_ids_cause_no_fetches(issuer: KeyServer, production: Production) -> None:
    api = await production(issuer.url, jwks_refresh_s="3600")
    await answers(api, EC.token(), 200)
    async with Client(api.url, None) as client:
        forged = [{"Authorization": f"Bearer {EC.token(headers={'kid': f'x-{number}'})}"} for number in range(100)]
        given = await asyncio.gather(*(client.http.get("/v1/jobs", headers=headers) for headers in forged))
    assert {response.status_code for response in given} == {401}
    assert issuer.fetches == 2  # the one at the start, and one for all of them


async def test_known_keys_are_kept_while_their_publisher_is_down(issuer: KeyServer, production: Production) -> None:
    api = await production(issuer.url, jwks_refresh_s="0.2")
    await answers(api, EC.token(), 200)
    issuer.down = True
    before = issuer.fetches
    await wait_until(lambda: issuer.fetches >= before + 3, what="the gateway tries again")
    assert (await jobs(api, EC.token())).status_code == 200
    refused(await jobs(api, SigningKey("ec-9").token()), 401, "unauthenticated")


async def test_without_any_key_yet_nobody_can_tell_and_api_keys_go_on(operator: Client, production: Production) -> None:
    api = await production(f"http://127.0.0.1:{free_port()}/keys.json")
    document = refused(await jobs(api, EC.token()), 503, "ledger-unavailable")
    assert document["retry_after_s"] == 1
    refused(await jobs(api, "no-token"), 401, "unauthenticated")
    new = await operator.post("/v1/api-keys", {"principal": "app"}, expect=201)
    assert (await jobs(api, new["key"])).status_code == 200


async def test_a_publisher_that_hangs_is_waited_for_within_the_request_clock(
    issuer: KeyServer, production: Production
) -> None:
    issuer.released.clear()
    api = await production(issuer.url)
    soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    refused(await jobs(api, EC.token(), **{"Jobgate-Http-Deadline": soon}), 504, "http-deadline-exceeded")
    refused(await jobs(api, EC.token()), 503, "ledger-unavailable")
    issuer.released.set()
    await answers(api, EC.token(), 200)


@pytest.mark.parametrize("url", ["http://keys.example.com/keys", "ftp://127.0.0.1/keys", "keys", "https://"])
async def test_keys_that_anybody_could_change_on_their_way_are_a_usage_error(stack: Stack, url: str) -> None:
    api = stack.add_api({"JOBGATE_JWKS_URL": url})
    assert api.wait() == 1
    assert "JOBGATE_JWKS_URL" in api.output
    assert url not in api.output
