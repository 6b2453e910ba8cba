"""A session is a line of jobs on one snapshot: the first job binds it, one is open at a time, and it outlives each."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.http.jobs import plugin_of, terminate, waiting_job, waiting_plugin
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.plugins import final, publish_plugin
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

RACERS = 30


def fresh_session() -> str:
    return fresh_key().replace("t-", "s-", 1)


async def receipt_of(app: Client, plugin: str, **body: Any) -> Json:
    answer = await app.submit(plugin, **body)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def in_turn(app: Client, plugin: str, session: str, **body: Any) -> str:
    """A job of the session that has ended."""
    job = await app.accepted(plugin, session=session, **body)
    await app.until_ended(job)
    return job


async def test_a_session_keeps_its_snapshot_and_a_new_one_takes_the_new_release(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await plugin_of(stack, operator, [final("one")])
    old, new = fresh_session(), fresh_session()
    first = await receipt_of(app, plugin, session=old)
    await app.until_ended(first["job_id"])
    await publish_plugin(operator, plugin, [final("two")], version="2.0.0")
    second = await receipt_of(app, plugin, session=old)
    other = await receipt_of(app, plugin, session=new)
    assert (second["plugin"], second["snapshot"]) == (first["plugin"], first["snapshot"])
    assert (other["plugin"]["version"], other["session"]) == ("2.0.0", new)
    assert other["snapshot"] != first["snapshot"]
    assert (await app.until_ended(second["job_id"]))["result"] == "one"
    assert (await app.until_ended(other["job_id"]))["result"] == "two"
    shown = await app.get(f"/v1/sessions/{old}")
    assert (shown["plugin"], shown["snapshot"]) == (first["plugin"], first["snapshot"])
    assert shown["jobs"] == [first["job_id"], second["job_id"]]


async def test_another_version_or_plugin_is_no_job_of_the_session(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final()])
    other = await plugin_of(stack, operator, [final()])
    session = fresh_session()
    await in_turn(app, plugin, session)
    await publish_plugin(operator, plugin, [final()], version="2.0.0")
    assert problem(await app.submit(plugin, session=session, version="2.0.0")) == (422, "input-invalid")
    assert problem(await app.submit(other, session=session)) == (422, "input-invalid")
    assert (await app.submit(plugin, session=session, version="1.0.0")).status_code == 202


async def test_a_busy_session_reserves_nothing_and_the_key_works_later(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, session, key = await waiting_plugin(stack, operator), fresh_session(), fresh_key()
    job, _ = await waiting_job(app, plugin, session=session)
    assert (await app.get(f"/v1/sessions/{session}"))["open_job"] == job
    for _ in range(3):
        busy = await app.submit(plugin, key=key, session=session)
        assert problem(busy) == (409, "session-busy")
        assert busy.json()["retryable"]
    assert problem(await app.http.get(f"/v1/jobs/{key}")) == (404, "not-found")
    assert (await app.get(f"/v1/sessions/{session}"))["jobs"] == [job]
    await app.cancel(job)
    await app.until_ended(job)
    assert (await app.get(f"/v1/sessions/{session}"))["open_job"] is None
    assert await app.accepted(plugin, key=key, session=session) == key
    assert (await app.get(f"/v1/sessions/{session}"))["jobs"] == [job, key]


async def test_of_racing_jobs_one_opens_the_session(stack: Stack, operator: Client, app: Client) -> None:
    plugin, session = await waiting_plugin(stack, operator), fresh_session()
    keys = [fresh_key() for _ in range(RACERS)]
    answers = await asyncio.gather(*(app.submit(plugin, key=key, session=session) for key in keys))
    told = Counter("accepted" if answer.status_code == 202 else problem(answer)[1] for answer in answers)
    assert told == {"accepted": 1, "session-busy": RACERS - 1}
    [winner] = [key for key, answer in zip(keys, answers, strict=True) if answer.status_code == 202]
    assert (await app.get(f"/v1/sessions/{session}"))["jobs"] == [winner]
    again = await app.submit(plugin, key=winner, session=session)
    first = next(answer for answer in answers if answer.status_code == 202)
    assert (again.status_code, again.content) == (200, first.content)
    await app.cancel(winner)


async def test_of_racing_jobs_one_is_the_next(stack: Stack, operator: Client, app: Client) -> None:
    plugin, session = await waiting_plugin(stack, operator), fresh_session()
    first, _ = await waiting_job(app, plugin, session=session)
    await app.cancel(first)
    await app.until_ended(first)
    answers = await asyncio.gather(*(app.submit(plugin, session=session) for _ in range(RACERS)))
    told = Counter("accepted" if answer.status_code == 202 else problem(answer)[1] for answer in answers)
    assert told == {"accepted": 1, "session-busy": RACERS - 1}
    assert len((await app.get(f"/v1/sessions/{session}"))["jobs"]) == 2


async def test_the_first_receipt_is_replayed_whatever_the_session_does(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, session, key = await waiting_plugin(stack, operator), fresh_session(), fresh_key()
    first = await app.submit(plugin, key=key, session=session)
    await app.until_request(key)
    replays = [await app.submit(plugin, key=key, session=session)]
    await app.cancel(key)
    await app.until_ended(key)
    replays.append(await app.submit(plugin, key=key, session=session))
    await waiting_job(app, plugin, session=session)
    replays.append(await app.submit(plugin, key=key, session=session))
    assert [(again.status_code, again.content) for again in replays] == [(200, first.content)] * 3


@pytest.mark.parametrize("ending", ["failed", "canceled", "terminated", "deadline"])
async def test_a_session_goes_on_after_a_job_however_it_ended(
    stack: Stack, operator: Client, app: Client, ending: str
) -> None:
    plugin = await waiting_plugin(stack, operator)
    if ending == "failed":
        plugin = await plugin_of(stack, operator, [final(fail={"status": 400, "times": 9})])
    session = fresh_session()
    job = await app.accepted(plugin, session=session, timeout_seconds=3 if ending == "deadline" else 60)
    if ending in ("canceled", "terminated"):
        await app.until_request(job)
        await (app.cancel(job) if ending == "canceled" else terminate(stack, job))
    view = await app.until_ended(job)
    assert view["status"] == ("canceled" if ending == "canceled" else "failed")

    async def next_one() -> str | None:
        answer = await app.submit(plugin, session=session)
        return answer.json()["job_id"] if answer.status_code == 202 else None

    following = await wait_until(next_one, what="the session takes the next job")
    shown = await app.get(f"/v1/sessions/{session}")
    assert shown["jobs"] == [job, following]
    await app.cancel(following)


async def test_a_session_needs_a_scope_and_a_grant_and_is_unknown_elsewhere(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, session = await plugin_of(stack, operator, [final()]), fresh_session()
    await in_turn(app, plugin, session)
    path = f"/v1/sessions/{session}"
    for scope in ("jobs:read", "sessions:read"):
        assert (await stack.client(scopes=[scope]).http.get(path)).status_code == 200
    assert problem(await stack.client(scopes=["jobs:read"]).http.get(f"{path}/messages")) == (403, "not-permitted")
    assert (await stack.client(scopes=["sessions:read"]).http.get(f"{path}/messages")).status_code == 200
    for reader in (stack.client(scopes=["jobs:submit"]), stack.client("nobody")):
        assert problem(await reader.http.get(path)) == (403, "not-permitted")
        assert problem(await reader.http.get(f"{path}/messages")) == (403, "not-permitted")
    for name in (fresh_session(), "no such", "x" * 65):
        for more in ("", "/messages"):
            assert problem(await app.http.get(f"/v1/sessions/{name}{more}")) == (404, "not-found")


async def test_a_foreign_session_is_as_unknown_as_none(stack: Stack, operator: Client, app: Client) -> None:
    plugin, session = await plugin_of(stack, operator, [final()]), fresh_session()
    await in_turn(app, plugin, session)
    stranger = stack.client(workspace="elsewhere")
    for more in ("", "/messages"):
        foreign = (await stranger.http.get(f"/v1/sessions/{session}{more}")).json()
        unknown = (await stranger.http.get(f"/v1/sessions/{fresh_session()}{more}")).json()
        assert {**foreign, "instance": ""} == {**unknown, "instance": ""}
        assert foreign["code"] == "not-found"


@pytest.mark.parametrize("cursor", ["1", "x", "am9iczox", "", "end"])
async def test_a_cursor_of_another_list_is_refused(stack: Stack, operator: Client, app: Client, cursor: str) -> None:
    plugin, session = await plugin_of(stack, operator, [final()]), fresh_session()
    await in_turn(app, plugin, session)
    answer = await app.http.get(f"/v1/sessions/{session}/messages", params={"after": cursor})
    assert problem(answer) == (400, "cursor-invalid")
