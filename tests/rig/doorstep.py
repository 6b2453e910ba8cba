"""Jobs put on a stack as admission puts them, without an API: published, live, reserved, accepted or not, started.

It serves tests of the worker's side that need a receipt to be in a state that admission leaves only for a moment.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pydantic_core import to_json
from temporalio.client import Client as EngineClient
from temporalio.client import WorkflowFailureError

from gateway.blobs import Blobs
from gateway.bundles import parse_bundle
from gateway.ledger.authorities import NewAuthority, insert_authority
from gateway.ledger.catalog import NewPluginVersion, insert_plugin_version
from gateway.ledger.decisions import VoteRow, cast_vote
from gateway.ledger.engine import Ledger
from gateway.ledger.phases import NewPromotion, insert_promotion
from gateway.ledger.receipts import NewReceipt, accept, reserve
from gateway.settings import Settings
from gateway.snapshots import Snapshot, Snapshots
from gateway.strictjson import digest_of
from gateway.temporal import Engine, connect
from tests.rig.plugins import CONNECTION, CREDENTIAL, fresh_name
from tests.rig.waiting import wait_until
from workflows.contract.gates import EligibilityFacts
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace, workflow_id
from workflows.contract.job import EndRecord, JobStart, OpenRequest, PluginRef
from workflows.contract.steps import DecisionHint

DEMO = Workspace("demo")
APP = PrincipalId("app")
OPERATOR = PrincipalId("operator")


@dataclass(frozen=True, slots=True)
class Published:
    """A plugin version that is live, and its snapshot."""

    name: PluginName
    version: str
    snapshot: Snapshot


@dataclass(slots=True)
class Doorstep:
    settings: Settings
    ledger: Ledger
    blobs: Blobs
    snapshots: Snapshots
    client: EngineClient
    engine: Engine
    started: int = 0

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        blobs = Blobs.open(settings.blobs_url)
        client = await connect(settings)
        ledger = Ledger.open(settings.ledger_url)
        return cls(settings, ledger, blobs, Snapshots(blobs), client, Engine(client, settings))

    async def close(self) -> None:
        await self.ledger.close()

    async def publish(
        self,
        script: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tools_url: str = "",
        policy: str | None = None,
        manifest: Mapping[str, Any] | None = None,
        deployment: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
        live: bool = True,
    ) -> Published:
        name = PluginName(fresh_name("hands"))
        plugin = {
            "name": name,
            "version": "1.0.0",
            "description": "A test plugin.",
            "instructions": "instructions.md",
            "services": [CONNECTION] if tools_url else [],
            "tools": list(tools),
            **({"policy": "policy.cedar"} if policy is not None else {}),
            **(manifest or {}),
        }
        bundle = parse_bundle(
            {
                "plugin.yaml": json.dumps(plugin),
                "instructions.md": "Do it.",
                "script.yaml": json.dumps(list(script)),
                **({"policy.cedar": policy} if policy is not None else {}),
                **(files or {}),
            },
            lambda _text, _tools: None,
        )
        bound = {CONNECTION: {"base_url": tools_url, "allow_private": True, "credential": CREDENTIAL}}
        body = {
            "plugin": name,
            "model": "scripted:script.yaml",
            "connections": bound if tools_url else {},
            **(deployment or {}),
        }
        await self.snapshots.put_bundle(DEMO, bundle)
        deployed = await self.snapshots.put_deployment(DEMO, body)
        snapshot = await self.snapshots.load(DEMO, await self.snapshots.put(DEMO, bundle.digest, deployed))
        now = datetime.now(UTC)
        version = NewPluginVersion(DEMO, name, "1.0.0", bundle.digest, plugin, OPERATOR, now)
        await self.ledger.write(lambda conn: insert_plugin_version(conn, version))
        published = Published(name, "1.0.0", snapshot)
        if live:
            await self.set_phase(published, "live")
        return published

    async def set_phase(self, plugin: Published, phase: Any, *, release_held: bool = False) -> None:
        now = datetime.now(UTC)
        row = NewPromotion(
            promotion_id=f"promo_{plugin.name}_{now.timestamp()}",
            workspace=DEMO,
            plugin=plugin.name,
            version=plugin.version,
            digest=plugin.snapshot.bundle.digest,
            phase=phase,
            state="done",
            by=OPERATOR,
            approved_by=None,
            reason="a test",
            break_glass=True,
            release_held=release_held,
            at=now,
        )
        await self.ledger.write(lambda conn: insert_promotion(conn, row))

    async def reserve(
        self,
        plugin: Published,
        job_input: Any = None,
        *,
        accepted: bool = True,
        timeout_s: float = 60.0,
        heartbeat_s: float | None = None,
        roll_over_after: int | None = None,
        **changed: Any,
    ) -> tuple[NewReceipt, JobStart]:
        """The receipt of a job and its start input, not started. `roll_over_after`: so many events of its history.
        `changed`: columns of the receipt."""
        self.started += 1
        now = datetime.now(UTC)
        job_id = JobId(f"{plugin.name}-{self.started}")
        snapshot = plugin.snapshot
        start = JobStart(
            workspace=DEMO,
            job_id=job_id,
            principal=APP,
            plugin=PluginRef(name=plugin.name, version=plugin.version, digest=snapshot.bundle.digest),
            snapshot=snapshot.digest,
            mode="live",
            facts=EligibilityFacts(version_phase="live", runtime_phase="live"),
            fingerprint=digest_of({"job": job_id}),
            accepted_at=now,
            deadline=now + timedelta(seconds=timeout_s),
            limits=snapshot.limits,
            tools=snapshot.table,
            heartbeat_s=heartbeat_s or self.settings.heartbeat_timeout_s,
            roll_over_after=roll_over_after,
        )
        row = NewReceipt(
            workspace=DEMO,
            job_id=job_id,
            fingerprint=start.fingerprint,
            principal=APP,
            plugin=plugin.name,
            version=plugin.version,
            plugin_digest=snapshot.bundle.digest,
            snapshot=snapshot.digest,
            mode="live",
            session=None,
            retry_of=None,
            line=None,
            receipt=b"{}",
            job_input=json.dumps(job_input or {}).encode(),
            start_input=to_json(start),
            labels={},
            initiator=None,
            deadline_at=start.deadline,
            reserved_at=now,
        )
        row = replace(row, **changed)
        authority = NewAuthority(
            workspace=DEMO,
            job_id=job_id,
            principal=row.principal,
            submitted_by=row.principal,
            credential=None,
            plugin=row.plugin,
            version=row.version,
            snapshot=row.snapshot,
            model=snapshot.deployment.model,
            limits=snapshot.limits.model_dump(mode="json"),
            seen_change=0,
            minted_at=now,
            expires_at=now + timedelta(seconds=self.settings.authority_ttl_s),
        )
        await self.ledger.write(lambda conn: reserve(conn, row))
        await self.ledger.write(lambda conn: insert_authority(conn, authority))
        if accepted:
            await self.ledger.write(lambda conn: accept(conn, DEMO, job_id, now))
        return row, start

    async def start(self, plugin: Published, job_input: Any = None, **options: Any) -> JobId:
        row, start = await self.reserve(plugin, job_input, **options)
        assert (await self.engine.start(row.start_input, start)).outcome == "created"
        return row.job_id

    async def end(self, job_id: JobId) -> EndRecord:
        """The end record of a job that comes to an end, whichever."""
        handle = self.client.get_workflow_handle(workflow_id(DEMO, job_id))
        with contextlib.suppress(WorkflowFailureError):  # a failed or canceled job has a record too
            await handle.result()
        execution = await self.engine.describe(DEMO, job_id)
        assert execution is not None
        record = await self.engine.histories.end_record(DEMO, job_id) or execution.recorded
        assert record is not None
        return record

    async def asked(self, job_id: JobId) -> OpenRequest | None:
        """The job's open request, if it has one."""
        execution = await self.engine.describe(DEMO, job_id)
        requests = () if execution is None or execution.recorded is None else execution.recorded.view.requests
        return next((request for request in requests if request.state == "pending"), None)

    async def give_up(self, job_id: JobId) -> EndRecord:
        """The end record of a job whose write is in doubt, once somebody has settled that nobody can tell."""
        request = await wait_until(lambda: self.asked(job_id), 60, what="somebody is asked what came of the write")
        assert request.kind == "reconciliation"
        vote = VoteRow(
            workspace=DEMO,
            job_id=job_id,
            request_id=request.request_id,
            principal=PrincipalId("approver"),
            decision="settle",
            action_digest=request.action_digest,
            reason=None,
            at=datetime.now(UTC),
        )
        await self.ledger.write(lambda conn: cast_vote(conn, vote, quorum=1, answer="stop"))
        await self.engine.hint_decision(DEMO, job_id, DecisionHint(request_id=request.request_id))
        return await self.end(job_id)

    async def result(self, job_id: JobId) -> Any:
        record = await self.end(job_id)
        assert record.view.result_ref is not None, record.view.failure or record.view.status
        return json.loads(await self.blobs.get(DEMO, record.view.result_ref))
