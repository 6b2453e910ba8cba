"""A job's or a session's conversation as a chain of blobs: what the model said and asked for, and what came of it.

A blob is `{prev, entries, results, refused_finals, job}` with about 50 entries; the head is written anew until it is
full, so a long job stays linear. Arguments, tool results and long texts are references. `results` names the last result
of each tool, so that the scripted model needs the head alone. In a session each job begins a blob of its own, and no
blob holds an input: those are rows.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.blobs import BlobMissing, Blobs
from workflows.contract.events import Timestamp
from workflows.contract.ids import BlobRef, JobId, ToolName, Workspace
from workflows.contract.job import CallResult

ENTRIES_PER_BLOB = 50
ENTRIES_PER_TURN = 3
INLINE_TEXT = 2000
"""Characters; a longer text is a blob of its own."""
EARLIER = "(What was said and done in this conversation before is left out: it is too long to be shown as a whole.)"
ERASED = "(What was said in this conversation before was erased.)"
HAS_RESULT = frozenset({"ok", "error", "answered"})


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)


class Asked(_Stored):
    """A job of a session begins with its input, which stays in the job's receipt."""

    kind: Literal["asked"] = "asked"
    job_id: JobId


class SaidCall(_Stored):
    """`tool` is the name the model used, cleaned; `note` answers a call that Jobgate itself settled at once."""

    call: int
    tool: str
    args_ref: BlobRef
    note: str | None = None


class Said(_Stored):
    """One answer of the model. `final_ref`: the value that ended the job, where it is small enough to be a result;
    `final_repeats`: that value holds the text and nothing else."""

    kind: Literal["said"] = "said"
    turn: int
    text: str = ""
    text_ref: BlobRef | None = None
    calls: tuple[SaidCall, ...] = ()
    final_ref: BlobRef | None = None
    final_repeats: bool = False
    at: Timestamp | None = None


class Came(_Stored):
    """What came of the calls of the answer before."""

    kind: Literal["came"] = "came"
    results: tuple[CallResult, ...]


class Told(_Stored):
    """A sentence of Jobgate's own to the model."""

    kind: Literal["told"] = "told"
    text: str


Entry = Asked | Said | Came | Told
_StoredEntry = Annotated[Entry, Field(discriminator="kind")]


class Chunk(_Stored):
    prev: BlobRef | None = None
    entries: tuple[_StoredEntry, ...] = ()
    results: dict[ToolName, BlobRef] = Field(default_factory=dict[ToolName, BlobRef])
    refused_finals: int = 0
    """How many answers in a row did not fit the output schema."""
    job: JobId | None = None
    """In a session: whose entries these are."""

    @property
    def begins(self) -> bool:
        """Whether a job of a session begins with it."""
        return bool(self.entries) and isinstance(self.entries[0], Asked)


class Conversation:
    """The head of one job's chain. `add` leaves this one as it is and returns a longer one, which is not stored yet."""

    def __init__(self, blobs: Blobs, workspace: Workspace, head: Chunk, stored_as: BlobRef | None = None) -> None:
        self._blobs = blobs
        self._workspace = workspace
        self._stored_as = stored_as
        self.head = head

    @classmethod
    async def load(cls, blobs: Blobs, workspace: Workspace, ref: BlobRef | None) -> "Conversation":
        head = Chunk() if ref is None else await read_chunk(blobs, workspace, ref)
        return cls(blobs, workspace, head, ref)

    @classmethod
    def after_erased(cls, blobs: Blobs, workspace: Workspace, ref: BlobRef) -> "Conversation":
        """Goes on where what was said before, up to `ref`, is gone."""
        return cls(blobs, workspace, Chunk(), ref)

    def begin(self, job_id: JobId, unheard: Sequence[JobId] = ()) -> "Conversation":
        """This job's part of a session's conversation, in a blob of its own; as it is where that has begun.

        `unheard` are the jobs since the last part that ended before a model answered. No result is carried over.
        """
        if self.head.job == job_id:
            return self
        asked = tuple(Asked(job_id=one) for one in (*unheard, job_id))
        return Conversation(self._blobs, self._workspace, Chunk(prev=self._stored_as, entries=asked, job=job_id))

    def add(self, *entries: Entry, refused_finals: int | None = None) -> "Conversation":
        """`refused_finals` None: as many as before."""
        head = self.head
        if self._stored_as is not None and len(head.entries) + ENTRIES_PER_TURN > ENTRIES_PER_BLOB:
            head = Chunk(prev=self._stored_as, results=head.results, refused_finals=head.refused_finals, job=head.job)
        results = [result for entry in entries if isinstance(entry, Came) for result in entry.results]
        last = {one.tool: one.result_ref for one in results if one.result_ref and one.outcome in HAS_RESULT}
        grown = Chunk(
            prev=head.prev,
            entries=(*head.entries, *entries),
            results={**head.results, **last},
            refused_finals=head.refused_finals if refused_finals is None else refused_finals,
            job=head.job,
        )
        return Conversation(self._blobs, self._workspace, grown)

    async def store(self, job_id: JobId) -> BlobRef:
        """The new head, kept with the job that goes on with it."""
        return await self._blobs.keep(self._workspace, job_id, self.head.model_dump_json().encode())

    async def chunks(self) -> list[Chunk]:
        """Oldest first: reads the whole chain, as far back as it is kept."""
        return [chunk async for chunk in self._newest_first()][::-1]

    async def recent(self, at_most: int, size: Callable[[Entry], Awaitable[int]]) -> list[Entry]:
        """Oldest first: the newest entries that together have at most so many bytes, those of the last turn whatever
        they have. Reads no further back; where something before is left out or gone, a sentence says so."""
        kept: list[Entry] = []
        oldest = self.head
        async for oldest in self._newest_first():
            for entry in reversed(oldest.entries):
                at_most -= await size(entry)
                if at_most < 0 and len(kept) >= ENTRIES_PER_TURN:
                    return [Told(text=EARLIER), *reversed(kept)]
                kept.append(entry)
        gone: list[Entry] = [] if oldest.prev is None else [Told(text=ERASED)]
        return [*gone, *reversed(kept)]

    async def _newest_first(self) -> AsyncGenerator[Chunk]:
        """Of an earlier job of the session all may be gone; the part of a job itself is whole, or `BlobMissing` is
        raised."""
        chunk = self.head
        yield chunk
        while chunk.prev is not None:
            try:
                before = await read_chunk(self._blobs, self._workspace, chunk.prev)
            except BlobMissing:
                if not chunk.begins:
                    raise
                return
            chunk = before
            yield chunk


async def read_chunk(blobs: Blobs, workspace: Workspace, ref: BlobRef) -> Chunk:
    return Chunk.model_validate_json(await blobs.get(workspace, ref))
