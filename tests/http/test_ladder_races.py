"""A promotion that says `release_held` at the very moment of an admission releases that job, too."""

import json

import pytest
from pydantic_core import to_json

from gateway.admissible import row_of
from gateway.jobrequest import fingerprint, read_job_request
from gateway.ledger.journal import undelivered_changes
from tests.http.submissions import body_with, rewrite_row, submit_bytes
from tests.rig.client import Client
from tests.rig.doorstep import APP, Doorstep
from tests.rig.plugins import final
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.gates import EligibilityFacts


@pytest.mark.parametrize("release_held", [True, False])
async def test_a_job_judged_before_a_release_and_started_after_it_hears_of_it(
    stack: Stack, app: Client, release_held: bool
) -> None:
    """Admission judged it as held; then the promotion is made and delivered to whoever is open; then the job starts."""
    doorstep = await Doorstep.open(stack.settings)
    try:
        plugin = await doorstep.publish([final({"ran": True})], live=False)
        await doorstep.set_phase(plugin, "live_canary")
        body = body_with(plugin.name)
        asked = read_job_request(body.encode())
        print_ = fingerprint(APP, asked)
        row, start = await doorstep.reserve(plugin, json.loads(body)["input"], accepted=False, fingerprint=print_)
        held = start.model_copy(
            update={
                "fingerprint": print_,
                "facts": EligibilityFacts(version_phase="live_canary", runtime_phase="live"),
            }
        )
        receipt = row_of(held, asked).receipt
        await rewrite_row(stack, row.job_id, {"start_input": to_json(held), "receipt": receipt})
        await doorstep.set_phase(plugin, "live", release_held=release_held)

        async def delivered() -> bool:
            return not await doorstep.ledger.read(lambda conn: undelivered_changes(conn, limit=1))

        await wait_until(delivered, 20, what="the promotion was told to whoever was open")
        assert (await submit_bytes(app, body, row.job_id)).status_code == 202
        await app.until_event(row.job_id, "job.held")
        if release_held:
            assert (await app.until_ended(row.job_id))["status"] == "succeeded"
            return
        later = await doorstep.start(plugin)
        await doorstep.end(later)
        assert (await app.status(row.job_id))["status"] == "queued"
    finally:
        await doorstep.close()
