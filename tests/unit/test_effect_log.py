"""The judge is judged: the effect log records what came, when it came, and misbehaves exactly as told."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.rig.effect_log import Answer, Behaviour, EffectLog


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EffectLog]:
    log = EffectLog(tmp_path_factory.mktemp("effects"))
    log.start()
    yield log
    log.stop()


@pytest.fixture
def effects(running: EffectLog) -> EffectLog:
    running.reset()
    return running


@pytest.fixture
async def http(effects: EffectLog) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=effects.url, timeout=5, trust_env=False) as client:
        yield client


async def test_a_call_is_recorded_with_its_bytes_headers_and_time(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    before = time.monotonic_ns()
    await http.post(
        "/tool/refunds.create",
        content=b'{"amount":  1200.0}',
        headers={
            "Idempotency-Key": "eff_1",
            "Jobgate-Epoch": "3",
            "Jobgate-Job": "k-1",
            "traceparent": "00-aa",
            "Authorization": "Bearer s",
        },
    )
    after = time.monotonic_ns()
    (call,) = effects.calls("refunds.create")
    assert before < call.monotonic_ns < after
    assert abs(call.wall_ns - time.time_ns()) < 5_000_000_000
    assert (call.method, call.path, call.body) == ("POST", "/tool/refunds.create", b'{"amount":  1200.0}')
    assert (call.idempotency_key, call.epoch, call.job, call.traceparent) == ("eff_1", 3, "k-1", "00-aa")
    assert call.authorized
    assert call.args == {"amount": 1200.0}


async def test_query_and_encoded_path_are_kept_as_sent(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    await http.get("/tool/items.get/a%2Fb?x=1&x=2&y=%20")
    (call,) = effects.calls("items.get")
    assert (call.path, call.query, call.args) == (
        "/tool/items.get/a%2Fb",
        "x=1&x=2&y=%20",
        {"x": ["1", "2"], "y": [" "]},
    )
    assert not call.authorized


async def test_behaviours_apply_in_turn_and_then_the_tool_is_well(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour(
        "t", Behaviour(status=500, times=2), Behaviour(status=429, headers={"Retry-After": "1"}, times=1)
    )
    answers = [await http.get("/tool/t") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [500, 500, 429, 200]
    assert answers[2].headers["Retry-After"] == "1"
    assert answers[3].json() == {"ok": True, "tool": "t", "n": 4}


async def test_a_body_and_a_delay_are_as_told(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour("t", Behaviour(body=[1, None], delay_seconds=0.2))
    started = time.monotonic()
    assert (await http.get("/tool/t")).json() == [1, None]
    assert time.monotonic() - started >= 0.2


async def test_a_dropped_connection_is_recorded_only_when_told_so(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour(
        "t", Behaviour(Answer.DROP_BEFORE_RECORDING, times=1), Behaviour(Answer.DROP_AFTER_RECORDING, times=1)
    )
    for expected in (0, 1):
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await http.post("/tool/t", json={})
        assert len(effects.calls("t")) == expected


async def test_a_held_call_is_recorded_and_answers_on_release(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour("t", Behaviour(Answer.HOLD))
    held = asyncio.create_task(http.get("/tool/t"))
    await effects.wait_for_calls("t")
    assert not held.done()
    effects.release("t")
    assert (await held).status_code == 200


async def test_other_calls_are_answered_while_one_hangs(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour("t", Behaviour(Answer.HOLD))
    held = asyncio.create_task(http.get("/tool/t"))
    await effects.wait_for_calls("t")
    assert (await http.get("/tool/u")).status_code == 200
    held.cancel()


@pytest.mark.parametrize(
    ("answer", "found"),
    [(Answer.ECHO_BODY, "body"), (Answer.ECHO_HEADERS, "headers"), (Answer.ECHO_ERROR, "error")],
)
async def test_a_secret_comes_back_where_told(
    effects: EffectLog, http: httpx2.AsyncClient, answer: Answer, found: str
) -> None:
    effects.set_behaviour("t", Behaviour(answer))
    reply = await http.get("/tool/t", headers={"Authorization": "Bearer canary-1"})
    assert ("canary-1" in reply.text) == (found != "headers")
    assert ("canary-1" in reply.headers.get("X-You-Sent", "")) == (found == "headers")
    assert reply.status_code == (500 if found == "error" else 200)


async def test_unfit_answers_are_sent_as_told(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour(
        "t",
        Behaviour(Answer.NOT_JSON, times=1),
        Behaviour(Answer.NAN, times=1),
        Behaviour(Answer.OVERSIZE, size=3_000_000, times=1),
        Behaviour(Answer.REDIRECT, times=1),
    )
    answers = [await http.get("/tool/t") for _ in range(4)]
    assert answers[0].text.startswith("<html>")
    assert answers[1].text == '{"value": NaN}'
    assert len(answers[2].content) > 3_000_000
    assert (answers[3].status_code, answers[3].headers["Location"]) == (307, "/tool/redirected")


async def test_a_reconcile_tool_finds_a_recorded_effect_only(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour("t.find", Behaviour(Answer.FIND))
    await http.post("/tool/t", headers={"Idempotency-Key": "eff_1"})
    assert (await http.get("/tool/t.find?effect_id=eff_1")).json() == {"found": True, "result": {"tool": "t"}}
    assert (await http.get("/tool/t.find?effect_id=eff_2")).json() == {"found": False, "result": {}}


async def test_calls_are_told_apart_by_job(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    for job in ("a", "b", "a"):
        await http.get("/tool/t", headers={"Jobgate-Job": job})
    assert [call.job for call in effects.calls("t", job="a")] == ["a", "a"]


async def test_reset_forgets_calls_and_behaviours(effects: EffectLog, http: httpx2.AsyncClient) -> None:
    effects.set_behaviour("t", Behaviour(status=500))
    await http.get("/tool/t")
    effects.reset()
    assert effects.calls() == []
    assert (await http.get("/tool/t")).status_code == 200


def test_it_stops_while_a_call_hangs_and_its_record_stays_readable(tmp_path: Path) -> None:
    log = EffectLog(tmp_path)
    log.start()
    log.set_behaviour("t", Behaviour(Answer.HOLD))
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.get(f"{log.url}/tool/t", timeout=0.2, trust_env=False)
    log.stop()
    assert [call.tool for call in log.calls()] == ["t"]
