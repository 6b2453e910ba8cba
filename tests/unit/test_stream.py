"""Watching: one upstream for many readers, a log without gaps, an end for every stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from pydantic import TypeAdapter

import facade.watch
from facade.cursors import START, Cursor
from facade.reader import Access
from facade.sight import ALL_PAUSE_S, Breaker, Sight
from facade.stream import StreamRules, stream_of
from facade.watch import Watchers
from facade.window import Window
from tests.rig.waiting import wait_until
from tests.unit.facts import DIGEST, JOB, event
from tests.unit.fake_reader import FakeReader
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Event
from workflows.contract.ids import BlobRef, JobId, PrincipalId, Workspace
from workflows.contract.job import SegmentRef, Status

DEMO = Workspace("demo")


@dataclass(frozen=True)
class Somebody:
    principal: PrincipalId
    workspace: Workspace
    scopes: frozenset[str]


APP = Somebody(PrincipalId("app"), DEMO, frozenset({"jobs:read"}))
Open = Callable[[FakeReader], Window]


@pytest_asyncio.fixture(loop_scope="session")
async def opened() -> AsyncGenerator[Open]:
    """A window over a played job; its watches are ended after the test."""
    windows: list[Window] = []

    def open_window(reader: FakeReader) -> Window:
        windows.append(Window(reader, Watchers(Sight(reader))))
        return windows[-1]

    yield open_window
    for window in windows:
        await window.watchers.close()


async def stream(window: Window, cursor: Cursor = START, **rules: Any) -> list[dict[str, str]]:
    """The frames of one stream until the server ends it: id, event, data, or a comment."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async with window.watched(APP, JOB, cursor) as watch:
        response = stream_of(watch, cursor, window.may_still_read(APP, JOB), StreamRules(**rules))
        await response({"type": "http", "method": "GET"}, receive, send)
    return [_frame(text) for text in b"".join(sent).decode().split("\n\n") if text.strip()]


def _frame(text: str) -> dict[str, str]:
    pairs = [line.partition(": ") for line in text.split("\n") if line]
    return {name or "comment": value for name, _, value in pairs}


def ids(frames: list[dict[str, str]]) -> list[str]:
    return [frame["id"] for frame in frames if "id" in frame]


# ---- one upstream


