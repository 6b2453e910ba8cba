"""The bill: what each principal's jobs have spent in a time. One's own with `jobs:read`, everybody's with
`operator:read`.

It adds up what the ledger holds of attempts that were made; an estimate counts like a figure of the provider.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from gateway.authority import Allowed, decide
from gateway.doors import Doors, permit
from gateway.ledger.grants import grants_of
from gateway.ledger.spending import Bill, bills
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PrincipalId
from workflows.policy.deadline import parse_instant

DEFAULT_SPAN = timedelta(days=30)


@dataclass(frozen=True)
class Usage:
    since: datetime
    until: datetime
    bills: Mapping[PrincipalId, Bill]


async def usage(doors: Doors, caller: Caller, since: str | None, until: str | None) -> Usage:
    """From `since` on and before `until`; absent: until now, and 30 days before that. Raises Refused(INPUT_INVALID)."""
    now = datetime.now(UTC)
    ends = now if until is None else _instant("to", until)
    begins = ends - DEFAULT_SPAN if since is None else _instant("from", since)
    if begins > ends:
        raise Refused(ProblemCode.INPUT_INVALID, "from: This is after `to`.")

    def look(conn: Connection) -> Mapping[PrincipalId, Bill]:
        grants = grants_of(conn, caller.workspace, caller.principal, now)
        if isinstance(decide(caller, grants, Action.OPERATOR_READ, None, now), Allowed):
            return bills(conn, caller.workspace, since=begins, until=ends)
        permit(caller, conn, Action.JOBS_READ, now=now)
        return bills(conn, caller.workspace, since=begins, until=ends, principal=caller.principal)

    return Usage(begins, ends, await doors.ledger.read(look))


def _instant(name: str, text: str) -> datetime:
    instant = parse_instant(text)
    if instant is None:
        raise Refused(
            ProblemCode.INPUT_INVALID,
            f"{name}: An instant is RFC 3339 with an offset, such as 2030-01-31T12:00:00Z; a plus sign is sent as %2B.",
        )
    return instant
