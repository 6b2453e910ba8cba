"""The ground of a smoke: which version it is about, what is there to be read, and what the caller may do.

Read once, before the first census. What is not there has a reason, which the report shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from sqlalchemy import Connection, select

from gateway.authority import Allowed, decide
from gateway.doors import Doors, permit
from gateway.executions import look_at
from gateway.ledger.catalog import PluginVersionRow, current_release, find_plugin_version, list_plugin_versions
from gateway.ledger.catalog_tables import artifacts, packets
from gateway.ledger.grants import grants_of
from gateway.ledger.phases import phase_of, runtime_phase
from gateway.ledger.receipts import ReceiptFilter, ReceiptRow, list_receipts
from gateway.ledger.tables import decisions, receipts, sessions
from gateway.plugins import plugin_unknown
from gateway.scopes import Action, Caller
from workflows.contract.gates import PHASES, Phase
from workflows.contract.ids import PluginName
from workflows.policy.eligibility import lower

LOOKED_AT = 20
"""So many of the newest jobs are looked at for one that can be read."""
MISSING: Mapping[str, str] = {
    "job": "there is no job here whose record the engine still has",
    "open_job": "no job is open",
    "succeeded": "none of the newest jobs has succeeded",
    "request": "nobody has decided a request yet",
    "asked_job": "nobody has decided a request yet",
    "session": "no session exists",
    "packet": "no packet exists",
    "artifact": "no job here has published an artifact that is still kept",
    "plugin": "the smoke is the runtime's, not a plugin's",
    "version": "the smoke is the runtime's, not a plugin's",
    "previewable": "the smoke is the runtime's, not a plugin's",
    "blocked": "the phase in force is not blocked_noop, or the smoke is the runtime's: it might be accepted",
    "skipping": "only one rung is left above this one, or none, or the smoke is the runtime's",
}


@dataclass(frozen=True)
class Ground:
    """`facts`: names for the texts of probes. `phase`: the one in force."""

    version: PluginVersionRow | None
    phase: Phase
    facts: Mapping[str, str]
    may: frozenset[Action]


@dataclass(frozen=True)
class _Looked:
    version: PluginVersionRow | None
    version_phase: Phase
    runtime: Phase
    may: frozenset[Action]
    receipts: list[ReceiptRow]
    named: Mapping[str, str]


async def survey(doors: Doors, caller: Caller, plugin: PluginName | None, version: str | None) -> Ground:
    """Raises Refused: NOT_PERMITTED, PLUGIN_UNKNOWN. `version` None: the current release, else the newest."""

    def look(conn: Connection) -> _Looked:
        permit(caller, conn, Action.OPERATOR_READ, plugin)
        row = None if plugin is None else _version(conn, caller, plugin, version)
        now = datetime.now(UTC)
        grants = grants_of(conn, caller.workspace, caller.principal, now)
        wanted = ReceiptFilter(plugin=plugin)
        return _Looked(
            version=row,
            version_phase=runtime_phase(conn)
            if row is None
            else phase_of(conn, caller.workspace, row.name, row.version),
            runtime=runtime_phase(conn),
            may=frozenset(one for one in Action if isinstance(decide(caller, grants, one, plugin, now), Allowed)),
            receipts=list_receipts(conn, caller.workspace, wanted, before_seq=None, limit=LOOKED_AT),
            named=_named(conn, caller, plugin),
        )

    looked = await doors.ledger.read(look)
    accepted = [row.job_id for row in looked.receipts if row.accepted]
    known = await look_at(doors.engine.histories, caller.workspace, accepted)
    phase = lower(looked.version_phase, looked.runtime)
    facts = {"unknown": f"smoke-{uuid4().hex}", **looked.named}
    if known:
        facts["job"] = next(iter(known))
    if open_ := [job for job, seen in known.items() if seen.status == "running"]:
        facts["open_job"] = open_[0]
    if ended := [job for job, seen in known.items() if seen.status == "completed"]:
        facts["succeeded"] = ended[0]
    if looked.version is not None:
        facts |= {"plugin": looked.version.name, "version": looked.version.version, "previewable": "yes"}
        above = PHASES[PHASES.index(looked.version_phase) + 2 :]
        facts |= {"skipping": above[0]} if above else {}
        facts |= {"blocked": "yes"} if phase == "blocked_noop" else {}
    return Ground(looked.version, phase, facts, looked.may)


def _version(conn: Connection, caller: Caller, plugin: PluginName, version: str | None) -> PluginVersionRow:
    released = current_release(conn, caller.workspace, plugin) if version is None else None
    wanted = released.version if released is not None else version
    if wanted is None:
        row = next(reversed(list_plugin_versions(conn, caller.workspace, plugin)), None)
    else:
        row = find_plugin_version(conn, caller.workspace, plugin, wanted)
    if row is None:
        raise plugin_unknown()
    return row


def _named(conn: Connection, caller: Caller, plugin: PluginName | None) -> Mapping[str, str]:
    """The newest session, packet, artifact and decided request."""
    facts: dict[str, str] = {}
    of_sessions = select(sessions.c.session).where(sessions.c.workspace == caller.workspace)
    of_packets = select(packets.c.packet_id).where(packets.c.workspace == caller.workspace)
    of_artifacts = (
        select(artifacts.c.artifact_id)
        .join(receipts, (receipts.c.workspace == artifacts.c.workspace) & (receipts.c.job_id == artifacts.c.job_id))
        .where(artifacts.c.workspace == caller.workspace, artifacts.c.erased_at.is_(None))
    )
    if plugin is not None:
        of_artifacts = of_artifacts.where(receipts.c.plugin == plugin)
        of_sessions = of_sessions.where(sessions.c.plugin == plugin)
        of_packets = of_packets.where(packets.c.plugin == plugin)
    if (session := conn.execute(of_sessions.order_by(sessions.c.at.desc()).limit(1)).scalar()) is not None:
        facts["session"] = session
    if (packet := conn.execute(of_packets.order_by(packets.c.at.desc()).limit(1)).scalar()) is not None:
        facts["packet"] = packet
    if (artifact := conn.execute(of_artifacts.order_by(artifacts.c.at.desc()).limit(1)).scalar()) is not None:
        facts["artifact"] = artifact
    of_requests = select(decisions.c.job_id, decisions.c.request_id).where(
        decisions.c.workspace == caller.workspace, decisions.c.shown.is_not(None)
    )
    if (asked := conn.execute(of_requests.order_by(decisions.c.decided_at.desc()).limit(1)).first()) is not None:
        facts["asked_job"], facts["request"] = asked
    return facts
