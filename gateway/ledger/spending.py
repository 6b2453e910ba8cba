"""Usage: what each attempt at a step has spent, on whose bill. One row an attempt, written once, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from sqlalchemy import Connection, and_, bindparam, distinct, func, select

from gateway.ledger.authority_tables import usage
from gateway.ledger.tables import insert_if_absent
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace


@dataclass(frozen=True)
class Spent:
    """`call` is 0 for the model step itself, else the number of the call it proposed. Tokens are counts; `cost_usd`
    is US dollars, exact. `estimated`: the other side did not say, so bytes / 4."""

    workspace: Workspace
    job_id: JobId
    step: int
    attempt: int
    principal: PrincipalId
    plugin: PluginName
    kind: Literal["model", "tool"]
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    estimated: bool
    at: datetime
    call: int = 0


@dataclass(frozen=True)
class Bill:
    """Sums over a time: `steps` counts steps that were begun, however many attempts each took."""

    jobs: int
    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal


CALLS = 1_000
"""More than one step proposes."""
_INSERT = insert_if_absent(usage)
_BY_JOB = (
    select(
        usage.c.principal,
        usage.c.job_id,
        func.count(distinct(usage.c.step * CALLS + usage.c.call)),
        func.sum(usage.c.input_tokens),
        func.sum(usage.c.output_tokens),
    )
    .where(
        usage.c.workspace == bindparam("of_workspace"),
        usage.c.at >= bindparam("since", type_=usage.c.at.type),
        usage.c.at < bindparam("until", type_=usage.c.at.type),
    )
    .group_by(usage.c.principal, usage.c.job_id)
)
_COSTS = select(usage.c.principal, usage.c.cost_usd).where(
    usage.c.workspace == bindparam("of_workspace"),
    usage.c.at >= bindparam("since", type_=usage.c.at.type),
    usage.c.at < bindparam("until", type_=usage.c.at.type),
    and_(usage.c.cost_usd != "0"),
)


def record_spent(conn: Connection, spent: Spent) -> None:
    """The first account of an attempt stands."""
    conn.execute(_INSERT, {**vars(spent), "cost_usd": f"{spent.cost_usd.normalize():f}"})


def bills(
    conn: Connection, workspace: Workspace, *, since: datetime, until: datetime, principal: PrincipalId | None = None
) -> Mapping[PrincipalId, Bill]:
    """What each principal (or this one) spent from `since` on and before `until`. Money is added up exactly."""
    of = {"of_workspace": workspace, "since": since, "until": until}
    by_job, costs = _BY_JOB, _COSTS
    if principal is not None:
        by_job, costs = by_job.where(usage.c.principal == principal), costs.where(usage.c.principal == principal)
    found: dict[PrincipalId, Bill] = {}
    for name, _, steps, input_tokens, output_tokens in conn.execute(by_job, of):
        before = found.get(name, Bill(0, 0, 0, 0, Decimal(0)))
        found[name] = Bill(
            before.jobs + 1,
            before.steps + steps,
            before.input_tokens + int(input_tokens),
            before.output_tokens + int(output_tokens),
            Decimal(0),
        )
    for name, cost in conn.execute(costs, of):
        bill = found[name]
        found[name] = Bill(bill.jobs, bill.steps, bill.input_tokens, bill.output_tokens, bill.cost_usd + Decimal(cost))
    return found
