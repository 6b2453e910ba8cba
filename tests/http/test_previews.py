"""A preview says what submitting would come to, by admission's own rules, and leaves everything as it was."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import func, select

from gateway.ledger.tables import metadata
from tests.conftest import FreshStack
from tests.http.jobs import history_length
from tests.http.submissions import body_with, ledger_of, publish_brisk, refused, submit_bytes
from tests.http.test_packets import boss_of, canary_plugin, held_job, propose
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

FLAGS = (
    *("worker_executed", "state_mutated", "process_started"),
    *("approval_consumed", "config_changed", "phase_promoted"),
)
QUIET = dict.fromkeys(FLAGS, False)
LIVE = {"eligibility": "live_approved", "blocker": None, "next_gate": None, "not_yet": None}


async def preview(client: Client, plugin: str, **members: Any) -> Json:
    return whole(await client.post("/v1/previews", {"plugin": plugin, "input": {}, **members}))


async def preview_of(client: Client, job: str) -> Json:
    return whole(await client.get(f"/v1/jobs/{job}/preview"))


def whole(answer: Json) -> Json:
    """The answer without the side effects, which must all be false, and with a "not yet" that says so."""
    assert list(answer) == [
        *("eligibility", "blocker", "projected_status", "would_change", "would_execute", "next_gate", "not_yet"),
        "side_effects",
    ]
    assert answer.pop("side_effects") == QUIET
    assert (answer["not_yet"] is None) == (answer["eligibility"] == "live_approved")
    assert answer["not_yet"] is None or answer["not_yet"].startswith("Not yet")
    return answer


def facts(answer: Json) -> tuple[str, str | None, str | None, bool, bool, str | None]:
    return (
        answer["eligibility"],
        answer["blocker"],
        answer["projected_status"],
        answer["would_change"],
        answer["would_execute"],
        answer["next_gate"],
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    limits = {"max_steps": 20, "max_duration_seconds": 600}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return await publish_brisk(stack.client("operator"), "view-brisk", limits=limits, manifest={"input_schema": schema})


async def test_a_preview_climbs_with_the_version(operator: Client, app: Client) -> None:
    name = await publish_brisk(operator, fresh_name("view"), phase=None)
    blocked = ("blocked", "phase_blocked_noop", None, False, False, "stateful_noop")
    for members in ({}, {"mode": "dry_run"}, {"on_blocked": "refuse"}):
        assert facts(await preview(app, name, **members)) == blocked
    for phase, following in (("stateful_noop", "live_canary"), ("live_canary", "live")):
        await promote(operator, name, "1.0.0", to=phase)
        waits = ("dry_run_eligible", "awaiting_promotion")
        assert facts(await preview(app, name)) == (*waits, "queued", True, False, following)
        assert facts(await preview(app, name, mode="dry_run")) == (*waits, "succeeded", True, False, following)
        assert facts(await preview(app, name, on_blocked="refuse")) == (*waits, None, False, False, following)
    await promote(operator, name, "1.0.0")
    assert await preview(app, name) == LIVE | {
        "projected_status": "running",
        "would_change": True,
        "would_execute": True,
    }
    assert facts(await preview(app, name, mode="dry_run"))[2:5] == ("succeeded", True, False)


async def test_a_preview_says_what_the_refusal_would(stack: Stack, operator: Client, app: Client) -> None:
    """The same words: eligibility, blocker, next gate and "not yet" of the 409, and no key is taken."""
    local = await publish_brisk(operator, fresh_name("view"), manifest={"offload": "local_only"})
    strange = await publish_brisk(operator, fresh_name("view"), manifest={"requires": ["gpu"]})
    withdrawn = await publish_brisk(operator, fresh_name("view"))
    await operator.post(f"/v1/plugins/{withdrawn}/versions/1.0.0/withdrawal", {"reason": "a test"})
    for name, blocker in (
        (local, "local_only_by_contract"),
        (strange, "capability_unavailable"),
        (withdrawn, "version_withdrawn"),
    ):
        answer = await preview(app, name)
        said = (await submit_bytes(app, body_with(name))).json()
        assert answer["blocker"] == said["blocker"] == blocker
        assert {key: answer[key] for key in ("eligibility", "next_gate", "not_yet")} == {
            key: said[key] for key in ("eligibility", "next_gate", "not_yet")
        }
        assert (answer["projected_status"], answer["would_change"], answer["would_execute"]) == (None, False, False)
    assert facts(await preview(app, local, mode="dry_run"))[:5] == (
        *("local_only", "local_only_by_contract", "succeeded"),
        *(True, False),
    )


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 422, "input-invalid"),
        ('{"plugin": "view-brisk", "input": {}, "input": {}}', 422, "input-invalid"),
        ('{"plugin": "view-brisk", "input": {"n": NaN}}', 422, "input-invalid"),
        ('{"plugin": "view-brisk", "input": {}, "extra": 1}', 422, "input-invalid"),
        ('{"plugin": "view-brisk", "input": {"n": "one"}}', 422, "input-invalid"),
        ('{"plugin": "view-brisk", "input": {}, "deadline": "2020-01-01T00:00:00Z"}', 422, "deadline-invalid"),
        ('{"plugin": "view-brisk", "input": {}, "timeout_seconds": 601}', 422, "limit-exceeded"),
        ('{"plugin": "view-brisk", "input": {}, "budget": {"max_steps": 21}}', 422, "limit-exceeded"),
        ('{"plugin": "no-such-plugin", "input": {}}', 404, "plugin-unknown"),
        ('{"plugin": "view-brisk", "input": {}, "version": "9.9.9"}', 404, "plugin-unknown"),
    ],
)
async def test_what_is_no_question_of_eligibility_stays_a_refusal(
    app: Client, brisk: str, body: str, status: int, code: str
) -> None:
    """Word for word what the submission is told."""
    answer = await submit_bytes(app, body, path="/v1/previews")
    told = refused(answer, status, code)
    assert told["detail"] == refused(await submit_bytes(app, body), status, code)["detail"]


async def test_a_preview_needs_the_scope_the_grant_and_json(stack: Stack, app: Client, brisk: str) -> None:
    for client in (stack.client("app", scopes=["jobs:read"]), stack.client("approver"), stack.client("nobody")):
        answer = await client.http.post("/v1/previews", json={"plugin": brisk, "input": {}})
        assert problem(answer) == (403, "not-permitted")
    assert problem(await app.http.post("/v1/previews", content=b"{}")) == (415, "unsupported-media-type")
    assert problem(await app.http.post("/v1/previews?x=1", json={})) == (422, "input-invalid")


# ---- a job that is there


async def test_the_preview_of_a_held_job_follows_its_packet(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job, other = await held_job(app, plugin), await held_job(app, plugin)
    waits = ("dry_run_eligible", "awaiting_promotion", "queued", False, False, "live")
    assert facts(await preview_of(app, job)) == waits
    packet = await propose(operator, job, "look")
    assert facts(await preview_of(app, job)) == waits, "a proposal lets nothing run"
    assert (await operator.get(f"/v1/packets/{packet}"))["state"] == "proposed"
    assert (await boss.http.post(f"/v1/packets/{packet}/approval")).status_code == 200
    await app.until_ended(job)
    assert await preview_of(app, job) == LIVE | {
        "projected_status": "succeeded",
        "would_change": False,
        "would_execute": False,
    }
    assert facts(await preview_of(app, other)) == waits
    # Live alone releases no held job; what is submitted now runs.
    await promote(operator, plugin, "1.0.0")
    assert facts(await preview_of(app, other)) == waits
    assert facts(await preview(app, plugin))[2:5] == ("running", True, True)
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/demotions", {"to": "blocked_noop", "reason": "a test"})
    blocked = ("blocked", "phase_blocked_noop", "queued", False, False, "stateful_noop")
    assert facts(await preview_of(app, other)) == blocked
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal", {"reason": "a test"})
    assert facts(await preview_of(app, other))[:2] == ("blocked", "version_withdrawn")


async def test_the_preview_of_a_job_says_whether_it_goes_on_by_itself(
    stack: Stack, operator: Client, app: Client
) -> None:
    name = fresh_name("view")
    script = [turn(call("pay", {"n": 1})), final()]
    options: dict[str, Any] = {"tools_url": stack.effects.url, "policy": ASK_ALL}
    await publish_plugin(operator, name, script, tools=[tool("pay", "write")], **options)
    job = await app.accepted(name)
    await app.until_request(job)
    await app.until_status(job, "waiting_for_human")
    assert facts(await preview_of(app, job)) == ("live_approved", None, "waiting_for_human", False, False, None)
    await operator.post(f"/v1/plugins/{name}/versions/1.0.0/demotions", {"to": "live_canary", "reason": "a test"})
    demoted = ("dry_run_eligible", "awaiting_promotion", "waiting_for_human", False, False, "live")
    assert facts(await preview_of(app, job)) == demoted
    await app.cancel(job)
    await app.until_ended(job)
    assert facts(await preview_of(app, job))[2:5] == ("canceled", False, False)


async def test_the_preview_of_a_job_is_for_whoever_may_read_it(stack: Stack, app: Client, brisk: str) -> None:
    job = await app.accepted(brisk)
    path = f"/v1/jobs/{job}/preview"
    assert problem(await app.http.get("/v1/jobs/no-such-job/preview")) == (404, "not-found")
    assert problem(await stack.client("app", scopes=["jobs:submit"]).http.get(path)) == (403, "not-permitted")
    assert problem(await stack.client("app", workspace="other").http.get(path)) == (404, "not-found")


# ---- looking changes nothing


async def census(stack: Stack, jobs: list[str]) -> Json:
    """Rows by table, blobs, history lengths and executions."""
    async with ledger_of(stack) as ledger:
        rows = await ledger.read(
            lambda conn: {
                table.name: conn.execute(select(func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }
        )
    return {
        **rows,
        "blobs": sorted(str(path) for path in (stack.data / "blobs").rglob("*")),
        "histories": [await history_length(stack, job) for job in jobs],
        "executions": (await (await stack.engine()).count_workflows()).count,
    }


async def test_a_thousand_previews_leave_every_census_equal(fresh_stack: FreshStack) -> None:
    own = await fresh_stack()
    operator, app = own.client("operator"), own.client("app")
    plugin = await canary_plugin(own, operator)
    unused = await publish_brisk(operator, fresh_name("view"))  # never run: its snapshot is stored by no preview
    held = await held_job(app, plugin)
    ended = await app.accepted(plugin, mode="dry_run")
    await app.until_ended(ended)
    packet = await propose(operator, held, "look")
    jobs = [held, ended]

    async def settled() -> bool:
        return (await census(own, jobs))["executions"] == 2

    await wait_until(settled, 20, what="both executions are listed")
    before = await census(own, jobs)
    bodies = [
        {"plugin": name, "input": {"n": 1}, "mode": mode} for name in (plugin, unused) for mode in ("live", "dry_run")
    ]
    bodies.append({"plugin": unused, "input": {}, "session": "new-session"})

    async def look(number: int) -> None:
        await app.post("/v1/previews", bodies[number % len(bodies)])
        await preview_of(app, jobs[number % 2])
        await app.status(held)
        if number % 10 == 0:
            await app.http.get("/readyz")
            await operator.get(f"/v1/packets/{packet}")

    for start in range(0, 500, 20):
        await asyncio.gather(*(look(start + step) for step in range(20)))
    assert await census(own, jobs) == before
    assert (await operator.get(f"/v1/packets/{packet}"))["state"] == "proposed"
    # The mutant: one submission, and the census sees it everywhere.
    ran = await app.accepted(unused)
    await app.until_ended(ran)

    async def listed() -> bool:
        return (await census(own, jobs))["executions"] == 3

    await wait_until(listed, 20, what="the execution is listed")
    after = await census(own, jobs)
    assert {name for name in before if after[name] != before[name]} >= {"receipts", "blobs", "executions"}
