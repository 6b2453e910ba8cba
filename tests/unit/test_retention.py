"""The sweep of old content outlives whatever goes wrong in one round of it."""

import asyncio
import io
import json
from typing import Any, cast

from gateway.erasing import Retention
from gateway.telemetry import configure_logging
from tests.rig.waiting import wait_until
from workflows.contract.errors import ProblemCode, Refused


class Broken:
    """Stands where an eraser stands; every look at its ledger goes wrong."""

    def __init__(self, fault: Exception) -> None:
        self.fault, self.looks = fault, 0

    @property
    def ledger(self) -> Any:
        self.looks += 1
        raise self.fault


async def test_a_round_that_fails_is_followed_by_the_next_and_stands_in_the_log() -> None:
    log = io.StringIO()
    configure_logging("test", stream=log)
    try:
        for fault in (Refused(ProblemCode.LEDGER_UNAVAILABLE, "Away."), OSError("unforeseen")):
            broken = Broken(fault)
            sweeping = asyncio.create_task(Retention(cast(Any, broken), 1, 0.01).run())
            await wait_until(lambda broken=broken: broken.looks > 2)
            assert not sweeping.done()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
    finally:
        configure_logging("test")
    told = {json.loads(line)["event"] for line in log.getvalue().splitlines()}
    assert told == {"the sweep of old content was put off", "the sweep of old content failed"}
