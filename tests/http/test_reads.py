"""Status, events, results and lists on a real stack: true with a worker and without, and the same in both."""

import asyncio
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from tests.conftest import FreshStack
from tests.http.jobs import grant, history_length, plugin_of, terminate, waiting_job, waiting_plugin
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

NOT_COMPARED = {"events", "next_cursor", "has_more", "source", "as_of"}


def fields(view: Json) -> Json:
    return {name: value for name, value in view.items() if name not in NOT_COMPARED}


async def test_a_finished_job_reads_in_full(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [turn(call("look")), final({"n": 0.1, "big": 2**53 - 1})], tool("look"))
    job = await app.accepted(plugin, labels={"ticket": "T-1"})
    view = await app.until_ended(job)
    assert (view["status"], view["executed"], view["recovery"]) == ("succeeded", "yes", "none")
    assert view["result"] == {"n": 0.1, "big": 2**53 - 1}
    assert await app.get(view["result_url"]) == view["result"]
    assert view["next_action"]["code"] == "none"
    assert view["labels"] == {"ticket": "T-1"}
    page = await app.status(job, after="0")
    assert [event["seq"] for event in page["events"]] == list(range(1, len(page["events"]) + 1))
    assert (page["events"][-1], page["has_more"]) == (view["last_event"], False)
    assert fields(page) == fields(view)


@pytest.mark.parametrize("limit", [1, 3])
async def test_pages_are_gap_free_and_end(stack: Stack, operator: Client, app: Client, limit: int) -> None:
    job = await app.accepted(await plugin_of(stack, operator, [turn(call("look")), final()], tool("look")))
    await app.until_ended(job)
    seen: list[int] = []
    cursor, more = "0", True
    while more:
        page = await app.status(job, after=cursor, limit=limit)
        assert len(page["events"]) <= limit
        seen += [event["seq"] for event in page["events"]]
        cursor, more = page["next_cursor"], page["has_more"]
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == len(await app.events(job))


async def test_without_a_worker_every_field_equals_the_last_live_answer(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack()
    app, operator = stack.client("app"), stack.client("operator")
    waiting, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    stack.effects.set_behaviour("hang", Behaviour(Answer.HOLD))
    stuck = await app.accepted(await plugin_of(stack, operator, [turn(call("hang"))], tool("hang")))
    await app.until_event(stuck, "tool.started")
    before = {job: await app.status(job, after="0") for job in (waiting, stuck)}
    assert [view["source"] for view in before.values()] == ["live", "live"]
    stack.workers[0].kill()
    for job, view in before.items():
        assert fields(await app.status(job)) == fields(view)
        recorded = await app.status(job, after="0")
        assert (recorded["source"], recorded["has_more"]) == ("recorded", True)
        assert recorded["events"] == view["events"][: len(recorded["events"])]
        assert fields(recorded) == fields(view)


async def test_a_terminated_job_ends_by_an_operator_without_his_words(
    stack: Stack, operator: Client, app: Client
) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    await terminate(stack, job)
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "ended_by_operator")
    assert (view["last_event"]["seq"], view["pending"], view["next_cursor"]) == (None, [], "end")
    page = await app.status(job, after="0")
    assert page["events"][-1] == view["last_event"]
    assert [event["seq"] for event in page["events"][:-1]] == list(range(1, len(page["events"])))
    assert (page["next_cursor"], page["has_more"]) == ("end", False)
    assert "canary-operator-words" not in str(page)


