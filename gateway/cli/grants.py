"""What operators give and take: grants, all that a principal has, and workspaces."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gateway.cli.client import Json, segment
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.cli.render import Voice

_TEXT_LIMITS = frozenset({"max_cost_usd", "max_cost_usd_per_day"})
"""Money is text in JSON, because JSON's numbers are doubles."""


def grant_add(
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Whom: the `sub` of a token, or of an API key.")
    ],
    actions: Annotated[
        str, typer.Option("--actions", metavar="A,B", help="Names of scopes, as in jobs:submit,jobs:read; * is all.")
    ],
    plugins: Annotated[str, typer.Option("--plugins", metavar="P,Q", help="Names of plugins; * is all.")],
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=VALUE", help="As in max_concurrent_jobs=10; may be given often."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="RFC 3339; default: it stays until revoked.")
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Let a principal do these actions on these plugins. Grants add up; a call needs the scope in its token as well.

    Limits: max_steps, max_duration_seconds, max_tokens, max_cost_usd (of one job), max_concurrent_jobs,
    max_tokens_per_day, max_cost_usd_per_day, tools=A,B.

    The action tools:python, which * does not contain, lets its jobs run python tools inside the worker.
    """
    asked = {
        "principal": principal,
        "actions": _words(actions, "--actions"),
        "plugins": _words(plugins, "--plugins"),
        "limits": _limits(limit or []),
        "expires_at": expires,
    }
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post("/v1/grants", asked)
    voice.document(reply.text)
    voice.say(f"{reply.json['grant_id']}  given to {reply.json['principal']}", "bold")
    _facts(voice, reply.json)
    voice.say(f"  take it back: jobgate grant revoke {reply.json['grant_id']}", "dim")
    return 0


def grant_list(
    everything: Annotated[bool, typer.Option("--all", help="Also what was revoked or has expired.")] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """List the grants that are in force, oldest first; with --all every one there ever was.

    --json is the whole answer in either case.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get("/v1/grants")
    voice.document(reply.text)
    now = datetime.now(UTC)
    listed = [(grant, state_of(grant, now)) for grant in reply.json["data"]]
    kept = [(grant, state) for grant, state in listed if everything or not state.startswith(("revoked", "expired"))]
    voice.rows(
        ("GRANT", "PRINCIPAL", "PLUGINS", "STATE", "LIMITS", "ACTIONS"),
        [
            (
                grant["grant_id"],
                grant["principal"],
                ",".join(grant["plugins"]),
                state,
                _limits_shown(grant) or "-",
                ",".join(grant["actions"]),
            )
            for grant, state in kept
        ],
    )
    if (hidden := len(listed) - len(kept)) and voice.lively:
        voice.say(f"{hidden} revoked or expired: jobgate grant list --all", "dim")
    return 0


def grant_revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id; `jobgate grant list` shows it.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Take a grant back, at once. Open jobs that no other grant covers end with authority_revoked, for good.

    Repeating it changes nothing and shows when it was taken back first.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.delete(f"/v1/grants/{segment(grant)}")
    voice.document(reply.text)
    voice.say(f"{reply.json['grant_id']}  of {reply.json['principal']}, revoked {reply.json['revoked_at']}", "bold")
    _facts(voice, reply.json)
    return 0


def principal_revoke(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Its name, as in grants and tokens.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Take everything from a principal, at once: all its grants and API keys in this workspace.

    Its open jobs end with authority_revoked; a grant given later brings none of them back.
    """
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.delete(f"/v1/principals/{segment(principal)}")
    voice.document(reply.text)
    gone: dict[str, Sequence[Json]] = {"grant": reply.json["grants"], "API key": reply.json["api_keys"]}
    counts = " and ".join(f"{len(rows)} {kind}{'' if len(rows) == 1 else 's'}" for kind, rows in gone.items())
    voice.say(f"{reply.json['principal']}  has nothing here any more: {counts} revoked", "bold")
    for kind, rows in gone.items():
        for row in rows:
            voice.say(f"  {kind:<8} {row.get('grant_id') or row.get('key_id')}  revoked {row['revoked_at']}")
    return 0


def workspace_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="[a-z0-9-], at most 40.")],
    admin: Annotated[str, typer.Option("--admin", metavar="PRINCIPAL", help="Who runs it.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Make a workspace. Its admin may do everything there but decide requests, and lets others in by grants."""
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post("/v1/workspaces", {"name": name, "admin": admin})
    voice.document(reply.text)
    made = reply.json
    voice.say(f"{made['name']}  made; {made['admin']} runs it", "bold")
    voice.say(f"  grant    {made['grant_id']}")
    voice.say(f"  actions  {', '.join(made['actions'])}")
    if gateway.signs_itself:
        voice.say(f'  act as its admin: export JOBGATE_TOKEN="$(jobgate token {admin} --workspace {name})"', "dim")
    return 0


def _facts(voice: Voice, grant: Json) -> None:
    voice.say(f"  actions  {', '.join(grant['actions'])}")
    voice.say(f"  plugins  {', '.join(grant['plugins'])}")
    if limits := _limits_shown(grant):
        voice.say(f"  limits   {limits}")
    if grant.get("expires_at"):
        voice.say(f"  expires  {grant['expires_at']}")


def _limits_shown(grant: Json) -> str:
    limits: Json = grant["limits"]
    return ",".join(f"{name}={'+'.join(v) if isinstance(v, list) else v}" for name, v in limits.items())  # pyright: ignore[reportUnknownArgumentType]  # JSON


def state_of(grant: Json, now: datetime) -> str:
    """Of a grant or an API key: whether it is in force, until when, or since when it is not."""
    if grant["revoked_at"]:
        return f"revoked {grant['revoked_at'][:19]}Z"
    if not grant["expires_at"]:
        return "in force"
    over = datetime.fromisoformat(grant["expires_at"]) <= now
    return f"{'expired' if over else 'until'} {grant['expires_at'][:19]}Z"


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise typer.BadParameter("names with commas between them", param_hint=option)
    return words


def _limits(pairs: list[str]) -> Json:
    limits: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter("a limit is NAME=VALUE", param_hint="--limit")
        if name == "tools":
            limits[name] = _words(value, "--limit")
        else:
            limits[name] = int(value) if value.isdecimal() and name not in _TEXT_LIMITS else value
    return limits
