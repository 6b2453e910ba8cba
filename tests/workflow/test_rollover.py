"""A job that continues in a new run is the same job: numbering, usage, requests, hints and memo go on."""

import asyncio

import pytest

import workflows.loop
import workflows.people
from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import CACHED, Jobs
from tests.workflow.test_authority import END, GONE
from workflows.contract.job import MEMO_START, SEGMENT_EVENTS, MemoStart
from workflows.journal import size_of
from workflows.opening import memo_of

READ = call(0, "invoices.get")


async def test_job_that_rolls_over_goes_on_as_the_same_job(jobs: Jobs) -> None:
    hands = Hands(model=[*(turn(n, READ, input_tokens=10) for n in range(1, 6)), final(6)])
    job = await jobs.start(hands, roll_over_after=20)
    ended = await job.end()
    runs = await job.runs()
    assert len(runs) >= 3
    turns = [
        line
        for n in range(1, 6)
        for line in (
            f"step.started turn {n}",
            f"step.finished turn {n}: 1 calls",
            "tool.started invoices.get #0",
            "tool.finished invoices.get #0 ok",
        )
    ]
    assert ended.story == [
        "job.queued",
        "job.started",
        *turns,
        "step.started turn 6",
        "step.finished turn 6: 0 calls",
        "job.succeeded",
    ]
    assert (ended.view.usage.steps, ended.view.usage.input_tokens) == (11, 50)
    assert [asked.step for asked in hands.asked_model] == [1, 3, 5, 7, 9, 11]
    assert [asked.conversation for asked in hands.asked_model[1:]] == [turn(n).conversation for n in range(1, 6)]
    assert all(len(asked.results) == 1 for asked in hands.asked_model[1:])


async def test_new_run_has_the_memo_and_search_attributes_of_the_job(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, READ), turn(2, READ), final(3)]), roll_over_after=15)
    await job.end()
    runs = await job.runs()
    assert len(runs) >= 2
    for run in runs:
        described = await jobs.client.get_workflow_handle(job.handle.id, run_id=run).describe()
        assert await described.memo_value(MEMO_START, type_hint=MemoStart) == memo_of(job.start)
    last = await jobs.client.get_workflow_handle(job.handle.id, run_id=runs[-1]).fetch_history()
    started = last.events[0].workflow_execution_started_event_attributes
    assert {"job", "state"} <= set(started.memo.fields)


async def test_requests_keep_their_numbers_over_a_roll_over(jobs: Jobs) -> None:
    ask = call(0, "refunds.create", "write", ask=True, action="the same")
    job = await jobs.start(Hands(model=[*(turn(n, ask) for n in range(1, 5)), final(5)]), roll_over_after=12)
    for number in (1, 2, 3):
        [request] = await job.pending(1, newest=f"r{number}")
        await job.decide(request, "reject")
    ended = await job.end()
    assert len(await job.runs()) >= 3
    assert [line for line in ended.story if "refunds.create" in line][-1] == "tool.refused refunds.create #0"
    assert [request.state for request in ended.view.requests] == ["rejected"] * 3


async def test_cancel_near_a_roll_over_is_never_lost(real_jobs: Jobs) -> None:
    for number in range(12):
        job = await real_jobs.start(Hands(forever=lambda number: turn(number, READ)), roll_over_after=12)
        await job.until_ran(f"model {1 + number % 4}.1")
        await job.handle.cancel()
        assert (await job.end()).story[-2:] == ["cancel.requested", "job.canceled"]


async def test_signals_during_roll_overs_are_each_in_the_log_once(jobs: Jobs) -> None:
    job = await jobs.start(Hands(forever=lambda number: turn(number, READ)), roll_over_after=12)
    for number in range(40):
        await job.handle.signal(f"noise-{number}")
    await job.until_ran(f"model {job.hands.asked_model[-1].turn + 2}.1")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story.count("decision.refused unknown_signal") == 40


async def test_look_at_the_ledger_that_a_roll_over_cuts_off_is_taken_anew(jobs: Jobs) -> None:
    silent = asyncio.Event()
    hands = Hands(forever=lambda number: turn(number, READ), authorities=[silent, GONE])
    job = await jobs.start(hands, roll_over_after=30)
    await job.handle.signal("authority")
    ended = await job.end()
    silent.set()
    assert [line for line in ended.story if line.startswith(("authority", "job.failed"))] == END
    assert hands.ran.count("read_authority") == 2
    assert len(await job.runs()) == 2


async def test_turn_of_more_events_than_a_segment_leaves_no_more_than_one_behind(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.loop, "SEGMENT_EVENTS", 10)
    wide = [call(n, "invoices.get") for n in range(20)]
    job = await jobs.start(Hands(model=[turn(1, *wide), turn(2, *wide), final(3)]), roll_over_after=80)
    ended = await job.end()
    assert len(await job.runs()) >= 2
    assert [(s.first, s.last) for s in ended.record.segments] == [(n, n + 9) for n in range(1, 81, 10)]
    archived = [event for segment in ended.record.segments for event in job.hands.archives[segment.ref]]
    assert [event.seq for event in archived] == list(range(1, 81))
    assert len(ended.record.events) < 10 + 4


async def test_events_with_long_texts_are_archived_by_their_bytes(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows.loop, "SEGMENT_BYTES", 8000)
    long = "語" * 500
    job = await jobs.start(Hands(model=[*(turn(n, READ, say=long) for n in range(1, 11)), final(11)]))
    ended = await job.end()
    segments = [job.hands.archives[segment.ref] for segment in ended.record.segments]
    assert len(segments) == 3
    assert all(sum(map(size_of, events)) <= 8000 for events in segments)
    assert [event.seq for events in segments for event in events] == list(range(1, ended.record.segments[-1].last + 1))


async def test_job_that_asks_for_ever_carries_the_counts_of_its_last_calls_only(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.people, "ASKED_KEPT", 3)
    actions = ["same", "same", "same", "same", "a", "b", "c", "same"]
    asks = [turn(n, call(0, "refunds.create", "write", ask=True, action=it)) for n, it in enumerate(actions, 1)]
    job = await jobs.start(Hands(model=[*asks, final(9)]))
    for number in range(1, 8):
        [request] = await job.pending(1, newest=f"r{number}")
        await job.decide(request, "reject")
    ended = await job.end()
    assert [line for line in ended.story if line.startswith("tool.refused")] == ["tool.refused refunds.create #0"]
    assert len([line for line in ended.story if line.startswith("request.opened")]) == 7


async def test_full_segment_of_events_is_archived(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SEGMENT_EVENTS if CACHED else 50  # without a cache each task replays all the others
    monkeypatch.setattr(workflows.loop, "SEGMENT_EVENTS", full)
    turns = full * 3 // 10
    job = await jobs.start(Hands(model=[*(turn(n, READ) for n in range(1, turns + 1)), final(turns + 1)]))
    ended = await job.end()
    [segment] = ended.record.segments
    assert (segment.first, segment.last) == (1, full)
    archived = job.hands.archives[segment.ref]
    assert [event.seq for event in archived] == list(range(1, full + 1))
    assert ended.record.events[0].seq == full + 1
    assert ended.record.events[-1].seq == 2 + turns * 4 + 2 + 1
    assert job.hands.ran.count("archive_events") == 1
    look = await job.look(after=0)
    assert look.events[0].seq == full + 1
    assert look.segments == ended.record.segments
