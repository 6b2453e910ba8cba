"""Lists page over receipts: whatever ends or arrives meanwhile, each job comes once."""

import asyncio

from tests.http.jobs import waiting_job, waiting_plugin
from tests.rig.client import Client
from tests.rig.stack import Stack

JOBS = 250


async def test_250_jobs_are_listed_once_each_while_one_ends_and_one_arrives(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    ending, _ = await waiting_job(app, plugin)
    gate = asyncio.Semaphore(10)

    async def submit() -> str:
        async with gate:
            return await app.accepted(plugin, mode="dry_run")

    jobs = [ending, *await asyncio.gather(*(submit() for _ in range(JOBS - 1)))]
    listed: list[str] = []
    cursor, late = None, ""
    while True:
        page = await app.get(
            "/v1/jobs", params={"plugin": plugin, "limit": 40, **({} if cursor is None else {"after": cursor})}
        )
        listed += [job["job_id"] for job in page["data"]]
        if cursor is None:
            assert (await app.cancel(ending)).status_code == 202
            late = await app.accepted(plugin, mode="dry_run")
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
    assert late not in jobs
    assert sorted(listed) == sorted(jobs)
    assert (await app.get("/v1/jobs", params={"plugin": plugin, "limit": 1}))["data"][0]["job_id"] == late
