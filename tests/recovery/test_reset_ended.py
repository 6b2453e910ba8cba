"""A job that had ended and is reset is open again: counted, told of revocations, and bound by the stop it had."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from gateway.ledger.authorities import find_authority, mark_ended
from tests.http.decisions import person, revoke
from tests.http.submissions import ledger_of, refused
from tests.http.test_retry import retry
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.recovery.operators import numbers, on_job, reset
from tests.rig.client import Client
from tests.rig.effect_log import Behaviour
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, Workspace

BUSY_S = 60.0
WHERE_IT_WAITED = -3
"""A job that is canceled while it waits closes its request in one more task and ends in another."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("reset-ended")) as stack:
        yield stack


async def paying(ground: Stack) -> tuple[str, str]:
    """A plugin that looks, then pays once a person said so; and the payment's name."""
    name = fresh_name("pays")
    script = [turn(call(f"{name}-look")), turn(call(name, {"n": 1})), final()]
    tools = (tool(f"{name}-look"), tool(name, "write"))
    return await published(ground, script, *tools, policy=READS_RUN_WRITES_ASK), name


async def ended_at(ground: Stack, job: str) -> datetime | None:
    """When the ledger noted that the job is over; None: it takes it for open."""
    async with ledger_of(ground) as ledger:
        row = await ledger.read(lambda conn: find_authority(conn, Workspace("demo"), JobId(job)))
    assert row is not None
    return row.ended_at


async def note_end(ground: Stack, job: str) -> None:
    """As the sweep of the workers does sooner or later."""
    async with ledger_of(ground) as ledger:
        await ledger.write(lambda conn: mark_ended(conn, [(Workspace("demo"), JobId(job))], datetime.now(UTC)))


async def noted_as_ended(ground: Stack, job: str) -> bool:
    return await ended_at(ground, job) is not None


async def noted_as_open(ground: Stack, job: str) -> bool:
    return await ended_at(ground, job) is None


@pytest.mark.parametrize("task", [0, -1])
@pytest.mark.parametrize("signals", [True, False])
async def test_a_canceled_job_that_is_reset_is_canceled_again_by_itself(
    ground: Stack, task: int, signals: bool
) -> None:
    """Reset to where it waited for a person it calls nothing, so no permit tells it of its stop."""
    app, approver = ground.client(), ground.client("approver")
    plugin, name = await paying(ground)
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    waited = len(await app.events(job))
    first = (await app.cancel(job)).json()
    before = await app.until_ended(job, BUSY_S)
    await note_end(ground, job)
    await reset(ground, job, 0 if task == 0 else WHERE_IT_WAITED, signals=signals)
    await app.until_event(job, "job.recovered", BUSY_S)
    view = await app.until_ended(job, BUSY_S)
    assert (view["status"], view["cancel_requested_at"]) == ("canceled", first["cancel_requested_at"])
    assert view["finished_at"] > before["finished_at"]
    log = await app.events(job)
    assert numbers(log) == list(range(1, len(log) + 1))
    assert log[-1]["type"] == "job.canceled"
    assert [event["type"] for event in log].count("job.recovered") == 1
    assert task == 0 or len(log) > waited  # the mutant: it did wait for a person again
    assert (await approver.decide(job, request, "approve", digest="sha256:" + "0" * 64)).status_code == 409
    listed = [item["job_id"] for item in (await approver.get("/v1/requests"))["data"]]
    assert job not in listed
    assert ground.effects.calls(name) == []
    again = await app.cancel(job)
    assert (again.status_code, again.json()["cancel_requested_at"]) == (200, first["cancel_requested_at"])


async def test_a_cancel_in_temporal_leaves_no_stop_and_a_reset_takes_it_back(ground: Stack) -> None:
    """The mutant of the test before: what cancels it again is the stop, and nothing else."""
    app, approver = ground.client(), ground.client("approver")
    plugin, name = await paying(ground)
    job = await app.accepted(plugin)
    [old] = await app.until_request(job)
    await on_job(ground, job, "workflow", "cancel")
    assert (await app.until_ended(job, BUSY_S))["status"] == "canceled"
    await reset(ground, job, WHERE_IT_WAITED, signals=False)

    async def asked() -> str | None:
        pending = [one["request_id"] for one in (await app.status(job))["pending"]]
        return next((one for one in pending if one != old), None)

    request = await wait_until(asked, BUSY_S, what="it asks again")
    assert (await approver.decide(job, request, "approve")).status_code in (200, 202)
    view = await app.until_ended(job, BUSY_S)
    assert (view["status"], view["cancel_requested_at"]) == ("succeeded", None)
    assert len(ground.effects.calls(name)) == 1


