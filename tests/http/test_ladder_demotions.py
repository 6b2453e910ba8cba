"""A demotion is at once: what is held stays held, what runs is refused its next step, nothing refused comes back."""

import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.ladder import activities_of, approve, boss_of, canary_plugin, demote, held_job, packet_state, propose
from tests.http.submissions import publish_brisk, refused, replayed
from tests.rig.client import Client, fresh_key, problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack

CLOSED = "This version (or the runtime) is not live; nothing was sent."


async def stepping_plugin(stack: Stack, operator: Client, *next_: object, slow: str) -> str:
    """Its first call waits for the test to let it go; then `next_` follows."""
    name = fresh_name("stepping")
    stack.effects.set_behaviour(slow, Behaviour(answer=Answer.HOLD))
    await publish_plugin(
        operator,
        name,
        [turn(call(slow)), *next_, final()],  # pyright: ignore[reportArgumentType]
        tools=[tool(slow), tool("look"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
    )
    return name


@pytest.mark.parametrize("after", ["model", "read", "write"])
async def test_what_runs_is_refused_its_next_step_and_says_why(
    stack: Stack, operator: Client, app: Client, after: str
) -> None:
    slow = fresh_name("slow")
    turns = {"model": [], "read": [turn(call("look"))], "write": [turn(call("pay", {"n": 1}))]}
    plugin = await stepping_plugin(stack, operator, *turns[after], slow=slow)
    job = await app.accepted(plugin)
    await stack.effects.wait_for_calls(slow, job=job)
    down = await demote(operator, plugin, "live_canary")
    assert (down["phase"], down["previous"], down["open_jobs"]) == ("live_canary", "live", 1)
    assert down["message"] == (
        "1 job is open. What runs is refused its next call and ends; what is held goes on waiting until its deadline."
    )
    stack.effects.release(slow)
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]) == (
        "failed",
        {"code": "authority_revoked", "message": view["failure"]["message"]},
    )
    assert view["failure"]["message"].endswith(CLOSED)
    assert [one.tool for one in stack.effects.calls(job=job)] == [slow]
    assert (await app.event_types(job))[-2:] == ["authority.revoked", "job.failed"]


async def test_what_waits_for_a_person_is_refused_when_it_is_decided_and_re_promoting_revives_nothing(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    job, request = await waiting_job(app, plugin)
    await demote(operator, plugin, "stateful_noop")
    await stack.client("approver").decide(job, request, "approve")
    ended = await app.until_ended(job)
    assert (ended["failure"]["code"], stack.effects.calls("pay", job=job)) == ("authority_revoked", [])
    log = await app.events(job)
    await promote(operator, plugin, "1.0.0")
    # The witness: the re-promoted version runs, so a revived job would have been heard of.
    other, request = await waiting_job(app, plugin)
    await stack.client("approver").decide(other, request, "approve")
    assert (await app.until_ended(other))["status"] == "succeeded"
    assert await app.events(job) == log
    assert stack.effects.calls("pay", job=job) == []


async def test_what_is_held_stays_held_below_live_canary_even_with_an_approved_packet(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job, other = [await held_job(app, plugin) for _ in range(2)]
    packet, late = await propose(operator, job, "look"), await propose(operator, other, "look")
    assert (await demote(operator, plugin, "stateful_noop"))["open_jobs"] == 2
    answer = refused(await approve(boss, packet), 409, "gate-not-met")
    assert answer["missing"] == ["phase live_canary"]
    view = await app.status(job)
    assert (view["status"], view["executed"], await packet_state(operator, packet)) == ("queued", "no", "proposed")
    # The mutant: one rung higher the same approval lets the job run.
    await promote(operator, plugin, "1.0.0", to="live_canary")
    assert (await approve(boss, packet)).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert (await packet_state(operator, late), (await app.status(other))["status"]) == ("proposed", "queued")
    assert set(await activities_of(stack, other)) <= {"read_gate", "read_authority"}, "it looked, and called nothing"


async def test_a_receipt_is_the_same_to_the_byte_whatever_was_closed_since(stack: Stack, operator: Client) -> None:
    name, who = await publish_brisk(operator, fresh_name("replayed")), fresh_name("svc")
    given = {"principal": who, "actions": ["jobs:submit", "jobs:read"], "plugins": ["*"]}
    await operator.post("/v1/grants", given, expect=201)
    svc, key = stack.client(who), fresh_key()
    first = await svc.submit(name, key=key)
    assert first.status_code == 202
    await demote(operator, name, "blocked_noop")
    replayed(await svc.submit(name, key=key), first)
    why = {"reason": "a test"}
    await operator.post(f"/v1/plugins/{name}/versions/1.0.0/withdrawal", why)
    replayed(await svc.submit(name, key=key), first)
    assert (await operator.http.delete(f"/v1/principals/{who}")).status_code == 200
    replayed(await svc.submit(name, key=key), first)
    assert problem(await svc.submit(name)) == (403, "not-permitted")


async def test_a_demotion_of_what_has_no_open_job_says_so(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("idle"))
    down = await demote(operator, name, "blocked_noop")
    assert (down["open_jobs"], down["message"]) == (0, "No job is open.")
