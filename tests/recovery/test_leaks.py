"""A credential that is thrown back and the callers' tokens are nowhere, and no app is shown the machinery.

One long story on one stack, then one search through everything it left. The search is proven by planting.
"""

import asyncio
import base64
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.recovery.grounds import published, running_stack
from tests.recovery.leak_kinds import (
    FILE_NEW,
    FILE_OLD,
    MCP_KEY,
    PYTHON,
    PYTHON_VALUE,
    Outside,
    crash_story,
    key_story,
    mcp_story,
    python_story,
    rotation_story,
    vendor_story,
)
from tests.recovery.leak_reads import MISPLACED, make_mistakes, read_all, unheard
from tests.recovery.leak_story import CREDENTIAL, MODEL_KEY, SAYS_IT, model_story, story
from tests.recovery.needles import Ear, blobs_of, found_in, leaks, ledger_hay
from tests.rig.client import Client, fresh_key
from tests.rig.key_server import KeyServer, SigningKey
from tests.rig.mcp_log import McpLog
from tests.rig.model_server import ModelServer
from tests.rig.plugins import final
from tests.rig.python_tools import distribution
from tests.rig.stack import Stack


@dataclass(frozen=True, slots=True)
class Told:
    """What the story left: the stack, everything that was answered to apps and approvers, and to operators."""

    stack: Stack
    apps: Ear
    operators: Ear
    needles: dict[str, str]


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer(api_key=MODEL_KEY) as server:
        yield server


