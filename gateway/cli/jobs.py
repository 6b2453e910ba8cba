"""What apps do: submit a job, read it, list them, cancel one. Each command is one HTTP call and its answer in words."""

import json
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gateway.cli import render
from gateway.cli.client import Gateway, Json, Rejected, Reply, Unreachable, job_path
from gateway.cli.options import DataDir, JobArgument, JsonOutput, Verbose, enter
from gateway.cli.render import Voice
from gateway.cli.watching import follow, live_line, show_event, to_the_end

JobClock = Annotated[
    int | None, typer.Option("--timeout", metavar="SECONDS", help="The job clock; default: the longest allowed.")
]

ATTEMPTS = 3
"""A submission without an answer is sent again with its own key; the key makes that safe."""


def submit(
    plugin: Annotated[str, typer.Argument(metavar="PLUGIN", help="The plugin to run.")],
    key: Annotated[str | None, typer.Option("--key", help="The idempotency key, which becomes the job id.")] = None,
    input_: Annotated[
        str, typer.Option("--input", metavar="JSON|@FILE", help="The job's input; @- reads standard input.")
    ] = "{}",
    version: Annotated[str | None, typer.Option("--version", help="A version other than the released one.")] = None,
    mode: Annotated[
        Literal["live", "dry_run"], typer.Option("--mode", help="dry_run plans and runs nothing.")
    ] = "live",
    timeout: JobClock = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="RFC 3339, instead of --timeout.")
    ] = None,
    on_blocked: Annotated[
        Literal["hold", "refuse"], typer.Option("--on-blocked", help="When its gate is not open yet.")
    ] = "hold",
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="The session it belongs to; made by its first job.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Budget: model steps.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Budget: tokens.")] = None,
    max_cost: Annotated[
        str | None, typer.Option("--max-cost-usd", metavar="USD", help='Budget: money, as "0.50".')
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="May be given 16 times.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its events and exit with how it ended.")] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Submit a job and print its receipt.

    The same key with the same content answers with the first receipt, whatever has happened since; so a submission
    whose answer was lost is simply repeated. Without --key a fresh one is made up and shown.

    With --wait the job's events are shown as they come; it exits 0 when the job succeeded, else 1, and --json prints
    the job as it ended.
    """
    asked = {
        "plugin": plugin,
        "version": version,
        "mode": mode,
        "timeout_seconds": timeout,
        "deadline": deadline,
        "on_blocked": on_blocked,
        "session": session,
        "labels": _labels(label or []),
        "budget": given({"max_steps": max_steps, "max_tokens": max_tokens, "max_cost_usd": max_cost}),
    }
    body = body_text(given(asked), input_text(input_))
    voice, gateway = enter("app", data, json_output, verbose)
    job = key if key is not None else f"{plugin[:60]}-{uuid.uuid4().hex[:12]}"
    reply = _send(gateway, voice, job, body)
    if not wait:
        voice.document(reply.text)
        if not json_output:
            render.receipt(voice, reply)
            voice.say(f"  watch     jobgate watch {job}")
        return 0
    if json_output:
        return _end_as_json(gateway, voice, job)
    render.receipt(voice, reply)
    return to_the_end(gateway, voice, job)


def show(
    job: JobArgument,
    events: Annotated[bool, typer.Option("--events", help="Also every event recorded so far.")] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show where a job is, what it waits for and how it ended. Needs no worker."""
    voice, gateway = enter("app", data, json_output, verbose)
    reply = gateway.get(job_path(job), {"after": "0", "limit": 500} if events else None)
    voice.document(reply.text)
    if json_output:
        return 0
    render.view(voice, reply.json)
    page = reply.json
    while events:
        for event in page["events"]:
            show_event(voice, event)
        if not page["has_more"] or not page["events"]:
            break
        page = gateway.get(job_path(job), {"after": page["next_cursor"], "limit": 500}).json
    return 0


def list_jobs(
    status: Annotated[str | None, typer.Option("--status", help="Only jobs in this status.")] = None,
    plugin: Annotated[str | None, typer.Option("--plugin", help="Only jobs of this plugin.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only jobs of this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")] = 20,
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="The next page.")] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """List the workspace's jobs, newest first."""
    voice, gateway = enter("app", data, json_output, verbose)
    asked = {"status": status, "plugin": plugin, "session": session, "limit": limit, "after": after}
    reply = gateway.get("/v1/jobs", asked)
    voice.document(reply.text)
    page = reply.json
    jobs: list[Json] = page["data"]
    voice.rows(
        ("JOB", "STATUS", "PLUGIN", "ACCEPTED", "LAST"),
        [
            (
                job["job_id"],
                job.get("status", ""),
                f"{job['plugin']['name']} {job['plugin']['version']}",
                job["accepted_at"][:19] + "Z",
                str(render.member(job, "last_event").get("message", "")),
            )
            for job in jobs
        ],
    )
    if page.get("has_more"):
        voice.say(f"More: the same with --after {page['next_cursor']}", "dim")
    return 0


