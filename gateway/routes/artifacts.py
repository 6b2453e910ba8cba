"""Artifacts over HTTP: upload, an address for a minute, the bytes behind it; and erasing a job's content."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from facade.clock import move_clock
from facade.documented import AT_THE_DOOR, refusals
from facade.views import ArtifactAnswer, artifact_url
from gateway.artifacts import NO_STORE, download_headers
from gateway.content import erase_content
from gateway.doors import Anybody, At, By, need_scope
from gateway.scopes import Action
from workflows.contract.errors import ProblemCode as P
from workflows.contract.errors import Refused
from workflows.contract.events import Timestamp

router = APIRouter(tags=["artifacts"])

UPLOAD_S = 600.0
"""Also what a slow line needs for 50 MiB; who sends nothing for ten seconds is not waited for."""
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
_LOCATION: dict[str, Any] = {"Location": {"description": "Good for 60 seconds.", **_TEXT}, "Cache-Control": _TEXT}
_SAVED: dict[str, Any] = dict.fromkeys(
    ("Content-Disposition", "Cache-Control", "X-Content-Type-Options", "Content-Security-Policy", "Referrer-Policy"),
    _TEXT,
)


class ErasedAnswer(BaseModel):
    """Since when the job's content is gone; the same for ever."""

    job_id: str
    erased_at: Timestamp


@router.post(
    "/v1/artifacts",
    operation_id="uploadArtifact",
    status_code=201,
    response_model=ArtifactAnswer,
    responses={
        201: {"description": "Kept.", "headers": {"Location": _TEXT}},
        **refusals(P.NOT_PERMITTED, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _BYTES}}},
)
async def upload(
    request: Request, doors: At, caller: By, name: Annotated[str, Query(description="Text for people.")] = ""
) -> Response:
    """Keep the raw bytes of the body, at most 50 MiB, for the input of jobs; Content-Type is kept with them."""
    need_scope(caller, Action.JOBS_SUBMIT)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        raise Refused(P.UNSUPPORTED_MEDIA_TYPE, "Send the bytes themselves as the body, not a form.")
    move_clock(request.scope, UPLOAD_S)
    row = await doors.artifacts.upload(caller, name, media_type, request.stream())
    url = artifact_url(row.artifact_id)
    answer = ArtifactAnswer(
        artifact_id=row.artifact_id,
        name=row.name,
        bytes=row.bytes,
        media_type=row.media_type,
        digest=row.digest,
        url=url,
    )
    return Response(answer.model_dump_json(), 201, {"Location": url}, "application/json")


@router.get(
    "/v1/artifacts/{artifact_id}",
    operation_id="getArtifact",
    status_code=302,
    response_class=Response,
    responses={
        302: {"description": "Where the bytes are, for a minute.", "headers": _LOCATION},
        **refusals(P.NOT_PERMITTED, P.NOT_FOUND, P.JOB_EXPIRED),
    },
)
async def locate(artifact_id: str, doors: At, caller: By) -> Response:
    """An address for the bytes, after authorising again."""
    address = await doors.artifacts.address(caller, artifact_id)
    return Response(status_code=302, headers={"Location": address, "Cache-Control": NO_STORE})


@router.get(
    "/v1/artifacts/{artifact_id}/content",
    operation_id="downloadArtifact",
    response_class=Response,
    responses={
        200: {
            "description": "The bytes, to be saved.",
            "content": {"application/octet-stream": _BYTES},
            "headers": _SAVED,
        },
        **refusals(
            P.NOT_PERMITTED,
            P.NOT_FOUND,
            P.LEDGER_UNAVAILABLE,
            P.BLOBS_UNAVAILABLE,
            P.HTTP_DEADLINE_EXCEEDED,
            *AT_THE_DOOR,
            public=True,
        ),
    },
    dependencies=[Anybody],
)
async def download(artifact_id: str, request: Request, doors: At, expires: str = "", signature: str = "") -> Response:
    """The bytes behind an address that was signed here; the address is all the proof."""
    row, pieces = await doors.artifacts.behind(artifact_id, expires, signature)
    headers = {**download_headers(row), "Content-Length": str(row.bytes), **_HARMLESS}
    return StreamingResponse(pieces, headers=headers)


_HARMLESS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Referrer-Policy": "no-referrer",
}


@router.delete(
    "/v1/jobs/{job_id}/content",
    operation_id="eraseContent",
    tags=["jobs"],
    response_model=ErasedAnswer,
    responses=refusals(P.NOT_PERMITTED, P.NOT_FOUND, P.JOB_NOT_ENDED, P.ADMISSION_UNKNOWN),
)
async def erase(job_id: str, doors: At, caller: By) -> Response:
    """Erase what a job that has ended holds: input, conversation, results, artifacts. Receipt and audit stay."""
    erased_at = await erase_content(doors, caller, job_id)
    return Response(ErasedAnswer(job_id=job_id, erased_at=erased_at).model_dump_json(), media_type="application/json")
