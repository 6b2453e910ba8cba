"""Who calls: in development each command has a token of the fitting principal, and only for the API of that folder."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import DevFile, DevPids
from gateway.tokens import DevelopmentKey, TokenVerifier, bearer_of
from tests.unit.fake_api import Canned, FakeApi, problem
from tests.unit.test_cli import Command, answer, api, command

__all__ = ["api", "command"]


def verified(data: Path, authorization: str) -> tuple[str, list[str]]:
    key = DevelopmentKey.load(data)
    verifier = TokenVerifier(key, issuer="jobgate", audience="jobgate")
    caller = asyncio.run(verifier.verify(bearer_of(authorization)))
    return caller.principal, sorted(caller.groups)


@pytest.fixture
def dev_folder(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a running dev stack leaves it, with the fake API as its API."""
    data = tmp_path / "dev"
    DevelopmentKey.load(data)
    told = DevFile(
        api_url=api.url,
        temporal_address="127.0.0.1:1",
        temporal_ui_url="http://127.0.0.1:1",
        namespace="jobgate",
        pids=DevPids(temporal=1, worker=1, api=1),
    )
    (data / "dev.json").write_text(told.model_dump_json())
    return data


def undirected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBGATE_URL", "JOBGATE_TOKEN"):
        monkeypatch.delenv(name)


def test_in_development_each_command_calls_as_the_fitting_principal(
    api: FakeApi, command: Command, dev_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undirected(monkeypatch)
    path = "/v1/jobs/k-1/requests/r1-abc"
    asked: dict[str, Any] = {
        "kind": "approval",
        "request_id": "r1-abc",
        "title": "T",
        "tool": "t",
        "args": {},
        "action_digest": "d",
        "state": "pending",
    }
    answer(api, "GET", path, {**asked, "expires_at": "never", "policy": {"groups": ["finance"]}})
    answer(api, "POST", f"{path}/decision", {"request_id": "r1-abc", "state": "approved"})
    settled = {"tool": "t", "answer": "happened", "state": "reconciled", "decided_by": ["approver"]}
    api.answers["POST", "/v1/jobs/k-1/effects/eff_1/settlement"] = [
        problem(403, "not-an-approver", groups=["finance"]),
        Canned(200, json.dumps(settled)),
    ]
    here = ("--data", str(dev_folder))
    command("show", "k-1", *here)
    command("plugin", "versions", "p", *here)
    command("decide", "k-1", "r1-abc", "approve", *here)
    assert command("settle", "k-1", "eff_1", "happened", *here)[0] == 0
    callers = [verified(dev_folder, request.headers["Authorization"]) for request in api.asked]
    assert callers == [("app", []), ("operator", []), *[("approver", []), ("approver", ["finance"])] * 2]


def test_a_development_token_never_goes_to_another_address(
    api: FakeApi, command: Command, dev_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undirected(monkeypatch)
    monkeypatch.setenv("JOBGATE_URL", api.url.replace("127.0.0.1", "localhost"))
    command("show", "k-1", "--data", str(dev_folder))
    assert "Authorization" not in api.asked[0].headers


def test_token_prints_one_token_with_the_claims_asked_for(command: Command, tmp_path: Path) -> None:
    here = ("--data", str(tmp_path / "keys-here"))
    code, out, _ = command("token", "ada", "--group", "finance", "--scope", "jobs:decide", *here)
    assert code == 0
    assert verified(tmp_path / "keys-here", f"Bearer {out.strip()}") == ("ada", ["finance"])
    assert set(json.loads(command("token", "ada", "--json", *here)[1])) == {"token"}
