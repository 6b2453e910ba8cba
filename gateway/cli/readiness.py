"""How ready a plugin version or the runtime is: six rungs in one table, and what comes next."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.ages import age
from gateway.cli.client import Gateway, Json, segment
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.cli.render import Voice


def readiness(
    plugin: Annotated[
        str | None, typer.Argument(metavar="PLUGIN", help="Left out: the runtime, which rules every version.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Another one than is released.")
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show what is proven, rung by rung, with its evidence, and what the next gate asks for. Looking changes nothing.

    With --verbose also what each rung proves, and what it does not.
    """
    if plugin is None and version is not None:
        raise typer.BadParameter("name the PLUGIN, too", param_hint="--version")
    voice, gateway = enter("operator", data, json_output, verbose)
    path, name = "/v1/readiness", "runtime"
    if plugin is not None:
        base = f"/v1/plugins/{segment(plugin)}"
        asked = version or _current(gateway, base)
        path, name = f"{base}/versions/{segment(asked)}/readiness", f"{plugin} {asked}"
    reply = gateway.get(path)
    voice.document(reply.text)
    _show(voice, name, reply.json, datetime.now(UTC))
    return 0


def _current(gateway: Gateway, base: str) -> str:
    """The released version, else the newest."""
    released: list[Json] = gateway.get(f"{base}/releases").json["data"]
    return released[0]["version"] if released else gateway.get(f"{base}/versions").json["data"][-1]["version"]


def _show(voice: Voice, name: str, seen: Json, now: datetime) -> None:
    voice.say(f"{name}  {seen['phase']}", "bold")
    voice.say(f"  {'RUNG':<13}  {'':<3}  {'SEEN':<6}  EVIDENCE", "dim")
    for rung in seen["rungs"]:
        at = rung["observed_at"]
        when = "-" if at is None else age(now - datetime.fromisoformat(at))
        reached = "yes" if rung["reached"] else "NO"
        head = f"  {rung['rung']:<13}  {reached:<3}  {when:<6}  "
        voice.flow(head, rung["evidence"], "green" if rung["reached"] else "")
        voice.detail(f"    proves:         {rung['proves']}")
        voice.detail(f"    does not prove: {rung['does_not_prove']}")
    voice.say(f"  next gate  {seen['next_gate'] or 'none: this is the top'}")
    voice.flow("  ", seen["not_yet"], "yellow")
