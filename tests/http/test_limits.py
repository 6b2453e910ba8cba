"""Limits under load: each principal has a share, the rest is refused before any work, and every place comes back.

The API of this file has two places of a kind, one for each principal, and a line of four before them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import pytest_asyncio

from tests.http.submissions import NONE, body_with, publish_brisk, refused, submit_bytes, traces
from tests.recovery.grounds import running_stack
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import call, final, publish_plugin, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from tests.rig.wire_client import Begun, begun

LIMITS = {
    "JOBGATE_SUBMISSIONS_AT_ONCE": "2",
    "JOBGATE_STREAMS_AT_ONCE": "4",
    "JOBGATE_UPLOADS_AT_ONCE": "2",
    "JOBGATE_CHANGES_AT_ONCE": "2",
    "JOBGATE_REQUESTS_WAITING": "4",
    "JOBGATE_STREAM_PING_S": "0.2",
    "JOBGATE_STREAM_SEND_TIMEOUT_S": "1",
}
BODY = body_with("limited").encode()
ASKING = "limited-asking"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("limits"), settings=LIMITS) as stack:
        operator = stack.client("operator")
        await publish_brisk(operator, "limited")
        await publish_plugin(operator, ASKING, [turn(call("ask_human", {"question": "Go on?"})), final()])
        yield stack


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def figure(operator: Client, name: str, **labels: str) -> float:
    """A figure of /metrics; 0 before its first observation."""
    text = (await operator.http.get("/metrics")).text
    shown = "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "} "
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + shown)), 0.0)


async def until_at_work(stack: Stack, kind: str, count: int, what: str = "jobgate_requests_at_work") -> None:
    operator = stack.client("operator")

    async def so() -> bool:
        return await figure(operator, what, kind=kind) == count

    await wait_until(so, 20, what=f"{count} {kind}: {what}")


def half_a_submission(
    who: Client, key: str, body: bytes = BODY, *, clock_s: float = 25.0
) -> AbstractAsyncContextManager[Begun]:
    """Its head and five bytes; `clock_s` is its request clock."""
    headers = {"Idempotency-Key": key, "Jobgate-Http-Deadline": soon(clock_s)}
    return begun(who.url, who.token, "POST", "/v1/jobs", headers, promised=len(body), body=body[:5])


def too_many(answer: httpx2.Response) -> Json:
    document = refused(answer, 429, "too-many-requests")
    assert document["retry_after_s"] >= 1
    assert answer.headers["Retry-After"] == str(document["retry_after_s"])
    return document


# ---- submissions


async def test_one_principal_who_floods_is_refused_before_any_work_and_others_are_served(narrow: Stack) -> None:
    app, other = narrow.client("app"), narrow.client("operator")
    held, lined, key = fresh_key(), [fresh_key(), fresh_key()], fresh_key()
    async with half_a_submission(app, held) as slow:
        await until_at_work(narrow, "submissions", 1)
        waits = [asyncio.create_task(submit_bytes(app, BODY, one, Jobgate_Http_Deadline=soon(25))) for one in lined]
        await until_at_work(narrow, "submissions", 2, "jobgate_requests_waiting")
        counted = await figure(other, "jobgate_requests_refused_total", kind="submissions", why="share")
        for _ in range(3):
            assert "This caller" in too_many(await submit_bytes(app, BODY, key))["detail"]
        assert await figure(other, "jobgate_requests_refused_total", kind="submissions", why="share") == counted + 3
        for one in (held, *lined, key):
            assert await traces(narrow, one) == NONE
        # Nobody else is kept waiting, nor who asks for other things, and health is never refused.
        assert (await other.submit("limited")).status_code == 202
        assert (await app.http.get("/v1/jobs")).status_code == 200
        async with Client(app.url, None) as nobody:
            asked = await asyncio.gather(*(nobody.http.get(path) for path in ("/livez", "/readyz") * 30))
        assert {answer.status_code for answer in asked} == {200}
        assert (await slow.finish(BODY[5:]))[0] == 202
    assert [(await wait).status_code for wait in waits] == [202, 202]
    # The mutant: with a place, the very request that was refused leaves traces.
    assert (await submit_bytes(app, BODY, key)).status_code == 202
    await until_at_work(narrow, "submissions", 0)


async def test_a_submission_that_has_no_time_for_the_line_is_refused_and_leaves_nothing(narrow: Stack) -> None:
    app = narrow.client("app")
    keys = fresh_key(), fresh_key(), fresh_key()
    async with half_a_submission(app, fresh_key()) as slow:
        await until_at_work(narrow, "submissions", 1)
        out_of_time = await submit_bytes(app, BODY, keys[0], Jobgate_Http_Deadline=soon(0.7))
        assert "within its clock" in too_many(out_of_time)["detail"]
        # Whoever comes now sees a line that has not moved for a second: it is told so at once.
        waits = asyncio.create_task(submit_bytes(app, BODY, keys[1], Jobgate_Http_Deadline=soon(25)))
        await until_at_work(narrow, "submissions", 1, "jobgate_requests_waiting")
        late = await wait_until(lambda: _late(app, keys[2]), 20, every=0.2, what="the line is known to stand")
        assert "within its clock" in too_many(late)["detail"]
        assert [await traces(narrow, key) for key in keys] == [NONE] * 3
        slow.leave()
        assert (await waits).status_code == 202
    for key in (keys[0], keys[2]):
        assert (await submit_bytes(app, BODY, key)).status_code == 202


async def _late(app: Client, key: str) -> httpx2.Response | None:
    began = asyncio.get_running_loop().time()
    answer = await submit_bytes(app, BODY, key, Jobgate_Http_Deadline=soon(1.5))
    assert asyncio.get_running_loop().time() - began < 10
    return answer if answer.status_code == 429 else None


@pytest.mark.parametrize("how", ["leaves", "is too slow"])
async def test_a_body_that_does_not_come_gives_its_place_back(narrow: Stack, how: str) -> None:
    app, key = narrow.client("app"), fresh_key()
    async with half_a_submission(app, key, clock_s=25 if how == "leaves" else 1) as slow:
        await until_at_work(narrow, "submissions", 1)
        if how == "leaves":
            slow.leave()
        else:
            assert await slow.finish() == (504, refusal_of("http-deadline-exceeded"))
        await until_at_work(narrow, "submissions", 0)
    assert await traces(narrow, key) == NONE
    assert (await submit_bytes(app, BODY, key)).status_code == 202


class refusal_of:
    """Equal to every problem document with this code."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other["code"] == self._code  # pyright: ignore[reportUnknownVariableType]

    __hash__ = None  # type: ignore[assignment]


