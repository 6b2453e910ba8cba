"""The HTTP root: opens the doors, hands them to the routes, and puts the envelope around all of it.

Nothing is decided here, and the order of the routes does not matter.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query

from facade import routes as reads
from facade import session_routes
from facade.routes import Serving
from facade.sessions import Sessions
from facade.sight import Sight
from facade.stream import StreamRules
from facade.watch import Watchers
from facade.window import Window
from gateway.doors import Doors, caller_of, open_doors
from gateway.envelope import Envelope
from gateway.health import health, one_at_a_time
from gateway.jobrequest import JobRequest, RetryIn
from gateway.openapi import describe
from gateway.problems import install_problems
from gateway.reading import GatewayReader
from gateway.routes import (
    artifacts,
    audit,
    callbacks,
    decisions,
    grants,
    inspect,
    jobs,
    keys,
    metrics,
    operators,
    packets,
    previews,
    promotions,
    readiness,
    smokes,
    usage,
)
from gateway.scopes import Caller
from gateway.session_reads import SessionReads
from gateway.settings import Settings
from gateway.telemetry import Telemetry
from workflows.contract.errors import ProblemCode, Refused

BODIES = (
    JobRequest,
    RetryIn,
    operators.PluginFiles,
    operators.ReleaseIn,
    packets.PacketIn,
    promotions.PromotionIn,
    promotions.DemotionIn,
    smokes.SmokeIn,
    decisions.DecisionIn,
    decisions.SettlementIn,
    grants.GrantIn,
    grants.WorkspaceIn,
    keys.ApiKeyIn,
    operators.WithdrawalIn,
)
"""The models of bodies that routes read by hand, for the OpenAPI document."""


def create_app(settings: Settings, telemetry: Telemetry) -> FastAPI:
    """Everything opens with the lifespan; neither engine nor ledger must answer by then."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with open_doors(settings, telemetry) as doors:
            serving = serve_from(doors)
            app.state.doors, app.state.serving = doors, serving
            try:
                yield
            finally:
                await serving.window.watchers.close()

    app = FastAPI(
        lifespan=lifespan,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
        dependencies=[Depends(declared_query_only)],
    )
    app.state.declared_query = {}
    for routes in (
        reads,
        session_routes,
        jobs,
        decisions,
        callbacks,
        artifacts,
        operators,
        promotions,
        readiness,
        packets,
        previews,
        smokes,
        grants,
        audit,
        usage,
        inspect,
        keys,
        metrics,
    ):
        app.include_router(routes.router)
    install_problems(app)
    app.add_middleware(Envelope, settings=settings, telemetry=telemetry)
    app.openapi = cache(lambda: describe(app, BODIES))
    return app


def serve_from(doors: Doors) -> Serving:
    """The facade over these doors: a reader without a verb that changes anything, and who is asking."""
    settings, counts = doors.settings, doors.telemetry.metrics
    sight = Sight(GatewayReader(doors.engine, doors.ledger, doors.blobs, one_at_a_time(partial(health, doors))))
    watchers = Watchers(sight, count=counts.watchers.add)
    rules = StreamRules(
        longest_s=settings.stream_max_s,
        ping_s=settings.stream_ping_s,
        send_timeout_s=settings.stream_send_timeout_s,
        count=counts.stream_readers.add,
    )

    async def authenticate(request: Request) -> Caller:
        return await caller_of(request, doors)

    return Serving(
        window=Window(sight.reader, watchers),
        sessions=Sessions(sight.reader, SessionReads(doors.ledger, doors.blobs)),
        authenticate=authenticate,
        stream=rules,
        wait_max_s=settings.wait_max_s,
    )


async def declared_query_only(request: Request) -> None:
    """Raises Refused(INPUT_INVALID) for a query parameter that the route does not have, or that came twice."""
    if not request.scope["query_string"]:
        return
    route, known = request.scope["route"], request.app.state.declared_query
    if id(route) not in known:
        fields: list[Any] = get_flat_params(route.dependant)
        known[id(route)] = frozenset(field.alias for field in fields if isinstance(field.field_info, Query))
    if not known[id(route)].issuperset(request.query_params):
        raise Refused(ProblemCode.INPUT_INVALID, "The query holds a parameter that this address does not take.")
    if len(request.query_params.multi_items()) != len(request.query_params):
        raise Refused(ProblemCode.INPUT_INVALID, "The query holds the same parameter twice.")
