"""Kill anything at any time: what was accepted is kept, a step is seen again soon, and an effect is never repeated."""

import sys
import time
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, new_worker, published, running_stack
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

NEW_ATTEMPT_S = 15.0
BUSY_S = 30.0
"""What a machine that is busy with other tests may add to any bound."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("survival")) as stack:
        yield stack


def said(what: str, seconds: float) -> None:
    """For whoever measures: run with `-s`."""
    sys.stdout.write(f"{what}: {seconds:.1f} s\n")


async def revived_api(stack: Stack) -> None:
    stack.apis[0].start()
    await stack.until_ready(stack.apis[0])


async def test_a_worker_killed_between_steps_repeats_no_write(ground: Stack) -> None:
    """Two writes are done, then the model thinks, then the worker dies."""
    script = [turn(call("done", {"n": 1})), turn(call("done", {"n": 2})), final(delay_seconds=1.5)]
    app = ground.client()
    job = await app.accepted(await published(ground, script, tool("done", "write")))
    await app.until_event(job, "tool.finished", BUSY_S, count=2)
    began = time.monotonic()
    kill_workers(ground)
    await new_worker(ground)
    assert (await app.until_ended(job, 2 * BUSY_S))["status"] == "succeeded"
    said("killed between steps, ended after", time.monotonic() - began)
    assert [sent.args["n"] for sent in ground.effects.calls("done")] == [1, 2]
    types = await app.event_types(job)
    assert types.count("tool.started") == types.count("tool.finished") == 2


@pytest.mark.parametrize(
    ("status", "times", "end", "replaced"),
    [(400, 9, "failed", 0), (500, 3, "succeeded", 3), (500, 9, "failed", 3)],
)
async def test_a_model_that_fails_after_two_writes_repeats_none(
    ground: Stack, status: int, times: int, end: str, replaced: int
) -> None:
    """B34. An explicit retry is a job of its own, and asks before it does again what was done."""
    name = f"before-{status}-{times}"
    fault = {"status": status, "times": times}
    script = [turn(call(name, {"n": 1})), turn(call(name, {"n": 2})), final(fail=fault)]
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(await published(ground, script, tool(name, "write")))
    view = await app.until_ended(job, BUSY_S)
    assert view["status"] == end
    assert (view["failure"] and view["failure"]["code"]) == ("model_failed" if end == "failed" else None)
    assert (await app.event_types(job)).count("attempt.replaced") == replaced
    assert [sent.args["n"] for sent in ground.effects.calls(name)] == [1, 2]
    key = fresh_key()
    again = await app.http.post(f"/v1/jobs/{job}/retry", json={}, headers={"Idempotency-Key": key})
    assert (again.status_code, again.json()["retry_of"]) == (202, job)
    [request] = await app.until_request(key, BUSY_S)
    assert (await approver.request(key, request))["title"].startswith(f"Again, after job {job}: ")
    await app.cancel(key)
    await app.until_ended(key, BUSY_S)
    assert [sent.args["n"] for sent in ground.effects.calls(name)] == [1, 2]


async def test_a_reader_who_leaves_is_no_cancel(ground: Stack) -> None:
    ground.effects.set_behaviour("watched", Behaviour(answer=Answer.HOLD))
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("watched")), final()], tool("watched")))
    await ground.effects.wait_for_calls("watched", job=job)
    async with app.stream(job) as events:
        await anext(events)
    ground.effects.release("watched")
    assert (await ground.client().until_ended(job))["status"] == "succeeded"
    frames = await app.streamed(job)
    assert [frame.event["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert "cancel.requested" not in {frame.type for frame in frames}


async def recovered(stack: Stack, name: str, effect: str) -> tuple[Client, str, list[Call]]:
    """A job whose worker died in its one call; the calls once there is a second one. Another worker polls already."""
    stack.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD, times=1))
    app = stack.client()
    job = await app.accepted(await published(stack, [turn(call(name)), final()], tool(name, effect)))
    await stack.effects.wait_for_calls(name, job=job)
    busy = list(stack.workers)
    await new_worker(stack)
    began = time.monotonic()
    for worker in busy:
        worker.kill()
    calls = await stack.effects.wait_for_calls(name, 2, NEW_ATTEMPT_S + BUSY_S, job=job)
    said(f"killed in {effect}, next attempt after", time.monotonic() - began)
    return app, job, calls


async def test_a_worker_killed_in_a_read_is_replaced_soon(ground: Stack) -> None:
    app, job, _ = await recovered(ground, "read-again", "read")
    view = await app.until_ended(job, BUSY_S)
    assert view["status"] == "succeeded"
    types = await app.event_types(job)
    assert types.count("attempt.replaced") == 1
    replaced = await app.until_event(job, "attempt.replaced")
    assert (replaced["data"]["reason"], replaced["data"]["attempt"]) == ("lost", 2)
    assert len(ground.effects.calls("read-again")) == 2


async def test_a_step_of_ten_minutes_whose_worker_died_is_told_of_and_begun_anew_soon(ground: Stack) -> None:
    """B32: nobody waits for the step's own time, nothing is silent meanwhile, and budget and deadline go on."""
    ground.effects.set_behaviour("long", Behaviour(answer=Answer.HOLD, times=1))
    script = [turn(call("long")), final(usage={"input_tokens": 7, "output_tokens": 1})]
    app = ground.client()
    job = await app.accepted(await published(ground, script, tool("long", timeout_seconds=600)))
    await ground.effects.wait_for_calls("long", job=job)
    before = await app.until_event(job, "tool.started")
    deadline = (await app.status(job))["deadline"]
    kill_workers(ground)
    died = time.monotonic_ns()
    view = await app.status(job)
    assert (view["status"], view["executed"], view["recovery"]) == ("running", "yes", "automatic")
    assert view["last_event"] == before
    await new_worker(ground)
    _, second = await ground.effects.wait_for_calls("long", 2, NEW_ATTEMPT_S + BUSY_S, job=job)
    said("killed in a step of ten minutes, next attempt after", (second.monotonic_ns - died) / 1e9)
    assert second.monotonic_ns - died < 60 * 10**9
    end = await app.until_ended(job, BUSY_S)
    replaced = await app.until_event(job, "attempt.replaced")
    assert (replaced["data"]["reason"], replaced["data"]["attempt"], replaced["data"]["tool"]) == ("lost", 2, "long")
    assert replaced["seq"] == before["seq"] + 1
    assert (end["status"], end["deadline"], end["usage"]["steps"]) == ("succeeded", deadline, 3)
    assert end["usage"]["input_tokens"] == 7


