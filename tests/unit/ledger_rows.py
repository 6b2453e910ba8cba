"""Rows that ledger tests put in: one complete example of each, with what a test cares for replaced."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.ledger.authorities import NewAuthority
from gateway.ledger.catalog import NewPluginVersion
from gateway.ledger.decisions import VoteRow
from gateway.ledger.grants import NewGrant
from gateway.ledger.phases import NewPromotion
from gateway.ledger.receipts import NewReceipt
from workflows.contract.ids import JobId, PluginName, PrincipalId, RequestId, Workspace, sha256_of

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DEMO = Workspace("demo")
APP = PrincipalId("app")
OPERATOR = PrincipalId("operator")
JOB = JobId("k-1")
REFUND = PluginName("support-refund")
REQUEST = RequestId("r1-4fa0c2")
ACTION = sha256_of(b"the action that was shown")
SECOND = timedelta(seconds=1)


def receipt(job_id: str = JOB, **changed: Any) -> NewReceipt:
    row = NewReceipt(
        workspace=DEMO,
        job_id=JobId(job_id),
        fingerprint=sha256_of(b"content"),
        principal=APP,
        plugin=REFUND,
        version="1.0.0",
        plugin_digest=sha256_of(b"plugin"),
        snapshot=sha256_of(b"snapshot"),
        mode="live",
        session=None,
        retry_of=None,
        line=None,
        receipt=b'{"job_id": "k-1"}',
        job_input=b'{"invoice":"inv_17"}',
        start_input=b'{"workspace":"demo"}',
        labels={"ticket": "T-17 \u00e4"},
        initiator={"kind": "user", "id": "cust_9"},
        deadline_at=AT + timedelta(hours=1),
        reserved_at=AT,
    )
    return replace(row, **changed)


def authority(job_id: str = JOB, **changed: Any) -> NewAuthority:
    row = NewAuthority(
        workspace=DEMO,
        job_id=JobId(job_id),
        principal=APP,
        submitted_by=APP,
        credential=None,
        plugin=REFUND,
        version="1.0.0",
        snapshot=sha256_of(b"snapshot"),
        model="scripted:script.yaml",
        limits={"max_steps": 20},
        seen_change=0,
        minted_at=AT,
        expires_at=AT + timedelta(minutes=5),
    )
    return replace(row, **changed)


def version(number: str = "1.0.0", **changed: Any) -> NewPluginVersion:
    row = NewPluginVersion(
        workspace=DEMO,
        name=REFUND,
        version=number,
        digest=sha256_of(number.encode()),
        manifest={"name": REFUND, "tools": []},
        published_by=OPERATOR,
        published_at=AT,
    )
    return replace(row, **changed)


def promotion(promotion_id: str, **changed: Any) -> NewPromotion:
    row = NewPromotion(
        promotion_id=promotion_id,
        workspace=DEMO,
        plugin=REFUND,
        version="1.0.0",
        digest=sha256_of(b"1.0.0"),
        phase="live",
        state="done",
        by=OPERATOR,
        approved_by=None,
        reason="because",
        break_glass=True,
        release_held=False,
        at=AT,
    )
    return replace(row, **changed)


def grant(grant_id: str = "g-1", **changed: Any) -> NewGrant:
    row = NewGrant(
        grant_id=grant_id,
        workspace=DEMO,
        principal=APP,
        actions=("jobs:submit",),
        plugins=(REFUND,),
        limits={},
        expires_at=None,
        by=OPERATOR,
        at=AT,
    )
    return replace(row, **changed)


def vote(principal: str, **changed: Any) -> VoteRow:
    row = VoteRow(
        workspace=DEMO,
        job_id=JOB,
        request_id=REQUEST,
        principal=PrincipalId(principal),
        decision="approve",
        action_digest=ACTION,
        reason=None,
        at=AT,
    )
    return replace(row, **changed)
