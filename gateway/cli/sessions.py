"""What apps read of a session: what it is bound to, and what was said in it."""

import json
from typing import Annotated, Any

import typer

from gateway.cli.client import Json, segment
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The name that its jobs were submitted with.")]


def show(
    session: SessionArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """Show what a session is bound to, its jobs, and which of them is open. Needs no worker."""
    voice, gateway = enter("app", data, json_output, verbose)
    reply = gateway.get(f"/v1/sessions/{segment(session)}")
    voice.document(reply.text)
    found = reply.json
    plugin = found["plugin"]
    voice.say(f"{found['session']}  {'busy' if found['open_job'] else 'free'}", "bold")
    voice.say(f"  plugin    {plugin['name']} {plugin['version']}  {plugin['digest'][:19]}…")
    voice.say(f"  snapshot  {found['snapshot'][:19]}…")
    voice.say(f"  created   {found['created_at']}")
    if found["has_more"]:
        voice.say("  (older jobs are not shown)", "dim")
    for job in found["jobs"]:
        voice.say(f"  job       {job}{'  open' if job == found['open_job'] else ''}")
    return 0


def messages(
    session: SessionArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")] = 100,
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="The next page.")] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Show what users and the model said to each other, oldest first."""
    voice, gateway = enter("app", data, json_output, verbose)
    reply = gateway.get(f"/v1/sessions/{segment(session)}/messages", {"limit": limit, "after": after})
    voice.document(reply.text)
    page = reply.json
    said: list[Json] = page["data"]
    for one in said:
        voice.say(f"{one['seq']:>4}  {one['at'][:19]}Z  {one['role']}  {one['job_id']}", "dim")
        voice.say("      " + _content(one["content"]).replace("\n", "\n      "))
    if page["has_more"]:
        voice.say(f"More: jobgate session messages {session} --after {page['next_cursor']}", "dim")
    return 0


def _content(value: Any) -> str:
    if value is None:
        return "(erased)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