@pytest.fixture(scope="module")
def mcp(tmp_path_factory: pytest.TempPathFactory) -> Generator[McpLog]:
    server = McpLog(tmp_path_factory.mktemp("mcp"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told(tmp_path_factory: pytest.TempPathFactory, model: ModelServer, mcp: McpLog) -> AsyncGenerator[Told]:
    outside, folder = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("leaks")
    file = outside / "vault.key"
    async with running_stack(folder, workers=0, settings=settings_of(folder, outside, file)) as stack:
        await stack.until_polling(stack.add_worker({"JOBGATE_PUBLIC_URL": stack.apis[0].url}), 120)
        apps, operators = Ear(), Ear()
        app, approver = apps.listens_to(stack.client()), apps.listens_to(stack.client("approver"))
        operator = operators.listens_to(stack.client("operator"))
        # What of a token is secret is its signature; head and claims are readable to anybody.
        tokens = {f"token of {who}": client.token or "" for who, client in _named(app, approver, operator)}
        needles = {
            "credential": CREDENTIAL,
            "model key": MODEL_KEY,
            "mcp key": MCP_KEY,
            "python value": PYTHON_VALUE,
            "file's old": FILE_OLD,
            "file's new": FILE_NEW,
            "misplaced secret": MISPLACED,
            **{name: token.rpartition(".")[2] for name, token in tokens.items()},
        }
        for name, behaviours in SAYS_IT.items():
            stack.effects.set_behaviour(name, *behaviours)
        there, session = Outside(stack, mcp, file), fresh_key()
        # The key is shown once, to a client whom no ear hears.
        key = (await stack.client("operator").post("/v1/api-keys", {"principal": "app"}, expect=201))["key"]
        needles["API key"] = key.rpartition("_")[2]
        async with (
            _heard(apps, stack, None) as vendor,
            _heard(apps, stack, key) as holder,
            asyncio.TaskGroup() as side_by_side,
        ):
            parts = [
                side_by_side.create_task(part)
                for part in (
                    story(stack, app, approver),
                    model_story(stack, operator, app, model, session),
                    mcp_story(there, app),
                    python_story(there, app),
                    key_story(there, holder),
                )
            ]
            answered = side_by_side.create_task(vendor_story(there, app, vendor, CREDENTIAL))
            rotated = side_by_side.create_task(rotation_story(there, app, approver, vendor))
            issued = side_by_side.create_task(_by_issuer(stack, apps))
        jobs = [job for part in parts for job in part.result()]
        for called, tokens in (answered.result(), rotated.result()):
            jobs += called
            needles |= {f"callback token of {called[0]}-{number}": token for number, token in enumerate(tokens)}
        needles["token of an issuer"] = issued.result()
        jobs += await crash_story(there, app, "held-dead")
        await make_mistakes(app, operator, (apps, operators))
        await read_all(app, approver, operator, apps, jobs, [session])
        yield Told(stack, apps, operators, needles)


def settings_of(folder: Path, outside: Path, file: Path) -> dict[str, str]:
    (outside / "allowed.yaml").write_text(
        f'entries: [{{ref: "file:{file}", workspaces: [demo], hosts: ["127.0.0.1"]}}]\n'
    )
    return {
        "TOOL_TOKEN": CREDENTIAL,
        "MODEL_KEY": MODEL_KEY,
        "MCP_TOKEN": MCP_KEY,
        "LIB_TOKEN": PYTHON_VALUE,
        "JOBGATE_CREDENTIALS_FILE": str(outside / "allowed.yaml"),
        "JOBGATE_HEARTBEAT_TIMEOUT_S": "2",
        "JOBGATE_LOG_LEVEL": "debug",
        "JOBGATE_TRACE_FILE": str(folder / "trace.jsonl"),
        **distribution(outside, "leaks", PYTHON),
    }


def _named(*clients: Client) -> list[tuple[str, Client]]:
    return list(zip(("app", "approver", "operator"), clients, strict=True))


@asynccontextmanager
async def _heard(ear: Ear, stack: Stack, token: str | None) -> AsyncGenerator[Client]:
    async with Client(stack.apis[0].url, token) as client:
        yield ear.listens_to(client)


async def _by_issuer(stack: Stack, ear: Ear) -> str:
    """Calls a gateway that knows published keys alone; the signature of the token."""
    key = SigningKey("leaks")
    async with KeyServer(key) as issuer:
        api = stack.add_api({"JOBGATE_DEVELOPMENT": "false", "JOBGATE_JWKS_URL": issuer.url})
        await stack.until_ready(api)
        for token, status in ((good := key.token(), 200), (key.token(exp=1), 401), (f"{good}x", 401)):
            async with ear.listens_to(Client(api.url, token)) as caller:
                assert (await caller.http.get("/v1/jobs")).status_code == status
        api.stop()
    stack.apis.remove(api)
    return good.rpartition(".")[2]


async def test_no_secret_is_anywhere(told: Told) -> None:
    assert await leaks(told.stack, told.apps, told.needles) == set()
    assert [leak for name, hay in told.operators.answers for leak in found_in(told.needles, name, hay)] == []


async def test_every_read_was_heard(told: Told) -> None:
    assert unheard(told.apps, told.operators) == set()
    assert unheard(told.apps) >= {"/v1/audit", "/metrics"}


async def test_every_haystack_was_there(told: Told) -> None:
    """A search through nothing finds nothing."""
    folder = told.stack.folder
    for name in ("api-0.log", "api-1.log", "worker-0.log", "trace.jsonl", "data/temporal.db", "data/ledger.db"):
        assert (folder / name).stat().st_size > 0, name
    assert len(blobs_of(told.stack)) > 20
    assert {"table receipts", "table effects", "table stops", "table votes", "table callbacks", "table api_keys"} <= {
        name for name, _ in ledger_hay(told.stack)
    }
    assert any(b"[secret]" in path.read_bytes() for path in blobs_of(told.stack))
    assert any(name.startswith("stream of") for name, _ in told.apps.answers)


# ---- what apps are shown

JOB_KEYS = (
    "job_id status mode eligibility blocker executed recovery overdue next_action last_event pending plugin "
    "accepted_at started_at finished_at deadline cancel_requested_at usage failure result result_url artifacts "
    "delivery retry_of session labels as_of source events next_cursor has_more"
)
NESTED_KEYS = (
    "code message seq at type data request_id kind title expires_at name version digest steps input_tokens "
    "output_tokens cost_usd fingerprint snapshot in_flight effect_id tool sent_at opened_at action_digest args policy "
    "groups quorum expires_in_seconds votes principal decision decided_by decided_at state reason ready rungs rung ok "
    "live "
    "detail answer record counts open_job jobs role content snapshot created_at"
)
PROBLEM_KEYS = "type title status detail instance code retryable retry_after_s executed next_gate not_yet missing"
EVENT_DATA_KEYS = (
    "mode plugin version blocker reason planned code attempt turn calls estimated input_tokens output_tokens call "
    "effect effect_id tool outcome expires_at kind request_id quorum votes decided_by decision retry_in_s step budget "
    "limit used initiator"
)
PREVIEW_KEYS = (
    "projected_status would_change would_execute side_effects worker_executed state_mutated process_started "
    "approval_consumed config_changed phase_promoted"
)
SHOWN = frozenset(f"{JOB_KEYS} {NESTED_KEYS} {PROBLEM_KEYS} {EVENT_DATA_KEYS} {PREVIEW_KEYS}".split())
THEIR_OWN = frozenset({"args", "labels", "result", "content"})
"""Members that hold what the app itself, its tools or its model said."""


def keys_of(document: Any) -> set[str]:
    if isinstance(document, list):
        return {key for item in document for key in keys_of(item)}  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(document, dict):
        return set()
    own: dict[str, Any] = document  # pyright: ignore[reportUnknownVariableType]
    below = {key for name, value in own.items() if name not in THEIR_OWN for key in keys_of(value)}
    return set(own) | below


async def test_apps_see_no_machinery(told: Told) -> None:
    shown = {key for name, document in told.apps.documents() if "/result" not in name for key in keys_of(document)}
    assert shown - SHOWN == set()
    assert {"job_id", "in_flight", "last_event", "request_id", "instance"} <= shown

    engine = await told.stack.engine()
    runs = {f"run {row.id}": row.run_id async for row in engine.list_workflows()}
    assert runs
    lane = told.stack.settings.lanes[told.stack.settings.lane].task_queue
    worker = told.stack.workers[0].pid
    machinery = {
        **runs,
        "task queue": lane,
        "worker identity": f"{worker}@{socket.gethostname()}",
        "host": socket.gethostname(),
        "engine": told.stack.address,
        "data folder": str(told.stack.folder),
        "a stack": "Traceback",
        "a file of ours": "py",
        "a reference": "env:TOOL_TOKEN",
    }
    words = {what: re.compile(rf"(?<!\w){re.escape(word)}(?!\w)".encode()) for what, word in machinery.items()}
    assert all(word.search(f'{{"x": "{machinery[what]}"}}'.encode()) for what, word in words.items())
    seen = {(what, name) for name, hay in told.apps.answers for what, word in words.items() if word.search(hay)}
    assert seen == set()


# ---- the search can fail


@pytest.mark.parametrize(
    "spelled",
    [
        CREDENTIAL,
        quote(CREDENTIAL, safe=""),
        base64.b64encode(f"a{CREDENTIAL}b".encode()).decode(),
        base64.b64encode(f"ab{CREDENTIAL}".encode()).decode(),
    ],
    ids=["plain", "url", "base64 at 1", "base64 at 2"],
)
async def test_a_planted_secret_is_found_in_every_haystack_that_holds_it(told: Told, spelled: str) -> None:
    """In a label, which goes where labels go: it is the app's own text and is kept as it is."""
    ear = Ear()
    app = ear.listens_to(told.stack.client())
    job = await app.accepted(await published(told.stack, [final()]), labels={"note": spelled})
    await app.until_ended(job)
    found = await leaks(told.stack, ear, {"planted": CREDENTIAL})
    places = {leak.removeprefix("planted in ").replace(job, "JOB") for leak in found}
    assert {"history of demo.JOB", "memo and attributes of demo.JOB", "table receipts", "file data/ledger.db-wal"} <= (
        places
    )
    assert any(place.startswith("answer GET /v1/jobs/JOB") for place in places)
    assert any(place.startswith("file data/temporal.db") for place in places)
