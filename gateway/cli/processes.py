"""The commands that run Jobgate rather than call it: the dev stack, its pieces, the set-up, and development tokens.

`api` and `worker` become their process (same pid): killing what `jobgate api` started kills the API. On the folder of
a running dev stack they join that stack, whatever `TEMPORAL_*` says.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gateway.cli.options import DataDir, JsonOutput
from gateway.cli.render import Voice
from gateway.settings import load_settings, read_dev_file
from workflows.contract.ids import PRINCIPAL, WORKSPACE, PrincipalId, Workspace

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")]


def dev(
    api_port: Port = 8080,
    temporal_port: Port = 7233,
    ui_port: Port = 8233,
    data: DataDir = None,
    json_output: JsonOutput = False,
) -> int:
    """Run Temporal, a worker and the API on one folder until Ctrl-C; everything in it is kept.

    When all serve it writes DIR/dev.json, which is how the other commands find it, and says what to do next.
    A worker or API that dies is reported; `jobgate worker` or `jobgate api` puts another in its place.
    """
    from gateway.dev import run_dev

    return run_dev(data or Path(".jobgate"), api_port, temporal_port, ui_port, json_output)


def api(
    host: Annotated[str | None, typer.Option("--host", help="Where to listen; default: JOBGATE_API_HOST.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Default: JOBGATE_API_PORT.")] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
) -> int:
    """Run one API process; on the folder of a running dev stack, on that stack's port.

    Its log is JSON lines, with or without --json.
    """
    del json_output
    _become("gateway.api", data, JOBGATE_API_HOST=host, JOBGATE_API_PORT=None if port is None else str(port))


def worker(
    lane: Annotated[str | None, typer.Option("--lane", metavar="NAME", help="The lane it serves.")] = None,
    set_current: Annotated[
        bool, typer.Option("--set-current", help="New jobs go to this worker's build; open ones stay where they are.")
    ] = False,
    data: DataDir = None,
    json_output: JsonOutput = False,
) -> int:
    """Run one worker process. SIGTERM lets running steps finish.

    Outside development it takes new jobs only while its build is the current one; the first build becomes so by itself.
    Its log is JSON lines, with or without --json.
    """
    del json_output
    _become("activities.worker", data, JOBGATE_LANE=lane, JOBGATE_SET_CURRENT="true" if set_current else None)


def setup(
    workspace: Annotated[
        str | None, typer.Option("--workspace", metavar="NAME", help="Also make this workspace; needs --admin.")
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="PRINCIPAL", help="Who gets every action but jobs:decide in that workspace."),
    ] = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
) -> int:
    """Prepare a Temporal namespace (search attributes) and the ledger (schema). Safe to repeat, once per upgrade.

    Outside development nobody may do anything at first: --workspace and --admin make a workspace and an admin, who
    gives everybody else their grants. Repeated, they change nothing; a grant that was revoked stays so.
    """
    import asyncio

    from gateway.setup import First
    from gateway.setup import setup as prepare

    if (workspace is None) != (admin is None):
        raise typer.BadParameter("--workspace and --admin go together", param_hint="--workspace")
    first = None if workspace is None or admin is None else First(_workspace(workspace), _principal(admin, "--admin"))
    voice = Voice(json_output)
    done: list[str] = []

    def say(line: str) -> None:
        done.append(line)
        voice.say(line)

    asyncio.run(prepare(load_settings(data=data), say, first))
    voice.document(json.dumps({"done": done}))
    return 0


def token(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="As seeded: app, operator or approver.")],
    workspace: Annotated[str, typer.Option("--workspace", help="The workspace it is for.")] = "demo",
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="May be repeated; default: every scope, grants decide.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="May be repeated.")] = None,
    ttl: Annotated[int, typer.Option("--ttl", min=1, metavar="SECONDS", help="How long it is valid.")] = 3600,
    data: DataDir = None,
    json_output: JsonOutput = False,
) -> int:
    """Print a development token, signed with the data folder's own key; worthless anywhere else."""
    from gateway.tokens import DevelopmentKey

    subject, tenant = _principal(principal, "PRINCIPAL"), _workspace(workspace)
    settings = load_settings(data=data)
    minted = DevelopmentKey.load(settings.data).mint(
        subject,
        tenant,
        scopes=scope or None,
        groups=group or (),
        ttl=timedelta(seconds=ttl),
        issuer=settings.issuer,
        audience=settings.audience,
    )
    voice = Voice(json_output)
    voice.say(minted)
    voice.document(json.dumps({"token": minted}))
    return 0


def _principal(name: str, hint: str) -> PrincipalId:
    if not PRINCIPAL.fullmatch(name):
        raise typer.BadParameter("a principal is 1 to 120 of A-Z a-z 0-9 . _ : @ / + -", param_hint=hint)
    return PrincipalId(name)


def _workspace(name: str) -> Workspace:
    if not WORKSPACE.fullmatch(name):
        raise typer.BadParameter("a workspace is 1 to 40 of a-z 0-9 -", param_hint="--workspace")
    return Workspace(name)


def _become(module: str, data: Path | None, **environment: str | None) -> NoReturn:
    """Replaces this process by `python -m module`; settings that can not be used are said before."""
    folder = load_settings(data=data).data
    os.environ["JOBGATE_DATA"] = str(folder)
    os.environ.update({name: value for name, value in environment.items() if value is not None})
    if (running := read_dev_file(folder)) is not None:
        for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
            del os.environ[name]
        os.environ |= {"TEMPORAL_CONFIG_FILE": os.devnull, "TEMPORAL_ADDRESS": running.temporal_address}
    load_settings()
    if sys.stderr.isatty():
        Voice().note(f"{module} (pid {os.getpid()}) on {folder}: its log follows; Ctrl-C ends it")
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a folder `gateway` where somebody happens to stand is not ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module])
