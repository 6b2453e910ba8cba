"""The ladder's evidence: what the system itself recorded of a version (or of any, for the runtime), when last.

Ledger rows say what smokes and simulations saw and which packets were used; the engine says how dry runs and canary
jobs ended. A caller's own word is no evidence.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from facade.project import Look, state_of
from gateway.doors import Doors
from gateway.ledger.catalog import PluginVersionRow
from gateway.ledger.evidence import EvidenceRow, latest_evidence, latest_of_any
from gateway.ledger.packets import PacketRow, redeemed_packets
from gateway.ledger.receipts import ReceiptRow, dry_runs_of
from workflows.contract.ids import JobId, Workspace
from workflows.contract.job import JobView, Status
from workflows.policy.promotion import Recorded

LOOKED_AT = 20
"""How many of the newest dry runs and packets are asked for; older ones are not searched for a success."""


@dataclass(frozen=True, slots=True)
class OnRecord:
    """The ledger's part, newest first: the last smoke and simulation, whatever they showed, and the jobs to ask for."""

    smoke: EvidenceRow | None
    simulation: EvidenceRow | None
    dry_runs: tuple[ReceiptRow, ...]
    packets: tuple[PacketRow, ...]


@dataclass(frozen=True, slots=True)
class Succeeded:
    job_id: JobId
    at: datetime


async def recorded(doors: Doors, workspace: Workspace, version: PluginVersionRow | None) -> Recorded:
    """Of this version's digest; `version` None: of the runtime, for which any plugin of the workspace climbs."""
    seen = await doors.ledger.read(lambda conn: on_record(conn, workspace, version))
    dry_run = await first_success(doors, workspace, (row.job_id for row in seen.dry_runs))
    packet = await first_success(doors, workspace, (row.job_id for row in seen.packets))
    return facts_of(seen, dry_run, packet)


def on_record(conn: Connection, workspace: Workspace, version: PluginVersionRow | None) -> OnRecord:
    if version is None:
        return OnRecord(
            latest_evidence(conn, "smoke", None, None, None),
            latest_of_any(conn, "simulation", workspace),
            tuple(dry_runs_of(conn, workspace, plugin=None, digest=None, limit=LOOKED_AT)),
            tuple(redeemed_packets(conn, workspace, plugin=None, digest=None, limit=LOOKED_AT)),
        )
    of = (workspace, version.name, version.version)
    return OnRecord(
        latest_evidence(conn, "smoke", *of),
        latest_evidence(conn, "simulation", *of),
        tuple(dry_runs_of(conn, workspace, plugin=version.name, digest=version.digest, limit=LOOKED_AT)),
        tuple(redeemed_packets(conn, workspace, plugin=version.name, digest=version.digest, limit=LOOKED_AT)),
    )


def facts_of(seen: OnRecord, dry_run: Succeeded | None, packet: Succeeded | None) -> Recorded:
    """What the gates judge."""
    return Recorded(
        smoke=_green(seen.smoke),
        dry_run=None if dry_run is None else dry_run.at,
        simulation=_green(seen.simulation),
        packet=None if packet is None else packet.at,
    )


def _green(row: EvidenceRow | None) -> datetime | None:
    return row.at if row is not None and row.green else None


async def first_success(doors: Doors, workspace: Workspace, jobs: Iterable[JobId]) -> Succeeded | None:
    """The newest of these jobs that succeeded; None where none did, or the engine forgot them all."""
    for job_id in jobs:
        view = await ended_view(doors, workspace, job_id)
        if view is not None and view.status is Status.SUCCEEDED and view.finished_at is not None:
            return Succeeded(job_id, view.finished_at)
    return None


async def ended_view(doors: Doors, workspace: Workspace, job_id: JobId) -> JobView | None:
    """The end of a job as the engine tells it; None while it is open, and where its record is gone."""
    execution = await doors.engine.describe(workspace, job_id)
    if execution is None or execution.ending is None:
        return None
    record = await doors.engine.histories.end_record(workspace, job_id)
    return state_of(Look(execution, record=record))
