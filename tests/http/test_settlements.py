"""A write that its job left unknown is settled after the end: by whom, once, and what status and retry then say."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from gateway.ledger.tables import effects as effects_table
from tests.http.decisions import person
from tests.http.jobs import terminate
from tests.http.submissions import ledger_of, refused
from tests.http.test_retry import retried, retry
from tests.http.trail import audit_of
from tests.recovery.grounds import published
from tests.recovery.operators import delete
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack

DROPPED = Behaviour(answer=Answer.DROP_AFTER_RECORDING)
ENDS = ["given up", "canceled", "terminated", "out of attempts"]


async def settle(who: Client, job: str, effect: str, answer: Any = "happened", **more: Any) -> httpx2.Response:
    path = f"/v1/jobs/{job}/effects/{effect}/settlement"
    return await who.http.post(path, json={"answer": answer, **more})


async def writer(stack: Stack, effect: str = "write", **options: Any) -> tuple[str, str]:
    """A plugin whose job writes once, and the write's name; the first job's answers are lost."""
    name = fresh_name("pay")
    stack.effects.set_behaviour(name, Behaviour(answer=Answer.DROP_AFTER_RECORDING, times=4))
    plugin = await published(stack, [turn(call(name, {"n": 1})), final({"ok": True})], tool(name, effect, **options))
    return plugin, name


async def left_unknown(stack: Stack, app: Client, approver: Client, how: str, **options: Any) -> tuple[str, str, str]:
    """A job that ended so, its effect of which nobody knows, and the write's name."""
    plugin, name = await writer(stack, "idempotent_write" if how == "out of attempts" else "write", **options)
    job = await app.accepted(plugin)
    if how != "out of attempts":
        [request] = await app.until_request(job)
        if how == "given up":
            await approver.decide(job, request, "settle", answer="stop")
        elif how == "canceled":
            await app.cancel(job)
        else:
            await terminate(stack, job)
    await app.until_ended(job, 60)
    stack.effects.set_behaviour(name, Behaviour())
    key = stack.effects.calls(name, job=job)[0].idempotency_key
    assert key is not None
    return job, key, name


