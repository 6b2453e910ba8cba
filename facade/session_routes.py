"""The reading routes of sessions: HTTP in, one call, HTTP out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from facade.documented import refusals
from facade.routes import By, Handed
from facade.sessions import MessageList, SessionAnswer, Sessions
from workflows.contract.errors import ProblemCode

router = APIRouter(tags=["sessions"])


async def _sessions(serving: Handed) -> Sessions:
    return serving.sessions


Open = Annotated[Sessions, Depends(_sessions)]


@router.get(
    "/v1/sessions/{session}",
    operation_id="getSession",
    response_model=SessionAnswer,
    responses=refusals(ProblemCode.NOT_PERMITTED, ProblemCode.NOT_FOUND),
)
async def get_session(session: str, sessions: Open, viewer: By) -> Response:
    """What a session is bound to, its jobs, and which of them is open. Needs `sessions:read` or `jobs:read`."""
    return Response((await sessions.show(viewer, session)).model_dump_json(), media_type="application/json")


@router.get(
    "/v1/sessions/{session}/messages",
    operation_id="listMessages",
    response_model=MessageList,
    responses=refusals(ProblemCode.NOT_PERMITTED, ProblemCode.NOT_FOUND, ProblemCode.CURSOR_INVALID),
)
async def list_messages(
    session: str,
    sessions: Open,
    viewer: By,
    after: Annotated[str | None, Query(description="A cursor; messages after it. `0`: from the start.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """What users and the model said to each other, oldest first. Needs `sessions:read`."""
    page = await sessions.messages(viewer, session, after, limit)
    return Response(page.model_dump_json(), media_type="application/json")
