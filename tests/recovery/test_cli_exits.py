"""Each command-line entry point leaves with the right code and all it had to say, piped, again and again.

A process that loaded the Temporal SDK can abort at interpreter exit (1 in 8 where nothing is done about it), and piped
output is buffered: both faults show only in repetition. Commands that call the API run 24 times. Those that load the
SDK cost seconds of processor time: 12 set-ups, and 4 starts of an API and a worker side by side.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.conftest import FreshStack
from tests.rig.client import Client, fresh_key
from tests.rig.plugins import final, fresh_name, publish_plugin
from tests.rig.process import Process, outside_environment
from tests.rig.stack import Stack, free_port
from tests.rig.waiting import wait_until

JOBGATE = Path(sys.executable).with_name("jobgate")
CHEAP, SETUPS, STARTS, SIDE_BY_SIDE = 24, 12, 4, 3
LINES = 12


async def piped(environment: dict[str, str], *arguments: str) -> tuple[int, bytes, bytes]:
    child = await asyncio.create_subprocess_exec(
        str(JOBGATE),
        *arguments,
        env={**outside_environment(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out, err


async def again_and_again(
    times: int, environment: dict[str, str], *commands: Sequence[str]
) -> list[tuple[int, bytes, bytes]]:
    """The outcomes of `times` runs, over the commands in turn."""
    turn = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(arguments: Sequence[str]) -> tuple[int, bytes, bytes]:
        async with turn:
            return await piped(environment, *arguments)

    return await asyncio.gather(*(one(commands[number % len(commands)]) for number in range(times)))


@pytest.fixture
def environment(stack: Stack) -> dict[str, str]:
    """The stack as an app at a terminal finds it."""
    return {**stack.environment, "JOBGATE_URL": stack.apis[0].url, "JOBGATE_TOKEN": stack.token("app")}


@pytest_asyncio.fixture(loop_scope="session")
async def plugin(operator: Client) -> str:
    name = fresh_name()
    await publish_plugin(operator, name, [final({"texts": ["ü" * 1000] * LINES})])
    return name


def only(outcomes: Sequence[tuple[int, bytes, bytes]]) -> tuple[int, bytes, bytes]:
    """The one outcome that all of them had."""
    assert len(set(outcomes)) == 1, {(code, len(out), err) for code, out, err in outcomes}
    return outcomes[0]


async def test_help_and_token_are_complete_every_time(environment: dict[str, str]) -> None:
    outcomes = await again_and_again(CHEAP, environment, ["--help"], ["token", "app"])
    assert {(code, err) for code, _, err in outcomes} == {(0, b"")}
    _, text, _ = only(outcomes[0::2])
    assert b"release" in text
    assert text.endswith(b"\n")
    tokens = {out for _, out, _ in outcomes[1::2]}
    assert len(tokens) == CHEAP // 2
    assert all(out.count(b".") == 2 and out.endswith(b"\n") for out in tokens)


async def test_submit_prints_the_one_receipt_every_time(environment: dict[str, str], plugin: str) -> None:
    key = fresh_key()
    code, out, err = only(await again_and_again(CHEAP, environment, ["submit", plugin, "--key", key, "--json"]))
    assert (code, err) == (0, b"")
    assert json.loads(out)["job_id"] == key


async def test_show_and_watch_print_a_whole_job_every_time(
    environment: dict[str, str], app: Client, plugin: str
) -> None:
    job = await app.accepted(plugin)
    ended = await app.until_ended(job)
    outcomes = await again_and_again(
        CHEAP, environment, ["show", job, "--json"], ["show", job], ["watch", job], ["watch", job, "--json"]
    )
    assert {(code, err) for code, _, err in outcomes} == {(0, b"")}
    views: list[dict[str, Any]] = [json.loads(out) for _, out, _ in outcomes[0::4]]
    assert all(view["result"] == ended["result"] for view in views)
    assert {out.decode().count("ü") for _, out, _ in outcomes[1::4]} == {1000 * LINES}
    _, lines, _ = only(outcomes[2::4])
    assert lines.count(b"\n") > 3
    _, events, _ = only(outcomes[3::4])
    assert [json.loads(line)["type"] for line in events.splitlines()] == await app.event_types(job)


async def test_refusals_and_usage_errors_keep_their_codes_every_time(environment: dict[str, str]) -> None:
    nowhere = {**environment, "JOBGATE_URL": f"http://127.0.0.1:{free_port()}"}
    refused, usage, unreachable = await asyncio.gather(
        again_and_again(5, environment, ["show", "no-such-job"]),
        again_and_again(5, environment, ["submit"]),
        again_and_again(5, nowhere, ["show", "no-such-job"]),
    )
    assert [{code for code, _, _ in outcomes} for outcomes in (refused, usage, unreachable)] == [{1}, {2}, {3}]
    assert all(out == b"" and err.endswith(b"\n") for _, out, err in (*refused, *usage, *unreachable))


async def test_setup_leaves_cleanly_with_all_its_lines_every_time(environment: dict[str, str]) -> None:
    code, out, err = only(await again_and_again(SETUPS, environment, ["setup"]))
    assert (code, err) == (0, b"")
    assert len(out.splitlines()) == 4


async def answers(url: str) -> bool:
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as http:
        try:
            return (await http.get(f"{url}/livez")).status_code == 200
        except httpx2.HTTPError:
            return False


async def test_api_and_worker_are_their_process_and_leave_cleanly_every_time(
    fresh_stack: FreshStack, tmp_path: Path
) -> None:
    own = await fresh_stack(apis=0, workers=0)
    port = free_port()
    api = Process("cli-api", ["api", "--port", str(port)], tmp_path, program=JOBGATE, environment=own.environment)
    worker = Process("cli-worker", ["worker"], tmp_path, program=JOBGATE, environment=own.environment)
    try:
        for _ in range(STARTS):
            api.start()
            worker.start()
            await wait_until(lambda: answers(f"http://127.0.0.1:{port}"), 60, what="the API answers")
            await own.until_polling(worker)
            codes = await asyncio.gather(asyncio.to_thread(api.stop), asyncio.to_thread(worker.stop))
            assert codes == [0, 0], f"{api.output[-2000:]}\n{worker.output[-2000:]}"
    finally:
        api.kill()
        worker.kill()
    for process in (api, worker):
        assert all(json.loads(line) for line in process.output.splitlines())
        assert process.output.endswith("\n")
