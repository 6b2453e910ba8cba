"""The shape of plugin.yaml and what an absent field means (api.md, Files). Rules between fields: gateway/rules.py.

A manifest is data about a plugin; nothing here opens a file, a connection or a credential.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from gateway.shapes import Shape
from workflows.contract.ids import PLUGIN_NAME, PLUGIN_VERSION, TOOL_NAME, PluginName, ToolName
from workflows.contract.job import EffectClass, Limits

MAX_TOOLS = 128
MAX_DEPENDENCIES = 20
DAY_S = 86_400
LONGEST_JOB_S = 90 * DAY_S

DEFAULT_LIMITS = Limits(max_steps=1000, max_duration_seconds=DAY_S, max_tokens=2_000_000, max_cost_usd=None)
"""What holds where a plugin names no limit: time, steps and tokens are always bounded, money only when asked for,
because a money limit needs a known price."""

BUILT_IN = frozenset({"ask_human", "final_answer"})


def _plugin_version(value: str) -> str:
    """A version stands in URLs, where clients fold `.` and `..` away."""
    if not PLUGIN_VERSION.fullmatch(value) or not any(sign.isalnum() for sign in value):
        raise ValueError("A version is [A-Za-z0-9._+-]{1,60} with a letter or digit")
    return value


def _plugin_name(value: str) -> PluginName:
    if not PLUGIN_NAME.fullmatch(value):
        raise ValueError("A plugin's name is [a-z0-9-]{1,60}")
    return PluginName(value)


def _tool_name(value: str) -> ToolName:
    if not TOOL_NAME.fullmatch(value) or not any(sign.isalnum() for sign in value):
        raise ValueError("A tool's name is [A-Za-z0-9._-]{1,64} with a letter or digit")
    return ToolName(value)


PluginNameField = Annotated[PluginName, AfterValidator(_plugin_name)]
PluginVersion = Annotated[str, AfterValidator(_plugin_version)]
ToolNameField = Annotated[ToolName, AfterValidator(_tool_name)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
FilePath = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
DecimalText = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$")]
"""An amount as text, because YAML's and JSON's numbers are doubles."""
Schema = dict[str, JsonValue]


class DeclaredLimits(Shape):
    """Limits as a file states them; an absent one is not stated. Seconds, counts, US dollars."""

    max_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    max_duration_seconds: int | None = Field(default=None, ge=1, le=LONGEST_JOB_S)
    max_cost_usd: DecimalText | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=10**12)

    def over(self, base: Limits) -> Limits:
        """`base` with every stated limit in its place."""
        return Limits(
            max_steps=self.max_steps or base.max_steps,
            max_duration_seconds=self.max_duration_seconds or base.max_duration_seconds,
            max_tokens=self.max_tokens or base.max_tokens,
            max_cost_usd=base.max_cost_usd if self.max_cost_usd is None else Decimal(self.max_cost_usd),
        )


class Dependency(Shape):
    plugin: PluginNameField
    version: PluginVersion
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class HttpCall(Shape):
    connection: Name
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str = Field(min_length=1, max_length=1000)


class McpCall(Shape):
    connection: Name
    tool: str = Field(min_length=1, max_length=200)


class Approval(Shape):
    """Who may decide. No groups: anyone with `jobs:decide`; no expiry: the deadline; no title: the description."""

    groups: tuple[Annotated[str, Field(min_length=1, max_length=120)], ...] = Field(default=(), max_length=20)
    quorum: int = Field(default=1, ge=1, le=20)
    expires_in_seconds: int | None = Field(default=None, ge=1, le=LONGEST_JOB_S)
    title: str | None = Field(default=None, min_length=1)


class Callback(Shape):
    expires_in_seconds: int = Field(ge=1, le=LONGEST_JOB_S)


class Tool(Shape):
    name: ToolNameField
    description: Text
    effect: EffectClass
    input_schema: Schema
    http: HttpCall | None = None
    mcp: McpCall | None = None
    python: Name | None = None
    timeout_seconds: float = Field(default=30, gt=0, le=3600)
    approval: Approval = Approval()
    reconcile: ToolNameField | None = None
    event: str | None = Field(default=None, min_length=1)
    hidden: bool = False
    callback: Callback | None = None
    output_schema: Schema | None = None
    """An extension of the contract: what a result must fit."""

    @property
    def arguments(self) -> frozenset[str]:
        """The names of the top-level arguments that the schema declares."""
        declared = self.input_schema.get("properties")
        return frozenset(declared) if isinstance(declared, dict) else frozenset()


class Manifest(Shape):
    name: PluginNameField
    version: PluginVersion
    description: Text
    instructions: FilePath
    skills: tuple[FilePath, ...] = Field(default=(), max_length=100)
    dependencies: tuple[Dependency, ...] = Field(default=(), max_length=MAX_DEPENDENCIES)
    services: tuple[Name, ...] = Field(default=(), max_length=50)
    policy: FilePath | None = None
    offload: Literal["allowed", "local_only"] = "allowed"
    requires: tuple[Name, ...] = Field(default=(), max_length=50)
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    limits: DeclaredLimits = DeclaredLimits()
    tools: tuple[Tool, ...] = Field(default=(), max_length=MAX_TOOLS)

    @property
    def identity(self) -> tuple[PluginName, str]:
        return self.name, self.version

    @property
    def effective_limits(self) -> Limits:
        return self.limits.over(DEFAULT_LIMITS)

    @property
    def effects(self) -> Mapping[ToolName, EffectClass]:
        """What policy is checked against: every declared tool and its effect."""
        return {tool.name: tool.effect for tool in self.tools}

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)
