"""The options that every command takes, as types, and what they open: a voice to speak with and the API to call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import Gateway, Role
from gateway.cli.render import Voice

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="JOBGATE_DATA",
        metavar="DIR",
        show_default=".jobgate",
        help="The data folder; a running `jobgate dev` is found through it.",
    ),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print the HTTP answer's JSON and nothing else on standard output.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on standard error where and as whom it calls.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job id: the key it was submitted with.")]


def examples(*lines: str) -> str:
    """An epilog of one example per line."""
    return "\n\n".join(("Examples:", *(f"  {line}" for line in lines)))


def enter(
    role: Role, data: Path | None, json_output: bool, verbose: bool, groups: Sequence[str] = ()
) -> tuple[Voice, Gateway]:
    """`role` matters in development only, where the token is signed here."""
    voice = Voice(json_output, verbose)
    gateway = Gateway(data, role, groups)
    voice.detail(f"calling {gateway.url} as {gateway.caller}")
    return voice, gateway
