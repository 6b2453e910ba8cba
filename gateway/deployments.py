"""How a workspace runs a plugin: the shape of deployment.yaml and what it owes the bundle (api.md, Files).

A deployment names credentials and never holds one. Whether a reference may be used by this workspace and for this host
is judged at admission and at every call, not here.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, JsonValue

from gateway.bundles import Bundle
from gateway.manifest import DeclaredLimits, FilePath, Manifest, Name, PluginNameField
from gateway.script import parse_script
from gateway.shapes import Shape, place, shape_of
from gateway.strictyaml import Document, Path
from workflows.contract.job import Limits

DEPLOYMENT_FILE = "deployment.yaml"
SCRIPTED = "scripted:"

_MODEL = re.compile(r"[a-z][a-z0-9_/.-]{0,63}:[^\s\x00-\x1f\x7f]{1,200}")
_URL = re.compile(r"[hH][tT]{2}[pP][sS]?://[!\"$->A-\[\]-~]+")  # visible ASCII but # ? @ and the backslash
_OWN_HEADER = re.compile(r"jobgate-.*|idempotency-key|traceparent|tracestate|host|connection|content-.*|transfer-.*|te")
PRICED_AS: Mapping[str, str] = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google-gla": "google",
    "google-vertex": "google",
    "bedrock": "aws",
    "grok": "x-ai",
    "xai": "x-ai",
}
"""pydantic-ai's provider prefixes whose prices genai-prices lists under another name."""


def _base_url(value: str) -> str:
    """http or https with a host and nothing that could redirect the rest: no user, query, fragment or dot segment."""
    sentence = "A base_url is http(s)://host[:port][/path] without user, query, fragment and dot segments"
    try:
        parts = urlsplit(value)
        sound = bool(_URL.fullmatch(value) and parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(re.fullmatch(r"(\.|%2e){1,2}", segment, re.IGNORECASE) for segment in value.split("/")[3:]):
        raise ValueError(sentence)
    return value


def _header(value: str) -> str:
    if _OWN_HEADER.fullmatch(value.lower()):
        raise ValueError("This header is set by Jobgate or by HTTP itself")
    return value


def _model(value: str) -> str:
    if not _MODEL.fullmatch(value):
        raise ValueError("A model is scripted:FILE or provider:NAME")
    return value


def _usual_prefix(fields: dict[str, Any]) -> str:
    """What nearly every service takes in `Authorization` is a bearer token; other headers hold the bare value."""
    return "Bearer " if str(fields.get("header")).lower() == "authorization" else ""


class Credential(Shape):
    """A reference, and how its value is sent: `{header}: {prefix}{value}`."""

    ref: str = Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]{0,199}|file:/[^\x00-\x1f\x7f]{1,500})$")
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"), AfterValidator(_header)] = (
        "Authorization"
    )
    prefix: str = Field(default_factory=_usual_prefix, pattern=r"^[\x20-\x7e]{0,100}$")


class Connection(Shape):
    base_url: Annotated[str, Field(max_length=1000), AfterValidator(_base_url)]
    allow_private: bool = False
    credential: Credential | None = None


class ModelConnection(Shape):
    base_url: Annotated[str, Field(max_length=1000), AfterValidator(_base_url)]
    allow_private: bool = False
    credential: Credential


class Price(Shape):
    """US dollars for a million tokens."""

    input_per_million_usd: Decimal = Field(ge=0, le=10**6)
    output_per_million_usd: Decimal = Field(ge=0, le=10**6)


class Deployment(Shape):
    plugin: PluginNameField
    model: Annotated[str, AfterValidator(_model)]
    identity: str = Field(default="caller", pattern=r"^(caller|agent:[A-Za-z0-9._:@/+-]{1,120})$")
    model_connection: ModelConnection | None = None
    price: Price | None = None
    connections: dict[Name, Connection] = Field(default_factory=dict[str, Connection], max_length=50)
    limits: DeclaredLimits = DeclaredLimits()

    @property
    def script_file(self) -> FilePath | None:
        """The bundle's file that plays the model; None for a real model."""
        return self.model.removeprefix(SCRIPTED) if self.model.startswith(SCRIPTED) else None


def effective_limits(manifest: Manifest, deployment: Deployment) -> Limits:
    """What a job may ask for at most: the plugin's limits, narrowed by the deployment's."""
    return deployment.limits.over(manifest.effective_limits)


def check_deployment(deployment: JsonValue, bundle: Bundle) -> Deployment:
    """The deployment, fit for `bundle`. Raises Refused `input-invalid`; its digest is
    `digest_of` of the JSON as it was sent."""
    document = Document(DEPLOYMENT_FILE, deployment)
    checked = shape_of(Deployment, document)
    for path, sentence in _faults(checked, bundle):
        raise document.fault(path, f"{place(path)}: {sentence}")
    if checked.script_file is not None:
        parse_script(bundle.files[checked.script_file], checked.script_file)
    return checked


def price_known(model: str) -> bool:
    """Whether genai-prices, as installed, has a price for `provider:NAME`."""
    from genai_prices import Usage, calc_price  # 170 ms; only a deployment of a real model needs it

    provider, _, name = model.partition(":")
    try:
        calc_price(Usage(input_tokens=1, output_tokens=1), name, provider_id=PRICED_AS.get(provider, provider))
    except (LookupError, ValueError):
        return False
    return True


def _faults(deployment: Deployment, bundle: Bundle) -> Iterator[tuple[Path, str]]:
    manifest = bundle.manifest
    if deployment.plugin != manifest.name:
        yield ("plugin",), "This is the deployment of another plugin."
    if set(manifest.services) - set(deployment.connections):
        yield ("connections",), "A service of the plugin has no connection."
    yield from _widened(deployment.limits, manifest.effective_limits)
    if deployment.script_file is not None:
        if deployment.script_file not in bundle.files:
            yield ("model",), "The bundle has no such script."
        return
    if deployment.model_connection is None:
        yield ("model_connection",), "A real model needs a base_url and a credential."
    limited = effective_limits(manifest, deployment).max_cost_usd is not None
    if limited and deployment.price is None and not price_known(deployment.model):
        yield ("price",), "A money limit needs the model's price, and genai-prices does not know it."


def _widened(limits: DeclaredLimits, base: Limits) -> Iterator[tuple[Path, str]]:
    narrowed = limits.over(base)
    for name in ("max_steps", "max_duration_seconds", "max_tokens", "max_cost_usd"):
        allowed = getattr(base, name)
        if allowed is not None and getattr(narrowed, name) > allowed:
            yield ("limits", name), "A deployment may only narrow the plugin's limits."
