"""Watching through the command line: one line of events over any number of connections, and exit codes that tell."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from facade.examples import JOB
from tests.rig.process import outside_environment
from tests.unit.fake_api import Canned, FakeApi, problem, stream
from tests.unit.test_cli import ENDED, RECEIPT, Command, answer, api, command
from tests.unit.test_cli_tokens import dev_folder

__all__ = ["api", "command", "dev_folder"]

EVENTS = "/v1/jobs/k-1/events"
JOBGATE = Path(sys.executable).with_name("jobgate")


def events(*types: str) -> list[dict[str, Any]]:
    return [
        {"seq": seq, "at": "2030-01-31T12:00:00Z", "type": type_, "message": f"{type_} happened", "data": {}}
        for seq, type_ in enumerate(types, 1)
    ]


WHOLE = events("job.queued", "job.started", "step.started", "job.succeeded")


def seen(out: str) -> list[str]:
    return [line.split()[1] for line in out.splitlines() if line.endswith(" happened")]


def test_a_broken_stream_is_resumed_behind_the_last_event_without_loss_or_repeat(
    api: FakeApi, command: Command
) -> None:
    lost = [problem(503, "engine-unavailable", retryable=True), Canned(502, "gone", "text/html")]
    api.answers["GET", EVENTS] = [stream(WHOLE[:2], cut=True), *lost, stream(WHOLE[2:3]), stream(WHOLE[3:])]
    answer(api, "GET", "/v1/jobs/k-1", ENDED)
    code, out, err = command("watch", "k-1")
    assert (code, err) == (0, "")
    assert seen(out) == [event["type"] for event in WHOLE]
    asked = [request.headers.get("Last-Event-ID") for request in api.asked if EVENTS in request.path]
    assert asked == [None, "2", "2", "2", "3"]


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("canceled", 1)])
def test_watch_exits_with_how_the_job_ended(api: FakeApi, command: Command, status: str, code: int) -> None:
    api.answers["GET", EVENTS] = [stream(events(f"job.{status}"))]
    answer(api, "GET", "/v1/jobs/k-1", {**ENDED, "status": status})
    assert command("watch", "k-1")[0] == code


def test_the_end_that_the_engine_gave_ends_the_watch(api: FakeApi, command: Command) -> None:
    api.answers["GET", EVENTS] = [stream([{**events("job.failed")[0], "seq": None}])]
    failure = {"code": "ended_by_operator", "message": "An operator ended it."}
    answer(api, "GET", "/v1/jobs/k-1", {**ENDED, "status": "failed", "result": None, "failure": failure})
    code, out, _ = command("watch", "k-1")
    assert code == 1
    assert "ended_by_operator: An operator ended it." in out


def test_watch_says_how_to_decide_what_the_job_waits_for(api: FakeApi, command: Command) -> None:
    asked = {**JOB["last_event"], "data": {"request_id": "r1-4fa0c2", "kind": "question"}}
    api.answers["GET", EVENTS] = [stream([asked, *WHOLE[3:]])]
    answer(api, "GET", "/v1/jobs/k-1", ENDED)
    assert "jobgate decide k-1 r1-4fa0c2 answer --answer TEXT" in command("watch", "k-1")[1]


def test_an_unknown_job_is_refused_and_not_waited_for(api: FakeApi, command: Command) -> None:
    code, _, err = command("watch", "k-1")
    assert code == 1
    assert "not-found" in err
    assert len(api.asked) == 1


def test_watch_json_is_one_event_per_line(api: FakeApi, command: Command) -> None:
    api.answers["GET", EVENTS] = [stream(WHOLE)]
    answer(api, "GET", "/v1/jobs/k-1", ENDED)
    _, out, _ = command("watch", "k-1", "--json")
    assert [json.loads(line) for line in out.splitlines()] == WHOLE


def test_submit_wait_shows_events_and_result_and_exits_with_the_end(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/jobs", RECEIPT, status=202)
    api.answers["GET", EVENTS] = [stream(WHOLE)]
    answer(api, "GET", "/v1/jobs/k-1", ENDED)
    code, out, _ = command("submit", "p", "--key", "k-1", "--wait")
    assert code == 0
    assert seen(out) == [event["type"] for event in WHOLE]
    assert '"message": "Done."' in out


def test_submit_wait_json_is_the_job_as_it_ended(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/jobs", RECEIPT, status=202)
    api.answers["GET", EVENTS] = [stream(WHOLE)]
    answer(api, "GET", "/v1/jobs/k-1", {**ENDED, "status": "failed"})
    code, out, _ = command("submit", "p", "--key", "k-1", "--wait", "--json")
    assert code == 1
    assert json.loads(out)["status"] == "failed"


def start(api: FakeApi, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    told = {"JOBGATE_URL": api.url, "JOBGATE_TOKEN": "t", **environment}
    return subprocess.Popen(
        [str(JOBGATE), *arguments],
        env={**outside_environment(), **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )


def hears_ctrl_c() -> None:
    """A shell that runs the tests in its background has children ignore SIGINT; a person's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=20)
    return child.returncode, out, err


