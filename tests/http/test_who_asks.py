"""Every route of the OpenAPI document, walked: no credential, no answer; and a foreign id is an unknown one, to the
byte and in time. A route that is added is walked with the others; a new kind of id must be named here."""

import json
import random
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute

from gateway.app import create_app
from gateway.telemetry import start_telemetry
from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import give_grant, publish_brisk
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.key_server import SigningKey
from tests.rig.stack import Stack

OPEN = frozenset({"/livez", "/readyz", "/v1/callbacks/{token}", "/v1/artifacts/{artifact_id}/content"})
"""The routes that ask nobody who they are; a callback's token and a signed address are their own proof. The document
itself is one more."""
STRANGE = "x-unknown"
WORKSPACE = "walls-abroad"
ROUNDS = 40
TRIES = 4
"""What differs differs every time; noise does not."""
ALIKE = (0.6, 1.6)
"""Bounds of the ratio of medians. They leave room for a busy machine; one more look-up in the engine is beyond."""


@dataclass(frozen=True)
class Operation:
    id: str
    method: str
    path: str

    def at(self, ids: Mapping[str, str]) -> str:
        return self.path.format_map(ids)

    @property
    def somewhere(self) -> str:
        return self.path.replace("{", "").replace("}", "")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def operations(stack: Stack) -> list[Operation]:
    async with Client(stack.apis[0].url, stack.token("app")) as app:
        paths: Json = (await app.get("/v1/openapi.json"))["paths"]
    return [
        Operation(one["operationId"], method.upper(), path) for path, of in paths.items() for method, one in of.items()
    ]


# ---- no credential, no answer


def bad_credentials(stack: Stack) -> dict[str, str | None]:
    good = stack.token("operator")
    head, claims, _ = good.split(".")
    return {
        "none": None,
        "empty": "",
        "no token": "Bearer",
        "basic": "Basic b3BlcmF0b3I6b3BlcmF0b3I=",
        "garbage": "Bearer garbage",
        "unsigned": f"Bearer {head}.{claims}.",
        "another signer": "Bearer " + SigningKey("ec-1").token("operator"),
        "unknown API key": f"Bearer jgk_{'0' * 24}_{'0' * 64}",
        "no API key": "Bearer jgk_",
    }


async def test_no_route_answers_without_a_credential_that_proves_somebody(
    stack: Stack, operations: list[Operation]
) -> None:
    async with Client(stack.apis[0].url, None) as nobody:
        for operation in operations:
            for name, header in bad_credentials(stack).items():
                headers = {} if header is None else {"Authorization": header}
                response = await nobody.http.request(operation.method, operation.somewhere, headers=headers)
                if operation.path in OPEN:
                    assert response.status_code != 401, operation
                    continue
                assert problem(response) == (401, "unauthenticated"), f"{operation} with {name}"
                assert response.headers["WWW-Authenticate"] == 'Bearer realm="jobgate"'
        assert (await nobody.http.get("/v1/openapi.json")).status_code == 200
    assert len(operations) > 25


def test_no_route_is_served_that_the_document_does_not_have(stack: Stack) -> None:
    telemetry = start_telemetry("api", stack.settings)
    try:
        app = create_app(stack.settings, telemetry)
        inside: list[Any] = [one for of in app.routes for one in getattr(of, "original_router", app).routes]
        routes = [route for route in inside if isinstance(route, APIRoute)]
        served = {(method, route.path_format) for route in routes for method in route.methods or ()}
        told = {(method.upper(), path) for path, of in app.openapi()["paths"].items() for method in of}
        others = {route.path for route in inside if not isinstance(route, APIRoute) and hasattr(route, "path")}
    finally:
        telemetry.close()
    assert served == told
    assert others == {"/v1/openapi.json"}


# ---- a foreign id is an unknown one


@dataclass(frozen=True)
class Ids:
    """What an id of the path is called abroad, and what nobody calls anything. `of`: by name, or by operation."""

    foreign: dict[str, str]
    unknown: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ids(stack: Stack) -> Ids:
    """A whole workspace next to the one that asks: a plugin, a job that waits for a person, its session, a key."""
    operator = stack.client("operator")
    await operator.post("/v1/workspaces", {"name": WORKSPACE, "admin": "walls-boss"}, expect=201)
    await give_grant(stack, "walls-all", ("*",), ("*",))
    boss = stack.client("walls-boss", workspace=WORKSPACE)
    plugin = await waiting_plugin(stack, boss)
    job, request = await waiting_job(boss, plugin, session="walls-session")
    key = await boss.post("/v1/api-keys", {"principal": "walls-boss"}, expect=201)
    [grant] = (await boss.get("/v1/grants"))["data"]
    down = {"to": "live_canary", "reason": "for a job that is held"}
    moved = await boss.post(f"/v1/plugins/{plugin}/versions/1.0.0/demotions", down)
    held = await boss.accepted(plugin)
    await boss.until_event(held, "job.held")
    order: dict[str, Any] = {"job_id": held, "allowed_tools": [], "max_steps": 1, "expires_in_seconds": 600}
    packet = await boss.post("/v1/packets", order, expect=201)
    uploaded = await boss.http.post("/v1/artifacts", content=b"bytes")
    assert uploaded.status_code == 201, uploaded.text
    return Ids(
        foreign={
            "job_id": job,
            "request_id": request,
            "session": "walls-session",
            "name": plugin,
            "version": "1.0.0",
            "grant_id": grant["grant_id"],
            "key_id": key["key_id"],
            "promotion_id": moved["promotion_id"],
            "packet_id": packet["packet_id"],
            "effect_id": "eff_" + "1" * 32,
            "artifact_id": uploaded.json()["artifact_id"],
            "principal": "walls-boss",
        },
        unknown={
            "job_id": fresh_key(),
            "request_id": "r1-000000",
            "session": "walls-strange",
            "name": "walls-0",
            "version": "1.0.0",
            "grant_id": "grant_" + "0" * 32,
            "key_id": "0" * 24,
            "promotion_id": "promo_" + "0" * 32,
            "packet_id": "packet_" + "0" * 32,
            "effect_id": "eff_" + "0" * 32,
            "artifact_id": "art_" + "0" * 32,
            "principal": "walls-none",
        },
    )


