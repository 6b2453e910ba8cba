"""What was spent, per principal; whose bills one may read is gateway/usage.py's."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from facade.documented import refusals
from gateway.doors import At, By
from gateway.usage import usage
from workflows.contract.errors import ProblemCode
from workflows.contract.events import Timestamp
from workflows.contract.job import Money

router = APIRouter(prefix="/v1", tags=["usage"])

From = Annotated[str | None, Query(alias="from", description="RFC 3339; default: 30 days before `to`.")]
To = Annotated[str | None, Query(description="RFC 3339, not included; default: now.")]


class PrincipalUsage(BaseModel):
    """`steps`: steps that were begun, however many attempts each took. US dollars, added up exactly."""

    principal: str
    jobs: int
    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: Money


class UsageAnswer(BaseModel):
    model_config = ConfigDict(title="PrincipalsUsage", populate_by_name=True)

    data: tuple[PrincipalUsage, ...]
    since: Timestamp = Field(serialization_alias="from")
    until: Timestamp = Field(serialization_alias="to")


@router.get("/usage", operation_id="getUsage", responses=refusals(ProblemCode.NOT_PERMITTED))
async def get_usage(doors: At, caller: By, since: From = None, to: To = None) -> UsageAnswer:
    """Per principal whose authority jobs ran on: their jobs, steps, tokens and money, of attempts made in this time."""
    found = await usage(doors, caller, since, to)
    spent = sorted(found.bills.items())
    return UsageAnswer(
        data=tuple(PrincipalUsage(principal=principal, **vars(bill)) for principal, bill in spent),
        since=found.since,
        until=found.until,
    )
