"""Sessions as apps read them: what one is bound to, its jobs, and its messages. Looking changes nothing.

A message is a job's input, what the model said, or the value that ended a job. Arguments and results of tools,
instructions, and whatever Jobgate told the model are none. Which job is open, the engine says.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from pydantic import ConfigDict, JsonValue

from facade.cursors import read_place, write_place
from facade.examples import MESSAGES, SESSION_OPEN
from facade.project import Look, ended
from facade.reader import Reader, Viewer
from facade.views import Answer, PluginAnswer
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import SESSION, BlobRef, Digest, JobId, Workspace
from workflows.contract.job import Mode, PluginRef

SHOWN_JOBS = 500
AT_ONCE = 16
PAGE_BYTES = 1024 * 1024
"""A page of messages ends with the batch that makes it longer."""
PLACES = 10_000_000
"""More than a job can have messages."""
FROM_START = "0"

SessionAction = Literal["sessions:read", "jobs:read"]


@dataclass(frozen=True, slots=True)
class JobOfSession:
    """`seq` orders the jobs. One that is not confirmed may be a reservation that never became a job."""

    seq: int
    job_id: JobId
    mode: Mode
    at: datetime
    confirmed: bool
    erased: bool = False


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session of the viewer's workspace, its jobs oldest first, and what the viewer may do with it."""

    session: str
    plugin: PluginRef
    snapshot: Digest
    created_at: datetime
    last_job: JobId
    conversation: BlobRef | None
    jobs: tuple[JobOfSession, ...]
    allowed: frozenset[SessionAction]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One answer of the model: a text, here or in a blob, and what ended the job."""

    at: datetime | None
    text: str
    text_ref: BlobRef | None
    final_ref: BlobRef | None


class SessionReader(Protocol):
    """Only reads. Raises Refused(LEDGER_UNAVAILABLE | BLOBS_UNAVAILABLE)."""

    async def session(self, viewer: Viewer, session: str) -> SessionFacts | None: ...

    async def spoken(self, workspace: Workspace, head: BlobRef) -> Mapping[JobId, Sequence[Spoken]]:
        """What the model said, by job, as far as it is kept."""
        ...

    async def inputs(self, workspace: Workspace, jobs: Sequence[JobId]) -> Mapping[JobId, bytes]: ...


class SessionAnswer(Answer):
    """GET /v1/sessions/{session}. `jobs` are the newest 500, oldest first; `has_more`: there are older ones, which
    GET /v1/jobs?session= lists."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [SESSION_OPEN]})

    session: str
    plugin: PluginAnswer
    snapshot: Digest
    created_at: Timestamp
    open_job: JobId | None
    jobs: tuple[JobId, ...]
    has_more: bool


class Message(Answer):
    """`seq` counts the session's messages from 1. `content` null: it was erased."""

    seq: int
    job_id: JobId
    role: Literal["user", "assistant"]
    at: Timestamp
    content: JsonValue


class MessageList(Answer):
    """Oldest first. `next_cursor` is good for later messages too."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [MESSAGES]})

    data: tuple[Message, ...]
    next_cursor: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message stands, and where its content is: in a blob, in a text, or (neither) in the job's receipt."""

    number: int
    job: JobOfSession
    spoken: Spoken | None = None
    ref: BlobRef | None = None


