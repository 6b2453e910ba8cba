"""The negative smoke on a terminal and as one page: what may be looked at, and that nothing happened meanwhile."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import Json
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.cli.render import Voice

VERDICT_STYLES = {"green": "bold green", "red": "bold red", "inconclusive": "bold yellow"}
COUNTS_SHOWN = 4


def smoke(
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="NAME", help="Left out: the runtime's, which rules every version.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Another one than is released.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report as one page.")
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Prove that nothing runs: a census, every read and every refusal, a census, and what lies between.

    Do it after each restart of the API and the worker. It takes some seconds; what others do meanwhile makes it
    inconclusive. Exit code 0 says green, and nothing else does.
    """
    if plugin is None and version is not None:
        raise typer.BadParameter("name the plugin, too", param_hint="--version")
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post("/v1/smokes", {"plugin": plugin, "version": version})
    report = reply.json
    voice.document(reply.text)
    if html is not None:
        _write(html, report)
    _say(voice, report)
    if html is not None:
        voice.say(f"  report   {html}", "dim")
    return 0 if report["evidence"]["verdict"] == "green" else 1


def _say(voice: Voice, report: Json) -> None:
    evidence = report["evidence"]
    exercised = evidence["exercised"]
    voice.say(f"{name_of(report)}  smoke {evidence['verdict']}", VERDICT_STYLES[evidence["verdict"]])
    voice.say(f"  rung     {report['rung']}")
    voice.flow("  allowed  ", f"{exercised['reads']} reads: {', '.join(report['allowed'])}")
    voice.say(f"  refused  {exercised['refusals']} refusals held, as they must")
    voice.say("  must not have happened", "bold")
    for flag, raised in report["flags"].items():
        shown = evidence["flags"][flag]
        voice.flow(
            f"    {'HAPPENED' if raised else 'no      '}  {flag:<17}  ", counts(shown), "bold red" if raised else ""
        )
        for found in shown["found"]:
            voice.say(f"              {found}", "red")
    others = [
        reason for reason in evidence["reasons"] if not any(reason.startswith(f"{flag}:") for flag in report["flags"])
    ]
    if others:
        voice.say("  why it is not green", "bold")
        for reason in others:
            voice.say(f"    {reason}", "yellow")
    for process in evidence["processes"]:
        voice.say(f"  alive    {process['kind']} {process['identity']}  build {process['build']}")
    for one in evidence["not_exercised"]:
        voice.detail(f"  not exercised: {one['what']}: {one['reason']}")
    if evidence["not_exercised"] and not voice.verbose:
        voice.say(f"  {len(evidence['not_exercised'])} probes can not be sent now (--verbose says why)", "dim")
    for bound in evidence["census"]["bounded"]:
        voice.say(f"  bounded  {bound}", "dim")
    voice.say(f"  next     {_next(report)}")
    voice.flow("  ", report["not_yet"])


def _next(report: Json) -> str:
    """What to do now: where it is green the next gate, and the command that goes on towards it."""
    evidence, gate = report["evidence"], report["next_gate"]
    if evidence["verdict"] == "inconclusive":
        return "the same once more, when nothing else goes on"
    if evidence["verdict"] == "red":
        return "see to what is named above, then the same once more"
    if gate is None:
        return "nothing: every gate is open"
    whom = "--runtime" if evidence["plugin"] is None else f"{evidence['plugin']} {evidence['version']}"
    if report["rung"] == "blocked_noop":
        return f"jobgate promote {whom} --to {gate}"
    asked = "jobgate readiness" if evidence["plugin"] is None else f"jobgate readiness {evidence['plugin']}"
    return f"{gate}; {asked} shows what it asks for"


def name_of(report: Json) -> str:
    evidence = report["evidence"]
    return "runtime" if evidence["plugin"] is None else f"{evidence['plugin']} {evidence['version']}"


def counts(shown: Json) -> str:
    """`executions 3, blobs 7 -> 8`: counted before and after. What differs; where nothing does, the first few."""
    before, after = shown["before"], shown["after"]
    moved = [f"{_word(name)} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    told = moved or [f"{_word(name)} {before[name]}" for name in list(before)[:COUNTS_SHOWN]]
    left = len(before) - len(told)
    return ", ".join(told) + (f", {left} more counts stayed" if left else "")


def _word(name: str) -> str:
    return name.replace("_", " ")


def _write(file: Path, report: Json) -> None:
    from gateway.cli.smoke_page import page_of

    try:
        file.write_text(page_of(report), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file} can not be written ({error.strerror})", param_hint="--html") from None
