"""Tools that answer later, with real POSTs to a real API: who is heard, once, in time, and what of it is kept."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.rig.client import Client, Json, problem
from tests.rig.effect_log import Behaviour
from tests.rig.overheard import Overhearing
from tests.rig.stack import SECRETS, Stack
from tests.rig.vendors import callback_stack, effects_of, plugin_of, post, waiting, way_back

CANARY = SECRETS["TOOL_TOKEN"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def vendors(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """A stack whose worker knows where its API is."""
    own = Stack(tmp_path_factory.mktemp("callbacks"), settings={"JOBGATE_LOG_LEVEL": "debug"})
    try:
        await callback_stack(own)
        yield own
    finally:
        await own.close()


async def result_of(app: Client, job: str) -> Any:
    view = await app.until_ended(job)
    assert view["status"] == "succeeded", view["failure"]
    return (await app.get(f"/v1/jobs/{job}/result"))["got"]


async def test_a_read_is_answered_later_with_no_step_running(vendors: Stack) -> None:
    job, sent = await waiting(vendors)
    assert way_back(sent).startswith(f"{vendors.apis[0].url}/v1/callbacks/")
    view = await vendors.client().status(job)
    assert (view["status"], view["executed"]) == ("running", "yes")
    answered = await post(way_back(sent), {"found": [1, "ä"]})
    assert (answered.status_code, answered.json()) == (200, {"outcome": "ok"})
    assert await result_of(vendors.client(), job) == {"found": [1, "ä"]}


@pytest.mark.parametrize(("word", "state"), [("ok", "confirmed"), ("failed", "failed")])
@pytest.mark.parametrize("effect", ["write", "idempotent_write"])
async def test_an_answer_settles_a_write(vendors: Stack, effect: str, word: str, state: str) -> None:
    job, sent = await waiting(vendors, effect)
    assert (sent.epoch, await effects_of(vendors, job)) == (1, [("sent", 1)])
    answered = await post(way_back(sent), {"refund": "re_1"}, Jobgate_Outcome=word)
    assert (answered.status_code, answered.json()) == (200, {"outcome": word})
    assert await effects_of(vendors, job) == [(state, 1)]
    assert await result_of(vendors.client(), job) == {"refund": "re_1"}
    finished = await vendors.client().until_event(job, "tool.finished")
    assert finished["data"]["outcome"] == ("ok" if word == "ok" else "error")


async def test_of_thirty_answers_at_once_one_counts(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    answers = await asyncio.gather(*(post(way_back(sent), {"n": n}) for n in range(30)))
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 29]
    assert {problem(answer) for answer in answers if answer.status_code != 200} == {(409, "callback-answered")}
    [won] = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    assert await result_of(vendors.client(), job) == {"n": won}
    assert problem(await post(way_back(sent), {"n": "late"})) == (409, "callback-answered")


async def test_a_token_that_nobody_gave_out_is_the_same_404_whatever_it_looks_like(vendors: Stack) -> None:
    _, sent = await waiting(vendors)
    good = way_back(sent)
    other = ("B" if good[-1] == "A" else "A") + good[-2::-1][:0]
    wrong = [good[:-1] + other, good[:-10], good + "A", f"{vendors.apis[0].url}/v1/callbacks/{'A' * 64}"]
    answers = [await post(url, {"n": 1}) for url in wrong] + [await post(wrong[0], None, Content_Type="text/plain")]
    documents: list[Json] = [{**answer.json(), "instance": ""} for answer in answers]
    assert {problem(answer) for answer in answers} == {(404, "not-found")}
    assert all(document == documents[0] for document in documents)
    assert (await post(good, {"n": 1})).status_code == 200


async def test_a_body_that_is_refused_leaves_the_token_good(vendors: Stack) -> None:
    job, sent = await waiting(vendors)
    async with httpx2.AsyncClient(transport=Overhearing()) as http:
        told = {"Content-Type": "application/json"}
        for body in (b"", b"{", b'{"n": NaN}', b'{"a": 1, "a": 2}', b"[" * 100 + b"]" * 100):
            assert problem(await http.post(way_back(sent), content=body, headers=told)) == (422, "input-invalid")
        plain = await http.post(way_back(sent), content=b"{}", headers={"Content-Type": "text/plain"})
        assert problem(plain) == (415, "unsupported-media-type")
        large = await http.post(way_back(sent), content=b'"' + b"x" * (256 << 10) + b'"', headers=told)
        assert problem(large) == (413, "payload-too-large")
    assert problem(await post(way_back(sent), {}, Jobgate_Outcome="maybe")) == (422, "input-invalid")
    assert (await post(way_back(sent), {"n": 2})).status_code == 200
    assert await result_of(vendors.client(), job) == {"n": 2}


async def test_nothing_is_answered_after_a_cancel(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    canceled = await vendors.client().cancel(job)
    assert [flight["tool"] for flight in canceled.json()["in_flight"]] in ([], ["t"])
    assert problem(await post(way_back(sent), {"n": 1})) == (410, "callback-over")
    assert (await vendors.client().until_ended(job))["status"] == "canceled"
    assert "effect.unknown" in await vendors.client().event_types(job)
    assert problem(await post(way_back(sent), {"n": 1})) == (410, "callback-over")
    assert (await effects_of(vendors, job))[0][0] in ("sent", "unknown")


async def test_nothing_is_answered_after_the_job_has_ended_otherwise(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    engine = await vendors.engine()
    await engine.get_workflow_handle(f"demo.{job}").terminate("by hand")
    assert problem(await post(way_back(sent), {"n": 1})) == (410, "callback-over")
    assert await effects_of(vendors, job) == [("sent", 1)]


@pytest.mark.parametrize(("effect", "ends"), [("read", "succeeded"), ("write", "failed")])
async def test_an_answer_after_the_expiry_is_refused(vendors: Stack, effect: str, ends: str) -> None:
    job, sent = await waiting(vendors, effect, expires=1)
    app = vendors.client()
    in_doubt = effect == "write"
    view = await (app.give_up(job, vendors.client("approver")) if in_doubt else app.until_ended(job))
    assert view["status"] == ends
    assert problem(await post(way_back(sent), {"n": 1})) == (410, "callback-over")
    if in_doubt:
        assert view["failure"]["code"] == "effect_unknown"
        assert await effects_of(vendors, job) == [("unknown", 1)]


@pytest.mark.parametrize(("effect", "counts"), [("read", "failed"), ("write", "ok")])
async def test_a_result_that_is_not_as_declared_is_told_instead_of_shown(
    vendors: Stack, effect: str, counts: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    job, sent = await waiting(vendors, effect, output_schema=schema)
    answered = await post(way_back(sent), {"n": "hostile"})
    assert (answered.status_code, answered.json()) == (200, {"outcome": counts})
    got = await result_of(vendors.client(), job)
    assert got == {"error": "Its result does not fit the tool's output_schema.", "reasons": ["at /n: must be integer"]}


async def test_a_tool_that_answers_at_once_has_no_second_word(vendors: Stack) -> None:
    name = await plugin_of(vendors, "write")
    vendors.effects.set_behaviour("t", Behaviour(body={"at": "once"}))
    job = await vendors.client().accepted(name)
    [sent] = await vendors.effects.wait_for_calls("t", job=job)
    assert await result_of(vendors.client(), job) == {"at": "once"}
    assert problem(await post(way_back(sent), {"n": 1})) == (410, "callback-over")
    assert await effects_of(vendors, job) == [("confirmed", 1)]


async def test_an_echoed_credential_and_the_token_are_nowhere(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    url = way_back(sent)
    token = url.rpartition("/")[2]
    assert CANARY in (sent.header("authorization") or "")
    said = {"you": f"Bearer {CANARY}", CANARY: [token], "at": url}
    assert (await post(url, said)).status_code == 200
    got = await result_of(vendors.client(), job)
    assert got["you"] == "[secret]"
    assert problem(await post(url, said)) == (409, "callback-answered")
    engine = await vendors.engine()
    history = (await engine.get_workflow_handle(f"demo.{job}").fetch_history()).to_json()
    shown = json.dumps(await vendors.client().events(job))
    logs = [process.output for process in (*vendors.apis, *vendors.workers)]
    kept = [path for path in vendors.data.rglob("*") if path.is_file()]
    for needle in (CANARY, token):
        assert needle not in json.dumps(got) + shown + history
        assert not [log for log in logs if needle in log]
        assert [path for path in kept if needle.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(("effect", "counts"), [("read", "failed"), ("write", "ok")])
async def test_what_can_not_be_scrubbed_is_not_kept(vendors: Stack, effect: str, counts: str) -> None:
    """An API process whose credential is another one: the word counts, the text does not stay."""
    job, sent = await waiting(vendors, effect)
    elsewhere = vendors.add_api({"TOOL_TOKEN": "rotated-since-then"})
    await vendors.until_ready(elsewhere)
    url = f"{elsewhere.url}/v1/callbacks/{way_back(sent).rpartition('/')[2]}"
    answered = await post(url, {"you": CANARY})
    assert (answered.status_code, answered.json()) == (200, {"outcome": counts})
    elsewhere.stop()
    assert "could not be checked" in (await result_of(vendors.client(), job))["error"]
    kept = [path for path in vendors.data.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert kept == []
