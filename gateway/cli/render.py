"""What a person sees of an answer: plain complete lines when piped, colour on a terminal, problems with a next step.

It owns wording and layout only. Whatever came from outside is shown with its control, bidi and invisible characters
spelled out, so that no text can pretend to be something else. JSON goes out byte for byte as it came in.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gateway.cli.client import Json, Rejected, Reply, Unreachable

if TYPE_CHECKING:
    from rich.console import Console

STATUS_STYLES: Mapping[str, str] = MappingProxyType(
    {"succeeded": "bold green", "failed": "bold red", "canceled": "bold red", "waiting_for_human": "bold yellow"}
)
_EVENT_STYLES = (("job.succeeded", "bold green"), ("job.failed", "bold red"), ("job.canceled", "bold red"))
_FAMILY_STYLES = (("request.", "yellow"), ("tool.", "cyan"), ("step.", "dim"), ("job.", "bold"))

CLIMB = (
    "An operator climbs the next rung: jobgate readiness PLUGIN shows what it asks for (first: jobgate smoke --plugin "
    "PLUGIN), jobgate promote proposes it, and somebody else approves."
)
HELD = "It is held until a packet names it (jobgate packet create JOB) or its version goes live with --release-held."
NEXT: Mapping[str, str] = MappingProxyType(
    {
        "unauthenticated": 'Set JOBGATE_TOKEN; in development: export JOBGATE_TOKEN="$(jobgate token PRINCIPAL)".',
        "not-permitted": "Use a token of somebody who may, or ask an operator for the grant.",
        "not-found": "Check the name: `jobgate list` has jobs, `jobgate requests` requests, `jobgate inspect JOB` "
        "effects, `jobgate grant list` grants, `jobgate audit` the rest.",
        "not-live-approved": CLIMB,
        "plugin-unknown": "Publish it first: jobgate plugin publish DIR.",
        "phase_blocked_noop": CLIMB,
        "awaiting_promotion": HELD,
        "release_missing": "An operator releases a version: jobgate release set PLUGIN VERSION.",
        "deployment_missing": "An operator deploys it: jobgate deploy deployment.yaml.",
        "version_withdrawn": "An operator releases another version: jobgate release set PLUGIN VERSION.",
        "idempotency-key-reused": "Choose another --key, or send the first content again for its receipt.",
        "admission-unknown": "Ask again with the same key: it answers with the one job there is.",
        "not-an-approver": "A member of the request's groups decides; in development: add --group GROUP.",
        "effect-unreconciled": "Find out what came of it, then: jobgate settle JOB EFFECT happened|did_not_happen.",
        "job-not-ended": "Wait until it has ended, or cancel it: jobgate cancel JOB.",
        "request-voided": "Look at the job: jobgate show JOB.",
        "self-approval": 'Somebody without a part in it; in development: JOBGATE_TOKEN="$(jobgate token PRINCIPAL)".',
        "gate-not-met": "jobgate readiness PLUGIN shows each rung, its evidence, and which command gives it.",
        "packet-spent": "Another held job needs a packet of its own: jobgate packet create JOB.",
        "action-digest-mismatch": "Leave --digest out: `decide` then shows the present action and decides that.",
        "version-exists": "Raise `version` in plugin.yaml: a published version never changes.",
        "release-conflict": "Look at what is current, then repeat with --expect VERSION.",
        "job-expired": "Its record or its content is gone; the receipt is all that is left.",
    }
)


MIN_COLUMN = 30
QUOTED_CHOICE = "'approve|reject'"
"""In quotes, so that the line pasted as it is decides nothing: unquoted, a shell would run `approve` into a pipe."""


def shown(text: str) -> str:
    """`text` with every character that is not visible as itself spelled `\\uXXXX`; line feeds stay."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)


