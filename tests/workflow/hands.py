"""Stub activities under the contract's names: each job has a script of replies and a record of what really ran.

The scripts stand in for model, tools and ledger; the workflow under test can not tell the difference.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from workflows.contract.errors import StepCode
from workflows.contract.events import Event
from workflows.contract.ids import BlobRef, Digest, RequestId, ToolName, sha256_of
from workflows.contract.job import ArtifactRef, EffectClass, RequestKind
from workflows.contract.steps import (
    Activity,
    ArchiveInput,
    AuthorityOutput,
    CallbackInput,
    CallbackOutput,
    DecisionInput,
    GateOutput,
    ModelInput,
    ModelOutput,
    PlannedCall,
    PublishInput,
    PublishOutput,
    ReconcileInput,
    ReconcileOutput,
    Ruling,
    StepFailure,
    ToolInput,
    ToolOutput,
)

BEAT_S = 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed attempt, told as the real activities tell it."""

    code: StepCode
    retry_after_s: float | None = None
    detail: str = "It did not work."

    def error(self) -> ApplicationError:
        details = StepFailure(retry_after_s=self.retry_after_s)
        return ApplicationError(self.detail, details, type=self.code, non_retryable=True)


@dataclass(slots=True)
class Held:
    """A reply that comes when the test lets it go; `silent` sends no heartbeat, so that a cancel can not reach it."""

    reply: "Reply"
    silent: bool = False
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)


Reply = ModelOutput | ToolOutput | Fault | Held | Exception


@dataclass(slots=True)
class Hands:
    """The replies of one job, in the order they are asked for, and the record of its activities."""

    model: list[Reply] = field(default_factory=list[Reply])
    tools: dict[str, list[Reply]] = field(default_factory=dict[str, list[Reply]])
    ledger: dict[RequestId, Ruling] = field(default_factory=dict[RequestId, Ruling])
    gates: list[GateOutput] = field(default_factory=list[GateOutput])
    callbacks: dict[tuple[int, int], CallbackOutput] = field(default_factory=dict[tuple[int, int], CallbackOutput])
    """The answers of vendors by step and call."""
    effects: list[ReconcileOutput | Fault] = field(default_factory=list[ReconcileOutput | Fault])
    """What is known of an effect each time it is asked for; then that nobody knows."""
    publishing: list[Fault] = field(default_factory=list[Fault])
    """How publishing the result fails, before it does not."""
    authorities: list[AuthorityOutput | asyncio.Event] = field(default_factory=list[AuthorityOutput | asyncio.Event])
    """What the ledger says each time the job looks, or until when it says nothing; then that the job may go on."""
    forever: Callable[[int], ModelOutput] | None = None
    ran: list[str] = field(default_factory=list[str])
    asked_model: list[ModelInput] = field(default_factory=list[ModelInput])
    asked_tool: list[ToolInput] = field(default_factory=list[ToolInput])
    archives: dict[BlobRef, tuple[Event, ...]] = field(default_factory=dict[BlobRef, tuple[Event, ...]])

    def next_model(self, asked: ModelInput) -> Reply:
        self.ran.append(f"model {asked.turn}.{asked.attempt}")
        self.asked_model.append(asked)
        return self.forever(asked.turn) if self.forever else self.model.pop(0)

    def next_tool(self, asked: ToolInput) -> Reply:
        self.ran.append(f"{asked.tool} {asked.attempt}")
        self.asked_tool.append(asked)
        script = self.tools.get(asked.tool, [])
        return script.pop(0) if script else done()

    def rule(self, asked: DecisionInput) -> Ruling:
        how = " close" if asked.close else " void" if asked.void else ""
        self.ran.append(f"read_decision {asked.request_id}{how}")
        standing = self.ledger.get(asked.request_id, Ruling(verdict=None))
        if standing.verdict is None and (asked.close or asked.void):
            standing = self.ledger[asked.request_id] = Ruling(verdict="expired", action_digest=asked.action_digest)
        return standing


