"""Requests and decisions on a real stack: who sees them, who decides, what counts, and what stands afterwards."""

import asyncio

import pytest

from tests.conftest import FreshStack
from tests.http.jobs import grant, history_length, waiting_job, waiting_plugin
from tests.rig.client import Client, Json, problem
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until


async def test_an_approver_who_submitted_nothing_sees_inbox_and_arguments(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))

    async def listed() -> Json | None:
        inbox = (await approver.get("/v1/requests", params={"state": "pending"}))["data"]
        return next((item for item in inbox if item["job_id"] == job), None)

    item = await wait_until(listed, 10, what="the inbox shows the request")
    request = await approver.request(job, request_id)
    assert (item["request_id"], item["action_digest"]) == (request_id, request["action_digest"])
    assert (request["tool"], request["args"], request["state"], request["votes"]) == ("pay", {"n": 1}, "pending", [])
    assert problem(await approver.http.get(f"/v1/jobs/{job}")) == (403, "not-permitted")
    assert problem(await approver.http.get(f"/v1/jobs/{job}/requests/r9-000000")) == (404, "not-found")


async def test_an_approval_runs_the_call_once_and_repeats_the_same_answer(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    digest = (await approver.request(job, request_id))["action_digest"]
    answers = await asyncio.gather(*(approver.decide(job, request_id, "approve", digest=digest) for _ in range(10)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
    assert answers[0].json()["state"] == "approved"
    await app.until_ended(job)
    again = await approver.decide(job, request_id, "approve", digest=digest)
    assert (again.status_code, again.text) == (200, answers[0].text)
    opposite = await approver.decide(job, request_id, "reject", digest=digest)
    assert problem(opposite) == (409, "already-decided")
    assert opposite.json()["record"]["decided_by"] == ["approver"]
    assert len(stack.effects.calls("pay", job=job)) == 1
    assert "decision.refused" not in await app.event_types(job)
    shown = await approver.request(job, request_id)
    assert (shown["state"], shown["decided_by"]) == ("approved", ["approver"])
    assert [vote["principal"] for vote in shown["votes"]] == ["approver"]


async def test_a_rejection_keeps_the_call_from_running(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    answer = await approver.decide(job, request_id, "reject", reason="Zu teuer — nein")
    assert (answer.status_code, answer.json()["state"]) == (200, "rejected")
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert stack.effects.calls("pay", job=job) == []


@pytest.mark.parametrize("decision", ["false", "no", 0, 1, None, "", [], "APPROVE ", "Approve", True])
async def test_only_the_documented_words_count(
    stack: Stack, operator: Client, app: Client, approver: Client, decision: object
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    assert problem(await approver.decide(job, request_id, decision)) == (422, "input-invalid")
    assert (await approver.request(job, request_id))["state"] == "pending"


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"reason": "x" * 2001}, 422, "input-invalid"),
        ({"answer": {"a": 1}}, 422, "input-invalid"),
        ({"decision": "answer"}, 422, "input-invalid"),
        ({"decision": "answer", "answer": "yes"}, 422, "input-invalid"),
        ({"decision": "settle", "answer": "maybe"}, 422, "input-invalid"),
        ({"decision": "answer", "answer": "x" * 40_000}, 422, "input-invalid"),
        ({"action_digest": "sha256:12"}, 422, "input-invalid"),
        ({"action_digest": "sha256:" + "0" * 64}, 412, "action-digest-mismatch"),
        ({"approver": "somebody"}, 422, "input-invalid"),
        ({"reason": "x" * 300_000}, 413, "payload-too-large"),
    ],
)
async def test_what_a_decision_may_not_be(
    stack: Stack, operator: Client, app: Client, approver: Client, changed: Json, status: int, code: str
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    digest = (await approver.request(job, request_id))["action_digest"]
    body = {"decision": "approve", "action_digest": digest, **changed}
    response = await approver.http.post(f"/v1/jobs/{job}/requests/{request_id}/decision", json=body)
    assert problem(response) == (status, code)
    assert (await approver.request(job, request_id))["state"] == "pending"
    assert stack.effects.calls("pay", job=job) == []


async def test_who_may_decide(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await waiting_plugin(stack, operator, approval={"groups": ["finance"]})
    job, request_id = await waiting_job(app, plugin, initiator={"kind": "user", "id": "mallory"})
    for name in ("app", "mallory"):
        await grant(stack, "demo", name, "jobs:decide", plugins=[plugin])
    digest = (await app.request(job, request_id))["action_digest"]

    async def decided(who: Client) -> tuple[int, str]:
        return problem(await who.decide(job, request_id, "approve", digest=digest))

    async with Client(stack.apis[0].url, None) as nobody:
        assert await decided(nobody) == (401, "unauthenticated")
    assert await decided(stack.client("approver", scopes=["jobs:read"], groups=["finance"])) == (403, "not-permitted")
    assert await decided(stack.client("operator", groups=["finance"])) == (403, "not-permitted")
    assert await decided(stack.client("approver", groups=["sales"])) == (403, "not-an-approver")
    assert await decided(stack.client("app", groups=["finance"])) == (403, "self-approval")
    assert await decided(stack.client("mallory", groups=["finance"])) == (403, "self-approval")
    assert (await app.request(job, request_id))["votes"] == []
    approved = await stack.client("approver", groups=["finance"]).decide(job, request_id, "approve", digest=digest)
    assert approved.status_code == 200


async def test_two_people_are_two_people(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    plugin = await waiting_plugin(stack, operator, approval={"quorum": 2})
    await grant(stack, "demo", "second", "jobs:decide", plugins=[plugin])
    job, request_id = await waiting_job(app, plugin)
    first = await approver.decide(job, request_id, "approve")
    assert (first.status_code, first.json()["state"], first.json()["votes"]) == (200, "pending", 1)
    again = await approver.decide(job, request_id, "approve")
    assert (again.status_code, again.text) == (200, first.text)
    assert problem(await approver.decide(job, request_id, "reject")) == (409, "already-decided")
    assert (await app.status(job))["status"] == "waiting_for_human"
    await app.until_event(job, "request.voted")
    second = await stack.client("second").decide(job, request_id, "approve")
    assert (second.json()["state"], second.json()["decided_by"]) == ("approved", ["approver", "second"])
    await app.until_ended(job)
    assert "decision.refused" not in await app.event_types(job)


async def test_an_expired_request_is_never_a_yes(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    plugin = await waiting_plugin(stack, operator, approval={"expires_in_seconds": 1})
    job, request_id = await waiting_job(app, plugin)
    digest = (await approver.request(job, request_id))["action_digest"]
    await app.until_event(job, "request.expired")
    assert problem(await approver.decide(job, request_id, "approve", digest=digest)) == (410, "request-expired")
    assert (await approver.request(job, request_id))["state"] == "expired"
    await app.until_ended(job)
    assert stack.effects.calls("pay", job=job) == []


async def test_a_decision_after_cancel_is_refused_and_nothing_runs(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    digest = (await approver.request(job, request_id))["action_digest"]
    await app.cancel(job)
    assert problem(await approver.decide(job, request_id, "approve", digest=digest)) == (409, "request-voided")
    await app.until_ended(job)
    assert problem(await approver.decide(job, request_id, "approve", digest=digest)) == (409, "request-voided")
    assert (await approver.request(job, request_id))["state"] == "voided"
    assert job not in str(await approver.get("/v1/requests"))
    assert stack.effects.calls("pay", job=job) == []


async def test_unknown_jobs_and_requests_have_nothing_to_decide(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    digest = "sha256:" + "0" * 64
    assert problem(await approver.decide(job, "r7-abcdef", "approve", digest=digest)) == (404, "not-found")
    assert problem(await approver.decide("nothing", "r1-abcdef", "approve", digest=digest)) == (404, "not-found")


async def test_without_a_worker_a_decision_stands_and_is_taken_up_later(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack()
    app, approver = stack.client("app"), stack.client("approver")
    job, request_id = await waiting_job(app, await waiting_plugin(stack, stack.client("operator")))
    stack.workers[0].kill()
    response = await approver.decide(job, request_id, "approve")
    assert (response.status_code, response.json()["state"]) == (202, "approved")
    assert response.headers["Location"] == f"/v1/jobs/{job}/requests/{request_id}"
    assert (await approver.request(job, request_id))["state"] == "approved"
    await stack.until_polling(stack.add_worker())
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert len(stack.effects.calls("pay", job=job)) == 1


async def test_a_refused_decision_leaves_no_trace(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request_id = await waiting_job(app, await waiting_plugin(stack, operator))
    before = await history_length(stack, job), await approver.request(job, request_id)
    await approver.decide(job, request_id, "approve", digest="sha256:" + "0" * 64)
    assert (await history_length(stack, job), await approver.request(job, request_id)) == before
