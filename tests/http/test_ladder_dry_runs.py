"""A dry run plans every tool and whom a call would ask, and its history schedules nothing."""

import pytest

from tests.conftest import FreshStack
from tests.http.ladder import activities_of, canary_plugin
from tests.http.submissions import NONE, refused, traces
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack

OBJECT: Json = {"type": "object"}
QUORUM: Json = {"groups": ["finance", "legal"], "quorum": 2}


def other(name: str, effect: str, **kind: object) -> Json:
    return {"name": name, "description": f"The tool {name}.", "effect": effect, "input_schema": OBJECT, **kind}


TOOLS = [
    tool("look"),
    tool("pay", "write", approval=QUORUM, reconcile="pay.find"),
    tool("pay.find", hidden=True),
    tool("note", "idempotent_write", callback={"expires_in_seconds": 60}),
    other("search", "read", mcp={"connection": "kb", "tool": "search"}),
    other("file", "write", mcp={"connection": "kb", "tool": "file"}, approval={"groups": ["ops"]}),
    other("compute", "read", python="compute"),
]


async def every_kind(stack: Stack, operator: Client, *, policy: str | None, **manifest: object) -> str:
    """At the first rung where a dry run may run; its script would call tools and ask a person."""
    name = fresh_name("rehearsed")
    kb = {"base_url": stack.effects.url + "/mcp", "allow_private": True}
    tools = {"base_url": stack.effects.url, "allow_private": True}
    await publish_plugin(
        operator,
        name,
        [turn(call("look"), call("pay", {"n": 1}), call("ask_human", {"question": "May I?"})), final()],
        tools=TOOLS,
        policy=policy,
        manifest={"services": ["tools", "kb"], **manifest},
        deployment={"connections": {"tools": tools, "kb": kb}},
        phase="stateful_noop",
    )
    return name


def plan_of(view: Json) -> dict[str, tuple[str, str, str, str | None]]:
    return {
        line["tool"]: (line["kind"], line["effect"], line["asks"], line["would_ask"])
        for line in view["result"]["planned"]
    }


async def test_the_plan_names_every_visible_tool_of_every_kind_and_whom_it_would_ask(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await every_kind(stack, operator, policy=None)
    job = await app.accepted(plugin, mode="dry_run")
    view = await app.until_ended(job)
    assert (view["status"], view["executed"], view["blocker"]) == ("succeeded", "no", "awaiting_promotion")
    assert plan_of(view) == {
        "look": ("http", "read", "never", None),
        "pay": ("http", "write", "always", "2 of finance or legal"),
        "note": ("http", "idempotent_write", "always", "anyone who may decide"),
        "search": ("mcp", "read", "never", None),
        "file": ("mcp", "write", "always", "ops"),
        "compute": ("python", "read", "never", None),
        "ask_human": ("builtin", "read", "always", "anyone who may decide"),
    }
    assert view["last_event"]["message"] == "Dry run planned: 7 tools could be called. Nothing ran."
    assert await app.event_types(job) == ["job.queued", "job.succeeded"]
    assert await activities_of(stack, job) == []
    assert stack.effects.calls(job=job) == []
    # The witness: live, the same script asks a model, a tool and people.
    await promote(operator, plugin, "1.0.0")
    ran = await app.accepted(plugin)
    await app.until_request(ran, count=2)
    assert "model" in await activities_of(stack, ran)
    await app.cancel(ran)


async def test_with_a_policy_the_plan_says_that_it_depends_on_the_arguments(
    stack: Stack, operator: Client, app: Client
) -> None:
    job = await app.accepted(await every_kind(stack, operator, policy=ALLOW_ALL), mode="dry_run")
    plan = plan_of(await app.until_ended(job))
    assert {tool: line[2] for tool, line in plan.items() if line[2] != "policy"} == {"ask_human": "always"}
    assert plan["pay"][3] == "2 of finance or legal"


async def test_a_dry_run_of_what_runs_locally_only_succeeds_and_a_live_job_is_refused(
    stack: Stack, operator: Client, app: Client
) -> None:
    for manifest, blocker in (
        ({"offload": "local_only"}, "local_only_by_contract"),
        ({"requires": ["gpu"]}, "capability_unavailable"),
    ):
        plugin, key = await every_kind(stack, operator, policy=None, **manifest), fresh_key()
        assert refused(await app.submit(plugin, key=key), 409, "local-only")["blocker"] == blocker
        assert await traces(stack, key) == NONE
        view = await app.until_ended(await app.accepted(plugin, mode="dry_run"))
        assert (view["status"], view["eligibility"], view["executed"]) == ("succeeded", "local_only", "no")


async def test_a_dry_run_in_phase_blocked_noop_is_refused(stack: Stack, operator: Client, app: Client) -> None:
    plugin, key = await canary_plugin(stack, operator, phase="blocked_noop"), fresh_key()
    assert refused(await app.submit(plugin, key=key, mode="dry_run"), 409, "blocked")["executed"] == "no"
    assert await traces(stack, key) == NONE


@pytest.mark.parametrize("phase", ["stateful_noop", "live_canary", "live"])
async def test_a_dry_run_runs_nothing_at_any_phase(stack: Stack, operator: Client, app: Client, phase: str) -> None:
    plugin = await canary_plugin(stack, operator, phase=phase)
    job = await app.accepted(plugin, mode="dry_run")
    view = await app.until_ended(job)
    assert (view["status"], view["mode"], view["executed"]) == ("succeeded", "dry_run", "no")
    assert await activities_of(stack, job) == []


async def test_a_dry_run_can_be_canceled_before_a_worker_takes_it(fresh_stack: FreshStack) -> None:
    own = await fresh_stack(workers=0)
    app = own.client("app")
    plugin = await canary_plugin(own, own.client("operator"), phase="stateful_noop")
    job = await app.accepted(plugin, mode="dry_run")
    answer = await app.cancel(job)
    assert (answer.status_code, answer.json()["in_flight"]) == (202, [])
    assert (await app.status(job))["status"] == "canceling"
    await own.until_polling(own.add_worker())
    view = await app.until_ended(job)
    assert (view["status"], view["executed"], view["result"]) == ("canceled", "no", None)
    assert await activities_of(own, job) == []
