"""Who may decide for a job: whoever still holds the grant, and nobody whose own job it is, under whichever name.

Facts in, a yes or no out; what is decided is `gateway.deciding`'s. An API key is its principal, so it is no second
person and no way around this.
"""

from datetime import datetime

from sqlalchemy import Connection

from gateway.authority import Allowed, granted
from gateway.ledger.grants import grants_of
from gateway.scopes import Action
from workflows.contract.ids import PluginName, PrincipalId, Workspace
from workflows.contract.job import Initiator


def may_still_decide(
    conn: Connection, workspace: Workspace, principal: PrincipalId, plugin: PluginName, now: datetime
) -> bool:
    """Whether a valid grant lets this principal decide now, as far as grants alone say it."""
    grants = grants_of(conn, workspace, principal, now)
    return isinstance(granted(grants, Action.JOBS_DECIDE, plugin, now), Allowed)


def is_own_job(
    caller: PrincipalId, principal: PrincipalId, submitted_by: PrincipalId | None, initiator: Initiator | None
) -> bool:
    """Whether the caller is whose authority the job runs on, who submitted it, or who caused it.

    The initiator is a plain word of the submitter's: with and without its kind it names the same person.
    """
    names: set[str | None] = {principal, submitted_by}
    if initiator is not None:
        kind = f"{initiator.kind}:"
        names |= {initiator.id, kind + initiator.id, initiator.id.removeprefix(kind)}
    return caller in names
