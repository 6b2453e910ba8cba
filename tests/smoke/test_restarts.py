"""`jobgate smoke` as a habit: green after a restart of API and worker, honest without a worker, by its exit code; and
on PostgreSQL, too."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from gateway.ledger.engine import Ledger
from gateway.ledger.presence import live_processes
from gateway.seams import Flag
from tests.conftest import FreshStack
from tests.rig.plugins import final, fresh_name, promote, publish_plugin
from tests.rig.postgres import Postgres
from tests.rig.process import outside_environment
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from tests.smoke.inside import held_job, inside, until_parked


async def jobgate_smoke(stack: Stack, *arguments: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "smoke", *arguments),
        cwd=Path(__file__).parents[2],
        env={
            **outside_environment(),
            "JOBGATE_URL": stack.apis[-1].url,
            "JOBGATE_TOKEN": stack.token("operator"),
            "JOBGATE_DATA": str(stack.folder / "elsewhere"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def until_alive(stack: Stack, workers: int) -> None:
    """Until one API and so many workers are on record as alive."""
    ledger = Ledger.open(stack.settings.ledger_url)

    async def alive() -> bool:
        live = await ledger.read(lambda conn: live_processes(conn, datetime.now(UTC)))
        return sorted(one.kind for one in live) == ["api", *["worker"] * workers]

    try:
        await wait_until(alive, 40, what=f"one API and {workers} workers are on record as alive")
    finally:
        await ledger.close()


async def test_a_smoke_after_each_restart_is_green_and_without_a_worker_it_is_not(
    fresh_stack: FreshStack, tmp_path: Path
) -> None:
    own = await fresh_stack()
    operator, plugin = own.client("operator"), fresh_name("restarted")
    await publish_plugin(operator, plugin, [final()], phase=None)
    await until_alive(own, workers=1)
    code, out, err = await jobgate_smoke(own, "--plugin", plugin)
    assert (code, err) == (0, ""), out
    assert out.startswith(f"{plugin} 1.0.0  smoke green\n")
    assert "HAPPENED" not in out
    assert "Not yet: " in out

    for process in (*own.apis, *own.workers):
        process.kill()
    own.workers.clear()
    own.apis[0].start()
    await own.until_ready(own.apis[0])
    await until_alive(own, workers=0)
    code, out, _ = await jobgate_smoke(own, "--plugin", plugin)
    assert code == 1
    assert "no worker is alive" in out

    await own.until_polling(own.add_worker())
    await until_alive(own, workers=1)
    page = tmp_path / "smoke.html"
    code, out, err = await jobgate_smoke(own, "--plugin", plugin, "--json", "--html", str(page))
    answer = json.loads(out)
    assert (code, err, answer["evidence"]["verdict"]) == (0, "", "green"), answer["evidence"]["reasons"]
    html = page.read_text(encoding="utf-8")
    assert "src=" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert all(f"<code>{flag}</code>" in html for flag in answer["flags"])
    assert answer["not_yet"] in html


async def test_on_postgresql_with_two_apis_a_smoke_is_green_and_sees_what_is_planted(
    fresh_stack: FreshStack, postgres: Postgres
) -> None:
    own = await fresh_stack(apis=2, ledger_url=postgres.create_database("smoked"))
    operator, app = own.client("operator"), own.client("app", api=1)
    async with inside(own) as inner:
        plugin, job = await held_job(app, operator)
        await until_parked(inner, job)
        told = (await operator.post("/v1/smokes", {"plugin": plugin}))["evidence"]
        assert (told["verdict"], told["reasons"]) == ("green", [])
        smoked = await inner.smoke(plugin, lambda: promote(operator, plugin, "1.0.0", to="live"))
        # The server is a child of this very process, and so is each new connection.
        raised = {flag for flag, raised in smoked.flags.items() if raised} - {Flag.PROCESS_STARTED}
        assert raised == {Flag.PHASE_PROMOTED}, smoked.reasons
