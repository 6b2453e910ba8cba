"""What admission tests share: submissions as raw bytes, problems judged whole, and what a key left behind.

`traces` is the witness of "nothing happened": it reads the ledger's row and asks the engine, and sees both after an
accepted submission (test_admission.py, `test_witness_sees_an_accepted_job`), so a leak turns its users red.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from sqlalchemy import update
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from gateway.ledger.engine import Ledger
from gateway.ledger.grants import NewGrant, insert_grant
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.ledger.tables import receipts
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack
from workflows.contract.errors import PROBLEMS, ProblemCode
from workflows.contract.ids import JobId, PrincipalId, Workspace

CANARY = "canary-input-5d21"
"""Stands in every refused body; no answer may hold it."""


async def submit_bytes(
    client: Client, body: bytes | str, key: str | None = None, *, path: str = "/v1/jobs", **headers: str
) -> httpx2.Response:
    """POST of exactly these bytes; keyword `content_type` and other headers by name, `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"Content-Type": "application/json", "Idempotency-Key": key or fresh_key(), **named}
    return await client.http.post(path, content=body if isinstance(body, bytes) else body.encode(), headers=sent)


def body_with(plugin: str, **members: Any) -> str:
    """A sound body with these members; the canary is in its input."""
    return json.dumps({"plugin": plugin, "input": {"canary": CANARY}, **members})


def refused(response: httpx2.Response, status: int, code: str) -> Json:
    """The problem document, which must be complete, be this refusal, and repeat nothing of the request."""
    assert problem(response) == (status, code), response.text
    document: Json = response.json()
    assert document["type"] == f"urn:jobgate:problem:{code}"
    assert document["title"] == PROBLEMS[ProblemCode(code)].title
    assert document["retryable"] is PROBLEMS[ProblemCode(code)].retryable
    assert document["detail"]
    assert document["instance"] == response.headers["X-Request-Id"]
    if "retry_after_s" in document:
        assert response.headers["Retry-After"] == str(document["retry_after_s"])
    assert CANARY not in response.text
    assert all(CANARY not in value for value in response.headers.values())
    return document


def replayed(response: httpx2.Response, first: httpx2.Response) -> None:
    """The answer is the first receipt again, to the byte, and says so."""
    assert response.status_code == 200, response.text
    assert response.content == first.content
    assert response.headers["Idempotent-Replayed"] == "true"
    assert response.headers["Location"] == first.headers["Location"]


@dataclass(frozen=True, slots=True)
class Traces:
    row: bool
    execution: bool


NONE = Traces(row=False, execution=False)
BOTH = Traces(row=True, execution=True)


async def traces(stack: Stack, key: str, *, workspace: str = "demo") -> Traces:
    """What a key left in ledger and engine."""
    row = await row_of(stack, key, workspace=workspace)
    return Traces(row is not None, await known_to_engine(stack, key, workspace=workspace))


async def known_to_engine(stack: Stack, key: str, *, workspace: str = "demo") -> bool:
    try:
        await (await execution(stack, key, workspace=workspace)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def execution(stack: Stack, key: str, *, workspace: str = "demo") -> WorkflowHandle[Any, Any]:
    return (await stack.engine()).get_workflow_handle(f"{workspace}.{key}")


async def runs_of(stack: Stack, key: str) -> int:
    """How many runs the engine has seen under this key (visibility; may lag, so wait for what must be there)."""
    return (await (await stack.engine()).count_workflows(f"WorkflowId = 'demo.{key}'")).count


async def row_of(stack: Stack, key: str, *, workspace: str = "demo") -> ReceiptRow | None:
    async with ledger_of(stack) as ledger:
        return await ledger.read(lambda conn: find_receipt(conn, Workspace(workspace), JobId(key)))


async def rewrite_row(stack: Stack, key: str, values: Mapping[str, Any]) -> None:
    """Put a receipt row into a state that time or a crash would have brought."""
    async with ledger_of(stack) as ledger:
        await ledger.write(lambda conn: conn.execute(update(receipts).where(receipts.c.job_id == key).values(values)))


@asynccontextmanager
async def ledger_of(stack: Stack) -> AsyncGenerator[Ledger]:
    """The stack's own ledger, opened beside its processes."""
    ledger = Ledger.open(stack.settings.ledger_url)
    try:
        yield ledger
    finally:
        await ledger.close()


async def publish_brisk(operator: Client, name: str, **more: Any) -> str:
    """A plugin whose jobs end at once, without a tool."""
    await publish_plugin(operator, name, [final()], **more)
    return name


async def publish_writer(operator: Client, name: str, tools_url: str, **more: Any) -> str:
    """A plugin whose jobs write once, to the tool that has the plugin's name: the effect log counts the runs."""
    await publish_plugin(
        operator,
        name,
        [turn(call(name, {"n": 1})), final()],
        tools=[tool(name, "write")],
        tools_url=tools_url,
        policy="permit (principal, action, resource);\n",
        **more,
    )
    return name


async def give_grant(
    stack: Stack,
    principal: str,
    actions: tuple[str, ...],
    plugins: tuple[str, ...],
    *,
    workspace: str = "demo",
    limits: dict[str, Any] | None = None,
    expires_at: datetime | None = None,
) -> None:
    """Grants have no route yet."""
    new = NewGrant(
        grant_id=f"grant-{workspace}-{principal}-{'-'.join(actions)}",
        workspace=Workspace(workspace),
        principal=PrincipalId(principal),
        actions=actions,
        plugins=plugins,
        limits=limits or {},
        expires_at=expires_at,
        by="test",
        at=datetime.now(UTC),
    )
    async with ledger_of(stack) as ledger:
        await ledger.write(lambda conn: insert_grant(conn, new))


OLD = timedelta(minutes=11)
"""Older than a reservation may be and still start its job."""
