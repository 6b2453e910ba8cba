"""Authority is taken back at any moment of a job: in a wait, between calls, in a call, in a takeover. Nothing starts.

The effect log is the judge: when a call's first byte arrived, against when the answer to the revocation was read. A
worker whose permits do not look at authorities turns the judge red.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.changes import withdraw_authority
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import revoke_principal
from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, new_worker, published, running_stack
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from workflows.contract.ids import PrincipalId, Workspace

REVOKED = ("failed", "authority_revoked")
APP = ["jobs:submit", "jobs:read", "jobs:cancel"]
ROUNDS = 40


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("revocation"), settings={"JOBGATE_SWEEP_S": "0.5"}) as stack:
        yield stack


async def granted(stack: Stack, **members: object) -> tuple[Client, str]:
    """A principal that no other test uses, and its one grant."""
    name = fresh_name("svc")
    body = {"principal": name, "actions": APP, "plugins": ["*"], **members}
    made = await stack.client("operator").post("/v1/grants", body, expect=201)
    return stack.client(name), made["grant_id"]


async def revoke(stack: Stack, grant_id: str) -> None:
    response = await stack.client("operator").http.delete(f"/v1/grants/{grant_id}")
    assert response.status_code == 200, response.text


async def ended(stack: Stack, job: str) -> Json:
    return await stack.client("app").until_ended(job, timeout=20)


def verdict(view: Json) -> tuple[str, str | None]:
    failure = view["failure"]
    return view["status"], None if failure is None else failure["code"]


# ---- one moment each


async def test_revoked_during_a_call_the_job_starts_no_other(ground: Stack) -> None:
    script = [turn(call("slow")), turn(call("pay", {"n": 1})), final()]
    plugin = await published(ground, script, tool("slow"), tool("pay", "write"))
    ground.effects.set_behaviour("slow", Behaviour(answer=Answer.HOLD))
    client, grant_id = await granted(ground)
    job = await client.accepted(plugin)
    await ground.effects.wait_for_calls("slow", job=job)
    await revoke(ground, grant_id)
    ground.effects.release("slow")
    assert verdict(await ended(ground, job)) == REVOKED
    assert [sent.tool for sent in ground.effects.calls(job=job)] == ["slow"]


async def test_revoked_during_a_takeover_the_next_attempt_sends_nothing(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("hung")), final()], tool("hung", timeout_seconds=60))
    ground.effects.set_behaviour("hung", Behaviour(answer=Answer.HOLD))
    client, grant_id = await granted(ground)
    job = await client.accepted(plugin)
    await ground.effects.wait_for_calls("hung", job=job)
    kill_workers(ground)
    await revoke(ground, grant_id)
    await new_worker(ground)
    assert verdict(await ended(ground, job)) == REVOKED
    assert len(ground.effects.calls("hung", job=job)) == 1
    ground.effects.release("hung")


async def test_a_grant_whose_time_is_over_ends_the_job_that_waits_on_it(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("pay")), final()], tool("pay", "write"), policy=READS_RUN_WRITES_ASK)
    soon = datetime.now(UTC) + timedelta(seconds=4)
    client, _ = await granted(ground, expires_at=soon.isoformat())
    job = await client.accepted(plugin)
    await ground.client("app").until_request(job)
    assert verdict(await ended(ground, job)) == REVOKED
    assert datetime.now(UTC) > soon
    assert ground.effects.calls(job=job) == []


async def test_what_a_gateway_committed_and_did_not_deliver_is_delivered_by_others(ground: Stack) -> None:
    """The ledger holds the revocation and nobody was told: as an API that was killed right after its commit left it."""
    plugin = await published(ground, [turn(call("pay")), final()], tool("pay", "write"), policy=READS_RUN_WRITES_ASK)
    client, _ = await granted(ground)
    job = await client.accepted(plugin)
    await ground.client("app").until_request(job)
    name, now = PrincipalId(fresh_name("nobody")), datetime.now(UTC)
    principal = PrincipalId((await ground.client("app").events(job))[0]["data"]["principal"])
    assert principal != name
    ground.apis[0].kill()
    ledger = Ledger.open(ground.settings.ledger_url)
    demo = Workspace("demo")
    await ledger.write(lambda conn: revoke_principal(conn, demo, principal, by="operator", at=now))
    await ledger.write(lambda conn: withdraw_authority(conn, demo, principal, by="operator", at=now))
    await ledger.close()
    ground.apis[0].start()
    await ground.until_ready(ground.apis[0])
    assert verdict(await ended(ground, job)) == REVOKED
    assert ground.effects.calls(job=job) == []


async def test_a_forged_hint_ends_nothing(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("pay")), final()], tool("pay", "write"), policy=READS_RUN_WRITES_ASK)
    client, _ = await granted(ground)
    job = await client.accepted(plugin)
    await ground.client("app").until_request(job)
    handle = (await ground.engine()).get_workflow_handle(f"demo.{job}")
    for name, args in (("authority", []), ("authority", ["revoked"]), ("authority", []), ("gate", [])):
        await handle.signal(name, args=args)
    await ground.client("app").until_event(job, "decision.refused")
    view = await client.status(job)
    assert (view["status"], len(view["pending"])) == ("waiting_for_human", 1)
    await client.cancel(job)


# ---- any moment


@dataclass(frozen=True, slots=True)
class Taken:
    job: str
    answered_ns: int


def started_after(one: Taken, calls: Sequence[Call]) -> list[Call]:
    return [sent for sent in calls if sent.monotonic_ns > one.answered_ns]


async def take_at_any_moment(stack: Stack, plugin: str, longest_s: float) -> Taken:
    """A job of quick calls whose grant is revoked at a moment that is uniform over its life."""
    client, grant_id = await granted(stack)
    job = await client.accepted(plugin, key=fresh_key())
    await asyncio.sleep(random.uniform(0, longest_s))  # the moment itself is what is tried
    await revoke(stack, grant_id)
    return Taken(job, time.monotonic_ns())


async def test_revoked_at_any_moment_no_call_starts_after_the_answer(ground: Stack) -> None:
    turns = [turn(*(call("look", {"n": n}) for n in range(3)), call("put", {"n": at})) for at in range(6)]
    plugin = await published(ground, [*turns, final()], tool("look"), tool("put", "write"), max_steps=100)
    taken = [
        one
        for _ in range(ROUNDS // 4)
        for one in await asyncio.gather(*(take_at_any_moment(ground, plugin, 2.0) for _ in range(4)))
    ]
    views = await asyncio.gather(*(ended(ground, one.job) for one in taken))
    late = {one.job: started_after(one, ground.effects.calls(job=one.job)) for one in taken}
    assert not [job for job, calls in late.items() if calls]
    cut = [view for view in views if verdict(view) == REVOKED]
    assert {verdict(view) for view in views} <= {REVOKED, ("succeeded", None)}
    assert cut, "every job was quicker than its revocation: the test tried nothing"


DEAF = """
import gateway.calls.permits as permits
import gateway.calls.standing as standing
whole = standing.examine
def examine(conn, attempt, now, **how):
    found = whole(conn, attempt, now, **how)
    if isinstance(found, standing.Denied) and found.code is standing.StepCode.AUTHORITY_REVOKED:
        row = standing.find_receipt(conn, attempt.workspace, attempt.job_id)
        return standing.Standing(row, standing.find_authority(conn, attempt.workspace, attempt.job_id))
    return found
standing.examine = permits.examine = examine
from activities.worker import main
main()
"""


async def test_a_worker_that_does_not_look_at_authorities_turns_the_judge_red(tmp_path: Path) -> None:
    async with running_stack(tmp_path, workers=0, settings={"JOBGATE_SWEEP_S": "600"}) as stack:
        deaf = Process("deaf-worker", ["-c", DEAF], stack.folder, environment=stack.environment)
        stack.workers.append(deaf)
        deaf.start()
        await stack.until_polling(deaf)
        script = [turn(call("slow")), turn(call("pay", {"n": 1})), final()]
        plugin = await published(stack, script, tool("slow"), tool("pay", "write"))
        stack.effects.set_behaviour("slow", Behaviour(answer=Answer.HOLD))
        client, grant_id = await granted(stack)
        job = await client.accepted(plugin)
        await stack.effects.wait_for_calls("slow", job=job)
        await revoke(stack, grant_id)
        taken = Taken(job, time.monotonic_ns())
        stack.effects.release("slow")
        await stack.effects.wait_for_calls("pay", job=job)
        assert [sent.tool for sent in started_after(taken, stack.effects.calls(job=job))] == ["pay"]
