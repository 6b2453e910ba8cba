"""Phases: how far a plugin version, or the runtime, has climbed. The latest promotion that is done says it.

Rows are only added: a proposal, its approval, a demotion, a break-glass. No row at all means `blocked_noop`. Whether a
step is allowed is judged elsewhere; `resolve` answers all that admission asks of the catalog in one statement.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Connection, ScalarSelect, and_, bindparam, exists, func, literal, select

from gateway.ledger.catalog_tables import deployments, plugin_versions, promotions, releases
from gateway.ledger.column_types import Words
from gateway.ledger.journal import announce, record
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.gates import Phase
from workflows.contract.ids import Digest, PluginName, PrincipalId, Workspace

PromotionState = Literal["proposed", "done"]
_LOWEST: Phase = "blocked_noop"


@dataclass(frozen=True)
class NewPromotion:
    """Of a plugin version, or of the runtime: then workspace, plugin, version and digest are None."""

    promotion_id: str
    workspace: Workspace | None
    plugin: PluginName | None
    version: str | None
    digest: Digest | None
    phase: Phase
    state: PromotionState
    by: PrincipalId
    approved_by: PrincipalId | None
    reason: str
    break_glass: bool
    release_held: bool
    at: datetime

    @property
    def subject(self) -> str:
        return "runtime" if self.plugin is None else f"{self.plugin}@{self.version}"


@dataclass(frozen=True)
class PromotionRow(NewPromotion):
    revision: int


@dataclass(frozen=True)
class Resolved:
    """One plugin version as it stands: what admission freezes into a snapshot and judges."""

    version: str
    plugin_digest: Digest
    withdrawn: bool
    deployment_digest: Digest | None
    version_phase: Phase
    runtime_phase: Phase


def _phase_where(*of: ColumnElement[bool]) -> ScalarSelect[str]:
    return (
        select(promotions.c.phase)
        .where(*of, promotions.c.state == "done")
        .order_by(promotions.c.revision.desc())
        .limit(1)
        .scalar_subquery()
    )


_PROMOTION = columns_of(PromotionRow, promotions)
_APPEND = insert_if_absent(promotions).returning(*_PROMOTION)
_FIND = (
    select(*_PROMOTION).where(promotions.c.promotion_id == bindparam("promotion_id")).order_by(promotions.c.revision)
)

_RUNTIME = and_(promotions.c.workspace.is_(None), promotions.c.plugin.is_(None))
_RUNTIME_PHASE = func.coalesce(_phase_where(_RUNTIME), literal(_LOWEST))
_VERSION_PHASE = func.coalesce(
    _phase_where(
        promotions.c.workspace == bindparam("workspace"),
        promotions.c.plugin == bindparam("plugin"),
        promotions.c.version == bindparam("version"),
    ),
    literal(_LOWEST),
)
_RELEASED_VERSION = (
    select(releases.c.version)
    .where(releases.c.workspace == bindparam("workspace"), releases.c.plugin == bindparam("plugin"))
    .order_by(releases.c.revision.desc())
    .limit(1)
    .scalar_subquery()
)
_RESOLVE = select(
    plugin_versions.c.version,
    plugin_versions.c.digest,
    plugin_versions.c.withdrawn_at.is_not(None),
    select(deployments.c.digest)
    .where(deployments.c.workspace == bindparam("workspace"), deployments.c.plugin == bindparam("plugin"))
    .order_by(deployments.c.revision.desc())
    .limit(1)
    .scalar_subquery(),
    func.coalesce(
        _phase_where(
            promotions.c.workspace == plugin_versions.c.workspace,
            promotions.c.plugin == plugin_versions.c.name,
            promotions.c.version == plugin_versions.c.version,
        ),
        literal(_LOWEST),
    ),
    _RUNTIME_PHASE,
).where(
    plugin_versions.c.workspace == bindparam("workspace"),
    plugin_versions.c.name == bindparam("plugin"),
    plugin_versions.c.version == func.coalesce(bindparam("version", type_=Words), _RELEASED_VERSION),
)


def resolve(conn: Connection, workspace: Workspace, plugin: PluginName, version: str | None) -> Resolved | None:
    """`version`, or the released one. None: no such plugin or version, or (version None) nothing is released."""
    row = conn.execute(_RESOLVE, {"workspace": workspace, "plugin": plugin, "version": version}).first()
    return None if row is None else Resolved(*row)


def phase_of(conn: Connection, workspace: Workspace, plugin: PluginName, version: str) -> Phase:
    of: dict[str, Any] = {"workspace": workspace, "plugin": plugin, "version": version}
    return cast(Phase, conn.execute(select(_VERSION_PHASE), of).scalar_one())


def runtime_phase(conn: Connection) -> Phase:
    return cast(Phase, conn.execute(select(_RUNTIME_PHASE)).scalar_one())


def insert_promotion(
    conn: Connection, new: NewPromotion, *, word: Literal["promotion", "demotion"] = "promotion", **detail: Any
) -> PromotionRow | None:
    """Adds a row; None when this promotion is in that state already. A row that is done sets the phase at once.
    `word` and `detail` (JSON) are for the audit trail."""
    row = conn.execute(_APPEND, vars(new)).first()
    if row is None:
        return None
    record(
        conn,
        new.workspace,
        at=new.at,
        actor=new.approved_by or new.by,
        action=f"{word}.{new.state}",
        subject=new.subject,
        version=new.version,
        digest=new.digest,
        phase=new.phase,
        promotion_id=new.promotion_id,
        proposed_by=new.by,
        break_glass=new.break_glass,
        release_held=new.release_held,
        reason=new.reason,
        **detail,
    )
    if new.state == "done":
        announce(conn, new.workspace, at=new.at, kind="phase", subject=new.subject)
    return PromotionRow(*row)


def find_promotion(conn: Connection, promotion_id: str) -> list[PromotionRow]:
    """Its rows in order: the proposal, then what became of it. Empty for an unknown id."""
    return [PromotionRow(*row) for row in conn.execute(_FIND, {"promotion_id": promotion_id})]


def moved_since(conn: Connection, proposal: PromotionRow) -> bool:
    """Whether the phase that it would change was changed after it was proposed, up or down."""
    climber = (
        promotions.c.workspace.is_not_distinct_from(proposal.workspace),
        promotions.c.plugin.is_not_distinct_from(proposal.plugin),
        promotions.c.version.is_not_distinct_from(proposal.version),
    )
    later = exists().where(*climber, promotions.c.state == "done", promotions.c.revision > proposal.revision)
    return conn.execute(select(later)).scalar_one()