LISTS = frozenset({"listReleases"})
"""They answer an unknown id with an empty list."""
DIGEST = "sha256:" + "0" * 64
BODIES: dict[str, Any] = {
    "decide": {"decision": "approve", "action_digest": DIGEST},
    "settleEffect": {"answer": "happened"},
    "withdrawVersion": {"reason": "a test"},
    "deployPlugin": {"plugin": "{name}", "model": "scripted:script.yaml"},
    "setRelease": {"version": "1.0.0"},
    "promoteVersion": {"to": "live", "break_glass": {"reason": "a test"}},
    "demoteVersion": {"to": "blocked_noop", "reason": "a test"},
    "simulateVersion": {"plugin": "{name}", "input": {}},
    "retryJob": {},
}


async def ask(client: Client, operation: Operation, ids: Mapping[str, str]) -> httpx2.Response:
    named = {**ids, "name": ids["principal"]} if operation.id == "revokePrincipal" else ids
    body = json.dumps(BODIES.get(operation.id)).replace("{name}", ids["name"])
    headers = {"X-Request-Id": "same", "Content-Type": "application/json", "Idempotency-Key": fresh_key()}
    return await client.http.request(operation.method, operation.at(named), content=body, headers=headers)


def of_an_id(operations: list[Operation]) -> list[Operation]:
    return [operation for operation in operations if "{" in operation.path and operation.path not in OPEN]


async def test_a_foreign_id_is_an_unknown_one_to_the_byte(stack: Stack, operations: list[Operation], ids: Ids) -> None:
    asking = stack.client("walls-all")
    walked = of_an_id(operations)
    for operation in walked:
        foreign, unknown = await ask(asking, operation, ids.foreign), await ask(asking, operation, ids.unknown)
        assert foreign.status_code == 404 or operation.id in LISTS, f"{operation}: {foreign.text}"
        assert shape(foreign) == shape(unknown), operation
    assert len(walked) > 12
    # The mutant: to those whose it is, the same question has another answer, and nothing above has changed it.
    boss = stack.client("walls-boss", workspace=WORKSPACE)
    for operation in (one for one in walked if one.method == "GET" and not one.path.endswith(("/events", "/result"))):
        assert (await ask(boss, operation, ids.foreign)).status_code in (200, 302), operation
    assert (await boss.status(ids.foreign["job_id"]))["status"] == "waiting_for_human"


async def test_a_foreign_request_of_an_own_job_is_an_unknown_one(
    stack: Stack, operations: list[Operation], ids: Ids, operator: Client
) -> None:
    job = await stack.client("app").accepted(await publish_brisk(operator, "walls-own"))
    await stack.client("app").until_ended(job)
    asking = stack.client("walls-all")
    for operation in (one for one in operations if "{request_id}" in one.path):
        foreign, unknown = [await ask(asking, operation, {**one, "job_id": job}) for one in (ids.foreign, ids.unknown)]
        assert problem(foreign)[0] == 404
        assert shape(foreign) == shape(unknown)


@pytest.mark.alone
@pytest.mark.parametrize("operation_id", ["getJob", "getRequest", "getSession", "decide", "cancelJob", "inspectJob"])
async def test_a_foreign_id_takes_as_long_as_an_unknown_one(
    stack: Stack, operations: list[Operation], ids: Ids, operation_id: str
) -> None:
    [operation] = [one for one in operations if one.id == operation_id]
    asking = stack.client("walls-all")
    ratios: list[float] = []
    while not any(ALIKE[0] < ratio < ALIKE[1] for ratio in ratios):
        ratio = await ratio_of(
            lambda: ask(asking, operation, ids.foreign),
            lambda: ask(asking, operation, {**ids.unknown, "job_id": fresh_key(), "session": secrets.token_hex(6)}),
        )
        ratios.append(ratio)
        assert len(ratios) < TRIES, f"{operation}: {ratios}"


@pytest.mark.alone
async def test_the_measure_sees_one_question_to_the_engine(stack: Stack, ids: Ids) -> None:
    """The mutant of the one above: a read that asks a worker stands out from one that does not."""
    boss = stack.client("walls-boss", workspace=WORKSPACE)
    path = f"/v1/jobs/{ids.foreign['job_id']}"
    ratio = await ratio_of(
        lambda: boss.http.get(path, params={"after": "0"}), lambda: boss.http.get(f"/v1/jobs/{STRANGE}")
    )
    assert ratio > ALIKE[1]


async def ratio_of(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Of the medians, over rounds that ask both in a random order, so that what slows the machine slows both."""
    took: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(ROUNDS):
        pair = [(0, one), (1, other)]
        random.shuffle(pair)
        for which, question in pair:
            began = time.perf_counter()
            await question()
            took[which].append(time.perf_counter() - began)
    return statistics.median(took[0]) / statistics.median(took[1])


def shape(response: httpx2.Response) -> tuple[int, bytes, dict[str, str]]:
    changing = {"date", "traceparent"}
    headers = {name: value for name, value in response.headers.items() if name.lower() not in changing}
    return response.status_code, response.content, headers
