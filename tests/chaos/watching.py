"""Watchers of one job, from its first event to its end: by stream, which they leave and resume, and by polling."""

import asyncio
import json
from dataclasses import replace

import httpx2

from tests.chaos.facts import WatchFacts
from tests.chaos.rules_jobs import TERMINAL
from tests.chaos.speaking import Speaker

SILENCE_S = 7.0
"""A stream that says nothing for so long is taken for dead. Its pings come every 15 s."""
AGAIN_S = 0.3


async def watch_by_stream(reader: Speaker, job: str, api: int, leaves_after: int) -> None:
    """Until the end event; leaves of itself after so many events, and resumes at another process."""
    number = len(reader.record.watches)
    reader.record.watches.append(WatchFacts(job, "stream", ()))
    cursor: str | None = None
    while True:
        cursor, ended = await _one_stream(reader, job, api, cursor, number, leaves_after)
        if ended:
            return
        api += 1
        watch = reader.record.watches[number]
        reader.record.watches[number] = replace(watch, resumed=watch.resumed + 1)
        await asyncio.sleep(AGAIN_S)


async def _one_stream(
    reader: Speaker, job: str, api: int, cursor: str | None, number: int, leaves_after: int
) -> tuple[str | None, bool]:
    """The cursor to resume from, and whether the job's end was given."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": cursor} if cursor is not None else {})
    clock = httpx2.Timeout(SILENCE_S)
    given = 0
    try:
        async with reader.client(api).http.stream(
            "GET", f"/v1/jobs/{job}/events", headers=headers, timeout=clock
        ) as response:
            reader.record.answers[f"stream: {response.status_code}"] += 1
            if response.status_code != 200:
                return cursor, False
            async for frame in httpx2.EventSource(response):
                if not frame.data:
                    continue
                event = json.loads(frame.data)
                _give(reader, number, event["seq"], event["type"])
                cursor = frame.id
                given += 1
                if event["type"] in ("job.succeeded", "job.failed", "job.canceled"):
                    return cursor, True
                if given == leaves_after:
                    return cursor, False
    except httpx2.HTTPError:
        reader.record.answers["stream: broke"] += 1
    return cursor, False


async def watch_by_poll(reader: Speaker, job: str, api: int, _: int) -> None:
    """By `after`, with and without waiting, until the page that ends with the job."""
    number = len(reader.record.watches)
    reader.record.watches.append(WatchFacts(job, "poll", ()))
    cursor = "0"
    while True:
        headers = {"Prefer": "wait=2"} if api % 2 else {}
        reply = await reader.ask("poll", "GET", f"/v1/jobs/{job}?after={cursor}&limit=7", api=api, headers=headers)
        api += 1
        if reply is None or reply.status != 200:
            await asyncio.sleep(AGAIN_S)
            continue
        view = reply.json
        reader.record.seen[job][f"poll {number}"].append(view["status"])
        for event in view["events"]:
            _give(reader, number, event["seq"], event["type"])
        cursor = view["next_cursor"] or cursor
        if view["status"] in TERMINAL and not view["has_more"]:
            return
        if not view["events"]:
            await asyncio.sleep(AGAIN_S)


def _give(reader: Speaker, number: int, seq: int | None, type: str) -> None:
    watch = reader.record.watches[number]
    reader.record.watches[number] = replace(watch, given=(*watch.given, (seq, type)))
