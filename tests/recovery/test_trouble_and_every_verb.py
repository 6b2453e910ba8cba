"""Whatever is in trouble, every verb is answered in time by what was asked for or by a typed "try again"; afterwards
the same keys are the same jobs, every job ends, nothing was done twice, nothing is lost and nothing is left open.

Steps are under way when the trouble begins: a model thinks, a read and a write get their answers in the midst of it.
"""

import resource
import sqlite3
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager

import pytest
import pytest_asyncio

from tests.recovery.grounds import running_stack
from tests.recovery.verbs import BUSY_S, converged, made, tried_again, unfit
from tests.rig.client import Client
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

QUICK = {"JOBGATE_PRESENCE_S": "0.2"}
"""What takes no word of a process for 1.6 s is told by readyz."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("verbs"), settings=QUICK) as stack:
        yield stack


@asynccontextmanager
async def engine_frozen(stack: Stack) -> AsyncGenerator[None]:
    stack.temporal.freeze()
    try:
        yield
    finally:
        stack.temporal.resume()


@asynccontextmanager
async def engine_killed(stack: Stack) -> AsyncGenerator[None]:
    stack.temporal.kill()
    try:
        yield
    finally:
        await stack.start_temporal()


@asynccontextmanager
async def ledger_locked(stack: Stack) -> AsyncGenerator[None]:
    with closing(sqlite3.connect(stack.data / "ledger.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


@asynccontextmanager
async def ledger_gone(stack: Stack) -> AsyncGenerator[None]:
    with moved(stack, "ledger.db"):
        yield


@asynccontextmanager
async def blobs_gone(stack: Stack) -> AsyncGenerator[None]:
    with moved(stack, "blobs"):
        yield


@asynccontextmanager
async def disk_full(stack: Stack) -> AsyncGenerator[None]:
    """No process of ours can write to a file any more: ledger, blobs, uploads and logs alike."""
    pids = [process.pid for process in (*stack.apis, *stack.workers)]
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def moved(stack: Stack, name: str) -> Generator[None]:
    place = stack.data / name
    away = place.rename(place.with_name("away"))
    try:
        yield
    finally:
        assert not place.exists(), "something was made in its place"
        away.rename(place)


Trouble = Callable[[Stack], AbstractAsyncContextManager[None]]
ENGINE = frozenset({"submit", "retry", "read", "read running", "page", "cancel", "stream"})
WRITES = frozenset({"submit", "retry", "decision", "cancel", "upload", "publish"})
LEDGER = WRITES | {"replay", "read", "page", "list", "inbox", "preview", "locate", "audit", "metrics"}


@pytest.mark.parametrize(
    ("trouble", "refused", "answered"),
    [
        (engine_frozen, ENGINE, {"replay", "upload", "locate", "download", "publish", "audit"}),
        (engine_killed, ENGINE, {"replay", "upload", "locate", "download", "publish", "audit"}),
        (ledger_locked, WRITES, {"replay", "read", "page", "stream", "list", "inbox", "request", "download"}),
        (ledger_gone, LEDGER, frozenset[str]()),
        (blobs_gone, {"upload", "download", "publish"}, {"replay", "list", "cancel", "audit", "locate"}),
        pytest.param(
            *(disk_full, WRITES, {"replay", "read", "page", "stream", "list", "inbox", "request", "download"}),
            marks=pytest.mark.skipif(sys.platform != "linux", reason="limits of a process that runs are Linux's"),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_every_verb_is_answered_in_time_and_all_converges(
    ground: Stack, trouble: Trouble, refused: frozenset[str], answered: frozenset[str]
) -> None:
    """`refused` can not be answered otherwise meanwhile, so the trouble is real; `answered` needs nothing of it."""
    world = await made(ground)
    async with trouble(ground):
        ground.effects.release(world.held)
        answers = await world.ask_all()
    assert unfit(answers) == {}
    assert tried_again(answers) >= refused
    assert tried_again(answers) & answered == set()
    await converged(world)


# ---- readyz tells (B31)


@pytest.mark.parametrize(
    ("trouble", "rung"),
    [(ledger_locked, "ledger"), (ledger_gone, "ledger"), (disk_full, "ledger"), (blobs_gone, "blobs")],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_readyz_says_no_while_submissions_are_not_taken(ground: Stack, trouble: Trouble, rung: str) -> None:
    app = ground.client()
    async with trouble(ground):
        told = await wait_until(lambda: missed(app, rung), BUSY_S, every=0.1, what=f"{rung} is missed")
        assert (await app.http.get("/livez")).status_code == 200
    assert told
    for api in ground.apis:
        await ground.until_ready(api)


async def missed(app: Client, rung: str) -> str:
    """What readyz says of a rung that is not there."""
    answer = await app.http.get("/readyz")
    if answer.status_code == 200:
        return ""
    return next((one["detail"] for one in answer.json()["rungs"] if one["rung"] == rung and one["ok"] is False), "")
