"""The demo's way up, where API, engine and shop do everything wrong: each line of its proof turns red."""

import asyncio
import json
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.support_refund.shop import Shop
from facade.examples import JOB
from gateway.cli.canary import Canary
from gateway.cli.client import Gateway
from gateway.cli.climb import RUNGS, VERSION_PATH, Ladder
from gateway.cli.lookout import Lookout
from gateway.cli.proof import Story
from gateway.cli.render import Voice
from gateway.cli.stage import Stage
from gateway.settings import DevFile, DevPids
from tests.unit.fake_api import Canned, FakeApi, stream

PROMOTION = {"promotion_id": "promo_1", "state": "done", "phase": "live"}
PACKET = {"packet_id": "packet_1", "state": "approved"}
FLAG = "state_mutated"
RAN = {
    "eventType": "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
    "activityTaskScheduledEventAttributes": {"activityType": {"name": "model"}},
}
PLANNED = {"tool": "refunds.create", "effect": "write", "asks": "always", "would_ask": "nobody"}


@pytest.fixture
def api() -> Generator[FakeApi]:
    with FakeApi() as fake:
        yield fake


@pytest.fixture
def ladder(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Ladder]:
    """Every answer is the wrong one, and the shop has paid already."""
    monkeypatch.setenv("JOBGATE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JOBGATE_URL", api.url)
    monkeypatch.setenv("JOBGATE_TOKEN", "t0ken")
    Shop(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("INSERT INTO refunds VALUES ('eff_1', 'ref_1', 'inv_17', 1, 1, '2030-01-01T00:00:00Z')")
    running = DevFile(
        api_url=api.url,
        temporal_address="127.0.0.1:9",
        temporal_ui_url=api.url,
        namespace="jobgate",
        pids=DevPids(temporal=1, worker=1, api=1),
    )
    with asyncio.Runner() as runner:
        story = Story(Voice(), Stage(tmp_path, runner))
        app, operator, second = (Gateway(None, name) for name in ("app", "operator", "omar"))
        climbing = Ladder(story, Lookout(running), app, operator, second)
        lie(api, climbing)
        yield climbing


def lie(api: FakeApi, ladder: Ladder) -> None:
    def answer(method: str, path: str, *bodies: Any, status: int = 200) -> None:
        api.answers[method, path] = [Canned(status, json.dumps(body)) for body in bodies]

    answer("POST", "/v1/jobs", {"job_id": "k-1"}, status=202)
    answer("POST", f"{VERSION_PATH}/promotions", PROMOTION, status=201)
    answer("POST", "/v1/promotions/promo_1/approval", PROMOTION)
    answer("GET", f"{VERSION_PATH}/readiness", {"rungs": [{"rung": rung, "reached": False} for rung in RUNGS]})
    would = {"eligibility": "live_approved", "blocker": None, "next_gate": None, "would_execute": True}
    answer("POST", "/v1/previews", {**would, "side_effects": {FLAG: True}})
    done = {"phase": "live", "break_glass": True}
    line = {"subject": "support-refund@1.1.0", "action": "promotion.done", "actor": "operator", "detail": done}
    answer("GET", "/v1/audit", {"data": []}, {"data": [line]})
    probed = {"reads": 1, "refusals": 1}
    seen = {"verdict": "red", "reasons": ["a row was added"], "exercised": probed, "processes": []}
    answer("POST", "/v1/smokes", {"rung": "live", "flags": {FLAG: True}, "evidence": seen, "not_yet": "Not yet."})
    lane = {"lane": "default", "fits": False, "missing": ["gpu"], "pollers_seen_at": None}
    answer("POST", f"{VERSION_PATH}/simulations", {"candidates": [lane], "execution": "enabled"})
    answer("POST", "/v1/packets", PACKET, status=201)
    answer("POST", "/v1/packets/packet_1/approval", PACKET)
    answer("DELETE", "/v1/packets/packet_1", PACKET)
    proof: Any = {"status": "failed", "tools": ["refunds.create"], "result_digest": None, "read_back": {"result": {}}}
    answer("GET", "/v1/packets/packet_1", {"packet_id": "packet_1", "state": "inconclusive", "proof": proof})
    answer("GET", "/v1/jobs", {"data": [{"job_id": ladder.story.key, "status": "failed"}]})
    ran = {**JOB, "status": "failed", "executed": "yes", "finished_at": "2030-01-31T12:00:00Z"}
    held = {**ran, "last_event": {**JOB["last_event"], "type": "job.held"}, "result": {"planned": [PLANNED]}}
    for key in (*ladder.held, ladder.story.named("rehearsal")):
        path = f"/api/v1/namespaces/jobgate/workflows/demo.{key}"
        answer("GET", path, {"workflowExecutionInfo": {"status": "WORKFLOW_EXECUTION_STATUS_FAILED"}})
        answer("GET", f"{path}/history", {"history": {"events": [RAN]}})
        answer("GET", f"/v1/jobs/{key}", held, held, {**ran, "last_event": {**JOB["last_event"], "type": "job.failed"}})
        answer("GET", f"/v1/jobs/{key}/preview", {"projected_status": "running", "would_execute": True})
    canary = ladder.checks[0]
    answer("GET", f"/api/v1/namespaces/jobgate/workflows/demo.{canary}/history", {"history": {"events": []}})
    answer("GET", f"/v1/jobs/{canary}/result", {"message": "Something else."})
    end: Any = {"seq": 1, "at": "2030-01-31T12:00:00Z", "type": "job.failed", "message": "Failed.", "data": {}}
    api.answers["GET", f"/v1/jobs/{canary}/events"] = [stream([end])]


def test_every_line_of_the_way_up_turns_red_where_all_is_wrong(ladder: Ladder) -> None:
    ladder.be_refused()
    ladder.preview()
    ladder.smoke()
    ladder.rehearse()
    ladder.be_held()
    ladder.simulate()
    Canary(ladder).run()
    ladder.go_live()
    ladder.look_back()
    checks = ladder.story.checks
    assert [check.name for check in checks if check.holds] == []
    assert len(checks) == 38
