"""A simulation tells operators where a version could run, executes nothing, and is evidence that its gate asks for."""

import json
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import FreshStack
from tests.http.submissions import publish_brisk, refused, submit_bytes
from tests.http.test_previews import census
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import fresh_name
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

LANES: Json = {
    "default": {"task_queue": "jobgate-default", "capabilities": []},
    "big": {"task_queue": "jobgate-big", "capabilities": ["gpu", "disk"]},
    "odd": {"task_queue": "jobgate-odd", "capabilities": ["disk"]},
}
NEEDED = "a simulation of this digest with a lane that fits"


async def simulate(operator: Client, plugin: str, **members: Any) -> Json:
    path = f"/v1/plugins/{plugin}/versions/1.0.0/simulations"
    answer = await operator.post(path, {"plugin": plugin, "input": {}, **members})
    assert list(answer) == ["eligibility", "candidates", "execution"]
    assert answer["execution"] == "disabled"
    assert all(list(lane) == ["lane", "fits", "missing", "pollers_seen_at"] for lane in answer["candidates"])
    return answer


async def missing(operator: Client, plugin: str) -> list[str]:
    """What the gate to live_canary still asks for."""
    path = f"/v1/plugins/{plugin}/versions/1.0.0/promotions"
    return refused(await operator.http.post(path, json={"to": "live_canary"}), 409, "gate-not-met")["missing"]


async def test_a_simulation_executes_nothing_and_is_recorded(stack: Stack, operator: Client) -> None:
    """Also below every gate: a version that may not run yet can be simulated."""
    plugin = await publish_brisk(operator, fresh_name("sim"), phase=None)
    before = await census(stack, [])
    answer = await simulate(operator, plugin)
    assert answer["eligibility"] == "blocked"
    (lane,) = answer["candidates"]
    assert (lane["lane"], lane["fits"], lane["missing"]) == ("default", True, [])
    assert lane["pollers_seen_at"].endswith("Z")
    after = await census(stack, [])
    grown = {name: after[name] - before[name] for name in before if name not in ("blobs", "histories")}
    assert {name: by for name, by in grown.items() if by} == {"evidence": 1, "audit": 1}
    assert after["blobs"] == before["blobs"]
    trail: list[Any] = []
    after: dict[str, str] = {}
    while (page := await operator.get("/v1/audit", params={"limit": 500, **after}))["data"]:
        trail += page["data"]
        after = {"after": page["next_cursor"]}
    (line,) = [line for line in trail if line["subject"] == f"{plugin}@1.0.0" and line["action"] == "plugin.simulated"]
    assert (line["actor"], line["detail"]) == ("operator", {"green": True, "eligibility": "blocked"})


async def test_the_gate_to_live_canary_believes_it(operator: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("sim"), phase="stateful_noop")
    assert NEEDED in await missing(operator, plugin)
    assert (await simulate(operator, plugin))["eligibility"] == "dry_run_eligible"
    assert NEEDED not in await missing(operator, plugin)


async def test_a_version_that_something_else_blocks_proves_nothing(operator: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("sim"), phase="stateful_noop")
    await simulate(operator, plugin)
    await operator.post(f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal", {"reason": "a test"})
    assert (await simulate(operator, plugin))["eligibility"] == "blocked"
    assert NEEDED in await missing(operator, plugin), "the newest simulation counts"


async def test_capabilities_decide_which_lanes_fit(fresh_stack: FreshStack) -> None:
    own = await fresh_stack(settings={"JOBGATE_LANES": json.dumps(LANES)})
    operator, app = own.client("operator"), own.client("app")
    plugin = await publish_brisk(
        operator, fresh_name("sim"), manifest={"requires": ["gpu", "disk"]}, phase="stateful_noop"
    )
    answer = await simulate(operator, plugin)
    assert answer["eligibility"] == "dry_run_eligible"
    default, big, odd = answer["candidates"]
    assert (default["lane"], default["fits"], default["missing"]) == ("default", False, ["disk", "gpu"])
    assert default["pollers_seen_at"] is not None
    assert big == {"lane": "big", "fits": True, "missing": [], "pollers_seen_at": None}
    assert odd == {"lane": "odd", "fits": False, "missing": ["gpu"], "pollers_seen_at": None}
    assert NEEDED not in await missing(operator, plugin)
    own.add_worker({"JOBGATE_LANE": "big"})

    async def polled() -> bool:
        return (await simulate(operator, plugin))["candidates"][1]["pollers_seen_at"] is not None

    await wait_until(polled, 60, every=0.2, what="a worker polls the lane")

    nowhere = await publish_brisk(operator, fresh_name("sim"), manifest={"requires": ["moon"]}, phase="stateful_noop")
    answer = await simulate(operator, nowhere)
    assert answer["eligibility"] == "local_only"
    assert [lane["missing"] for lane in answer["candidates"]] == [["moon"]] * 3
    assert NEEDED in await missing(operator, nowhere)
    told = (await app.http.post("/v1/previews", json={"plugin": nowhere, "input": {}})).json()
    assert (told["eligibility"], told["blocker"]) == ("local_only", "capability_unavailable")
    assert refused(await app.submit(nowhere), 409, "local-only")["blocker"] == "capability_unavailable"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict(stack: Stack) -> str:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    options: Json = {"manifest": {"input_schema": schema}, "phase": "stateful_noop"}
    return await publish_brisk(stack.client("operator"), "sim-strict", **options)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"plugin": "other", "input": {}}, 422, "input-invalid"),
        ({"plugin": "sim-strict", "input": {}, "version": "2.0.0"}, 422, "input-invalid"),
        ({"plugin": "sim-strict", "input": {"n": "one"}}, 422, "input-invalid"),
        ({"plugin": "sim-strict", "input": {}, "more": 1}, 422, "input-invalid"),
        ({"plugin": "sim-strict", "input": {}, "timeout_seconds": 10**9}, 422, "limit-exceeded"),
    ],
)
async def test_a_body_that_is_no_submission_of_this_version_is_refused(
    operator: Client, strict: str, body: Json, status: int, code: str
) -> None:
    path = f"/v1/plugins/{strict}/versions/1.0.0/simulations"
    refused(await submit_bytes(operator, json.dumps(body), path=path), status, code)
    assert NEEDED in await missing(operator, strict), "and nothing was recorded"


async def test_simulations_are_for_operators(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("sim"))
    path = f"/v1/plugins/{plugin}/versions/1.0.0/simulations"
    body: Json = {"plugin": plugin, "input": {}}
    for client in (app, stack.client("operator", scopes=["jobs:submit", "promotions:write"])):
        assert problem(await client.http.post(path, json=body)) == (403, "not-permitted")
    reader = fresh_name("reader")
    grant = {"principal": reader, "actions": ["operator:read"], "plugins": [plugin]}
    await operator.post("/v1/grants", grant, expect=201)
    answer = await stack.client(reader).post(path, body)
    assert answer["eligibility"] == "live_approved", "operator:read is enough"
    unknown = f"/v1/plugins/{plugin}/versions/9.9.9/simulations"
    assert problem(await operator.http.post(unknown, json=body)) == (404, "plugin-unknown")
    elsewhere = "/v1/plugins/no-such-plugin/versions/1.0.0/simulations"
    assert problem(await operator.http.post(elsewhere, json={"plugin": "no-such-plugin", "input": {}})) == (
        404,
        "plugin-unknown",
    )