async def test_a_job_with_no_worker_ends_by_its_deadline(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(workers=0)
    app = stack.client("app")
    job = await app.accepted(await plugin_of(stack, stack.client("operator"), [final()]), timeout_seconds=1)
    overdue = await app.until_status(job, "queued")
    while not overdue["overdue"]:
        overdue = await app.status(job)
    view = await app.until_ended(job)
    assert (view["failure"]["code"], view["executed"], view["overdue"]) == ("deadline_exceeded", "no", False)
    assert [event["type"] for event in await app.events(job)] == ["job.queued", "job.failed"]


async def test_a_canceled_job_reads_in_full_and_has_no_result(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    assert (await app.cancel(job)).status_code == 202
    view = await app.until_ended(job)
    assert (view["status"], view["pending"], view["result"]) == ("canceled", [], None)
    assert [event["seq"] for event in await app.events(job)] == list(range(1, view["last_event"]["seq"] + 1))
    assert problem(await app.http.get(view["result_url"])) == (404, "not-found")


async def test_a_result_before_the_end_is_not_there_yet(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    assert problem(await app.http.get(f"/v1/jobs/{job}/result")) == (409, "job-not-ended")


async def test_a_purged_job_is_gone_with_its_receipt(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final()])
    key = fresh_key()
    receipt = (await app.submit(plugin, key=key)).json()
    await app.until_ended(key)
    engine = await stack.engine()
    gone = WorkflowExecution(workflow_id=f"demo.{key}")
    await engine.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=engine.namespace, workflow_execution=gone)
    )
    async with asyncio.timeout(20):
        while (response := await app.http.get(f"/v1/jobs/{key}")).status_code == 200:
            await asyncio.sleep(0.1)
    assert problem(response) == (410, "job-expired")
    assert response.json()["receipt"] == receipt
    assert problem(await app.http.get(f"/v1/jobs/{key}/events")) == (410, "job-expired")


async def test_a_just_issued_id_is_always_there(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final()])
    for number in range(100):
        job = await app.accepted(plugin)
        asked = await app.http.get(f"/v1/jobs/{job}", params={"after": "0"} if number % 2 else {})
        assert asked.status_code == 200, asked.text
        assert asked.json()["last_event"]["message"]


@pytest.mark.parametrize("granted", [False, True])
@pytest.mark.parametrize("path", ["", "?after=0", "/events", "/result", "/requests/r1-000000"])
async def test_another_workspaces_job_is_as_unknown_as_none(
    stack: Stack, operator: Client, app: Client, path: str, granted: bool
) -> None:
    job = await app.accepted(await plugin_of(stack, operator, [final()]))
    if granted:
        await grant(stack, "elsewhere", "app", "jobs:read", "jobs:decide")
    stranger = stack.client("app", workspace="elsewhere" if granted else "nowhere")
    answers = [await stranger.http.get(f"/v1/jobs/{name}{path}") for name in (job, "nothing-here")]
    assert [problem(answer) for answer in answers] == [(404, "not-found")] * 2
    foreign, unknown = ({**answer.json(), "instance": ""} for answer in answers)
    assert foreign == unknown


async def test_a_reader_needs_scope_and_a_grant_on_the_plugin(stack: Stack, operator: Client, app: Client) -> None:
    job = await app.accepted(await plugin_of(stack, operator, [final()]))
    assert (await operator.http.get(f"/v1/jobs/{job}")).status_code == 200
    for nobody in (stack.client("nobody"), stack.client("app", scopes=["jobs:submit"]), stack.client("approver")):
        for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", "/v1/jobs"):
            assert problem(await nobody.http.get(path)) == (403, "not-permitted")


# ---- waiting


