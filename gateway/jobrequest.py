"""The body of POST /v1/jobs: its shape, its strict reading, and the fingerprint of what was asked.

The fingerprint covers principal and request as asked, defaults filled in and nothing resolved; a deadline counts as
its instant in UTC. Key order, white space and explicit defaults do not matter.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from gateway.manifest import DecimalText, PluginNameField
from gateway.strictjson import digest_of, parse_json
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import timestamp
from workflows.contract.ids import KEY, Digest, JobId, PrincipalId
from workflows.policy.deadline import parse_instant

MAX_LABELS = 16
LabelKey = Annotated[str, Field(min_length=1, max_length=64)]
LabelValue = Annotated[str, Field(max_length=256)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InitiatorIn(_Body):
    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    id: Annotated[str, Field(min_length=1, max_length=200)]


class BudgetIn(_Body):
    max_steps: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_cost_usd: DecimalText | None = None


class JobRequest(_Body):
    """A job as asked. `deadline` is text here: what it may be is a rule of its own (`deadline-invalid`)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "plugin": "support-refund",
                    "input": {"invoice": "inv_17"},
                    "timeout_seconds": 3600,
                    "initiator": {"kind": "user", "id": "cust_9"},
                    "budget": {"max_steps": 20, "max_cost_usd": "0.50"},
                    "labels": {"ticket": "T-17"},
                }
            ]
        }
    )

    plugin: PluginNameField
    input: dict[str, JsonValue]
    version: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    mode: Literal["live", "dry_run"] = "live"
    deadline: str | None = None
    timeout_seconds: int | None = None
    on_blocked: Literal["hold", "refuse"] = "hold"
    session: Annotated[str, Field(pattern=r"^[._-]*[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] | None = None
    initiator: InitiatorIn | None = None
    budget: BudgetIn | None = None
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)] = Field(default_factory=dict[str, str])

    @property
    def retry_of(self) -> JobId | None:
        """Whose retry it is; a submission is nobody's."""
        return None

    @property
    def line(self) -> JobId | None:
        """Of a retry: the first job of its line."""
        return None

    @property
    def instant(self) -> datetime | None:
        return None if self.deadline is None else parse_instant(self.deadline)

    @property
    def max_cost(self) -> Decimal | None:
        return None if self.budget is None or self.budget.max_cost_usd is None else Decimal(self.budget.max_cost_usd)


class RetryIn(_Body):
    """How a job is run again. `same`: the version it ran; `current`: the one that is released now."""

    timeout_seconds: int | None = None
    release: Literal["same", "current"] = "same"


class RetryRequest(JobRequest):
    """What a retry asks for, from the receipt of the job that it repeats: its input, mode, labels and initiator."""

    source: JobId
    first: JobId

    @property
    def retry_of(self) -> JobId | None:
        return self.source

    @property
    def line(self) -> JobId | None:
        return self.first


def read_job_request(body: bytes) -> JobRequest:
    """The request, or Refused: `input-invalid` naming the place and the rule, `deadline-invalid` where it is that."""
    value = parse_json(body)
    if isinstance(value, dict) and not isinstance(value.get("deadline"), str | None):
        raise Refused(ProblemCode.DEADLINE_INVALID, "A deadline is RFC 3339 text with an offset.")
    try:
        asked = JobRequest.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None
    if asked.deadline is not None and asked.timeout_seconds is not None:
        raise Refused(ProblemCode.DEADLINE_INVALID, "Give deadline or timeout_seconds, not both.")
    if asked.deadline is not None and asked.instant is None:
        raise Refused(
            ProblemCode.DEADLINE_INVALID,
            "A deadline is RFC 3339 with an offset and at most six fraction digits, such as 2030-01-31T12:00:00Z.",
        )
    return asked


def invalid(error: ValidationError, model: type[BaseModel] = JobRequest) -> Refused:
    """A fault of a body as a problem: the declared field it is in and the rule it breaks, never what was sent."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    first = str(fault["loc"][0]) if fault["loc"] else ""
    where = first if first in model.model_fields else "The body"
    rule = "There is a field that the contract does not know." if fault["type"] == "extra_forbidden" else fault["msg"]
    return Refused(ProblemCode.INPUT_INVALID, f"{where}: {rule.removeprefix('Value error, ')}")


def fingerprint_of_retry(principal: PrincipalId, source: JobId, asked: RetryIn) -> Digest:
    """Of what was asked; nothing of the job that is repeated is resolved into it."""
    return digest_of({"principal": principal, "retry": {"of": source, **asked.model_dump(mode="json")}})


def fingerprint(principal: PrincipalId, asked: JobRequest) -> Digest:
    """SHA-256 of RFC 8785 over principal and request."""
    request = asked.model_dump(mode="json")
    instant = asked.instant
    request["deadline"] = None if instant is None else timestamp(instant)
    if asked.budget == BudgetIn():  # it bounds nothing, as no budget does
        request["budget"] = None
    return digest_of({"principal": principal, "request": request})


def read_key(headers: Sequence[str]) -> JobId:
    """The job id out of exactly one Idempotency-Key header. Raises Refused with the rule."""
    if not headers:
        raise Refused(ProblemCode.IDEMPOTENCY_KEY_MISSING, "Send exactly one Idempotency-Key header.")
    if len(headers) > 1:
        raise Refused(ProblemCode.IDEMPOTENCY_KEY_INVALID, "The Idempotency-Key header was sent more than once.")
    key = headers[0]
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not KEY.fullmatch(key):
        raise Refused(
            ProblemCode.IDEMPOTENCY_KEY_INVALID,
            "An Idempotency-Key is 1 to 200 of A-Z a-z 0-9 . _ ~ - with at least one letter or digit.",
        )
    return JobId(key)