async def test_sixty_streams_and_a_hundred_polls_cost_what_one_stream_costs(opened: Open) -> None:
    async def engine_calls(streams: int, polls: int) -> int:
        reader = FakeReader()
        window = opened(reader)
        reading = [asyncio.create_task(stream(window)) for _ in range(streams)]
        await wait_until(lambda: (w := window.watchers.present(DEMO, JOB)) and w.settled)
        waits = [asyncio.create_task(window.job_once_later(APP, JOB, Cursor(5), 100, 60)) for _ in range(polls // 2)]
        answers = await asyncio.gather(*(window.job_after(APP, JOB, START, 100) for _ in range(polls // 2)))
        assert all(len(answer.events) == 5 for answer in answers)
        await reader.emit(2)
        answers = await asyncio.gather(*waits)
        assert all([one.seq for one in answer.events] == [6, 7] for answer in answers)
        await reader.emit(1, status=Status.SUCCEEDED, ending="completed")
        for frames in await asyncio.gather(*reading):
            assert ids(frames) == [str(seq) for seq in range(1, 9)]
        return reader.engine_calls

    alone = await engine_calls(1, 0)
    assert await engine_calls(60, 100) <= alone + 5


async def test_the_last_reader_to_leave_ends_the_watch(opened: Open) -> None:
    window = opened(FakeReader())
    async with window.watched(APP, JOB, START):
        async with window.watched(APP, JOB, Cursor(3)):
            assert window.watchers.present(DEMO, JOB)
        assert window.watchers.present(DEMO, JOB)
    assert window.watchers.present(DEMO, JOB) is None


async def test_a_crowd_of_jobs_is_looked_at_without_long_polls(opened: Open) -> None:
    reader = FakeReader()
    watchers = Watchers(Sight(reader), limit=1)
    async with (
        watchers.following(DEMO, JobId("k-1"), START),
        watchers.following(DEMO, JobId("k-2"), Cursor(5)) as second,
    ):
        await reader.emit()
        await wait_until(lambda: second.after(Cursor(5)), 5)


async def test_five_queries_a_second_at_most(opened: Open) -> None:
    reader = FakeReader()
    window = opened(reader)
    async with window.watched(APP, JOB, Cursor(5)) as watch:
        while len(reader.queried_at) < 12:
            await reader.emit()
            await asyncio.sleep(0.02)
        starts = zip(reader.queried_at, reader.queried_at[5:], strict=False)
        assert all(sixth - first > 0.99 for first, sixth in starts)
        await wait_until(lambda: len(watch.after(Cursor(5))) == reader.seq - 5, 5)


# ---- cursors and gaps


@pytest.mark.parametrize("cursor", range(9))
async def test_resuming_after_any_event_is_exact(opened: Open, cursor: int) -> None:
    reader = FakeReader(8, status=Status.SUCCEEDED)
    reader.ending = "completed"
    frames = await stream(opened(reader), Cursor(cursor))
    assert ids(frames) == [str(seq) for seq in range(cursor + 1, 9)]


async def test_a_reader_from_the_start_joins_one_from_the_end(opened: Open) -> None:
    reader = FakeReader(700)
    window = opened(reader)
    async with window.watched(APP, JOB, Cursor(700)), window.watched(APP, JOB, START) as watch:
        assert [one.seq for one in watch.after(START, 1000)] == list(range(1, 701))


@pytest.mark.parametrize("start", [1200, 0])
async def test_a_log_too_long_for_memory_is_read_by_pages(
    opened: Open, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """Whether somebody who reads the newest events was there first or not, and however long the log becomes."""
    monkeypatch.setattr(facade.watch, "KEPT", 600)
    reader = FakeReader(1200)
    window = opened(reader)
    async with window.watched(APP, JOB, Cursor(start)) as watch, window.watched(APP, JOB, START):
        seen: list[int | None] = []
        while len(seen) < 1900:
            if len(seen) == 1000:
                await reader.emit(700)
            events = await watch.read(Cursor(len(seen)))
            seen += [one.seq for one in events]
            if not events:
                await asyncio.wait({watch.changed}, timeout=5)
            assert len(watch.after(START, 5000)) == 0, "the log in memory stays short"
        assert seen == list(range(1, 1901))
        assert not watch.over(Cursor(1900))
        await reader.emit(ending="completed", status=Status.SUCCEEDED)
        assert ids(await stream(window)) == [str(seq) for seq in range(1, 1902)]


async def test_archived_events_are_read_from_their_segment(opened: Open) -> None:
    reader = FakeReader(620)
    ref = BlobRef(DIGEST)
    reader.segments = (SegmentRef(first=1, last=500, ref=ref),)
    reader.blobs[ref] = TypeAdapter(tuple[Event, ...]).dump_json(tuple(event(seq) for seq in range(1, 501)))
    answer = await opened(reader).job_after(APP, JOB, Cursor(490), 30)
    assert ([one.seq for one in answer.events], answer.has_more) == (list(range(491, 521)), True)


async def test_a_cursor_past_the_end_of_an_ended_job_is_invalid(opened: Open) -> None:
    reader = FakeReader(8, status=Status.SUCCEEDED)
    reader.ending = "completed"
    for reading in (stream(opened(reader), Cursor(9)), opened(reader).job_after(APP, JOB, Cursor(9), 10)):
        with pytest.raises(Refused) as refused:
            await reading
        assert refused.value.code == ProblemCode.CURSOR_INVALID


async def test_the_derived_end_is_the_last_frame_and_has_a_cursor_of_its_own(opened: Open) -> None:
    reader = FakeReader(3, status=Status.RUNNING)
    reader.ending = "terminated"
    frames = await stream(opened(reader))
    assert ids(frames) == ["1", "2", "3", "end"]
    last = json.loads(frames[-1]["data"])
    assert (frames[-1]["event"], last["seq"], last["data"]) == ("job.failed", None, {"code": "ended_by_operator"})
    assert ids(await stream(opened(reader), Cursor(None))) == []
    assert (await opened(reader).job_after(APP, JOB, Cursor(None), 10)).has_more is False


# ---- without a worker


async def test_without_a_worker_events_are_recorded_ones_and_more_may_come(opened: Open) -> None:
    answer = await opened(FakeReader(worker=False)).job_after(APP, JOB, START, 100)
    assert (answer.source, len(answer.events), answer.has_more) == ("recorded", 5, True)


async def test_without_a_worker_a_page_never_has_a_gap(opened: Open) -> None:
    reader = FakeReader(50, worker=False)
    reader.tail_from = 40
    window = opened(reader)
    assert [one.seq for one in (await window.job_after(APP, JOB, START, 100)).events] == [1]
    assert [one.seq for one in (await window.job_after(APP, JOB, Cursor(39), 100)).events] == list(range(40, 51))


async def test_a_stream_fills_the_gap_when_a_worker_is_back(opened: Open) -> None:
    reader = FakeReader(50, worker=False)
    reader.tail_from = 40
    window = opened(reader)
    reading = asyncio.create_task(stream(window))
    await wait_until(lambda: reader.calls["query"])
    reader.worker = True
    await wait_until(lambda: (w := window.watchers.present(DEMO, JOB)) and len(w.after(START)) == 50, 5)
    await reader.emit(1, status=Status.SUCCEEDED, ending="completed")
    assert ids(await reading) == [str(seq) for seq in range(1, 52)]


def test_a_silent_job_is_asked_again_after_a_growing_pause() -> None:
    now = [100.0]
    breaker = Breaker(lambda: now[0])
    key = (DEMO, JOB)
    pauses: list[float] = []
    for _ in range(5):
        assert breaker.closed(key)
        breaker.silent(key)
        pauses.append(round(breaker.pause(key), 3))
        assert not breaker.closed(key)
        now[0] += breaker.pause(key)
    assert pauses == [1.0, 1.0, 2.0, 4.0, 5.0]
    breaker.answered(key)
    assert breaker.closed(key)


def test_when_no_job_answers_one_question_a_second_is_asked() -> None:
    now = [100.0]
    breaker = Breaker(lambda: now[0])
    for number in range(3):
        breaker.silent((DEMO, JobId(f"k-{number}")))
    fresh = [(DEMO, JobId(f"new-{number}")) for number in range(3)]
    assert not any(breaker.closed(key) for key in fresh)
    now[0] += ALL_PAUSE_S
    assert [breaker.closed(key) for key in fresh] == [True, False, False]
    breaker.answered(fresh[0])
    assert all(breaker.closed(key) for key in fresh)


# ---- how a stream ends


async def test_a_stream_ends_cleanly_when_its_time_is_up(opened: Open) -> None:
    frames = await stream(opened(FakeReader()), longest_s=0.05)
    assert frames[0] == {"comment": "jobgate", "retry": "2000"}
    assert ids(frames) == ["1", "2", "3", "4", "5"]


async def test_authority_is_asked_again_at_each_ping(opened: Open) -> None:
    reader = FakeReader()
    reading = asyncio.create_task(stream(opened(reader), ping_s=0.05))
    await wait_until(lambda: reader.calls["ledger"] >= 4)
    reader.facts = replace(reader.facts, access=Access({"jobs:read": frozenset()}))
    frames = await reading
    pings = [frame for frame in frames if frame.get("comment") == "ping"]
    assert pings
    assert not any("id" in frame for frame in pings)


async def test_a_job_that_is_not_there_is_refused_before_any_byte(opened: Open) -> None:
    reader = FakeReader()
    reader.known = False
    with pytest.raises(Refused) as refused:
        await stream(opened(reader))
    assert refused.value.code == ProblemCode.JOB_EXPIRED
