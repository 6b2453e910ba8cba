"""The settings of every process: read once, typed, frozen.

Order: what the caller passes, `JOBGATE_*`, the running dev stack's `DIR/dev.json`, defaults. A misspelt `JOBGATE_*`
or a bad value is one `SettingsInvalid` that names the setting and never its value. The Temporal connection is the
SDK's own (`temporal.toml`, `TEMPORAL_*`; see gateway/temporal.py): the address here is what applies where those are
silent. Nothing is created on disk by reading settings.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from workflows.contract.errors import JobgateError

PREFIX = "JOBGATE_"
DEV_FILE = "dev.json"

AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
Port = Annotated[int, Field(ge=0, le=65535)]
AttributeType = Literal["Text", "Keyword", "Int", "Double", "Bool", "Datetime", "KeywordList"]


class SettingsInvalid(JobgateError):
    """A setting, or a file that settings name, can not be used. The text is one line and holds no value."""

    def __init__(self, detail: str) -> None:
        super().__init__("settings-invalid", detail)


def _published_safely(url: str) -> str:
    """Whoever can change signing keys on their way is everybody: TLS, or not over any network."""
    parts = urlsplit(url)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise ValueError("an https URL, or http to this very host")
    return url


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lane(_File):
    """A task queue and the capabilities its workers declare."""

    task_queue: str = Field(min_length=1, max_length=200)
    capabilities: tuple[str, ...] = ()


class ServerFlags(_File):
    """Flags of `temporal server start-dev`."""

    ip: str = "127.0.0.1"
    log_level: Literal["debug", "info", "warn", "error", "never"] = "warn"
    sqlite_pragmas: Mapping[str, str] = Field(default_factory=dict[str, str])
    dynamic_config: Mapping[str, str | int | float | bool] = Field(default_factory=dict[str, str | int | float | bool])


class DevStack(_File):
    """`temporal-dev.yaml`: what `jobgate dev` starts, and what `jobgate setup` registers."""

    namespace: str = Field(min_length=1)
    retention_days: PositiveInt
    server: ServerFlags = ServerFlags()
    search_attributes: Mapping[str, AttributeType]
    lanes: Mapping[str, Lane] = Field(min_length=1)

    @property
    def retention(self) -> timedelta:
        return timedelta(days=self.retention_days)


class DevPids(_File):
    temporal: int
    worker: int
    api: int


class DevFile(_File):
    """`DIR/dev.json` (api.md, Commands): written when all serve, gone when the stack ends."""

    api_url: str
    temporal_address: str
    temporal_ui_url: str
    namespace: str
    pids: DevPids


def read_dev_file(data: Path) -> DevFile | None:
    """The running dev stack of a data folder; None where there is none."""
    try:
        text = (data / DEV_FILE).read_bytes()
    except OSError:
        return None
    try:
        return DevFile.model_validate_json(text)
    except ValidationError:
        raise SettingsInvalid(f"{data / DEV_FILE} is not a file that `jobgate dev` wrote") from None


def load_stack(path: Path | None = None) -> DevStack:
    """The given stack file, else the one inside the package."""
    source = path if path is not None else files("gateway") / "temporal-dev.yaml"
    try:
        return DevStack.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
    except OSError:
        raise SettingsInvalid(f"{source} can not be read") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SettingsInvalid(f"{source} is not YAML") from None
    except ValidationError as error:
        raise SettingsInvalid(f"{source}: {_first_fault(error)}") from None


class _RunningStack(PydanticBaseSettingsSource):
    """What `DIR/dev.json` knows: where Temporal and the API are, and that this is development."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        running = read_dev_file(Path(self.current_state.get("data", ".jobgate")).expanduser())
        if running is None:
            return {}
        api = urlsplit(running.api_url)
        return {
            "development": True,
            "url": running.api_url,
            "api_host": api.hostname,
            "api_port": api.port,
            "temporal_address": running.temporal_address,
            "temporal_ui_url": running.temporal_ui_url,
            "namespace": running.namespace,
        }


