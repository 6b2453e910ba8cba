"""Evidence: what the system itself saw of a digest on its way up. Rows are only added; a note of a caller is none.

A row without a workspace is the runtime's. What a gate asks for is judged by `workflows.policy.promotion`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from gateway.ledger.catalog_tables import evidence
from gateway.ledger.tables import columns_of
from workflows.contract.ids import Digest, PluginName, PrincipalId, Workspace

EvidenceKind = Literal["smoke", "simulation"]


@dataclass(frozen=True)
class EvidenceRow:
    """`green`: it shows what its rung asks for. `detail` is JSON without secrets and without a job's input."""

    workspace: Workspace | None
    plugin: PluginName | None
    version: str | None
    digest: Digest | None
    kind: EvidenceKind
    green: bool
    detail: Mapping[str, Any]
    by: PrincipalId
    at: datetime


_COLUMNS = columns_of(EvidenceRow, evidence)


def insert_evidence(conn: Connection, row: EvidenceRow) -> None:
    conn.execute(insert(evidence), vars(row))


def latest_evidence(
    conn: Connection,
    kind: EvidenceKind,
    workspace: Workspace | None,
    plugin: PluginName | None,
    version: str | None,
) -> EvidenceRow | None:
    """The newest of a version, or without a plugin of the runtime."""
    query = (
        select(*_COLUMNS)
        .where(evidence.c.kind == kind, evidence.c.plugin.is_not_distinct_from(plugin))
        .where(evidence.c.workspace.is_not_distinct_from(workspace), evidence.c.version.is_not_distinct_from(version))
        .order_by(evidence.c.evidence_no.desc())
        .limit(1)
    )
    row = conn.execute(query).first()
    return None if row is None else EvidenceRow(*row)


def latest_of_any(conn: Connection, kind: EvidenceKind, workspace: Workspace) -> EvidenceRow | None:
    """The newest green one of any version of a workspace: what the runtime climbs on."""
    query = (
        select(*_COLUMNS)
        .where(evidence.c.workspace == workspace, evidence.c.kind == kind, evidence.c.green)
        .order_by(evidence.c.evidence_no.desc())
        .limit(1)
    )
    row = conn.execute(query).first()
    return None if row is None else EvidenceRow(*row)
