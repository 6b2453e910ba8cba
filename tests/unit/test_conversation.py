"""A conversation keeps everything in order, in blobs of bounded size, and the last result of each tool at its head.

In a session each job has blobs of its own, so that what a job said can go and the others' stays.
"""

from pathlib import Path

import pytest

from gateway.blobs import BlobMissing, Blobs
from gateway.conversation import EARLIER, ENTRIES_PER_BLOB, ERASED, Asked, Came, Conversation, Entry, Said, Told
from workflows.contract.ids import BlobRef, JobId, ToolName, Workspace, sha256_of
from workflows.contract.job import CallResult

DEMO = Workspace("demo")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs.open(tmp_path.as_uri())


def ref(text: str) -> BlobRef:
    return BlobRef(sha256_of(text.encode()))


def came(tool: str, outcome: str, result: BlobRef | None) -> Came:
    return Came(
        results=(CallResult.model_validate({"call": 1, "tool": tool, "outcome": outcome, "result_ref": result}),)
    )


async def everything(conversation: Conversation) -> list[Entry]:
    return await conversation.recent(1_000_000, bytes_of)


async def test_every_entry_comes_back_in_order_from_bounded_blobs(blobs: Blobs) -> None:
    head: BlobRef | None = None
    for turn in range(1, 201):
        conversation = await Conversation.load(blobs, DEMO, head)
        if turn > 1:
            conversation = conversation.add(came("t", "ok", ref(f"result {turn - 1}")))
        conversation = conversation.add(Said(turn=turn, text=f"turn {turn}"))
        assert len(conversation.head.entries) <= ENTRIES_PER_BLOB
        head = await conversation.store(JobId("k-1"))
    entries = await everything(await Conversation.load(blobs, DEMO, head))
    said = [entry.turn for entry in entries if isinstance(entry, Said)]
    assert said == list(range(1, 201))
    results = [entry.results[0].result_ref for entry in entries if isinstance(entry, Came)]
    assert results == [ref(f"result {turn}") for turn in range(1, 200)]


async def bytes_of(entry: Entry) -> int:
    return len(entry.text) if isinstance(entry, Said) else 0


async def test_a_model_is_shown_what_fits_of_the_newest_and_its_last_turn_whole(blobs: Blobs) -> None:
    conversation = await Conversation.load(blobs, DEMO, None)
    for turn in range(1, 101):
        conversation = conversation.add(Said(turn=turn, text="ten chars."))
        conversation = await Conversation.load(blobs, DEMO, await conversation.store(JobId("k-1")))
    for at_most, shown in [(100, 10), (109, 10), (110, 11), (990, 99), (0, 3), (9, 3)]:
        note, *entries = await conversation.recent(at_most, bytes_of)
        assert note == Told(text=EARLIER)
        assert [entry.turn for entry in entries if isinstance(entry, Said)] == list(range(101 - shown, 101))
    assert len(await conversation.recent(1000, bytes_of)) == 100


async def test_what_is_not_shown_is_not_even_read(blobs: Blobs) -> None:
    conversation = (await Conversation.load(blobs, DEMO, None)).add(*[Said(turn=1, text="x" * 100)] * ENTRIES_PER_BLOB)
    head = await conversation.store(JobId("k-1"))
    longer = (await Conversation.load(blobs, DEMO, head)).add(*[Said(turn=2, text="x" * 100)] * 30)
    assert longer.head.prev == head
    missing = longer.head.model_copy(update={"prev": ref("nothing is here")})
    conversation = Conversation(blobs, DEMO, missing)
    assert len(await conversation.recent(2000, bytes_of)) == 1 + 20
    with pytest.raises(BlobMissing):
        await conversation.recent(3000, bytes_of)


async def test_the_head_names_the_last_result_of_each_tool_across_blobs(blobs: Blobs) -> None:
    conversation = Conversation(blobs, DEMO, (await Conversation.load(blobs, DEMO, None)).head)
    conversation = conversation.add(came("old", "ok", ref("old")))
    head = await conversation.store(JobId("k-1"))
    for turn in range(100):
        conversation = (await Conversation.load(blobs, DEMO, head)).add(came("t", "ok", ref(str(turn))))
        head = await conversation.store(JobId("k-1"))
    assert conversation.head.results == {ToolName("old"): ref("old"), ToolName("t"): ref("99")}


@pytest.mark.parametrize("outcome", ["refused", "rejected", "expired"])
async def test_a_call_that_did_not_run_has_no_result(blobs: Blobs, outcome: str) -> None:
    conversation = await Conversation.load(blobs, DEMO, None)
    assert conversation.add(came("t", outcome, ref("a reason"))).head.results == {}


