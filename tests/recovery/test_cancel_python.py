"""Cancel while code that nobody can stop runs in a tool: the job ends without it or says what is in flight, and no
further attempt is made. B13: a thread that blocks, and a coroutine that awaits.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.recovery.grounds import published
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import call, final, turn
from tests.rig.python_tools import distribution
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

ENDS_S = 10.0
BUSY_S = 30.0
"""What a machine that is busy with other tests may add."""
SOURCE = """
import asyncio, os, pathlib, time

FOLDER = pathlib.Path(os.environ["RIG_FOLDER"])

def run(arguments, context):
    word = arguments["word"]
    with (FOLDER / f"calls-{word}").open("a") as calls:
        calls.write(f"{context.epoch}\\n")
    return awaits(word) if arguments["awaits"] else blocks(word)

def blocks(word):
    while not (FOLDER / f"release-{word}").exists():
        time.sleep(0.05)
    return {"released": word}

async def awaits(word):
    while not (FOLDER / f"release-{word}").exists():
        await asyncio.sleep(0.05)
    return {"released": word}
"""


@dataclass
class Ground:
    stack: Stack
    folder: Path

    def calls(self, word: str) -> int:
        file = self.folder / f"calls-{word}"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def release(self, word: str) -> None:
        (self.folder / f"release-{word}").touch()

    async def begun(self, effect: str, awaits: bool, timeout_s: float = 300) -> tuple[Client, str, str]:
        """A job whose one call has begun and goes on until it is released; and the word that names the call."""
        word = fresh_key()
        tool: Json = {
            "name": "slow",
            "description": "Takes its time.",
            "effect": effect,
            "input_schema": {"type": "object"},
            "python": "slow",
            "timeout_seconds": timeout_s,
        }
        script = [turn(call("slow", {"word": word, "awaits": awaits})), final()]
        app = self.stack.client()
        job = await app.accepted(await published(self.stack, script, tool))
        await wait_until(lambda: self.calls(word) == 1, BUSY_S, what="the tool runs")
        return app, job, word


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Ground]:
    folder = tmp_path_factory.mktemp("python")
    found = {**distribution(folder, "slow", SOURCE), "RIG_FOLDER": str(folder)}
    stack = Stack(folder / "stack", settings=found)
    try:
        await stack.start()
        order = {"principal": "app", "actions": ["tools:python"], "plugins": ["*"]}
        await stack.client("operator").post("/v1/grants", order, expect=201)
        yield Ground(stack, folder)
    finally:
        await stack.close()


@pytest.mark.parametrize("awaits", [False, True], ids=["blocks", "awaits"])
async def test_a_read_that_goes_on_does_not_hold_its_job(ground: Ground, awaits: bool) -> None:
    app, job, word = await ground.begun("read", awaits)
    stopped = await app.cancel(job)
    assert (stopped.status_code, stopped.json()["in_flight"]) == (202, [])
    end = await app.until_ended(job, ENDS_S + BUSY_S)
    assert (end["status"], end["failure"], end["executed"]) == ("canceled", None, "yes")
    log = await app.event_types(job)
    assert log[-2:] == ["cancel.requested", "job.canceled"]
    ground.release(word)
    assert await app.event_types(job) == log
    assert ground.calls(word) == 1


@pytest.mark.parametrize("awaits", [False, True], ids=["blocks", "awaits"])
async def test_a_write_that_goes_on_is_named_and_awaited(ground: Ground, awaits: bool) -> None:
    app, job, word = await ground.begun("write", awaits)
    first = (await app.cancel(job)).json()
    [named] = first["in_flight"]
    assert (named["tool"], first["status"], first["finished_at"]) == ("slow", "canceling", None)
    for _ in range(3):
        assert (await app.cancel(job)).json() == first
    view = await app.until_event(job, "cancel.requested")
    assert view["data"] == {}
    view = await app.status(job)
    assert (view["status"], view["executed"], view["finished_at"]) == ("canceling", "yes", None)
    assert "what was sent already is awaited" in view["next_action"]["message"]
    ground.release(word)
    end = await app.until_ended(job, ENDS_S + BUSY_S)
    assert (end["status"], end["executed"], end["recovery"]) == ("canceled", "yes", "none")
    assert (await app.event_types(job))[-3:] == ["cancel.requested", "tool.finished", "job.canceled"]
    assert ground.calls(word) == 1


@pytest.mark.parametrize("effect", ["write", "idempotent_write"])
async def test_a_write_that_never_ends_is_given_up_in_its_time_and_called_unknown(ground: Ground, effect: str) -> None:
    app, job, word = await ground.begun(effect, awaits=False, timeout_s=3)
    first = (await app.cancel(job)).json()
    [named] = first["in_flight"]
    end = await app.until_ended(job, 3 + ENDS_S + BUSY_S)
    assert (end["status"], end["failure"], end["executed"]) == ("canceled", None, "unknown")
    assert end["next_action"]["code"] == "ask_operator"
    assert (await app.event_types(job))[-3:] == ["cancel.requested", "effect.unknown", "job.canceled"]
    assert ground.calls(word) == 1
    ground.release(word)
    path = f"/v1/jobs/{job}/effects/{named['effect_id']}/settlement"
    settled = await ground.stack.client("approver").http.post(path, json={"answer": "happened"})
    assert settled.status_code == 200, settled.text
    assert (await app.status(job))["executed"] == "yes"


async def test_without_a_cancel_the_same_write_is_tried_again(ground: Ground) -> None:
    """The mutant of what is counted above."""
    app, job, word = await ground.begun("idempotent_write", awaits=True, timeout_s=1)
    await wait_until(lambda: ground.calls(word) == 2, BUSY_S, what="another attempt")
    ground.release(word)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
