"""Places: a share for everybody, lines served in turn, and nothing kept by whoever left, however they left."""

import asyncio
import random
from collections import Counter

import pytest

from gateway.places import Kind, Place, Places, Room, Why
from gateway.settings import load_settings
from tests.rig.waiting import wait_until
from workflows.contract.errors import ProblemCode, Refused

A, B, C = ("demo", "a"), ("demo", "b"), ("demo", "c")
SOON_S, LONG_S = 0.2, 60.0


def later(seconds: float = LONG_S) -> float:
    return asyncio.get_running_loop().time() + seconds


async def seated(room: Room, who: tuple[str, str]) -> Place:
    place, why = await room.enter(who, later())
    assert place is not None, why
    return place


def waiting(room: Room, who: tuple[str, str], *names: str, order: list[str]) -> list[asyncio.Task[Place]]:
    """So many more of this guest, each of which writes its name down when it is seated."""

    async def wait(name: str) -> Place:
        place = await seated(room, who)
        order.append(name)
        return place

    return [asyncio.create_task(wait(name)) for name in names]


def left(room: Room) -> tuple[int, int, int, int]:
    """Places, waiting, guests and turns that the room still knows of."""
    return room.taken, room.waiting, len(room._guests), len(room._turns)  # pyright: ignore[reportPrivateUsage]


async def test_one_guest_never_takes_the_share_of_others() -> None:
    room = Room(4, 10, 0.5)
    mine = [await seated(room, A) for _ in range(2)]
    order: list[str] = []
    more = waiting(room, A, "a3", order=order)
    await wait_until(lambda: room.waiting == 1)
    others = [await seated(room, B), await seated(room, C)]
    assert order == []
    others.pop().leave()
    await asyncio.sleep(0)
    assert order == []  # a place is free, and it is not for who has a share already
    mine.pop().leave()
    for place in [*mine, *others, *await asyncio.gather(*more)]:
        place.leave()
    assert left(room) == (0, 0, 0, 0)


async def test_lines_are_served_in_turn() -> None:
    room, order = Room(1, 100, 1.0), list[str]()
    first = await seated(room, A)
    tasks = waiting(room, A, "a1", "a2", "a3", order=order)
    await wait_until(lambda: room.waiting == 3)
    tasks += waiting(room, B, "b1", "b2", order=order) + waiting(room, C, "c1", order=order)
    await wait_until(lambda: room.waiting == 6)
    first.leave()
    for task in asyncio.as_completed(tasks):
        (await task).leave()
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert left(room) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("room", "held", "line", "who", "why"),
    [
        (Room(2, 0, 0.5), (A,), (), A, "share"),
        (Room(2, 0, 0.5), (A, B), (), C, "full"),
        (Room(2, 4, 0.5), (A,), (A, A), A, "share"),
        (Room(2, 2, 0.5), (A, B), (A, B), C, "full"),
    ],
)
async def test_what_is_beyond_the_line_is_refused_at_once(
    room: Room, held: tuple[tuple[str, str], ...], line: tuple[tuple[str, str], ...], who: tuple[str, str], why: Why
) -> None:
    places = [await seated(room, one) for one in held]
    lined = [task for one in line for task in waiting(room, one, "", order=[])]
    await wait_until(lambda: room.waiting == len(line))
    assert await room.enter(who, later()) == (None, why)
    for place in places:
        place.leave()
    for task in lined:
        (await task).leave()
    assert left(room) == (0, 0, 0, 0)


async def test_a_line_that_does_not_move_takes_nobody_who_has_no_time_for_it() -> None:
    room = Room(1, 100, 1.0)
    place = await seated(room, A)
    [task] = waiting(room, A, "a1", order=[])
    began = later(0)
    await wait_until(lambda: later(0) > began + SOON_S)
    assert await room.enter(A, later(2 * SOON_S)) == (None, "late")
    assert room.retry_after_s(A) == 1
    # Whoever has the time waits, and a line that moves is believed in.
    more = waiting(room, A, *map(str, range(20)), order=[])
    place.leave()
    for each in asyncio.as_completed([task, *more]):
        (await each).leave()
    assert left(room) == (0, 0, 0, 0)


async def test_who_waits_in_vain_is_told_so_while_the_clock_still_runs() -> None:
    room = Room(1, 10, 1.0)
    place, until = await seated(room, A), later(4 * SOON_S)
    assert await room.enter(B, until) == (None, "late")
    assert later(0) < until
    place.leave()
    assert left(room) == (0, 0, 0, 0)


async def test_who_is_seated_at_the_moment_of_leaving_gives_the_place_back() -> None:
    room = Room(1, 10, 1.0)
    place = await seated(room, A)
    leaving, staying = waiting(room, B, "b1", "b2", order=[])
    await wait_until(lambda: room.waiting == 2)
    place.leave()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    (await staying).leave()
    assert left(room) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_a_storm_of_guests_who_leave_at_any_moment_leaves_nothing(seed: int) -> None:
    rng = random.Random(seed)
    room, inside, worst, ends = Room(8, 40, 0.5), Counter[str](), Counter[str](), Counter[str]()

    async def visit(who: str) -> None:
        place, why = await room.enter(("demo", who), later(rng.uniform(0.001, 0.05)))
        if place is None:
            ends[str(why)] += 1
            return
        inside[who] += 1
        worst[who] = max(worst[who], inside[who])
        worst["all"] = max(worst["all"], inside.total())
        try:
            await asyncio.sleep(rng.uniform(0, 0.01))
            ends["served"] += 1
        finally:
            inside[who] -= 1
            place.leave()

    visits: list[asyncio.Task[None]] = []
    for _ in range(400):
        visits.append(asyncio.create_task(visit(rng.choice("aaaabc"))))
        if rng.random() < 0.2:
            rng.choice(visits).cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 0.003))
    await asyncio.gather(*visits, return_exceptions=True)
    assert left(room) == (0, 0, 0, 0)
    assert max(worst[who] for who in "abc") <= 4
    assert worst["all"] <= 8
    assert ends["served"] > 50


async def test_a_process_that_ends_takes_nobody_and_sends_away_who_waits() -> None:
    refused: list[tuple[Kind, Why]] = []
    places = Places(load_settings(submissions_at_once=1), lambda kind, why: refused.append((kind, why)))
    place = await places.enter(Kind.SUBMISSIONS, A, later())
    waits = asyncio.create_task(places.enter(Kind.SUBMISSIONS, A, later()))
    await wait_until(lambda: (Kind.SUBMISSIONS, 1, 1) in list(places.figures()))
    places.close()
    for coming in (waits, places.enter(Kind.READS, B, later())):
        with pytest.raises(Refused) as told:
            await coming
        assert (told.value.code, told.value.retry_after_s) == (ProblemCode.STOPPING, 1)
    assert places.taken == 1
    place.leave()
    assert places.taken == 0
    assert refused == [(Kind.READS, "stopping")]
