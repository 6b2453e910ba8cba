"""Every verb of the API, asked at once while something is in trouble, and what must be true of it afterwards.

What the verbs are about is made while all is well: a job that has ended, one that waits for a decision, one to be
canceled, and three whose model, read and write are under way when the trouble begins.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import httpx2
from sqlalchemy import Connection, func, select

from gateway.ledger.tables import effects
from tests.http.submissions import CANARY, ledger_of, runs_of
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.rig.client import TERMINAL, Client, Json, fresh_key, problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S = 60.0
CLOCK_S = 5.0
SLACK_S = 3.0
"""What a machine that is busy with other tests may add."""

Verb = Callable[[], Awaitable[httpx2.Response]]


@dataclass(slots=True)
class World:
    """What was made for one trouble. `verbs` may be asked again and again: each names the same thing every time."""

    stack: Stack
    app: Client
    approver: Client
    operator: Client
    plugin: str
    held: str
    jobs: dict[str, str] = field(default_factory=dict[str, str])
    verbs: dict[str, Verb] = field(default_factory=dict[str, Verb])
    receipts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    watching: "asyncio.Task[list[str]] | None" = None

    async def ask_all(self) -> dict[str, httpx2.Response]:
        """Every verb at once, each inside the request clock."""

        async def in_time(name: str, verb: Verb) -> httpx2.Response:
            began = time.monotonic()
            try:
                answer = await verb()
            except httpx2.HTTPError as error:
                raise AssertionError(f"{name} broke off: {error!r}") from error
            took = time.monotonic() - began
            assert took < CLOCK_S + SLACK_S, f"{name} took {took:.1f} s: {answer.status_code}"
            return answer

        answers = await asyncio.gather(*(in_time(name, verb) for name, verb in self.verbs.items()))
        return dict(zip(self.verbs, answers, strict=True))


SUCCESS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("submit", "retry"), (202, 200)),
    **dict.fromkeys(("decision", "cancel"), (200, 202)),
    **dict.fromkeys(("upload", "publish"), (201, 200)),
    "locate": (302,),
}
"""Whatever is not named here is a 200."""
LATE_WRITES = "jobgate_write_after_cancel_total"
ALWAYS = frozenset({"livez"})
TRY_AGAIN = (503, 504)


def unfit(answers: Mapping[str, httpx2.Response]) -> dict[str, str]:
    """The verbs whose answer is neither what was asked for nor a typed refusal to be asked again."""
    return {name: f"{one.status_code} {one.text[:300]}" for name, one in answers.items() if not _fits(name, one)}


def _fits(name: str, answer: httpx2.Response) -> bool:
    if answer.status_code in SUCCESS.get(name, (200,)):
        return True
    if name in ALWAYS or answer.status_code not in TRY_AGAIN or CANARY in answer.text:
        return False
    problem(answer)
    return bool(answer.json()["retryable"])


def tried_again(answers: Mapping[str, httpx2.Response]) -> set[str]:
    """The verbs that were refused for now."""
    return {name for name, answer in answers.items() if answer.status_code in TRY_AGAIN}


# ---- while all is well


async def made(stack: Stack) -> World:
    app, approver, operator = stack.client(), stack.client("approver"), stack.client("operator")
    held = fresh_name("held")
    stack.effects.set_behaviour(held, Behaviour(answer=Answer.HOLD))
    writes = await published(stack, [turn(call("put", {"n": 1})), final()], tool("put", "write"))
    world = World(stack, app, approver, operator, writes, held)
    asks = await published(stack, [turn(call("asked")), final()], tool("asked", "write"), policy=READS_RUN_WRITES_ASK)
    thinks = await published(stack, [final(delay_seconds=3)])
    reads = await published(stack, [turn(call(held)), final()], tool(held))
    sends = await published(stack, [turn(call(held)), final()], tool(held, "write"))
    jobs = world.jobs
    for name, plugin in {"ended": writes, "decided": asks, "stopped": asks}.items():
        jobs[name] = fresh_key()
        answer = await app.submit(plugin, {"canary": CANARY}, key=jobs[name])
        world.receipts[name] = answer.content
    await app.until_ended(jobs["ended"], BUSY_S)
    [request] = await app.until_request(jobs["decided"], BUSY_S)
    await app.until_request(jobs["stopped"], BUSY_S)
    digest = (await app.request(jobs["decided"], request))["action_digest"]
    uploaded = (await app.http.post("/v1/artifacts", content=CANARY.encode())).json()
    for name, plugin in {"reading": reads, "writing": sends, "thinking": thinks}.items():
        jobs[name] = await app.accepted(plugin)
    await stack.effects.wait_for_calls(held, 2, BUSY_S)
    await app.until_event(jobs["thinking"], "step.started", BUSY_S)
    jobs["fresh"], jobs["repeated"] = fresh_key(), fresh_key()
    seen = (await app.status(jobs["stopped"]))["next_cursor"]
    world.verbs = _verbs(world, request, digest, uploaded, seen)
    world.watching = asyncio.create_task(followed(app, jobs["decided"]))
    return world


def _verbs(world: World, request: str, digest: str, uploaded: Json, seen: str) -> dict[str, Verb]:
    app, jobs = world.app, world.jobs
    ended, decided = jobs["ended"], jobs["decided"]
    bundle = _bundle(fresh_name("trouble"))
    repeat = {"Idempotency-Key": jobs["repeated"]}

    async def download() -> httpx2.Response:
        answer = await app.http.get(uploaded["url"])
        return await app.http.get(answer.headers["Location"]) if answer.status_code == 302 else answer

    return {
        "submit": lambda: app.submit(world.plugin, {"canary": CANARY}, key=jobs["fresh"]),
        "replay": lambda: app.submit(world.plugin, {"canary": CANARY}, key=ended),
        "retry": lambda: app.http.post(f"/v1/jobs/{ended}/retry", json={}, headers=repeat),
        "read": lambda: app.http.get(f"/v1/jobs/{ended}"),
        "read running": lambda: app.http.get(f"/v1/jobs/{jobs['reading']}"),
        "page": lambda: app.http.get(f"/v1/jobs/{ended}?after=0"),
        "page running": lambda: app.http.get(f"/v1/jobs/{jobs['reading']}?after=0"),
        "page later": lambda: app.http.get(f"/v1/jobs/{jobs['stopped']}?after={seen}", headers={"Prefer": "wait=1"}),
        "stream": lambda: app.http.get(f"/v1/jobs/{ended}/events"),
        "result": lambda: app.http.get(f"/v1/jobs/{ended}/result"),
        "list": lambda: app.http.get("/v1/jobs?limit=5"),
        "inbox": lambda: app.http.get("/v1/requests"),
        "request": lambda: app.http.get(f"/v1/jobs/{decided}/requests/{request}"),
        "decision": lambda: world.approver.decide(decided, request, "approve", digest=digest),
        "cancel": lambda: app.cancel(jobs["stopped"]),
        "preview": lambda: app.http.post("/v1/previews", json={"plugin": world.plugin, "input": {"canary": CANARY}}),
        "upload": lambda: app.http.post("/v1/artifacts", content=CANARY.encode()),
        "locate": lambda: app.http.get(uploaded["url"]),
        "download": download,
        "publish": lambda: world.operator.http.post("/v1/plugins", json={"files": bundle}),
        "inspect": lambda: world.operator.http.get(f"/v1/operator/jobs/{ended}"),
        "audit": lambda: world.operator.http.get("/v1/audit?limit=5"),
        "readiness": lambda: world.operator.http.get("/v1/readiness"),
        "metrics": lambda: world.operator.http.get("/metrics"),
        "readyz": lambda: app.http.get("/readyz"),
        "livez": lambda: app.http.get("/livez"),
    }


def _bundle(name: str) -> Json:
    manifest = f"name: {name}\nversion: '1'\ndescription: {CANARY}\ninstructions: instructions.md\n"
    return {"plugin.yaml": manifest, "instructions.md": f"{CANARY}\n", "script.yaml": "- final: {message: Done.}\n"}


async def followed(app: Client, job: str) -> list[str]:
    """The ids of the job's events as a reader gets them who comes back whenever the stream breaks off or is refused."""
    seen: list[str] = []
    last: str | None = None
    while True:
        try:
            async with app.stream(job, last_event_id=last) as events:
                async for frame in events:
                    seen.append(frame.id)
                    last = frame.id
                    if frame.type in ("job.succeeded", "job.failed", "job.canceled"):
                        return seen
        except (httpx2.HTTPError, AssertionError):
            await asyncio.sleep(0.2)


