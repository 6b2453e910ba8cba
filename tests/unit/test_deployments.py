"""A deployment fits its plugin, names what it needs, and can only narrow."""

from decimal import Decimal

import pytest
from pydantic import JsonValue

from gateway.deployments import check_deployment, effective_limits, price_known
from tests.unit.bundle_files import MANIFEST, sound_bundle
from workflows.contract.errors import ProblemCode, Refused

SHOP: JsonValue = {
    "base_url": "http://127.0.0.1:9001",
    "allow_private": True,
    "credential": {"ref": "env:SHOP_TOKEN", "header": "Authorization", "prefix": "Bearer "},
}
SCRIPTED: dict[str, JsonValue] = {
    "plugin": "support-refund",
    "identity": "caller",
    "model": "scripted:script.yaml",
    "model_connection": None,
    "price": None,
    "connections": {"shop": SHOP},
    "limits": {},
}
REAL: dict[str, JsonValue] = {
    **SCRIPTED,
    "model": "openai-chat:in-house",
    "model_connection": {"base_url": "https://models.example.test/v1", "credential": {"ref": "env:MODEL_KEY"}},
    "price": {"input_per_million_usd": "0.15", "output_per_million_usd": 0.6},
}


def refusal(deployment: JsonValue) -> Refused:
    with pytest.raises(Refused) as caught:
        check_deployment(deployment, sound_bundle())
    assert caught.value.extras["file"] == "deployment.yaml"
    return caught.value


def shop(**changed: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(SHOP, dict)
    return {**SCRIPTED, "connections": {"shop": {**SHOP, **changed}}}


def test_plugin_and_model_are_enough_where_no_service_is_needed() -> None:
    manifest = 'name: p\nversion: "1"\ndescription: d\ninstructions: instructions.md\n'
    deployment = check_deployment({"plugin": "p", "model": "scripted:script.yaml"}, sound_bundle(plugin_yaml=manifest))
    assert deployment.identity == "caller"
    assert deployment.script_file == "script.yaml"


def test_null_is_absent() -> None:
    deployment = check_deployment({**SCRIPTED, "limits": None}, sound_bundle())
    assert effective_limits(sound_bundle().manifest, deployment).max_steps == 20


def test_a_real_model_is_taken_with_connection_and_price() -> None:
    deployment = check_deployment(REAL, sound_bundle())
    assert deployment.script_file is None
    assert deployment.price
    assert deployment.price.input_per_million_usd == Decimal("0.15")
    assert deployment.price.output_per_million_usd == Decimal("0.6")


def test_authorization_is_a_bearer_token_unless_said_otherwise() -> None:
    usual = check_deployment(shop(credential={"ref": "env:T"}), sound_bundle()).connections["shop"].credential
    bare = (
        check_deployment(shop(credential={"ref": "env:T", "prefix": ""}), sound_bundle()).connections["shop"].credential
    )
    other = check_deployment(shop(credential={"ref": "env:T", "header": "X-Api-Key"}), sound_bundle())
    assert usual
    assert (usual.header, usual.prefix) == ("Authorization", "Bearer ")
    assert bare
    assert bare.prefix == ""
    assert other.connections["shop"].credential
    assert other.connections["shop"].credential.prefix == ""


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"plugin": "other"}, "plugin"),
        ({"plugin": None}, "plugin"),
        ({"model": "gpt"}, "model"),
        ({"model": "scripted:gone.yaml"}, "model"),
        ({"model": "openai:gpt-4o"}, "model_connection"),
        ({"connections": {}}, "connections"),
        ({"identity": "agent"}, "identity"),
        ({"limits": {"max_steps": 21}}, "limits.max_steps"),
        ({"limits": {"max_tokens": 2_000_001}}, "limits.max_tokens"),
        ({"limits": {"max_duration_seconds": 86_401}}, "limits.max_duration_seconds"),
        ({"limits": {"max_cost_usd": "1.01"}}, "limits.max_cost_usd"),
        ({"limits": {"max_cost_usd": 0.5}}, "limits.max_cost_usd"),
        ({"price": {"input_per_million_usd": -1, "output_per_million_usd": 1}}, "price.input_per_million_usd"),
        ({"price": {"input_per_million_usd": 1}}, "price.output_per_million_usd"),
        ({"SECRET": 1}, "*"),
        ({"connections": {"SECRET SECRET": SHOP}}, "connections.*.*"),
    ],
)
def test_a_fault_is_named_by_its_place(changed: dict[str, JsonValue], place: str) -> None:
    refused = refusal({**SCRIPTED, **changed})
    assert refused.code is ProblemCode.INPUT_INVALID
    assert refused.detail.startswith(f"deployment.yaml: {place}: ")
    assert "SECRET" not in refused.detail