# ---- streams and uploads


async def test_streams_are_capped_for_each_principal_before_any_byte(narrow: Stack) -> None:
    app, operator, key = narrow.client("app"), narrow.client("operator"), fresh_key()
    job = await app.accepted(ASKING, key=key)
    [_] = await app.until_request(job)
    events = f"/v1/jobs/{job}/events"
    async with app.stream(job) as first, begun(app.url, app.token, "GET", events) as second:
        await anext(first)
        await until_at_work(narrow, "streams", 2)
        for _ in range(2):
            too_many(await app.http.get(events))
            too_many(await app.http.get(f"/v1/jobs/{job}?after=0", headers={"Prefer": "wait=20"}))
        # A status costs no stream, and others have theirs.
        assert (await app.status(job, after="0"))["events"]
        async with operator.stream(job) as others:
            await anext(others)
        # Pings ask again who reads, and take no further place.
        pings = [line async for line in _lines(second, 3)]
        assert all("ping" in line for line in pings)
        await until_at_work(narrow, "streams", 2)
    await until_at_work(narrow, "streams", 0)
    async with app.stream(job) as again:
        assert (await anext(again)).type == "job.queued"
    await app.cancel(job)


async def _lines(stream: Begun, count: int) -> AsyncIterator[str]:
    """So many lines with a ping."""
    async with asyncio.timeout(20):
        while count:
            line = (await stream.reader.readline()).decode()
            if line.startswith(": ping"):
                count -= 1
                yield line


