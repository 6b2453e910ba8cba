"""A conversation keeps everything in order, in blobs of bounded size, and the last result of each tool at its head."""

from pathlib import Path

import pytest

from gateway.conversation import ENTRIES_PER_BLOB, Came, Conversation, Said, Told
from gateway.blobs import Blobs
from workflows.contract.ids import BlobRef, ToolName, Workspace, sha256_of
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


async def test_every_entry_comes_back_in_order_from_bounded_blobs(blobs: Blobs) -> None:
    head: BlobRef | None = None
    for turn in range(1, 201):
        conversation = await Conversation.load(blobs, DEMO, head)
        if turn > 1:
            conversation = conversation.add(came("t", "ok", ref(f"result {turn - 1}")))
        conversation = conversation.add(Said(turn=turn, text=f"turn {turn}"))
        assert len(conversation.head.entries) <= ENTRIES_PER_BLOB
        head = await conversation.store()
    entries = await (await Conversation.load(blobs, DEMO, head)).entries()
    said = [entry.turn for entry in entries if isinstance(entry, Said)]
    assert said == list(range(1, 201))
    results = [entry.results[0].result_ref for entry in entries if isinstance(entry, Came)]
    assert results == [ref(f"result {turn}") for turn in range(1, 200)]


async def test_the_head_names_the_last_result_of_each_tool_across_blobs(blobs: Blobs) -> None:
    conversation = Conversation(blobs, DEMO, (await Conversation.load(blobs, DEMO, None)).head)
    conversation = conversation.add(came("old", "ok", ref("old")))
    head = await conversation.store()
    for turn in range(100):
        conversation = (await Conversation.load(blobs, DEMO, head)).add(came("t", "ok", ref(str(turn))))
        head = await conversation.store()
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
    first = await (await Conversation.load(blobs, DEMO, None)).add(Told(text="x"), refused_finals=1).store()
    again = await (await Conversation.load(blobs, DEMO, None)).add(Told(text="x"), refused_finals=1).store()
    assert first == again
    assert (await Conversation.load(blobs, DEMO, first)).head.refused_finals == 1
