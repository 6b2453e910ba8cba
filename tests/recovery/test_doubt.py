"""A write whose answer is lost: sent once, then found by its tool, or a person is asked; never sent again.

Workers die in the middle, replies are dropped, late, or a 502 that comes after the write. The effect log counts.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from gateway.ledger.decisions import VoteRow, cast_vote
from gateway.ledger.effects import reconcile_effect
from tests.http.submissions import ledger_of
from tests.recovery.grounds import kill_workers, new_worker, published, running_stack
from tests.rig.client import Client, Json
from tests.rig.doorstep import DEMO
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack
from workflows.contract.ids import EffectId, JobId, PrincipalId, RequestId

LOST: dict[str, Behaviour] = {
    "dropped": Behaviour(answer=Answer.DROP_AFTER_RECORDING, times=1),
    "too late": Behaviour(delay_seconds=4, times=1),
    "502": Behaviour(status=502, times=1),
}
"""Each call is recorded, so it took effect; nobody hears of it."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("doubt")) as own:
        yield own


@pytest.fixture
def app(ground: Stack) -> Client:
    return ground.client("app")


@pytest.fixture
def operator(ground: Stack) -> Client:
    return ground.client("operator")


async def writer(
    ground: Stack, effect: str = "write", *, finds: Behaviour | None = None, timeout_s: float = 60
) -> tuple[str, str]:
    """A plugin whose job writes once, and the write's name; `finds` is how its reconcile tool answers."""
    name = fresh_name("pay")
    find = f"{name}.find"
    tools = [tool(name, effect, timeout_seconds=timeout_s, **({"reconcile": find} if finds is not None else {}))]
    if finds is not None:
        tools.append(tool(find, hidden=True))
        ground.effects.set_behaviour(find, finds)
    return await published(ground, [turn(call(name, {"n": 1})), final({"ok": True})], *tools), name


async def effects_of(operator: Client, job: str) -> list[tuple[str, int]]:
    shown: Json = await operator.get(f"/v1/operator/jobs/{job}")
    return [(effect["state"], effect["epoch"]) for effect in shown["effects"]]


def one_key(calls: Sequence[Call]) -> list[int | None]:
    """The epochs of these calls, which must all carry the same key."""
    assert len({sent.idempotency_key for sent in calls}) == 1
    return [sent.epoch for sent in calls]


async def told(app: Client, job: str) -> list[str]:
    """The events of the write, and of what was done to find out."""
    kept = ("tool.", "effect.", "request.", "attempt.")
    return [kind for kind in await app.event_types(job) if kind.startswith(kept)]


FOUND_OUT = ["tool.started", "effect.unknown", "effect.reconciled", "tool.finished"]


@pytest.mark.parametrize(
    ("finds", "outcome", "state"),
    [
        (Behaviour(answer=Answer.FIND), "happened", "reconciled"),
        (Behaviour(body={"found": False}), "did_not_happen", "failed"),
    ],
    ids=["found", "not found"],
)
async def test_a_write_whose_worker_died_is_reconciled_by_its_tool(
    ground: Stack, app: Client, operator: Client, finds: Behaviour, outcome: str, state: str
) -> None:
    plugin, name = await writer(ground, finds=finds, timeout_s=8)
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    job = await app.accepted(plugin)
    await ground.effects.wait_for_calls(name)
    kill_workers(ground)
    await new_worker(ground)
    view = await app.until_ended(job, 60)
    assert (view["status"], view["executed"]) == ("succeeded", "yes")
    assert await told(app, job) == ["tool.started", "attempt.replaced", *FOUND_OUT[1:]]
    reconciled = await app.until_event(job, "effect.reconciled")
    assert reconciled["data"]["outcome"] == outcome
    assert one_key(ground.effects.calls(name)) == [1]
    assert await effects_of(operator, job) == [(state, 1)]
    [sent, *asked] = ground.effects.calls(job=job)
    assert {find.args["effect_id"][0] for find in asked} == {sent.idempotency_key}
    assert len(asked) == (1 if outcome == "happened" else 2)


async def test_a_write_whose_worker_died_waits_for_a_person_where_no_tool_can_tell(
    ground: Stack, app: Client, operator: Client
) -> None:
    plugin, name = await writer(ground)
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    job = await app.accepted(plugin)
    [sent] = await ground.effects.wait_for_calls(name)
    kill_workers(ground)
    await new_worker(ground)
    [request] = await app.until_request(job, 60)
    view = await app.status(job)
    assert (view["status"], view["executed"], view["recovery"]) == ("waiting_for_human", "unknown", "needs_person")
    assert "find out whether a write took effect" in view["next_action"]["message"]
    shown = await ground.client("approver").request(job, request)
    assert (shown["kind"], shown["effect_id"], shown["args"]) == ("reconciliation", sent.idempotency_key, {"n": 1})
    assert shown["title"].startswith(f"Did {name} take effect?")
    assert await effects_of(operator, job) == [("unknown", 1)]
    settled = await ground.client("approver").decide(job, request, "settle", answer="happened")
    assert settled.status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert ground.effects.calls(name) == [sent]
    assert await effects_of(operator, job) == [("reconciled", 1)]


