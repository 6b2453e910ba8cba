"""Grants, principals and workspaces over HTTP: strict bodies in, rows out. Who may, and what follows, is
gateway/granting.py's."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from facade.documented import refusals
from gateway import granting
from gateway.authority import EVERY, PYTHON_TOOLS, GrantLimits
from gateway.doors import At, By, body_of, json_body, read_body
from gateway.jobrequest import invalid
from gateway.ledger.grants import GrantRow
from gateway.scopes import EVERY_SCOPE
from gateway.strictjson import parse_json
from workflows.contract.errors import ProblemCode as P
from workflows.contract.events import Timestamp
from workflows.contract.ids import PLUGIN_NAME, PRINCIPAL, WORKSPACE, PrincipalId, Workspace
from workflows.policy.deadline import parse_instant

router = APIRouter(prefix="/v1", tags=["grants"])


def _action(value: str) -> str:
    if value not in EVERY_SCOPE and value not in (EVERY, PYTHON_TOOLS):
        raise ValueError("An action is the name of a scope, tools:python, or *")
    return value


def _plugin(value: str) -> str:
    if value != EVERY and not PLUGIN_NAME.fullmatch(value):
        raise ValueError("A plugin is [a-z0-9-]{1,60} or *")
    return value


def _principal(value: str) -> str:
    if not PRINCIPAL.fullmatch(value):
        raise ValueError("A principal is [A-Za-z0-9._:@/+-]{1,120}")
    return value


def _workspace(value: str) -> str:
    if not WORKSPACE.fullmatch(value):
        raise ValueError("A workspace is [a-z0-9-]{1,40}")
    return value


def _instant(value: str) -> str:
    if parse_instant(value) is None:
        raise ValueError("This is RFC 3339 with an offset, such as 2030-01-31T12:00:00Z, or null")
    return value


Principal = Annotated[str, AfterValidator(_principal)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GrantIn(_Body):
    """`actions`: names of scopes, `*` for all of them, and `tools:python`, which `*` does not contain."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "principal": "billing-app",
                    "actions": ["jobs:submit", "jobs:read", "jobs:cancel"],
                    "plugins": ["support-refund"],
                    "limits": {"max_concurrent_jobs": 10, "max_cost_usd": "1.00"},
                    "expires_at": "2030-01-31T12:00:00Z",
                }
            ]
        }
    )

    principal: Principal
    actions: Annotated[tuple[Annotated[str, AfterValidator(_action)], ...], Field(min_length=1, max_length=50)]
    plugins: Annotated[tuple[Annotated[str, AfterValidator(_plugin)], ...], Field(min_length=1, max_length=200)]
    limits: GrantLimits = GrantLimits()
    expires_at: Annotated[str, AfterValidator(_instant)] | None = None

    @property
    def ends(self) -> datetime | None:
        return None if self.expires_at is None else parse_instant(self.expires_at)


class WorkspaceIn(_Body):
    name: Annotated[str, AfterValidator(_workspace)]
    admin: Principal


class Grant(BaseModel):
    grant_id: str
    principal: str
    actions: tuple[str, ...]
    plugins: tuple[str, ...]
    limits: Mapping[str, Any]
    expires_at: Timestamp | None
    by: str
    at: Timestamp
    revoked_at: Timestamp | None

    @classmethod
    def of(cls, row: GrantRow) -> "Grant":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class Grants(BaseModel):
    data: tuple[Grant, ...]


class RevokedKey(BaseModel):
    key_id: str
    revoked_at: Timestamp | None


class RevokedPrincipal(BaseModel):
    """Everything the principal was ever given here, each with when it was taken away."""

    principal: str
    grants: tuple[Grant, ...]
    api_keys: tuple[RevokedKey, ...]


class WorkspaceMade(BaseModel):
    name: str
    admin: str
    grant_id: str
    actions: tuple[str, ...]


_BODY = (P.NOT_PERMITTED, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE)


async def _grant_in(request: Request) -> GrantIn:
    """As JSON: what is an array there is a tuple here."""
    value = parse_json(await json_body(request))
    try:
        return GrantIn.model_validate_json(to_json(value))
    except ValidationError as error:
        raise invalid(error, GrantIn) from None


@router.post(
    "/grants", operation_id="addGrant", status_code=201, responses=refusals(*_BODY), openapi_extra=body_of(GrantIn)
)
async def add_grant(request: Request, doors: At, caller: By) -> Grant:
    """Let a principal do these actions on these plugins, within these limits, until then. Grants add up."""
    asked = await _grant_in(request)
    row = await granting.give(
        doors,
        caller,
        PrincipalId(asked.principal),
        actions=tuple(dict.fromkeys(asked.actions)),
        plugins=tuple(dict.fromkeys(asked.plugins)),
        limits=asked.limits.model_dump(mode="json", exclude_none=True),
        expires_at=asked.ends,
    )
    return Grant.of(row)


@router.get("/grants", operation_id="listGrants", responses=refusals(P.NOT_PERMITTED))
async def list_grants(doors: At, caller: By) -> Grants:
    """Every grant of the workspace, oldest first; revoked and expired ones say so."""
    return Grants(data=tuple(Grant.of(row) for row in await granting.grants(doors, caller)))


@router.delete("/grants/{grant_id}", operation_id="revokeGrant", responses=refusals(P.NOT_PERMITTED, P.NOT_FOUND))
async def revoke_grant(grant_id: str, doors: At, caller: By) -> Grant:
    """Take a grant back. Open jobs that no other grant covers lose their authority for good."""
    return Grant.of(await granting.take_back(doors, caller, grant_id))


@router.delete(
    "/principals/{name:path}", operation_id="revokePrincipal", responses=refusals(P.NOT_PERMITTED, P.NOT_FOUND)
)
async def revoke_principal(name: str, doors: At, caller: By) -> RevokedPrincipal:
    """Take everything from a principal: all its grants and API keys here, and the authority of its open jobs."""
    gone = await granting.banish(doors, caller, name)
    return RevokedPrincipal(
        principal=gone.principal,
        grants=tuple(Grant.of(row) for row in gone.grants),
        api_keys=tuple(RevokedKey(key_id=key.key_id, revoked_at=key.revoked_at) for key in gone.api_keys),
    )


@router.post(
    "/workspaces",
    operation_id="createWorkspace",
    status_code=201,
    responses=refusals(*_BODY, P.WORKSPACE_EXISTS),
    openapi_extra=body_of(WorkspaceIn),
)
async def create_workspace(request: Request, doors: At, caller: By) -> WorkspaceMade:
    """Make a workspace. Its admin may do everything there but decide requests."""
    asked = await read_body(request, WorkspaceIn)
    row = await granting.found_workspace(doors, caller, Workspace(asked.name), PrincipalId(asked.admin))
    return WorkspaceMade(name=row.workspace, admin=row.principal, grant_id=row.grant_id, actions=row.actions)
