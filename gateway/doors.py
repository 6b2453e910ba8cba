"""What one gateway process holds open, and who is calling: the parts that routes are handed, built in one place.

A route takes `At` (the open doors) and `By` (the verified caller) and never builds either. No switch turns
authentication off.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar, cast

import structlog
from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection

from facade.clock import ARRIVED
from gateway.admission import Admission
from gateway.allowlist import CredentialPolicy
from gateway.apikeys import is_api_key, named_in, prove_api_key
from gateway.artifacts import Artifacts
from gateway.authority import Denied, decide
from gateway.blobs import Blobs
from gateway.callbacks import Callbacks
from gateway.changes import Changes
from gateway.jobrequest import invalid
from gateway.judging import Judge
from gateway.jwks import published_keys
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.presence import NewProcess
from gateway.places import PLACE, Kind, Places, Who, kind_of
from gateway.presence import Presence, present, process_of
from gateway.scopes import Action, Caller
from gateway.seams import watched
from gateway.settings import Settings
from gateway.signed_paths import SignedPaths
from gateway.snapshots import Snapshots
from gateway.strictjson import parse_json
from gateway.telemetry import Telemetry
from gateway.temporal import Engine, connect
from gateway.tokens import DevelopmentKey, TokenVerifier, bearer_of
from gateway.tracing import TraceContext
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PluginName
from workflows.policy.deadline import parse_instant

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Doors:
    settings: Settings
    telemetry: Telemetry
    ledger: Ledger
    blobs: Blobs
    snapshots: Snapshots
    engine: Engine
    judge: Judge
    admission: Admission
    changes: Changes
    callbacks: Callbacks
    artifacts: Artifacts
    verifier: TokenVerifier
    places: Places
    process: NewProcess
    """This very process, as its presence tells it."""
    presence: Presence


@asynccontextmanager
async def open_doors(settings: Settings, telemetry: Telemetry) -> AsyncGenerator[Doors]:
    """Opens everything and closes it in reverse. Neither engine nor ledger must answer yet: `readyz` says whether."""
    async with AsyncExitStack() as stack:
        ledger = Ledger.open(settings.ledger_url)
        stack.push_async_callback(ledger.close)
        blobs = Blobs.open(settings.blobs_url)
        snapshots = Snapshots(blobs)
        engine = Engine(await connect(settings, [TraceContext()]), settings)
        credentials = CredentialPolicy.load(settings)
        judge = Judge(ledger, snapshots, credentials, settings)
        admission = Admission(ledger, judge, engine, telemetry.metrics, settings.workspace_open_jobs)
        stack.push_async_callback(admission.close)
        changes = Changes(ledger, engine, settings.sweep_s)
        sweeping = asyncio.create_task(changes.run())
        stack.callback(sweeping.cancel)
        verifier = await stack.enter_async_context(verifier_of(settings))
        metrics = telemetry.metrics
        places = Places(settings, lambda kind, why: metrics.refused.add(1, {"kind": kind, "why": why}))
        metrics.watch_places(places.figures)
        process = process_of(settings, "api")
        presence = await stack.enter_async_context(present(ledger, process, telemetry.warnings, settings.presence_s))
        yield Doors(
            settings=settings,
            telemetry=telemetry,
            ledger=ledger,
            blobs=blobs,
            snapshots=snapshots,
            engine=engine,
            judge=judge,
            admission=admission,
            changes=changes,
            callbacks=Callbacks(ledger, blobs, snapshots, engine, credentials),
            artifacts=Artifacts(ledger, blobs, SignedPaths.load(settings.data), settings.data),
            verifier=verifier,
            places=places,
            process=process,
            presence=presence,
        )


@asynccontextmanager
async def verifier_of(settings: Settings) -> AsyncGenerator[TokenVerifier]:
    """Tokens are verified by the published keys, else by the one in the data folder; in development by both."""
    if settings.jwks_url is None:
        yield TokenVerifier(DevelopmentKey.load(settings.data), issuer=settings.issuer, audience=settings.audience)
        return
    own = DevelopmentKey.load(settings.data) if settings.development else None
    async with published_keys(settings.jwks_url, refresh_s=settings.jwks_refresh_s, own=own) as keys:
        yield TokenVerifier(keys, issuer=settings.issuer, audience=settings.audience)


async def _doors(request: Request) -> Doors:  # async: FastAPI runs plain functions in a thread
    return cast(Doors, request.app.state.doors)


At = Annotated[Doors, Depends(_doors)]


async def _caller(request: Request, doors: At) -> Caller:
    return await caller_of(request, doors)


async def caller_of(request: Request, doors: Doors) -> Caller:
    """The caller whom the one Authorization header proves, named from now on in every log line of the request, and
    with a place to be served at.

    Raises Refused(UNAUTHENTICATED), 503 where what proves it does not answer, 504 where the caller's clock ends first,
    and as `take_place` does.
    """
    given = request.headers.getlist("authorization")
    credential = bearer_of(given[0] if len(given) == 1 else None)
    try:
        async with asyncio.timeout_at(_told_clock(request, doors.settings)):
            if is_api_key(credential):
                caller = await _proved(request, doors, credential)
            else:
                caller = await doors.verifier.verify(credential)
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED,
            "The request clock ran out before the caller was known: nothing started.",
        ) from None
    structlog.contextvars.bind_contextvars(
        principal=caller.principal, workspace=caller.workspace, token_id=caller.token_id
    )
    await take_place(request, doors, (caller.workspace, caller.principal))
    return caller


By = Annotated[Caller, Depends(_caller)]


async def _proved(request: Request, doors: Doors, credential: str) -> Caller:
    """By the ledger, which many with one key, or with none that there is, must not keep from others."""
    place = await doors.places.enter(Kind.KEYS, ("key", named_in(credential)), _clock(request, doors.settings))
    try:
        return await prove_api_key(doors.ledger, credential)
    finally:
        place.leave()


async def take_place(request: Request, doors: Doors, who: Who) -> None:
    """Once for a request; the envelope gives it back. What a smoke asks is asked from its own place. Raises Refused:
    429 too-many-requests, 503 stopping; then nothing was done."""
    if PLACE in request.scope or watched():
        return
    request.scope[PLACE] = await doors.places.enter(kind_of(request), who, _clock(request, doors.settings))


async def _anybody(request: Request, doors: At) -> None:
    await take_place(request, doors, None)


Anybody = Depends(_anybody)
"""Of a route that asks for no caller."""


async def json_body(request: Request, until: float | None = None) -> bytes:
    """The body of a request that must be JSON, come by `until` (event loop time). Raises Refused: 415, 504."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(ProblemCode.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json.")
    try:
        async with asyncio.timeout_at(until):
            return await request.body()
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out before the body had come: nothing started."
        ) from None


