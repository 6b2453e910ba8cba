"""What a smoke says that is neither green nor a flag: others at work, a broken refusal, a process that is not as it
must be. And the gate believes what it says."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import insert, select
from starlette.types import ASGIApp

from gateway.exercising import Exercised, exercise
from gateway.ground import Ground
from gateway.ledger.catalog_tables import evidence
from gateway.ledger.census import WATCHED
from gateway.ledger.tables import metadata, processes
from gateway.probes import PROBES, Probe
from gateway.scopes import EVERY_SCOPE, Caller
from gateway.seams import Flag
from gateway.smoking import Smoked, smoke
from tests.rig.client import Client, problem
from tests.rig.plugins import final, fresh_name, publish_plugin
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from tests.smoke.inside import DEMO, OPERATOR, Inside, held_job, until_parked, waiting_job
from workflows.contract.ids import PluginName


def test_every_table_is_watched() -> None:
    assert {one.table.name for one in WATCHED} == set(metadata.tables)


def inconclusive(smoked: Smoked) -> None:
    assert smoked.verdict == "inconclusive", smoked.reasons
    assert not any(smoked.flags.values())
    assert all(reason.startswith("somebody else's: ") for reason in smoked.reasons)


async def test_a_job_that_somebody_else_submits_meanwhile_is_foreign(
    inner: Inside, app: Client, operator: Client
) -> None:
    plugin = fresh_name("busy")
    await publish_plugin(operator, plugin, [final()])

    async def plant() -> None:
        await app.until_ended(await app.accepted(plugin))

    inconclusive(await inner.smoke(plugin, plant))


async def test_a_decision_that_somebody_else_gives_meanwhile_is_foreign(
    inner: Inside, quiet: Stack, app: Client, operator: Client
) -> None:
    job, request = await waiting_job(quiet, app, operator)
    await until_parked(inner, job)
    path = f"/v1/jobs/{job}/requests/{request}"
    shown = await app.get(path)
    approver = quiet.client("approver")

    async def plant() -> None:
        order = {"decision": "approve", "action_digest": shown["action_digest"]}
        await approver.post(f"{path}/decision", order)
        await app.until_ended(job)

    inconclusive(await inner.smoke(plant=plant))


async def test_what_the_caller_does_meanwhile_is_the_smokes_own(inner: Inside, operator: Client) -> None:
    plugin = fresh_name("own")
    await publish_plugin(operator, plugin, [final()])
    smoked = await inner.smoke(plugin, lambda: operator.accepted(plugin))
    assert smoked.verdict == "red"
    assert {Flag.WORKER_EXECUTED, Flag.STATE_MUTATED} == {flag for flag, raised in smoked.flags.items() if raised}


async def smoked_with(inner: Inside, *probes: Probe) -> Smoked:
    async def sending(app: ASGIApp, authorization: str, ground: Ground) -> Exercised:
        return await exercise(app, authorization, ground, [*PROBES, *probes])

    caller = Caller(OPERATOR, DEMO, EVERY_SCOPE, frozenset(), "test")
    authorization = f"Bearer {inner.stack.token(OPERATOR)}"
    return await smoke(inner.doors, inner.app, caller, authorization, None, None, sending)


async def test_a_probe_with_another_answer_is_no_flag_and_not_green(inner: Inside) -> None:
    smoked = await smoked_with(inner, Probe("a teapot", "/livez", status=418))
    assert (smoked.verdict, smoked.reasons) == ("red", ("a teapot: answered 200, not 418",))
    assert not any(smoked.flags.values())


async def test_a_refusal_that_is_broken_changes_nothing_and_is_a_flag(inner: Inside, operator: Client) -> None:
    plugin = fresh_name("broken")
    await publish_plugin(operator, plugin, [final()])
    accepted = Probe("a submission", "/v1/jobs", "POST", 409, body={"plugin": plugin, "input": {}}, key="{unknown}")
    smoked = await smoked_with(inner, accepted)
    assert smoked.verdict == "red"
    assert {flag for flag, raised in smoked.flags.items() if raised} == {Flag.STATE_MUTATED}
    assert not smoked.changes, "the watch let nothing through"
    assert inner.doors.telemetry.warnings.count > 0
    inner.doors.telemetry.warnings.forget()


async def test_processes_that_are_not_as_they_must_be_are_no_flag_and_not_green(inner: Inside) -> None:
    other = replace(
        inner.doors.process, process_id=fresh_name("proc"), build="0.0.0+other", config="sha256:other", kind="worker"
    )
    now = datetime.now(UTC)
    seen = {
        "seen_at": now,
        "good_until": now.replace(year=now.year + 1),
        "warnings": 2,
        "last_warning": "sweep failed",
        "stopped_at": None,
    }
    await inner.doors.ledger.write(lambda conn: conn.execute(insert(processes), {**vars(other), **seen}).rowcount)
    smoked = await inner.smoke()
    assert smoked.verdict == "red"
    assert not any(smoked.flags.values())
    told = "\n".join(smoked.reasons)
    assert "another build (0.0.0+other)" in told
    assert "is configured otherwise" in told
    assert "logged 2 warnings within the hour, the last one: sweep failed" in told
    stop = processes.update().where(processes.c.process_id == other.process_id).values(stopped_at=datetime.now(UTC))
    await inner.doors.ledger.write(lambda conn: conn.execute(stop).rowcount)
    assert (await inner.smoke()).verdict == "green"


async def test_a_job_that_fails_is_no_warning_of_the_worker(inner: Inside, app: Client, operator: Client) -> None:
    """What became of a step is told by the job; a worker that said so is as it must be."""
    plugin = fresh_name("fails")
    await publish_plugin(operator, plugin, [{**final(), "fail": {"status": 400, "times": 9}}])
    ended = await app.until_ended(await app.accepted(plugin))
    assert ended["failure"]["code"] == "model_failed"
    since = datetime.now(UTC)

    async def told() -> bool:
        return all(one.seen_at > since for one in await inner.live())

    await wait_until(told, 20, what="every process said how it is since then")
    assert {one.process_id: one.last_warning for one in await inner.live() if one.warnings} == {}


async def test_the_gate_believes_the_last_smoke(inner: Inside, app: Client, operator: Client) -> None:
    plugin = fresh_name("climbs")
    await publish_plugin(operator, plugin, [final()], phase=None)
    url, order = f"/v1/plugins/{plugin}/versions/1.0.0/promotions", {"to": "stateful_noop"}
    assert problem(await operator.http.post(url, json=order)) == (409, "gate-not-met")
    assert (await inner.smoke(plugin, lambda: inner.doors.blobs.put(DEMO, plugin.encode()))).verdict == "red"
    assert problem(await operator.http.post(url, json=order)) == (409, "gate-not-met")
    assert (await inner.smoke(plugin)).verdict == "green"
    assert (await operator.post(url, order, expect=201))["state"] == "proposed"

    rows = await inner.doors.ledger.read(
        lambda conn: conn.execute(
            select(evidence.c.green, evidence.c.digest, evidence.c.detail)
            .where(evidence.c.plugin == PluginName(plugin))
            .order_by(evidence.c.evidence_no)
        ).all()
    )
    assert [(row.green, row.detail["verdict"]) for row in rows] == [(False, "red"), (True, "green")]
    assert all(row.digest.startswith("sha256:") for row in rows)


async def test_a_live_version_that_demands_an_input_is_green(inner: Inside, operator: Client) -> None:
    """A smoke has no input to offer: that the version refuses to rehearse without one is an answer that must be."""
    plugin = fresh_name("demands")
    demanding = {"input_schema": {"type": "object", "required": ["invoice"]}}
    await publish_plugin(operator, plugin, [final()], manifest=demanding)
    smoked = await inner.smoke(plugin)
    assert smoked.verdict == "green", smoked.reasons
    assert "a preview: 422 input-invalid" in smoked.exercised.refused


async def test_the_addresses_of_artifacts_are_read_and_what_nobody_may_erase_or_retry_is_refused(
    inner: Inside, app: Client, operator: Client
) -> None:
    plugin = fresh_name("delivers")
    await publish_plugin(operator, plugin, [final({"rows": ["x" * 1000] * 40})])
    job = await app.accepted(plugin)
    assert (await app.until_ended(job))["delivery"] == "delivered"
    smoked = await inner.smoke(plugin)
    assert smoked.verdict == "green", smoked.reasons
    assert any(line.startswith("the address of an artifact") for line in smoked.exercised.allowed)
    refused = "\n".join(smoked.exercised.refused)
    for what in ("an unknown artifact", "an upload as a form", "erasing an unknown job", "retrying an unknown job"):
        assert what in refused


async def test_smokes_ask_for_the_scope_and_the_grant(
    quiet: Stack, inner: Inside, app: Client, operator: Client
) -> None:
    assert problem(await app.http.post("/v1/smokes", json={})) == (403, "not-permitted")
    narrow = quiet.client("operator", scopes=["jobs:read"])
    assert problem(await narrow.http.post("/v1/smokes", json={})) == (403, "not-permitted")
    assert problem(await operator.http.post("/v1/smokes", json={"plugin": "nobody"})) == (404, "plugin-unknown")
    assert problem(await operator.http.post("/v1/smokes", json={"version": "1"})) == (422, "input-invalid")
    assert problem(await operator.http.post("/v1/smokes", json={"all": True})) == (422, "input-invalid")


async def test_a_held_job_and_a_wide_answer(inner: Inside, app: Client, operator: Client) -> None:
    """Over HTTP: exactly the members of api.md, and every probe is exercised, refused or explained."""
    plugin, job = await held_job(app, operator)
    await until_parked(inner, job)
    answer = await operator.post("/v1/smokes", {"plugin": plugin})
    assert list(answer) == ["rung", "allowed", "flags", "evidence", "next_gate", "not_yet"]
    assert answer["flags"] == dict.fromkeys(Flag, False)
    told = answer["evidence"]
    assert (told["verdict"], answer["rung"], answer["next_gate"]) == ("green", "live_canary", "live"), told["reasons"]
    assert answer["not_yet"].startswith("Not yet")
    assert len(answer["allowed"]) + len(told["exercised"]["refused"]) + len(told["not_exercised"]) == len(PROBES)
    assert all(one["reason"] for one in told["not_exercised"])
    assert job not in json.dumps(answer)
