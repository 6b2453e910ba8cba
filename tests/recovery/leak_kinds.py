"""The story's other tools: MCP servers, Python code and vendors that throw secrets back, rotation, and crashes.

Each part runs jobs to their ends and returns their ids; what was left is for `test_leaks.py` to search.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.recovery.grounds import READS_RUN_WRITES_ASK
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.mcp_log import CALL, McpLog
from tests.rig.plugins import ALLOW_ALL, CREDENTIAL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.vendors import nothing_pending, way_back

MCP_KEY = 'canary/mcp+9e21&"m"=='
PYTHON_VALUE = "canary-python-2f9b70"
FILE_OLD = "canary-file-old-61d0"
FILE_NEW = "canary-file-new-a7c3"

PYTHON = """
import asyncio, logging, os, warnings

async def fails(text):
    raise RuntimeError(text)

def run(arguments, context):
    secret, model = os.environ["LIB_TOKEN"], os.environ["MODEL_KEY"]
    said = f"no access with {secret} and {model}"
    if arguments.get("log"):
        logging.getLogger("vendor").error("refused: %s", said)
        warnings.warn(said, stacklevel=1)
    if arguments.get("raise"):
        try:
            raise ValueError(said)
        except ValueError as error:
            raise RuntimeError(said) from error
    if arguments.get("task"):
        async def forgets():
            asyncio.get_running_loop().create_task(fails(said))
            await asyncio.sleep(0)
            return {"error": said}
        return forgets()
    if arguments.get("exit"):
        raise SystemExit(said)
    return {"said": said, secret: [model]}
"""
MCP_TOOLS: Mapping[str, Any] = {
    "kb-headers": {"description": f"Takes {MCP_KEY}.", "answer": {"echo_headers": True}},
    "kb-error": {"answer": {"echo_headers": True, "isError": True}},
    "kb-protocol": {"answer": {"rpc_error": -32602, "message": f"no access with {MCP_KEY}"}},
    "kb-lost": {"answer": {"rpc_error": -32000, "message": f"no access with {MCP_KEY}"}},
}
READ, WRITE = "read", "write"


def credential(ref: str) -> Json:
    return {**CREDENTIAL, "ref": ref}


@dataclass(frozen=True, slots=True)
class Outside:
    """What the stack's tools reach, beside the effect log, and the file that holds a credential."""

    stack: Stack
    mcp: McpLog
    file: Path

    async def publish(self, script: Sequence[Json], *tools: Json, policy: str = ALLOW_ALL, **more: Any) -> str:
        name, own = fresh_name("kinds"), {"base_url": self.stack.effects.url, "allow_private": True}
        bound = {
            "kb": {"base_url": self.mcp.url, "allow_private": True, "credential": credential("env:MCP_TOKEN")},
            "lib": {**own, "credential": credential("env:LIB_TOKEN")},
            "vault": {**own, "credential": credential(f"file:{self.file}")},
            "tools": {**own, "credential": CREDENTIAL},
        }
        await publish_plugin(
            self.stack.client("operator"),
            name,
            script,
            tools=tools,
            policy=policy,
            manifest={"services": list(bound)},
            deployment={"connections": bound, **more},
        )
        return name


def kind_of(name: str, effect: str, **kind: Any) -> Json:
    declared = tool(name, effect)
    del declared["http"]
    return {**declared, **kind}


def remote(name: str, effect: str = READ) -> Json:
    return kind_of(name, effect, mcp={"connection": "kb", "tool": name})


async def ended(app: Client, job: str, status: str = "succeeded", code: str | None = None) -> str:
    view = await app.until_ended(job, 60)
    assert (view["status"], view["failure"]["code"] if view["failure"] else None) == (status, code), view
    return job


async def given_up(outside: Outside, app: Client, job: str) -> str:
    """A job of whose write nobody can tell what came of it."""
    await app.give_up(job, outside.stack.client("approver"), 60)
    return await ended(app, job, "failed", "effect_unknown")


