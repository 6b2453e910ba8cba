"""However many ask for the health of a process, it is looked at once at a time, and each answer is of its own time."""

import asyncio

from gateway.health import one_at_a_time
from tests.rig.waiting import wait_until


async def test_a_crowd_that_asks_for_health_is_one_look_and_the_next_asker_another() -> None:
    looks, answer = 0, asyncio.Event()

    async def look() -> int:
        nonlocal looks
        looks += 1
        await answer.wait()
        return looks

    ask = one_at_a_time(look)
    crowd = [asyncio.ensure_future(ask()) for _ in range(50)]
    await wait_until(lambda: looks == 1)
    crowd.pop().cancel()  # who leaves takes nobody's answer away
    answer.set()
    assert await asyncio.gather(*crowd) == [1] * 49
    assert await ask() == 2
