"""Looking for secrets in everything that Jobgate leaves behind: each needle in each spelling, in each haystack.

It knows how a text may be spelled (plain, percent-encoded, JSON-escaped, in base64 at each alignment, in hexadecimal)
and where a stack keeps bytes. Only the effect log's own folder is left out: it is the outside, and gets the credential.
"""

import base64
import html
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx2

from tests.rig.client import Client
from tests.rig.stack import Stack


def spellings(secret: str) -> frozenset[bytes]:
    raw = secret.encode()
    found = {raw, quote(secret, safe="").encode(), quote_plus(secret).encode(), quote(secret).encode()}
    found |= {
        json.dumps(secret)[1:-1].encode(),
        html.escape(secret).encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
    }
    for offset in range(3):
        # The characters that depend on the secret alone, whatever stands before and after it.
        whole = base64.b64encode(b"\0" * offset + raw)
        core = whole[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
        found |= {core, core.translate(bytes.maketrans(b"+/", b"-_"))}
    return frozenset(found)


def found_in(needles: Mapping[str, str], name: str, hay: bytes) -> list[str]:
    """`needle in haystack` for each needle that is there in any spelling."""
    return [f"{needle} in {name}" for needle, secret in needles.items() if any(one in hay for one in spellings(secret))]


class Ear:
    """Keeps head and body of every answer that a client hears; of streams the head, their frames come by `heard`."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, bytes]] = []

    def listens_to(self, client: Client) -> Client:
        client.http.event_hooks["response"].append(self._keep)
        return client

    def heard(self, name: str, body: str) -> None:
        self.answers.append((name, body.encode()))

    async def _keep(self, response: httpx2.Response) -> None:
        head = "\n".join(f"{key}: {value}" for key, value in response.headers.multi_items())
        streamed = response.headers.get("Content-Type", "").startswith("text/event-stream")
        body = b"" if streamed else await response.aread()
        name = f"{response.request.method} {response.request.url.raw_path.decode()} {response.status_code}"
        self.answers.append((name, head.encode() + b"\n\n" + body))

    def documents(self) -> Iterator[tuple[str, object]]:
        """The JSON bodies."""
        for name, answer in self.answers:
            body = answer.partition(b"\n\n")[2]
            if body.startswith((b"{", b"[")):
                yield name, json.loads(body)


async def engine_hay(stack: Stack) -> AsyncIterator[tuple[str, bytes]]:
    """Every history and description, as JSON (payloads in base64) and as bytes (payloads as they are)."""
    engine = await stack.engine()
    async for listed in engine.list_workflows():
        handle = engine.get_workflow_handle(listed.id, run_id=listed.run_id)
        history = await handle.fetch_history()
        yield f"history of {listed.id}", history.to_json().encode()
        yield f"history of {listed.id}", b"".join(event.SerializeToString() for event in history.events)
        described = await handle.describe()
        yield f"memo and attributes of {listed.id}", described.raw_description.SerializeToString()


def ledger_hay(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Every column of every row of every table."""
    with closing(sqlite3.connect(stack.data / "ledger.db")) as ledger:
        tables = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in ledger.execute(f'SELECT * FROM "{table}"'):
                yield f"table {table}", b"\n".join(_bytes(value) for value in row)


def file_hay(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Databases, blobs, logs, traces: every file of the stack."""
    for path in sorted(stack.folder.rglob("*")):
        where = path.relative_to(stack.folder)
        if path.is_file() and where.parts[0] != "effects":
            yield f"file {where}", path.read_bytes()


async def everything(stack: Stack, ear: Ear) -> AsyncIterator[tuple[str, bytes]]:
    async for hay in engine_hay(stack):
        yield hay
    for name, answer in ear.answers:
        yield f"answer {name}", answer
    for hay in (*ledger_hay(stack), *file_hay(stack)):
        yield hay


async def leaks(stack: Stack, ear: Ear, needles: Mapping[str, str]) -> set[str]:
    return {leak async for name, hay in everything(stack, ear) for leak in found_in(needles, name, hay)}


def blobs_of(stack: Stack) -> list[Path]:
    return [path for path in (stack.data / "blobs").rglob("*") if path.is_file()]


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
