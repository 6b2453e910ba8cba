"""What a decision may say: an answer by its question's schema, and only the documented words; nothing else runs."""

from typing import Any

import pytest

from tests.http.decisions import asking, question, raw_decision
from tests.http.jobs import READS_RUN, waiting_job
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack

SHAPE: Json = {
    "type": "object",
    "required": ["team"],
    "additionalProperties": False,
    "properties": {"team": {"enum": ["billing", "legal"]}, "code": {"pattern": "^(a+)+$"}},
}


async def test_an_answer_that_does_not_fit_is_refused_with_its_place_and_the_question_stays_open(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await asking(stack, operator, question("Which team?", **SHAPE), tools=[tool("look")])
    job, request = await waiting_job(app, plugin)
    assert (await approver.request(job, request))["args"]["schema"] == SHAPE
    for answer, place in [
        ("billing", "at /: must be object"),
        ({}, "at /: the member team is missing"),
        ({"team": "canary"}, "at /team: is not one of the allowed values"),
        ({"team": "legal", "canary": 1}, "at /: has a member that is not declared"),
        ({"team": "legal", "code": "a" * 30_000 + "!"}, "at /code: does not match the pattern"),
    ]:
        refused = await approver.decide(job, request, "answer", answer=answer)
        assert problem(refused) == (422, "input-invalid")
        assert place in refused.json()["detail"]
        assert "canary" not in refused.text
        assert (await approver.request(job, request))["state"] == "pending"
    for wrong in ("approve", "settle"):
        answer = "happened" if wrong == "settle" else None
        refused = await approver.decide(job, request, wrong, answer=answer)
        assert problem(refused) == (422, "input-invalid")
    fit = await approver.decide(job, request, "answer", answer={"team": "legal"})
    assert (fit.status_code, fit.json()["state"]) == (200, "answered")
    again = await approver.decide(job, request, "answer", answer={"team": "legal"})
    assert (again.status_code, again.text) == (200, fit.text)
    other = await approver.decide(job, request, "answer", answer={"team": "billing"})
    assert problem(other) == (409, "already-decided")
    assert (await app.until_ended(job))["status"] == "succeeded"


@pytest.mark.parametrize("answer", ["ja, größer", 0, False, [], {"any": [1, None]}, "x" * (32 * 1024 - 2)])
async def test_without_a_schema_any_answer_of_32_kib_counts(
    stack: Stack, operator: Client, app: Client, approver: Client, answer: Any
) -> None:
    name = fresh_name("asks")
    script = [turn(question("Well?")), final({"said": "{{ results['ask_human'] }}"})]
    await publish_plugin(operator, name, script)
    job, request = await waiting_job(app, name)
    too_long = await approver.decide(job, request, "answer", answer="x" * (32 * 1024))
    assert problem(too_long) == (422, "input-invalid")
    assert (await approver.decide(job, request, "answer", answer=answer)).status_code == 200
    ended = await app.until_ended(job)
    if answer != "x" * (32 * 1024 - 2):
        assert ended["result"] == {"said": answer}


async def test_a_question_with_a_schema_that_nobody_can_judge_is_not_put_to_people(
    stack: Stack, operator: Client, app: Client
) -> None:
    endless = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    plugin = await asking(stack, operator, question("Which?", **endless), tools=[tool("look")])
    job = await app.accepted(plugin)
    assert (await app.until_ended(job))["status"] == "succeeded"
    types = await app.event_types(job)
    assert ("tool.refused" in types, "request.opened" in types) == (True, False)


async def test_only_the_documented_words_count_on_one_request_that_stays_open(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await asking(stack, operator))
    digest = (await approver.request(job, request))["action_digest"]
    words: list[Any] = [
        "false",
        "no",
        0,
        1,
        None,
        "",
        [],
        "APPROVE ",
        "Approve",
        True,
        {},
        "approved",
        "yes",
        "APPROVE",
        "approve\n",
    ]
    bodies: list[Json] = [{"decision": word, "action_digest": digest} for word in words]
    bodies += [{"action_digest": digest}, {"decision": "approve"}, {"decision": "approve", "action_digest": None}]
    bodies += [{"decision": "approve", "action_digest": digest.upper()}, {"approve": True, "action_digest": digest}]
    for body in bodies:
        assert problem(await raw_decision(approver, job, request, body)) == (422, "input-invalid"), body
    for reason, refusal in (("x" * 3_000_000, (413, "payload-too-large")), ("x" * 2001, (422, "input-invalid"))):
        assert problem(await approver.decide(job, request, "reject", digest=digest, reason=reason)) == refusal
    shown = await approver.request(job, request)
    assert (shown["state"], shown["votes"]) == ("pending", [])
    rejected = await approver.decide(job, request, "reject", digest=digest, reason="Zu teuer 💸 — いいえ")
    assert (rejected.status_code, rejected.json()["state"]) == (200, "rejected")
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert stack.effects.calls("pay", job=job) == []


async def test_a_rejected_call_takes_no_sibling_down(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job = await app.accepted(await asking(stack, operator, call("pay", {"n": 1}), call("pay", {"n": 2})))
    first, second = await app.until_request(job, count=2)
    assert (await approver.decide(job, first, "reject")).status_code == 200
    assert (await approver.request(job, second))["state"] == "pending"
    assert (await approver.decide(job, second, "approve")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert [sent.args for sent in stack.effects.calls("pay", job=job)] == [{"n": 2}]


async def test_a_model_that_asks_for_the_same_call_twenty_times_is_stopped_asking(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    name = fresh_name("asks")
    script = [turn(call("pay", {"n": 1}))] * 20 + [final({"ok": True})]
    await publish_plugin(
        operator,
        name,
        script,
        tools=[tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=READS_RUN + ASK_ALL,
        limits={"max_steps": 60, "max_duration_seconds": 600, "max_tokens": 100_000},
    )
    job = await app.accepted(name)
    for number in (1, 2, 3):
        await app.until_event(job, "request.opened", count=number)
        [request] = await app.until_request(job)
        assert request.startswith(f"r{number}-")
        assert (await approver.decide(job, request, "reject", reason="No.")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    types = await app.event_types(job)
    assert (types.count("request.opened"), types.count("tool.refused")) == (3, 17)
    assert stack.effects.calls("pay", job=job) == []
