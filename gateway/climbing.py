"""The ladder's evidence: what the system itself recorded of a version (or of any, for the runtime), when last.

Ledger rows say what smokes and simulations saw and which packets were used; the engine says how dry runs and canary
jobs ended. A caller's own word is no evidence.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from facade.project import Look, state_of
from gateway.doors import Doors
from gateway.ledger.catalog import PluginVersionRow
from gateway.ledger.evidence import latest_evidence
from gateway.ledger.packets import PacketRow, redeemed_packets
from gateway.ledger.receipts import ReceiptRow, dry_runs_of
from workflows.contract.ids import JobId, Workspace
from workflows.contract.job import JobView, Status
from workflows.policy.promotion import Recorded

LOOKED_AT = 20
"""How many of the newest dry runs and packets are asked for; older ones are not searched for a success."""


async def recorded(doors: Doors, workspace: Workspace, version: PluginVersionRow | None) -> Recorded:
    """Of this version's digest; `version` None: of the runtime, for which any plugin of the workspace climbs."""

    def look(
        conn: Connection,
    ) -> tuple[datetime | None, datetime | None, Sequence[ReceiptRow], Sequence[PacketRow]]:
        of = (None, None, None) if version is None else (workspace, version.name, version.version)
        smoke = latest_evidence(conn, "smoke", *of)
        simulation = latest_evidence(conn, "simulation", *of) if version is not None else None
        plugin, digest = (None, None) if version is None else (version.name, version.digest)
        return (
            smoke.at if smoke is not None and smoke.green else None,
            simulation.at if simulation is not None and simulation.green else None,
            dry_runs_of(conn, workspace, plugin=plugin, digest=digest, limit=LOOKED_AT),
            redeemed_packets(conn, workspace, plugin=plugin, digest=digest, limit=LOOKED_AT),
        )

    smoke, simulation, dry_runs, packets = await doors.ledger.read(look)
    return Recorded(
        smoke=smoke,
        dry_run=await _first_success(doors, workspace, [row.job_id for row in dry_runs]),
        simulation=simulation,
        packet=await _first_success(doors, workspace, [packet.job_id for packet in packets]),
    )


async def _first_success(doors: Doors, workspace: Workspace, jobs: Sequence[JobId]) -> datetime | None:
    """When the newest of these jobs that succeeded ended; None where none did, or the engine forgot them all."""
    for job_id in jobs:
        view = await ended_view(doors, workspace, job_id)
        if view is not None and view.status is Status.SUCCEEDED:
            return view.finished_at
    return None


async def ended_view(doors: Doors, workspace: Workspace, job_id: JobId) -> JobView | None:
    """The end of a job as the engine tells it; None while it is open, and where its record is gone."""
    execution = await doors.engine.describe(workspace, job_id)
    if execution is None or execution.ending is None:
        return None
    record = await doors.engine.histories.end_record(workspace, job_id)
    return state_of(Look(execution, record=record))
