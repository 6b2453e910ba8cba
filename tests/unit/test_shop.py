"""The shop gives money back once per effect, whoever asks how often, and only in the order of the epochs."""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from examples.feedback_assistant import tickets
from examples.support_refund import shop
from gateway.bundles import parse_bundle
from gateway.cedar import compile_policy
from gateway.deployments import check_deployment
from gateway.expressions import compile_text
from tests.rig.client import Json
from tests.rig.process import ROOT, Process
from workflows.contract.ids import ToolName
from workflows.contract.job import EffectClass

TOKEN = "shop-test-token"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    address = tmp_path / "address"
    process = Process(
        "shop",
        ["-m", "examples.support_refund.shop", "--db", str(tmp_path / "shop.db"), "--address-file", str(address)],
        tmp_path,
        environment={"SHOP_TOKEN": TOKEN},
    )
    process.start()
    yield process
    process.kill()


@pytest.fixture
def http(server: Process, tmp_path: Path) -> Iterator[httpx2.Client]:
    address = server.address_from(tmp_path / "address")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=address, headers=headers, trust_env=False, timeout=10) as client:
        yield client


def refund(
    http: httpx2.Client, key: str = "eff_a", epoch: int = 1, amount: Any = 1200, invoice: str = "inv_17"
) -> httpx2.Response:
    headers = {"Idempotency-Key": key, "Jobgate-Epoch": str(epoch)}
    return http.post("/refunds", json={"invoice": invoice, "amount_cents": amount}, headers=headers)


def test_invoices_tell_their_overage(http: httpx2.Client) -> None:
    overages = [http.get(f"/invoices/{name}").json()["overage_cents"] for name in ("inv_17", "inv_18", "inv_19")]
    assert overages == [1200, 0, 80]
    assert http.get("/invoices/inv_0").status_code == 404


def test_a_repeated_key_gets_the_first_refund(http: httpx2.Client, tmp_path: Path) -> None:
    first, again = refund(http), refund(http, epoch=2)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert [(row.invoice, row.amount_cents) for row in shop.table(tmp_path / "shop.db")] == [("inv_17", 1200)]


def test_racing_repeats_make_one_refund(http: httpx2.Client, tmp_path: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(refund, http) for _ in range(20)]
        statuses = sorted(answer.result().status_code for answer in asked)
    assert statuses == [200] * 19 + [201]
    assert len(shop.table(tmp_path / "shop.db")) == 1


def test_a_lower_epoch_than_seen_is_refused_also_after_a_declined_one(http: httpx2.Client, tmp_path: Path) -> None:
    assert refund(http, epoch=3, amount=999_999).status_code == 422
    assert refund(http, epoch=2).status_code == 409
    assert shop.table(tmp_path / "shop.db") == []
    assert refund(http, epoch=3).status_code == 201


def test_a_key_is_bound_to_its_refund(http: httpx2.Client) -> None:
    refund(http)
    assert refund(http, amount=1).status_code == 422


def test_what_was_given_back_is_no_overage_any_more(http: httpx2.Client) -> None:
    refund(http)
    assert http.get("/invoices/inv_17").json()["overage_cents"] == 0
    assert refund(http, key="eff_b", amount=1).status_code == 422


def test_a_refund_is_found_by_its_effect_id(http: httpx2.Client) -> None:
    made = refund(http).json()
    assert http.get("/refunds", params={"effect_id": "eff_a"}).json() == {"found": True, "result": made}
    assert http.get("/refunds", params={"effect_id": "eff_b"}).json() == {"found": False, "result": {}}


@pytest.mark.parametrize("amount", ["1200", 12.5, True, None, 0, -1])
def test_an_amount_is_a_positive_whole_number(http: httpx2.Client, amount: Any) -> None:
    assert refund(http, amount=amount).status_code == 422


def test_a_refund_without_key_or_epoch_is_refused(http: httpx2.Client) -> None:
    order = {"invoice": "inv_17", "amount_cents": 1200}
    for headers in ({}, {"Idempotency-Key": "eff_a"}, {"Idempotency-Key": "eff_a", "Jobgate-Epoch": "x"}):
        assert http.post("/refunds", json=order, headers=headers).status_code == 400


