"""The demo's story as it is told, and its proof: what must hold, what was found, and what is not proven at all."""

import json
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.client import Json, Rejected, Reply
from gateway.cli.render import Voice
from gateway.cli.stage import Stage

INDENT = 9
"""Columns before what is told: room for the seconds since the beginning."""
NOT_PROVEN = (
    "a model's judgement: the model is a script, so that the demo needs no key and no network",
    "survival: no process was killed here (`make test` does that), and no power was cut, which SQLite answers with its"
    " last transactions at worst",
    "more than one machine: Temporal, the ledger (SQLite, not PostgreSQL) and the blobs (a folder, not S3) are local",
    "a change of build under running jobs: one build ran, from start to end",
    "many at once: the jobs were few, and only these four invoices were read",
    "the next version: it starts at blocked_noop and climbs by evidence of its own",
)


@dataclass(frozen=True)
class Check:
    """One line of proof: what must hold, what was found."""

    name: str
    holds: bool
    found: str


@dataclass
class Story:
    voice: Voice
    stage: Stage
    began: float = field(default_factory=time.monotonic)
    chapters: int = 0
    checks: list[Check] = field(default_factory=list[Check])
    receipts: dict[str, Reply] = field(default_factory=dict[str, Reply])
    events: list[Json] = field(default_factory=list[Json])
    view: Json = field(default_factory=dict[str, Any])
    stamp: str = field(default_factory=lambda: time.strftime("%H%M%S"))

    @property
    def key(self) -> str:
        """The job that the story is about."""
        return self.named("refund-inv_17")

    @property
    def paid(self) -> list[str]:
        """The shop's own table, in words."""
        return [f"{refund.invoice} {refund.amount_cents} cents" for refund in self.stage.refunds]

    @property
    def quiet(self) -> Voice:
        """For what is told in other words."""
        return Voice(verbose=self.voice.verbose)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def tell(self, text: str, style: str = "") -> None:
        self._wrapped(f"{self.elapsed:5.1f} s  {text}", style)

    def aside(self, text: str) -> None:
        """A line that belongs to the one above it."""
        self._wrapped(f"{'':{INDENT}}{text}", "dim")

    def bullet(self, text: str) -> None:
        self._wrapped(f"  · {text}", "", indent=4)

    def heading(self, title: str) -> None:
        self.voice.say()
        self.voice.say(title, "bold cyan")

    def chapter(self, title: str) -> None:
        self.chapters += 1
        self.heading(f"{self.chapters:>2}  {title}")

    def check(self, name: str, holds: bool, found: Any) -> None:
        """One more line of the proof, shown where the story is."""
        self.checks.append(Check(name, holds, str(found)))
        self._show(self.checks[-1])

    def expect(self, name: str, found: Sequence[object], wanted: Sequence[object]) -> None:
        """A line that holds where what was found is what was wanted, member by member."""
        self.check(name, list(found) == list(wanted), ", ".join(str(fact) for fact in found) or "nothing")

    def named(self, what: str) -> str:
        """A job's key that no other demo on the same folder has."""
        return f"{what}-{self.stamp}"

    @property
    def failed(self) -> list[str]:
        return [check.name for check in self.checks if not check.holds]

    def show_broken(self) -> None:
        for check in self.checks:
            if not check.holds:
                self._show(check)

    def _show(self, check: Check) -> None:
        mark, style = ("✓", "green") if check.holds else ("✗", "bold red")
        self._wrapped(f"{mark:>{INDENT - 2}} {check.name}: {check.found}", style)

    def _wrapped(self, text: str, style: str, indent: int = INDENT) -> None:
        """On a terminal a long line goes on below its own beginning; piped, it stays one line."""
        width = self.voice.console.width if self.voice.lively else len(text) + 1
        for line in textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False):
            self.voice.say(line, style)


def reply_to(send: Callable[[], Reply]) -> Reply:
    """The answer, be it a refusal."""
    try:
        return send()
    except Rejected as refusal:
        return refusal.reply


def code_of(reply: Reply) -> str:
    return str(reply.json.get("code", "no code"))


def give_up(voice: Voice, story: Story | None, why: str) -> int:
    """The story can not go on; what did not hold until then is named."""
    for name in [] if story is None else story.failed:
        voice.note(f"failed: {name}")
    voice.note(f"failed: {why}; `jobgate demo --keep` keeps the logs")
    return 1


def conclude(story: Story, ui: str, *, kept: bool) -> int:
    """Tells the proof, once everything has ended; 0 where all of it holds."""
    endings = story.stage.endings
    said = ", ".join(f"{name} exit code {code}" for name, code in endings.items())
    left = story.stage.left_running if kept or not story.stage.folder.exists() else [str(story.stage.folder)]
    clean = not left and all(code == 0 for code in endings.values())
    story.check("nothing left behind", clean, f"{said}; left: {', '.join(left) or 'nothing'}")
    if failed := story.failed:
        story.heading("What does not hold")
        story.show_broken()
    story.heading("Not yet proven")
    for line in NOT_PROVEN:
        story.bullet(line)
    story.voice.say()
    story.voice.say(f"Temporal UI: {ui}")
    if kept:
        story.voice.say(f"It ended with the demo; the folder stays: jobgate dev --data {story.stage.data}")
    else:
        story.voice.say("It ended with the demo; `jobgate demo --keep` keeps the folder, to look again.", "dim")
    verdict = f"{len(story.checks) - len(failed)} of {len(story.checks)} lines of proof hold"
    verdict += f", after {story.elapsed:.1f} s"
    story.voice.say(verdict, "bold red" if failed else "bold green")
    story.voice.document(_summary(story, ui))
    for name in failed:
        story.voice.note(f"failed: {name}")
    return 1 if failed else 0


def _summary(story: Story, ui: str) -> str:
    checks = [{"name": check.name, "holds": check.holds, "found": check.found} for check in story.checks]
    facts = {"job_id": story.key, "temporal_ui_url": ui, "seconds": round(story.elapsed, 1), "checks": checks}
    return json.dumps({**facts, "result": story.view.get("result"), "not_proven": NOT_PROVEN}, ensure_ascii=False)