@pytest.mark.parametrize("outcome", ["ok", "error", "answered"])
async def test_what_a_tool_or_person_said_is_a_result(blobs: Blobs, outcome: str) -> None:
    conversation = await Conversation.load(blobs, DEMO, None)
    assert conversation.add(came("t", outcome, ref("said"))).head.results == {ToolName("t"): ref("said")}


async def test_the_same_turn_again_is_the_same_blob(blobs: Blobs) -> None:
    first = await (await Conversation.load(blobs, DEMO, None)).add(Told(text="x"), refused_finals=1).store(JobId("k-1"))
    again = await (await Conversation.load(blobs, DEMO, None)).add(Told(text="x"), refused_finals=1).store(JobId("k-1"))
    assert first == again
    assert (await Conversation.load(blobs, DEMO, first)).head.refused_finals == 1


async def job_of_session(blobs: Blobs, before: BlobRef | None, job: str, turns: int = 1) -> list[BlobRef]:
    """The heads after each turn of one more job."""
    heads: list[BlobRef] = []
    for turn in range(1, turns + 1):
        conversation = (await Conversation.load(blobs, DEMO, heads[-1] if heads else before)).begin(JobId(job))
        grown = conversation.add(came("t", "ok", ref(job)), Said(turn=turn, text=f"{job} {turn}"))
        heads.append(await grown.store(JobId(job)))
    return heads


async def test_a_job_of_a_session_begins_once_in_a_blob_of_its_own_and_without_results(blobs: Blobs) -> None:
    first = await job_of_session(blobs, None, "k-1", turns=2)
    conversation = await Conversation.load(blobs, DEMO, first[-1])
    assert [type(entry) for entry in conversation.head.entries] == [Asked, Came, Said, Came, Said]
    assert conversation.head.results == {ToolName("t"): ref("k-1")}
    following = conversation.begin(JobId("k-3"), [JobId("k-2")])
    assert following.head.entries == (Asked(job_id=JobId("k-2")), Asked(job_id=JobId("k-3")))
    assert (following.head.prev, following.head.results, following.head.job) == (first[-1], {}, "k-3")
    assert following.begin(JobId("k-3")) is following


async def test_a_long_job_of_a_session_is_its_own_in_every_blob(blobs: Blobs) -> None:
    first = await job_of_session(blobs, None, "k-1")
    second = await job_of_session(blobs, first[-1], "k-2", turns=60)
    chunks = await (await Conversation.load(blobs, DEMO, second[-1])).chunks()
    assert [chunk.job for chunk in chunks] == ["k-1", "k-2", "k-2", "k-2"]
    assert [chunk.begins for chunk in chunks] == [True, True, False, False]


async def test_what_an_erased_job_said_is_gone_and_the_rest_stays(blobs: Blobs, tmp_path: Path) -> None:
    first = await job_of_session(blobs, None, "k-1")
    second = await job_of_session(blobs, first[-1], "k-2", turns=60)
    (tmp_path / DEMO / first[-1].replace("sha256:", "")).unlink()
    later = Blobs.open(tmp_path.as_uri())
    entries = await everything(await Conversation.load(later, DEMO, second[-1]))
    assert entries[0] == Told(text=ERASED)
    assert [entry.text for entry in entries if isinstance(entry, Said)] == [f"k-2 {turn}" for turn in range(1, 61)]


async def test_a_job_whose_own_part_is_broken_does_not_go_on(blobs: Blobs, tmp_path: Path) -> None:
    heads = await job_of_session(blobs, None, "k-1", turns=60)
    held = {path.name for path in (tmp_path / DEMO).glob("*/*")}
    prev = (await Conversation.load(blobs, DEMO, heads[-1])).head.prev
    assert prev is not None
    assert prev.rpartition("sha256:")[2] in held
    (tmp_path / DEMO / prev.replace("sha256:", "")).unlink()
    later = Blobs.open(tmp_path.as_uri())
    with pytest.raises(BlobMissing):
        await everything(await Conversation.load(later, DEMO, heads[-1]))


async def test_a_conversation_of_the_first_release_reads_as_it_was(blobs: Blobs) -> None:
    old = b'{"prev":null,"entries":[{"kind":"said","turn":1,"text":"Hi.","text_ref":null,"calls":[]}],"results":{}}'
    conversation = await Conversation.load(blobs, DEMO, BlobRef(await blobs.put(DEMO, old)))
    assert await everything(conversation) == [Said(turn=1, text="Hi.")]
    assert conversation.head.job is None
