"""Withdrawing a version: nobody is admitted on it any more, and jobs that run on it are told to look.

The first withdrawal stands, with its reason; nothing takes it back. Another version takes its place by a release.
"""

from datetime import UTC, datetime

from sqlalchemy import Connection

from gateway.doors import Doors, need_scope, permit
from gateway.ledger.catalog import PluginVersionRow, withdraw_version
from gateway.ledger.phases import phase_of
from gateway.plugins import plugin_unknown
from gateway.scopes import Action, Caller
from workflows.contract.gates import Phase
from workflows.contract.ids import PLUGIN_VERSION, PluginName


async def withdraw(
    doors: Doors, caller: Caller, plugin: PluginName, version: str, reason: str
) -> tuple[PluginVersionRow, Phase]:
    """The version as withdrawn, by this call or by the first one. Raises Refused(PLUGIN_UNKNOWN)."""
    need_scope(caller, Action.RELEASES_WRITE)
    if not PLUGIN_VERSION.fullmatch(version):
        raise plugin_unknown()

    def write(conn: Connection) -> tuple[PluginVersionRow, Phase]:
        permit(caller, conn, Action.RELEASES_WRITE, plugin)
        at = datetime.now(UTC)
        row = withdraw_version(conn, caller.workspace, plugin, version, reason=reason, by=caller.principal, at=at)
        if row is None:
            raise plugin_unknown()
        return row, phase_of(conn, caller.workspace, plugin, version)

    done = await doors.ledger.write(write)
    doors.changes.wake()
    return done
