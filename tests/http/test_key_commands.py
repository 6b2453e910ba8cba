"""`jobgate key` against a real gateway: the key that one command makes is the next one's credential, until revoked."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta

from tests.http.jobs import waiting_job, waiting_plugin
from tests.rig.client import Client
from tests.rig.process import outside_environment
from tests.rig.stack import Stack


async def jobgate(stack: Stack, token: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command that calls with this credential."""
    environment = {
        **outside_environment(),
        "JOBGATE_URL": stack.apis[0].url,
        "JOBGATE_TOKEN": token,
        "JOBGATE_DATA": str(stack.folder / "nobodys"),
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", *arguments, env=environment, stdout=-1, stderr=-1
    )
    out, told = await child.communicate()
    return await child.wait(), out.decode(), told.decode()


async def test_a_key_is_made_used_and_revoked_by_commands(stack: Stack, operator: Client) -> None:
    root = stack.token("operator")
    code, out, told = await jobgate(stack, root, "key", "create", "app", "--scope", "jobs:read", "--json")
    assert (code, told) == (0, "")
    made = json.loads(out)
    assert (made["principal"], made["scopes"]) == ("app", ["jobs:read"])
    code, out, _ = await jobgate(stack, made["key"], "list")
    assert code == 0
    code, _, told = await jobgate(stack, made["key"], "key", "list")
    assert (code, "not-permitted" in told) == (1, True)
    code, out, _ = await jobgate(stack, root, "key", "list")
    assert made["key_id"] in out
    assert made["key"] not in out
    code, out, _ = await jobgate(stack, root, "key", "revoke", made["key_id"])
    assert (code, out.startswith(f"{made['key_id']}  of app, revoked ")) == (0, True)
    code, _, told = await jobgate(stack, made["key"], "list")
    assert (code, "unauthenticated" in told) == (1, True)
    code, out, _ = await jobgate(stack, root, "key", "list")
    assert made["key_id"] not in out
    code, out, _ = await jobgate(stack, root, "key", "list", "--all")
    assert made["key_id"] in out


async def test_revoking_a_key_by_a_command_ends_the_waiting_job_it_submitted(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    made = await operator.post("/v1/api-keys", {"principal": "app"}, expect=201)
    async with Client(stack.apis[0].url, made["key"]) as app:
        job, _ = await waiting_job(app, plugin)
    code, _, _ = await jobgate(stack, stack.token("operator"), "key", "revoke", made["key_id"])
    assert code == 0
    ended = await stack.client("app").until_ended(job)
    assert (ended["status"], ended["failure"]["code"]) == ("failed", "authority_revoked")


async def test_what_a_person_is_told_of_a_new_key(stack: Stack) -> None:
    ends = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    options = ("--group", "finance", "--scope", "jobs:decide", "--expires", ends)
    code, out, _ = await jobgate(stack, stack.token("operator"), "key", "create", "approver", *options)
    first, *facts = out.splitlines()
    assert (code, first.startswith("jgk_")) == (0, True)
    shown = "\n".join(facts)
    for fact in ("acts as  approver", "scopes   jobs:decide", "groups   finance", ends[:19], "not shown again"):
        assert fact in shown
    assert first not in shown


async def test_a_key_typed_where_its_id_belongs_goes_nowhere(stack: Stack) -> None:
    secret = f"jgk_{'0' * 24}_{'1' * 64}"
    code, out, told = await jobgate(stack, stack.token("operator"), "key", "revoke", secret)
    assert (code, out) == (2, "")
    assert "1" * 64 not in told
