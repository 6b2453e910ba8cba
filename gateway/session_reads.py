"""The facade's `SessionReader`, over ledger and blobs. Every verb here reads."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from facade.reader import Viewer
from facade.sessions import JobOfSession, SessionAction, SessionFacts, Spoken
from gateway.authority import Allowed, granted
from gateway.blobs import BlobMissing, Blobs
from gateway.conversation import Conversation, Said
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.sessions import find_session, inputs_of, session_jobs
from gateway.scopes import Action
from workflows.contract.ids import BlobRef, JobId, Workspace
from workflows.contract.job import PluginRef

_ACTIONS: tuple[SessionAction, ...] = ("sessions:read", "jobs:read")


class SessionReads:
    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger = ledger
        self._blobs = blobs

    async def session(self, viewer: Viewer, session: str) -> SessionFacts | None:
        now = datetime.now(UTC)

        def look(conn: Connection) -> SessionFacts | None:
            row = find_session(conn, viewer.workspace, session)
            if row is None:
                return None
            grants = grants_of(conn, viewer.workspace, viewer.principal, now)
            return SessionFacts(
                session=row.session,
                plugin=PluginRef(name=row.plugin, version=row.version, digest=row.plugin_digest),
                snapshot=row.snapshot,
                created_at=row.at,
                last_job=row.last_job,
                conversation=row.conversation,
                jobs=tuple(
                    JobOfSession(
                        job.seq,
                        job.job_id,
                        job.mode,
                        job.reserved_at,
                        confirmed=job.confirmed_at is not None,
                        erased=job.erased_at is not None,
                    )
                    for job in session_jobs(conn, viewer.workspace, session)
                ),
                allowed=frozenset(
                    action
                    for action in _ACTIONS
                    if action in viewer.scopes and isinstance(granted(grants, Action(action), row.plugin, now), Allowed)
                ),
            )

        return await self._ledger.read(look)

    async def spoken(self, workspace: Workspace, head: BlobRef) -> Mapping[JobId, Sequence[Spoken]]:
        try:
            chunks = await (await Conversation.load(self._blobs, workspace, head)).chunks()
        except BlobMissing:  # erased
            return {}
        said: dict[JobId, list[Spoken]] = {}
        for chunk in chunks:
            if chunk.job is not None:
                said.setdefault(chunk.job, []).extend(_spoken(one) for one in chunk.entries if isinstance(one, Said))
        return said

    async def inputs(self, workspace: Workspace, jobs: Sequence[JobId]) -> Mapping[JobId, bytes]:
        return await self._ledger.read(lambda conn: inputs_of(conn, workspace, jobs))


def _spoken(said: Said) -> Spoken:
    if said.final_repeats:
        return Spoken(said.at, "", None, said.final_ref)
    return Spoken(said.at, said.text, said.text_ref, said.final_ref)