# ---- afterwards


async def converged(world: World) -> None:
    """Asked again everything is answered, one key is one job, every job ends, and nothing was done twice or is left."""
    stack, app, jobs = world.stack, world.app, world.jobs
    for api in stack.apis:
        await stack.until_ready(api)
    again = await world.ask_all()
    assert not unfit(again), unfit(again)
    assert not tried_again(again), {name: again[name].text for name in tried_again(again)}
    assert again["replay"].content == world.receipts["ended"]
    ends = {name: await _end_of(world, job) for name, job in jobs.items()}
    statuses = {name: (end["status"], end["failure"]) for name, end in ends.items()}
    assert statuses == {name: ("canceled" if name == "stopped" else "succeeded", None) for name in jobs}, statuses
    for name in ("submit", "retry"):
        assert (await world.verbs[name]()).content == again[name].content
    assert await wait_until(lambda: runs_of(stack, jobs["fresh"]), what="the run is visible") == 1
    _nothing_twice(world)
    for job in jobs.values():
        seqs = [event["seq"] for event in await app.events(job)]
        assert seqs == list(range(1, len(seqs) + 1)), (job, seqs)
    assert world.watching is not None
    seen = await asyncio.wait_for(world.watching, BUSY_S)
    assert seen == [str(number) for number in range(1, len(seen) + 1)]
    await _nothing_left(world)


