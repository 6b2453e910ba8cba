"""A Python tool runs behind its own grant, within its time, and nothing that it raises is told in its own words."""

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection as LedgerConnection

from gateway.allowlist import CredentialPolicy
from gateway.calls.attempts import Attempt
from gateway.calls.http_tool import NOT_JSON, ToolOutcome
from gateway.calls.kinds import Prepared, Proposed, Stamp
from gateway.calls.outbound import ReplyLost
from gateway.calls.python_tool import BROKEN, RAISED, TIMED_OUT, UNGRANTED, UNKNOWN, PythonCalls, ToolContext
from gateway.calls.replies import MAX_RESULT_BYTES, TOO_LARGE
from gateway.deployments import Connection
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant, revoke_grant
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import Tool
from tests.unit.ledger_rows import ACTION, AT, DEMO, grant, receipt
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import EffectId
from workflows.contract.job import EffectClass

STAMP = Stamp(EffectId("eff_" + "1" * 32), 3)
SECRET = "canary-python-0b7e"
HOSTILE = f"{SECRET}\u202e\x00" * 100_000

SOURCE = """
import os, threading, time

seen = []

def echo(arguments, context):
    seen.append(context)
    return {"arguments": arguments, "job": context.job, "epoch": context.epoch}

async def later(arguments, context):
    import asyncio
    await asyncio.sleep(0)
    return {"thread": threading.current_thread().name}

def raises(arguments, context):
    raise ValueError(HOSTILE)

def leaves(arguments, context):
    raise SystemExit(HOSTILE)

def hangs(arguments, context):
    release.wait(30)

async def hangs_awake(arguments, context):
    release.wait(30)

def nan(arguments, context):
    return {"n": float("nan")}

def objects(arguments, context):
    return {"n": object()}

def large(arguments, context):
    return "x" * (2 << 20)

def tells(arguments, context):
    return {"token": os.environ["PY_CANARY"], "ok\\x07": "\\ud800"}

def changes(arguments, context):
    arguments["n"] = "changed"
    return None

number = 5
release = threading.Event()
HOSTILE = ""
"""
NAMES = "echo later raises leaves hangs hangs_awake nan objects large tells changes number".split()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A distribution with entry points, as pip would have put it: a module and its `.dist-info`."""
    module = f"rig_tools_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(SOURCE)
    info = tmp_path / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    listed = "\n".join(f"{name} = {module}:{name}" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[jobgate.tools]\n{listed}\nabsent = {module}_absent:run\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PY_CANARY", SECRET)
    loaded: Any = importlib.import_module(module)
    loaded.HOSTILE = HOSTILE
    yield loaded
    loaded.release.set()


@dataclass
class Caller:
    ledger: Ledger
    kind: PythonCalls

    async def allow(self, *actions: str) -> None:
        def put(conn: LedgerConnection) -> None:
            insert_grant(conn, grant("grant_py", actions=actions, plugins=("*",)))

        await self.ledger.write(put)

    def proposed(self, name: str, effect: EffectClass, timeout_s: float = 10) -> Proposed:
        tool = {
            "name": "t",
            "description": "A tool.",
            "effect": effect,
            "input_schema": {"type": "object"},
            "python": name,
            "timeout_seconds": timeout_s,
        }
        row = receipt(deadline_at=datetime.now(UTC) + timedelta(hours=1))
        accepted = ReceiptRow(**vars(row), seq=1, confirmed_at=AT, refused_at=None)
        shop = Connection.model_validate({"base_url": "http://shop.example", "credential": {"ref": "env:PY_CANARY"}})
        return Proposed(accepted, Tool.model_validate(tool), {"n": 1}, {"shop": shop})

    async def call(
        self,
        name: str,
        effect: EffectClass = "read",
        permit: Callable[[], None] = lambda: None,
        timeout_s: float = 10,
    ) -> ToolOutcome:
        async def before() -> None:
            permit()

        proposed = self.proposed(name, effect, timeout_s)
        prepared = Prepared(
            receipt=proposed.receipt,
            tool=proposed.tool,
            args=proposed.args,
            connections=proposed.connections,
            attempt=Attempt(DEMO, proposed.receipt.job_id, "run", "1", 1),
            effect=effect,
            digest=ACTION,
            request_id=None,
            step=1,
            call=1,
            asked_attempt=1,
        )
        exchange = await self.kind.ready(prepared)
        return await exchange(*((Stamp(), None) if effect == "read" else (STAMP, before)))


@pytest.fixture
def caller(ledger: Ledger) -> Caller:
    return Caller(ledger, PythonCalls(ledger, CredentialPolicy(development=True)))


async def test_the_grant_names_python_tools_literally(installed: Any, caller: Caller) -> None:
    await caller.allow("*", "jobs:submit")
    for refused in (
        caller.kind.judge(caller.proposed("echo", "read")),
        caller.call("echo"),
        caller.call("echo", "write"),
    ):
        with pytest.raises(StepError) as error:
            await refused
        assert (error.value.step_code, error.value.detail) == (StepCode.AUTHORITY_REVOKED, UNGRANTED)
    assert installed.seen == []


async def test_a_granted_tool_runs_with_its_context(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")
    assert await caller.kind.judge(caller.proposed("echo", "write")) == "write"
    outcome = await caller.call("echo", "write")
    assert (outcome.state, outcome.result) == ("confirmed", {"arguments": {"n": 1}, "job": "k-1", "epoch": 3})
    (context,) = installed.seen
    assert isinstance(context, ToolContext)
    assert context.effect_id == context.idempotency_key == STAMP.effect_id


async def test_a_grant_revoked_since_the_plan_runs_nothing(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")
    await caller.kind.judge(caller.proposed("echo", "write"))
    await caller.ledger.write(lambda conn: revoke_grant(conn, DEMO, "grant_py", by="operator", at=datetime.now(UTC)))
    with pytest.raises(StepError):
        await caller.call("echo", "write")
    assert installed.seen == []


async def test_a_permit_that_is_refused_runs_nothing(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")

    def refuses() -> None:
        raise StepError(StepCode.STOPPED, "The job is being canceled; nothing was sent.")

    with pytest.raises(StepError):
        await caller.call("echo", "write", refuses)
    assert installed.seen == []
    await caller.call("echo", "write")
    assert len(installed.seen) == 1


@pytest.mark.parametrize(("name", "detail"), [("made.up", UNKNOWN), ("absent", BROKEN), ("number", BROKEN)])
async def test_a_tool_that_is_not_installed_is_refused_at_the_plan(
    name: str, detail: str, installed: Any, caller: Caller
) -> None:
    await caller.allow("tools:python")
    with pytest.raises(StepError) as refused:
        await caller.kind.judge(caller.proposed(name, "read"))
    assert (refused.value.step_code, refused.value.detail) == (StepCode.REJECTED, detail)


async def test_it_runs_beside_the_event_loop(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")
    assert (await caller.call("later")).result == {"thread": "python-tool"}
    assert threading.current_thread().name != "python-tool"


@pytest.mark.parametrize("name", ["raises", "leaves"])
async def test_what_it_raises_is_told_by_a_fixed_sentence(
    name: str, installed: Any, caller: Caller, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(0)
    await caller.allow("tools:python")
    outcome = await caller.call(name)
    assert (outcome.state, outcome.result, outcome.message) == ("error", {"error": RAISED}, RAISED)
    for effect in ("write", "idempotent_write"):
        with pytest.raises(ReplyLost) as lost:
            await caller.call(name, effect)
        assert lost.value.reason == RAISED
        assert lost.value.__context__ is None or SECRET not in repr(lost.value.__context__)
    said = capfd.readouterr()
    assert SECRET not in caplog.text + said.out + said.err


@pytest.mark.parametrize("name", ["hangs", "hangs_awake"])
@pytest.mark.parametrize("effect", ["read", "write"])
async def test_one_that_does_not_end_is_given_up_in_time(
    name: str, effect: EffectClass, installed: Any, caller: Caller
) -> None:
    await caller.allow("tools:python")
    async with asyncio.timeout(10):
        with pytest.raises(ReplyLost) as lost:
            await caller.call(name, effect, timeout_s=0.2)
    assert lost.value.reason == TIMED_OUT


@pytest.mark.parametrize(("effect", "state"), [("read", "error"), ("write", "confirmed")])
@pytest.mark.parametrize(("name", "message"), [("nan", NOT_JSON), ("objects", NOT_JSON), ("large", TOO_LARGE)])
async def test_a_result_that_can_not_be_kept_is_told(
    name: str, message: str, effect: EffectClass, state: str, installed: Any, caller: Caller
) -> None:
    await caller.allow("tools:python")
    outcome = await caller.call(name, effect)
    assert (outcome.state, outcome.message) == (state, message)
    assert len(json.dumps(outcome.result)) < MAX_RESULT_BYTES


async def test_hostile_text_and_a_connections_credential_do_not_come_out(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")
    assert (await caller.call("tells")).result == {"token": "[secret]", "ok\ufffd": "?"}


async def test_its_arguments_are_its_own_copy(installed: Any, caller: Caller) -> None:
    await caller.allow("tools:python")
    proposed = caller.proposed("changes", "read")
    await caller.call("changes")
    assert proposed.args == {"n": 1}
