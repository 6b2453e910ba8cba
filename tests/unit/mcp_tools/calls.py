"""Calls of an MCP tool as the call gateway prepares them, made through the real door to a real server."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.allowlist import CredentialPolicy
from gateway.calls.attempts import Attempt
from gateway.calls.egress import BeforeBytes, Door
from gateway.calls.http_tool import ToolOutcome
from gateway.calls.kinds import Prepared, Proposed, Stamp
from gateway.calls.mcp_tool import McpCalls
from gateway.calls.outbound import NotSent, ReplyLost
from gateway.deployments import Connection
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import Tool
from tests.rig.mcp_log import McpLog
from tests.unit.ledger_rows import ACTION, AT, DEMO, receipt
from workflows.contract.errors import StepError
from workflows.contract.ids import EffectId
from workflows.contract.job import EffectClass

TEXT = {"content": [{"type": "text", "text": "done"}]}
CANARY = "canary-mcp-51c0de"
STAMP = Stamp(EffectId("eff_" + "1" * 32), 3)
FAILURES = (NotSent, ReplyLost, StepError)


@dataclass
class Caller:
    """`url` is the server's; every call asks the server anew unless `fresh_s` says otherwise."""

    door: Door
    url: str
    fresh_s: float = 0.0
    permits: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.kind = McpCalls(self.door, CredentialPolicy(development=True), fresh_s=self.fresh_s)

    def proposed(self, declared: EffectClass = "read", **changed: Any) -> Proposed:
        tool = {
            "name": "t",
            "description": "A tool.",
            "effect": declared,
            "input_schema": {"type": "object"},
            "mcp": {"connection": "tools", "tool": "t"},
            "timeout_seconds": 5,
            **changed,
        }
        credential = {"ref": "env:MCP_CANARY"}
        connection = Connection.model_validate({"base_url": self.url, "allow_private": True, "credential": credential})
        row = receipt(deadline_at=datetime.now(UTC) + timedelta(hours=1))
        accepted = ReceiptRow(**vars(row), seq=1, confirmed_at=AT, refused_at=None)
        return Proposed(accepted, Tool.model_validate(tool), {"n": 1}, {"tools": connection})

    def prepared(self, effect: EffectClass, declared: EffectClass | None = None, **changed: Any) -> Prepared:
        proposed = self.proposed(declared or effect, **changed)
        attempt = Attempt(DEMO, proposed.receipt.job_id, "run", "1", 1)
        return Prepared(
            receipt=proposed.receipt,
            tool=proposed.tool,
            args=proposed.args,
            connections=proposed.connections,
            attempt=attempt,
            effect=effect,
            digest=ACTION,
            request_id=None,
            step=1,
            call=1,
            asked_attempt=1,
        )

    async def call(
        self, effect: EffectClass = "read", before_bytes: BeforeBytes | None = None, **changed: Any
    ) -> ToolOutcome:
        """A write takes a permit, which is noted."""

        async def permit() -> None:
            self.permits.append("taken")

        reads = effect == "read"
        exchange = await self.kind.ready(self.prepared(effect, **changed))
        return await exchange(Stamp() if reads else STAMP, None if reads else before_bytes or permit)

    async def failure(self, effect: EffectClass = "read", **changed: Any) -> NotSent | ReplyLost | StepError:
        """What a call ends as that brings no outcome."""
        try:
            outcome = await self.call(effect, **changed)
        except FAILURES as failure:
            return failure
        raise AssertionError(f"the call brought {outcome}")


def offers(server: McpLog, answer: Any = TEXT, **listed: Any) -> None:
    server.tell({"t": {"answer": answer, **listed}})


def rpc_result(result: Any) -> dict[str, Any]:
    """An answer to the third request of a session, which `tools/call` is."""
    return {"body": json.dumps({"jsonrpc": "2.0", "id": 2, "result": result})}
