"""`jobgate demo`: one plugin version from its first refusal to a refund, rung by rung, on real processes.

Nothing in its proof is asserted by itself: each line is computed from the shop's own table, the job's events, the
answers of the API or the engine, and it exits 0 only when all of them hold.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from gateway.cli import render
from gateway.cli.canary import Canary
from gateway.cli.client import Gateway, Json, Rejected, Unreachable, job_path
from gateway.cli.climb import PUBLISHER, SECOND, TOLD_BEFORE, Ladder
from gateway.cli.example import CHANGES, PLUGIN, REFUND_TOOL, VERSION, load_example, post_job
from gateway.cli.lookout import Lookout
from gateway.cli.options import JsonOutput, Verbose
from gateway.cli.people import People
from gateway.cli.proof import Story, conclude, give_up
from gateway.cli.render import Voice
from gateway.cli.stage import stage
from gateway.cli.watching import Line, follow, live_line, show_event

INVOICE, CENTS = "inv_17", 1200


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder: `jobgate dev` can go on with it.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Play in this empty folder, and keep it.")
    ] = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show the whole story: a plugin climbs every rung on a real Temporal server, in a throw-away folder.

    Refused, previewed, smoked, dry run, held, simulated; a packet lets one job run as a canary, and its proof opens the
    last gate. Then a refund runs once two people approved it, and a second one ends when its grant is revoked. Every
    line of proof is computed from the shop's own table, the engine's histories and the API's answers; exit code 1 says
    that one does not hold. It ends with what is not yet proven, and leaves nothing behind.
    """
    if data is not None and data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise typer.BadParameter(f"{data} is not an empty folder", param_hint="--data")
    voice = Voice(json_output, verbose)
    story: Story | None = None
    try:
        with stage(data, keep) as played:
            story = Story(voice, played)
            ui = _play(story)
    except KeyboardInterrupt:
        voice.note("Interrupted; everything was stopped.")
        return 1
    except Rejected as refusal:
        voice.problem(refusal)
        return give_up(voice, story, "the API refused a step of the story")
    except (Unreachable, httpx2.HTTPError):
        return give_up(voice, story, "a part of the stack went away")
    return conclude(story, ui, kept=keep or data is not None)


def _play(story: Story) -> str:
    """Everything up to the result; the job's address in the Temporal UI."""
    story.voice.say(f"Jobgate demo, in {story.stage.folder}", "bold")
    with live_line(story.voice, "starting"):
        shop = story.stage.start_shop()
        story.tell(f"the shop serves on {shop}: four invoices, no refund yet")
        running = story.stage.start_dev()
        story.tell(f"Temporal, a worker and the API serve: {running.api_url}, UI {running.temporal_ui_url}")
    app, operator, second = (Gateway(story.stage.data, name) for name in ("app", PUBLISHER, SECOND))
    engine, people = Lookout(running), People(story, app, operator)
    ladder = Ladder(story, engine, app, operator, second)
    _publish(story, operator, shop)
    people.grant(SECOND)
    ladder.be_refused()
    ladder.preview()
    ladder.smoke()
    ladder.rehearse()
    ladder.be_held()
    ladder.simulate()
    Canary(ladder).run()
    ladder.go_live()
    _run(story, app, people)
    _read_the_end(story, app)
    people.revoke()
    ladder.look_back()
    return engine.page(story.key)


def _publish(story: Story, operator: Gateway, shop: str) -> None:
    story.chapter("An operator publishes, deploys and releases the plugin")
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


def _run(story: Story, app: Gateway, people: People) -> None:
    """Shows the events as they come; where the job stops for people, they come one after the other."""
    story.chapter("The refund: two people decide what they are shown, nobody their own job")
    request = ""
    with _watching(story, app) as (events, line):
        for event in events:
            if event["type"] not in TOLD_BEFORE:
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


def _read_the_end(story: Story, app: Gateway) -> None:
    story.view = app.get(job_path(story.key)).json
    story.tell(f"{story.key}  {story.view['status']}", render.STATUS_STYLES.get(story.view["status"], "bold"))
    story.aside(str(render.member(story.view, "result").get("message")))
    ended = [story.view["status"], f"executed {story.view['executed']}"]
    story.check("the job's end", ended == ["succeeded", "executed yes"], ", ".join(ended))
    seqs = [event["seq"] for event in story.events]
    story.check("events: gap-free from 1", seqs == list(range(1, len(seqs) + 1)), f"{len(seqs)} seen live")
    _compare_with_shop(story)
    again = post_job(app, story.key, INVOICE)
    same = again.text == story.receipts[story.key].text and again.headers.get("Idempotent-Replayed") == "true"
    once = len(story.stage.refunds) == 1
    found = f"HTTP {again.status}, {'the first receipt to the byte' if same else 'another receipt'}"
    story.check("submitted once more: replayed, nothing ran", again.status == 200 and same and once, found)


def _compare_with_shop(story: Story) -> None:
    made = story.stage.refunds
    story.check("after both votes: refunds in the shop", len(made) == 1, len(made))
    story.expect("what was refunded", story.paid, [f"{INVOICE} {CENTS} cents"])
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


def _credential(deployment: Json) -> str:
    return str(deployment["connections"]["shop"]["credential"]["ref"])
