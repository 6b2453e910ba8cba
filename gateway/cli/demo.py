"""`jobgate demo`: one real job from a closed gate to a refund, on real processes, in under a minute.

Nothing in its proof is asserted by itself: each line is computed from the shop's own table, the job's events, the
answers of the API or the engine, and it exits 0 only when all of them hold.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from gateway.cli import render
from gateway.cli.client import Gateway, Json, Rejected, Reply, Unreachable, job_path
from gateway.cli.example import CHANGES, PLUGIN, REFUND_TOOL, VERSION, load_example, post_job
from gateway.cli.options import JsonOutput, Verbose
from gateway.cli.people import People
from gateway.cli.proof import Story, conclude
from gateway.cli.render import Voice
from gateway.cli.stage import stage
from gateway.cli.watching import Line, follow, live_line, show_event
from gateway.settings import DevFile

DEMO = "demo"
"""The workspace that a development stack seeds."""
INVOICE, CENTS = "inv_17", 1200
PHASE_REASON = "the demo opens the gate"


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder: `jobgate dev` can go on with it.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Play in this empty folder, and keep it.")
    ] = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show the whole story: one real job on a real Temporal server, in a throw-away folder.

    The example shop refunds an overage: published, refused while its gate is closed, promoted, submitted, stopped for
    two people, approved by both, done. A second job ends when the grant it runs on is revoked. It proves from the
    shop's own table what ran and what did not, and leaves nothing behind.
    """
    if data is not None and data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise typer.BadParameter(f"{data} is not an empty folder", param_hint="--data")
    voice = Voice(json_output, verbose)
    try:
        with stage(data, keep) as played:
            story = Story(voice, played)
            ui = _play(story)
    except KeyboardInterrupt:
        voice.note("Interrupted; everything was stopped.")
        return 1
    except Rejected as refusal:
        voice.problem(refusal)
        voice.note("failed: the API refused a step of the story; `jobgate demo --keep` keeps the logs")
        return 1
    except (Unreachable, httpx2.HTTPError):
        voice.note("failed: a part of the stack went away; `jobgate demo --keep` keeps the logs")
        return 1
    return conclude(story, ui, kept=keep or data is not None)


def _play(story: Story) -> str:
    """Everything up to the result; the job's address in the Temporal UI."""
    story.voice.say(f"Jobgate demo, in {story.stage.folder}", "bold")
    with live_line(story.voice, "starting"):
        shop = story.stage.start_shop()
        story.tell(f"the shop serves on {shop}: four invoices, no refund yet")
        running = story.stage.start_dev()
        story.tell(f"Temporal, a worker and the API serve: {running.api_url}, UI {running.temporal_ui_url}")
    operator, app = Gateway(story.stage.data, "operator"), Gateway(story.stage.data, "app")
    _publish(story, operator, shop)
    _be_refused(story, app)
    people = People(story, app, operator)
    _open_gate(story, operator)
    people.grant()
    receipt = _submit(story, app)
    story.tell(f"in the Temporal UI: {running.temporal_ui_url}/{_engine_path(story, running)}")
    _run(story, app, people)
    _read_the_end(story, app, receipt)
    people.revoke()
    return _look_into_engine(story, running)


def _publish(story: Story, operator: Gateway, shop: str) -> None:
    story.chapter("1  An operator publishes, deploys and releases the plugin")
    bundle, deployment = load_example()
    changed = ", ".join(f"{before} → {after}" for before, after in CHANGES.items())
    story.tell(f"examples/support_refund, changed for two people: {changed}")
    made = operator.post("/v1/plugins", {"files": bundle}).json
    story.tell(f"published {made['name']} {made['version']}, {made['digest'][:19]}…")
    deployment["connections"]["shop"]["base_url"] = shop
    operator.put(f"/v1/plugins/{PLUGIN}/deployment", deployment)
    story.tell(f"deployed: model {deployment['model']}, credential named {_credential(deployment)} and held nowhere")
    operator.put(f"/v1/plugins/{PLUGIN}/release", {"version": VERSION})
    story.tell(f"released {VERSION}")


def _be_refused(story: Story, app: Gateway) -> None:
    story.chapter("2  A service submits while the gate is closed")
    try:
        answer = post_job(app, story.key, INVOICE)
    except Rejected as refusal:
        answer = refusal.reply
    document = answer.json
    story.tell(f"HTTP {answer.status} {document.get('code')}: {document.get('not_yet')}", "yellow")
    found = [answer.status, document.get("code"), document.get("blocker"), f"executed {document.get('executed')}"]
    right = found == [409, "blocked", "phase_blocked_noop", "executed no"]
    says_so = str(document.get("not_yet", "")).startswith("Not yet")
    story.check("closed gate: refused, and said so", right and says_so, ", ".join(str(fact) for fact in found))
    status = _status_of(app, story.key)
    story.check("closed gate: no job exists under that key", status == 404, f"GET answers {status}")
    story.check("closed gate: refunds in the shop", not story.stage.refunds, len(story.stage.refunds))


