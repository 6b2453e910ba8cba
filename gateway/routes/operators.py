"""Operators publish, deploy, release and withdraw. Bodies are read strictly; what they mean is
gateway/plugins.py's and gateway/withdrawing.py's."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from facade.documented import refusals
from gateway import plugins
from gateway.doors import At, By, body_of, json_body, read_body
from gateway.ledger.catalog import PluginVersionRow
from gateway.strictjson import parse_json
from gateway.withdrawing import withdraw
from workflows.contract.errors import ProblemCode as P
from workflows.contract.events import Timestamp
from workflows.contract.gates import Phase

router = APIRouter(prefix="/v1", tags=["operators"])


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PluginFiles(_Body):
    """Path to text; at most 200 files and 1 MiB."""

    files: dict[str, str]


class ReleaseIn(_Body):
    version: Annotated[str, Field(min_length=1, max_length=60)]
    expected_current: Annotated[str, Field(min_length=1, max_length=60)] | None = None


class WithdrawalIn(_Body):
    """`reason` is kept, and shown to operators."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class Published(BaseModel):
    name: str
    version: str
    digest: str


class Version(Published):
    phase: Phase
    published_by: str
    published_at: Timestamp
    withdrawn_at: Timestamp | None
    withdrawn_reason: str | None

    @classmethod
    def of(cls, row: PluginVersionRow, phase: Phase) -> "Version":
        return cls(phase=phase, **{name: getattr(row, name) for name in cls.model_fields if name != "phase"})


class Versions(BaseModel):
    data: tuple[Version, ...]


class Deployed(BaseModel):
    plugin: str
    revision: int
    digest: str


class Released(BaseModel):
    plugin: str
    version: str
    previous: str | None
    revision: int


class ReleaseEntry(Released):
    by: str
    at: Timestamp


class Releases(BaseModel):
    data: tuple[ReleaseEntry, ...]


_BODY = (P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE)
_PLUGIN = (P.NOT_PERMITTED, P.PLUGIN_UNKNOWN)

_DEPLOYMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "deployment.yaml as JSON",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


@router.post(
    "/plugins",
    operation_id="publishPlugin",
    status_code=201,
    response_model=Published,
    responses={
        200: {"model": Published, "description": "This version is published already, with this content."},
        **refusals(P.NOT_PERMITTED, P.VERSION_EXISTS, *_BODY),
    },
    openapi_extra=body_of(PluginFiles),
)
async def publish(request: Request, response: Response, doors: At, caller: By) -> Published:
    """Publish a version. 201; identical again: 200; the same version with other content: 409."""
    asked = await read_body(request, PluginFiles)
    created, bundle = await plugins.publish(doors, caller, asked.files)
    response.status_code = 201 if created else 200
    return Published(name=bundle.manifest.name, version=bundle.manifest.version, digest=bundle.digest)


@router.get("/plugins/{name}/versions", operation_id="listPluginVersions", responses=refusals(*_PLUGIN))
async def versions(name: str, doors: At, caller: By) -> Versions:
    """Every published version, oldest first, with its phase."""
    found = await plugins.versions(doors, caller, plugins.plugin_name(name))
    return Versions(data=tuple(Version.of(row, phase) for row, phase in found))


@router.post(
    "/plugins/{name}/versions/{version}/withdrawal",
    operation_id="withdrawVersion",
    responses=refusals(*_PLUGIN, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    openapi_extra=body_of(WithdrawalIn),
)
async def withdraw_version(name: str, version: str, request: Request, doors: At, caller: By) -> Version:
    """Admit nothing on this version any more, for good. Repeated, the first withdrawal stands."""
    asked = await read_body(request, WithdrawalIn)
    return Version.of(*await withdraw(doors, caller, plugins.plugin_name(name), version, asked.reason))


@router.put(
    "/plugins/{name}/deployment",
    operation_id="deployPlugin",
    responses=refusals(*_PLUGIN, P.BLOCKED, *_BODY),
    openapi_extra=_DEPLOYMENT,
)
async def deploy(name: str, request: Request, doors: At, caller: By) -> Deployed:
    """How this workspace runs the plugin: a new revision, checked against the released or newest version."""
    body = parse_json(await json_body(request))
    row = await plugins.deploy(doors, caller, plugins.plugin_name(name), body)
    return Deployed(plugin=row.plugin, revision=row.revision, digest=row.digest)


@router.put(
    "/plugins/{name}/release",
    operation_id="setRelease",
    responses=refusals(*_PLUGIN, P.RELEASE_CONFLICT, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    openapi_extra=body_of(ReleaseIn),
)
async def release(name: str, request: Request, doors: At, caller: By) -> Released:
    """Point the plugin to a version; what runs already is not affected."""
    asked = await read_body(request, ReleaseIn)
    row = await plugins.release(doors, caller, plugins.plugin_name(name), asked.version, asked.expected_current)
    return Released(plugin=row.plugin, version=row.version, previous=row.previous, revision=row.revision)


@router.get("/plugins/{name}/releases", operation_id="listReleases", responses=refusals(*_PLUGIN))
async def releases(name: str, doors: At, caller: By) -> Releases:
    """Every release, newest first."""
    rows = await plugins.releases(doors, caller, plugins.plugin_name(name))
    return Releases(
        data=tuple(
            ReleaseEntry(
                plugin=row.plugin,
                version=row.version,
                previous=row.previous,
                revision=row.revision,
                by=row.by,
                at=row.at,
            )
            for row in rows
        )
    )
