"""A credential that is thrown back and the callers' tokens are nowhere, and no app is shown the machinery.

One long story on one stack, then one search through everything it left. The search is proven by planting.
"""

import base64
import re
import socket
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.recovery.grounds import published, running_stack
from tests.recovery.leak_story import (
    CREDENTIAL,
    MISPLACED,
    MODEL_KEY,
    SAYS_IT,
    make_mistakes,
    model_story,
    read_all,
    story,
)
from tests.recovery.needles import Ear, blobs_of, found_in, leaks, ledger_hay
from tests.rig.client import Client
from tests.rig.model_server import ModelServer
from tests.rig.plugins import final
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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> AsyncGenerator[Told]:
    folder = tmp_path_factory.mktemp("leaks")
    settings = {
        "TOOL_TOKEN": CREDENTIAL,
        "MODEL_KEY": MODEL_KEY,
        "JOBGATE_LOG_LEVEL": "debug",
        "JOBGATE_TRACE_FILE": str(folder / "trace.jsonl"),
    }
    async with running_stack(folder, settings=settings) as stack:
        apps, operators = Ear(), Ear()
        app, approver = apps.listens_to(stack.client()), apps.listens_to(stack.client("approver"))
        operator = operators.listens_to(stack.client("operator"))
        tokens = {f"token of {who}": client.token or "" for who, client in _named(app, approver, operator)}
        # What of a token is secret is its signature; head and claims are readable to anybody.
        signatures = {name: token.rpartition(".")[2] for name, token in tokens.items()}
        needles = {"credential": CREDENTIAL, "model key": MODEL_KEY, "misplaced secret": MISPLACED, **signatures}
        for name, behaviours in SAYS_IT.items():
            stack.effects.set_behaviour(name, *behaviours)
        jobs = await story(stack, app, approver)
        jobs += await model_story(stack, operator, app, model)
        await make_mistakes(app, apps)
        await read_all(app, approver, operator, apps, jobs)
        yield Told(stack, apps, operators, needles)


def _named(*clients: Client) -> list[tuple[str, Client]]:
    return list(zip(("app", "approver", "operator"), clients, strict=True))


async def test_no_secret_is_anywhere(told: Told) -> None:
    assert await leaks(told.stack, told.apps, told.needles) == set()
    assert [leak for name, hay in told.operators.answers for leak in found_in(told.needles, name, hay)] == []


async def test_every_haystack_was_there(told: Told) -> None:
    """A search through nothing finds nothing."""
    folder = told.stack.folder
    for name in ("api-0.log", "worker-0.log", "trace.jsonl", "data/temporal.db", "data/ledger.db"):
        assert (folder / name).stat().st_size > 0, name
    assert len(blobs_of(told.stack)) > 20
    assert {"table receipts", "table effects", "table stops", "table votes"} <= {
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
    "detail answer record"
)
PROBLEM_KEYS = "type title status detail instance code retryable retry_after_s executed next_gate not_yet missing"
EVENT_DATA_KEYS = (
    "mode plugin version blocker reason planned code attempt turn calls estimated input_tokens output_tokens call "
    "effect effect_id tool outcome expires_at kind request_id quorum votes decided_by decision retry_in_s step budget "
    "limit used"
)
SHOWN = frozenset(f"{JOB_KEYS} {NESTED_KEYS} {PROBLEM_KEYS} {EVENT_DATA_KEYS}".split())
THEIR_OWN = frozenset({"args", "labels", "result"})
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
