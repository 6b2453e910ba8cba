"""GET /metrics: what this process counted, as Prometheus text."""

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from facade.documented import refusals
from gateway.doors import At, By, permit
from gateway.ledger.effects import count_sent_after_stop
from gateway.scopes import Action
from workflows.contract.errors import ProblemCode

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **refusals(ProblemCode.NOT_PERMITTED),
    },
)
async def metrics(doors: At, caller: By) -> Response:
    """Counters and gauges of this API process, and what the ledger counts for all (scope operator:read)."""

    def read(conn: Connection) -> int:
        permit(caller, conn, Action.OPERATOR_READ)
        return count_sent_after_stop(conn)

    doors.telemetry.metrics.sent_after_stop(await doors.ledger.read(read))
    text, kind = doors.telemetry.metrics.render()
    return Response(text, headers={"Content-Type": kind})