async def test_a_waiting_poll_is_answered_by_the_next_event(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    cursor = (await app.status(job))["next_cursor"]
    poll = asyncio.create_task(app.http.get(f"/v1/jobs/{job}", params={"after": cursor}, headers={"Prefer": "wait=20"}))
    assert (await approver.decide(job, request, "approve")).status_code == 200
    response = await poll
    assert response.headers["Preference-Applied"] == "wait=20"
    assert response.json()["events"][0]["type"] == "request.decided"


async def test_a_waiting_poll_ends_with_its_wait(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    cursor = (await app.status(job))["next_cursor"]
    page = await app.status(job, after=cursor, wait=1)
    assert (page["events"], page["next_cursor"], page["has_more"]) == ([], cursor, False)


async def test_reading_changes_nothing(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    before = (await history_length(stack, job), await approver.request(job, request), len(stack.effects.calls()))
    for _ in range(30):
        await app.status(job)
        await app.status(job, after="0")
        await approver.request(job, request)
        await approver.get("/v1/requests")
        await app.get("/readyz")
        async with app.stream(job) as events:
            await anext(events)
    assert (
        await history_length(stack, job),
        await approver.request(job, request),
        len(stack.effects.calls()),
    ) == before


# ---- lists


async def test_each_job_is_listed_once_while_one_ends_and_one_arrives(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    quick = await plugin_of(stack, operator, [final()])
    jobs = [await app.accepted(plugin) for _ in range(5)]
    jobs += await asyncio.gather(*(app.accepted(plugin, mode="dry_run") for _ in range(20)))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        asked: dict[str, Any] = {"plugin": plugin, "limit": 7, **({"after": cursor} if cursor else {})}
        page = await app.get("/v1/jobs", params=asked)
        seen += [item["job_id"] for item in page["data"]]
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
        await app.cancel(jobs[0])
        await app.accepted(quick)
        await app.accepted(plugin)
    assert sorted(seen) == sorted(jobs)
    assert cursor is None


async def test_a_list_filters_by_status(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    job, _ = await waiting_job(app, plugin)
    other = await app.accepted(plugin, mode="dry_run")
    await app.until_ended(other)
    for status, expected in (("waiting_for_human", [job]), ("succeeded", [other]), ("failed", [])):
        page = await app.get("/v1/jobs", params={"plugin": plugin, "status": status})
        assert [item["job_id"] for item in page["data"]] == expected


async def test_a_list_shows_only_plugins_that_the_caller_may_read(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final()])
    await app.accepted(plugin)
    page = await app.get("/v1/jobs", params={"plugin": "no-such-plugin"})
    assert page == {"data": [], "next_cursor": None, "has_more": False}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/jobs?after=x", 400, "cursor-invalid"),
        ("/v1/jobs?after=am9iczow", 400, "cursor-invalid"),
        ("/v1/jobs?limit=501", 422, "input-invalid"),
        ("/v1/jobs?status=done", 422, "input-invalid"),
        ("/v1/jobs?colour=red", 422, "input-invalid"),
        ("/v1/requests?state=open", 422, "input-invalid"),
    ],
)
async def test_what_a_list_does_not_take(app: Client, path: str, status: int, code: str) -> None:
    assert problem(await app.http.get(path)) == (status, code)


@pytest.mark.parametrize("after", ["-1", "01", "1.0", "x", "", "1e3", "99999999999", " 1", "٣"])
async def test_a_cursor_that_was_never_given_out(stack: Stack, operator: Client, app: Client, after: str) -> None:
    job = await app.accepted(await plugin_of(stack, operator, [final()]))
    await app.until_ended(job)
    assert problem(await app.http.get(f"/v1/jobs/{job}", params={"after": after})) == (400, "cursor-invalid")
    assert problem(await app.http.get(f"/v1/jobs/{job}/events", params={"after": after})) == (400, "cursor-invalid")


async def test_readiness_names_every_rung(stack: Stack) -> None:
    async with Client(stack.apis[0].url, None) as nobody:
        body = await nobody.get("/readyz")
    assert [rung["rung"] for rung in body["rungs"]] == ["engine", "ledger", "blobs", "workers"]
    assert body["ready"] is True


async def test_a_poll_that_waits_is_answered_at_shutdown(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    leaving = stack.add_api()
    await stack.until_ready(leaving)
    async with Client(leaving.url, app.token) as reader:
        cursor = (await reader.status(job, after="0"))["next_cursor"]
        poll = asyncio.create_task(reader.status(job, after=cursor, wait=60))
        async with asyncio.timeout(10):
            while "jobgate_upstream_watchers 1.0" not in (await operator.http.get(f"{leaving.url}/metrics")).text:
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(leaving.stop) == 0
        assert (await poll)["events"] == []
    assert '"level": "error"' not in leaving.output
