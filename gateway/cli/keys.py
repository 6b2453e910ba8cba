"""API keys on the command line: made and shown once, listed, revoked."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.cli.client import Json, segment
from gateway.cli.grants import state_of
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.cli.render import Voice


def key_create(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="As whom the key acts.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="S", help="What it may be used for; default: all that your own may."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="G", help="A group it decides for; may be given often.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="RFC 3339; default: it stays until revoked.")
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Make an API key that acts as a principal. It is shown here once; nobody, and no command, can show it again.

    The principal's grants still decide what it may do: give them with `jobgate grant add`. No key has a scope that
    your own credential lacks.
    """
    asked = {"principal": principal, "scopes": scope or None, "groups": group or [], "expires_at": expires}
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post("/v1/api-keys", asked)
    voice.document(reply.text)
    made = reply.json
    voice.say(made["key"], "bold")
    _facts(voice, made)
    voice.say("  Keep it now: it is not shown again. Use it as JOBGATE_TOKEN, or as any bearer token.", "yellow")
    voice.say(f"  take it back: jobgate key revoke {made['key_id']}", "dim")
    return 0


def key_list(
    everything: Annotated[bool, typer.Option("--all", help="Also what was revoked or has expired.")] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """List the API keys that work, oldest first; with --all every one there ever was. None is shown itself.

    --json is the whole answer in either case.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get("/v1/api-keys")
    voice.document(reply.text)
    now = datetime.now(UTC)
    listed = [(key, state_of(key, now)) for key in reply.json["data"]]
    kept = [(key, state) for key, state in listed if everything or not state.startswith(("revoked", "expired"))]
    voice.rows(
        ("KEY", "PRINCIPAL", "MADE BY", "STATE", "GROUPS", "SCOPES"),
        [
            (
                key["key_id"],
                key["principal"],
                key["by"],
                state,
                ",".join(key["groups"]) or "-",
                ",".join(key["scopes"]) or "-",
            )
            for key, state in kept
        ],
    )
    return 0


def key_revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id; `jobgate key list` shows it.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Revoke an API key, at once and for good. Open jobs that it submitted end with authority_revoked.

    Repeating it changes nothing and shows when it was revoked first.
    """
    if key.startswith("jgk_"):
        raise typer.BadParameter("name the key's id, not the key itself", param_hint="KEY")
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.delete(f"/v1/api-keys/{segment(key)}")
    voice.document(reply.text)
    voice.say(f"{reply.json['key_id']}  of {reply.json['principal']}, revoked {reply.json['revoked_at']}", "bold")
    return 0


def _facts(voice: Voice, key: Json) -> None:
    voice.say(f"  id       {key['key_id']}")
    voice.say(f"  acts as  {key['principal']}")
    voice.say(f"  scopes   {', '.join(key['scopes']) or 'none: it may do nothing'}")
    if key["groups"]:
        voice.say(f"  groups   {', '.join(key['groups'])}")
    if key["expires_at"]:
        voice.say(f"  expires  {key['expires_at']}")
