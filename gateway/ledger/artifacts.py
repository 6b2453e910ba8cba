"""The artifact registry: published results of jobs, and uploads. A row tells what the bytes are and where they lie.

Ids are opaque and for ever; publishing the same bytes of a job under the same name again is the same artifact. When
the bytes go, the row stays and says since when.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update

from gateway.ledger.catalog_tables import artifacts
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.ids import BlobRef, Digest, JobId, PrincipalId, Workspace


@dataclass(frozen=True)
class NewArtifact:
    """`job_id` None: an upload. `by`: who uploaded it, or on whose authority the job ran. `name` is text for people."""

    artifact_id: str
    workspace: Workspace
    job_id: JobId | None
    by: PrincipalId
    name: str
    media_type: str
    bytes: int
    digest: Digest
    ref: BlobRef
    at: datetime


@dataclass(frozen=True)
class ArtifactRow(NewArtifact):
    erased_at: datetime | None = None


_COLUMNS = columns_of(ArtifactRow, artifacts)
_INSERT = insert_if_absent(artifacts).returning(*_COLUMNS)
_FIND = select(*_COLUMNS).where(artifacts.c.artifact_id == bindparam("of_artifact"))
_SAME = select(*_COLUMNS).where(
    artifacts.c.workspace == bindparam("of_workspace"),
    artifacts.c.job_id == bindparam("of_job"),
    artifacts.c.digest == bindparam("of_digest"),
    artifacts.c.name == bindparam("of_name"),
)
_GONE = update(artifacts).where(artifacts.c.erased_at.is_(None)).values(erased_at=bindparam("gone_at"))
_OF_JOB_GONE = _GONE.where(
    artifacts.c.workspace == bindparam("of_workspace"), artifacts.c.job_id == bindparam("of_job")
)
_UPLOAD_GONE = _GONE.where(artifacts.c.artifact_id == bindparam("of_artifact"), artifacts.c.job_id.is_(None))
_OLD_UPLOADS = (
    select(*_COLUMNS)
    .where(artifacts.c.at < bindparam("before"), artifacts.c.job_id.is_(None), artifacts.c.erased_at.is_(None))
    .order_by(artifacts.c.at, artifacts.c.artifact_id)
    .limit(bindparam("at_most"))
)


def register(conn: Connection, new: NewArtifact) -> ArtifactRow:
    """The artifact's row: this one, or that of the first time."""
    row = conn.execute(_INSERT, vars(new)).first()
    if row is None:
        of = {"of_workspace": new.workspace, "of_job": new.job_id, "of_digest": new.digest, "of_name": new.name}
        row = conn.execute(_SAME, of).one()
    return ArtifactRow(*row)


def find_artifact(conn: Connection, artifact_id: str) -> ArtifactRow | None:
    row = conn.execute(_FIND, {"of_artifact": artifact_id}).first()
    return None if row is None else ArtifactRow(*row)


def job_artifacts_gone(conn: Connection, workspace: Workspace, job_id: JobId, at: datetime) -> None:
    conn.execute(_OF_JOB_GONE, {"of_workspace": workspace, "of_job": job_id, "gone_at": at})


def upload_gone(conn: Connection, artifact_id: str, at: datetime) -> None:
    conn.execute(_UPLOAD_GONE, {"of_artifact": artifact_id, "gone_at": at})


def old_uploads(conn: Connection, *, before: datetime, limit: int) -> list[ArtifactRow]:
    """Uploads from before then that are still there, the oldest first."""
    return [ArtifactRow(*row) for row in conn.execute(_OLD_UPLOADS, {"before": before, "at_most": limit})]
