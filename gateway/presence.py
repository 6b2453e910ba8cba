"""Being there: each API and worker process writes down that it lives, of which build it is and how it is configured.

Others believe the row, so that a dead process is missed within seconds; the engine remembers a dead worker for minutes.
Trouble of the ledger is said once in the log and stops nothing: whoever can not be seen counts as dead.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from temporalio.envconfig import ClientConfig

from gateway.ledger.engine import Ledger
from gateway.ledger.presence import NewProcess, ProcessKind, Seen, note_process, stop_process
from gateway.logcounts import Warnings
from gateway.settings import Settings, SettingsInvalid
from gateway.telemetry import log

PACKAGES = ("workflows", "facade", "gateway", "activities")
MISSED = 3
MARGIN = timedelta(seconds=1)
"""A process that missed so many words in a row, and so much longer, is dead."""
LAST_WORD_S = 2.0


def process_of(
    settings: Settings, kind: ProcessKind, *, identity: str | None = None, tools: Sequence[str] = ()
) -> NewProcess:
    """This very process; `identity` as the engine knows it, else of the same form."""
    host = socket.gethostname()
    return NewProcess(
        process_id=f"proc_{uuid4().hex}",
        kind=kind,
        identity=identity or f"{os.getpid()}@{host}",
        lane=settings.lane if kind == "worker" else None,
        pid=os.getpid(),
        host=host,
        build=build_of(Path(__file__).parents[1]),
        config=config_of(settings),
        tools=tuple(tools),
        started_at=datetime.now(UTC),
    )


@dataclass(slots=True)
class Presence:
    """Whether this process is heard: `until` (event loop time) the ledger has taken its word."""

    until: float = 0.0

    @property
    def heard(self) -> bool:
        return asyncio.get_running_loop().time() < self.until


@asynccontextmanager
async def present(ledger: Ledger, process: NewProcess, warnings: Warnings, every_s: float) -> AsyncGenerator[Presence]:
    """Writes the row now and again and again, beside whatever is done inside; at the end, that it stopped."""
    presence = Presence()
    telling = asyncio.create_task(_tell(ledger, process, warnings, every_s, presence))
    try:
        yield presence
    finally:
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        with contextlib.suppress(Exception):  # it is leaving: a row that is not refreshed says the same a little later
            async with asyncio.timeout(LAST_WORD_S):
                await ledger.write(lambda conn: stop_process(conn, process.process_id, datetime.now(UTC)))


async def _tell(ledger: Ledger, process: NewProcess, warnings: Warnings, every_s: float, presence: Presence) -> None:
    unheard = False
    lives = MISSED * timedelta(seconds=every_s) + MARGIN
    while True:
        now = datetime.now(UTC)
        until = asyncio.get_running_loop().time() + lives.total_seconds()
        seen = Seen(now, now + lives, warnings.count, warnings.last)
        try:
            await ledger.write_grouped(
                lambda conn, seen=seen: note_process(conn, process, seen), key=process.process_id
            )
            presence.until, unheard = until, False
        except Exception as error:  # noqa: BLE001 - a ledger that is away or not migrated must not end the process
            if not unheard:
                log.warning("presence not written", exc_info=error)
            unheard = True
        await asyncio.sleep(every_s)


def build_of(root: Path) -> str:
    """`VERSION+DIGEST` of the code below `root`: two processes with the same text run the same files of ours."""
    digest = sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                content = sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return f"{metadata.version('jobgate')}+{digest.hexdigest()[:16]}"


def config_of(settings: Settings) -> str:
    """The digest of `shared_config`: two processes with the same text work on the same things, by the same rules."""
    canonical = json.dumps(shared_config(settings), sort_keys=True, separators=(",", ":"))
    return f"sha256:{sha256(canonical.encode()).hexdigest()}"


def shared_config(settings: Settings) -> dict[str, Any]:
    """What an API and a worker must agree on, and why; never a user, a password or a key.

    `ledger` and `blobs`: a permit, a decision or a bundle written by one is read by the other. `engine` and
    `namespace`: jobs that one starts, the other must see. `lanes`: a job is routed by queue names and capabilities.
    `development` and `credentials`: what one allows at admission the other must allow at the call. `issuer` and the
    like concern the API alone, the lane that a worker serves is its row's, and grace times change no answer.
    """
    engine = ClientConfig.load_client_connect_config()
    return {
        "ledger": _without_login(settings.ledger_url),
        "blobs": _without_login(settings.blobs_url),
        "engine": engine.get("target_host", settings.temporal_address),
        "namespace": engine.get("namespace", settings.namespace),
        "lanes": {
            name: {"task_queue": lane.task_queue, "capabilities": sorted(lane.capabilities)}
            for name, lane in settings.lanes.items()
        },
        "development": settings.development,
        "credentials": _content(settings.credentials_file),
    }


def _without_login(url: str) -> str:
    """Where it is, not as whom: API and worker may log in as different users, and driver options hold key files."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _content(file: Path | None) -> str | None:
    try:
        return None if file is None else sha256(file.read_bytes()).hexdigest()
    except OSError:
        raise SettingsInvalid(f"{file} can not be read") from None
