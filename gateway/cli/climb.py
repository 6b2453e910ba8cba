"""The demo's way up: what a version may do at each phase, and how two operators move it, as evidence allows.

Each line of proof compares what the API says with the engine's own record or the shop's own table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cli.client import Gateway, Json, job_path
from gateway.cli.example import PLUGIN, REFUND_TOOL, VERSION, job_once, post_job, submission
from gateway.cli.lookout import Lookout
from gateway.cli.proof import INDENT, Story, code_of, reply_to
from gateway.cli.render import member

VERSION_PATH = f"/v1/plugins/{PLUGIN}/versions/{VERSION}"
PUBLISHER, SECOND = "operator", "omar"
"""Two operators: who publishes and proposes, and who approves."""
CHARGED_TOO_MUCH, AS_PLANNED = "inv_17", "inv_18"
CHECKS = 4
TOLD_BEFORE = ("job.queued", "job.held")
"""Events that a held job has had before it is watched."""
PREVIEWS = 20
RUNGS = ("configured", "loaded", "callable", "blocked_noop", "stateful_noop", "live_canary")
PHASES_ABOVE = ("stateful_noop", "live_canary", "live")


@dataclass
class Ladder:
    story: Story
    engine: Lookout
    app: Gateway
    operator: Gateway
    second: Gateway

    @property
    def checks(self) -> list[str]:
        """Jobs on an invoice without overage: they read, and write nothing."""
        return [self.story.named(f"check-{number}-{AS_PLANNED}") for number in range(1, CHECKS + 1)]

    @property
    def held(self) -> list[str]:
        return [self.story.key, *self.checks]

    def be_refused(self) -> None:
        """At the lowest phase nothing is admitted, and nobody leaps over rungs."""
        story = self.story
        story.chapter("Refused: a new version may do nothing at all")
        answer = reply_to(lambda: post_job(self.app, story.key, CHARGED_TOO_MUCH))
        document = answer.json
        story.tell(f"app submits: HTTP {answer.status} {code_of(answer)}", "yellow")
        story.aside(str(document.get("not_yet")))
        found = [answer.status, code_of(answer), document.get("blocker"), f"executed {document.get('executed')}"]
        story.expect("refused: the answer", found, [409, "blocked", "phase_blocked_noop", "executed no"])
        status = reply_to(lambda: self.app.get(job_path(story.key))).status
        story.expect("refused: the job, asked of the API", [f"HTTP {status}"], ["HTTP 404"])
        state = self.engine.state(story.key)
        story.check("refused: the workflow, asked of the engine", state is None, state or "none")
        self.ready("at first", 3)
        leap = reply_to(lambda: self.operator.post(f"{VERSION_PATH}/promotions", {"to": "live"}))
        missing: list[str] = leap.json.get("missing", [])
        story.tell(f"{PUBLISHER} would go live at once: HTTP {leap.status} {code_of(leap)}, missing:", "yellow")
        for line in missing:
            story.aside(f"- {line}")
        refused = [leap.status, code_of(leap)] == [409, "gate-not-met"] and len(missing) > 1
        story.check(
            "refused: a leap over two rungs", refused, f"{leap.status}, {code_of(leap)}, {len(missing)} things missing"
        )

    def preview(self) -> None:
        """The same answer without asking for it, however often; the flags are the API's own measurement."""
        story = self.story
        story.chapter("Previewed: what a submission would come to, without making one")
        lines = self._audit()
        asked = [self.app.post("/v1/previews", submission(CHARGED_TOO_MUCH)).json for _ in range(PREVIEWS)]
        first = asked[0]
        would = "would" if first["would_execute"] else "would not"
        story.tell(f"{PREVIEWS} previews: {first['eligibility']}, {first['blocker']}; {would} execute")
        story.aside(f"next gate: {first['next_gate']}")
        said = [first["eligibility"], first["blocker"], f"would_execute {first['would_execute']}"]
        story.expect("preview: the answer", said, ["blocked", "phase_blocked_noop", "would_execute False"])
        raised = sorted({flag for one in asked for flag, up in one["side_effects"].items() if up})
        counted = f"{len(first['side_effects'])} flags each, raised: {', '.join(raised) or 'none'}"
        story.check("preview: side effects, as measured", not raised and len(first["side_effects"]) > 0, counted)
        grown = len(self._audit()) - len(lines)
        story.check("preview: new lines in the audit trail", not grown, grown)
        state = self.engine.state(story.key)
        story.check("preview: the workflow, asked of the engine", state is None, state or "none")

    def simulate(self) -> None:
        story = self.story
        story.chapter("Simulated: which lane could run it, with execution disabled")
        found = self.operator.post(f"{VERSION_PATH}/simulations", submission(CHARGED_TOO_MUCH)).json
        for lane in found["candidates"]:
            fits = "fits" if lane["fits"] else f"lacks {', '.join(lane['missing'])}"
            story.tell(f"lane {lane['lane']}: {fits}, last polled {lane['pollers_seen_at'] or 'never'}")
        fitting = [lane for lane in found["candidates"] if lane["fits"] and lane["pollers_seen_at"]]
        lanes = ", ".join(str(lane["lane"]) for lane in fitting) or "none"
        right = bool(fitting) and found["execution"] == "disabled"
        story.check("simulation: lanes that fit and are polled", right, f"{lanes}; execution {found['execution']}")
        self.climb("live_canary")

    def ready(self, when: str, reached: int) -> None:
        """As the API judges it, each rung by its own evidence: the first `reached` of six."""
        seen = self.operator.get(f"{VERSION_PATH}/readiness").json
        found = [rung["rung"] for rung in seen["rungs"] if rung["reached"]]
        self.story.expect(f"readiness {when}", found, RUNGS[:reached])

    def climb(self, to: str, *, release_held: bool = False) -> None:
        """One rung: proposed by who published the version, refused to them, approved by somebody else."""
        story = self.story
        asked = {"to": to, "release_held": release_held}
        proposed = self.operator.post(f"{VERSION_PATH}/promotions", asked).json
        own = reply_to(lambda: self.operator.post(_approval(proposed)))
        done = self.second.post(_approval(proposed)).json
        held = ", held jobs too" if release_held else ""
        story.tell(f"{PUBLISHER} proposes {to}{held}; approves it, too: HTTP {own.status} {code_of(own)}")
        story.tell(f"{SECOND} approves: {VERSION} is at {done['phase']}", "bold")
        story.expect(f"{to}: approved by its proposer", [own.status, code_of(own)], [403, "self-approval"])

    def smoke(self) -> None:
        """The evidence for the first rung: the system tries its own reads and refusals, and nothing may have moved."""
        story = self.story
        story.chapter("Smoked: all reads and refusals are tried, between two censuses")
        done = self.operator.post("/v1/smokes", {"plugin": PLUGIN, "version": VERSION}).json
        evidence, tried = done["evidence"], done["evidence"]["exercised"]
        story.tell(f"at {done['rung']}: {tried['reads']} reads answered, {tried['refusals']} refusals stood", "bold")
        story.aside(done["not_yet"])
        for reason in evidence["reasons"]:
            story.aside(f"because {reason}")
        raised = sorted(name for name, up in done["flags"].items() if up)
        found = f"{evidence['verdict']}; of {', '.join(done['flags'])} raised: {', '.join(raised) or 'none'}"
        story.check("smoke: the verdict", evidence["verdict"] == "green" and not raised, found)
        ran = ", ".join(sorted(process["kind"] for process in evidence["processes"]))
        story.expect("smoke: processes it saw, one build and configuration", ran.split(", "), ["api", "worker"])
        self.ready("after the smoke", 4)
        self.climb("stateful_noop")

    def rehearse(self) -> None:
        story = self.story
        key = story.named("rehearsal")
        story.chapter("A dry run: planned, by a workflow without one activity")
        post_job(self.app, key, CHARGED_TOO_MUCH, mode="dry_run")
        view = job_once(self.app, key, _ended)
        story.tell(f"{key}  {view['status']}, executed {view['executed']}: {view['last_event']['message']}")
        planned: list[Json] = member(view, "result").get("planned", [])
        for line in planned:
            when = {"policy": "the policy decides; if it asks:", "always": "always asks:"}.get(
                line["asks"], line["asks"]
            )
            story.aside(f"{line['tool']:<15} {line['effect']:<6} {when} {line['would_ask']}")
        story.expect("dry run: its end", [view["status"], f"executed {view['executed']}"], ["succeeded", "executed no"])
        asked = [line["would_ask"] for line in planned if line["tool"] == REFUND_TOOL]
        story.expect("dry run: who would be asked for the refund", asked, ["2 of finance"])
        story.expect("dry run: activities in its history", self.engine.activities(key), [])
        self.ready("after the dry run", 5)

    def be_held(self) -> None:
        story = self.story
        story.chapter("Held: five real submissions are kept, and none may run")
        for key in self.held:
            story.receipts[key] = post_job(self.app, key, CHARGED_TOO_MUCH if key == story.key else AS_PLANNED)
        views = [job_once(self.app, key, _held) for key in self.held]
        story.tell(f"accepted: {story.key}, and {CHECKS} checks of {AS_PLANNED}")
        first = views[0]
        story.tell(f"{first['status']}, {first['eligibility']}, executed {first['executed']}", "yellow")
        story.aside(first["last_event"]["message"])
        story.aside(f"Next: {first['next_action']['message']}")
        facts = {f"{view['status']}, {view['blocker']}, executed {view['executed']}" for view in views}
        story.expect(f"held: {len(views)} jobs", sorted(facts), ["queued, awaiting_promotion, executed no"])
        story.expect("held: activities in their histories", self.engine.activities(*self.held), [])
        story.expect("held: refunds in the shop", story.paid, [])
        goes_on = self.app.get(f"{job_path(story.key)}/preview").json
        said = [goes_on["projected_status"], f"would_execute {goes_on['would_execute']}"]
        story.expect("held: previewed", said, ["queued", "would_execute False"])

    def go_live(self) -> None:
        """The proof opens the last gate; the promotion says that what is held may run, and what only reads does."""
        story = self.story
        _, *others = self.checks
        story.chapter("Live: the packet's proof opens the last gate, and what is held runs")
        self.climb("live", release_held=True)
        views = [job_once(self.app, key, _ended) for key in others]
        ends = [view["status"] for view in views]
        story.tell(f"the other checks of {AS_PLANNED}: {', '.join(ends)}")
        story.expect("live: held jobs that only read", ends, ["succeeded"] * len(others))
        story.expect("live: refunds in the shop", story.paid, [])

    def look_back(self) -> None:
        """The climb as the audit trail has it: who moved the version, to where, and whether anybody broke the glass;
        and of every job what it came to."""
        story = self.story
        story.chapter("Looking back: what ran and what did not, by the engine's own histories")
        jobs: list[Json] = self.app.get("/v1/jobs", {"plugin": PLUGIN, "limit": 100}).json["data"]
        rows = [(str(job["job_id"]), str(job["status"]), str(len(self.engine.calls(job["job_id"])))) for job in jobs]
        indented = [(f"{'':{INDENT}}{key}", status, calls) for key, status, calls in reversed(rows)]
        story.voice.rows((f"{'':{INDENT}}job", "ended", "calls of models and tools"), indented)
        state, length = self.engine.state(story.key), len(self.engine.events(story.key))
        story.check(
            "the refund, as the engine has it", state == "completed", f"{state}, {length} events in its history"
        )
        subject = f"{PLUGIN}@{VERSION}"
        moved = [line for line in self._audit() if line["subject"] == subject and "promotion." in line["action"]]
        steps = [(line["detail"]["phase"], line["action"], line["actor"]) for line in moved]
        broken = sum(bool(line["detail"].get("break_glass")) for line in moved)
        right = steps == [step for to in PHASES_ABOVE for step in _steps(to)] and not broken
        who = [f"{to} by {' and '.join(actor for at, _, actor in steps if at == to)}" for to in PHASES_ABOVE]
        story.check("the climb, as the audit has it", right, f"{'; '.join(who)}; {broken} by break-glass")

    def _audit(self) -> list[Json]:
        return self.operator.get("/v1/audit", {"limit": 500}).json["data"]


def _held(view: Json) -> bool:
    return view["last_event"]["type"] == "job.held"


def _ended(view: Json) -> bool:
    return view["finished_at"] is not None


def _approval(proposed: Json) -> str:
    return f"/v1/promotions/{proposed['promotion_id']}/approval"


def _steps(to: str) -> Sequence[tuple[str, str, str]]:
    return (to, "promotion.proposed", PUBLISHER), (to, "promotion.done", SECOND)
