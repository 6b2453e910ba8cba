"""What every kind of tool is given, and what it owes: one way to make a call ready and one way to send it.

A kind knows how its calls leave. It decides neither whether a call may be made nor what its outcome means for the
ledger: `gateway.calls.gateway` and `gateway.calls.writes` do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from pydantic import JsonValue

from gateway.allowlist import CredentialPolicy
from gateway.calls.attempts import Attempt, now
from gateway.calls.egress import BeforeBytes
from gateway.calls.http_tool import ToolOutcome
from gateway.credentials import Scrubber, resolve_credential
from gateway.deployments import Connection, ModelConnection
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import Tool
from gateway.telemetry import traceparent
from workflows.contract.ids import Digest, EffectId, RequestId, Workspace
from workflows.contract.job import EffectClass

STRICTNESS: Mapping[EffectClass, int] = MappingProxyType({"read": 0, "idempotent_write": 1, "write": 2})


@dataclass(frozen=True, slots=True)
class Proposed:
    """A call that a model asks for, with arguments that fit. `connections` are all that the deployment binds."""

    receipt: ReceiptRow
    tool: Tool
    args: Mapping[str, JsonValue]
    connections: Mapping[str, Connection]

    @property
    def connection(self) -> Connection | None:
        """The tool's own; None for a tool without one."""
        called = self.tool.http or self.tool.mcp
        return None if called is None else self.connections[called.connection]

    @property
    def time_s(self) -> float:
        """Seconds that the call may take from now: its own timeout, cut by the deadline."""
        left_s = (self.receipt.deadline_at - now()).total_seconds()
        return max(min(self.tool.timeout_seconds, left_s), 0.0)


@dataclass(frozen=True, slots=True)
class Prepared(Proposed):
    """A call that may be made. `request_id` is set where the policy asks a person; `effect` is what was planned: the
    declared class, or a stricter one. `step` and `call` say which call of the job it is, `asked_attempt` the workflow's
    count of tries at it."""

    attempt: Attempt
    effect: EffectClass
    digest: Digest
    request_id: RequestId | None
    step: int
    call: int
    asked_attempt: int
    model_connection: ModelConnection | None = None
    """The deployment's."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What one sending carries beside its arguments. A read has neither effect nor epoch."""

    effect_id: EffectId | None = None
    epoch: int | None = None

    def headers(self, proposed: Proposed) -> dict[str, str]:
        """Jobgate's own headers, for every kind that speaks HTTP."""
        headers = {"Jobgate-Job": str(proposed.receipt.job_id)}
        if (parent := traceparent()) is not None:
            headers["traceparent"] = parent
        if self.effect_id is not None:
            headers["Idempotency-Key"] = self.effect_id
            headers["Jobgate-Epoch"] = str(self.epoch)
        return headers


Exchange = Callable[[Stamp, BeforeBytes | None], Awaitable[ToolOutcome]]
"""Sends once. The hook is awaited just before the call leaves, and what it raises comes out as it is: then nothing was
sent. Raises NotSent, ReplyLost, and StepError for an answer that is worth another attempt."""


class Kind(Protocol):
    async def judge(self, proposed: Proposed) -> EffectClass:
        """What the call does to the outside: the declared class, or a stricter one. Raises StepError with a sentence
        for the model where no such call can be made."""
        ...

    async def ready(self, prepared: Prepared) -> Exchange:
        """Raises StepError for a call that can not be made; nothing has left then."""
        ...


class Later:
    """A kind whose libraries take long to load: in a thread, with its first call, and not with the process."""

    def __init__(self, load: Callable[[], Kind]) -> None:
        self._load = load
        self._kind: Kind | None = None

    async def judge(self, proposed: Proposed) -> EffectClass:
        return await (await self._loaded()).judge(proposed)

    async def ready(self, prepared: Prepared) -> Exchange:
        return await (await self._loaded()).ready(prepared)

    async def _loaded(self) -> Kind:
        if self._kind is None:
            loaded = await asyncio.to_thread(self._load)
            self._kind = self._kind or loaded  # of first calls at once, one kind and what it remembers stays
        return self._kind


@dataclass(frozen=True, slots=True)
class Kinds:
    """One per process."""

    http: Kind
    mcp: Kind
    python: Kind

    def of(self, tool: Tool) -> Kind:
        if tool.http is not None:
            return self.http
        return self.python if tool.mcp is None else self.mcp


def may_be_planned(tool: Tool, effect: EffectClass) -> bool:
    """Whether a call of this tool may be of this class: as declared, or stricter where a server may say so."""
    if tool.mcp is None:
        return effect == tool.effect
    return STRICTNESS[effect] >= STRICTNESS[tool.effect]


@dataclass(frozen=True, slots=True)
class Injection:
    """The headers that hold the credential, and what finds it again in a reply. Without a credential both are empty."""

    headers: Mapping[str, str]
    scrubber: Scrubber

    @property
    def value(self) -> str:
        """The credential as it is injected, prefix included."""
        return "".join(self.headers.values())


def inject(policy: CredentialPolicy, connection: Connection, workspace: Workspace) -> Injection:
    """The credential's value enters here and nowhere else. Raises StepError `rejected`."""
    credential = connection.credential
    if credential is None:
        return Injection({}, Scrubber(()))
    secret = resolve_credential(policy, credential.ref, workspace=workspace, base_url=connection.base_url)
    value = credential.prefix + secret.reveal()
    return Injection({credential.header: value}, Scrubber([secret], [value]))
