"""Who tries again is the job and nobody below it: what a model's or a tool's server counts is what the log says.

No provider's SDK, HTTP client or engine adds an attempt of its own. `Retry-After` is kept where it fits the deadline.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import pytest_asyncio

from tests.rig.doorstep import Doorstep
from tests.rig.effect_log import Behaviour, EffectLog
from tests.rig.model_server import Completion, Failure, ModelServer
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, tool, turn
from tests.rig.stack import SECRETS, Stack
from workflows.contract.errors import FailureCode
from workflows.contract.events import EventType
from workflows.contract.ids import JobId
from workflows.contract.job import EndRecord, Status

KINDS = ("openai-chat", "openai", "anthropic")
BACK_OFF = [(2, 1), (3, 2), (4, 4)]
"""The attempt that follows, and after how many seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


async def asking(doorstep: Doorstep, model: ModelServer, kind: str = "openai-chat", timeout_s: float = 60) -> JobId:
    """A job whose one turn asks this model."""
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    price = {"input_per_million_usd": "0", "output_per_million_usd": "0"}
    plugin = await doorstep.publish(
        [final()], deployment={"model": f"{kind}:m", "model_connection": connection, "price": price}
    )
    return await doorstep.start(plugin, timeout_s=timeout_s)


async def calling(doorstep: Doorstep, effects: EffectLog, effect: str, *behaviours: Behaviour, **options: Any) -> str:
    """The tool that a job has called once, and its job; the job has ended or waits for a person."""
    name = fresh_name("t")
    effects.set_behaviour(name, *behaviours)
    plugin = await doorstep.publish(
        [turn(call(name)), final({"got": f"{{{{ results['{name}'] | default('nothing') }}}}"})],
        tools=[tool(name, effect)],
        tools_url=effects.url,
        policy=ALLOW_ALL,
    )
    job = await doorstep.start(plugin, **options)
    record = await (doorstep.give_up(job) if effect == "write" else doorstep.end(job))
    judged(record, len(effects.calls(name)))
    return name


def replaced(record: EndRecord) -> list[Mapping[str, Any]]:
    return [event.data for event in record.events if event.type is EventType.ATTEMPT_REPLACED]


def judged(record: EndRecord, came: int) -> None:
    """Each attempt but the first is an event, and nothing came that was no attempt."""
    assert came == 1 + len(replaced(record)), replaced(record)
    assert [one["attempt"] for one in replaced(record)] == list(range(2, came + 1))


def failure(record: EndRecord) -> FailureCode | None:
    return record.view.failure.code if record.view.failure else None


async def test_a_model_that_always_fails_is_asked_four_times_whoever_makes_it(doorstep: Doorstep) -> None:
    async def four_times(kind: str) -> None:
        with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as model:
            model.script(Failure(500, times=99))
            record = await doorstep.end(await asking(doorstep, model, kind))
            assert failure(record) is FailureCode.MODEL_FAILED
            judged(record, len(model.requests))
            assert [(one["attempt"], one["retry_in_s"]) for one in replaced(record)] == BACK_OFF

    await asyncio.gather(*map(four_times, KINDS))


@pytest.mark.parametrize("status", [400, 401])
async def test_a_model_that_refuses_is_asked_once_whoever_makes_it(doorstep: Doorstep, status: int) -> None:
    for kind in KINDS:
        with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as model:
            model.script(Failure(status, times=99, headers={"Retry-After": "1"}))
            record = await doorstep.end(await asking(doorstep, model, kind))
            assert failure(record) is FailureCode.MODEL_FAILED
            assert (len(model.requests), replaced(record)) == (1, [])


async def test_a_wait_that_a_model_asks_for_as_a_date_is_kept(doorstep: Doorstep) -> None:
    """Counted from the reply's own clock, which here is an hour behind."""
    then = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    dated = {"Date": format_datetime(then, usegmt=True)}
    dated["Retry-After"] = format_datetime(then + timedelta(seconds=3), usegmt=True)
    with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as model:
        model.script(Failure(429, headers=dated), Completion(text="Now."))
        record = await doorstep.end(await asking(doorstep, model))
        assert record.view.status is Status.SUCCEEDED
        assert [(one["reason"], one["retry_in_s"]) for one in replaced(record)] == [("rate_limited", 3)]
        assert model.requests[1].monotonic_ns - model.requests[0].monotonic_ns >= 3e9


async def test_a_wait_that_would_pass_the_deadline_ends_the_step_at_once(doorstep: Doorstep) -> None:
    for asked in ("61", format_datetime(datetime.now(UTC) + timedelta(hours=9), usegmt=True)):
        with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as model:
            model.script(Failure(429, times=99, headers={"Retry-After": asked}))
            record = await doorstep.end(await asking(doorstep, model, timeout_s=60))
            assert failure(record) is FailureCode.MODEL_FAILED
            assert (len(model.requests), replaced(record)) == (1, [])


async def test_a_tool_that_always_fails_is_called_four_times_and_a_write_once(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    cases = [
        ("read", Behaviour(status=500), 4),
        ("read", Behaviour(status=429, headers={"Retry-After": "1"}), 4),
        ("idempotent_write", Behaviour(status=503), 4),
        ("idempotent_write", Behaviour(status=429, headers={"Retry-After": "1"}), 4),
        ("write", Behaviour(status=500), 1),
        ("write", Behaviour(status=429, headers={"Retry-After": "1"}), 1),
    ]
    called = await asyncio.gather(*(calling(doorstep, effects, effect, told) for effect, told, _ in cases))
    for name, (effect, _, times) in zip(called, cases, strict=True):
        calls = effects.calls(name)
        assert len(calls) == times
        keys = {sent.idempotency_key for sent in calls}
        assert keys == {None} if effect == "read" else len(keys) == 1


@pytest.mark.parametrize("effect", ["read", "idempotent_write"])
async def test_a_tool_that_refuses_is_called_once_and_the_model_is_told(
    doorstep: Doorstep, effects: EffectLog, effect: str
) -> None:
    refusals = [Behaviour(status=status, body={"error": "no"}) for status in (400, 401, 403, 404)]
    called = await asyncio.gather(*(calling(doorstep, effects, effect, told) for told in refusals))
    assert [len(effects.calls(name)) for name in called] == [1] * 4


async def test_a_wait_that_a_tool_asks_for_past_the_deadline_is_not_begun(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    told = Behaviour(status=429, headers={"Retry-After": "61"})
    name = await calling(doorstep, effects, "read", told, timeout_s=60)
    assert len(effects.calls(name)) == 1