@pytest.mark.parametrize(("how", "code"), [("out of time", "deadline_exceeded"), ("erased", "authority_revoked")])
async def test_what_may_not_go_on_ends_again_and_calls_nothing(ground: Stack, how: str, code: str) -> None:
    app, approver = ground.client(), ground.client("approver")
    plugin, name = await paying(ground)
    job = await app.accepted(plugin, timeout_seconds=4 if how == "out of time" else 3600)
    [request] = await app.until_request(job)
    if how == "erased":
        await approver.decide(job, request, "reject")
    ended = await app.until_ended(job, BUSY_S)
    if how == "erased":
        assert (await ground.client("operator").http.delete(f"/v1/jobs/{job}/content")).status_code == 200
    looked = len(ground.effects.calls(f"{name}-look"))
    await reset(ground, job, 0)
    view = await app.until_ended(job, BUSY_S)
    assert (view["status"], view["failure"]["code"], view["deadline"]) == ("failed", code, ended["deadline"])
    assert view["pending"] == []
    assert len(ground.effects.calls(f"{name}-look")) == looked == 1
    assert ground.effects.calls(name) == []
    assert (await app.status(job))["status"] == "failed"


async def reset_to_its_request(ground: Stack, app: Client, how: str) -> tuple[str, str]:
    """A job that had ended so, noted as such, and waits for a person again."""
    approver = ground.client("approver")
    plugin, name = await paying(ground)
    job = await app.accepted(plugin)
    [old] = await app.until_request(job)
    if how == "terminated":
        await on_job(ground, job, "workflow", "terminate")
    else:
        assert (await approver.decide(job, old, "reject")).status_code in (200, 202)
    await app.until_ended(job, BUSY_S)
    await note_end(ground, job)
    await reset(ground, job, 0, signals=False)
    await app.until_event(job, "job.recovered", BUSY_S)
    await app.until_request(job, BUSY_S)
    return job, name


@pytest.mark.parametrize("how", ["terminated", "succeeded"])
async def test_it_is_told_of_a_revocation_and_not_noted_as_ended_for_the_run_that_was_replaced(
    ground: Stack, how: str
) -> None:
    operator = ground.client("operator")
    app, _, grant = await person(ground, operator, "jobs:submit", "jobs:read")
    job, name = await reset_to_its_request(ground, app, how)
    await wait_until(lambda: noted_as_open(ground, job), BUSY_S, what="it counts as open")
    # Whoever notes ends has looked once more when the end of a later job is noted.
    other = ground.client()
    later = await other.accepted(await published(ground, [final()]))
    await other.until_ended(later, BUSY_S)
    await wait_until(lambda: noted_as_ended(ground, later), BUSY_S, what="ends are noted")
    assert await noted_as_open(ground, job)
    await revoke(operator, grant)
    view = await other.until_ended(job, BUSY_S)
    assert (view["failure"]["code"], view["pending"]) == ("authority_revoked", [])
    assert ground.effects.calls(name) == []


async def test_a_job_that_was_reset_counts_among_the_open_ones_of_its_principal(ground: Stack) -> None:
    operator = ground.client("operator")
    who = fresh_name("one-at-a-time")
    limited = {
        "principal": who,
        "actions": ["jobs:submit", "jobs:read", "jobs:cancel"],
        "plugins": ["*"],
        "limits": {"max_concurrent_jobs": 1},
    }
    await operator.post("/v1/grants", limited, expect=201)
    app = ground.client(who)
    job, _ = await reset_to_its_request(ground, app, "succeeded")
    await wait_until(lambda: noted_as_open(ground, job), BUSY_S, what="it counts as open")
    plugin, _ = await paying(ground)
    refused(await app.submit(plugin), 429, "too-many-jobs")
    await app.cancel(job)
    await app.until_ended(job, BUSY_S)
    assert (await app.submit(plugin)).status_code == 202


async def test_a_job_that_was_retried_writes_nothing_when_it_is_reset(ground: Stack) -> None:
    """Its retry goes on in its place: both would write, and neither knew of the other."""
    app = ground.client()
    name = fresh_name("once")
    plugin = await published(ground, [turn(call(name, {"n": 1})), final()], tool(name, "write"))
    ground.effects.set_behaviour(name, Behaviour(status=422, times=1))
    job = await app.accepted(plugin)
    await app.until_ended(job, BUSY_S)
    again = (await retry(app, job)).json()["job_id"]
    assert (await app.until_ended(again, BUSY_S))["status"] == "succeeded"
    await reset(ground, job, 0)
    view = await app.until_status(job, "failed", timeout=BUSY_S)
    assert view["failure"]["code"] == "authority_revoked"
    assert "its retry goes on in its place" in view["failure"]["message"]
    assert [sent.job for sent in ground.effects.calls(name)] == [job, again]