async def test_an_idempotent_write_whose_worker_died_is_tried_again_within_the_heartbeats_bound(
    ground: Stack, app: Client, operator: Client
) -> None:
    """The step could take ten minutes; the heartbeat tells within seconds that its worker is gone."""
    plugin, name = await writer(ground, "idempotent_write", timeout_s=300)
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD, times=1))
    job = await app.accepted(plugin)
    await ground.effects.wait_for_calls(name)
    await new_worker(ground)
    died = time.monotonic_ns()
    ground.workers[-2].kill()
    first, second = await ground.effects.wait_for_calls(name, 2, 60)
    assert second.monotonic_ns - died < 15 * 10**9
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert one_key([first, second]) == [1, 2]
    assert await effects_of(operator, job) == [("confirmed", 2)]


@pytest.mark.parametrize("lost", LOST)
async def test_a_write_whose_reply_is_lost_is_sent_once_and_found(
    ground: Stack, app: Client, operator: Client, lost: str
) -> None:
    plugin, name = await writer(ground, finds=Behaviour(answer=Answer.FIND), timeout_s=2)
    ground.effects.set_behaviour(name, LOST[lost])
    job = await app.accepted(plugin)
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert await told(app, job) == FOUND_OUT
    assert one_key(ground.effects.calls(name)) == [1]
    assert await effects_of(operator, job) == [("reconciled", 1)]


@pytest.mark.parametrize("lost", LOST)
async def test_an_idempotent_write_whose_reply_is_lost_goes_again_under_its_key(
    ground: Stack, app: Client, operator: Client, lost: str
) -> None:
    plugin, name = await writer(ground, "idempotent_write", timeout_s=2)
    ground.effects.set_behaviour(name, LOST[lost])
    job = await app.accepted(plugin)
    view = await app.until_ended(job)
    assert (view["status"], view["executed"]) == ("succeeded", "yes")
    assert await told(app, job) == ["tool.started", "attempt.replaced", "tool.finished"]
    assert one_key(ground.effects.calls(name)) == [1, 2]
    assert await effects_of(operator, job) == [("confirmed", 2)]


async def test_an_idempotent_write_out_of_attempts_says_that_its_effect_is_not_known(
    ground: Stack, app: Client, operator: Client
) -> None:
    plugin, name = await writer(ground, "idempotent_write")
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.DROP_AFTER_RECORDING))
    job = await app.accepted(plugin)
    view = await app.until_ended(job, 60)
    assert (view["failure"]["code"], view["executed"], view["recovery"]) == ("tool_failed", "unknown", "needs_person")
    assert view["next_action"]["code"] == "ask_operator"
    assert (await told(app, job))[-1] == "effect.unknown"
    assert one_key(ground.effects.calls(name)) == [1, 2, 3, 4]
    assert await effects_of(operator, job) == [("unknown", 4)]
    refused = await app.http.post(f"/v1/jobs/{job}/retry", json={}, headers={"Idempotency-Key": fresh_name("again")})
    assert (refused.status_code, refused.json()["code"]) == (409, "effect-unreconciled")


async def waits_for_a_person(ground: Stack, app: Client) -> tuple[str, str, str]:
    """A job whose write's reply was dropped, its request, and the write's name."""
    plugin, name = await writer(ground)
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.DROP_AFTER_RECORDING))
    job = await app.accepted(plugin)
    [request] = await app.until_request(job, 60)
    return job, request, name


async def test_a_settlement_without_a_worker_is_kept_until_one_runs(
    ground: Stack, app: Client, operator: Client
) -> None:
    approver = ground.client("approver")
    job, request, name = await waits_for_a_person(ground, app)
    kill_workers(ground)
    settled = await approver.decide(job, request, "settle", answer="did_not_happen")
    assert (settled.status_code, settled.json()["state"]) == (202, "settled")
    assert await effects_of(operator, job) == [("failed", 1)]
    await new_worker(ground)
    assert (await app.until_ended(job, 60))["status"] == "succeeded"
    again = await approver.decide(job, request, "settle", answer="did_not_happen")
    assert (again.status_code, again.json()) == (200, settled.json())
    assert len(ground.effects.calls(name)) == 1


async def test_a_settlement_whose_api_died_before_it_told_the_job_counts_when_it_is_repeated(
    ground: Stack, app: Client, operator: Client
) -> None:
    """What the API writes in one transaction is written here, and the hint that would follow is not given."""
    approver = ground.client("approver")
    job, request, name = await waits_for_a_person(ground, app)
    shown = await approver.request(job, request)
    at = datetime.now(UTC)
    vote = VoteRow(
        DEMO, JobId(job), RequestId(request), PrincipalId("approver"), "settle", shown["action_digest"], None, at
    )

    def settle(conn: Connection) -> None:
        cast_vote(conn, vote, quorum=1, answer="happened")
        assert reconcile_effect(
            conn, DEMO, JobId(job), EffectId(shown["effect_id"]), happened=True, outcome_ref=None, at=at
        )

    async with ledger_of(ground) as ledger:
        await ledger.write(settle)
    assert (await approver.request(job, request))["state"] == "settled"
    assert (await app.status(job))["status"] == "waiting_for_human"
    repeated = await approver.decide(job, request, "settle", answer="happened", digest=shown["action_digest"])
    assert (repeated.status_code, repeated.json()["decided_by"]) == (200, ["approver"])
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert await effects_of(operator, job) == [("reconciled", 1)]
    assert len(ground.effects.calls(name)) == 1
