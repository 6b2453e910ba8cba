"""Operators let one held job run as a canary: propose, approve, look, revoke. What a packet may: gateway/packets.py."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from facade.documented import refusals
from facade.views import JobAnswer
from gateway import packets
from gateway.doors import At, By, body_of, read_body
from gateway.packets import PacketState
from workflows.contract.errors import ProblemCode as P
from workflows.contract.events import Timestamp
from workflows.contract.job import Status

router = APIRouter(prefix="/v1/packets", tags=["packets"])

DAY_S = 86_400
MAX_STEPS = 1000
"""A canary stays in the run that redeemed its packet, so its whole history has to fit into one."""


class PacketIn(BaseModel):
    """One held job, the read-only tools it may call, how many steps, and how long the packet may wait (seconds)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"job_id": "k-123", "allowed_tools": ["invoices.get"], "max_steps": 10, "expires_in_seconds": 3600}
            ]
        },
    )

    job_id: Annotated[str, Field(min_length=1, max_length=200)]
    allowed_tools: Annotated[tuple[str, ...], Field(strict=False, max_length=128)] = ()
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    expires_in_seconds: Annotated[int, Field(ge=1, le=7 * DAY_S)]


class PacketMoved(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"packet_id": "packet_7d31", "state": "proposed"}]})

    packet_id: str
    state: PacketState


class ProofAnswer(BaseModel):
    """What the canary job showed; `read_back` is what its app sees."""

    status: Status
    result_digest: str | None
    tools: tuple[str, ...]
    read_back: JobAnswer


class PacketAnswer(PacketMoved):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "packet_id": "packet_7d31",
                    "state": "approved",
                    "job_id": "k-123",
                    "plugin": "support-refund",
                    "version": "1.0.0",
                    "digest": "sha256:" + "4f" * 32,
                    "allowed_tools": ["invoices.get"],
                    "max_steps": 10,
                    "author": "operator",
                    "created_at": "2030-01-02T03:04:05Z",
                    "expires_at": "2030-01-02T04:04:05Z",
                    "approved_by": "boss",
                    "approved_at": "2030-01-02T03:06:00Z",
                    "redeemed_at": None,
                    "revoked_at": None,
                    "proof": None,
                }
            ]
        }
    )

    job_id: str
    plugin: str
    version: str
    digest: str
    allowed_tools: tuple[str, ...]
    max_steps: int
    author: str
    created_at: Timestamp
    expires_at: Timestamp
    approved_by: str | None
    approved_at: Timestamp | None
    redeemed_at: Timestamp | None
    revoked_at: Timestamp | None
    proof: ProofAnswer | None


_ONE = (P.NOT_PERMITTED, P.NOT_FOUND)


@router.post(
    "",
    operation_id="proposePacket",
    status_code=201,
    responses=refusals(*_ONE, P.GATE_NOT_MET, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    openapi_extra=body_of(PacketIn),
)
async def propose(request: Request, doors: At, caller: By) -> PacketMoved:
    """Propose to let one held job run once, as a canary."""
    asked = await read_body(request, PacketIn)
    row = await packets.propose_packet(
        doors, caller, asked.job_id, asked.allowed_tools, asked.max_steps, asked.expires_in_seconds
    )
    return PacketMoved(packet_id=row.packet_id, state="proposed")


@router.post(
    "/{packet_id}/approval",
    operation_id="approvePacket",
    responses=refusals(*_ONE, P.SELF_APPROVAL, P.PACKET_SPENT, P.GATE_NOT_MET),
)
async def approve(packet_id: str, doors: At, caller: By) -> PacketMoved:
    """Approve somebody else's packet; the job it names then runs, once."""
    row = await packets.approve_it(doors, caller, packet_id)
    return PacketMoved(packet_id=row.packet_id, state="approved")


@router.get("/{packet_id}", operation_id="getPacket", responses=refusals(*_ONE))
async def show(packet_id: str, request: Request, doors: At, caller: By) -> PacketAnswer:
    """Its state, and when its job has ended what that job showed."""
    packet = await packets.look_at(doors, request.app.state.serving.window, caller, packet_id)
    shown = None if packet.proof is None else ProofAnswer.model_validate(vars(packet.proof))
    facts = {**vars(packet.row), "created_at": packet.row.at, "state": packet.state, "proof": shown}
    return PacketAnswer.model_validate(facts)


@router.delete("/{packet_id}", operation_id="revokePacket", responses=refusals(*_ONE, P.PACKET_SPENT))
async def revoke(packet_id: str, doors: At, caller: By) -> PacketMoved:
    """Take it back before it is redeemed."""
    row = await packets.revoke_it(doors, caller, packet_id)
    return PacketMoved(packet_id=row.packet_id, state="revoked")
