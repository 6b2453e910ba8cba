"""What operators look at: one job from behind, the audit trail, and the bill."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gateway.cli import render
from gateway.cli.client import Json, segment
from gateway.cli.options import DataDir, JobArgument, JsonOutput, Verbose, enter
from gateway.cli.render import Voice


def inspect(job: JobArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False) -> int:
    """Look at a job from behind: on whose authority it runs, which worker tried what, what it sent, who decided.

    It ends with its page in the Temporal UI. Needs no worker, and shows no input, argument, result or secret.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get(f"/v1/operator/jobs/{segment(job)}")
    voice.document(reply.text)
    if json_output:
        return 0
    found = reply.json
    voice.say(f"{found['job_id']}  {found['status']}", render.STATUS_STYLES.get(found["status"], "bold"))
    for name, value in _facts(found):
        if value:
            voice.say(f"  {name:<9} {value}")
    for request in found["pending"]:
        render.pending(voice, found["job_id"], request)
    _attempts(voice, found["attempts"], whole=found["attempts_complete"])
    _effects(voice, found["effects"])
    _decisions(voice, found["decisions"])
    return 0


def audit(
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="Only what follows it.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many lines a page.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="Read on to the newest line.")] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Read who did what, when, to which version: the workspace's own lines and the runtime's, oldest first.

    With --all and --json there is one JSON document a page.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    while True:
        reply = gateway.get("/v1/audit", {"after": after, "limit": limit})
        voice.document(reply.text)
        page, after = reply.json, reply.json["next_cursor"]
        for line in page["data"]:
            detail = " ".join(
                f"{name}={_short(value)}" for name, value in line["detail"].items() if value not in (None, "")
            )
            place = "" if line["workspace"] else " (runtime)"
            voice.say(
                f"{line['at'][:19]}Z  {line['actor']}  {line['action']}{place}  {line['subject']}  {detail}".rstrip()
            )
        if not page["has_more"] or not everything:
            break
    if page["has_more"]:
        voice.say(f"More: jobgate audit --after {after}", "dim")
    return 0


def usage(
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="RFC 3339; default: 30 days before --to.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="RFC 3339; default: now.")] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show what each principal's jobs have spent: everybody's with operator:read, else one's own."""
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get("/v1/usage", {"from": since, "to": until})
    voice.document(reply.text)
    rows: list[Json] = reply.json["data"]
    voice.say(f"From {reply.json['from'][:19]}Z to {reply.json['to'][:19]}Z", "bold")
    if not rows:
        voice.say("Nothing was spent.")
        return 0
    names = ("jobs", "steps", "input_tokens", "output_tokens", "cost_usd")
    voice.rows(
        ("PRINCIPAL", "JOBS", "STEPS", "TOKENS IN", "TOKENS OUT", "USD"),
        [(row["principal"], *(str(row[name]) for name in names)) for row in rows],
    )
    return 0


def _facts(found: Json) -> list[tuple[str, Any]]:
    workload, engine, authority = found["workload"], found["engine"], render.member(found, "authority")
    initiator, stop = render.member(found, "initiator"), render.member(found, "stop")
    failure = render.member(found, "failure")
    by = found["submitted_by"] or found["principal"]
    credential = f"API key {found['credential']}" if found["credential"] else "a signed token"
    held = f"until {authority.get('expires_at')}, renewed by every call"
    if authority.get("revoked_at"):
        held = f"revoked {authority['revoked_at']}: {authority['revoked_reason']}"
    return [
        ("executed", found["executed"]),
        ("failure", failure and f"{failure['code']}: {failure['message']}"),
        ("principal", f"{found['principal']}, submitted by {by} with {credential}"),
        ("initiator", initiator and f"{initiator['kind']} {initiator['id']}"),
        ("authority", authority and held),
        ("workload", f"{workload['plugin']} {workload['version']}  {workload['digest'][:19]}…"),
        ("snapshot", f"{workload['snapshot'][:19]}…  {workload['model'] or ''}".rstrip()),
        ("session", found["session"]),
        ("retry of", found["retry_of"]),
        ("accepted", found["accepted_at"]),
        ("stopped", stop and f"{stop['requested_at']} by {stop['by']}"),
        ("finished", found["finished_at"]),
        ("deadline", f"{found['deadline']}{'  overdue' if found['overdue'] else ''}"),
        *(("lane", _lane(lane)) for lane in found["lanes"]),
        (
            "engine",
            f"{engine['status']}, {engine['history_length']} events, {engine['workflow_id']} {engine['run_id']}",
        ),
        ("build", engine.get("build") and f"{engine['build']}{_LIVES[engine['build_lives']]}"),
        ("trace", found["trace_id"]),
        ("UI", found["temporal_url"]),
    ]


_LIVES = {True: "", None: "", False: "  no live worker of it: start one, or cancel the job"}
"""What `build_lives` means for who looks."""


def _lane(lane: Json) -> str:
    pollers: Sequence[Json] = lane["pollers"]
    seen = ", ".join(f"{one['worker']} at {_clock(one['seen_at'])}" for one in pollers)
    return f"{lane['lane'] or 'unknown'} ({lane['task_queue']}): {seen or 'nobody has asked for work lately'}"


def _attempts(voice: Voice, attempts: Sequence[Json], *, whole: bool) -> None:
    voice.say("attempts" if whole else "attempts (older ones are left out)", "bold")
    voice.rows(
        ("STEP", "TRY", "ACTIVITY", "OUTCOME", "SCHEDULED", "STARTED", "ENDED", "WORKER"),
        [
            (
                str(each["step"] or "-"),
                str(each["attempt"] or "-"),
                f"{each['activity']} {each['tool']}" if each["tool"] else each["activity"],
                f"{each['outcome']} {each['code']}" if each["code"] else each["outcome"],
                *(_clock(each[name]) for name in ("scheduled_at", "started_at", "ended_at")),
                each["worker"] or "-",
            )
            for each in attempts
        ],
    )


def _effects(voice: Voice, effects: Sequence[Json]) -> None:
    if effects:
        voice.say("effects", "bold")
        voice.rows(
            ("EFFECT", "TOOL", "STATE", "EPOCH", "SENT", "FINISHED", "REQUEST"),
            [
                (
                    each["effect_id"],
                    each["tool"],
                    each["state"],
                    str(each["epoch"]),
                    _clock(each["sent_at"]),
                    _clock(each["finished_at"]),
                    each["request_id"] or "-",
                )
                for each in effects
            ],
        )


def _decisions(voice: Voice, decisions: Sequence[Json]) -> None:
    if decisions:
        voice.say("decisions", "bold")
        voice.rows(
            ("REQUEST", "VERDICT", "AT", "BY"),
            [
                (
                    each["request_id"],
                    each["decision"] or "open",
                    _clock(each["decided_at"]),
                    ", ".join(f"{vote['principal']} {vote['decision']}" for vote in each["votes"])
                    or ", ".join(each["decided_by"])
                    or "-",
                )
                for each in decisions
            ],
        )


def _clock(instant: str | None) -> str:
    return instant[11:23] if instant else "-"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if " " in value or "\n" in value else value
    if isinstance(value, list):
        return ",".join(str(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON
    return json.dumps(value, ensure_ascii=False)