def _open_gate(story: Story, operator: Gateway) -> None:
    story.chapter("3  An operator opens the gate and says who may decide, on record")
    asked = {"to": "live", "break_glass": {"reason": PHASE_REASON}}
    made = operator.post(f"/v1/plugins/{PLUGIN}/versions/{VERSION}/promotions", asked).json
    story.tell(f'promoted {VERSION} to {made["phase"]} by break-glass, reason "{PHASE_REASON}"')


def _submit(story: Story, app: Gateway) -> Reply:
    story.chapter("4  The same submission again, with the same key: accepted, and it runs")
    sent = time.monotonic()
    receipt = post_job(app, story.key, INVOICE)
    took = (time.monotonic() - sent) * 1000
    story.tell(f"HTTP {receipt.status} in {took:.0f} ms: job {story.key}, deadline {receipt.json['deadline']}")
    story.check("accepted with a receipt", receipt.status == 202, f"HTTP {receipt.status} in {took:.0f} ms")
    return receipt


def _run(story: Story, app: Gateway, people: People) -> None:
    """Shows the events as they come; where the job stops for people, they come one after the other."""
    request = ""
    with _watching(story, app) as (events, line):
        for event in events:
            show_event(story.voice, event)
            story.events.append(event)
            line.update(str(event["message"]))
            if event["type"] == "request.opened":
                request = str(event["data"]["request_id"])
                people.vote_first(request)
            elif event["type"] == "request.voted" and event["data"]["votes"] == 1:
                people.vote_second(request)


@contextmanager
def _watching(story: Story, app: Gateway) -> Generator[tuple[Iterator[Json], Line]]:
    with live_line(story.voice, "watching") as line:
        yield follow(app, story.quiet, story.key), line


def _read_the_end(story: Story, app: Gateway, receipt: Reply) -> None:
    story.view = app.get(job_path(story.key)).json
    story.chapter("6  The end")
    story.tell(f"{story.key}  {story.view['status']}", render.STATUS_STYLES.get(story.view["status"], "bold"))
    render.outcome(story.voice, story.view)
    ended = [story.view["status"], f"executed {story.view['executed']}"]
    story.check("the job's end", ended == ["succeeded", "executed yes"], ", ".join(ended))
    seqs = [event["seq"] for event in story.events]
    story.check("events: gap-free from 1", seqs == list(range(1, len(seqs) + 1)), f"{len(seqs)} seen live")
    _compare_with_shop(story)
    again = post_job(app, story.key, INVOICE)
    same = again.text == receipt.text and again.headers.get("Idempotent-Replayed") == "true"
    once = len(story.stage.refunds) == 1
    found = f"HTTP {again.status}, {'the first receipt to the byte' if same else 'another receipt'}"
    story.check("submitted once more: replayed, nothing ran", again.status == 200 and same and once, found)


def _compare_with_shop(story: Story) -> None:
    made = story.stage.refunds
    story.check("after both votes: refunds in the shop", len(made) == 1, len(made))
    facts = [(refund.invoice, refund.amount_cents) for refund in made]
    story.check(
        "what was refunded", facts == [(INVOICE, CENTS)], "; ".join(f"{inv} {cents} cents" for inv, cents in facts)
    )
    kinds = [(event["type"], event["data"].get("tool")) for event in story.events]
    order = [("request.decided", None), ("tool.started", REFUND_TOOL), ("tool.finished", REFUND_TOOL)]
    places = [kinds.index(kind) if kind in kinds else -1 for kind in order]
    ordered = -1 not in places and places == sorted(places)
    story.check("the refund started after the decision", ordered, "events " + ", ".join(str(at + 1) for at in places))
    named = {event["data"].get("effect_id") for event in story.events if event["data"].get("tool") == REFUND_TOOL} - {
        None
    }
    keys = {refund.effect_id for refund in made}
    one = len(keys) == 1 and named == keys
    story.check("the shop's Idempotency-Key is the events' effect id", one, ", ".join(sorted(keys)) or "none")


def _look_into_engine(story: Story, running: DevFile) -> str:
    """The job's page in the Temporal UI, and what the engine itself says there."""
    path = _engine_path(story, running)
    answer = httpx2.get(f"{running.temporal_ui_url}/api/v1/{path}", timeout=10, trust_env=False)
    info: Json = answer.json().get("workflowExecutionInfo", {}) if answer.is_success else {}
    state = str(info.get("status", f"HTTP {answer.status_code}")).rpartition("_")[2].lower()
    found = f"{state}, {info.get('historyLength')} events in its history"
    story.check("Temporal's own record of the workflow", state == "completed", found)
    return f"{running.temporal_ui_url}/{path}"


def _engine_path(story: Story, running: DevFile) -> str:
    return f"namespaces/{running.namespace}/workflows/{DEMO}.{story.key}"


def _status_of(app: Gateway, key: str) -> int:
    try:
        return app.get(job_path(key)).status
    except Rejected as refusal:
        return refusal.reply.status


def _credential(deployment: Json) -> str:
    return str(deployment["connections"]["shop"]["credential"]["ref"])
