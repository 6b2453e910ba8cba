"""What a decision lets run: exactly that call, once, with the bytes that were shown; and what decides nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import rfc8785

from gateway.ledger.journal import undelivered_changes
from tests.http.decisions import asking
from tests.http.jobs import READS_RUN, history_length, waiting_job
from tests.http.submissions import ledger_of
from tests.rig.client import Client, Json
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

ARGS: Json = {"é": "ü\u2028", "b": [1, 2.5, None, True], "a": {"z": 1e15, "y": '\\"<>&'}, "n": 10}


async def test_of_three_open_requests_one_approval_runs_that_one_call_once_as_it_was_shown(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """Two of the three are the same call to the byte, so they share a digest and not a decision."""
    plugin = await asking(stack, operator, call("pay", ARGS), call("pay", {"n": 2}), call("pay", ARGS))
    job = await app.accepted(plugin)
    first, other, twin = await app.until_request(job, count=3)
    shown = {request: await approver.request(job, request) for request in (first, other, twin)}
    assert shown[first]["args"] == ARGS
    assert shown[first]["action_digest"] == shown[twin]["action_digest"] != shown[other]["action_digest"]
    assert (await approver.decide(job, twin, "approve")).status_code == 200
    [sent] = await stack.effects.wait_for_calls("pay", job=job)
    assert sent.body == rfc8785.dumps(shown[twin]["args"])
    await app.until_event(job, "tool.finished")
    assert {one: (await approver.request(job, one))["state"] for one in shown} == {
        first: "pending",
        other: "pending",
        twin: "approved",
    }
    assert (await approver.decide(job, other, "reject")).status_code == 200
    assert (await approver.decide(job, twin, "approve")).status_code == 200
    assert stack.effects.calls("pay", job=job) == [sent]
    assert (await approver.decide(job, first, "approve")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    both = stack.effects.calls("pay", job=job)
    assert [one.body for one in both] == [sent.body, sent.body]
    assert both[0].idempotency_key != both[1].idempotency_key


async def test_an_approval_is_spent_and_a_later_equal_call_asks_again(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """One write runs before the pause; ten approvals race; the next turn proposes the same call."""
    name = fresh_name("asks")
    await publish_plugin(
        operator,
        name,
        [turn(call("before", {"n": 0})), turn(call("pay", {"n": 1})), turn(call("pay", {"n": 1})), final({"ok": True})],
        tools=[tool("before", "write"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=READS_RUN + 'permit (principal, action, resource == Tool::"before");\n' + ASK_ALL,
    )
    job, first = await waiting_job(app, name)
    digest = (await approver.request(job, first))["action_digest"]
    answers = await asyncio.gather(*(approver.decide(job, first, "approve", digest=digest) for _ in range(10)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
    await app.until_event(job, "request.opened", count=2)
    [second] = await app.until_request(job)
    assert second != first
    again = await approver.decide(job, first, "approve", digest=digest)
    assert (again.status_code, again.text) == (200, answers[0].text)
    assert (len(stack.effects.calls("before", job=job)), len(stack.effects.calls("pay", job=job))) == (1, 1)
    assert (await approver.decide(job, second, "reject")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert (await approver.decide(job, first, "approve", digest=digest)).text == answers[0].text
    assert (await approver.decide(job, first, "reject", digest=digest)).status_code == 409
    assert (len(stack.effects.calls("before", job=job)), len(stack.effects.calls("pay", job=job))) == (1, 1)


# ---- B24: reads and repeats are inert


async def until_told(stack: Stack) -> None:
    """Until no change is left that jobs are still to be told of: the plugin's promotion is one."""
    async with ledger_of(stack) as ledger:

        async def told() -> bool:
            return not await ledger.read(lambda conn: undelivered_changes(conn, limit=1))

        await wait_until(told, 10, what="every change is delivered")


async def test_looking_at_an_open_request_changes_nothing(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """Three hundred looks of every kind and replayed submissions. The mutant is a decision: the comparison sees it."""
    name, key = await asking(stack, operator), fresh_name("inert")
    job, request = await waiting_job(app, name, key=key)

    async def inbox() -> bytes:
        listed = await approver.http.get("/v1/requests")
        return rfc8785.dumps([item for item in listed.json()["data"] if item["job_id"] == job])

    async def facts() -> tuple[int, bytes, bytes, list[Any]]:
        shown = await approver.http.get(f"/v1/jobs/{job}/requests/{request}")
        return await history_length(stack, job), await inbox(), shown.content, stack.effects.calls("pay", job=job)

    async def listed() -> bool:
        return request.encode() in await inbox()

    async def replay() -> None:
        replayed = await app.submit(name, key=key)
        assert (replayed.status_code, replayed.headers["Idempotent-Replayed"]) == (200, "true")

    async def drop_a_stream() -> None:
        async with app.stream(job) as events:
            await anext(events)

    await until_told(stack)
    await wait_until(listed, 10, what="the inbox shows the request")
    before = await facts()
    body: Json = {"plugin": name, "input": {}}
    looks: list[Callable[[], Awaitable[Any]]] = [
        lambda: app.http.get(f"/v1/jobs/{job}"),
        lambda: app.http.get(f"/v1/jobs/{job}?after=0"),
        lambda: app.http.get("/v1/jobs"),
        lambda: approver.http.get("/v1/requests"),
        lambda: approver.http.get(f"/v1/jobs/{job}/requests/{request}"),
        lambda: app.http.post("/v1/previews", json=body),
        lambda: app.http.get(f"/v1/jobs/{job}/preview"),
        lambda: app.http.get(f"/v1/jobs/{job}/result"),
        lambda: app.http.get("/readyz"),
        lambda: approver.decide(job, request, "approve", digest="sha256:" + "0" * 64),
        drop_a_stream,
        replay,
    ]
    gate = asyncio.Semaphore(8)

    async def one(look: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            await look()

    await asyncio.gather(*(one(look) for look in looks * 25))
    assert await facts() == before
    assert (await app.status(job))["status"] == "waiting_for_human"
    assert (await approver.decide(job, request, "approve")).status_code == 200
    await app.until_ended(job)
    for unchanged, now in zip(before, await facts(), strict=True):
        assert unchanged != now
