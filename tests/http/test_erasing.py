"""Erasing a job's content: what it held is gone from ledger, blobs and answers; receipt, decisions and audit stay."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import httpx2
from sqlalchemy import select, update

from gateway.blobs import job_folder
from gateway.ledger.authority_tables import authorities
from gateway.ledger.catalog_tables import artifacts
from gateway.ledger.tables import decisions, receipts, votes
from tests.conftest import FreshStack
from tests.http.decisions import asking, question
from tests.http.jobs import plugin_of, waiting_job, waiting_plugin
from tests.http.submissions import ledger_of, refused, replayed
from tests.http.test_artifacts import large_job, located, signed_address, without_credentials
from tests.http.test_session_messages import said
from tests.http.test_sessions import fresh_session, in_turn
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Behaviour
from tests.rig.plugins import call, final, tool
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId


async def erase(who: Client, job: str) -> httpx2.Response:
    return await who.http.delete(f"/v1/jobs/{job}/content")


async def erased(who: Client, job: str) -> Json:
    answer = await erase(who, job)
    assert answer.status_code == 200, answer.text
    assert answer.json()["job_id"] == job
    return answer.json()


def blobs_with(stack: Stack, needle: str) -> Sequence[str]:
    """Files of the blob store that hold this text."""
    files = sorted(path for path in (stack.data / "blobs").glob("**/*") if path.is_file())
    return [path.name for path in files if needle.encode() in path.read_bytes()]


async def rows_of(stack: Stack, job: str) -> str:
    """What the ledger's rows of a job say, where content may be."""
    found: list[str] = []
    async with ledger_of(stack) as ledger:
        for table in (receipts, votes, decisions, artifacts):
            query = select(table).where(table.c.job_id == job)
            found += await ledger.read(lambda conn, query=query: [str(row) for row in conn.execute(query)])
    return "\n".join(found)


