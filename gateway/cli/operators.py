"""What operators do: publish a plugin's folder, deploy it, release a version, open its gate, and withdraw it.

A bundle is data: hidden files, Python code and deployment.yaml (deployed apart from the plugin) are left out of it.
"""

import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gateway.cli.client import Json, segment
from gateway.cli.options import DataDir, JsonOutput, Verbose, enter
from gateway.strictyaml import load_yaml
from workflows.contract.errors import Refused

MAX_BYTES = 1 << 20
PluginArgument = Annotated[str, typer.Argument(metavar="PLUGIN")]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION")]


def publish(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The folder that holds plugin.yaml.")
    ],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Publish a folder as a plugin version; the same content again is fine, other content needs a new version.

    Every file goes into the bundle but hidden ones, Python code and deployment.yaml.
    """
    files = bundle_files(folder)
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.post("/v1/plugins", {"files": files})
    voice.document(reply.text)
    made = reply.json
    word = "published" if reply.status == 201 else "was published before, nothing changed"
    voice.say(f"{made['name']} {made['version']}  {word}", "bold")
    voice.say(f"  digest  {made['digest']}")
    voice.say(f"  files   {', '.join(files)}")
    return 0


def versions(
    plugin: PluginArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """List the published versions of a plugin."""
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get(f"/v1/plugins/{segment(plugin)}/versions")
    voice.document(reply.text)
    listed: list[Json] = reply.json["data"]
    voice.rows(
        ("VERSION", "PHASE", "DIGEST", "WITHDRAWN"),
        [(each["version"], str(each.get("phase") or ""), each["digest"], _withdrawn(each) or "-") for each in listed],
    )
    return 0


def withdraw(
    plugin: PluginArgument,
    version: VersionArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept, and shown to operators.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Withdraw a version for good: nothing is admitted on it any more. Repeated, the first withdrawal stands."""
    voice, gateway = enter("operator", data, json_output, verbose)
    path = f"/v1/plugins/{segment(plugin)}/versions/{segment(version)}/withdrawal"
    reply = gateway.post(path, {"reason": reason})
    voice.document(reply.text)
    voice.say(f"{reply.json['name']} {reply.json['version']}  withdrawn {_withdrawn(reply.json)}", "bold")
    voice.say(f"  another version takes its place: jobgate release set {plugin} VERSION", "dim")
    return 0


def _withdrawn(version: Json) -> str:
    at = version.get("withdrawn_at")
    return f"{at[:19]}Z: {version.get('withdrawn_reason')}" if at else ""


def deploy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A deployment.yaml.")],
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Deploy: say how this workspace runs a plugin (model, identity, connections, narrower limits)."""
    document = read_deployment(file)
    plugin = document.get("plugin")
    if not isinstance(plugin, str):
        raise typer.BadParameter(f"{file} does not name its plugin", param_hint="FILE")
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.put(f"/v1/plugins/{segment(plugin)}/deployment", document)
    voice.document(reply.text)
    made = reply.json
    voice.say(f"{made['plugin']}  deployed as revision {made['revision']}", "bold")
    voice.say(f"  digest  {made['digest']}")
    return 0


def release_set(
    plugin: PluginArgument,
    version: VersionArgument,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="VERSION", help="Refuse unless this one is current.")
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Make a version the current one; going back to an older one is one more release."""
    voice, gateway = enter("operator", data, json_output, verbose)
    asked = {"version": version, "expected_current": expect}
    reply = gateway.put(f"/v1/plugins/{segment(plugin)}/release", asked)
    voice.document(reply.text)
    made = reply.json
    before = f" after {made['previous']}" if made.get("previous") else ""
    voice.say(f"{made['plugin']} {made['version']}  is current{before} (revision {made['revision']})", "bold")
    return 0


def release_history(
    plugin: PluginArgument, data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False
) -> int:
    """List the releases of a plugin, newest first: which version was current when, and who made it so."""
    voice, gateway = enter("operator", data, json_output, verbose)
    reply = gateway.get(f"/v1/plugins/{segment(plugin)}/releases")
    voice.document(reply.text)
    listed: list[Json] = reply.json["data"]
    if not listed:
        voice.say(f"Nothing is released yet: jobgate release set {plugin} VERSION")
        return 0
    voice.rows(
        ("REVISION", "VERSION", "BEFORE", "AT", "BY"),
        [
            (str(each["revision"]), each["version"], each["previous"] or "-", f"{each['at'][:19]}Z", each["by"])
            for each in listed
        ],
    )
    return 0


def bundle_files(folder: Path) -> dict[str, str]:
    """The bundle's files by path, sorted. Usage errors name the file."""
    if not (folder / "plugin.yaml").is_file():
        raise typer.BadParameter(f"{folder} holds no plugin.yaml", param_hint="DIR")
    found: dict[str, str] = {}
    size = 0
    for path in sorted(_walk(folder)):
        size += path.stat().st_size
        if size > MAX_BYTES:
            raise typer.BadParameter(f"{folder} holds more than 1 MiB", param_hint="DIR")
        try:
            found[path.relative_to(folder).as_posix()] = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise typer.BadParameter(f"{path} is not UTF-8 text", param_hint="DIR") from None
    return found


def read_deployment(file: Path) -> Json:
    try:
        value: Any = load_yaml(file.read_text(encoding="utf-8"), file.name).value
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise typer.BadParameter(f"{file} can not be read ({reason})", param_hint="FILE") from None
    except Refused as fault:
        raise typer.BadParameter(fault.detail, param_hint="FILE") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{file} is not a mapping", param_hint="FILE")
    return cast("Json", value)


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        here = Path(where)
        found += [here / name for name in names if not name.startswith(".") and not name.endswith((".py", ".pyc"))]
    return [path for path in found if path.is_file() and path != folder / "deployment.yaml"]
