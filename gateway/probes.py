"""What a smoke exercises, as data: every read surface, and every refusal that holds at any phase.

Each probe is harmless even where the refusal that it expects were broken: it names what nobody has, asks for what
changes nothing, and is sent under a watch (`gateway.seams`) that lets no door change anything. A probe that can not be
sent now says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from gateway.scopes import Action
from workflows.contract.errors import ProblemCode as P

NOBODY = "sha256:" + "0" * 64
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Probe:
    """`path` and the texts of `body` name facts of the ground in braces; `needs` are those that must be there. `scope`:
    what the caller must be allowed. `drop`: the reader goes after the first bytes. `body` bytes go out as they are.
    `instead`: besides `status`, this answer is as good."""

    what: str
    path: str
    method: str = "GET"
    status: int = 200
    code: P | None = None
    scope: Action | None = None
    needs: tuple[str, ...] = ()
    body: Mapping[str, Any] | bytes | None = None
    kind: str = JSON
    key: str | None = None
    as_caller: Literal["caller", "nobody", "somebody"] = "caller"
    drop: bool = False
    instead: tuple[int, P | None] | None = None


def _read(what: str, path: str, scope: Action | None = None, *needs: str, **more: Any) -> Probe:
    return Probe(what, path, scope=scope, needs=needs, **more)


def _refused(
    what: str, method: str, path: str, status: int, code: P, scope: Action | None = None, **more: Any
) -> Probe:
    return Probe(what, path, method, status, code, scope, **more)


def _unknown(what: str, method: str, path: str, scope: Action | None = None, **more: Any) -> Probe:
    return _refused(what, method, path, 404, P.NOT_FOUND, scope, **more)


_JOBS, _SUBMIT = "/v1/jobs", Action.JOBS_SUBMIT
_VERSION = "/v1/plugins/{plugin}/versions/{version}"
_OF_VERSION = ("plugin", "version")
_REHEARSAL: Mapping[str, Any] = MappingProxyType(
    {"plugin": "{plugin}", "version": "{version}", "input": {}, "mode": "dry_run", "on_blocked": "refuse"}
)
_UNKNOWN: Mapping[str, Any] = MappingProxyType({**_REHEARSAL, "plugin": "{unknown}", "version": None})
_PACKET: Mapping[str, Any] = MappingProxyType({"allowed_tools": [], "max_steps": 1, "expires_in_seconds": 1})

READS: tuple[Probe, ...] = (
    _read("liveness", "/livez", as_caller="nobody"),
    _read("readyz", "/readyz", as_caller="nobody"),
    _read("the OpenAPI document", "/v1/openapi.json", as_caller="nobody"),
    _read("metrics", "/metrics", Action.OPERATOR_READ),
    _read("the list of jobs", "/v1/jobs?limit=5", Action.JOBS_READ),
    _read("a job", "/v1/jobs/{job}", Action.JOBS_READ, "job"),
    _read("a job's events, a page", "/v1/jobs/{job}?after=0&limit=50", Action.JOBS_READ, "job"),
    _read("a job's event stream, opened and dropped", "/v1/jobs/{job}/events", Action.JOBS_READ, "job", drop=True),
    _read("a job's preview", "/v1/jobs/{job}/preview", Action.JOBS_READ, "job"),
    _read("a result", "/v1/jobs/{succeeded}/result", Action.JOBS_READ, "succeeded", instead=(302, None)),
    _read("the address of an artifact", "/v1/artifacts/{artifact}", Action.JOBS_READ, "artifact", status=302),
    _read("a job from behind", "/v1/operator/jobs/{job}", Action.OPERATOR_READ, "job"),
    _read("the inbox of requests", "/v1/requests", Action.JOBS_READ),
    _read("a request in full", "/v1/jobs/{asked_job}/requests/{request}", Action.JOBS_READ, "asked_job", "request"),
    _read("a session", "/v1/sessions/{session}", Action.SESSIONS_READ, "session"),
    _read("a session's messages", "/v1/sessions/{session}/messages", Action.SESSIONS_READ, "session"),
    _read("usage", "/v1/usage", Action.OPERATOR_READ),
    _read("the audit trail", "/v1/audit?limit=5", Action.OPERATOR_READ),
    _read("grants", "/v1/grants", Action.GRANTS_WRITE),
    _read("API keys", "/v1/api-keys", Action.GRANTS_WRITE),
    _read("a plugin's versions", "/v1/plugins/{plugin}/versions", Action.OPERATOR_READ, "plugin"),
    _read("a plugin's releases", "/v1/plugins/{plugin}/releases", Action.OPERATOR_READ, "plugin"),
    _read("the runtime's readiness", "/v1/readiness", Action.OPERATOR_READ),
    _read("a version's readiness", f"{_VERSION}/readiness", Action.OPERATOR_READ, *_OF_VERSION),
    _read("a packet", "/v1/packets/{packet}", Action.OPERATOR_READ, "packet"),
    Probe(
        "a preview",
        "/v1/previews",
        "POST",
        scope=_SUBMIT,
        needs=("previewable",),
        body=_REHEARSAL,
        instead=(422, P.INPUT_INVALID),  # a smoke has no input to offer, and a version may demand one
    ),
)

REFUSALS: tuple[Probe, ...] = (
    _refused("without a credential", "GET", _JOBS, 401, P.UNAUTHENTICATED, as_caller="nobody"),
    _refused("a credential nobody signed", "GET", _JOBS, 401, P.UNAUTHENTICATED, as_caller="somebody"),
    _unknown("an address that is not there", "GET", "/v1/{unknown}"),
    _refused("a method that is not taken", "DELETE", _JOBS, 405, P.METHOD_NOT_ALLOWED),
    _refused("a query that is not taken", "GET", "/v1/jobs?{unknown}=1", 422, P.INPUT_INVALID, Action.JOBS_READ),
    _refused("a cursor of nobody", "GET", "/v1/jobs?after={unknown}", 400, P.CURSOR_INVALID, Action.JOBS_READ),
    _refused("a submission without a key", "POST", _JOBS, 400, P.IDEMPOTENCY_KEY_MISSING, _SUBMIT, body=_UNKNOWN),
    _refused(
        "a submission under a bad key", "POST", _JOBS, 400, P.IDEMPOTENCY_KEY_INVALID, _SUBMIT, body=_UNKNOWN, key="a b"
    ),
    _refused(
        "a body that is no JSON", "POST", _JOBS, 422, P.INPUT_INVALID, _SUBMIT, body=b'{"plugin": ', key="{unknown}"
    ),
    _refused(
        "a field that is not taken",
        "POST",
        _JOBS,
        422,
        P.INPUT_INVALID,
        _SUBMIT,
        body={**_UNKNOWN, "unknown_field": 1},
        key="{unknown}",
    ),
    _refused(
        "a media type that is not taken",
        "POST",
        _JOBS,
        415,
        P.UNSUPPORTED_MEDIA_TYPE,
        _SUBMIT,
        body=b"plugin: x",
        kind="text/plain",
        key="{unknown}",
    ),
    _refused(
        "a body that is too large",
        "POST",
        _JOBS,
        413,
        P.PAYLOAD_TOO_LARGE,
        _SUBMIT,
        body=b" " * (257 * 1024),
        key="{unknown}",
    ),
    _refused("an unknown plugin", "POST", _JOBS, 404, P.PLUGIN_UNKNOWN, _SUBMIT, body=_UNKNOWN, key="{unknown}"),
    _refused(
        "a submission at blocked_noop",
        "POST",
        _JOBS,
        409,
        P.BLOCKED,
        _SUBMIT,
        body=_REHEARSAL,
        key="{unknown}",
        needs=("blocked",),
    ),
    _unknown("an unknown job", "GET", "/v1/jobs/{unknown}", Action.JOBS_READ),
    _unknown("cancelling an unknown job", "POST", "/v1/jobs/{unknown}/cancel", Action.JOBS_CANCEL),
    _unknown(
        "a decision on an unknown request",
        "POST",
        "/v1/jobs/{unknown}/requests/r0-000000/decision",
        Action.JOBS_DECIDE,
        body={"decision": "reject", "action_digest": NOBODY},
    ),
    _unknown(
        "a decision on a request that a job never made",
        "POST",
        "/v1/jobs/{open_job}/requests/r0-000000/decision",
        Action.JOBS_DECIDE,
        body={"decision": "reject", "action_digest": NOBODY},
        needs=("open_job",),
    ),
    _unknown(
        "settling an effect of an unknown job",
        "POST",
        "/v1/jobs/{unknown}/effects/eff_{unknown}/settlement",
        Action.JOBS_DECIDE,
        body={"answer": "happened"},
    ),
    _unknown("retrying an unknown job", "POST", "/v1/jobs/{unknown}/retry", _SUBMIT, body={}, key="{unknown}"),
    _unknown("erasing an unknown job", "DELETE", "/v1/jobs/{unknown}/content", Action.GRANTS_WRITE),
    _unknown("an unknown artifact", "GET", "/v1/artifacts/art_{unknown}", Action.JOBS_READ),
    _refused(
        "bytes behind an address that nobody signed",
        "GET",
        "/v1/artifacts/art_{unknown}/content?expires=1&signature=x",
        403,
        P.NOT_PERMITTED,
        as_caller="nobody",
    ),
    _refused(
        "an upload as a form",
        "POST",
        "/v1/artifacts",
        415,
        P.UNSUPPORTED_MEDIA_TYPE,
        _SUBMIT,
        body=b"--",
        kind="multipart/form-data",
    ),
    _unknown("an answer to a call of nobody", "POST", "/v1/callbacks/{unknown}", body={}, as_caller="nobody"),
    _refused(
        "a promotion that goes down",
        "POST",
        f"{_VERSION}/promotions",
        409,
        P.GATE_NOT_MET,
        Action.PROMOTIONS_WRITE,
        body={"to": "blocked_noop"},
        needs=_OF_VERSION,
    ),
    _refused(
        "a promotion that skips a rung",
        "POST",
        f"{_VERSION}/promotions",
        409,
        P.GATE_NOT_MET,
        Action.PROMOTIONS_WRITE,
        body={"to": "{skipping}"},
        needs=("skipping",),
    ),
    _refused(
        "a promotion of the runtime that goes down",
        "POST",
        "/v1/runtime/promotions",
        409,
        P.GATE_NOT_MET,
        Action.PROMOTIONS_WRITE,
        body={"to": "blocked_noop"},
    ),
    _refused(
        "a demotion that goes up",
        "POST",
        f"{_VERSION}/demotions",
        409,
        P.GATE_NOT_MET,
        Action.PROMOTIONS_WRITE,
        body={"to": "live", "reason": "a probe of a smoke"},
        needs=_OF_VERSION,
    ),
    _unknown(
        "approving an unknown promotion", "POST", "/v1/promotions/promo_{unknown}/approval", Action.PROMOTIONS_APPROVE
    ),
    _unknown(
        "a packet for an unknown job",
        "POST",
        "/v1/packets",
        Action.PROMOTIONS_WRITE,
        body={**_PACKET, "job_id": "{unknown}"},
    ),
    _refused(
        "a packet for a job that is not held",
        "POST",
        "/v1/packets",
        409,
        P.GATE_NOT_MET,
        Action.PROMOTIONS_WRITE,
        body={**_PACKET, "job_id": "{succeeded}"},
        needs=("succeeded",),
    ),
    _unknown("an unknown packet", "GET", "/v1/packets/packet_{unknown}", Action.OPERATOR_READ),
    _unknown("approving an unknown packet", "POST", "/v1/packets/packet_{unknown}/approval", Action.PROMOTIONS_APPROVE),
    _refused(
        "a release of an unknown version",
        "PUT",
        "/v1/plugins/{unknown}/release",
        404,
        P.PLUGIN_UNKNOWN,
        Action.RELEASES_WRITE,
        body={"version": "0"},
    ),
    _refused(
        "a deployment of an unknown plugin",
        "PUT",
        "/v1/plugins/{unknown}/deployment",
        404,
        P.PLUGIN_UNKNOWN,
        Action.RELEASES_WRITE,
        body={"plugin": "{unknown}"},
    ),
    _refused(
        "a demotion of an unknown version",
        "POST",
        "/v1/plugins/{unknown}/versions/0/demotions",
        404,
        P.PLUGIN_UNKNOWN,
        Action.PROMOTIONS_WRITE,
        body={"to": "blocked_noop", "reason": "a probe of a smoke"},
    ),
    _refused("a plugin without a file", "POST", "/v1/plugins", 422, P.INPUT_INVALID, Action.PLUGINS_PUBLISH, body={}),
    _refused("a grant without a name", "POST", "/v1/grants", 422, P.INPUT_INVALID, Action.GRANTS_WRITE, body={}),
)

PROBES = (*READS, *REFUSALS)