GOT = final({"got": "{{ results }}"})


async def mcp_story(outside: Outside, app: Client) -> list[str]:
    """Echoes in a result, in a reported error, in errors of the protocol and of HTTP, and in a header."""
    mcp, jobs = outside.mcp, list[str]()
    mcp.tell(MCP_TOOLS)
    names = ("kb-headers", "kb-error", "kb-protocol")
    reads = await outside.publish([turn(*map(call, names)), GOT], *map(remote, names))
    writes = await outside.publish([turn(call(name)) for name in names] + [GOT], *(remote(n, WRITE) for n in names))
    lost = await outside.publish([turn(call("kb-lost")), final()], remote("kb-lost", WRITE))
    started = [await app.accepted(reads), await app.accepted(writes)]
    jobs += [await ended(app, job) for job in started]
    jobs.append(await given_up(outside, app, await app.accepted(lost)))
    assert {sent.headers["authorization"] for sent in mcp.came(CALL)} == {f"Bearer {MCP_KEY}"}
    denied = {"status": 401, "headers": {"www-authenticate": MCP_KEY}, "body": f'{{"error": "no {MCP_KEY}"}}'}
    mcp.tell(MCP_TOOLS, {CALL: denied})
    jobs.append(await ended(app, await app.accepted(writes)))
    mcp.tell(MCP_TOOLS, {CALL: {"headers": {"content-type": MCP_KEY.replace('"', "")}, "body": MCP_KEY}})
    jobs.append(await given_up(outside, app, await app.accepted(lost)))
    mcp.tell(MCP_TOOLS)
    return jobs


async def python_story(outside: Outside, app: Client) -> list[str]:
    """Code that returns the credentials of its deployment, raises them, logs them, and leaves them in a lost task."""
    grant = {"principal": "app", "actions": ["tools:python"], "plugins": ["*"]}
    await outside.stack.client("operator").post("/v1/grants", grant, expect=201)
    code = kind_of("lib", READ, python="leaks")
    modes = ("return", "log", "raise", "task", "exit")
    connection = {"base_url": "http://127.0.0.1:1/v1", "credential": {"ref": "env:MODEL_KEY"}}
    plugin = await outside.publish(
        [turn(*(call("lib", {mode: True}) for mode in modes)), GOT], code, model_connection=connection
    )
    job = await ended(app, await app.accepted(plugin))
    events = [event for event in await app.events(job) if event["type"] == "tool.finished"]
    assert len(events) == len(modes)
    return [job]


async def vendor_story(outside: Outside, app: Client, vendor: Client, secret: str) -> tuple[list[str], list[str]]:
    """Callbacks that hold the credential and their own token: malformed, good, repeated, and of a failure. The jobs,
    and the tokens."""
    stack = outside.stack
    later = tool("later", READ, callback={"expires_in_seconds": 60})
    plugin = await outside.publish([turn(call("later")), GOT], later)
    stack.effects.set_behaviour("later", Behaviour(answer=Answer.ECHO_BODY, status=202))
    jobs, tokens = list[str](), list[str]()
    for outcome in ("ok", "failed"):
        job = await app.accepted(plugin)
        [sent] = await stack.effects.wait_for_calls("later", job=job)
        await nothing_pending(stack, job)
        path, token = path_back(sent)
        said = {"you": f"Bearer {secret}", secret: [token], "at": way_back(sent)}
        json_type = {"Content-Type": "application/json"}
        tries: list[tuple[int, dict[str, Any]]] = [
            (422, {"content": f'{{"{token} {secret}', "headers": json_type}),
            (422, {"json": said, "headers": {"Jobgate-Outcome": token}}),
            (415, {"content": secret, "headers": {"Content-Type": token}}),
            (200, {"json": said, "headers": {"Jobgate-Outcome": outcome}}),
            (409, {"json": said}),
        ]
        for status, options in tries:
            assert (await vendor.http.post(path, **options)).status_code == status, options
        assert problem(await vendor.http.post(f"{path}A", json=said)) == (404, "not-found")
        jobs.append(await ended(app, job))
        tokens.append(token)
    return jobs, tokens


