"""`jobgate dev` as a person runs it: what it starts, says, survives and leaves behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.settings import DevFile, read_dev_file
from tests.rig.client import Client, fresh_key
from tests.rig.dev import ANY_PORT, JOBGATE, Dev, command_of, processes_on, ready, running
from tests.rig.effect_log import Behaviour, EffectLog
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.process import Process, outside_environment
from tests.rig.waiting import wait_until

MakeDev = Callable[..., Dev]


@pytest_asyncio.fixture(loop_scope="session")
async def make_dev(tmp_path: Path) -> AsyncGenerator[MakeDev]:
    made: list[Dev] = []

    def make(*options: str) -> Dev:
        made.append(Dev(tmp_path, *options))
        return made[-1]

    yield make
    for dev in made:
        dev.close()
    for dev in made:
        await wait_until(lambda dev=dev: not processes_on(dev.data), 20, what="everything is gone")


@pytest_asyncio.fixture(loop_scope="session")
async def dev(make_dev: MakeDev) -> Dev:
    """A running stack."""
    stack = make_dev()
    await stack.up()
    return stack


async def test_dev_serves_when_it_says_so_and_names_each_process_itself(dev: Dev) -> None:
    told = running(dev)
    assert await ready(told.api_url)
    assert "temporal" in command_of(told.pids.temporal)[0]
    assert "activities.worker" in command_of(told.pids.worker)
    assert "gateway.api" in command_of(told.pids.api)
    for address in (told.temporal_address, told.temporal_ui_url.removeprefix("http://")):
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    assert set(json.loads((dev.data / "dev.json").read_text())) == {
        "api_url",
        "temporal_address",
        "temporal_ui_url",
        "namespace",
        "pids",
    }
    await dev.says("Jobgate serves on", told.api_url, told.temporal_ui_url)
    assert {log.name for log in (dev.data / "logs").iterdir()} == {"temporal.log", "worker.log", "api.log"}


async def test_a_second_dev_on_the_folder_is_refused_and_changes_nothing(dev: Dev) -> None:
    before = (dev.data / "dev.json").read_bytes()
    second = Process("second", ["dev", "--data", str(dev.data), *ANY_PORT], dev.folder, program=JOBGATE)
    second.start()
    assert second.wait() == 1
    assert f"pid {dev.pid}" in second.output
    assert str(dev.data) in second.output
    assert len(second.output.strip().splitlines()) == 1
    assert (dev.data / "dev.json").read_bytes() == before
    assert await ready(running(dev).api_url)


async def test_json_is_all_that_dev_prints_to_stdout(tmp_path: Path) -> None:
    command = [str(JOBGATE), "dev", "--json", "--data", str(tmp_path / "data"), *ANY_PORT]
    child = await asyncio.create_subprocess_exec(
        *command, env=outside_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), 120)
        assert DevFile.model_validate_json(line) == read_dev_file(tmp_path / "data")
        child.terminate()
        assert await child.stdout.read() == b""
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_a_dead_worker_is_reported_and_can_be_replaced(dev: Dev) -> None:
    told = running(dev)
    os.kill(told.pids.worker, signal.SIGKILL)
    line = await dev.says("worker", str(told.pids.worker), "SIGKILL", "worker.log")
    assert f"jobgate worker --data {dev.data}" in line
    assert await ready(told.api_url)
    await dev_runs_a_job_after(dev, "worker")


async def test_a_dead_api_is_reported_and_can_be_replaced_on_the_same_port(dev: Dev) -> None:
    told = running(dev)
    os.kill(told.pids.api, signal.SIGKILL)
    await dev.says("api", str(told.pids.api), "SIGKILL", "api.log", f"jobgate api --data {dev.data}")
    await dev_runs_a_job_after(dev, "api")


async def dev_runs_a_job_after(dev: Dev, replaced: str) -> None:
    replacement = dev.replace(replaced)
    await wait_until(lambda: ready(running(dev).api_url), 60, what="the API is ready")
    name = fresh_name()
    url = running(dev).api_url
    async with Client(url, dev.token("operator")) as operator, Client(url, dev.token("app")) as app:
        await publish_plugin(operator, name, [final()])
        assert (await app.until_ended(await app.accepted(name), 60))["status"] == "succeeded"
    assert replacement.running
    assert dev.running
    assert dev.stop() == 0
    assert dev.left_behind() == []
    assert replacement.stop(30) == 0


async def test_sigterm_stops_everything_and_exits_0(dev: Dev) -> None:
    assert dev.stop() == 0
    assert dev.left_behind() == []
    assert read_dev_file(dev.data) is None


async def test_ctrl_c_to_the_whole_process_group_exits_0(dev: Dev) -> None:
    os.killpg(dev.pid, signal.SIGINT)
    assert dev.wait() == 0
    assert dev.left_behind() == []
    assert "Traceback" not in dev.output


async def test_sigterm_while_starting_exits_0_and_leaves_nothing(make_dev: MakeDev) -> None:
    dev = make_dev()
    dev.start()
    await dev.says("Starting")
    await wait_until(lambda: (dev.data / "logs" / "temporal.log").exists(), 30, what="Temporal is started")
    assert dev.stop() == 0
    assert dev.left_behind() == []


async def test_the_end_of_temporal_ends_all(dev: Dev) -> None:
    os.kill(running(dev).pids.temporal, signal.SIGKILL)
    assert dev.wait() == 1
    await dev.says("Temporal ended", "SIGKILL", "temporal.log")
    assert dev.left_behind() == []
    assert read_dev_file(dev.data) is None


async def test_nothing_outlives_a_killed_dev_and_the_folder_is_free_again(dev: Dev) -> None:
    dev.kill()
    await wait_until(lambda: not dev.left_behind(), 20, what="the children are gone")
    assert read_dev_file(dev.data) is not None
    told = await dev.up()
    assert await ready(told.api_url)


async def test_the_same_folder_keeps_everything(dev: Dev) -> None:
    """Started as the README says: what has ended, what waits for a person, and keys (B43)."""
    name, asks, key = fresh_name(), fresh_name(), fresh_key()
    question = call("ask_human", {"question": "Go on?", "schema": {"type": "boolean"}})
    first = running(dev)
    async with Client(first.api_url, dev.token("operator")) as operator, Client(first.api_url, dev.token("app")) as app:
        await publish_plugin(operator, name, [final({"message": "kept"})])
        await publish_plugin(operator, asks, [turn(question), final()])
        job = await app.accepted(name)
        before = await app.until_ended(job)
        receipt = (await app.submit(asks, key=key)).content
        [request] = await app.until_request(key)
        waiting = await app.until_status(key, "waiting_for_human")
    assert dev.stop() == 0
    second = await dev.up()
    approver = Client(second.api_url, dev.token("approver"))
    async with Client(second.api_url, dev.token("app")) as app, approver:
        after = await app.status(job)
        assert (after["status"], after["result"]) == (before["status"], before["result"])
        assert {**await app.status(key), "as_of": None} == {**waiting, "as_of": None}
        assert (await app.submit(asks, key=key)).content == receipt
        assert (await approver.decide(key, request, "answer", answer=True)).status_code in (200, 202)
        assert (await app.until_ended(key, 60))["status"] == "succeeded"
        assert (await app.until_ended(await app.accepted(name)))["status"] == "succeeded"


@pytest.mark.parametrize("flag", ["--api-port", "--temporal-port", "--ui-port"])
def test_a_port_in_use_is_one_line_that_names_port_and_flag(make_dev: MakeDev, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        others = [
            item for other in ("--api-port", "--temporal-port", "--ui-port") if other != flag for item in (other, "0")
        ]
        dev = make_dev(flag, port, *others)
        dev.start()
        assert dev.wait() == 1
    (line,) = dev.output.strip().splitlines()
    assert port in line
    assert flag in line
    assert dev.left_behind() == []


async def read_to_the_end(app: Client, job: str, opened: asyncio.Semaphore) -> None:
    """Raises where the server breaks the stream off instead of ending it."""
    async with app.stream(job) as events:
        await anext(events)
        opened.release()
        async for _ in events:
            pass


async def test_sigterm_during_a_tool_call_and_with_20_open_streams_exits_0(dev: Dev, tmp_path: Path) -> None:
    effects = EffectLog(tmp_path / "effects")
    effects.start()
    name = fresh_name()
    url = running(dev).api_url
    effects.set_behaviour("slow", Behaviour(delay_seconds=5))
    try:
        async with Client(url, dev.token("operator")) as operator, Client(url, dev.token("app")) as app:
            script = [turn(call("slow")), final()]
            await publish_plugin(
                operator, name, script, tools=[tool("slow", "write")], tools_url=effects.url, policy=ALLOW_ALL
            )
            job = await app.accepted(name)
            opened = asyncio.Semaphore(0)
            readers = [asyncio.create_task(read_to_the_end(app, job, opened)) for _ in range(20)]
            for _ in readers:
                await opened.acquire()
            await effects.wait_for_calls("slow")
            assert await asyncio.to_thread(dev.stop, 25) == 0
            await asyncio.gather(*readers)
        assert dev.left_behind() == []
        assert len(effects.calls("slow")) == 1
        again = await dev.up()
        async with Client(again.api_url, dev.token("app")) as app:
            assert (await app.until_ended(job, 60))["status"] == "succeeded"
        assert len(effects.calls("slow")) == 1
    finally:
        effects.stop()