async def _end_of(world: World, job: str) -> Json:
    """Whose write is in doubt is told that it happened, as the effect log can witness, and a retry may repeat its."""

    async def over() -> Json | None:
        view = await world.app.status(job)
        for request in view["pending"]:
            if request["kind"] == "reconciliation":
                await world.approver.decide(job, request["request_id"], "settle", answer="happened")
            elif job == world.jobs["repeated"]:
                await world.approver.decide(job, request["request_id"], "approve")
        return view if view["status"] in TERMINAL else None

    return await wait_until(over, BUSY_S, every=0.1, what=f"{job} has ended")


def _nothing_twice(world: World) -> None:
    """Of all that the jobs wrote, as their tools counted it."""
    jobs = {job: name for name, job in world.jobs.items()}
    writes = [sent for sent in world.stack.effects.calls() if sent.job in jobs and sent.idempotency_key]
    assert set(Counter(sent.idempotency_key for sent in writes).values()) == {1}
    wrote = Counter(jobs[sent.job] for sent in writes if sent.job is not None)
    assert wrote == dict.fromkeys(("ended", "fresh", "decided", "writing", "repeated"), 1), wrote


async def _nothing_left(world: World) -> None:
    def in_flight(conn: Connection) -> int:
        of_jobs = effects.c.job_id.in_(world.jobs.values())
        return conn.execute(select(func.count()).where(of_jobs, effects.c.state.in_(("sent", "intended")))).scalar_one()

    async with ledger_of(world.stack) as ledger:
        assert await ledger.read(in_flight) == 0
    if world.stack.settings.ledger_url.startswith("sqlite"):
        with closing(sqlite3.connect(world.stack.data / "ledger.db", timeout=1, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
    assert half_written(world.stack) == []
    assert await writes_after_cancel(world.operator) == 0


async def writes_after_cancel(operator: Client) -> float:
    metrics = (await operator.http.get("/metrics")).text
    return sum(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(LATE_WRITES))


def half_written(stack: Stack) -> list[str]:
    """Files that a store left behind under a name of no blob."""
    blobs = stack.data / "blobs"
    return [str(file) for file in blobs.rglob("*") if file.is_file() and len(file.name) != 64]
