"""The leak test hears what tests hear: an answer that is altered on its way to the client turns the run red."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.http.jobs import plugin_of
from tests.rig.client import Client
from tests.rig.overheard import Ear, Leak, Overhearing
from tests.rig.plugins import final
from tests.rig.process import ROOT, outside_environment
from tests.rig.stack import Stack

Alter = Callable[[bytes], bytes]


class Altering(httpx2.AsyncBaseTransport):
    """The API with a fault: every body goes through `alter`."""

    def __init__(self, alter: Alter) -> None:
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)
        self._alter = alter

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        body = self._alter(await answer.aread())
        await answer.aclose()
        headers = [(name, value) for name, value in answer.headers.multi_items() if name != "content-length"]
        return httpx2.Response(answer.status_code, headers=headers, stream=httpx2.ByteStream(body))

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def faulty(stack: Stack, ear: Ear, alter: Alter) -> AsyncGenerator[Client]:
    """A client of an API that has this fault, heard by `ear` alone."""
    async with Client(stack.apis[0].url, stack.token("app")) as client:
        await client.http.aclose()
        client.http = httpx2.AsyncClient(
            base_url=client.url, headers=client.http.headers, transport=Overhearing(Altering(alter), ear), timeout=70
        )
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def job(stack: Stack, app: Client, operator: Client) -> str:
    """One that has ended."""
    job = await app.accepted(await plugin_of(stack, operator, [final()]))
    await app.until_ended(job)
    return job


def with_member(name: str, value: Any) -> Alter:
    return lambda body: json.dumps({**json.loads(body), name: value}).encode()


def with_event_data(body: bytes) -> bytes:
    return body.replace(b'"data":{"', b'"data":{"shard":3,"')


async def test_an_altered_answer_is_a_leak_and_the_same_unaltered_is_none(stack: Stack, job: str) -> None:
    ear = Ear()
    async with faulty(stack, ear, lambda body: body) as honest:
        await honest.status(job)
    assert not ear.taken()
    async with faulty(stack, ear, with_member("shard", 3)) as fault:
        await fault.status(job)
    assert list(ear.taken()) == ["GET /v1/jobs/{job_id} 200 /shard: not in the schema"]


async def test_an_altered_event_of_a_stream_is_a_leak_though_the_stream_is_left(stack: Stack, job: str) -> None:
    ear = Ear()
    async with faulty(stack, ear, with_event_data) as fault, fault.stream(job) as events:
        await anext(events)
    assert list(ear.taken()) == ["GET /v1/jobs/{job_id}/events 200 /data: schema keyword propertyNames"]


async def test_a_run_id_in_an_answer_is_found_when_the_stack_closes(stack: Stack, job: str) -> None:
    ear = Ear()
    run = (await (await stack.engine()).get_workflow_handle(f"demo.{job}").describe()).run_id
    where = httpx2.URL(stack.apis[0].url).netloc.decode()
    async with faulty(stack, ear, with_member("labels", {"seen": run})) as fault:
        await fault.status(job)
    assert not ear.taken()
    with pytest.raises(Leak, match=r"^GET 200 application/json: run id$"):
        ear.settle([where], [run])
    ear.settle([where], [run])


def test_a_test_that_heard_a_leak_fails_whatever_it_asserts(tmp_path: Path) -> None:
    told = tmp_path / "test_told.py"
    told.write_text(
        "from tests.rig.answers import Answer\n"
        "from tests.rig.overheard import EAR\n"
        "HEAD = (('content-type', 'application/json'),)\n"
        "def test_it():\n"
        "    EAR.hear('127.0.0.1:1', Answer('GET', '/v1/nowhere', 200, HEAD, b'{}'))\n"
        "def test_next():\n"
        "    pass\n"
    )
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(told)]
    environment = {**outside_environment(), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*asked, "--rootdir", str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert "GET (no such operation) 200 /: undocumented content (x1)" in ran.stdout