def path_back(sent: Call) -> tuple[str, str]:
    token = way_back(sent).rpartition("/")[2]
    return f"/v1/callbacks/{token}", token


async def rotation_story(
    outside: Outside, app: Client, approver: Client, vendor: Client
) -> tuple[list[str], list[str]]:
    """A credential's file is changed while one job waits for a person and another for its vendor, who had the old."""
    effects = outside.stack.effects
    http = {"connection": "vault", "method": "POST", "path": "/tool/vault"}
    effects.set_behaviour("vault", Behaviour(answer=Answer.ECHO_BODY))
    effects.set_behaviour("slow", Behaviour(answer=Answer.ECHO_BODY, status=202))
    outside.file.write_text(f"{FILE_OLD}\n")
    asks = await outside.publish(
        [turn(call("look")), turn(call("vault")), GOT],
        tool("look", READ, path="/tool/vault"),
        {**tool("vault", WRITE), "http": http},
        policy=READS_RUN_WRITES_ASK,
    )
    slow = tool("slow", READ, callback={"expires_in_seconds": 60})
    slow["http"]["connection"] = "vault"
    waits = await outside.publish([turn(call("slow")), GOT], slow)
    asked, waiting = await app.accepted(asks), await app.accepted(waits)
    [request] = await app.until_request(asked)
    [sent] = await effects.wait_for_calls("slow", job=waiting)
    await nothing_pending(outside.stack, waiting)
    outside.file.write_text(f"{FILE_NEW}\n")
    assert (await approver.decide(asked, request, "approve")).is_success
    path, token = path_back(sent)
    assert (await vendor.http.post(path, json={"you": FILE_OLD, "now": FILE_NEW, FILE_OLD: token})).is_success
    jobs = [await ended(app, job) for job in (asked, waiting)]
    [once] = effects.calls("vault", job=asked)[1:]
    assert (sent.header("authorization"), once.header("authorization")) == (f"Bearer {FILE_OLD}", f"Bearer {FILE_NEW}")
    return jobs, [token]


async def crash_story(outside: Outside, app: Client, worker_gone: str) -> list[str]:
    """A worker is killed while its call is held, and the API while a reader waits; both come back."""
    stack = outside.stack
    held = [Behaviour(answer=Answer.HOLD, times=1), Behaviour(answer=Answer.ECHO_BODY)]
    stack.effects.set_behaviour(worker_gone, *held)
    plugin = await outside.publish([turn(call(worker_gone)), GOT], tool(worker_gone))
    job = await app.accepted(plugin)
    await stack.effects.wait_for_calls(worker_gone, job=job)
    reading = asyncio.create_task(app.http.get(f"/v1/jobs/{job}", params={"after": "9"}, headers={"Prefer": "wait=60"}))
    [worker], [api] = stack.workers, stack.apis
    worker.kill()
    api.kill()
    stack.effects.release(worker_gone)
    assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], httpx2.HTTPError)
    worker.start()
    api.start()
    await asyncio.gather(stack.until_ready(api), stack.until_polling(worker))
    await ended(app, job)
    assert "attempt.replaced" in await app.event_types(job)
    return [job]


async def key_story(outside: Outside, ear_client: Client) -> list[str]:
    """The caller's credential is an API key, right and wrong."""
    plugin = await outside.publish([turn(call("in-body")), GOT], tool("in-body"))
    job = await ended(ear_client, await ear_client.accepted(plugin, key=fresh_key()))
    wrong = {"Authorization": f"Bearer {ear_client.token}x"}
    assert problem(await ear_client.http.get("/v1/jobs", headers=wrong)) == (401, "unauthenticated")
    return [job]
