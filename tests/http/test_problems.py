"""Errors of the served API: one shape for all of them, on every address, and a document that says so."""

import json

import pytest

from tests.http.test_who_asks import OPEN
from tests.rig.client import Client, Json, problem
from tests.rig.stack import Stack

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def document(client: Client) -> Json:
    return await client.get("/v1/openapi.json")


async def test_every_address_wants_a_credential(stack: Stack, app: Client) -> None:
    paths = (await document(app))["paths"]
    async with Client(stack.apis[0].url, None) as nobody:
        for path, operations in paths.items():
            if path in OPEN:
                continue
            for method in operations:
                response = await nobody.http.request(method.upper(), path.replace("{", "").replace("}", ""))
                assert problem(response) == (401, "unauthenticated"), f"{method} {path}"
                assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_every_address_names_its_methods_and_refuses_the_others(app: Client) -> None:
    for path, operations in (await document(app))["paths"].items():
        response = await app.http.request("PATCH", path.replace("{", "").replace("}", ""))
        assert problem(response) == (405, "method-not-allowed")
        assert response.headers["Allow"] == ", ".join(sorted(method.upper() for method in operations))


async def test_every_address_refuses_a_query_parameter_that_it_does_not_have(app: Client) -> None:
    for path, operations in (await document(app))["paths"].items():
        for method in operations:
            address = path.replace("{", "").replace("}", "") + "?canary=canary-9c1"
            response = await app.http.request(method.upper(), address)
            assert problem(response) == (422, "input-invalid"), f"{method} {path}"
            assert "canary" not in response.text


async def test_a_query_parameter_that_comes_twice_is_refused(app: Client) -> None:
    for query in ("limit=5&limit=5", "limit=5&limit=6", "limit=5&limit="):
        assert problem(await app.http.get(f"/v1/jobs?{query}")) == (422, "input-invalid")


@pytest.mark.parametrize("credential", ["", "Bearer", "Bearer x.y.z", "Basic YTpi", "Bearer canary-token-aa"])
async def test_a_bad_credential_is_one_and_the_same_refusal(stack: Stack, credential: str) -> None:
    async with Client(stack.apis[0].url, None) as nobody:
        response = await nobody.http.get("/v1/jobs", headers={"Authorization": credential})
    assert problem(response) == (401, "unauthenticated")
    assert "canary" not in response.text


async def test_an_address_that_is_none_is_a_problem(app: Client) -> None:
    for path in ("/", "/v1", "/v1/jobs/", "/docs", "/redoc", "/openapi.json", "/v2/jobs", "/v1/jobs/a/b"):
        assert problem(await app.http.get(path)) == (404, "not-found")


async def test_a_body_that_is_not_json_is_named(app: Client, approver: Client) -> None:
    address = "/v1/jobs/a/requests/r1-000000/decision"
    plain = await approver.http.post(address, content=b"approve", headers={"Content-Type": "text/plain"})
    assert problem(plain) == (415, "unsupported-media-type")
    for body in (b"", b"{", b"[]", b"null", b'{"decision":"approve","decision":"reject"}', b"\xff", b"NaN"):
        response = await approver.http.post(address, content=body, headers={"Content-Type": "application/json"})
        assert problem(response) == (422, "input-invalid")


@pytest.mark.parametrize("size", [300_000, 2_100_000, 5_000_000])
async def test_an_oversize_body_is_refused_and_its_sender_hears_it(app: Client, size: int) -> None:
    response = await app.http.post("/v1/jobs", content=b'{"x":"' + b"x" * size, headers={"Idempotency-Key": "big"})
    assert problem(response) == (413, "payload-too-large")


async def test_request_ids_and_traces_come_back(app: Client) -> None:
    given = {"X-Request-Id": "order-17", "traceparent": TRACE}
    for path in ("/v1/jobs", "/v1/jobs/nothing", "/livez", "/nothing"):
        response = await app.http.get(path, headers=given)
        assert {name: response.headers[name] for name in given} == given


async def test_the_document_is_complete(app: Client) -> None:
    described = await document(app)
    assert described["openapi"].startswith("3.1")
    ids = [operation["operationId"] for item in described["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)
    schemas = set(described["components"]["schemas"])
    text = json.dumps(described)
    assert {ref.split('"')[0] for ref in text.split('"#/components/schemas/')[1:]} <= schemas
    for path, item in described["paths"].items():
        for operation in item.values():
            assert "500" in operation["responses"], path
            assert ("401" in operation["responses"]) is (path not in OPEN)
            for status, response in operation["responses"].items():
                assert "X-Request-Id" in response["headers"]
                assert status < "400" or list(response["content"]) == ["application/problem+json"]