async def state_of(operator: Client, job: str) -> str:
    shown: Json = await operator.get(f"/v1/operator/jobs/{job}")
    [effect] = shown["effects"]
    return effect["state"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(("answer", "state"), [("happened", "reconciled"), ("did_not_happen", "failed")])
async def test_once_it_is_settled_status_says_so_and_the_job_can_be_retried(
    stack: Stack, operator: Client, app: Client, approver: Client, how: str, answer: str, state: str
) -> None:
    job, effect, name = await left_unknown(stack, app, approver, how)
    before, log = await app.status(job), await app.events(job)
    assert (before["executed"], before["next_action"]["code"]) == ("unknown", "ask_operator")
    assert effect in refused(await retry(app, job), 409, "effect-unreconciled")["detail"]
    said = await settle(approver, job, effect, answer, reason="Looked it up.")
    assert said.status_code == 200, said.text
    told = said.json()
    assert (told["state"], told["answer"], told["decided_by"], told["tool"]) == (state, answer, ["approver"], name)
    assert await state_of(operator, job) == state
    after = await app.status(job)
    assert (after["executed"], after["recovery"]) == ("yes", "none")
    assert "Find out" not in after["next_action"]["message"]
    # What had ended so stays ended so.
    for member in ("status", "failure", "finished_at", "last_event", "cancel_requested_at"):
        assert after[member] == before[member], member
    assert await app.events(job) == log
    lines = [line for line in await audit_of(operator) if line["subject"] == f"{job}/{effect}"]
    assert [(line["action"], line["actor"], line["detail"]["answer"]) for line in lines] == [
        ("effect.settled", "approver", answer)
    ]
    again = await retried(app, job)
    if answer == "happened":
        [request] = await app.until_request(again)
        assert (await approver.request(again, request))["title"].startswith(f"Again, after job {job}: ")
        assert stack.effects.calls(name, job=again) == []
        await approver.decide(again, request, "reject")
    assert (await app.until_ended(again))["status"] == "succeeded"
    sent = stack.effects.calls(name, job=again)
    assert len(sent) == (0 if answer == "happened" else 1)
    assert effect not in {one.idempotency_key for one in sent}


async def test_only_who_may_decide_on_the_tool_settles_it_and_exactly_one_of_two_words(
    stack: Stack, operator: Client, app: Client
) -> None:
    groups = {"approval": {"groups": ["finance"]}}
    insider, _, _ = await person(stack, operator, groups=["finance"])
    job, effect, _ = await left_unknown(stack, app, insider, "given up", **groups)
    outsider, _, _ = await person(stack, operator)
    _, own, _ = await person(stack, operator, "jobs:decide", "jobs:submit", "jobs:read")
    mine = stack.client(own, groups=["finance"])
    own_job, own_effect, _ = await left_unknown(stack, mine, insider, "given up", **groups)
    refused(await settle(outsider, job, effect), 403, "not-an-approver")
    refused(await settle(mine, own_job, own_effect), 403, "self-approval")
    refused(await settle(app, job, effect), 403, "not-permitted")
    refused(await settle(stack.client("approver", scopes=["jobs:read"]), job, effect), 403, "not-permitted")
    for word in ("stop", "yes", "HAPPENED", True, None, ["happened"]):
        refused(await settle(insider, job, effect, word), 422, "input-invalid")
    refused(await settle(insider, job, effect, more=1), 422, "input-invalid")
    for unknown in (own_effect, "eff_" + "0" * 32, "eff_", "%00", "r1-000000"):
        refused(await settle(insider, job, unknown), 404, "not-found")
    refused(await settle(insider, fresh_key(), effect), 404, "not-found")
    for one in (job, own_job):
        assert await state_of(operator, one) == "unknown"
        assert (await app.status(one))["executed"] == "unknown"
    # The mutant: a word that counts.
    assert (await settle(insider, job, effect)).status_code == 200
    assert (await settle(insider, own_job, own_effect)).status_code == 200
    assert await state_of(operator, own_job) == "reconciled"


async def test_the_first_word_stands_for_whoever_says_another(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, effect, _ = await left_unknown(stack, app, approver, "canceled")
    first = await settle(approver, job, effect, "did_not_happen")
    assert (await settle(approver, job, effect, "did_not_happen")).text == first.text
    other, _, _ = await person(stack, operator)
    for late in (await settle(approver, job, effect), await settle(other, job, effect, "did_not_happen")):
        assert refused(late, 409, "already-decided")["record"] == first.json()
    assert await state_of(operator, job) == "failed"


async def test_an_open_job_is_asked_by_its_request_and_not_past_it(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin, name = await writer(stack)
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    effect = (await approver.request(job, request))["effect_id"]
    refused(await settle(approver, job, effect), 409, "job-not-ended")
    assert (await app.status(job))["status"] == "waiting_for_human"
    assert await state_of(operator, job) == "unknown"
    await approver.decide(job, request, "settle", answer="happened")
    await app.until_ended(job)
    known = refused(await settle(approver, job, effect, "did_not_happen"), 409, "already-decided")
    assert (known["record"]["state"], known["record"]["answer"]) == ("reconciled", None)
    assert len(stack.effects.calls(name)) == 1


async def test_a_write_that_may_still_arrive_is_awaited_first(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """Terminated in the middle of its call, whose answer is not lost yet."""
    plugin, name = await writer(stack, timeout_seconds=30)
    stack.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    job = await app.accepted(plugin)
    [sent] = await stack.effects.wait_for_calls(name, job=job)
    await terminate(stack, job)
    assert sent.idempotency_key is not None
    early = refused(await settle(approver, job, sent.idempotency_key), 409, "effect-unreconciled")
    assert 0 < early["retry_after_s"] <= 40
    assert await state_of(operator, job) == "sent"
    past = update(effects_table).where(effects_table.c.effect_id == sent.idempotency_key)
    async with ledger_of(stack) as ledger:
        at = datetime.now(UTC) - timedelta(minutes=1)
        await ledger.write(lambda conn: conn.execute(past.values(sent_at=at)))
    assert (await settle(approver, job, sent.idempotency_key)).status_code == 200
    stack.effects.release(name)
    assert await state_of(operator, job) == "reconciled"
    assert (await app.status(job))["executed"] == "yes"


async def test_it_can_be_said_after_the_content_was_erased(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, effect, _ = await left_unknown(stack, app, approver, "given up")
    assert (await operator.http.delete(f"/v1/jobs/{job}/content")).status_code == 200
    assert (await settle(approver, job, effect)).status_code == 200
    assert await state_of(operator, job) == "reconciled"
    assert (await app.status(job))["executed"] == "yes"
    refused(await retry(app, job), 410, "job-expired")


async def test_it_can_be_said_after_the_engine_forgot_the_job_and_then_the_job_is_retried(
    stack: Stack, app: Client, approver: Client
) -> None:
    job, effect, name = await left_unknown(stack, app, approver, "given up")
    await delete(stack, job)
    refused(await retry(app, job), 409, "effect-unreconciled")
    assert (await settle(approver, job, effect, "did_not_happen")).status_code == 200
    again = await retried(app, job)
    assert (await app.until_ended(again))["status"] == "succeeded"
    assert len(stack.effects.calls(name, job=again)) == 1