@dataclass(frozen=True)
class Voice:
    """Standard output for answers, standard error for everything else. With `--json` only JSON reaches the former."""

    json_output: bool = False
    verbose: bool = False

    @property
    def lively(self) -> bool:
        """Whether a person watches standard output."""
        return not self.json_output and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(soft_wrap=True, markup=False, highlight=False, emoji=False)

    def say(self, text: str = "", style: str = "") -> None:
        if self.json_output:
            return
        if self.lively:
            self.console.print(shown(text), style=style or None)
        else:
            sys.stdout.write(shown(text) + "\n")
            sys.stdout.flush()

    def flow(self, head: str, text: str, style: str = "") -> None:
        """`text` after `head`; on a terminal its further lines stand under its first one."""
        if self.lively:
            room = max(self.console.width - len(head), MIN_COLUMN)
            text = f"\n{' ' * len(head)}".join(wrap(text, room, break_long_words=False, break_on_hyphens=False))
        self.say(f"{head}{text}", style)

    def note(self, text: str) -> None:
        sys.stderr.write(shown(text) + "\n")
        sys.stderr.flush()

    def detail(self, text: str) -> None:
        if self.verbose:
            self.note(text)

    def document(self, text: str) -> None:
        """One JSON text on a line of its own; always UTF-8, and nothing where `--json` was not asked."""
        if self.json_output and text:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.rstrip("\n").encode() + b"\n")
            sys.stdout.buffer.flush()

    def event(self, event: Json) -> None:
        self.document(json.dumps(event, ensure_ascii=False, separators=(",", ":")))

    def rows(self, head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> None:
        """Columns as wide as their widest entry; the last one is never padded or cut."""
        table = [head, *lines]
        widths = [max(len(row[column]) for row in table) for column in range(len(head))]
        for index, row in enumerate(table):
            padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
            self.say("  ".join(padded).rstrip(), "dim" if index == 0 else "")

    def problem(self, rejected: Rejected) -> None:
        """Title, detail, and what to do next, on standard error; the document itself with `--json`."""
        document = rejected.reply.json
        if "code" in document:
            self.document(rejected.reply.text)
        title = document.get("title") or f"The server answered {rejected.reply.status}"
        self.note(f"{title} ({rejected.code or 'no problem document'})")
        missing: list[str] = document.get("missing") or []
        said = [str(document[name]) for name in ("detail", "not_yet") if document.get(name)]
        said = [line for line in said if not missing or line != f"Not yet: {'; '.join(missing)}."]
        for line in dict.fromkeys(said):
            self.note(f"  {line}")
        for one in missing:
            self.note(f"  missing: {one}")
        for name in ("file", "line"):
            if document.get(name):
                self.note(f"  {name}: {_inline(document[name])}")
        facts = [f"{name} {document[name]}" for name in ("eligibility", "blocker", "executed") if document.get(name)]
        if facts:
            self.note(f"  {', '.join(facts)}")
        if advice := _advice(document):
            self.note(f"  Next: {advice}")

    def unreachable(self, error: Unreachable) -> None:
        self.note(f"Jobgate can not be reached: {error}")
        self.note("  Next: start `jobgate dev` (or `jobgate api`, where only its API died),")
        self.note("  name its folder with --data, or set JOBGATE_URL.")


def _advice(document: Json) -> str | None:
    for name in ("code", "blocker"):
        if (advice := NEXT.get(str(document.get(name)))) is not None:
            return advice
    if document.get("retryable"):
        wait = document.get("retry_after_s")
        return f"Try again{f' in {wait} s' if wait else ''}; the same request is safe to repeat."
    return None


def event_style(type_: str) -> str:
    exact = dict(_EVENT_STYLES).get(type_)
    return exact or next((style for family, style in _FAMILY_STYLES if type_.startswith(family)), "")


def event_line(event: Json) -> str:
    """`12:03:04  tool.started      Reading invoice inv_17`, the time in UTC."""
    return f"{str(event.get('at', ''))[11:19]}  {event.get('type', ''):<17} {event.get('message', '')}"


def pretty(value: Any, indent: str = "  ") -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return "\n".join(indent + line for line in text.splitlines())


def member(document: Json, name: str) -> Json:
    """A member that is an object or null."""
    return document.get(name) or {}


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def receipt(voice: Voice, reply: Reply) -> None:
    taken = reply.json
    again = " (replayed: this key was accepted before)" if reply.headers.get("Idempotent-Replayed") else ""
    plugin = taken["plugin"]
    voice.say(f"{taken['job_id']}  accepted{again}", "bold")
    facts = [taken["mode"], taken["eligibility"], taken.get("blocker"), f"executed {taken['executed']}"]
    voice.say(f"  plugin    {plugin['name']} {plugin['version']}  {plugin['digest'][:19]}…")
    voice.say(f"  gate      {', '.join(fact for fact in facts if fact)}")
    if taken["mode"] == "live" and taken.get("blocker") == "awaiting_promotion":
        voice.flow("  held      ", HELD, "yellow")
    voice.say(f"  deadline  {taken['deadline']}")


def view(voice: Voice, job: Json) -> None:
    plugin, usage, last = job["plugin"], job["usage"], job["last_event"]
    voice.say(f"{job['job_id']}  {job['status']}", STATUS_STYLES.get(job["status"], "bold"))
    facts = [job["mode"], job["eligibility"], job.get("blocker"), f"executed {job['executed']}"]
    lines: dict[str, Any] = {
        "plugin": f"{plugin['name']} {plugin['version']}",
        "gate": ", ".join(fact for fact in facts if fact),
        "last": f"{last['at']}  {last['type']}  {last['message']}",
        "usage": f"{usage['steps']} steps, {usage['input_tokens']} + {usage['output_tokens']} tokens, "
        f"{usage['cost_usd']} USD",
        "accepted": job["accepted_at"],
        "started": job.get("started_at"),
        "canceled": job.get("cancel_requested_at") and f"requested {job['cancel_requested_at']}",
        "finished": job.get("finished_at"),
        "deadline": f"{job['deadline']}{'  overdue' if job['overdue'] else ''}",
        "as of": f"{job['as_of']} ({job['source']})",
        "next": member(job, "next_action").get("message"),
    }
    for name, value in lines.items():
        if value:
            voice.say(f"  {name:<9} {value}")
    for request in job["pending"]:
        pending(voice, job["job_id"], request)
    outcome(voice, job)


def outcome(voice: Voice, job: Json) -> None:
    """How an ended job ended."""
    if job.get("failure"):
        voice.say(f"  failure   {job['failure']['code']}: {job['failure']['message']}", "red")
    if job.get("result") is not None:
        voice.say("  result")
        voice.say(pretty(job["result"], "    "))
    for artifact in job.get("artifacts") or ():
        voice.say(f"  artifact  {artifact['name']}, {artifact['bytes']} bytes: GET {artifact['url']}")


def pending(voice: Voice, job: str, request: Json) -> None:
    voice.say(f"  {request['kind']} {request['request_id']}: {request['title']}", "yellow")
    voice.say(decide_hint(job, request["request_id"], request["kind"]))


def decide_hint(job: str, request: str, kind: str) -> str:
    """The command that decides a request of this kind."""
    verbs = {
        "question": "answer --answer TEXT",
        "reconciliation": "settle --answer 'happened|did_not_happen|stop'",
    }
    return f"    jobgate decide {job} {request} {verbs.get(kind, QUOTED_CHOICE)}"
