"""How much a principal may have open and spend in a day, and on whose authority a job runs: judged at admission."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.conftest import FreshStack
from tests.http.jobs import plugin_of, waiting_job, waiting_plugin
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.plugins import call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack

APP = ["jobs:submit", "jobs:read", "jobs:cancel"]


async def granted(operator: Client, principal: str, actions: Sequence[str] = APP, **members: Any) -> str:
    body: Json = {"principal": principal, "actions": list(actions), "plugins": ["*"], **members}
    return (await operator.post("/v1/grants", body, expect=201))["grant_id"]


async def limited(stack: Stack, operator: Client, **limits: Any) -> Client:
    """A principal of its own with these limits."""
    name = fresh_name("svc")
    await granted(operator, name, limits=limits)
    return stack.client(name)


# ---- open jobs


async def test_one_more_open_job_than_the_grant_gives_is_429_until_one_ends(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    client = await limited(stack, operator, max_concurrent_jobs=2)
    (first, _), _ = [await waiting_job(client, plugin) for _ in range(2)]
    key = fresh_key()
    refused = await client.submit(plugin, key=key)
    assert problem(refused) == (429, "too-many-jobs")
    assert refused.headers["Retry-After"] == "1"
    assert problem(await client.http.get(f"/v1/jobs/{key}")) == (404, "not-found")
    await client.cancel(first)
    await client.until_ended(first)
    assert (await client.submit(plugin, key=key)).status_code == 202


async def test_of_racing_submissions_no_more_are_open_than_the_grant_gives(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    client = await limited(stack, operator, max_concurrent_jobs=3)
    answers = await asyncio.gather(*(client.submit(plugin) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 17


async def test_a_replay_is_no_new_job(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    client = await limited(stack, operator, max_concurrent_jobs=1)
    key = fresh_key()
    first = await client.submit(plugin, key=key)
    again = await client.submit(plugin, key=key)
    assert (first.status_code, again.status_code, again.text) == (202, 200, first.text)


async def test_many_jobs_one_after_another_are_never_too_many(stack: Stack, operator: Client) -> None:
    plugin = await plugin_of(stack, operator, [final()])
    client = await limited(stack, operator, max_concurrent_jobs=1)
    for _ in range(4):
        job = await client.accepted(plugin)
        assert (await client.until_ended(job))["status"] == "succeeded"


async def test_a_workspace_has_a_bound_of_its_own(fresh_stack: FreshStack) -> None:
    own = await fresh_stack(settings={"JOBGATE_WORKSPACE_OPEN_JOBS": "2"})
    operator, app = own.client("operator"), own.client("app")
    plugin = await waiting_plugin(own, operator)
    for _ in range(2):
        await app.accepted(plugin)
    assert problem(await app.submit(plugin)) == (429, "too-many-jobs")


# ---- a day's bill


async def test_what_a_day_gives_is_used_up_by_all_jobs_together(stack: Stack, operator: Client) -> None:
    spending = [final(usage={"input_tokens": 600, "output_tokens": 10, "cost_usd": "0.30"})]
    plugin = await plugin_of(stack, operator, spending)
    for limits in ({"max_tokens_per_day": 1000}, {"max_cost_usd_per_day": "0.50"}):
        client = await limited(stack, operator, **limits)
        for _ in range(2):
            await client.until_ended(await client.accepted(plugin))
        refused = await client.submit(plugin)
        assert problem(refused) == (409, "blocked")
        assert refused.json()["blocker"] == "limit_exceeded"
        assert refused.json()["not_yet"].startswith("Not yet")


# ---- agents


async def agents_plugin(stack: Stack, operator: Client, agent: str) -> str:
    name = fresh_name("agents")
    await publish_plugin(
        operator,
        name,
        [turn(call("pay", {"n": 1})), final()],
        tools=[tool("pay", "write")],
        tools_url=stack.effects.url,
        deployment={"identity": f"agent:{agent}"},
    )
    return name


async def test_an_agent_runs_on_its_own_grants_and_never_on_its_callers(stack: Stack, operator: Client) -> None:
    agent = fresh_name("refunder")
    plugin = await agents_plugin(stack, operator, agent)
    app = stack.client("app")
    refused = await app.submit(plugin)
    assert problem(refused) == (409, "blocked")
    assert refused.json()["blocker"] == "scope_violation"
    await granted(operator, agent)  # somebody of that bare name is not the agent
    assert problem(await app.submit(plugin)) == (409, "blocked")
    grant_id = await granted(operator, f"agent:{agent}", ["jobs:submit"])
    job, request = await waiting_job(app, plugin)
    [queued] = [event for event in await app.events(job) if event["type"] == "job.queued"]
    assert queued["data"]["principal"] == f"agent:{agent}"
    assert queued["data"]["initiator"] == {"kind": "principal", "id": "app"}
    await granted(operator, "approver-of-agents", ["jobs:decide"])
    assert (await operator.http.delete(f"/v1/grants/{grant_id}")).status_code == 200
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "authority_revoked")
    late = await stack.client("approver-of-agents").decide(job, request, "approve")
    assert late.status_code == 409
    assert stack.effects.calls(job=job) == []


async def test_a_caller_needs_a_grant_of_its_own_to_start_an_agent(stack: Stack, operator: Client) -> None:
    agent, stranger = fresh_name("refunder"), fresh_name("stranger")
    plugin = await agents_plugin(stack, operator, agent)
    await granted(operator, f"agent:{agent}", ["jobs:submit"])
    assert problem(await stack.client(stranger).submit(plugin)) == (403, "not-permitted")


async def test_who_caused_an_agents_job_decides_nothing_of_it(stack: Stack, operator: Client) -> None:
    agent, caller = fresh_name("refunder"), fresh_name("caller")
    plugin = await agents_plugin(stack, operator, agent)
    await granted(operator, f"agent:{agent}", ["jobs:submit", "jobs:decide"])
    await granted(operator, caller, [*APP, "jobs:decide"])
    client = stack.client(caller)
    job, request = await waiting_job(client, plugin, initiator={"kind": "user", "id": "cust_9"})
    digest = (await client.request(job, request))["action_digest"]
    for own in (client, stack.client(f"agent:{agent}"), stack.client("cust_9")):
        await granted(operator, "cust_9", ["jobs:decide"])
        assert problem(await own.decide(job, request, "approve", digest=digest)) == (403, "self-approval")
    assert stack.effects.calls(job=job) == []