def cancel(job: JobArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False) -> int:
    """Cancel a job: after the answer no write starts but those it names. Repeating it changes nothing."""
    voice, gateway = enter("app", data, json_output, verbose)
    reply = gateway.post(f"{job_path(job)}/cancel")
    voice.document(reply.text)
    answer = reply.json
    ended = f"had ended {answer['finished_at']}" if answer.get("finished_at") else "is being canceled"
    voice.say(f"{answer['job_id']}  {answer['status']}: {ended}", render.STATUS_STYLES.get(answer["status"], "bold"))
    if answer.get("cancel_requested_at"):
        voice.say(f"  requested {answer['cancel_requested_at']}")
    for effect in answer.get("in_flight", ()):
        voice.say(f"  in flight {effect['tool']} {effect['effect_id']}, sent {effect['sent_at']}", "yellow")
    return 0


def retry(
    job: JobArgument,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The new job's own key; default: a fresh one.")
    ] = None,
    release: Annotated[
        Literal["same", "current"], typer.Option("--release", help="The version it ran, or the one released now.")
    ] = "same",
    timeout: JobClock = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Run a job that has ended once more, as a new job under a key of its own.

    What took effect before is not repeated without a new decision; while an effect is not known, it is refused.
    """
    body = json.dumps(given({"release": release, "timeout_seconds": timeout}))
    voice, gateway = enter("app", data, json_output, verbose)
    new = key if key is not None else f"retry-{uuid.uuid4().hex[:12]}"
    reply = _send(gateway, voice, new, body, f"{job_path(job)}/retry")
    voice.document(reply.text)
    if not json_output:
        render.receipt(voice, reply)
        voice.say(f"  watch     jobgate watch {new}")
    return 0


def _send(gateway: Gateway, voice: Voice, key: str, body: str, path: str = "/v1/jobs") -> Reply:
    """POST a submission; a lost or open answer is asked for again with the same key."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return gateway.post(path, body, {"Idempotency-Key": key})
        except Unreachable as lost:
            if not lost.sent or attempt == ATTEMPTS:
                voice.note(f"No answer for the key {key}: submitting it again with --key {key} is safe.")
                raise
        except Rejected as refusal:
            if refusal.code != "admission-unknown" or attempt == ATTEMPTS:
                raise
            time.sleep(min(5.0, float(refusal.reply.json.get("retry_after_s") or 1)))
    raise AssertionError("the last attempt returns or raises")


def _end_as_json(gateway: Gateway, voice: Voice, job: str) -> int:
    quiet = Voice(json_output=False, verbose=voice.verbose)
    with live_line(voice, job):
        for _ in follow(gateway, quiet, job):
            pass
    reply = gateway.get(job_path(job))
    voice.document(reply.text)
    return 0 if reply.json["status"] == "succeeded" else 1


def given(members: Mapping[str, Any]) -> Json:
    """Without the members that were not asked for."""
    return {name: value for name, value in members.items() if value is not None and value != {}}


def _labels(pairs: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter("a label is NAME=TEXT", param_hint="--label")
        labels[name] = text
    return labels


def input_text(asked: str) -> str:
    """The JSON text of the input, as it was written: numbers and duplicate keys are the server's to judge."""
    text = asked
    if asked.startswith("@"):
        try:
            text = sys.stdin.read() if asked == "@-" else Path(asked[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise typer.BadParameter(f"{asked[1:]} can not be read ({reason})", param_hint="--input") from None
    try:
        json.loads(text)
    except ValueError as error:
        where = f"line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else "a number"
        raise typer.BadParameter(f"this is not JSON ({where})", param_hint="--input") from None
    except RecursionError:
        raise typer.BadParameter("this is nested too deeply", param_hint="--input") from None
    return text


def body_text(members: Json, written: str) -> str:
    return f'{json.dumps(members, ensure_ascii=False)[:-1]}, "input": {written}}}'
