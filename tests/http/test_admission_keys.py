"""The Idempotency-Key: its alphabet, its quotes, and that it is the job's id, verbatim, in every route."""

from urllib.parse import quote

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import (
    BOTH,
    CANARY,
    NONE,
    body_with,
    publish_brisk,
    refused,
    replayed,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "keys-brisk")


@pytest.mark.parametrize("key", ["k{0}", "K{0}", "0{0}", "a.b_c~d-e{0}", "..{0}", "~{0}~", "-{0}-", "x" * 190 + "{0}"])
async def test_sound_key_works_verbatim_in_every_route(stack: Stack, app: Client, brisk: str, key: str) -> None:
    key = key.format(fresh_key())[-200:]
    response = await submit_bytes(app, body_with(brisk), key)
    assert (response.status_code, response.json()["job_id"]) == (202, key)
    assert response.headers["Location"] == f"/v1/jobs/{key}"
    assert quote(key, safe="~") == key
    await app.until_ended(key)
    assert await traces(stack, key) == BOTH
    assert (await app.get(f"/v1/jobs/{key}/result")) == {"message": "Done."}
    assert (await app.streamed(key))[-1].type == "job.succeeded"
    assert (await app.cancel(key)).status_code == 200
    assert problem_code(await app.http.get(f"/v1/jobs/{key}/requests/r1-000000")) == "not-found"
    listed = (await app.get("/v1/jobs", params={"plugin": brisk, "limit": 1}))["data"][0]
    assert (listed["job_id"], listed["result_url"]) == (key, f"/v1/jobs/{key}/result")


def problem_code(response: httpx2.Response) -> str:
    return response.json()["code"]


async def test_quotes_around_a_key_are_taken_off(app: Client, brisk: str) -> None:
    key, body = fresh_key(), body_with(brisk)
    first = await submit_bytes(app, body, f'"{key}"')
    assert (first.status_code, first.json()["job_id"]) == (202, key)
    replayed(await submit_bytes(app, body, key), first)


async def test_keys_that_differ_in_case_are_two_jobs(app: Client, brisk: str) -> None:
    key, body = fresh_key(), body_with(brisk)
    assert [(await submit_bytes(app, body, one)).status_code for one in (key, key.upper())] == [202, 202]


BAD_KEYS = [
    "", '""', '"', "a" * 201, "a" * 1000, ".", "..", "...", "-_~.", "a/b", "a/..", "../a", "a%2Fb", "a%b", "a#b", "a?b",
    "a b", "a:b", "a@b", "a'b", 'a"b', "a,b", "a;b", "a\\b", "ä", "a\u00e4", "a\tb", CANARY + "/", "(", "a|b", "a=b",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
async def test_key_outside_its_alphabet_is_named(app: Client, brisk: str, key: str) -> None:
    headers = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", key.encode("latin-1"))]
    response = await app.http.post("/v1/jobs", content=body_with(brisk).encode(), headers=headers)
    refused(response, 400, "idempotency-key-invalid")


async def test_key_is_needed_once(stack: Stack, app: Client, brisk: str) -> None:
    content = ("Content-Type", "application/json")
    body, key = body_with(brisk).encode(), fresh_key()
    refused(await app.http.post("/v1/jobs", content=body, headers=[content]), 400, "idempotency-key-missing")
    for other in (key, fresh_key()):
        twice = [content, ("Idempotency-Key", key), ("Idempotency-Key", other)]
        refused(await app.http.post("/v1/jobs", content=body, headers=twice), 400, "idempotency-key-invalid")
    in_the_body = body_with(brisk, idempotency_key=key)
    refused(await submit_bytes(app, in_the_body, key), 422, "input-invalid")
    assert await traces(stack, key) == NONE


async def test_refused_submission_takes_no_key(stack: Stack, app: Client, brisk: str) -> None:
    key = fresh_key()
    for body, status, code in (
        ("{", 422, "input-invalid"),
        (body_with("no-such-plugin"), 404, "plugin-unknown"),
        (body_with(brisk, timeout_seconds=0), 422, "deadline-invalid"),
        (body_with(brisk, budget={"max_steps": 10**6}), 422, "limit-exceeded"),
    ):
        refused(await submit_bytes(app, body, key), status, code)
        assert await traces(stack, key) == NONE
    assert (await submit_bytes(app, body_with(brisk), key)).status_code == 202
    assert await traces(stack, key) == BOTH