def test_the_wrong_token_opens_nothing(http: httpx2.Client) -> None:
    for value in ("", "Bearer wrong", TOKEN):
        assert http.get("/invoices/inv_17", headers={"Authorization": value}).status_code == 401


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_0_on_a_signal(server: Process, http: httpx2.Client, number: signal.Signals) -> None:
    assert http.get("/invoices/inv_17").status_code == 200
    os.kill(server.pid, number)
    assert server.stop() == 0
    assert server.output == ""


def test_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    process = Process(
        "shop",
        ["-m", "examples.support_refund.shop", "--db", str(tmp_path / "shop.db")],
        tmp_path,
        environment={"SHOP_TOKEN": ""},
    )
    process.start()
    assert process.wait() == 2
    assert "SHOP_TOKEN must be set" in process.output


def test_the_desk_files_one_ticket_per_key(tmp_path: Path) -> None:
    address = tmp_path / "address"
    process = Process(
        "desk",
        ["-m", "examples.feedback_assistant.tickets", "--db", str(tmp_path / "d.db"), "--address-file", str(address)],
        tmp_path,
        environment={"DESK_TOKEN": TOKEN},
    )
    process.start()
    order = {"feedback": "fb_1", "team": "billing", "summary": "Seats"}
    with httpx2.Client(
        base_url=process.address_from(address), headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
    ) as http:
        answers = [http.post("/tickets", json=order, headers={"Idempotency-Key": "eff_a"}) for _ in range(2)]
        other = http.post("/tickets", json={**order, "team": "support"}, headers={"Idempotency-Key": "eff_a"})
        found = http.get("/tickets", params={"feedback": "fb_1"}).json()["tickets"]
    assert process.stop() == 0
    assert [answer.json()["ticket_id"] for answer in answers] == ["T-1", "T-1"]
    assert other.status_code == 422
    assert [ticket["effect_id"] for ticket in found] == ["eff_a"]
    assert [ticket.team for ticket in tickets.table(tmp_path / "d.db")] == ["billing"]


@pytest.mark.parametrize("name", ["support_refund", "feedback_assistant"])
def test_the_example_plugins_pass_every_check_of_publishing_and_deploying(name: str) -> None:
    folder = ROOT / "examples" / name
    files = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix in (".yaml", ".md", ".cedar")
    }

    def check_policy(text: str, tools: Mapping[ToolName, EffectClass]) -> None:
        compile_policy(text, tools)

    bundle = parse_bundle(files, check_policy)
    deployment = check_deployment(yaml.safe_load(files["deployment.yaml"]), bundle)
    assert deployment.plugin == bundle.manifest.name
    assert set(deployment.connections) == set(bundle.manifest.services)


REFUND = {"refund_id": "ref_1", "amount_cents": 1200}


@pytest.mark.parametrize(
    ("overage", "refund", "says"),
    [
        (1200, REFUND, "Invoice inv_17: Why. Refunded 1200 cents as ref_1."),
        (1200, {"error": "rejected"}, "Invoice inv_17: Why. Nothing was refunded."),
        (0, None, "Invoice inv_17: Why. Nothing was refunded."),
    ],
)
def test_the_refund_script_says_what_it_found(overage: int, refund: Json | None, says: str) -> None:
    script = yaml.safe_load((ROOT / "examples/support_refund/script.yaml").read_text())
    results: Json = {"invoices.get": {"overage_cents": overage, "note": "Why."}}
    names: Json = {"input": {"invoice": "inv_17"}, "results": results}
    wanted = script[1]["calls"][0]
    assert compile_text(wanted["when"]).evaluate(names) is (overage > 0)
    assert compile_text(wanted["args"]["amount_cents"]).evaluate(names) == overage
    if refund is not None:
        results["refunds.create"] = refund
    assert compile_text(script[2]["final"]["message"]).evaluate(names) == says