class Stubs:
    """The activities of one worker; `of` maps a workflow id to its hands."""

    def __init__(self) -> None:
        self.of: dict[str, Hands] = {}

    def activities(self) -> Sequence[Callable[..., Any]]:
        reads = [
            self.read_decision,
            self.read_gate,
            self.read_authority,
            self.read_callback,
            self.reconcile,
            self.publish,
        ]
        return [self.model, self.tool, *reads, self.archive_events]

    def _mine(self) -> Hands:
        return self.of[activity.info().workflow_id or ""]

    @activity.defn(name=Activity.MODEL)
    async def model(self, asked: ModelInput) -> ModelOutput:
        reply = await give(self._mine().next_model(asked))
        assert isinstance(reply, ModelOutput)
        return reply

    @activity.defn(name=Activity.TOOL)
    async def tool(self, asked: ToolInput) -> ToolOutput:
        reply = await give(self._mine().next_tool(asked))
        assert isinstance(reply, ToolOutput)
        return reply

    @activity.defn(name=Activity.READ_DECISION)
    async def read_decision(self, asked: DecisionInput) -> Ruling:
        return self._mine().rule(asked)

    @activity.defn(name=Activity.READ_GATE)
    async def read_gate(self) -> GateOutput:
        hands = self._mine()
        hands.ran.append("read_gate")
        return hands.gates.pop(0)

    @activity.defn(name=Activity.READ_AUTHORITY)
    async def read_authority(self) -> AuthorityOutput:
        hands = self._mine()
        hands.ran.append("read_authority")
        told = hands.authorities.pop(0) if hands.authorities else AuthorityOutput(revoked=False)
        if isinstance(told, asyncio.Event):
            await told.wait()
            return AuthorityOutput(revoked=False)
        return told

    @activity.defn(name=Activity.RECONCILE)
    async def reconcile(self, asked: ReconcileInput) -> ReconcileOutput:
        hands = self._mine()
        hands.ran.append(f"reconcile {asked.tool} {asked.ask}")
        told = hands.effects.pop(0) if hands.effects else ReconcileOutput(outcome="not_known")
        if isinstance(told, Fault):
            raise told.error()
        return told

    @activity.defn(name=Activity.PUBLISH)
    async def publish(self, asked: PublishInput) -> PublishOutput:
        hands = self._mine()
        hands.ran.append(f"publish {asked.name}")
        if hands.publishing:
            raise hands.publishing.pop(0).error()
        artifact = ArtifactRef(
            artifact_id="art_1",
            name=asked.name,
            bytes=asked.bytes,
            media_type="application/json",
            digest=sha256_of(asked.ref.encode()),
        )
        return PublishOutput(artifact=artifact)

    @activity.defn(name=Activity.READ_CALLBACK)
    async def read_callback(self, asked: CallbackInput) -> CallbackOutput:
        hands = self._mine()
        hands.ran.append(f"read_callback {asked.step}.{asked.call}{' close' if asked.close else ''}")
        return hands.callbacks.get((asked.step, asked.call), CallbackOutput(outcome=None))

    @activity.defn(name=Activity.ARCHIVE_EVENTS)
    async def archive_events(self, asked: ArchiveInput) -> str:
        hands = self._mine()
        hands.ran.append("archive_events")
        ref = blob(f"segment {asked.events[0].seq}")
        hands.archives[ref] = asked.events
        return ref


async def give(reply: Reply) -> ModelOutput | ToolOutput:
    """The reply when it is due; faults are raised."""
    if isinstance(reply, Held):
        reply.entered.set()
        try:
            while not reply.go.is_set():
                if not reply.silent:
                    activity.heartbeat()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reply.go.wait(), BEAT_S)
        except asyncio.CancelledError:
            reply.canceled.set()
            raise
        return await give(reply.reply)
    if isinstance(reply, Fault):
        raise reply.error() from None
    if isinstance(reply, Exception):
        raise reply
    return reply


def blob(text: str) -> BlobRef:
    return BlobRef(sha256_of(text.encode()))


def call(
    number: int,
    tool: str,
    effect: EffectClass = "read",
    *,
    ask: bool = False,
    refuse: str = "",
    kind: RequestKind = "approval",
    action: str = "",
) -> PlannedCall:
    """Call `number` of a turn; `action` makes two calls the same action wherever they stand."""
    digest: Digest = sha256_of((action or f"{tool} {number}").encode())
    return PlannedCall(
        call=number,
        tool=ToolName(tool),
        verdict="refuse" if refuse else "ask" if ask else "run",
        reason=refuse,
        kind=kind,
        effect=effect,
        action_digest=digest,
        args_ref=blob(f"args {tool} {number}"),
        message=f"Calling {tool}",
        title=f"May {tool} run?",
    )


def turn(number: int, *calls: PlannedCall, **more: Any) -> ModelOutput:
    return ModelOutput(turn=number, conversation=blob(f"conversation {number}"), calls=calls, **more)


def final(number: int, size: int = 20, **more: Any) -> ModelOutput:
    return turn(number, final_ref=blob(f"final {number}"), final_bytes=size, **more)


def later(until: datetime | None = None) -> ToolOutput:
    """The tool took the call and answers by a callback, waited for `until` then, or else until the deadline."""
    return ToolOutput(outcome="pending", callback_until=until, message="It answers later.")


def done(message: str = "Done.") -> ToolOutput:
    return ToolOutput(outcome="ok", result_ref=blob(message), message=message)
