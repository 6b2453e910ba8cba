"""Logs, traces and metrics: one line an entry, no text of outside errors, ids that travel."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import structlog
from temporalio.exceptions import ApplicationError

from gateway.logtexts import LONGEST_TEXT, scrubbed
from gateway.metrics import Metrics
from gateway.settings import load_settings
from gateway.telemetry import (
    bind,
    configure_logging,
    fault,
    log,
    remote_parent,
    start_telemetry,
    trace_id,
    traceparent,
)
from workflows.contract.errors import ProblemCode, Refused

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def lines() -> Generator[io.StringIO]:
    """The log of this process during one test; pytest's own set-up is put back."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, sys.excepthook)
    out = io.StringIO()
    configure_logging("test", stream=out)
    yield out
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    root.handlers[:], level, sys.excepthook = before
    root.setLevel(level)


def entries(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b\u0085c", "\x1b[31mred", "\ud800", '"}{', "\x00"])
def test_an_entry_is_one_line_whatever_its_text_holds(lines: io.StringIO, text: str) -> None:
    log.info(text, detail=text)
    (entry,) = entries(lines)
    assert (entry["event"], entry["detail"]) == (text, text)
    assert lines.getvalue().isascii()


def test_an_entry_carries_request_job_and_principal(lines: io.StringIO) -> None:
    with bind(request_id="r-1", job="demo.k", principal="app", session=None):
        log.info("admitted")
    log.info("after")
    inside, after = entries(lines)
    assert (inside["request_id"], inside["job"], inside["principal"], inside["service"]) == (
        "r-1",
        "demo.k",
        "app",
        "test",
    )
    assert "session" not in inside
    assert "job" not in after


def raise_outside_error() -> None:
    raise ValueError("canary text of the other side")


def test_an_exception_is_told_by_type_code_and_place_alone(lines: io.StringIO) -> None:
    try:
        raise_outside_error()
    except ValueError as error:
        log.exception("failed", cause=error)
        logging.getLogger("library").exception("failed")
    ours, library = entries(lines)
    assert ours["error"] == library["error"] == ours["cause"] == {"type": "ValueError"}
    assert "canary" not in lines.getvalue()


def test_our_own_errors_are_told_with_their_code() -> None:
    assert fault(Refused(ProblemCode.NOT_FOUND, "canary"))["code"] == "not-found"
    assert fault(ApplicationError("canary", type="tool_failed"))["code"] == "tool_failed"


def test_the_place_is_the_last_line_of_ours() -> None:
    with pytest.raises(Exception, match="can not be read") as caught:
        load_settings(stack_file=Path("/nowhere"))
    assert fault(caught.value)["at"].startswith("gateway.settings:")


def test_a_library_says_its_first_line_only(lines: io.StringIO) -> None:
    library = logging.getLogger("library")
    library.error("Task exception was never retrieved\nfuture: <Task exception=ValueError('canary')>")
    library.error("Traceback (most recent call last):\n  File 'x'\nValueError: canary\n")
    library.info("too quiet to be heard")
    assert [entry["event"] for entry in entries(lines)] == ["Task exception was never retrieved", "raised ValueError"]


def test_warnings_are_entries_too(lines: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old thing", stacklevel=1)
    (entry,) = entries(lines)
    assert entry["logger"] == "py.warnings"


def test_an_object_is_named_and_not_printed(lines: io.StringIO) -> None:
    class Holder:
        def __repr__(self) -> str:
            return "canary"

    log.info("seen", value=Holder())
    assert entries(lines)[0]["value"] == "<Holder>"


def test_a_long_text_is_cut(lines: io.StringIO) -> None:
    log.info("x" * (LONGEST_TEXT + 1))
    assert len(entries(lines)[0]["event"]) == LONGEST_TEXT + len("...")


def test_what_is_logged_inside_a_call_is_scrubbed_before_it_is_cut(lines: io.StringIO) -> None:
    def say() -> None:
        log.info("x" * (LONGEST_TEXT - 3) + "canary")
        logging.getLogger("vendor").warning("refused: %s", "canary")

    with scrubbed(lambda text: text.replace("canary", "[secret]")):
        say()
        inside = lines.getvalue()
        other = threading.Thread(target=say)
        other.start()
        other.join()
    assert inside.count("[se") == len(inside.splitlines()) == 2
    assert "can" not in inside
    assert lines.getvalue().count("canary") == 1  # another thread's, cut where it is too long


def test_a_crash_is_one_entry_without_the_text_of_the_exception() -> None:
    code = "from gateway.telemetry import configure_logging; configure_logging('test'); raise ValueError('canary\\n2')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 1
    (entry,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (entry["event"], entry["error"]["type"]) == ("crashed", "ValueError")
    assert "canary" not in done.stderr


def test_a_trace_goes_on_from_the_callers_traceparent(lines: io.StringIO, tmp_path: Path) -> None:
    telemetry = start_telemetry("test", load_settings(trace_file=tmp_path / "spans.jsonl"))
    configure_logging("test", stream=lines)
    with telemetry.span("request", parent=remote_parent(PARENT)):
        log.info("inside")
        assert trace_id() == TRACE
        sent = traceparent()
    telemetry.close()
    assert sent is not None
    assert sent.startswith(f"00-{TRACE}-")
    assert sent != PARENT
    assert entries(lines)[0]["trace_id"] == TRACE
    (span,) = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert (span["name"], span["context"]["trace_id"]) == ("request", f"0x{TRACE}")


@pytest.mark.parametrize("header", [None, "", "garbage", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "é" * 10])
def test_a_bad_traceparent_begins_a_new_trace(header: str | None) -> None:
    telemetry = start_telemetry("test", load_settings())
    with telemetry.span("request", parent=remote_parent(header)):
        assert trace_id() not in (None, "0" * 32)
    assert trace_id() is None
    assert traceparent() is None
    telemetry.close()


def test_a_span_tells_the_type_of_an_error_and_never_its_text(tmp_path: Path) -> None:
    telemetry = start_telemetry("test", load_settings(trace_file=tmp_path / "spans.jsonl"))
    with pytest.raises(ValueError, match="canary"), telemetry.span("step"):
        raise_outside_error()
    with pytest.raises(ValueError, match="canary"), telemetry.tracer.start_as_current_span("of a library"):
        raise_outside_error()
    telemetry.close()
    text = (tmp_path / "spans.jsonl").read_text()
    assert "canary" not in text
    spans = [json.loads(line) for line in text.splitlines()]
    assert [(span["status"]["status_code"], span["attributes"]["error.type"]) for span in spans] == [
        ("ERROR", "ValueError"),
        ("ERROR", "ValueError"),
    ]


def test_metrics_are_prometheus_text_and_zeros_are_shown() -> None:
    metrics = Metrics()
    metrics.admissions.add(2, {"outcome": "accepted"})
    metrics.http_requests.add(1, {"method": "GET", "route": "/v1/jobs/{job_id}", "status": 200})
    metrics.stream_readers.add(3)
    metrics.stream_readers.add(-1)
    body, content_type = metrics.render()
    text = body.decode()
    metrics.close()
    assert content_type.startswith("text/plain")
    assert "jobgate_write_after_cancel_total 0.0" in text
    assert 'jobgate_admissions_total{outcome="accepted"} 2.0' in text
    assert 'jobgate_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="200"} 1.0' in text
    assert "jobgate_stream_readers 2.0" in text


def test_two_processes_worth_of_metrics_do_not_share_counts() -> None:
    first, second = Metrics(), Metrics()
    first.writes_after_cancel.add(1)
    assert b"jobgate_write_after_cancel_total 0.0" in second.render()[0]
    first.close()
    second.close()


def test_what_the_ledger_counts_is_added_once() -> None:
    metrics = Metrics()
    for in_ledger in (0, 2, 2, 3):
        metrics.sent_after_stop(in_ledger)
    assert b"jobgate_write_after_cancel_total 3.0" in metrics.render()[0]
    metrics.close()
