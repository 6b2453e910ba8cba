"""The load: each planned job has somebody who submits, watches, cancels and retries it, however often that takes."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from tests.chaos.facts import CancelFacts, OddAnswer, Told
from tests.chaos.plan import APPS, JobPlan, Plan, app_name
from tests.chaos.rules_jobs import TERMINAL
from tests.chaos.speaking import Record, Reply, Speaker
from tests.chaos.watching import watch_by_poll, watch_by_stream
from tests.rig.client import Json
from tests.rig.stack import Stack
from tests.rig.wire_client import speak


class Load:
    def __init__(self, stack: Stack, plan: Plan, record: Record, reader: Speaker) -> None:
        """`reader` may read every job, whoever loses their grants."""
        self._stack = stack
        self._plan = plan
        self._record = record
        self._reader = reader
        self.apps = [Speaker(stack, record, app_name(number)) for number in range(APPS)]
        self.watchers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until every planned job was dealt with; watchers go on in `watchers`."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for job in self._plan.jobs:
                await asyncio.sleep(max(began + job.at_s - asyncio.get_running_loop().time(), 0))
                group.create_task(self._live(job))

    def body(self, job: JobPlan) -> Json:
        return {"plugin": job.story, "input": {"key": job.key}, "timeout_seconds": job.timeout_s}

    async def submit(self, job: JobPlan, api: int) -> None:
        """The same body until somebody answers it; 202 and 200 are told and compared."""
        headers = {"Idempotency-Key": job.key}
        app = self.apps[job.app]
        reply = await app.insist("submit", "POST", "/v1/jobs", self.body(job), api=api, headers=headers)
        self.hear(job.key, reply)

    def hear(self, key: str, reply: Reply | None) -> None:
        if reply is not None:
            self._record.told[key].append(Told(reply.status, reply.body, reply.answered_ns))

    async def _live(self, job: JobPlan) -> None:
        if job.mishap == "cut":
            await self._cut_off(job)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.submit(job, job.api))
            if job.mishap == "twice":
                group.create_task(self.submit(job, job.api + 1))
        if not self._record.accepted(job.key):
            return
        if job.mishap == "other_body":
            await self._try_other_body(job)
        watchers = {"stream": watch_by_stream, "poll": watch_by_poll}
        if job.watch in watchers:
            watching = watchers[job.watch](self._reader, job.key, job.api, job.leaves_after)
            self.watchers.append(asyncio.create_task(watching))
        if job.cancel_after_s is not None:
            await asyncio.sleep(job.cancel_after_s)
            await self._cancel(job)
        if job.retried:
            await self._retry_once_ended(job)
        await self.submit(job, job.api + 1)  # whoever asks again later hears the same

    async def _cut_off(self, job: JobPlan) -> None:
        client = self.apps[job.app].client(job.api)
        body = json.dumps(self.body(job)).encode()
        self._record.answers["submit: cut off"] += 1
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                await speak(
                    client.url, client.token, "POST", "/v1/jobs", body, {"Idempotency-Key": job.key}, answer=False
                )

    async def _try_other_body(self, job: JobPlan) -> None:
        body: dict[str, Any] = {**self.body(job), "input": {"key": "another"}}
        headers = {"Idempotency-Key": job.key}
        app = self.apps[job.app]
        reply = await app.insist("other body", "POST", "/v1/jobs", body, api=job.api + 1, headers=headers)
        if reply is not None and (reply.status, reply.code) != (422, "idempotency-key-reused"):
            says = f"{job.key} with other content: {reply.code or reply.body[:200]}"
            self._record.odd.append(OddAnswer("POST /v1/jobs", reply.status, says))

    async def _cancel(self, job: JobPlan) -> None:
        """Twice, at both processes. By the reader's side of the house: the app's grants may be gone."""
        for api in (job.api, job.api + 1):
            reply = await self._reader.insist("cancel", "POST", f"/v1/jobs/{job.key}/cancel", api=api)
            if reply is None:
                continue
            if reply.status not in (200, 202):
                self._record.odd.append(OddAnswer(f"cancel {job.key}", reply.status, reply.code))
                continue
            said = reply.json
            self._record.cancels.append(
                CancelFacts(
                    job=job.key,
                    status=reply.status,
                    asked_ns=reply.asked_ns,
                    answered_ns=reply.answered_ns,
                    requested_at=said["cancel_requested_at"],
                    in_flight=tuple(one["effect_id"] for one in said["in_flight"]),
                )
            )

    async def _retry_once_ended(self, job: JobPlan) -> None:
        """Waits a while for the job's end; a job that has not ended is asked for in vain."""
        for _ in range(40):
            view = await self._reader.status(job.key, job.api)
            if view is not None and view["status"] in TERMINAL:
                break
            await asyncio.sleep(0.5)
        await self.retry(job)

    async def retry(self, job: JobPlan) -> None:
        """Once more, under a key of its own, until somebody answers."""
        key = f"{job.key}-again"
        self._record.retries[job.key] = key
        path, headers = f"/v1/jobs/{job.key}/retry", {"Idempotency-Key": key}
        app = self.apps[job.app]
        self.hear(key, await app.insist("retry", "POST", path, {"timeout_seconds": 1800}, api=job.api, headers=headers))
