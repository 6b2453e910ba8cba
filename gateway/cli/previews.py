"""What would happen: a preview of a submission or of a job, and on which lanes a version could run. Nothing changes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import typer

from gateway.cli import render
from gateway.cli.client import Json, job_path, segment
from gateway.cli.jobs import body_text, given, input_text
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.cli.render import Voice

Input = Annotated[str, typer.Option("--input", metavar="JSON|@FILE", help="The job's input; @- reads standard input.")]
VersionOption = Annotated[str | None, typer.Option("--version", metavar="VERSION", help="Not the released one.")]

STYLES: Mapping[str, str] = MappingProxyType(
    {"live_approved": "bold green", "dry_run_eligible": "bold yellow", "local_only": "bold yellow"}
)

HELD = "An operator lets it run once (jobgate packet create JOB), or promotes with --release-held."
CLOSED = "Its gate was closed after it ran: it calls nothing more, and ends at its next step or decision."


def preview(
    plugin: Annotated[str | None, typer.Argument(metavar="PLUGIN", help="Left out with --job.")] = None,
    input_: Input = "{}",
    version: VersionOption = None,
    mode: Annotated[
        Literal["live", "dry_run"], typer.Option("--mode", help="dry_run plans and runs nothing.")
    ] = "live",
    on_blocked: Annotated[
        Literal["hold", "refuse"], typer.Option("--on-blocked", help="When its gate is not open yet.")
    ] = "hold",
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="A job that is there, instead.")] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Say what submitting would come to, or what becomes of a job by itself. Nothing is reserved, started or changed.

    It exits 0 whatever the answer is: a preview explains, it does not refuse.
    """
    if (plugin is None) == (job is None):
        raise typer.BadParameter("name PLUGIN, or --job JOB", param_hint="PLUGIN")
    asked = given({"plugin": plugin, "version": version, "mode": mode, "on_blocked": on_blocked})
    body = body_text(asked, input_text(input_))
    voice, gateway = enter("app", data, json_output, verbose)
    reply = gateway.get(f"{job_path(job)}/preview") if job is not None else gateway.post("/v1/previews", body)
    voice.document(reply.text)
    if not json_output:
        _preview(voice, job or f"{plugin} {version or ''}".rstrip(), reply.json, there=job is not None)
    return 0


def simulate(
    plugin: Annotated[str, typer.Argument(metavar="PLUGIN")],
    version: Annotated[str | None, typer.Argument(metavar="VERSION", help="Here, or by --version.")] = None,
    version_option: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Instead of the argument.")
    ] = None,
    input_: Input = "{}",
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show on which lanes a version could run and who polls them. Nothing is executed.

    What it found is recorded as evidence, which the gate to live_canary asks for.
    """
    if (version is None) == (version_option is None):
        raise typer.BadParameter("name the version, once", param_hint="VERSION")
    number = version or version_option or ""
    body = body_text({"plugin": plugin}, input_text(input_))
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post(f"/v1/plugins/{segment(plugin)}/versions/{segment(number)}/simulations", body)
    voice.document(reply.text)
    if not json_output:
        _simulation(voice, f"{plugin} {number}", reply.json)
    return 0


def _preview(voice: Voice, what: str, shown: Json, *, there: bool) -> None:
    _verdict(voice, what, shown)
    voice.say(f"  would     {_would(shown, there=there)}")
    if shown["not_yet"] is not None:
        voice.flow("  why       ", shown["not_yet"])
    if shown["next_gate"] is not None:
        voice.say(f"  next gate {shown['next_gate']}")
    stays_held = there and shown["projected_status"] == "queued" and shown["blocker"] == "awaiting_promotion"
    if stays_held:
        voice.flow("  next      ", HELD, "dim")
    elif there and shown["blocker"] == "awaiting_promotion":
        voice.flow("  next      ", CLOSED, "dim")
    elif (advice := render.NEXT.get(str(shown["blocker"]))) is not None:
        voice.flow("  next      ", advice, "dim")
    tried = [name for name, raised in shown["side_effects"].items() if raised]
    if tried:
        voice.say(f"  WARNING   this preview tried to change something and was refused: {', '.join(tried)}", "bold red")
        voice.say("            tell an operator: the API's log says preview.would_change")
    else:
        voice.say(
            f"  measured  nothing was changed (all {len(shown['side_effects'])} side-effect flags are false)", "dim"
        )


def _would(shown: Json, *, there: bool) -> str:
    """The forecast in words: of a submission, or of a job that is there."""
    status = shown["projected_status"]
    if status is None:
        return "be refused: no job would exist, and its key would stay free"
    if shown["would_execute"]:
        return "run: the model and its tools would be called"
    if there:
        return f"go on to {status} by itself; nothing more is called" if shown["would_change"] else f"stay {status}"
    if status == "queued":
        return "be accepted and held: nothing runs until an operator opens the gate"
    return "be planned and end: no model, no tool"


def _simulation(voice: Voice, what: str, shown: Json) -> None:
    _verdict(voice, what, {"blocker": None, **shown})
    voice.rows(
        ("LANE", "FITS", "LAST POLLED", "MISSING"),
        [
            (
                lane["lane"],
                "yes" if lane["fits"] else "no",
                lane["pollers_seen_at"] or "nobody polls it",
                ", ".join(lane["missing"]) or "nothing",
            )
            for lane in shown["candidates"]
        ],
    )
    fits = [lane["lane"] for lane in shown["candidates"] if lane["fits"]]
    voice.say(f"  would run on {fits[0]}" if fits else "  no lane fits: give one the missing capabilities")
    voice.say(f"  execution {shown['execution']}: nothing ran; the simulation is recorded as evidence", "dim")


def _verdict(voice: Voice, what: str, shown: Json) -> None:
    facts = [shown["eligibility"], shown["blocker"]]
    voice.say(f"{what}  {', '.join(fact for fact in facts if fact)}", STYLES.get(shown["eligibility"], "bold red"))
