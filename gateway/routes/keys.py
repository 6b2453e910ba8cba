"""API keys over HTTP: made and shown once, listed without their secret, revoked. What that means is
gateway/issuing.py's."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from facade.documented import refusals
from gateway import issuing
from gateway.doors import At, By, body_of, read_body
from gateway.ledger.api_keys import ApiKeyRow
from gateway.routes.grants import Principal
from gateway.scopes import Action
from gateway.tokens import GROUP
from workflows.contract.errors import ProblemCode as P
from workflows.contract.errors import Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import PrincipalId
from workflows.policy.deadline import parse_instant

router = APIRouter(prefix="/v1/api-keys", tags=["grants"])

Scope = Annotated[Action, Field(strict=False)]
Group = Annotated[str, Field(pattern=f"^{GROUP.pattern}$")]


class ApiKeyIn(BaseModel):
    """`scopes` null: those of the caller's own credential. `groups` count as those of a signed token do."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"principal": "billing-app", "scopes": ["jobs:submit", "jobs:read"], "expires_at": None}]
        },
    )

    principal: Principal
    scopes: Annotated[list[Scope], Field(max_length=50)] | None = None
    groups: Annotated[list[Group], Field(max_length=50)] = Field(default_factory=list[str])
    expires_at: str | None = None


class ApiKeyMade(BaseModel):
    """The only answer that holds the key."""

    key_id: str
    key: str
    principal: str
    scopes: tuple[str, ...]
    groups: tuple[str, ...]
    expires_at: Timestamp | None


class ApiKey(BaseModel):
    key_id: str
    principal: str
    scopes: tuple[str, ...]
    groups: tuple[str, ...]
    expires_at: Timestamp | None
    by: str
    at: Timestamp
    revoked_at: Timestamp | None

    @classmethod
    def of(cls, row: ApiKeyRow) -> "ApiKey":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class ApiKeys(BaseModel):
    data: tuple[ApiKey, ...]


@router.post(
    "",
    operation_id="createApiKey",
    status_code=201,
    responses={
        201: {"headers": {"Cache-Control": {"description": "`no-store`.", "schema": {"type": "string"}}}},
        **refusals(P.NOT_PERMITTED, P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE),
    },
    openapi_extra=body_of(ApiKeyIn),
)
async def create_api_key(request: Request, response: Response, doors: At, caller: By) -> ApiKeyMade:
    """Make a key that acts as a principal. It is shown in this answer and never again."""
    asked = await read_body(request, ApiKeyIn)
    ends = None if asked.expires_at is None else parse_instant(asked.expires_at)
    if ends is None and asked.expires_at is not None:
        raise Refused(P.INPUT_INVALID, "expires_at: RFC 3339 with an offset, such as 2030-01-31T12:00:00Z, or null.")
    minted, new = await issuing.issue(
        doors,
        caller,
        PrincipalId(asked.principal),
        scopes=None if asked.scopes is None else [scope.value for scope in asked.scopes],
        groups=asked.groups,
        expires_at=ends,
    )
    response.headers["Cache-Control"] = "no-store"
    return ApiKeyMade(
        key_id=new.key_id,
        key=minted.text,
        principal=new.principal,
        scopes=new.scopes,
        groups=new.groups,
        expires_at=new.expires_at,
    )


@router.get("", operation_id="listApiKeys", responses=refusals(P.NOT_PERMITTED))
async def list_api_keys(doors: At, caller: By) -> ApiKeys:
    """Every key of the workspace, oldest first, without its secret; revoked and expired ones say so."""
    return ApiKeys(data=tuple(ApiKey.of(row) for row in await issuing.issued(doors, caller)))


@router.delete("/{key_id}", operation_id="revokeApiKey", responses=refusals(P.NOT_PERMITTED, P.NOT_FOUND))
async def revoke_api_key(key_id: str, doors: At, caller: By) -> ApiKey:
    """Revoke a key, at once and for good; open jobs that it submitted lose their authority."""
    return ApiKey.of(await issuing.revoke(doors, caller, key_id))