class Settings(BaseSettings):
    """Units: seconds where a name ends in `_s`. Field `x` is read from `JOBGATE_X`; collections are JSON."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    data: AbsolutePath = Field(Path(".jobgate"), validate_default=True)
    """The folder of everything local: ledger, blobs, keys, Temporal's database, logs."""
    ledger_url: str = Field(default_factory=lambda known: f"sqlite:///{known['data'] / 'ledger.db'}", repr=False)
    blobs_url: str = Field(default_factory=lambda known: (known["data"] / "blobs").as_uri(), repr=False)
    development: bool = False
    """Demo grants, a generated signing key, phase `live`, any `env:` reference. Never for production."""

    api_host: str = "127.0.0.1"
    api_port: Port = 8080
    api_grace_s: PositiveFloat = 3.0
    """How long open requests may go on after SIGTERM. Streams end at once, so that readers resume elsewhere."""
    submissions_at_once: PositiveInt = 64
    """This and the next four: how many requests of a kind one API process works at (`gateway.places`)."""
    changes_at_once: PositiveInt = 256
    reads_at_once: PositiveInt = 256
    streams_at_once: PositiveInt = 2_000
    uploads_at_once: PositiveInt = 16
    requests_waiting: NonNegativeInt = 1_000
    """How many requests of each kind may wait for their turn; streams and uploads never do."""
    principal_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The part of the places of a kind, and of the line before them, that one principal may have."""
    url: str | None = None
    """Where the command line finds the API."""
    token: SecretStr | None = None
    """The command line's bearer token."""

    issuer: str = "jobgate"
    audience: str = "jobgate"
    jwks_url: Annotated[str, AfterValidator(_published_safely)] | None = None
    """Where signing keys are published; None: the key in the data folder. In development both are taken."""
    jwks_refresh_s: PositiveFloat = 300.0
    """How often published keys are fetched anew: within this time a key that was taken away is refused."""
    credentials_file: AbsolutePath | None = None
    """The allowlist of credential references; None: none is allowed outside development."""

    authority_ttl_s: PositiveFloat = 300.0
    """How long an execution authority lasts without being renewed by a call."""
    sweep_s: PositiveFloat = 2.0
    """How often a process looks for changes that running jobs were not told of."""
    presence_s: PositiveFloat = 2.0
    """How often a process writes down that it lives. Three times and a second without a word, and it is dead."""
    workspace_open_jobs: PositiveInt | None = None
    """How many open jobs one workspace may have; None: any number. Grants bound principals."""
    public_url: str | None = None
    """Where vendors reach the API for callbacks; None: where it listens."""

    temporal_address: str = "127.0.0.1:7233"
    temporal_ui_url: str | None = None
    stack_file: AbsolutePath | None = None
    """Another `temporal-dev.yaml` than the packaged one."""
    namespace: str = Field(default_factory=lambda known: load_stack(known.get("stack_file")).namespace)
    lanes: Mapping[str, Lane] = Field(default_factory=lambda known: load_stack(known.get("stack_file")).lanes)
    lane: str = "default"
    """The lane that this process's worker serves and that admission starts jobs on."""
    versioned: bool = Field(default_factory=lambda known: not known["development"])
    """Whether open jobs stay on the build that took them, while new ones go to the current build. In development new
    code takes over at once."""
    set_current: bool = False
    """Whether this worker's build becomes the current one (`jobgate worker --set-current`), which implies versioned."""
    deployment_name: str = Field("jobgate", pattern=r"^[A-Za-z0-9_-]{1,60}$")
    """The Temporal worker deployment whose versions are the builds; one for each installation in a namespace."""

    http_deadline_s: PositiveFloat = 5.0
    http_deadline_max_s: PositiveFloat = 30.0
    wait_max_s: PositiveFloat = 60.0
    stream_max_s: PositiveFloat = 300.0
    stream_ping_s: PositiveFloat = 15.0
    stream_send_timeout_s: PositiveFloat = 5.0
    """A reader that takes no byte for so long is dropped."""

    worker_grace_s: PositiveFloat = 8.0
    """How long running steps may go on after SIGTERM."""
    heartbeat_timeout_s: PositiveFloat = 5.0
    """An attempt not heard of for so long is replaced."""
    sticky_timeout_s: PositiveFloat = 1.0
    """How long a dead worker's sticky queue holds a workflow task (design.md section 7)."""
    max_cached_workflows: NonNegativeInt = 750
    """A cached job costs a worker about 0.2 MB (measured). 0 replays every task from its history; tests run once so."""
    roll_over_after_events: PositiveInt | None = None
    """Continue-as-new at the first turn boundary with so many events of the history; None: when the engine suggests
    it."""
    model_sees_bytes: PositiveInt = 512 * 1024
    """A real model is shown its instructions, its input and so much of the newest of its conversation: about 130,000
    tokens. What is older is left out, and a sentence says so."""

    content_retention_days: PositiveInt | None = None
    """Content of jobs that ended so long ago is erased, and uploads of that age; None: never."""
    content_sweep_s: PositiveFloat = 60.0
    """How often a worker looks for such content."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    trace_file: AbsolutePath | None = None
    """Every finished span is appended here as one JSON line, besides any OTLP endpoint."""

    @model_validator(mode="after")
    def _lane_exists(self) -> Self:
        if self.lane not in self.lanes:
            raise ValueError("JOBGATE_LANE names none of the lanes")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _RunningStack(settings_cls)


def load_settings(**explicit: Any) -> Settings:
    """Settings of this process; `explicit` (field names) wins over the environment, None counts as not given."""
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsInvalid(f"{name} is not a setting of Jobgate")
    try:
        return Settings(**{name: value for name, value in explicit.items() if value is not None})
    except ValidationError as error:
        raise SettingsInvalid(_first_fault(error, prefix=PREFIX)) from None
    except ValueError:
        raise SettingsInvalid("a JOBGATE_* setting that takes JSON holds something else") from None


def _first_fault(error: ValidationError, prefix: str = "") -> str:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not fault["loc"]:
        return fault["msg"].removeprefix("Value error, ")
    where, *rest = (str(part) for part in fault["loc"])
    name = f"{prefix}{where}".upper() if prefix else where
    return f"{'.'.join((name, *rest))}: {fault['msg']}"