async def test_a_worker_killed_in_an_idempotent_write_sends_the_same_effect_again(ground: Stack) -> None:
    app, job, (first, second) = await recovered(ground, "put-again", "idempotent_write")
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert first.idempotency_key == second.idempotency_key
    assert [first.epoch, second.epoch] == [1, 2]
    assert (first.body, first.job) == (second.body, second.job)
    assert len(ground.effects.calls("put-again")) == 2


async def test_a_worker_killed_in_a_write_leaves_it_unknown(ground: Stack) -> None:
    ground.effects.set_behaviour("once", Behaviour(answer=Answer.HOLD))
    script = [turn(call("once")), turn(call("once", {"n": 2})), final()]
    app = ground.client()
    job = await app.accepted(await published(ground, script, tool("once", "write")))
    await ground.effects.wait_for_calls("once", job=job)
    kill_workers(ground)
    await new_worker(ground)
    end = await app.give_up(job, ground.client("approver"), NEW_ATTEMPT_S + BUSY_S)
    assert (end["failure"]["code"], end["executed"], end["recovery"]) == ("effect_unknown", "unknown", "needs_person")
    assert "effect.unknown" in await app.event_types(job)
    ground.effects.release("once")
    assert len(ground.effects.calls("once")) == 1


async def test_an_approved_write_runs_once_though_the_worker_dies_after_the_decision(ground: Stack) -> None:
    """One write before the pause, one after: each once, whatever is decided again and whoever dies (B18)."""
    policy = READS_RUN_WRITES_ASK + (
        'permit (principal, action == Action::"call_unattended", resource == Tool::"before");\n'
    )
    script = [turn(call("before")), turn(call("asked")), final()]
    plugin = await published(ground, script, tool("before", "write"), tool("asked", "write"), policy=policy)
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    kill_workers(ground)
    decided = await approver.decide(job, request, "approve")
    assert decided.status_code == 202
    await new_worker(ground)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    again = await approver.decide(job, request, "approve")
    assert (again.status_code, again.json()) == (200, decided.json())
    assert (await approver.decide(job, request, "reject")).status_code == 409
    assert [len(ground.effects.calls(name)) for name in ("before", "asked")] == [1, 1]


async def test_temporal_restarted_on_its_file_keeps_a_waiting_job(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("paid")), final()], tool("paid", "write"), policy=READS_RUN_WRITES_ASK)
    app, approver, key = ground.client(), ground.client("approver"), fresh_key()
    first = await app.submit(plugin, key=key)
    [request] = await app.until_request(key)
    before = await app.until_status(key, "waiting_for_human")
    ground.temporal.kill()
    await ground.start_temporal()
    began = time.monotonic()
    await ground.until_ready(ground.apis[0])
    assert {**await app.status(key), "as_of": None} == {**before, "as_of": None}
    assert (await app.submit(plugin, key=key)).content == first.content
    assert (await approver.decide(key, request, "approve")).status_code in (200, 202)
    assert (await app.until_ended(key, 2 * BUSY_S))["status"] == "succeeded"
    said("Temporal restarted, decided and ended after", time.monotonic() - began)
    assert len(ground.effects.calls("paid")) == 1
