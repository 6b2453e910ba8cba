"""A deploy is never a cancel: pinned jobs end on their build, new ones go to the current one, and back.

The other build inserts an activity into every turn, so that a job which it took over by mistake could not go on.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import FreshStack
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.rig.builds import COMMENT, ONE_MORE_STEP, Build, build
from tests.rig.client import Json
from tests.rig.plugins import call, final, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S, STARTS_S = 60.0, 180.0
PINNED = {"JOBGATE_VERSIONED": "true", "JOBGATE_PRESENCE_S": "0.2", "JOBGATE_SWEEP_S": "0.5"}
SET_CURRENT = {"JOBGATE_SET_CURRENT": "true"}

Builds = Callable[[str, Mapping[str, tuple[str, str]]], Build]


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return lambda name, changes: build(tmp_path / name, changes)


@pytest_asyncio.fixture(loop_scope="session")
async def own(fresh_stack: FreshStack) -> AsyncGenerator[Stack]:
    yield await fresh_stack(workers=0, settings=PINNED)


async def started(stack: Stack, of: Build, settings: Mapping[str, str] | None = None) -> Process:
    worker = stack.add_worker({**of.environment, **(settings or {})})
    await stack.until_polling(worker, STARTS_S)
    return worker


async def until_said(worker: Process, words: str) -> None:
    await wait_until(lambda: words in worker.output, BUSY_S, what=f"{worker.name} says {words}")


async def asking(stack: Stack) -> str:
    """A plugin whose one write a person decides."""
    script = [turn(call("paid")), final()]
    return await published(stack, script, tool("paid", "write"), policy=READS_RUN_WRITES_ASK)


async def waiting(stack: Stack, plugin: str) -> tuple[str, str]:
    app = stack.client()
    job = await app.accepted(plugin)
    [request] = await app.until_request(job, BUSY_S)
    return job, request


async def engine_of(stack: Stack, job: str) -> Json:
    return (await stack.client("operator").get(f"/v1/operator/jobs/{job}"))["engine"]


async def approved(stack: Stack, job: str, request: str) -> None:
    assert (await stack.client("approver").decide(job, request, "approve")).status_code in (200, 202)


async def workers_rung(stack: Stack) -> Json:
    rungs = (await stack.client("operator").http.get("/readyz")).json()["rungs"]
    return next(rung for rung in rungs if rung["rung"] == "workers")


async def test_open_jobs_end_on_their_build_and_new_ones_go_to_the_current_one_and_back(
    own: Stack, builds: Builds
) -> None:
    old, new = builds("old", {}), builds("new", ONE_MORE_STEP)
    app, plugin = own.client(), await asking(own)
    first = await started(own, old)
    await until_said(first, "this build was made current")  # the first one of all, without being told
    before, asked = await waiting(own, plugin)
    assert (await engine_of(own, before))["build"] == old.name

    second = await started(own, new)
    await until_said(second, "another build is current")
    still_old, _ = await waiting(own, plugin)
    assert (await engine_of(own, still_old))["build"] == old.name

    third = await started(own, new, SET_CURRENT)
    await until_said(third, "this build was made current")
    after, asked_after = await waiting(own, plugin)
    assert (await engine_of(own, after))["build"] == new.name
    await approved(own, before, asked)
    await approved(own, after, asked_after)
    for job, ran_on in ((before, old), (after, new)):
        assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
        assert (await engine_of(own, job))["build"] == ran_on.name
        assert len(own.effects.calls("paid", job=job)) == 1

    back = await started(own, old, SET_CURRENT)  # the rollback
    await until_said(back, "this build was made current")
    last, _ = await waiting(own, plugin)
    assert (await engine_of(own, last))["build"] == old.name


@pytest.mark.parametrize("changes", [COMMENT, ONE_MORE_STEP], ids=["fits", "does-not-fit"])
async def test_a_job_whose_build_is_gone_can_be_canceled(
    own: Stack, builds: Builds, changes: Mapping[str, tuple[str, str]]
) -> None:
    old, new = builds("old", {}), builds("new", changes)
    app, plugin = own.client(), await asking(own)
    worker = await started(own, old)
    job, _ = await waiting(own, plugin)
    kept, asked = await waiting(own, plugin)
    before = await app.events(job)
    worker.kill()
    await until_said(await started(own, new, SET_CURRENT), "this build was made current")

    async def missed() -> bool:
        engine = await engine_of(own, job)
        return engine["build"] == old.name and engine["build_lives"] is False

    await wait_until(missed, BUSY_S)
    assert (await app.status(job))["status"] == "waiting_for_human"
    canceled = await app.cancel(job)
    assert (canceled.status_code, canceled.json()["status"]) == (202, "canceling")
    end = await app.until_ended(job, BUSY_S)
    assert (end["status"], end["failure"], end["executed"]) == ("canceled", None, "yes")
    assert end["cancel_requested_at"] == canceled.json()["cancel_requested_at"]
    assert (await app.cancel(job)).status_code == 200
    read = await app.events(job)
    assert read[: len(before)] == before
    assert read[-1]["type"] == "job.canceled"
    assert [frame.type for frame in await app.streamed(job)][-1] == "job.canceled"

    # Nobody touched the other one: it goes on when its build is back.
    await approved(own, kept, asked)
    assert (await app.status(kept))["status"] in ("waiting_for_human", "running")
    await started(own, old)
    assert (await app.until_ended(kept, BUSY_S))["status"] == "succeeded"
    assert [len(own.effects.calls("paid", job=one)) for one in (job, kept)] == [0, 1]


async def test_without_a_worker_of_the_current_build_readiness_says_that_jobs_wait(own: Stack, builds: Builds) -> None:
    old, new = builds("old", {}), builds("new", COMMENT)
    worker = await started(own, old)
    await until_said(worker, "this build was made current")
    await started(own, new)

    async def so(ok: bool) -> bool:
        return (await workers_rung(own))["ok"] is ok

    await wait_until(lambda: so(True), BUSY_S)
    worker.kill()
    await wait_until(lambda: so(False), BUSY_S)
    assert "none of the build that new jobs go to" in (await workers_rung(own))["detail"]
    job = await own.client().accepted(await asking(own))
    assert (await own.client().status(job))["status"] == "queued"
    await started(own, new, SET_CURRENT)
    await wait_until(lambda: so(True), BUSY_S)
    await own.client().until_request(job, BUSY_S)


async def test_in_development_new_code_takes_over_at_once(fresh_stack: FreshStack, builds: Builds) -> None:
    own = await fresh_stack(workers=0)
    old, new = builds("old", {}), builds("new", COMMENT)
    app, plugin = own.client(), await asking(own)
    worker = await started(own, old)
    job, asked = await waiting(own, plugin)
    assert (await engine_of(own, job))["build"] is None
    worker.stop()
    await started(own, new)
    await approved(own, job, asked)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert len(own.effects.calls("paid", job=job)) == 1


async def test_in_development_set_current_pins_until_a_plain_worker_takes_over(
    fresh_stack: FreshStack, builds: Builds
) -> None:
    own = await fresh_stack(workers=0)
    old, new = builds("old", {}), builds("new", ONE_MORE_STEP)
    app, plugin = own.client(), await asking(own)
    pinned = Process(
        "pinned",
        ["-m", "gateway.cli", "worker", "--set-current"],
        own.folder,
        environment={**own.environment, **old.environment},
    )
    own.workers.append(pinned)
    pinned.start()
    await until_said(pinned, "this build was made current")
    job, asked = await waiting(own, plugin)
    assert (await engine_of(own, job))["build"] == old.name
    plain = await started(own, new)
    await until_said(plain, "a worker that is not versioned takes over")
    later, _ = await waiting(own, plugin)
    assert (await engine_of(own, later))["build"] is None
    await approved(own, job, asked)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