async def read_body(request: Request, model: type[Body], until: float | None = None) -> Body:
    """A strict JSON body of this shape. Raises Refused(INPUT_INVALID) naming the field and the rule."""
    value = parse_json(await json_body(request, until))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error, model) from None


def body_of(model: type[BaseModel]) -> dict[str, object]:
    """The OpenAPI part of a body that `read_body` reads."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def permit(
    caller: Caller, conn: Connection, action: Action, plugin: PluginName | None = None, *, now: datetime | None = None
) -> None:
    """Inside a ledger transaction: the caller may do this, by scope and grant, or Refused(NOT_PERMITTED)."""
    moment = now or datetime.now(UTC)
    grants = grants_of(conn, caller.workspace, caller.principal, moment)
    verdict = decide(caller, grants, action, plugin, moment)
    if isinstance(verdict, Denied):
        raise Refused(ProblemCode.NOT_PERMITTED, verdict.reason)


def need_scope(caller: Caller, action: Action) -> None:
    """The part of `permit` that needs no ledger: said before anything is parsed or looked up."""
    if action not in caller.scopes:
        raise Refused(ProblemCode.NOT_PERMITTED, f"The credential lacks the scope {action.value}.")


def _told_clock(request: Request, settings: Settings) -> float | None:
    """The end of the clock that the request names; None where it names none, or a bad one, as its route will say."""
    if "jobgate-http-deadline" not in request.headers:
        return None
    try:
        return request_clock(request, settings)
    except Refused:
        return None


def _clock(request: Request, settings: Settings) -> float:
    return _told_clock(request, settings) or _usual_clock(request, settings)


def request_clock(request: Request, settings: Settings) -> float:
    """The end of this request's clock in event loop time. Raises Refused: 422 for a bad header, 504 when it is past."""
    given = request.headers.getlist("jobgate-http-deadline")
    if not given:
        return _usual_clock(request, settings)
    instant = parse_instant(given[0]) if len(given) == 1 else None
    if instant is None:
        raise Refused(ProblemCode.INPUT_INVALID, "Jobgate-Http-Deadline: one RFC 3339 instant with an offset.")
    left = (instant - datetime.now(UTC)).total_seconds()
    if left > settings.http_deadline_max_s:
        raise Refused(
            ProblemCode.INPUT_INVALID,
            f"Jobgate-Http-Deadline: at most {settings.http_deadline_max_s:g} seconds ahead.",
        )
    if left <= 0:
        raise Refused(ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock had run out: nothing started.")
    return asyncio.get_running_loop().time() + left


def _usual_clock(request: Request, settings: Settings) -> float:
    return request.scope[ARRIVED] + settings.http_deadline_s
