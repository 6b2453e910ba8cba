"""A small world for tests of judging: a migrated ledger, real blobs, and a plugin of which a test breaks one thing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.allowlist import CredentialPolicy
from gateway.blobs import Blobs
from gateway.bundles import parse_bundle
from gateway.jobrequest import JobRequest, fingerprint, read_job_request
from gateway.judging import Judge
from gateway.known import Known, look
from gateway.ledger.catalog import insert_deployment, insert_plugin_version, insert_release
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant
from gateway.ledger.phases import insert_promotion
from gateway.ledger.receipts import NewReceipt
from gateway.scopes import Action, Caller
from gateway.settings import load_settings
from gateway.snapshots import Snapshots
from tests.unit.bundle_files import FILES
from tests.unit.ledger_rows import APP, AT, DEMO, OPERATOR, REFUND, grant, promotion, version
from workflows.contract.errors import Refused
from workflows.contract.gates import Phase
from workflows.contract.ids import JobId
from workflows.contract.job import JobStart

NOW = datetime.now(UTC)
KEY = JobId("k-9")
CANARY = "canary-5d21"
CALLER = Caller(APP, DEMO, frozenset({Action.JOBS_SUBMIT}), frozenset(), "t-1")


def request(**members: Any) -> JobRequest:
    body: dict[str, Any] = {"plugin": REFUND, "input": {"invoice": "inv_17"}, **members}
    return read_job_request(json.dumps(body).encode())


@dataclass
class World:
    """A published, deployed, released and live plugin, of which a test breaks one thing."""

    ledger: Ledger
    judge: Judge
    snapshots: Snapshots
    blobs: Path

    async def look(self, asked: JobRequest, caller: Caller = CALLER) -> Known:
        return await self.ledger.read(partial(look, caller, KEY, asked))

    async def admit(self, asked: JobRequest, caller: Caller = CALLER) -> tuple[NewReceipt, JobStart]:
        known = await self.look(asked, caller)
        admissible = await self.judge.judge(caller, KEY, asked, fingerprint(caller.principal, asked), known)
        return admissible.receipt, admissible.start

    async def refusal(self, asked: JobRequest, caller: Caller = CALLER) -> Refused:
        with pytest.raises(Refused) as caught:
            await self.admit(asked, caller)
        assert CANARY not in str(caught.value)
        return caught.value

    async def publish(
        self,
        number: str = "1.0.0",
        *,
        manifest: Mapping[str, str] | None = None,
        deployment: Mapping[str, Any] | None = None,
        deployed: bool = True,
        released: bool = True,
        phase: Phase | None = "live",
    ) -> None:
        text = FILES["plugin.yaml"].replace('"1.0.0"', f'"{number}"')
        for old, new in (manifest or {}).items():
            assert old in text
            text = text.replace(old, new)
        bundle = parse_bundle({**FILES, "plugin.yaml": text})
        await self.snapshots.put_bundle(DEMO, bundle)
        body: dict[str, Any] = {
            "plugin": REFUND,
            "model": "scripted:script.yaml",
            "connections": {"shop": {"base_url": "http://127.0.0.1:9", "allow_private": True}},
            **(deployment or {}),
        }
        digest = await self.snapshots.put_deployment(DEMO, body)

        def write(conn: Any) -> None:
            insert_plugin_version(conn, version(number, digest=bundle.digest))
            if deployed:
                insert_deployment(conn, DEMO, REFUND, digest=digest, body=body, by=OPERATOR, at=AT)
            if released:
                insert_release(conn, DEMO, REFUND, number, expected_current=None, by=OPERATOR, at=AT)
            if phase is not None:
                insert_promotion(conn, promotion(f"p-{number}", version=number, phase=phase))

        await self.ledger.write(write)

    async def runtime(self, phase: Phase) -> None:
        runtime = promotion(f"r-{phase}", workspace=None, plugin=None, version=None, digest=None, phase=phase)
        await self.ledger.write(lambda conn: insert_promotion(conn, runtime))


async def new_world(ledger: Ledger, folder: Path) -> World:
    """A live runtime and a grant for the app; nothing is published. Asked twice, it is another process of the same."""
    settings = load_settings(data=folder / "data", development=True)
    blobs = folder / "blobs"
    snapshots = Snapshots(Blobs.open(blobs.as_uri()))
    made = World(ledger, Judge(ledger, snapshots, CredentialPolicy.load(settings), settings), snapshots, blobs)
    await made.runtime("live")
    await ledger.write(lambda conn: insert_grant(conn, grant("g-app", at=NOW)))
    return made
