"""Every malformed request has its named answer, whole, without an echo, and leaves nothing.

Sources: cases.md B02, B40, B44, B50; RFC 9457. What a good body survives: test_admission_values.py.
"""

import json
from typing import Any

import pytest
import pytest_asyncio

from tests.http.submissions import (
    CANARY,
    NONE,
    body_with,
    publish_brisk,
    refused,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Stack
from tests.rig.wire_client import speak

LIMIT = 256 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "body-brisk")


def nested(depth: int) -> str:
    """A sound body whose deepest value is inside `depth` arrays and objects."""
    inner = depth - 2
    return f'{{"plugin": "body-brisk", "input": {{"{CANARY}": {"[" * inner}{"]" * inner}}}}}'


def raw(value: str) -> str:
    return f'{{"plugin": "body-brisk", "input": {{"canary": "{CANARY}", "n": {value}}}}}'


NOT_JSON = {
    "empty": "",
    "white space": " \n",
    "cut": '{"plugin": "body-brisk", "input": {"canary": "' + CANARY,
    "single quotes": "{'plugin': 'body-brisk'}",
    "trailing comma": raw("1")[:-2] + ",}}",
    "comment": raw("1 /* no */"),
    "two values": raw("1") + "{}",
    "null byte": raw("1") + "\x00",
    "byte order mark": "\ufeff" + raw("1"),
    "line end in a text": raw(f'"{CANARY}\n"'),
    "bad escape": raw('"\\x"'),
    "NaN": raw("NaN"),
    "Infinity": raw("Infinity"),
    "-Infinity": raw("-Infinity"),
    "nan": raw("nan"),
    "1e999": raw("1e999"),
    "-1e999": raw("-1e999"),
    "2^53": raw("9007199254740992"),
    "-2^53": raw("-9007199254740992"),
    "2^53 with a fraction": raw("9007199254740992.0"),
    "2^53 with an exponent": raw("9007199254740992e0"),
    "2^63": raw("9223372036854775808"),
    "400 digits": raw("1" * 400),
    "10,000 digits": raw("1" * 10_000),
    "400 digits after the point": raw("0." + "1" * 400),
    "too many digits": raw("0.12345678901234567890"),
    "too small": raw("1e-400"),
    "leading zero": raw("01"),
    "plus sign": raw("+1"),
    "hexadecimal": raw("0x10"),
    "bare point": raw("1."),
    "duplicate key": f'{{"plugin": "body-brisk", "plugin": "body-brisk", "input": {{"c": "{CANARY}"}}}}',
    "duplicate key inside": raw(f'{{"{CANARY}": 1, "{CANARY}": 1}}'),
    "duplicate key by escape": raw('{"a": 1, "\\u0061": 2}'),
    "duplicate input": f'{{"plugin": "body-brisk", "input": {{}}, "input": {{"c": "{CANARY}"}}}}',
    "lone high surrogate": raw('"\\ud800"'),
    "lone low surrogate": raw('"\\udc00 x"'),
    "surrogates the wrong way round": raw('"\\udc00\\ud800"'),
    "lone surrogate as a key": raw('{"\\ud800": 1}'),
    "depth 65": nested(65),
    "depth 10,000": nested(10_000),
    "a list": f'["{CANARY}"]',
    "a text": f'"{CANARY}"',
    "a number": "1",
    "null": "null",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_body_that_means_nothing_or_two_things_is_input_invalid(
    stack: Stack, app: Client, brisk: str, body: str
) -> None:
    key = fresh_key()
    refused(await submit_bytes(app, body, key), 422, "input-invalid")
    assert await traces(stack, key) == NONE


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b'{"plugin": "\xc3("}', "{}".encode("utf-16"), b"\xed\xa0\x80"])
async def test_body_that_is_not_utf8_is_input_invalid(app: Client, body: bytes) -> None:
    refused(await submit_bytes(app, body), 422, "input-invalid")


