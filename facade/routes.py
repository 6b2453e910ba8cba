"""The reading routes: HTTP in, one call of the window, HTTP out. Authentication is handed in by gateway/app.py."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, JsonValue
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from facade.clock import move_clock, time_left
from facade.cursors import Cursor, read_cursor, read_place
from facade.documented import JOB, refusals
from facade.reader import Viewer
from facade.requests import inbox, request_answer
from facade.sessions import Sessions
from facade.stream import StreamRules, stream_of
from facade.views import Inbox, JobAnswer, JobList, Readiness, RequestAnswer, Rung
from facade.watch import Watch
from facade.window import JobFilter, Published, Window
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PLUGIN_NAME, SESSION, JobId, PluginName, RequestId
from workflows.contract.job import Status

T = TypeVar("T")

router = APIRouter()

NEEDED_TO_ACCEPT = frozenset({"engine", "ledger", "blobs", "process"})
"""The rungs without which readyz is 503; a missing worker only delays jobs."""


class Serving(BaseModel, arbitrary_types_allowed=True):
    """What gateway/app.py hands in, as `app.state.serving`."""

    window: Window
    sessions: Sessions
    authenticate: Callable[[Request], Awaitable[Viewer]]
    stream: StreamRules
    wait_max_s: float


async def _serving(request: Request) -> Serving:
    return cast(Serving, request.app.state.serving)


Handed = Annotated[Serving, Depends(_serving)]


async def _viewer(request: Request, serving: Handed) -> Viewer:
    return await serving.authenticate(request)


async def _window(serving: Handed) -> Window:
    return serving.window


By = Annotated[Viewer, Depends(_viewer)]
Open = Annotated[Window, Depends(_window)]
After = Annotated[str | None, Query(description="A cursor; events after it. `0`: from the start.")]
Limit = Annotated[int, Query(ge=1, le=500)]
LastEventId = Annotated[str | None, Header(description="The id of the last event that was received.")]
_PREFERENCE_APPLIED = {
    "Preference-Applied": {"description": "The wait that was granted.", "schema": {"type": "string"}}
}
_AT_ARTIFACT = {
    "description": "The result is an artifact.",
    "headers": {"Location": {"description": "The artifact.", "schema": {"type": "string"}}},
}
Prefer = Annotated[str | None, Header(description="`wait=20`: with `after`, wait so many seconds for news.")]


@router.get(
    "/v1/jobs/{job_id}",
    operation_id="getJob",
    tags=["jobs"],
    response_model=JobAnswer,
    responses={200: {"headers": _PREFERENCE_APPLIED}, **refusals(*JOB, ProblemCode.CURSOR_INVALID)},
)
async def get_job(
    job_id: JobId,
    request: Request,
    serving: Handed,
    viewer: By,
    after: After = None,
    limit: Limit = 100,
    prefer: Prefer = None,
) -> Response:
    """The job as it is now; with `after` also its events, with `Prefer: wait` as soon as there are any."""
    window, wait_s = serving.window, _wait_of(prefer, serving.wait_max_s)
    if after is None:
        return _json(await window.job(viewer, job_id))
    if not wait_s:
        return _json(await window.job_after(viewer, job_id, read_cursor(after), limit))
    move_clock(request.scope, time_left(request.scope) + wait_s)
    later = window.job_once_later(viewer, job_id, read_cursor(after), limit, wait_s)
    return _json(await _unless_gone(request, later), {"Preference-Applied": f"wait={wait_s}"})


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """The answer, or ClientDisconnect as soon as nobody waits for it any more: a server goes on where a client left."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving, asking = asyncio.create_task(gone()), asyncio.create_task(answer)
    try:
        await asyncio.wait({leaving, asking}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise ClientDisconnect
        return asking.result()
    finally:
        leaving.cancel()
        asking.cancel()
        await asyncio.gather(leaving, asking, return_exceptions=True)


async def _resumed(request: Request, after: After = None, last_event_id: LastEventId = None) -> Cursor:
    """`Last-Event-ID` wins: a browser that reconnects repeats the first URL."""
    given = last_event_id if last_event_id is not None else after
    return read_cursor(given if given is not None else "0")


Resumed = Annotated[Cursor, Depends(_resumed)]


async def _watch(job_id: JobId, window: Open, viewer: By, cursor: Resumed) -> AsyncGenerator[Watch]:
    """Held until the response is over, however it ends."""
    async with window.watched(viewer, job_id, cursor) as watch:
        yield watch


@router.get(
    "/v1/jobs/{job_id}/events",
    operation_id="streamEvents",
    tags=["jobs"],
    response_class=Response,
    responses={
        200: {
            "description": "id = cursor, event = type, data = the event; comments are pings.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **refusals(*JOB, ProblemCode.CURSOR_INVALID),
    },
)
async def stream_events(
    job_id: JobId,
    request: Request,
    serving: Handed,
    viewer: By,
    cursor: Resumed,
    watch: Annotated[Watch, Depends(_watch)],
) -> Response:
    """The job's events as they happen, from a cursor on; ends after the terminal event."""
    move_clock(request.scope, None)
    return stream_of(watch, cursor, _may_still_read(request, serving, viewer, job_id), serving.stream)


def _may_still_read(request: Request, serving: Serving, viewer: Viewer, job_id: JobId) -> Callable[[], Awaitable[bool]]:
    """Asked at every ping: the credential proves its caller still, and the caller may still read the job."""
    allowed = serving.window.may_still_read(viewer, job_id)

    async def ask() -> bool:
        try:
            await serving.authenticate(request)
        except Refused as refused:
            return refused.problem.status >= 500
        return await allowed()

    return ask


@router.get(
    "/v1/jobs/{job_id}/result",
    operation_id="getResult",
    tags=["jobs"],
    response_model=JsonValue,
    responses={302: _AT_ARTIFACT, **refusals(*JOB, ProblemCode.JOB_NOT_ENDED)},
)
async def get_result(job_id: JobId, window: Open, viewer: By) -> Response:
    """The result of a job that succeeded; one over 32 KiB is an artifact."""
    result = await window.result(viewer, job_id)
    if isinstance(result, Published):
        return Response(status_code=302, headers={"Location": result.url})
    return Response(to_json(result), media_type="application/json")


@router.get(
    "/v1/jobs",
    operation_id="listJobs",
    tags=["jobs"],
    response_model=JobList,
    responses=refusals(ProblemCode.NOT_PERMITTED, ProblemCode.CURSOR_INVALID),
)
async def list_jobs(
    request: Request,
    window: Open,
    viewer: By,
    status: Annotated[Status | None, Query()] = None,
    session: Annotated[str | None, Query(pattern=f"^{SESSION.pattern}$")] = None,
    plugin: Annotated[str | None, Query(pattern=f"^{PLUGIN_NAME.pattern}$")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Response:
    """Jobs of the workspace, newest first. A page may hold fewer than `limit` and still have more behind it."""
    wanted = JobFilter(status, session, PluginName(plugin) if plugin is not None else None)
    return _json(await window.jobs(viewer, wanted, None if after is None else read_place(after), limit))


@router.get(
    "/v1/requests",
    operation_id="listRequests",
    tags=["requests"],
    response_model=Inbox,
    responses=refusals(ProblemCode.NOT_PERMITTED),
)
async def list_requests(
    window: Open, viewer: By, state: Annotated[str, Query(pattern="^pending$")] = "pending"
) -> Response:
    """Open requests of the workspace; the list may lag by a second or two."""
    return _json(await inbox(window, viewer))


@router.get(
    "/v1/jobs/{job_id}/requests/{request_id}",
    operation_id="getRequest",
    tags=["requests"],
    response_model=RequestAnswer,
    responses=refusals(*JOB),
)
async def get_request(job_id: JobId, request_id: RequestId, window: Open, viewer: By) -> Response:
    """All that a person needs to decide: who may, by when, and the exact arguments."""
    return _json(await request_answer(window, viewer, job_id, request_id))


@router.get("/livez", operation_id="livez", tags=["health"], responses=refusals(public=True))
async def livez() -> dict[str, bool]:
    """This process answers; it says nothing of the parts behind it."""
    return {"live": True}


@router.get(
    "/readyz",
    operation_id="readyz",
    tags=["health"],
    response_model=Readiness,
    responses=refusals(
        ProblemCode.ENGINE_UNAVAILABLE,
        ProblemCode.LEDGER_UNAVAILABLE,
        ProblemCode.BLOBS_UNAVAILABLE,
        ProblemCode.HTTP_DEADLINE_EXCEEDED,
        ProblemCode.STOPPING,
        public=True,
    ),
)
async def readyz(window: Open) -> Response:
    """200 when a submission can be accepted now; every rung is named, unknown is not yes."""
    rungs = tuple(Rung(rung=one.rung, ok=one.ok, detail=one.detail) for one in await window.health())
    missing = [rung.rung for rung in rungs if rung.rung in NEEDED_TO_ACCEPT and not rung.ok]
    if missing:
        shown = [rung.model_dump(mode="json") for rung in rungs]
        raise Refused(_UNAVAILABLE[missing[0]], f"Not ready: {', '.join(missing)}.", ready=False, rungs=shown)
    return _json(Readiness(ready=True, rungs=rungs))


_UNAVAILABLE = {
    "engine": ProblemCode.ENGINE_UNAVAILABLE,
    "ledger": ProblemCode.LEDGER_UNAVAILABLE,
    "blobs": ProblemCode.BLOBS_UNAVAILABLE,
    "process": ProblemCode.STOPPING,
}


def _json(answer: BaseModel, headers: dict[str, str] | None = None) -> Response:
    return Response(answer.model_dump_json(), headers=headers, media_type="application/json")


def _wait_of(prefer: str | None, longest: float) -> int:
    """RFC 7240: a preference that can not be read is ignored."""
    for preference in (prefer or "").split(","):
        name, _, value = preference.partition(";")[0].strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isascii() and value.strip().isdigit():
            return min(int(value.strip()[:9]), int(longest))
    return 0
