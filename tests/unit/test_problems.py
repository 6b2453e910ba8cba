"""The envelope and the problems around any route: a small app with routes that misbehave, served in this process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator

import httpx2
import pytest
import pytest_asyncio
from fastapi import Depends, FastAPI, Request
from opentelemetry.sdk.trace import TracerProvider
from starlette.requests import ClientDisconnect
from structlog.testing import capture_logs

from facade.clock import move_clock
from gateway.envelope import BODY_LIMIT, Envelope
from gateway.places import PLACE
from gateway.problems import install_problems
from gateway.settings import load_settings
from gateway.telemetry import Telemetry
from tests.rig.client import problem
from tests.rig.waiting import wait_until
from workflows.contract.errors import PROBLEMS, ProblemCode, Refused

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "canary-5f0c"


class Seat:
    """A place, and how often it was given back."""

    given_back = 0

    def leave(self) -> None:
        self.given_back += 1


async def seated(request: Request) -> None:
    request.scope[PLACE] = request.app.state.seat = Seat()


def misbehaving(telemetry: Telemetry) -> FastAPI:
    app = FastAPI(redirect_slashes=False, dependencies=[Depends(seated)])

    @app.get("/things")
    async def things(size: int = 1) -> dict[str, int]:
        return {"size": size}

    @app.post("/things")
    async def take(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.get("/crash")
    async def crash() -> None:
        raise ZeroDivisionError(CANARY)

    @app.get("/left")
    async def left() -> None:
        raise ClientDisconnect

    @app.get("/hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.get("/patient")
    async def patient(request: Request) -> dict[str, bool]:
        move_clock(request.scope, None)
        await asyncio.sleep(0.3)
        return {"done": True}

    @app.get("/refuse/{code}")
    async def refuse(code: ProblemCode) -> None:
        raise Refused(code, "No.", retry_after_s=7 if PROBLEMS[code].retryable else None, missing=["a"])

    install_problems(app)
    app.add_middleware(Envelope, settings=load_settings(http_deadline_s=0.2), telemetry=telemetry)
    return app


@pytest.fixture
def served() -> Generator[FastAPI]:
    provider = TracerProvider(shutdown_on_exit=False)
    telemetry = Telemetry(provider=provider, tracer=provider.get_tracer("test"))
    yield misbehaving(telemetry)
    telemetry.close()


@pytest_asyncio.fixture(loop_scope="session")
async def http(served: FastAPI) -> AsyncGenerator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=served)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_a_crash_is_an_internal_problem_that_tells_nothing(http: httpx2.AsyncClient) -> None:
    response = await http.get("/crash")
    assert problem(response) == (500, "internal")
    assert CANARY not in response.text


async def test_a_crash_is_logged_and_a_client_who_left_is_none(http: httpx2.AsyncClient) -> None:
    with capture_logs() as lines:
        await http.get("/crash")
    assert [line["event"] for line in lines] == ["a request crashed"]
    with capture_logs() as lines, pytest.raises(AssertionError):  # nothing is answered, which this client can not take
        await http.get("/left")
    assert lines == []


@pytest.mark.parametrize(
    "path", ["/things", "/things?size=x", "/crash", "/left", "/hang", "/patient", "/refuse/too-many-requests"]
)
async def test_a_place_is_given_back_once_however_a_request_ends(
    served: FastAPI, http: httpx2.AsyncClient, path: str
) -> None:
    with contextlib.suppress(AssertionError):  # of this client, where nothing is answered
        await http.get(path)
    assert served.state.seat.given_back == 1


async def test_a_place_is_given_back_when_the_server_ends_the_request(
    served: FastAPI, http: httpx2.AsyncClient
) -> None:
    asking = asyncio.create_task(http.get("/patient"))
    seat = await wait_until(lambda: getattr(served.state, "seat", None))
    assert seat.given_back == 0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert seat.given_back == 1


@pytest.mark.parametrize("code", ProblemCode)
async def test_every_refusal_is_a_complete_problem(http: httpx2.AsyncClient, code: ProblemCode) -> None:
    response = await http.get(f"/refuse/{code}")
    assert problem(response) == (PROBLEMS[code].status, code)
    document = response.json()
    assert document["type"] == f"urn:jobgate:problem:{code}"
    assert document["title"] == PROBLEMS[code].title
    assert document["instance"] == response.headers["X-Request-Id"]
    assert document["missing"] == ["a"]
    assert response.headers.get("Retry-After") == ("7" if PROBLEMS[code].retryable else None)
    assert ("WWW-Authenticate" in response.headers) is (PROBLEMS[code].status == 401)


async def test_an_unknown_address_is_a_problem(http: httpx2.AsyncClient) -> None:
    assert problem(await http.get("/nothing")) == (404, "not-found")
    assert problem(await http.get("/things/")) == (404, "not-found")


async def test_an_unknown_method_names_all_methods_of_the_address(http: httpx2.AsyncClient) -> None:
    response = await http.delete("/things")
    assert problem(response) == (405, "method-not-allowed")
    assert response.headers["Allow"] == "GET, POST"


async def test_a_bad_parameter_is_named_and_not_repeated(http: httpx2.AsyncClient) -> None:
    response = await http.get("/things", params={"size": CANARY})
    assert problem(response) == (422, "input-invalid")
    assert "size" in response.json()["detail"]
    assert CANARY not in response.text


async def test_the_clock_ends_an_answer_that_does_not_begin(http: httpx2.AsyncClient) -> None:
    assert problem(await http.get("/hang")) == (504, "http-deadline-exceeded")


async def test_a_route_may_move_its_clock(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/patient")).json() == {"done": True}


async def _chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1024):
        yield b"x" * 1024
    yield b"x" * (size % 1024)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(BODY_LIMIT, 200), (BODY_LIMIT + 1, 413), (5_000_000, 413)])
async def test_a_body_has_a_limit(http: httpx2.AsyncClient, size: int, status: int, chunked: bool) -> None:
    response = await http.post("/things", content=_chunks(size) if chunked else b"x" * size)
    assert response.status_code == status
    if status == 413:
        assert problem(response) == (413, "payload-too-large")
    else:
        assert response.json() == {"bytes": size}


@pytest.mark.parametrize("path", ["/things", "/crash", "/hang", "/nothing"])
async def test_request_id_and_trace_come_back_on_every_answer(http: httpx2.AsyncClient, path: str) -> None:
    response = await http.get(path, headers={"X-Request-Id": "order-17", "traceparent": TRACE})
    assert response.headers["X-Request-Id"] == "order-17"
    assert response.headers["traceparent"] == TRACE


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "täst", "a_b", json.dumps({"a": 1})])
async def test_a_request_id_of_another_shape_is_replaced(http: httpx2.AsyncClient, given: str) -> None:
    response = await http.get("/things", headers=[(b"X-Request-Id", given.encode("latin-1"))])
    assert len(response.headers["X-Request-Id"]) == 32


async def test_a_malformed_trace_is_replaced(http: httpx2.AsyncClient) -> None:
    response = await http.get("/things", headers={"traceparent": "00-zz-11-01"})
    version, trace, parent, _flags = response.headers["traceparent"].split("-")
    assert (version, len(trace), len(parent)) == ("00", 32, 16)
