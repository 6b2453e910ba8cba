"""Bytes that are missing or not what their digest says: nothing is admitted on them, and no step of a job runs on them.

Every part of a snapshot is tried: the pair, the plugin's index, one of its files, the deployment, and both of a pinned
dependency. Nothing waits here: the processes under test have verified the whole snapshot a moment before.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.jobs import waiting_job
from tests.http.test_sessions import fresh_session
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack

Damage = Callable[[Path], Any]
PARTS = ("pair", "index", "file", "deployment", "pinned index", "pinned file")


def delete(blob: Path) -> None:
    blob.unlink()


def alter(blob: Path) -> None:
    """Other bytes, of the same length."""
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")


def replace(blob: Path) -> None:
    """Another file in its place."""
    other = blob.with_name("other")
    other.write_bytes(b"{}")
    other.replace(blob)


DAMAGES: tuple[Damage, ...] = (delete, alter)


async def fragile_plugin(stack: Stack, operator: Client) -> str:
    """One write that a person must approve; no file of it or of its pin is any other plugin's."""
    name, pinned = fresh_name("fragile"), fresh_name("pinned")
    made = await publish_plugin(
        operator, pinned, [final()], manifest={"skills": ["own.md"]}, files={"own.md": f"Only {pinned} says so."}
    )
    pin = {"plugin": made["name"], "version": made["version"], "digest": made["digest"]}
    await publish_plugin(
        operator,
        name,
        [turn(call(f"pay-{name}")), final()],
        tools=[tool(f"pay-{name}", "write")],
        tools_url=stack.effects.url,
        policy=ASK_ALL,
        manifest={"skills": ["own.md"], "dependencies": [pin]},
        files={"own.md": f"Only {name} says so."},
    )
    return name


class Parts:
    """Where the blobs of a job's snapshot lie."""

    def __init__(self, stack: Stack, receipt: Json) -> None:
        self._folder = stack.data / "blobs" / "demo"
        pair = self._json(receipt["snapshot"])
        manifest = json.loads(self._text(pair["plugin"], "plugin.yaml"))
        pinned = manifest["dependencies"][0]["digest"]
        self._of = {
            "pair": receipt["snapshot"],
            "index": pair["plugin"],
            "file": self._json(pair["plugin"])["own.md"],
            "deployment": pair["deployment"],
            "pinned index": pinned,
            "pinned file": self._json(pinned)["own.md"],
        }

    def path(self, part: str) -> Path:
        return self._at(self._of[part])

    def _at(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

    def _json(self, digest: str) -> Any:
        return json.loads(self._at(digest).read_bytes())

    def _text(self, index: str, path: str) -> bytes:
        return self._at(self._json(index)[path]).read_bytes()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
async def test_nothing_is_admitted_on_a_damaged_snapshot(
    stack: Stack, operator: Client, app: Client, effects: EffectLog, part: str, damage: Damage
) -> None:
    """In a session, which never stores its snapshot again."""
    plugin, session, key = await fragile_plugin(stack, operator), fresh_session(), fresh_key()
    job = await app.submit(plugin, session=session)
    await app.until_request(job.json()["job_id"])
    await app.cancel(job.json()["job_id"])
    await app.until_ended(job.json()["job_id"])
    damage(Parts(stack, job.json()).path(part))
    for mode in ("live", "dry_run", "live"):
        answer = await app.submit(plugin, key=key, session=session, mode=mode)
        assert problem(answer) == (409, "blocked")
        refusal = answer.json()
        assert (refusal["blocker"], refusal["executed"]) == ("snapshot_mismatch", "no")
    assert problem(await app.http.get(f"/v1/jobs/{key}")) == (404, "not-found")
    assert effects.calls() == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
async def test_no_step_runs_on_a_damaged_snapshot(
    stack: Stack, operator: Client, app: Client, approver: Client, effects: EffectLog, part: str, damage: Damage
) -> None:
    plugin = await fragile_plugin(stack, operator)
    job, request = await waiting_job(app, plugin)
    receipt = await app.status(job)
    damage(Parts(stack, {"snapshot": await snapshot_of(app, plugin, job), **receipt}).path(part))
    await approver.decide(job, request, "approve")
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "snapshot_mismatch")
    assert effects.calls() == []


async def snapshot_of(app: Client, plugin: str, job: str) -> str:
    """The receipt again says it."""
    return (await app.submit(plugin, key=job)).json()["snapshot"]


async def test_without_damage_both_run(
    stack: Stack, operator: Client, app: Client, approver: Client, effects: EffectLog
) -> None:
    """What the tests above would see if nothing were wrong."""
    plugin, session = await fragile_plugin(stack, operator), fresh_session()
    for _ in range(2):
        job, request = await waiting_job(app, plugin, session=session)
        await approver.decide(job, request, "approve")
        assert (await app.until_ended(job))["status"] == "succeeded"
    assert len(effects.calls()) == 2


@pytest.mark.parametrize("damage", [*DAMAGES, replace])
async def test_publishing_and_deploying_again_mends_what_is_damaged(
    stack: Stack, operator: Client, app: Client, damage: Damage
) -> None:
    """As the refusal advises."""
    name = fresh_name("mended")
    files = {
        "plugin.yaml": json.dumps(
            {"name": name, "version": "1.0.0", "description": "A test.", "instructions": "instructions.md"}
        ),
        "instructions.md": f"Only {name} says so.",
        "script.yaml": json.dumps([final()]),
    }
    deployment = {"plugin": name, "model": "scripted:script.yaml"}
    published = await operator.post("/v1/plugins", {"files": files}, expect=201)
    deployed = await operator.put(f"/v1/plugins/{name}/deployment", deployment)
    await operator.put(f"/v1/plugins/{name}/release", {"version": "1.0.0"})
    await operator.post(
        f"/v1/plugins/{name}/versions/1.0.0/promotions", {"to": "live", "break_glass": {"reason": "t"}}, expect=201
    )
    await app.until_ended(await app.accepted(name))
    folder = stack.data / "blobs" / "demo"
    index = json.loads((folder / published["digest"].removeprefix("sha256:")).read_bytes())
    for digest in (*index.values(), published["digest"], deployed["digest"]):
        damage(folder / digest.removeprefix("sha256:"))
    assert problem(await app.submit(name)) == (409, "blocked")
    await operator.post("/v1/plugins", {"files": files})
    await operator.put(f"/v1/plugins/{name}/deployment", deployment)
    assert (await app.until_ended(await app.accepted(name)))["status"] == "succeeded"
