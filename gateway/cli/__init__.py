"""`jobgate`: the command line. It assembles the commands, turns what goes wrong into one exit code, and leaves.

0 done, 1 refused or failed, 2 usage, 3 unreachable. The process ends by `os._exit` after flushing: a process that
loaded the SDK can abort while the interpreter shuts down (design.md section 7). A crash is one line.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import typer

from gateway.cli import (
    approvals,
    demo,
    grants,
    inspect,
    jobs,
    keys,
    ladder,
    operators,
    previews,
    processes,
    readiness,
    sessions,
    smoke,
    watching,
)
from gateway.cli.client import Rejected, Unreachable
from gateway.cli.options import examples
from gateway.cli.render import Voice, shown
from gateway.settings import SettingsInvalid
from workflows.contract.errors import JobgateError

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
RUN, APPS, APPROVERS, OPERATORS = "Run Jobgate", "Jobs", "Decisions", "Plugins and gates"
PEOPLE = "Who may do what, and who did"
GATE_OPENER = 'jobgate promote support-refund 1.0.0 --to live --break-glass "first run"'

app = typer.Typer(
    name="jobgate",
    help="Agent jobs that outlive an HTTP request: receipts, gates, decisions, effects.\n\n"
    "New here? `jobgate demo` shows the whole story in a minute or two; `jobgate dev` starts a stack to work with.\n\n"
    "Commands find the API by JOBGATE_URL, else by the data folder of a running `jobgate dev`; they call as the "
    "principal of JOBGATE_TOKEN, else, in development, as the seeded principal that fits the command.\n\n"
    "Exit codes: 0 done, 1 refused or failed, 2 usage, 3 unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
session_app = typer.Typer(no_args_is_help=True, help="Read a line of jobs that share a conversation.")
plugin_app = typer.Typer(no_args_is_help=True, help="Publish plugin versions, list them, and withdraw them.")
packet_app = typer.Typer(no_args_is_help=True, help="Let one held job run as a canary, and see what it proved.")
release_app = typer.Typer(no_args_is_help=True, help="Say which version is current, and look back.")
grant_app = typer.Typer(no_args_is_help=True, help="Say who may do what with which plugins, and take it back.")
key_app = typer.Typer(no_args_is_help=True, help="Make API keys, list them, revoke them.")
principal_app = typer.Typer(no_args_is_help=True, help="Take everything from a principal.")
workspace_app = typer.Typer(no_args_is_help=True, help="Make workspaces: tenants that see nothing of each other.")


def _add(to: typer.Typer, name: str, panel: str | None, command: Callable[..., int], *lines: str) -> None:
    paragraphs = [" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n")]
    to.command(name, help="\n\n".join(paragraphs), rich_help_panel=panel, epilog=examples(*lines))(command)


_add(app, "demo", RUN, demo.demo, "jobgate demo", "jobgate demo --keep")
_add(app, "dev", RUN, processes.dev, "jobgate dev", "jobgate dev --data /tmp/try --api-port 0")
_add(app, "api", RUN, processes.api, "jobgate api", "jobgate api --data /tmp/try")
_add(app, "worker", RUN, processes.worker, "jobgate worker", "jobgate worker --lane default")
_add(
    app,
    "setup",
    RUN,
    processes.setup,
    "TEMPORAL_ADDRESS=temporal:7233 jobgate setup",
    "jobgate setup --workspace acme --admin dana",
)
_add(
    app,
    "token",
    RUN,
    processes.token,
    "jobgate token approver --group finance --ttl 600",
    'JOBGATE_TOKEN="$(jobgate token app --scope jobs:read)" jobgate list',
)
_add(
    app,
    "submit",
    APPS,
    jobs.submit,
    'jobgate submit support-refund --input \'{"invoice": "inv_17"}\' --wait',
    "jobgate submit support-refund --key ticket-17 --input @input.json --timeout 3600",
)
_add(
    app,
    "preview",
    APPS,
    previews.preview,
    'jobgate preview support-refund --input \'{"invoice": "inv_17"}\'',
    "jobgate preview support-refund --version 2.0.0 --mode dry_run",
    "jobgate preview --job ticket-17",
)
_add(app, "show", APPS, jobs.show, "jobgate show ticket-17", "jobgate show ticket-17 --events")
_add(app, "watch", APPS, watching.watch, "jobgate watch ticket-17", "jobgate watch ticket-17 --json")
_add(app, "list", APPS, jobs.list_jobs, "jobgate list", "jobgate list --status waiting_for_human")
_add(session_app, "show", None, sessions.show, "jobgate session show cust-9")
_add(
    session_app,
    "messages",
    None,
    sessions.messages,
    "jobgate session messages cust-9",
    "jobgate session messages cust-9 --json",
)
app.add_typer(session_app, name="session", rich_help_panel=APPS)
_add(app, "cancel", APPS, jobs.cancel, "jobgate cancel ticket-17")
_add(app, "retry", APPS, jobs.retry, "jobgate retry ticket-17 --key ticket-17-again")
_add(app, "requests", APPROVERS, approvals.requests, "jobgate requests")
_add(
    app,
    "decide",
    APPROVERS,
    approvals.decide,
    "jobgate decide ticket-17 r1-4fa0c2",
    "jobgate decide ticket-17 r1-4fa0c2 approve",
    'jobgate decide ticket-17 r1-4fa0c2 reject --reason "customer withdrew"',
    "jobgate decide ticket-18 r1-77ab01 answer --answer billing",
)
_add(
    app,
    "settle",
    APPROVERS,
    approvals.settle,
    "jobgate settle ticket-17 eff_0f3c5b7a9e1d2c4f6a8b0d1e3f507192 did_not_happen",
)
_add(plugin_app, "publish", None, operators.publish, "jobgate plugin publish examples/support_refund")
_add(plugin_app, "versions", None, operators.versions, "jobgate plugin versions support-refund")
_add(
    plugin_app, "withdraw", None, operators.withdraw, 'jobgate plugin withdraw support-refund 1.0.0 --reason "overpays"'
)
app.add_typer(plugin_app, name="plugin", rich_help_panel=OPERATORS)
_add(app, "deploy", OPERATORS, operators.deploy, "jobgate deploy examples/support_refund/deployment.yaml")
_add(release_app, "set", None, operators.release_set, "jobgate release set support-refund 1.0.0")
_add(release_app, "history", None, operators.release_history, "jobgate release history support-refund")
app.add_typer(release_app, name="release", rich_help_panel=OPERATORS)
_add(
    app,
    "readiness",
    OPERATORS,
    readiness.readiness,
    "jobgate readiness",
    "jobgate readiness support-refund --version 1.0.0",
)
_add(
    app,
    "smoke",
    OPERATORS,
    smoke.smoke,
    "jobgate smoke",
    "jobgate smoke --plugin support-refund --html smoke.html",
)
_add(
    app,
    "promote",
    OPERATORS,
    ladder.promote,
    "jobgate promote support-refund 1.0.0 --to stateful_noop",
    "jobgate promote support-refund 1.0.0 --to live --release-held",
    GATE_OPENER,
)
_add(app, "approve", OPERATORS, ladder.approve, "jobgate approve promo_1f0c2ab4")
_add(
    app,
    "demote",
    OPERATORS,
    ladder.demote,
    'jobgate demote support-refund 1.0.0 --to blocked_noop --reason "overpays"',
    'jobgate demote --runtime --to blocked_noop --reason "incident 7"',
)
_add(
    app,
    "simulate",
    OPERATORS,
    previews.simulate,
    'jobgate simulate support-refund 1.0.0 --input \'{"invoice": "inv_17"}\'',
    "jobgate simulate support-refund --version 2.0.0 --json",
)
_add(packet_app, "create", None, ladder.packet_create, "jobgate packet create ticket-17 --tool invoices.get")
_add(packet_app, "approve", None, ladder.packet_approve, "jobgate packet approve packet_1f0c2ab4")
_add(packet_app, "show", None, ladder.packet_show, "jobgate packet show packet_1f0c2ab4")
_add(packet_app, "revoke", None, ladder.packet_revoke, "jobgate packet revoke packet_1f0c2ab4")
app.add_typer(packet_app, name="packet", rich_help_panel=OPERATORS)
_add(
    grant_app,
    "add",
    None,
    grants.grant_add,
    "jobgate grant add billing-app --actions jobs:submit,jobs:read --plugins support-refund",
    "jobgate grant add billing-app --actions '*' --plugins '*' --limit max_concurrent_jobs=10",
    "jobgate grant add temp --actions jobs:decide --plugins '*' --expires 2030-01-31T12:00:00Z",
)
_add(grant_app, "list", None, grants.grant_list, "jobgate grant list", "jobgate grant list --all")
_add(grant_app, "revoke", None, grants.grant_revoke, "jobgate grant revoke grant_1f0c2ab4")
app.add_typer(grant_app, name="grant", rich_help_panel=PEOPLE)
_add(
    key_app,
    "create",
    None,
    keys.key_create,
    "jobgate key create billing-app --scope jobs:submit --scope jobs:read",
    "jobgate key create dana --group finance --expires 2030-01-31T12:00:00Z",
)
_add(key_app, "list", None, keys.key_list, "jobgate key list", "jobgate key list --all")
_add(key_app, "revoke", None, keys.key_revoke, "jobgate key revoke 5f0c2ab41e9d77ab01c4fa0c")
app.add_typer(key_app, name="key", rich_help_panel=PEOPLE)
_add(principal_app, "revoke", None, grants.principal_revoke, "jobgate principal revoke billing-app")
app.add_typer(principal_app, name="principal", rich_help_panel=PEOPLE)
_add(workspace_app, "create", None, grants.workspace_create, "jobgate workspace create acme --admin dana")
app.add_typer(workspace_app, name="workspace", rich_help_panel=PEOPLE)
_add(app, "inspect", PEOPLE, inspect.inspect, "jobgate inspect ticket-17", "jobgate inspect ticket-17 --json")
_add(app, "audit", PEOPLE, inspect.audit, "jobgate audit --all", "jobgate audit --after CURSOR --limit 50")
_add(app, "usage", PEOPLE, inspect.usage, "jobgate usage", "jobgate usage --from 2030-01-01T00:00:00Z")


def main() -> NoReturn:
    """The console script. Never returns."""
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or FAILED
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command; the exit code. Everything is said by then."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    voice = Voice(json_output="--json" in arguments)
    try:
        return _run(arguments, voice)
    except BrokenPipeError:
        # Whoever read has had enough.
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last line of defence: a crash is one line
        with suppress(OSError):
            voice.note(f"jobgate crashed: {_crash(error)}")
        return FAILED


def _run(arguments: Sequence[str], voice: Voice) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(list(arguments), prog_name="jobgate", standalone_mode=False)
    except typer.TyperException as error:
        _usage(error, voice)
        return error.exit_code
    except Rejected as refusal:
        voice.problem(refusal)
        return FAILED
    except Unreachable as error:
        voice.unreachable(error)
        return UNREACHABLE
    except SettingsInvalid as error:
        voice.note(error.detail)
        return USAGE
    except JobgateError as error:
        voice.note(error.detail)
        return FAILED
    return code if isinstance(code, int) else DONE


def _usage(error: typer.TyperException, voice: Voice) -> None:
    where = getattr(getattr(error, "ctx", None), "command_path", "jobgate")
    if text := shown(error.format_message().expandtabs(2)).strip():
        voice.note(f"{text}\nTry `{where} --help`.")


def _crash(error: Exception) -> str:
    """Kind and place, and never the text of the error, which may hold anything."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" at {os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}" if at is not None else ""
    return f"{type(error).__name__}{place}; please report this"
