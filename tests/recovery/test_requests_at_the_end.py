"""An API that is stopped while requests wait for an engine that is silent: each gets a problem, none a bare 500."""

import asyncio
import sqlite3
from contextlib import closing

from tests.conftest import FreshStack
from tests.recovery.grounds import published
from tests.rig.client import fresh_key, problem
from tests.rig.plugins import final
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until


def reserved(stack: Stack, key: str) -> bool:
    with closing(sqlite3.connect(f"file:{stack.data / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        return ledger.execute("SELECT count(*) FROM receipts WHERE job_id = ?", (key,)).fetchone()[0] == 1


async def test_what_outlasts_the_grace_of_a_stopped_api_is_answered_with_a_problem(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(workers=0, settings={"JOBGATE_API_GRACE_S": "1"})
    plugin = await published(stack, [final()])
    app, key = stack.client(), fresh_key()
    job = await app.accepted(plugin)
    stack.temporal.freeze()
    read = asyncio.create_task(app.http.get(f"/v1/jobs/{job}"))
    cancel = asyncio.create_task(app.cancel(job))
    submitted = asyncio.create_task(app.submit(plugin, key=key))
    await wait_until(lambda: reserved(stack, key), 5, what="the submission waits for the engine")
    assert await asyncio.to_thread(stack.apis[0].stop) == 0
    assert problem(await submitted) == (503, "admission-unknown")
    assert problem(await read) == (504, "http-deadline-exceeded")
    assert problem(await cancel) == (504, "http-deadline-exceeded")
    stack.temporal.resume()
