"""What operators do on the ladder: promote, approve, demote, and let one held job run by a packet."""

from typing import Annotated, Any

import typer

from gateway.cli import render
from gateway.cli.client import Reply, segment
from gateway.cli.options import DataDir, JobArgument, JsonOutput, Verbose, enter
from gateway.cli.render import Voice
from workflows.contract.gates import Phase

Plugin = Annotated[str | None, typer.Argument(metavar="PLUGIN", help="Left out with --runtime.")]
Version = Annotated[str | None, typer.Argument(metavar="VERSION", help="Left out with --runtime.")]
To = Annotated[Phase, typer.Option("--to", metavar="PHASE", help="blocked_noop, stateful_noop, live_canary or live.")]
Runtime = Annotated[bool, typer.Option("--runtime", help="The runtime, whose phase rules every version.")]
PacketArgument = Annotated[str, typer.Argument(metavar="PACKET", help="As in packet_1f0c2ab4.")]


def promote(
    to: To,
    plugin: Plugin = None,
    version: Version = None,
    runtime: Runtime = False,
    release_held: Annotated[bool, typer.Option("--release-held", help="With live: held jobs run, too.")] = False,
    break_glass: Annotated[
        str | None,
        typer.Option("--break-glass", metavar="REASON", help="At once and over any number of rungs; kept on record."),
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Propose the next rung: blocked_noop, stateful_noop, live_canary, live. Somebody else approves it.

    Each gate asks for evidence that the system itself recorded, and says what is missing: `jobgate smoke` for
    stateful_noop; a dry run and `jobgate simulate` for live_canary; for live a packet whose job succeeded. Until a gate
    is open nothing runs, and the answer is "Not yet".
    """
    url = f"{_climber(plugin, version, runtime)}/promotions"
    voice, gateway = enter("operator", data, json_output, verbose)
    glass = None if break_glass is None else {"reason": break_glass}
    reply = gateway.post(url, {"to": to, "release_held": release_held, "break_glass": glass})
    voice.document(reply.text)
    _promotion(voice, _name(plugin, version), reply)
    return 0


def approve(
    promotion: Annotated[str, typer.Argument(metavar="PROMOTION", help="As in promo_1f0c2ab4.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Approve a promotion that somebody else proposed; its gate is judged once more.

    Who proposed it or published the version does not approve it. Needs promotions:approve, by credential and grant.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post(f"/v1/promotions/{segment(promotion)}/approval", None)
    voice.document(reply.text)
    _promotion(voice, "approved", reply)
    return 0


def demote(
    to: To,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept on record.")],
    plugin: Plugin = None,
    version: Version = None,
    runtime: Runtime = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Close a gate at once: the next call of what runs is refused, and what is held waits."""
    url = f"{_climber(plugin, version, runtime)}/demotions"
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post(url, {"to": to, "reason": reason})
    voice.document(reply.text)
    down = reply.json
    voice.say(f"{_name(plugin, version)}  {down['phase']} (was {down['previous']})", "bold yellow")
    voice.say(f"  {down['message']}")
    return 0


def packet_create(
    job: JobArgument,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="TOOL", help="A read-only tool it may call; may be given often."),
    ] = None,
    max_steps: Annotated[int, typer.Option("--max-steps", min=1, help="Model and tool steps, together.")] = 10,
    expires: Annotated[int, typer.Option("--expires-in", metavar="SECONDS", min=1, help="Unless redeemed.")] = 3600,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Propose to let one held job run once, as a canary. Somebody else approves the packet; then the job runs.

    Its version and the runtime must be at live_canary. A job that would write, or call a tool that is not named here,
    ends `canary_inconclusive` before that call.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    asked = {"job_id": job, "allowed_tools": tool or [], "max_steps": max_steps, "expires_in_seconds": expires}
    reply = gateway.post("/v1/packets", asked)
    voice.document(reply.text)
    _moved(voice, reply)
    voice.say(f"  somebody else approves it: jobgate packet approve {reply.json['packet_id']}", "dim")
    return 0


def packet_approve(
    packet: PacketArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """Approve a packet of somebody else; the job that it names runs, once.

    Neither its author nor the job's own people approve it. `jobgate packet show` then shows what it proved.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post(f"/v1/packets/{segment(packet)}/approval", None)
    voice.document(reply.text)
    _moved(voice, reply)
    voice.say(f"  what becomes of it: jobgate packet show {reply.json['packet_id']}", "dim")
    return 0


def packet_show(
    packet: PacketArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """Show a packet: its state, and what its job proved.

    proposed, approved, redeemed (its job runs, or succeeded: then there is a proof), inconclusive, expired, revoked.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get(f"/v1/packets/{segment(packet)}")
    voice.document(reply.text)
    shown = reply.json
    _moved(voice, reply)
    voice.say(f"  job      {shown['job_id']}  {shown['plugin']} {shown['version']}")
    voice.say(f"  tools    {', '.join(shown['allowed_tools']) or 'none'}, at most {shown['max_steps']} steps")
    voice.say(f"  author   {shown['author']}, approved by {shown['approved_by'] or 'nobody yet'}")
    voice.say(f"  expires  {shown['expires_at']}")
    if (proof := shown["proof"]) is not None:
        voice.say(f"  proof    {proof['status']}, called {', '.join(proof['tools']) or 'no tool'}", "bold")
        voice.say(f"  result   {proof['result_digest'] or 'none'}")
        voice.say(render.pretty(proof["read_back"]["result"], "    "))
    return 0


def packet_revoke(
    packet: PacketArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """Take a packet back before it is redeemed."""
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.delete(f"/v1/packets/{segment(packet)}")
    voice.document(reply.text)
    _moved(voice, reply)
    return 0


def _climber(plugin: str | None, version: str | None, runtime: bool) -> str:
    if runtime and plugin is None:
        return "/v1/runtime"
    if runtime or plugin is None or version is None:
        raise typer.BadParameter("name PLUGIN and VERSION, or --runtime", param_hint="PLUGIN VERSION")
    return f"/v1/plugins/{segment(plugin)}/versions/{segment(version)}"


def _name(plugin: str | None, version: str | None) -> str:
    return "runtime" if plugin is None else f"{plugin} {version}"


def _promotion(voice: Voice, what: str, reply: Reply) -> None:
    made: Any = reply.json
    voice.say(f"{what}  promotion {made['state']}, phase {made['phase']}", "bold")
    voice.say(f"  promotion  {made['promotion_id']}")
    if made["state"] == "done" and made["phase"] != "live":
        voice.say("  what the next rung asks for: jobgate readiness PLUGIN", "dim")
    if made["state"] == "proposed":
        voice.say(f"  somebody else approves it: jobgate approve {made['promotion_id']}", "dim")


def _moved(voice: Voice, reply: Reply) -> None:
    voice.say(f"{reply.json['packet_id']}  {reply.json['state']}", "bold")
