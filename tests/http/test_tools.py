"""What leaves for a tool, what comes back, and what never leaves at all: real jobs, a real worker, the effect log."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from gateway.ledger.effects import list_effects
from gateway.ledger.stops import stop_job
from tests.rig.doorstep import APP, DEMO, Doorstep
from tests.rig.effect_log import Answer, Behaviour, EffectLog
from tests.rig.plugins import ALLOW_ALL, call, final, tool, turn
from tests.rig.stack import SECRETS, Stack, free_port
from tests.rig.waiting import wait_until
from workflows.contract.errors import FailureCode
from workflows.contract.events import EventType
from workflows.contract.ids import JobId, PrincipalId, sha256_of, workflow_id
from workflows.contract.job import EndRecord, Status
from workflows.contract.steps import WORKFLOW_TYPE

CANARY = SECRETS["TOOL_TOKEN"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


async def run(
    doorstep: Doorstep,
    effects: EffectLog,
    *script: Any,
    effect: str = "read",
    policy: str | None = ALLOW_ALL,
    tools_url: str | None = None,
    timeout_s: float = 60.0,
    in_doubt: bool = False,
    **tool_fields: Any,
) -> EndRecord:
    """A job of one tool `t`, called once and then done, unless `script` says otherwise; `in_doubt`: until nobody can
    tell what came of it."""
    plugin = await doorstep.publish(
        script or (turn(call("t", {"n": 1})), final({"got": "{{ results['t'] | default('nothing') }}"})),
        tools=[tool("t", effect, **tool_fields)],
        tools_url=tools_url or effects.url,
        policy=policy,
    )
    job = await doorstep.start(plugin, timeout_s=timeout_s)
    return await (doorstep.give_up(job) if in_doubt else doorstep.end(job))


async def result_of(doorstep: Doorstep, record: EndRecord) -> Any:
    assert record.view.result_ref is not None, record.view.failure
    return json.loads(await doorstep.blobs.get(DEMO, record.view.result_ref))


def types(record: EndRecord) -> list[EventType]:
    return [event.type for event in record.events]


def failure(record: EndRecord) -> FailureCode | None:
    return record.view.failure.code if record.view.failure else None


async def test_a_read_carries_job_and_trace_and_no_effect(doorstep: Doorstep, effects: EffectLog) -> None:
    record = await run(doorstep, effects)
    assert await result_of(doorstep, record) == {"got": {"ok": True, "tool": "t", "n": 1}}
    (sent,) = effects.calls("t")
    assert (sent.method, sent.args, sent.authorized) == ("GET", {"n": ["1"]}, True)
    assert sent.job is not None
    assert sent.job.startswith("hands-")
    assert sent.traceparent is not None
    assert (sent.idempotency_key, sent.epoch) == (None, None)


async def test_a_write_carries_its_effect_id_and_epoch(doorstep: Doorstep, effects: EffectLog) -> None:
    record = await run(doorstep, effects, effect="write")
    (sent,) = effects.calls("t")
    finished = next(event for event in record.events if event.type is EventType.TOOL_FINISHED)
    assert (sent.idempotency_key, sent.epoch) == (finished.data["effect_id"], 1)
    assert sent.body == b'{"n":1}'
    (row,) = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, JobId(sent.job or "")))
    assert (row.state, row.epoch, row.effect_id) == ("confirmed", 1, sent.idempotency_key)


async def test_a_4xx_is_a_result_that_the_model_sees(doorstep: Doorstep, effects: EffectLog) -> None:
    effects.set_behaviour("t", Behaviour(status=409, body={"error": "taken"}))
    record = await run(doorstep, effects, effect="write")
    assert await result_of(doorstep, record) == {"got": {"error": "taken"}}
    assert len(effects.calls("t")) == 1


@pytest.mark.parametrize(
    "behaviour", [Behaviour(status=502), Behaviour(status=429), Behaviour(answer=Answer.DROP_AFTER_RECORDING)]
)
async def test_a_write_without_a_clear_answer_is_unknown_and_never_repeated(
    doorstep: Doorstep, effects: EffectLog, behaviour: Behaviour
) -> None:
    effects.set_behaviour("t", behaviour)
    record = await run(doorstep, effects, effect="write", in_doubt=True)
    assert failure(record) is FailureCode.EFFECT_UNKNOWN
    assert record.view.executed == "unknown"
    (sent,) = effects.calls("t")
    (row,) = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, JobId(sent.job or "")))
    assert row.state == "unknown"


async def test_a_write_that_times_out_is_unknown(doorstep: Doorstep, effects: EffectLog) -> None:
    effects.set_behaviour("t", Behaviour(answer=Answer.HOLD))
    record = await run(doorstep, effects, effect="write", timeout_seconds=0.3, in_doubt=True)
    assert failure(record) is FailureCode.EFFECT_UNKNOWN
    assert len(effects.calls("t")) == 1


async def test_an_idempotent_write_goes_again_under_one_key_and_the_next_epoch(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    effects.set_behaviour("t", Behaviour(answer=Answer.DROP_AFTER_RECORDING, times=1))
    record = await run(doorstep, effects, effect="idempotent_write")
    assert record.view.status is Status.SUCCEEDED
    sent = effects.calls("t")
    assert [one.epoch for one in sent] == [1, 2]
    assert len({one.idempotency_key for one in sent}) == 1
    assert types(record).count(EventType.ATTEMPT_REPLACED) == 1


async def test_a_refused_connection_leaves_nothing_and_may_be_tried_again(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    record = await run(doorstep, effects, effect="write", tools_url=nobody, timeout_s=2.5)
    assert failure(record) is FailureCode.TOOL_FAILED
    reasons = [event.data["reason"] for event in record.events if event.type is EventType.ATTEMPT_REPLACED]
    assert reasons == ["connect_refused"]


@pytest.mark.parametrize("answer", [Answer.NAN, Answer.OVERSIZE, Answer.REDIRECT])
async def test_what_can_not_be_kept_is_a_typed_result(doorstep: Doorstep, effects: EffectLog, answer: Answer) -> None:
    effects.set_behaviour("t", Behaviour(answer=answer))
    record = await run(doorstep, effects)
    assert "error" in (await result_of(doorstep, record))["got"]
    assert effects.calls("redirected") == []


@pytest.mark.parametrize("answer", [Answer.ECHO_BODY, Answer.ECHO_HEADERS, Answer.ECHO_ERROR])
async def test_an_echoed_credential_is_nowhere(
    stack: Stack, doorstep: Doorstep, effects: EffectLog, answer: Answer
) -> None:
    effects.set_behaviour("t", Behaviour(answer=answer))
    record = await run(doorstep, effects, effect="write", in_doubt=answer is Answer.ECHO_ERROR)
    (sent,) = effects.calls("t")
    assert CANARY in (sent.header("authorization") or "")
    handle = doorstep.client.get_workflow_handle(workflow_id(DEMO, JobId(sent.job or "")))
    history = await handle.fetch_history()
    assert CANARY not in record.model_dump_json()
    assert CANARY not in history.to_json()
    kept = [path for path in stack.data.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert kept == []
    assert all(CANARY not in worker.output for worker in stack.workers)


# ---- what never leaves


async def test_a_stop_in_the_ledger_ends_the_job_even_if_nobody_told_the_engine(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    plugin = await doorstep.publish([turn(call("t"))], tools=[tool("t", "write")], tools_url=effects.url)
    row, start = await doorstep.reserve(plugin)
    await doorstep.ledger.write(lambda conn: stop_job(conn, DEMO, row.job_id, by=APP, at=datetime.now(UTC)))
    await doorstep.engine.start(row.start_input, start)
    record = await doorstep.end(row.job_id)
    assert record.view.status is Status.CANCELED
    assert effects.calls() == []


async def test_a_principal_without_a_grant_calls_nothing(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish([turn(call("t"))], tools=[tool("t")], tools_url=effects.url)
    job = await doorstep.start(plugin, principal=PrincipalId("nobody"))
    assert failure(await doorstep.end(job)) is FailureCode.AUTHORITY_REVOKED
    assert effects.calls() == []


async def test_a_version_that_is_not_live_calls_nothing(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish([turn(call("t"))], tools=[tool("t")], tools_url=effects.url, live=False)
    assert failure(await doorstep.end(await doorstep.start(plugin))) is FailureCode.AUTHORITY_REVOKED
    assert effects.calls() == []


async def test_a_job_that_admission_did_not_record_calls_nothing(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish([turn(call("t"))], tools=[tool("t")], tools_url=effects.url)
    _row, start = await doorstep.reserve(plugin)
    by_hand = start.model_copy(update={"job_id": JobId(f"{start.job_id}-by-hand")})
    lane = doorstep.settings.lanes[doorstep.settings.lane].task_queue
    await doorstep.client.start_workflow(WORKFLOW_TYPE, by_hand, id=workflow_id(DEMO, by_hand.job_id), task_queue=lane)
    execution = await wait_until(lambda: _ended(doorstep, by_hand.job_id), 20)
    assert execution == "failed"
    assert effects.calls() == []


async def test_a_reserved_key_that_another_workflow_took_calls_nothing(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish([turn(call("t"))], tools=[tool("t")], tools_url=effects.url)
    row, start = await doorstep.reserve(plugin, accepted=False)
    foreign = start.model_copy(update={"fingerprint": sha256_of(b"other content")})
    await doorstep.engine.start(foreign.model_dump_json().encode(), foreign)
    assert failure(await doorstep.end(row.job_id)) is FailureCode.INPUT_REJECTED
    assert effects.calls() == []


async def test_a_job_whose_acceptance_lags_behind_runs(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish(
        [turn(call("t")), final()], tools=[tool("t", "write")], tools_url=effects.url, policy=ALLOW_ALL
    )
    assert await doorstep.result(await doorstep.start(plugin, accepted=False)) == {"message": "Done."}


async def test_a_damaged_bundle_ends_the_job(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish(
        [turn(call("t"), delay_seconds=2.5), turn(call("t"))], tools=[tool("t")], tools_url=effects.url
    )
    job = await doorstep.start(plugin)
    damaged = plugin.snapshot.bundle.digest.removeprefix("sha256:")
    (blob,) = (doorstep.settings.data / "blobs" / DEMO).glob(damaged)
    blob.write_bytes(b"{}")
    assert failure(await doorstep.end(job)) is FailureCode.SNAPSHOT_MISMATCH
    assert effects.calls() == []


async def test_an_unfitting_argument_and_an_unknown_tool_are_refused(doorstep: Doorstep, effects: EffectLog) -> None:
    script = [turn(call("t", {"n": "CANARY"}), call("made.up")), final()]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    record = await run(doorstep, effects, *script, input_schema=schema)
    refused = [event for event in record.events if event.type is EventType.TOOL_REFUSED]
    assert [event.data["tool"] for event in refused] == ["t", "made.up"]
    assert refused[0].data["reason"] == "at /n: must be integer"
    assert "CANARY" not in record.model_dump_json()
    assert effects.calls() == []


async def _ended(doorstep: Doorstep, job: JobId) -> str | None:
    described = await doorstep.client.get_workflow_handle(workflow_id(DEMO, job)).describe()
    return described.status.name.lower() if described.status and described.status.name != "RUNNING" else None


@pytest.mark.parametrize("value", ["..", "a/../../b", "", None])
async def test_an_argument_that_would_leave_the_path_is_refused_before_anybody_is_asked(
    doorstep: Doorstep, effects: EffectLog, value: str | None
) -> None:
    record = await run(
        doorstep,
        effects,
        turn(call("t", {"id": value})),
        final({"told": True}),
        effect="write",
        policy=None,
        path="/tool/t/{id}",
        input_schema={"type": "object", "properties": {"id": {}}},
    )
    assert await result_of(doorstep, record) == {"told": True}
    assert EventType.TOOL_REFUSED in types(record)
    assert EventType.REQUEST_OPENED not in types(record)
    assert not effects.calls("t")
