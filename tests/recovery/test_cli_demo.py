"""`jobgate demo` as a newcomer runs it: it proves what it says, and it leaves nothing behind however it ends."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from examples.support_refund import shop
from gateway.cli.example import CHANGES, PLUGIN, VERSION, load_example
from gateway.cli.proof import Check, Story, conclude
from gateway.cli.render import Voice
from gateway.cli.stage import Stage
from gateway.settings import read_dev_file
from tests.recovery.test_dev_stack import processes_on
from tests.rig.process import Process
from tests.rig.waiting import wait_until

JOBGATE = Path(sys.executable).with_name("jobgate")


class Demo(Process):
    """One demo whose throw-away folder is made under `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        # A Jobgate of whoever runs it must not be touched.
        elsewhere = {"TMPDIR": str(self.temporary), "JOBGATE_URL": "http://127.0.0.1:9", "JOBGATE_TOKEN": "t"}
        super().__init__("demo", ["demo", *options], folder, program=JOBGATE, environment=elsewhere)

    def left_behind(self) -> list[object]:
        return [*self.temporary.iterdir(), *processes_on(self.temporary)]


def pay_behind_its_back(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("INSERT INTO refunds VALUES ('eff_planted', 'ref_0', 'inv_18', 1, 1, '2030-01-01T00:00:00Z')")


def held_job(ledger: Path) -> str | None:
    """The third check of the demo, as soon as it is accepted."""
    with closing(sqlite3.connect(ledger)) as db:
        found = db.execute("SELECT job_id FROM receipts WHERE job_id LIKE 'check-3-%' AND confirmed_at IS NOT NULL")
        row = found.fetchone()
    return None if row is None else str(row[0])


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path, "--json")


def test_the_demo_proves_every_line_and_leaves_nothing_behind(demo: Demo) -> None:
    demo.start()
    try:
        assert demo.wait(120) == 0, demo.output
    finally:
        demo.kill()
    told: dict[str, Any] = json.loads(demo.output)
    assert [check["name"] for check in told["checks"] if not check["holds"]] == []
    found = {check["name"]: check["found"] for check in told["checks"]}
    assert found["the job's principal approves it"] == "refused, 403 self-approval"
    assert found["after one vote of two: refunds in the shop"] == "0"
    assert found["who decided"] == "ana and ben"
    assert found["what was refunded"] == "inv_17 1200 cents"
    assert found["grant revoked: the waiting job"] == "failed, authority_revoked"
    assert found["grant revoked: the shop's table"] == "inv_17, as before"
    assert "ref_1" in told["result"]["message"]
    assert told["temporal_ui_url"].endswith(f"/workflows/demo.{told['job_id']}")
    assert told["not_proven"]
    assert demo.left_behind() == []


async def test_what_happens_behind_the_demos_back_turns_its_lines_red(demo: Demo) -> None:
    """The shop pays by itself before anything may run, and one held job is ended in the engine."""
    demo.start()
    try:
        address = "jobgate-demo-*/shop.address"
        await wait_until(lambda: any(demo.temporary.glob(address)), 60, what="the shop serves")
        (folder,) = demo.temporary.glob("jobgate-demo-*")
        await asyncio.to_thread(pay_behind_its_back, folder / "shop.db")
        running = await wait_until(lambda: read_dev_file(folder / "data"), 90, what="the stack serves")
        job = await wait_until(lambda: held_job(folder / "data" / "ledger.db"), 60, what="a check is held")
        client = await Client.connect(running.temporal_address, namespace=running.namespace)
        await client.get_workflow_handle(f"demo.{job}").terminate()
        assert await asyncio.to_thread(demo.wait, 120) == 1, demo.output
    finally:
        demo.kill()
    told: dict[str, Any] = json.loads(next(line for line in demo.output.splitlines() if line.startswith("{")))
    red = {check["name"]: check["found"] for check in told["checks"] if not check["holds"]}
    assert {name for name in red if "shop" in name} >= {
        "held: refunds in the shop",
        "canary: refunds in the shop",
        "live: refunds in the shop",
        "after one vote of two: refunds in the shop",
        "after both votes: refunds in the shop",
    }
    assert red["what was refunded"] == "inv_18 1 cents, inv_17 1200 cents"
    assert red["canary: other held jobs that did not move"] == "3 of 4"
    assert red["live: held jobs that only read"] == "succeeded, failed, succeeded"
    assert "failed: canary: other held jobs that did not move" in demo.output
    green = {check["name"] for check in told["checks"] if check["holds"]}
    assert {"refused: the answer", "canary: state, end, tools", "who decided", "nothing left behind"} <= green


async def test_a_demo_that_is_told_to_stop_leaves_nothing_behind(demo: Demo) -> None:
    demo.start()
    try:
        logs = "jobgate-demo-*/data/logs/temporal.log"
        await wait_until(lambda: any(demo.temporary.glob(logs)), 60, what="Temporal is started")
        assert await asyncio.to_thread(demo.stop, 40) == 1
    finally:
        demo.kill()
    assert "Traceback" not in demo.output
    assert "Interrupted" in demo.output
    assert demo.left_behind() == []


async def test_nothing_outlives_a_killed_demo(demo: Demo) -> None:
    demo.start()
    logs = "jobgate-demo-*/data/logs/temporal.log"
    try:
        await wait_until(lambda: any(demo.temporary.glob(logs)), 60, what="Temporal is started")
    finally:
        demo.kill()
    await wait_until(lambda: not processes_on(demo.temporary), 20, what="its processes are gone")


def test_the_demo_changes_the_example_in_two_places_and_not_its_file() -> None:
    bundle, deployment = load_example()
    played = yaml.safe_load(bundle["plugin.yaml"])
    (asked,) = [tool["approval"] for tool in played["tools"] if "approval" in tool]
    assert (played["version"], asked["quorum"], asked["groups"]) == (VERSION, 2, ["finance"])
    own = (Path(shop.__file__).parent / "plugin.yaml").read_text(encoding="utf-8")
    lines = zip(own.splitlines(), bundle["plugin.yaml"].splitlines(), strict=True)
    assert len([1 for before, after in lines if before != after]) == len(CHANGES)
    assert deployment["plugin"] == PLUGIN


def test_a_line_that_finds_other_than_it_wants_is_red(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        story = Story(Voice(), Stage(tmp_path, runner))
        story.expect("same", [409, "blocked"], [409, "blocked"])
        story.expect("other", [202, "blocked"], [409, "blocked"])
        story.expect("more", ["model"], [])
        story.expect("less", [], ["model"])
    assert [(check.name, check.holds, check.found) for check in story.checks] == [
        ("same", True, "409, blocked"),
        ("other", False, "202, blocked"),
        ("more", False, "model"),
        ("less", False, "nothing"),
    ]


def test_one_check_that_does_not_hold_fails_the_demo_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with asyncio.Runner() as runner:
        story = Story(Voice(), Stage(tmp_path, runner))
        story.checks += [Check("that which holds", True, "yes"), Check("refunds in the shop", False, "2")]
        assert conclude(story, "http://ui", kept=True) == 1
    said = capsys.readouterr()
    assert "✗ refunds in the shop: 2" in said.out
    assert said.err == "failed: refunds in the shop\n"