@pytest.mark.parametrize("deployment", [None, [], "x", 1])
def test_a_deployment_is_an_object(deployment: JsonValue) -> None:
    assert refusal(deployment).code is ProblemCode.INPUT_INVALID


def test_an_agent_is_named_by_its_whole_identity() -> None:
    assert check_deployment({**SCRIPTED, "identity": "agent:refunds"}, sound_bundle()).identity == "agent:refunds"


@pytest.mark.parametrize(
    "url",
    [
        "http://SECRET:SECRET@shop", "http://shop?SECRET=1", "http://shop#SECRET", "ftp://shop", "http://", "shop",
        "http://shop:0", "http://shop:99999", "http:///SECRET", "http://shop/SECRET/../b", "http://shop/%2E%2e/SECRET",
        "http://sh op", "http://shop\\SECRET", "http://shop/\n", "http://shöp", "",
    ],
)  # fmt: skip
def test_a_base_url_that_could_lead_elsewhere_is_refused(url: str) -> None:
    refused = refusal(shop(base_url=url))
    assert refused.detail.startswith("deployment.yaml: connections.*.base_url: ")
    assert "SECRET" not in refused.detail


@pytest.mark.parametrize(
    "url", ["http://shop", "https://shop.example.test:8443/api/v1", "http://[::1]:80/", "HTTPS://Shop"]
)
def test_an_ordinary_base_url_is_taken(url: str) -> None:
    assert check_deployment(shop(base_url=url), sound_bundle()).connections["shop"].base_url == url


@pytest.mark.parametrize(
    "credential",
    [
        {"ref": "SECRET"},
        {"ref": "env:1SECRET"},
        {"ref": "file:SECRET"},
        {"ref": "env:X", "header": "a b"},
        {"ref": "env:X", "header": "Idempotency-Key"},
        {"ref": "env:X", "header": "Jobgate-Epoch"},
        {"ref": "env:X", "header": "Host"},
        {"ref": "env:X", "prefix": "a\r\nb"},
        {"header": "Authorization"},
    ],
)
def test_a_credential_is_a_reference_and_a_header_of_its_own(credential: dict[str, JsonValue]) -> None:
    refused = refusal(shop(credential=credential))
    assert refused.detail.startswith("deployment.yaml: connections.*.credential.")
    assert "SECRET" not in refused.detail


def test_limits_narrow() -> None:
    deployment = check_deployment({**SCRIPTED, "limits": {"max_steps": 5, "max_cost_usd": "0.5"}}, sound_bundle())
    limits = effective_limits(sound_bundle().manifest, deployment)
    assert (limits.max_steps, limits.max_cost_usd, limits.max_duration_seconds) == (5, Decimal("0.5"), 86_400)


def test_a_money_limit_without_a_known_price_refuses_the_deployment() -> None:
    assert refusal({**REAL, "price": None}).detail.startswith("deployment.yaml: price: ")
    assert check_deployment({**REAL, "price": None, "model": "openai-chat:gpt-4o-mini"}, sound_bundle())
    unlimited = sound_bundle(plugin_yaml=MANIFEST.replace(', max_cost_usd: "1.00"', ""))
    assert check_deployment({**REAL, "price": None}, unlimited)
    with pytest.raises(Refused):
        check_deployment({**REAL, "price": None, "limits": {"max_cost_usd": "0.1"}}, unlimited)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("openai:gpt-4o", True),
        ("anthropic:claude-sonnet-4-5", True),
        ("openai:nobody-knows", False),
        ("nobody:x", False),
    ],
)
def test_prices_are_those_of_genai_prices(model: str, known: bool) -> None:
    assert price_known(model) is known


def test_a_script_is_checked_with_its_deployment() -> None:
    with pytest.raises(Refused) as caught:
        check_deployment(SCRIPTED, sound_bundle(script_yaml="- say: hi\n- say: '{{ input. }}'\n"))
    assert dict(caught.value.extras) == {"file": "script.yaml", "line": 2}