def test_ctrl_c_leaves_the_job_alone_and_says_so(api: FakeApi) -> None:
    api.answers["GET", EVENTS] = [stream(WHOLE[:1]), stream([])]
    watching = start(api, "watch", "k-1")
    assert watching.stdout is not None
    assert "job.queued" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    code, _, err = ended(watching)
    assert code == 1
    assert "the job goes on" in err
    assert "Traceback" not in err
    assert {asked.method for asked in api.asked} == {"GET"}


def test_a_reader_that_has_had_enough_ends_it_silently(api: FakeApi) -> None:
    many: Sequence[dict[str, Any]] = [{**WHOLE[0], "seq": seq, "message": "x" * 400} for seq in range(1, 2000)]
    api.answers["GET", EVENTS] = [stream(many)]
    watching = start(api, "watch", "k-1")
    assert watching.stdout is not None
    assert watching.stdout.readline()
    watching.stdout.close()
    assert watching.wait(20) == 1
    assert watching.stderr is not None
    assert watching.stderr.read() == ""
    watching.stderr.close()


def test_text_that_the_terminal_can_not_show_does_not_break_the_output(api: FakeApi) -> None:
    api.answers["GET", EVENTS] = [stream([{**WHOLE[3], "message": "naïve 世界 happened"}])]
    answer(api, "GET", "/v1/jobs/k-1", ENDED)
    code, out, _ = ended(start(api, "watch", "k-1", PYTHONIOENCODING="ascii", PYTHONUTF8="0"))
    assert code == 0
    assert "na\\xefve \\u4e16\\u754c happened" in out


# --- what the command line costs and becomes


def test_a_client_command_loads_neither_the_engine_nor_a_model(api: FakeApi) -> None:
    heavy = ("temporalio", "pydantic_ai", "activities", "sqlalchemy", "rich")
    code = f"""
import sys
from gateway.cli import run
run(["show", "k-1"])
print([name for name in {heavy!r} if name in sys.modules])
"""
    told = {"JOBGATE_URL": api.url, "JOBGATE_TOKEN": "t"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**outside_environment(), **told}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("name", "module"), [("api", "gateway.api"), ("worker", "activities.worker")])
def test_api_and_worker_become_their_process_with_their_folder_and_stack(
    dev_folder: Path, name: str, module: str
) -> None:
    code = f"""
import json, os, sys
def exec_seen(program, arguments):
    names = ("JOBGATE_DATA", "JOBGATE_LANE", "TEMPORAL_ADDRESS", "TEMPORAL_API_KEY", "TEMPORAL_CONFIG_FILE")
    print(json.dumps([program, arguments, {{name: os.environ.get(name) for name in names}}]))
    os._exit(0)
os.execv = lambda *given: (exec_seen(*given), sys.stdout.flush())
sys.argv = ["jobgate", {name!r}, "--data", {str(dev_folder)!r}]
from gateway.cli import main
main()
""".replace("os._exit(0)\n", "sys.stdout.flush(); os._exit(0)\n")
    elsewhere = {"TEMPORAL_ADDRESS": "cloud:7233", "TEMPORAL_API_KEY": "k"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**outside_environment(), **elsewhere},
        capture_output=True,
        text=True,
        check=True,
    )
    program, arguments, environment = json.loads(done.stdout)
    assert program == sys.executable
    assert arguments == [sys.executable, "-P", "-m", module]
    assert environment == {
        "JOBGATE_DATA": str(dev_folder),
        "JOBGATE_LANE": None,
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TEMPORAL_API_KEY": None,
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }


def test_a_command_answers_within_half_a_second_of_work(api: FakeApi) -> None:
    """Counted in processor time, so that a busy machine does not matter; the bound leaves room for a slow one."""
    answer(api, "GET", "/v1/jobs/k-1", JOB)
    before = os.times()
    assert ended(start(api, "show", "k-1"))[0] == 0
    after = os.times()
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    assert used < 1.0
