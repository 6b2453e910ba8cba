"""B31: unknown is not yes. Whatever is dead, stuck, elsewhere or different is missed within seconds, and only that.

Poller records outlive a dead worker by minutes: each test shows that the engine still names it, so that who believed
the engine alone would say yes.
"""

import json
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest_asyncio
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from gateway.presence import PACKAGES
from tests.conftest import FreshStack
from tests.rig.client import Client, Json
from tests.rig.plugins import final, fresh_name, publish_plugin
from tests.rig.process import ROOT, Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

QUICK = {"JOBGATE_PRESENCE_S": "0.2"}
"""Dead after 1.6 s."""
LANES = json.dumps(
    {"default": {"task_queue": "jobgate-default"}, "gpu": {"task_queue": "gpu", "capabilities": ["gpu"]}}
)


@pytest_asyncio.fixture(loop_scope="session")
async def own(fresh_stack: FreshStack) -> AsyncGenerator[Stack]:
    yield await fresh_stack(workers=0, settings={**QUICK, "JOBGATE_LANES": LANES})


async def version(stack: Stack, **more: Any) -> str:
    name = fresh_name("honest")
    await publish_plugin(stack.client("operator"), name, [final()], **more)
    return name


async def told(stack: Stack, plugin: str | None = None, operator: Client | None = None) -> dict[str, Json]:
    """The rungs of readiness by name, and readyz's answer for workers as `workers`."""
    operator = operator or stack.client("operator")
    path = "/v1/readiness" if plugin is None else f"/v1/plugins/{plugin}/versions/1.0.0/readiness"
    rungs = (await operator.get(path))["rungs"]
    health = (await operator.http.get("/readyz")).json()["rungs"]
    return {rung["rung"]: rung for rung in (*rungs, *health)}


async def until(stack: Stack, plugin: str, **wanted: bool | None) -> dict[str, Json]:
    """`workers` is the rung of readyz, whose null is no false; of the others it is what is reached."""
    last: dict[str, Json] = {}
    operator = stack.client("operator")

    async def so() -> bool:
        last.update(await told(stack, plugin, operator))
        return all(last[name]["ok" if name == "workers" else "reached"] is value for name, value in wanted.items())

    try:
        await wait_until(so, 90, every=0.2)
    except AssertionError:
        raise AssertionError(f"{wanted} is not so: { {name: last.get(name) for name in wanted} }") from None
    return last


