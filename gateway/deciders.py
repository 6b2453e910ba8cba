"""Who may decide for a job: whoever still holds the grant, and nobody whose own job it is, under whichever name.

Facts in, a yes or no out; what is decided is `gateway.deciding`'s. An API key is its principal, so it is no second
person and no way around this.
"""

import unicodedata
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from facade.reader import Part
from gateway.authority import granted_throughout
from gateway.ledger.grants import grants_ever_of
from gateway.scopes import Action
from workflows.contract.ids import PluginName, PrincipalId, Workspace
from workflows.contract.job import Initiator


def may_still_decide(
    conn: Connection, workspace: Workspace, principal: PrincipalId, plugin: PluginName, since: datetime, now: datetime
) -> bool:
    """Whether who voted at `since` may decide now and might all the time: a vote whose giver lost the grant is not
    brought back by another one."""
    grants = grants_ever_of(conn, workspace, principal)
    return granted_throughout(grants, Action.JOBS_DECIDE, plugin, since, now)


def has_part(caller: PrincipalId, parts: Iterable[Part]) -> bool:
    """Whether any of these jobs, the one and those of its line, is the caller's own."""
    return any(is_own_job(caller, part.principal, part.submitted_by, part.initiator) for part in parts)


def is_own_job(
    caller: PrincipalId, principal: PrincipalId, submitted_by: PrincipalId | None, initiator: Initiator | None
) -> bool:
    """Whether the caller is whose authority the job runs on, who submitted it, or who caused it.

    The initiator is a plain word of the submitter's: with any kind or without one, in any case and with blanks around
    it, it names the same person.
    """
    if caller in (principal, submitted_by):
        return True
    if initiator is None:
        return False
    said, own = _plain(initiator.id), _plain(caller)
    kind = f"{_plain(initiator.kind)}:"
    return own in (said, kind + said, said.partition(":")[2])


def _plain(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
