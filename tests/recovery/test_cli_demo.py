"""`jobgate demo` as a newcomer runs it: it proves what it says, and it leaves nothing behind however it ends."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.support_refund import shop
from gateway.cli.example import CHANGES, PLUGIN, VERSION, load_example
from gateway.cli.proof import Check, Story, conclude
from gateway.cli.render import Voice
from gateway.cli.stage import Stage
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