KNOWN = frozenset(
    {"plugin", "version", "input", "mode", "timeout_seconds", "on_blocked", "session", "initiator", "budget", "labels"}
)
MEMBERS: dict[str, dict[str, Any]] = {
    "unknown field": {CANARY: 1},
    "api's field in the wrong place": {"max_steps": 1},
    "null labels": {"labels": None},
    "17 labels": {"labels": {f"k{n}": "v" for n in range(17)}},
    "long label key": {"labels": {"k" * 65: CANARY}},
    "long label value": {"labels": {"k": CANARY * 20}},
    "300 characters that are not ASCII": {"labels": {"titel": "ä" * 300}},
    "empty label key": {"labels": {"": CANARY}},
    "null label": {"labels": {"k": None}},
    "label that is a number": {"labels": {"k": 1}},
    "mode": {"mode": CANARY},
    "null mode": {"mode": None},
    "on_blocked": {"on_blocked": CANARY},
    "plugin": {"plugin": CANARY + "/.."},
    "long plugin": {"plugin": "p" * 61},
    "plugin in capitals": {"plugin": "Body-Brisk"},
    "input as text": {"input": CANARY},
    "input as a list": {"input": [CANARY]},
    "null input": {"input": None},
    "empty version": {"version": ""},
    "timeout as text": {"timeout_seconds": "60"},
    "timeout with a fraction": {"timeout_seconds": 0.5},
    "timeout that is true": {"timeout_seconds": True},
    "session": {"session": CANARY + " "},
    "initiator": {"initiator": CANARY},
    "initiator with more": {"initiator": {"kind": "user", "id": "1", CANARY: 1}},
    "budget with more": {"budget": {CANARY: 1}},
    "budget of nothing": {"budget": {"max_steps": 0}},
    "money as a number": {"budget": {"max_cost_usd": 0.5}},
    "money with an exponent": {"budget": {"max_cost_usd": "1e3"}},
}


@pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS)
async def test_fault_of_a_field_is_input_invalid(
    stack: Stack, app: Client, brisk: str, members: dict[str, Any]
) -> None:
    key = fresh_key()
    body = json.dumps({**json.loads(body_with(brisk)), **members})
    document = refused(await submit_bytes(app, body, key), 422, "input-invalid")
    field = next(iter(members))
    assert document["detail"].startswith(f"{field}: " if field in KNOWN else "The body: ")
    assert await traces(stack, key) == NONE


# ---- size


async def test_body_over_the_limit_is_413_by_length_and_by_chunks(stack: Stack, app: Client, brisk: str) -> None:
    url, token = stack.apis[0].url, app.token
    for size in (LIMIT + 1, 512 * 1024, 1_900_000, 2_100_000, 5_000_000):
        body = padded(brisk, size)
        for chunked in (False, True):
            key = fresh_key()
            status, document = await speak(
                url, token, "POST", "/v1/jobs", body, {"Idempotency-Key": key}, chunked=chunked
            )
            assert (status, document["code"]) == (413, "payload-too-large")
            assert CANARY not in json.dumps(document)
            assert await traces(stack, key) == NONE
    # The mutant: a byte less is read.
    assert len(padded(brisk, LIMIT)) == LIMIT
    for chunked in (False, True):
        status, receipt = await speak(
            url, token, "POST", "/v1/jobs", padded(brisk, LIMIT), {"Idempotency-Key": fresh_key()}, chunked=chunked
        )
        assert (status, receipt["status"]) == (202, "queued")


def padded(plugin: str, size: int) -> bytes:
    short = body_with(plugin, labels={"pad": ""})
    return (short + " " * (size - len(short))).encode()