async def remembered(stack: Stack, worker: Process) -> bool:
    """Whether the engine still names this worker among those who ask for work."""
    engine = await stack.engine()
    question = DescribeTaskQueueRequest(
        namespace=engine.namespace,
        task_queue=TaskQueue(name="jobgate-default"),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    pollers = (await engine.workflow_service.describe_task_queue(question)).pollers
    return any(poller.identity.startswith(f"{worker.pid}@") for poller in pollers)


async def test_workers_that_never_started_are_missed_and_submissions_are_taken(own: Stack) -> None:
    app = own.client("app")
    plugin = await version(own)
    seen = await until(own, plugin, configured=True, loaded=False, callable=False, workers=False)
    assert seen["workers"]["detail"] == "no worker lives (none was seen within 60 min); accepted jobs wait"
    assert seen["loaded"]["evidence"].startswith("No live worker; none was seen")
    assert (await app.http.get("/readyz")).status_code == 200
    job = await app.accepted(plugin)
    assert (await app.status(job))["status"] == "queued"
    worker = own.add_worker()
    await until(own, plugin, loaded=True, callable=True, workers=True)
    await app.until_ended(job, timeout=90)
    # One that stops says so, and is missed at once.
    assert worker.stop() == 0
    seen = await told(own, plugin)
    assert seen["workers"]["detail"].startswith("no worker lives (the last one stopped ")
    assert await remembered(own, worker)


async def test_a_killed_worker_is_missed_although_the_engine_remembers_it(own: Stack) -> None:
    plugin = await version(own)
    worker = own.add_worker()
    await until(own, plugin, loaded=True, callable=True, workers=True)
    worker.kill()
    seen = await until(own, plugin, configured=True, loaded=False, callable=False, workers=False)
    assert await remembered(own, worker)
    assert "lane default, workflow tasks" in seen["callable"]["evidence"]
    assert (await own.client("app").http.get("/readyz")).status_code == 200
    assert (await told(own))["loaded"]["reached"] is False


async def test_a_worker_that_stands_still_is_missed_until_it_goes_on(own: Stack) -> None:
    plugin = await version(own)
    worker = own.add_worker()
    await until(own, plugin, loaded=True, callable=True, workers=True)
    worker.freeze()
    await until(own, plugin, loaded=False, callable=False, workers=False)
    assert await remembered(own, worker)
    worker.resume()
    seen = await until(own, plugin, loaded=True, callable=True, workers=True)
    # A worker that asks is not yet one that gets anywhere, and nothing says so.
    assert "whether a slot is free or a tool works is not said by it" in seen["workers"]["detail"]
    assert "stuck" in seen["callable"]["does_not_prove"]


async def test_without_an_engine_what_it_alone_knows_is_not_known(own: Stack) -> None:
    app, plugin = own.client("app"), await version(own)
    own.add_worker()
    await app.until_ended(await app.accepted(plugin, mode="dry_run"), timeout=90)
    await until(own, plugin, loaded=True, callable=True, workers=True, stateful_noop=True)
    own.temporal.kill()
    seen = await until(own, plugin, configured=True, loaded=True, callable=False, workers=None, stateful_noop=False)
    assert seen["callable"]["evidence"] == "Not known: the workflow engine does not answer."
    assert seen["callable"]["observed_at"] is None
    assert seen["stateful_noop"]["evidence"].startswith("Not known: ")
    assert (await told(own))["configured"]["evidence"].startswith("Not known: ")
    assert ((await app.http.get("/livez")).status_code, (await app.http.get("/readyz")).status_code) == (200, 503)
    await own.start_temporal()
    await until(own, plugin, configured=True, loaded=True, callable=True, workers=True, stateful_noop=True)


async def test_a_worker_of_another_lane_is_no_worker_of_this_one(own: Stack) -> None:
    plain, gpu = await version(own), await version(own, manifest={"requires": ["gpu"]})
    own.add_worker({"JOBGATE_LANE": "gpu"})
    seen = await until(own, gpu, loaded=True, callable=False, workers=False)  # jobs start on the default lane
    assert "lane default, workflow tasks" in seen["callable"]["evidence"]
    assert "none asked for work of the lane that jobs start on" in seen["workers"]["detail"]
    seen = await until(own, plain, loaded=False, callable=False)
    assert "serves lane gpu, not default" in seen["loaded"]["evidence"]
    own.add_worker()
    await until(own, gpu, loaded=True, callable=True, workers=True)
    own.workers[0].kill()
    seen = await until(own, gpu, loaded=False, callable=False, workers=True)
    assert "lane gpu, activity tasks" in seen["callable"]["evidence"]
    await until(own, plain, loaded=True, callable=True)


async def test_a_worker_with_another_configuration_asks_for_work_and_counts_as_not_loaded(
    own: Stack, tmp_path: Path
) -> None:
    plugin = await version(own)
    own.add_worker({"JOBGATE_BLOBS_URL": (tmp_path / "elsewhere").as_uri()})
    seen = await until(own, plugin, loaded=False, callable=True, workers=True)
    assert "runs with another configuration than the API" in seen["loaded"]["evidence"]
    assert (await told(own))["loaded"]["reached"] is False
    own.add_worker()
    await until(own, plugin, loaded=True, callable=True)


async def test_a_worker_of_another_build_asks_for_work_and_counts_as_not_loaded(own: Stack, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "activities" / "tool.py").open("a") as file:
        file.write("# another build\n")
    plugin = await version(own)
    own.add_worker({"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})
    seen = await until(own, plugin, loaded=False, callable=True, workers=True)
    assert "runs another build (0.1.0+" in seen["loaded"]["evidence"]
    own.add_worker()
    await until(own, plugin, loaded=True, callable=True)
