"""Readiness says rung by rung what is proven and by what, never more, and looking at it changes nothing."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.conftest import FreshStack
from tests.http.ladder import boss_of, canary_plugin, demote, held_job, plant, run_by_packet, url_of
from tests.http.submissions import publish_brisk, refused
from tests.http.test_previews import census
from tests.rig.client import Client, Json
from tests.rig.key_server import KeyServer, SigningKey
from tests.rig.plugins import final, fresh_name, publish_plugin
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

RUNGS = ["configured", "loaded", "callable", "blocked_noop", "stateful_noop", "live_canary"]
UP = {"configured": True, "loaded": True, "callable": True}
"""What a version that can run has reached before anybody climbed anything."""


async def ready(operator: Client, plugin: str | None = None, version: str = "1.0.0") -> Json:
    path = "/v1/readiness" if plugin is None else f"/v1/plugins/{plugin}/versions/{version}/readiness"
    seen = await operator.get(path)
    assert list(seen) == ["phase", "rungs", "next_gate", "not_yet"]
    assert seen["not_yet"].startswith("Not yet")
    assert [rung["rung"] for rung in seen["rungs"]] == RUNGS
    for rung in seen["rungs"]:
        assert list(rung) == ["rung", "reached", "evidence", "observed_at", "proves", "does_not_prove"]
        assert rung["evidence"]
        assert rung["does_not_prove"].startswith("That ")
    return seen


def reached(seen: Json) -> list[str]:
    return [rung["rung"] for rung in seen["rungs"] if rung["reached"]]


def evidence(seen: Json, rung: str) -> str:
    return seen["rungs"][RUNGS.index(rung)]["evidence"]


async def test_a_fresh_version_is_loaded_and_callable_and_proves_nothing_else(operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("ready"), phase=None)
    seen = await ready(operator, name)
    assert reached(seen) == list(UP)
    assert (seen["phase"], seen["next_gate"]) == ("blocked_noop", "stateful_noop")
    assert "a green smoke of this digest within the last hour" in seen["not_yet"]
    assert [rung["observed_at"] is None for rung in seen["rungs"]] == [False] * 3 + [True] * 3


async def test_a_phase_taken_by_break_glass_is_no_evidence_of_the_rungs_below(operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("ready"))
    seen = await ready(operator, name)
    assert reached(seen) == list(UP)
    assert (seen["phase"], seen["next_gate"]) == ("live", None)
    assert seen["not_yet"].startswith("Not yet proven: blocked_noop, stateful_noop, live_canary")


async def test_what_keeps_a_version_from_being_configured_is_named(stack: Stack, operator: Client) -> None:
    name = fresh_name("ready")
    bare = {"plugin.yaml": f"{{name: {name}, version: '1', description: d, instructions: i.md}}", "i.md": f"{name}\n"}
    published = await operator.post("/v1/plugins", {"files": bare}, expect=201)
    seen = await ready(operator, name, "1")
    assert reached(seen) == ["loaded", "callable"]
    assert evidence(seen, "configured") == (
        f"no deployment: jobgate deploy FILE; no release: jobgate release set {name} 1."
    )
    assert (await operator.get(f"/v1/plugins/{name}/versions"))["data"][0]["digest"] == published["digest"]
    await operator.post(f"/v1/plugins/{name}/versions/1/withdrawal", {"reason": "a test"})
    seen = await ready(operator, name, "1")
    assert evidence(seen, "configured").startswith("this version was withdrawn; ")
    assert "withdrawn" in seen["not_yet"]
    (blob,) = [path for path in (stack.data / "blobs").rglob("*") if _holds(path, f"{name}\n")]
    blob.write_text("other")
    assert "do not match their digest" in evidence(await ready(operator, name, "1"), "configured")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


async def test_a_credential_reference_that_is_not_allowed_is_not_configured(stack: Stack, operator: Client) -> None:
    name = fresh_name("ready")
    bound = {"base_url": stack.effects.url, "allow_private": True, "credential": {"ref": "env:JOBGATE_DATA"}}
    await publish_plugin(operator, name, [final()], deployment={"connections": {"tools": bound}})
    seen = await ready(operator, name)
    assert reached(seen) == ["loaded", "callable"]
    assert evidence(seen, "configured") == "a credential reference is not on the allowlist for its host."


async def test_an_agent_without_a_grant_is_not_configured(operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("ready"), deployment={"identity": "agent:ghost"})
    assert evidence(await ready(operator, name), "configured").startswith("agent:ghost has no grant")


async def test_what_no_worker_has_is_not_loaded(operator: Client) -> None:
    strange = await publish_brisk(operator, fresh_name("ready"), manifest={"requires": ["gpu"]})
    seen = await ready(operator, strange)
    assert reached(seen) == ["configured"]
    assert evidence(seen, "loaded") == "No lane has the capabilities that the plugin requires."
    assert "no lane fits" in evidence(seen, "callable")
    python: Json = {"name": "p", "description": "d", "effect": "read", "input_schema": {}, "python": "not_installed"}
    wanting = await publish_brisk(operator, fresh_name("ready"), tools=[python])
    seen = await ready(operator, wanting)
    assert reached(seen) == ["configured", "callable"]
    assert "has no Python tool not_installed" in evidence(seen, "loaded")


@pytest.mark.parametrize(
    ("green", "age", "climbed", "said"),
    [
        (True, timedelta(minutes=59), True, "A green smoke, 59 min ago: fresh enough for a promotion."),
        (True, timedelta(minutes=61), True, "A green smoke, 61 min ago: too old for a promotion"),
        (False, timedelta(minutes=5), False, "The last smoke was not green, 5 min ago"),
    ],
)
async def test_a_smoke_counts_when_it_was_green_and_says_how_old_it_is(
    stack: Stack, operator: Client, green: bool, age: timedelta, climbed: bool, said: str
) -> None:
    name = await publish_brisk(operator, fresh_name("ready"), phase=None)
    await plant(stack, operator, name, "smoke", green=True, age=timedelta(days=1))
    await plant(stack, operator, name, "smoke", green=green, age=age)
    seen = await ready(operator, name)
    assert ("blocked_noop" in reached(seen)) is climbed
    assert evidence(seen, "blocked_noop").startswith(said)
    may = green and age < timedelta(hours=1)
    assert ("a promotion may be proposed" in seen["not_yet"]) is may
    # What is said is what the gate says.
    assert (await operator.http.post(url_of(name), json={"to": "stateful_noop"})).status_code == (201 if may else 409)


async def test_dry_run_and_canary_are_reached_by_jobs_that_succeeded(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await canary_plugin(stack, operator)
    dry = await app.accepted(plugin, mode="dry_run")
    await app.until_ended(dry)
    await plant(stack, operator, plugin, "simulation")
    seen = await ready(operator, plugin)
    assert reached(seen) == [*UP, "stateful_noop"]
    assert evidence(seen, "stateful_noop").startswith(f"Dry run {dry} succeeded ")
    assert evidence(seen, "stateful_noop").endswith("found a lane that fits.")
    ended = (await app.status(dry))["finished_at"]
    assert seen["rungs"][4]["observed_at"] == ended
    boss = await boss_of(stack, operator)
    writes = await held_job(app, plugin)  # may call nothing: inconclusive
    await run_by_packet(operator, boss, writes)
    await app.until_ended(writes)
    assert evidence(await ready(operator, plugin), "live_canary").endswith("inconclusive.")
    looks = await held_job(app, plugin)
    await run_by_packet(operator, boss, looks, "look")
    await app.until_ended(looks)
    seen = await ready(operator, plugin)
    assert reached(seen) == [*UP, "stateful_noop", "live_canary"]
    assert looks in evidence(seen, "live_canary")
    # A rung once reached is not lost with the phase, and not taken for it.
    await demote(operator, plugin, "blocked_noop")
    seen = await ready(operator, plugin)
    assert (seen["phase"], reached(seen)) == ("blocked_noop", [*UP, "stateful_noop", "live_canary"])


async def test_who_may_look(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("ready"))
    own = f"/v1/plugins/{name}/versions/1.0.0/readiness"
    unscoped = stack.client("operator", scopes=["plugins:publish"])
    for path in ("/v1/readiness", own):
        refused(await unscoped.http.get(path), 403, "not-permitted")
        refused(await stack.client("nobody").http.get(path), 403, "not-permitted")
        refused(await operator.http.get(path, params={"x": "1"}), 422, "input-invalid")
    for path in (own.replace("1.0.0", "2.0.0"), own.replace(name, "no-such"), own.replace(name, "No%20Such")):
        refused(await operator.http.get(path), 404, "plugin-unknown")
    other = f"other-{fresh_name('w')}"
    await operator.post("/v1/workspaces", {"name": other, "admin": "dana"}, expect=201)
    refused(await stack.client("dana", workspace=other).http.get(own), 404, "plugin-unknown")


# ---- a stack of its own: the runtime's phase rules every test of the shared one


@pytest_asyncio.fixture(loop_scope="session")
async def own(fresh_stack: FreshStack) -> AsyncGenerator[Stack]:
    yield await fresh_stack()


async def test_the_lower_phase_rules_and_is_named(own: Stack) -> None:
    operator = own.client("operator")
    name = await publish_brisk(operator, fresh_name("ready"))
    await operator.post("/v1/runtime/demotions", {"to": "blocked_noop", "reason": "a test"})
    seen = await ready(operator, name)
    assert (seen["phase"], seen["next_gate"]) == ("blocked_noop", "stateful_noop")
    assert seen["not_yet"].startswith(
        "Not yet: the runtime is at blocked_noop and rules this version, which is at live"
    )
    runtime = await ready(operator)
    assert (runtime["phase"], reached(runtime)) == ("blocked_noop", list(UP))
    assert runtime["not_yet"].startswith(
        "Not yet: the runtime is at blocked_noop; stateful_noop asks for a green smoke"
    )
    await demote(operator, name, "blocked_noop")
    assert (await ready(operator, name))["not_yet"].endswith(" The runtime is at blocked_noop, too.")


async def test_two_hundred_looks_change_nothing(own: Stack) -> None:
    operator, app = own.client("operator"), own.client("app")
    plugin = await canary_plugin(own, operator)
    unused = await publish_brisk(operator, fresh_name("ready"))  # its snapshot is stored by no look
    held = await held_job(app, plugin)
    dry = await app.accepted(plugin, mode="dry_run")
    await app.until_ended(dry)
    jobs = [held, dry]

    async def listed(count: int) -> bool:
        return (await census(own, jobs))["executions"] == count

    await wait_until(lambda: listed(2), 20, what="both executions are listed")
    before = await census(own, jobs)
    looked = (await ready(operator, plugin))["rungs"]

    async def look(number: int) -> None:
        seen = await ready(operator, (plugin, unused, None)[number % 3])
        assert seen["rungs"][0]["reached"]
        if number % 10 == 0:
            await operator.http.get("/readyz")

    for start in range(0, 200, 10):
        await asyncio.gather(*(look(start + step) for step in range(10)))
    assert await census(own, jobs) == before
    assert _lasting((await ready(operator, plugin))["rungs"]) == _lasting(looked)
    # The mutant: one submission, and the census sees it everywhere.
    ran = await app.accepted(unused)
    await app.until_ended(ran)
    await wait_until(lambda: listed(3), 20, what="the execution is listed")
    after = await census(own, jobs)
    assert {name for name in before if after[name] != before[name]} >= {"receipts", "blobs", "executions"}


def _lasting(rungs: list[Json]) -> list[Any]:
    return [(rung["rung"], rung["reached"]) for rung in rungs]


# ---- readyz


async def test_signing_keys_that_were_never_fetched_are_a_rung_of_their_own(stack: Stack) -> None:
    async with KeyServer(SigningKey("ec-1")) as issuer:
        found = stack.add_api({"JOBGATE_JWKS_URL": issuer.url})
        lost = stack.add_api({"JOBGATE_JWKS_URL": "http://127.0.0.1:1/"})
        for api, ok in ((found, True), (lost, False)):
            await stack.until_ready(api)  # tokens can not be verified, and API keys can: submissions are taken

            async def told(url: str = api.url, wanted: bool = ok) -> bool:
                async with Client(url, None) as nobody:
                    rungs = (await nobody.get("/readyz"))["rungs"]
                assert [rung["rung"] for rung in rungs] == ["engine", "ledger", "blobs", "workers", "signing_keys"]
                return rungs[-1]["ok"] is wanted

            await wait_until(told)
            api.stop()
