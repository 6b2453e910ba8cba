"""Following a job live: one unbroken line of events over any number of connections, ended by the job's own end.

A stream that breaks or that the server ends cleanly is resumed behind the last cursor, so a restart of the API costs
no event and repeats none. Watching changes nothing; leaving it leaves the job alone.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gateway.cli import render
from gateway.cli.client import Gateway, Json, Rejected, Unreachable, job_path
from gateway.cli.options import DataDir, JobArgument, JsonOutput, Verbose, enter
from gateway.cli.render import Voice
from workflows.contract.events import TERMINAL_EVENTS

RESUME_WITHIN_S = 120.0
"""How long an API that was there may stay away: long enough for somebody to start another."""
SAID_AFTER_S = 3.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


def watch(job: JobArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False) -> int:
    """Show a job's events as they come, from its first one to its end.

    Survives a restart of the API. Ctrl-C stops watching and leaves the job alone.
    Exits 0 when the job succeeded, else 1. With --json each event is one line of JSON.
    """
    voice, gateway = enter("app", data, json_output, verbose)
    return to_the_end(gateway, voice, job)


def to_the_end(gateway: Gateway, voice: Voice, job: str) -> int:
    """Shows every event, then the outcome; the exit code."""
    try:
        with live_line(voice, job) as line:
            for event in follow(gateway, voice, job):
                voice.event(event)
                show_event(voice, event)
                if event["type"] == "request.opened":
                    asked = event["data"]
                    voice.say(render.decide_hint(job, str(asked.get("request_id")), str(asked.get("kind"))), "dim")
                line.update(str(event.get("message", "")))
        last = gateway.get(job_path(job)).json
    except KeyboardInterrupt:
        voice.note(f"Stopped watching; the job goes on. Again: jobgate watch {job}")
        return 1
    voice.say(f"{job}  {last['status']}", render.STATUS_STYLES.get(last["status"], "bold"))
    render.outcome(voice, last)
    return 0 if last["status"] == "succeeded" else 1


def show_event(voice: Voice, event: Json) -> None:
    voice.say(render.event_line(event), render.event_style(str(event["type"])))


def follow(gateway: Gateway, voice: Voice, job: str) -> Iterator[Json]:
    """Every event of the job once, in order, up to the one that ends it. Raises Rejected or Unreachable."""
    path = f"{job_path(job)}/events"
    cursor: str | None = None
    lost_at: float | None = None
    said_at: float | None = None
    connected = False
    pause = FIRST_PAUSE_S
    while True:
        try:
            with gateway.stream(path, cursor) as frames:
                connected = True
                for frame in frames:
                    cursor, lost_at, pause = frame.id or cursor, None, FIRST_PAUSE_S
                    yield frame.event
                    if frame.event.get("type") in TERMINAL_EVENTS:
                        return
        except (Unreachable, Rejected) as error:
            if not connected or (isinstance(error, Rejected) and not error.retryable):
                raise
            lost_at = lost_at or time.monotonic()
            away_s = time.monotonic() - lost_at
            if away_s > RESUME_WITHIN_S:
                raise
            if said_at != lost_at and away_s > SAID_AFTER_S:
                said_at = lost_at
                voice.note(f"Jobgate does not answer; trying again for {RESUME_WITHIN_S:.0f} s. The job goes on.")
            voice.detail(f"the stream was lost, resuming behind event {cursor}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
        gateway.renew_if_served()


class Line(Protocol):
    """The one line below the events that says what is going on now."""

    def update(self, text: str) -> None: ...


class _NoLine:
    def update(self, text: str) -> None:
        del text


@contextmanager
def live_line(voice: Voice, title: str) -> Generator[Line]:
    """On a terminal a spinner with the elapsed time; elsewhere nothing, so that piped output is events alone."""
    if not voice.lively:
        yield _NoLine()
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns: Any = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=voice.console, transient=True) as progress:
        task = progress.add_task(render.shown(title), total=None)

        class _Spinner:
            def update(self, text: str) -> None:
                progress.update(task, description=render.shown(f"{title}: {text}")[: voice.console.width - 16])

        yield _Spinner()