async def test_many_small_fields_are_measured_too(stack: Stack, app: Client, brisk: str) -> None:
    many = {f"k{number}": CANARY for number in range(20_000)}
    key = fresh_key()
    refused(await submit_bytes(app, json.dumps({"plugin": brisk, "input": many}), key), 413, "payload-too-large")
    assert await traces(stack, key) == NONE
    few = {f"k{number}": number for number in range(10_000)}
    assert (await submit_bytes(app, json.dumps({"plugin": brisk, "input": few}), key)).status_code == 202


# ---- media type, method, address, parameters


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", "", "json"]
)
async def test_other_media_types_are_415(stack: Stack, app: Client, brisk: str, kind: str) -> None:
    key = fresh_key()
    refused(await submit_bytes(app, body_with(brisk), key, Content_Type=kind), 415, "unsupported-media-type")
    assert await traces(stack, key) == NONE


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON ; charset=utf-8", "application/vnd.x+json"])
async def test_json_media_types_are_taken(app: Client, brisk: str, kind: str) -> None:
    assert (await submit_bytes(app, body_with(brisk), Content_Type=kind)).status_code == 202


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET, POST"),
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("PATCH", "/v1/jobs/k", "GET"),
        ("GET", "/v1/jobs/k/cancel", "POST"),
        ("GET", "/v1/plugins", "POST"),
        ("POST", "/v1/plugins/p/release", "PUT"),
        ("TRACE", "/v1/jobs", "GET, POST"),
    ],
)
async def test_other_methods_are_405(app: Client, method: str, path: str, allowed: str) -> None:
    response = await app.http.request(method, path, content=CANARY.encode())
    refused(response, 405, "method-not-allowed")
    assert response.headers["Allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/jobs", f"/v1/{CANARY}", "/v1/jobs/", "/v1/jobs/k/", "/v1//jobs", "/v1/jobs/a%2Fb"]
)
async def test_other_addresses_are_404(app: Client, path: str) -> None:
    refused(await app.http.get(path), 404, "not-found")


async def test_unknown_query_parameters_are_input_invalid(stack: Stack, app: Client, brisk: str) -> None:
    key = fresh_key()
    response = await submit_bytes(app, body_with(brisk), key, path=f"/v1/jobs?{CANARY}=1")
    refused(response, 422, "input-invalid")
    assert await traces(stack, key) == NONE
    job = await app.accepted(brisk)
    for path in (f"/v1/jobs/{job}?{CANARY}=1", f"/v1/jobs?after=&{CANARY}", f"/v1/jobs/{job}?limit={CANARY}&after=0"):
        assert (await app.http.get(path)).status_code in (400, 422)
    refused(await app.http.post(f"/v1/jobs/{job}/cancel?{CANARY}=1"), 422, "input-invalid")
    refused(await app.http.get(f"/v1/jobs/{job}?{CANARY}=1"), 422, "input-invalid")
    refused(await app.http.get(f"/v1/jobs/{job}?after={CANARY}"), 400, "cursor-invalid")
    refused(await app.http.get(f"/v1/jobs/{job}?after=0&limit={CANARY}"), 422, "input-invalid")
    refused(await app.http.get(f"/v1/jobs?status={CANARY}"), 422, "input-invalid")
    for text in ("0", "501", "-1", "1.5", "", "1e2", "١"):
        response = await app.http.get(f"/v1/jobs/{job}", params={"after": "0", "limit": text})
        refused(response, 422, "input-invalid")


async def test_malformed_http_is_refused_and_the_gateway_serves_on(stack: Stack, app: Client, brisk: str) -> None:
    url = stack.apis[0].url
    for headers in ({"Transfer-Encoding": "gzip"}, {"Content-Length ": "2"}, {"X-Request-Id": "a\x00b"}):
        # What is not HTTP reaches no route; the server says so in plain text and holds nothing.
        status, text = await speak(url, app.token, "POST", "/v1/jobs", body_with(brisk).encode(), headers)
        assert 400 <= status < 500
        assert CANARY not in str(text)
    assert (await app.submit(brisk)).status_code == 202
