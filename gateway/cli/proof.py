"""The demo's story as it is told, and its proof: what must hold, what was found, and what is not proven at all."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.client import Json
from gateway.cli.render import Voice
from gateway.cli.stage import Stage

NOT_PROVEN = (
    "a model's judgement: the model is a script, so that the demo needs no key and no network",
    "survival of crashes and outages: nothing was killed here (`make test` does that)",
    "the ladder between blocked and live: break-glass skipped it, on record",
    "more than one machine: Temporal, ledger and blobs are local files",
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
    checks: list[Check] = field(default_factory=list[Check])
    events: list[Json] = field(default_factory=list[Json])
    view: Json = field(default_factory=dict[str, Any])
    key: str = field(default_factory=lambda: f"refund-inv_17-{time.strftime('%H%M%S')}")

    @property
    def quiet(self) -> Voice:
        """For what is told in other words."""
        return Voice(verbose=self.voice.verbose)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def tell(self, text: str, style: str = "") -> None:
        self.voice.say(f"{self.elapsed:5.1f} s  {text}", style)

    def chapter(self, title: str) -> None:
        self.voice.say()
        self.voice.say(title, "bold cyan")

    def check(self, name: str, holds: bool, found: Any) -> None:
        self.checks.append(Check(name, holds, str(found)))


def conclude(story: Story, ui: str, *, kept: bool) -> int:
    """Tells the proof, once everything has ended; 0 where all of it holds."""
    endings = story.stage.endings
    said = ", ".join(f"{name} exit code {code}" for name, code in endings.items())
    left = story.stage.left_running if kept or not story.stage.folder.exists() else [str(story.stage.folder)]
    clean = not left and all(code == 0 for code in endings.values())
    story.check("nothing left behind", clean, f"{said}; left: {', '.join(left) or 'nothing'}")
    story.chapter("What ran and what did not, computed from the shop's table, the events and the answers")
    for check in story.checks:
        mark, style = ("✓", "green") if check.holds else ("✗", "bold red")
        story.voice.say(f"  {mark} {check.name}: {check.found}", style)
    story.chapter("Not proven here")
    for line in NOT_PROVEN:
        story.voice.say(f"  · {line}")
    story.voice.say()
    story.voice.say(f"Temporal UI: {ui}")
    if kept:
        story.voice.say(f"It ended with the demo; the folder stays: jobgate dev --data {story.stage.data}")
    else:
        story.voice.say("It ended with the demo; `jobgate demo --keep` keeps the folder, to look again.", "dim")
    failed = [check.name for check in story.checks if not check.holds]
    verdict = f"{len(story.checks) - len(failed)} of {len(story.checks)} hold, after {story.elapsed:.1f} s"
    story.voice.say(verdict, "bold red" if failed else "bold green")
    story.voice.document(_summary(story, ui))
    for name in failed:
        story.voice.note(f"failed: {name}")
    return 1 if failed else 0


def _summary(story: Story, ui: str) -> str:
    checks = [{"name": check.name, "holds": check.holds, "found": check.found} for check in story.checks]
    facts = {"job_id": story.key, "temporal_ui_url": ui, "seconds": round(story.elapsed, 1), "checks": checks}
    return json.dumps({**facts, "result": story.view.get("result"), "not_proven": NOT_PROVEN}, ensure_ascii=False)