async def talkative_job(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> tuple[str, str, httpx2.Response, str]:
    """A job, its one request, its receipt, and a word that its input, a tool's result, an answer and a title hold."""
    needle = f"needle-{fresh_key()}-"
    stack.effects.set_behaviour("look", Behaviour(body={"seen": f"{needle}result"}))
    plugin = await asking(stack, operator, call("look"), question(f"{needle}title?"), tools=[tool("look")])
    receipt = await app.submit(plugin, {"text": f"{needle}input"})
    job = receipt.json()["job_id"]
    [request] = await app.until_request(job)
    assert (await approver.decide(job, request, "answer", answer=f"{needle}answer")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    return job, request, receipt, needle


async def test_what_a_job_held_is_gone_from_ledger_and_blobs(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request, _, needle = await talkative_job(stack, operator, app, approver)
    for word in ("result", "answer"):
        assert blobs_with(stack, needle + word)
    for word in ("input", "answer", "title"):
        assert needle + word in await rows_of(stack, job)
    await erased(operator, job)
    assert [found for word in ("input", "result", "answer") for found in blobs_with(stack, needle + word)] == []
    assert list((stack.data / "blobs").glob(f"*/{job_folder(JobId(job))}/*")) == []
    assert needle not in await rows_of(stack, job)
    shown = await app.request(job, request)
    assert (shown["args"], shown["title"]) == (None, "(erased)")
    assert (shown["state"], shown["decided_by"]) == ("answered", ["approver"])
    again = await approver.decide(job, request, "answer", answer=f"{needle}answer")
    assert needle not in again.text
    refused(again, 409, "already-decided")


async def test_the_receipt_the_status_and_the_audit_stay(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, _, receipt, needle = await talkative_job(stack, operator, app, approver)
    before = await app.status(job, after="0", limit=500)
    first = await erased(operator, job)
    assert await erased(operator, job) == first
    again = await app.submit(receipt.json()["plugin"]["name"], {"text": f"{needle}input"}, key=job)
    replayed(again, receipt)
    after = await app.status(job, after="0", limit=500)
    assert (after["status"], after["result"], after["events"]) == ("succeeded", None, before["events"])
    assert after["next_action"] == {"code": "none", "message": "The content of this job was erased."}
    gone = refused(await app.http.get(after["result_url"]), 410, "job-expired")
    assert gone["receipt"] == receipt.json()
    assert [(line["action"], line["actor"]) for line in await audited(operator, job)] == [("job.erased", "operator")]


async def audited(operator: Client, job: str) -> list[Json]:
    """The lines of audit whose subject is the job itself."""
    found: list[Json] = []
    asked = {"limit": "500"}
    while True:
        page = await operator.get("/v1/audit", params=asked)
        found += [line for line in page["data"] if line["subject"] == job]
        if not page["has_more"]:
            return found
        asked["after"] = page["next_cursor"]


async def test_a_job_that_has_not_ended_keeps_what_it_holds(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator), input={"text": "kept"})
    refused(await erase(operator, job), 409, "job-not-ended")
    assert "kept" in await rows_of(stack, job)
    await app.cancel(job)
    await app.until_ended(job)
    await erased(operator, job)
    assert "kept" not in await rows_of(stack, job)


async def test_only_who_may_give_grants_on_the_plugin_erases(stack: Stack, operator: Client, app: Client) -> None:
    view = await large_job(stack, operator, app)
    job = view["job_id"]
    refused(await erase(app, job), 403, "not-permitted")
    refused(await erase(stack.client("operator", scopes=["jobs:read"]), job), 403, "not-permitted")
    refused(await erase(stack.client("operator", workspace="elsewhere"), job), 404, "not-found")
    refused(await erase(operator, "no-such-job"), 404, "not-found")
    refused(await erase(operator, "%00"), 404, "not-found")
    assert (await app.status(job))["artifacts"] == view["artifacts"]


async def test_artifacts_go_and_an_address_that_was_given_out_leads_nowhere(
    stack: Stack, operator: Client, app: Client
) -> None:
    view, other = await large_job(stack, operator, app), await large_job(stack, operator, app)
    address = await signed_address(app, view)
    await erased(operator, view["job_id"])
    shown = await app.status(view["job_id"])
    assert (shown["artifacts"], shown["delivery"]) == ([], "delivered")
    gone = refused(await located(app, view["artifacts"][0]["url"]), 410, "job-expired")
    assert gone["receipt"]["job_id"] == view["job_id"]
    refused(await without_credentials(stack, address), 404, "not-found")
    refused(await app.http.get(view["result_url"]), 410, "job-expired")
    # The same bytes, of another job.
    assert (await without_credentials(stack, await signed_address(app, other))).status_code == 200


async def test_a_retry_of_an_erased_job_is_refused_and_one_from_before_goes_on(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await plugin_of(stack, operator, [final({"heard": "{{ input.text }}"})])
    job = await app.accepted(plugin, {"text": "spoken"})
    await app.until_ended(job)
    key = fresh_key()
    first = await app.http.post(f"/v1/jobs/{job}/retry", json={}, headers={"Idempotency-Key": key})
    assert first.status_code == 202, first.text
    await app.until_ended(key)
    await erased(operator, job)
    assert (await app.status(key))["result"] == {"heard": "spoken"}
    replayed(await app.http.post(f"/v1/jobs/{job}/retry", json={}, headers={"Idempotency-Key": key}), first)
    answer = await app.http.post(f"/v1/jobs/{job}/retry", json={}, headers={"Idempotency-Key": fresh_key()})
    assert refused(answer, 410, "job-expired")["receipt"]["job_id"] == job


async def test_a_session_goes_on_after_its_last_job_was_erased(stack: Stack, operator: Client, app: Client) -> None:
    plugin, session = await plugin_of(stack, operator, [final({"heard": "{{ input.n }}"})]), fresh_session()
    first, second = [await in_turn(app, plugin, session, input={"n": n}) for n in (1, 2)]
    await erased(operator, second)
    assert await said(app, session) == [("user", {"n": 1}), ("assistant", {"heard": 1}), ("user", None)]
    third = await in_turn(app, plugin, session, input={"n": 3})
    assert (await app.status(third))["result"] == {"heard": 3}
    assert (await said(app, session))[:3] == [("user", {"n": 1}), ("assistant", {"heard": 1}), ("user", None)]
    await erased(operator, first)
    assert [content for _, content in await said(app, session)][-2:] == [{"n": 3}, {"heard": 3}]


async def test_a_job_that_began_on_an_erased_conversation_goes_on(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin, session = await asking(stack, operator, question("Go on?")), fresh_session()
    first = await app.accepted(plugin, session=session)
    [request] = await app.until_request(first)
    await approver.decide(first, request, "answer", answer="yes")
    await app.until_ended(first)
    stack.workers[0].freeze()
    try:
        second = await app.accepted(plugin, session=session)
        await erased(operator, first)
    finally:
        stack.workers[0].resume()
    [request] = await app.until_request(second)
    await approver.decide(second, request, "answer", answer="yes")
    assert (await app.until_ended(second))["status"] == "succeeded"


async def test_many_who_erase_at_once_are_told_the_same(stack: Stack, operator: Client, app: Client) -> None:
    view = await large_job(stack, operator, app)
    told = await asyncio.gather(*(erase(operator, view["job_id"]) for _ in range(10)))
    assert {answer.status_code for answer in told} == {200}
    assert len({answer.text for answer in told}) == 1


async def test_content_goes_when_its_time_is_over_and_younger_content_stays(fresh_stack: FreshStack) -> None:
    settings = {"JOBGATE_CONTENT_RETENTION_DAYS": "30", "JOBGATE_CONTENT_SWEEP_S": "0.3"}
    stack = await fresh_stack(settings=settings)
    app, operator = stack.client("app"), stack.client("operator")
    old, young = await large_job(stack, operator, app), await large_job(stack, operator, app)
    upload = (await app.http.post("/v1/artifacts", content=b"old")).json()
    fresh = (await app.http.post("/v1/artifacts", content=b"fresh")).json()
    past = datetime.now(UTC) - timedelta(days=31)
    async with ledger_of(stack) as ledger:
        aged = update(authorities).where(authorities.c.job_id == old["job_id"]).values(ended_at=past)
        await ledger.write(lambda conn: conn.execute(aged))
        aged_upload = update(artifacts).where(artifacts.c.artifact_id == upload["artifact_id"]).values(at=past)
        await ledger.write(lambda conn: conn.execute(aged_upload))

    async def gone() -> bool:
        answers = [await located(app, url) for url in (old["artifacts"][0]["url"], upload["url"])]
        return [answer.status_code for answer in answers] == [410, 404]

    await wait_until(gone, 20, what="old content is gone")
    assert (await app.status(young["job_id"]))["artifacts"] == young["artifacts"]
    assert (await located(app, fresh["url"])).status_code == 302
    lines = [line for line in (await operator.get("/v1/audit?limit=500"))["data"] if line["action"] == "job.erased"]
    assert [(line["subject"], line["actor"]) for line in lines] == [(old["job_id"], "retention")]