async def test_a_poll_that_waits_for_a_client_who_left_gives_its_place_back(narrow: Stack) -> None:
    app = narrow.client("app")
    job = await app.accepted(ASKING)
    [_] = await app.until_request(job)
    cursor = (await app.status(job))["next_cursor"]
    path, wait = f"/v1/jobs/{job}?after={cursor}", {"Prefer": "wait=60"}
    async with (
        begun(app.url, app.token, "GET", path, wait),
        begun(app.url, app.token, "GET", path, wait) as second,
    ):
        await until_at_work(narrow, "streams", 2)
        second.leave()
        await until_at_work(narrow, "streams", 1)
    await until_at_work(narrow, "streams", 0)
    operator = narrow.client("operator")
    assert await figure(operator, "jobgate_http_requests_total", method="GET", route="/v1/jobs/{job_id}", status="499")
    await app.cancel(job)


async def test_one_who_uploads_slowly_does_not_keep_others_from_it(narrow: Stack) -> None:
    app, operator = narrow.client("app"), narrow.client("operator")
    slow = begun(app.url, app.token, "POST", "/v1/artifacts", promised=1000, body=b"x")
    async with slow as uploading:
        await until_at_work(narrow, "uploads", 1)
        too_many(await app.http.post("/v1/artifacts", content=b"more"))
        assert (await operator.http.post("/v1/artifacts", content=b"others")).status_code == 201
        uploading.leave()
        await until_at_work(narrow, "uploads", 0)
    assert (await app.http.post("/v1/artifacts", content=b"more")).status_code == 201


async def test_a_download_that_nobody_reads_gives_its_place_back(narrow: Stack) -> None:
    app, before = narrow.client("app"), len(narrow.apis[0].output)
    kept = await app.post("/v1/artifacts", expect=201, content=b"x" * 8_000_000)
    where = (await app.http.get(kept["url"])).headers["Location"]
    async with begun(app.url, None, "GET", where, buffer=4096):
        await until_at_work(narrow, "reads", 2)  # with the one that looks
        await until_at_work(narrow, "reads", 1)
    assert "dropped a reader that takes no bytes" in narrow.apis[0].output[before:]
    assert loud(narrow, before) == []


async def test_a_slow_reader_of_a_download_is_no_stalled_one(narrow: Stack) -> None:
    """16 kB in a twentieth of a second: a whole megabyte would take it longer than a reader may take nothing."""
    app, size = narrow.client("app"), 3_500_000
    kept = await app.post("/v1/artifacts", expect=201, content=b"x" * size)
    where = (await app.http.get(kept["url"])).headers["Location"]
    async with begun(app.url, None, "GET", where, buffer=16_384) as line:
        assert (await line.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        read = 0
        while piece := await line.reader.read(16_384):
            read += len(piece)
            await asyncio.sleep(0.05)  # the pace is what is tested
    assert read == size


# ---- who leaves is no crash


def loud(stack: Stack, since: int) -> list[str]:
    """Lines of the API's log that speak of a fault."""
    lines = stack.apis[0].output[since:].splitlines()
    return [line for line in lines if '"level": "error"' in line or '"level": "warning"' in line]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs/some/retry"),
        ("POST", "/v1/plugins"),
        ("PUT", "/v1/plugins/limited/deployment"),
        ("POST", "/v1/previews"),
        ("POST", "/v1/grants"),
        ("POST", "/v1/jobs/some/requests/r1-000000/decision"),
        ("POST", "/v1/artifacts"),
    ],
)
async def test_a_client_who_leaves_while_its_body_is_read_is_no_crash(narrow: Stack, method: str, path: str) -> None:
    operator = narrow.client("operator")
    kind = {"/v1/jobs": "submissions", "/v1/jobs/some/retry": "submissions", "/v1/artifacts": "uploads"}.get(
        path, "changes"
    )
    before = len(narrow.apis[0].output)
    headers = {"Idempotency-Key": fresh_key()}
    async with begun(operator.url, operator.token, method, path, headers, promised=100, body=b"{") as leaving:
        await until_at_work(narrow, kind, 1)
        leaving.leave()
        await until_at_work(narrow, kind, 0)
    assert loud(narrow, before) == []
    text = (await operator.http.get("/metrics")).text
    counted = [line for line in text.splitlines() if line.startswith("jobgate_http_requests_total")]
    assert any('status="499"' in line for line in counted)
    assert not any('status="500"' in line for line in counted)