class Sessions:
    def __init__(self, reader: Reader, sessions: SessionReader) -> None:
        self._reader = reader
        self._sessions = sessions

    async def show(self, viewer: Viewer, session: str) -> SessionAnswer:
        facts = await self._admitted(viewer, session, "sessions:read", "jobs:read")
        recent = await self._known(viewer.workspace, facts.jobs[-SHOWN_JOBS:])
        return SessionAnswer(
            session=facts.session,
            plugin=PluginAnswer.of(facts.plugin),
            snapshot=facts.snapshot,
            created_at=facts.created_at,
            open_job=facts.last_job if await self._open(viewer.workspace, facts.last_job) else None,
            jobs=tuple(job.job_id for job in recent),
            has_more=len(facts.jobs) > SHOWN_JOBS,
        )

    async def messages(self, viewer: Viewer, session: str, after: str | None, limit: int) -> MessageList:
        start = 0 if after in (None, FROM_START) else read_place(after, "messages")
        facts = await self._admitted(viewer, session, "sessions:read")
        spoken: Mapping[JobId, Sequence[Spoken]] = {}
        if facts.conversation is not None:
            spoken = await self._sessions.spoken(viewer.workspace, facts.conversation)
        jobs = await self._known(viewer.workspace, [job for job in facts.jobs if job.mode == "live"])
        places = list(
            enumerate(
                (place for job in jobs for place in _places(job, spoken.get(job.job_id, ()) if not job.erased else ())),
                1,
            )
        )
        wanted = [(seq, place) for seq, place in places if place.number > start]
        shown: list[Message] = []
        size = 0
        while len(shown) < min(limit, len(wanted)) and size < PAGE_BYTES:
            batch = wanted[len(shown) : min(len(shown) + AT_ONCE, limit)]
            for (seq, place), data in zip(batch, await self._contents(viewer.workspace, batch), strict=True):
                size += len(data or b"")
                shown.append(_message(seq, place, data))
        last = wanted[len(shown) - 1][1].number if shown else start
        cursor = write_place(last, "messages") if last else None
        return MessageList(data=tuple(shown), next_cursor=cursor, has_more=len(shown) < len(wanted))

    async def _admitted(self, viewer: Viewer, session: str, *actions: SessionAction) -> SessionFacts:
        """The session, if one of `actions` opens it to the viewer: scope first, then whether there is one."""
        if not any(action in viewer.scopes for action in actions):
            raise _not_permitted(*actions)
        facts = await self._sessions.session(viewer, session) if SESSION.fullmatch(session) else None
        if facts is None:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such session.")
        if facts.allowed.isdisjoint(actions):
            raise _not_permitted(*actions)
        return facts

    async def _open(self, workspace: Workspace, job_id: JobId) -> bool:
        execution = await self._reader.execution(workspace, job_id)
        return execution is not None and not ended(Look(execution))

    async def _known(self, workspace: Workspace, jobs: Sequence[JobOfSession]) -> list[JobOfSession]:
        """Without reservations that never became a job: of one that the ledger does not vouch for, the engine tells."""
        doubtful = [job.job_id for job in jobs if not job.confirmed]
        found = await asyncio.gather(*(self._reader.execution(workspace, job_id) for job_id in doubtful))
        absent = {job_id for job_id, execution in zip(doubtful, found, strict=True) if execution is None}
        return [job for job in jobs if job.job_id not in absent]

    async def _contents(self, workspace: Workspace, batch: Sequence[tuple[int, _Place]]) -> list[bytes | None]:
        """Of each message its JSON, or its text as UTF-8; None where it was erased."""
        asked = [place.job.job_id for _, place in batch if place.spoken is None]
        inputs: Mapping[JobId, bytes] = await self._sessions.inputs(workspace, asked) if asked else {}

        async def one(place: _Place) -> bytes | None:
            if place.spoken is None:
                return inputs.get(place.job.job_id)
            if place.ref is None:
                return place.spoken.text.encode()
            try:
                return await self._reader.blob(workspace, place.ref)
            except KeyError:
                return None

        return await asyncio.gather(*(one(place) for _, place in batch))


def _places(job: JobOfSession, spoken: Sequence[Spoken]) -> Iterator[_Place]:
    """A number for every message that there may be, so that none moves when another is replaced."""
    first = job.seq * PLACES
    yield _Place(first, job)
    for index, one in enumerate(spoken):
        if one.text or one.text_ref is not None:
            yield _Place(first + 2 * index + 1, job, one, one.text_ref)
        if one.final_ref is not None:
            yield _Place(first + 2 * index + 2, job, one, one.final_ref)


def _message(seq: int, place: _Place, data: bytes | None) -> Message:
    spoken = place.spoken
    is_text = spoken is not None and (place.ref is None or place.ref == spoken.text_ref)
    content: JsonValue = None
    if data:
        content = data.decode() if is_text else json.loads(data)
    return Message(
        seq=seq,
        job_id=place.job.job_id,
        role="user" if spoken is None else "assistant",
        at=(spoken.at if spoken is not None else None) or place.job.at,
        content=content,
    )


def _not_permitted(*actions: SessionAction) -> Refused:
    return Refused(ProblemCode.NOT_PERMITTED, f"This needs the scope and a grant of {' or '.join(actions)}.")
