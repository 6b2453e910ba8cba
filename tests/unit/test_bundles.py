"""A bundle is what its digest says, and publishing refuses the rest with file, line and rule."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.bundles import (
    MAX_BYTES,
    MAX_FILES,
    DigestMismatch,
    bundle_digest,
    load_bundle,
    parse_bundle,
    snapshot_digest,
)
from gateway.strictjson import canonical, digest_of
from tests.unit.bundle_files import FILES, MANIFEST, sound_bundle
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Digest, sha256_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def refusal(files: dict[str, str]) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_bundle(files)
    return caught.value


def broken(old: str, new: str) -> Refused:
    assert old in MANIFEST
    return refusal({**FILES, "plugin.yaml": MANIFEST.replace(old, new)})


def line_with(text: str) -> int:
    return next(number for number, line in enumerate(MANIFEST.splitlines(), 1) if text in line)


def test_the_digest_is_that_of_every_path_and_content() -> None:
    hashes = {path: "sha256:" + sha256(text.encode()).hexdigest() for path, text in FILES.items()}
    assert sound_bundle().digest == "sha256:" + sha256(canonical(hashes)).hexdigest()
    assert sound_bundle(readme_md="x").digest != sound_bundle(readme_md="y").digest
    assert parse_bundle(dict(reversed(list(FILES.items())))) == sound_bundle()


def test_a_stored_bundle_loads_as_it_was() -> None:
    bundle = sound_bundle()
    assert load_bundle(bundle.blob) == bundle
    assert load_bundle(bundle.blob, bundle.digest) == bundle


def test_a_changed_or_unreadable_blob_does_not_load() -> None:
    bundle = sound_bundle()
    for blob in (
        bundle.blob.replace(b"overage", b"OVERAGE"),
        bundle.blob[:-1],
        b"{}",
        canonical({"digest": bundle.digest, "files": {"plugin.yaml": 1}}),
        canonical({"digest": bundle_digest({}), "files": {}}),
        canonical({"digest": bundle_digest({"plugin.yaml": "a: 1"}), "files": {"plugin.yaml": "a: 1"}}),
    ):
        assert blob != bundle.blob
        with pytest.raises(DigestMismatch):
            load_bundle(blob)
    with pytest.raises(DigestMismatch):
        load_bundle(bundle.blob, sound_bundle(readme_md="x").digest)


def test_a_snapshot_is_the_pair_of_plugin_and_deployment() -> None:
    plugin, deployment = Digest("sha256:" + "a" * 64), Digest("sha256:" + "b" * 64)
    expected = sha256_of(json.dumps({"deployment": deployment, "plugin": plugin}, separators=(",", ":")).encode())
    assert snapshot_digest(plugin, deployment) == expected
    assert snapshot_digest(deployment, plugin) != expected
    assert digest_of({"plugin": plugin, "deployment": deployment}) == expected


@pytest.mark.parametrize("example", ["support_refund", "feedback_assistant"])
def test_the_examples_are_sound(example: str) -> None:
    folder = EXAMPLES / example
    paths = [path for path in folder.rglob("*") if path.suffix in (".yaml", ".md", ".cedar")]
    bundle = parse_bundle({path.relative_to(folder).as_posix(): path.read_text() for path in paths})
    assert load_bundle(bundle.blob) == bundle


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "./a", "a//b", "/a", "a/", "", ".", "a b", "é", "a\\b", "a\n", "x" * 201]
)
def test_a_path_that_could_mean_another_file_is_refused_unseen(path: str) -> None:
    refused = refusal({**FILES, path: "x"})
    assert refused.code is ProblemCode.INPUT_INVALID
    assert refused.detail == "A file's path is at most 200 of [A-Za-z0-9._/-], without empty and dot segments."


def test_a_bundle_is_bounded() -> None:
    assert refusal({**FILES, "big.md": "x" * MAX_BYTES}).code is ProblemCode.PAYLOAD_TOO_LARGE
    assert refusal({**FILES, "big.md": "€" * (MAX_BYTES // 3)}).code is ProblemCode.PAYLOAD_TOO_LARGE
    assert refusal({**FILES, **{f"{n}.md": "" for n in range(MAX_FILES)}}).code is ProblemCode.INPUT_INVALID


def test_a_file_that_is_not_utf8_is_refused_with_its_line() -> None:
    refused = refusal({**FILES, "notes.md": "a\nb\ud800"})
    assert dict(refused.extras) == {"file": "notes.md", "line": 2}


def test_a_bundle_without_a_manifest_is_refused() -> None:
    refused = refusal({path: text for path, text in FILES.items() if path != "plugin.yaml"})
    assert refused.detail == "plugin.yaml: The bundle has no such file."


def test_a_policy_fault_names_the_policys_line() -> None:
    policy = 'permit (principal, action, resource);\npermit (principal, action, resource == Tool::"SECRET");\n'
    refused = refusal({**FILES, "policy.cedar": policy})
    assert refused.detail.startswith("policy.cedar:2: ")
    assert dict(refused.extras) == {"file": "policy.cedar", "line": 2}
    assert "SECRET" not in refused.detail


def test_without_a_policy_none_is_checked() -> None:
    manifest = MANIFEST.replace("policy: policy.cedar\n", "")
    assert parse_bundle({**FILES, "plugin.yaml": manifest, "policy.cedar": "("}).manifest.policy is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('version: "1.0.0"', "version: 1.0"),
        ('version: "1.0.0"', 'version: ".."'),
        ('version: "1.0.0"', 'version: "1.0.0 "'),
        ("name: support-refund", "name: Support_Refund"),
        ("description: Refunds.", "description: Refunds.\nSECRET: 1"),
        ("description: Refunds.", "description: 7"),
        ("instructions: instructions.md", "instructions: other.md"),
        ("skills: [skills/refund-policy.md]", "skills: [skills/other.md]"),
        ("policy: policy.cedar", "policy: other.cedar"),
        ("services: [shop]", "services: [shop, shop]"),
        ('max_cost_usd: "1.00"', "max_cost_usd: 1.00"),
        ('max_cost_usd: "1.00"', 'max_cost_usd: "-1"'),
        ("max_steps: 20", "max_steps: 0"),
        ("max_steps: 20", "max_steps: true"),
        ("required: [invoice]", "required: invoice"),
        ("  - name: refunds.create", "  - name: invoices.get"),
        ("  - name: refunds.create", "  - name: ask_human"),
        ("  - name: refunds.create", "  - name: refunds create"),
        ("    effect: write", "    effect: WRITE"),
        ("    reconcile: refunds.find", "    reconcile: refunds.gone"),
        ("    reconcile: refunds.find", "    reconcile: refunds.create"),
        ("    reconcile: refunds.find", "    reconcile: invoices.get"),
        ('    event: "Reading invoice {id}"', '    event: "Reading {invoice}"'),
        ("Refund {amount_cents} cents", "Refund {amount} cents"),
        ("properties: {id: {type: string}}", "properties: {id: {type: strng}}"),
        ("amount_cents: {type: integer}", "amount_cents: {$ref: 'https://example.test/x'}"),
        ("    hidden: true", "    hidden: 1"),
        ("path: /refunds}\n    approval", "path: /refunds}\n    timeout_seconds: 0\n    approval"),
        ("groups: [finance]", "groups: finance"),
        ("groups: [finance]", "groups: [finance], quorum: 0"),
        ("connection: shop, method: POST", "connection: till, method: POST"),
        ("connection: shop, method: POST", "connection: shop, method: TRACE"),
    ],
)
def test_a_fault_of_the_manifest_is_named_by_line(old: str, new: str) -> None:
    refused = broken(old, new)
    first = line_with(old.splitlines()[0])
    assert refused.code is ProblemCode.INPUT_INVALID
    assert refused.extras["file"] == "plugin.yaml"
    assert refused.extras["line"] in range(first, first + 2 + new.count("\n"))
    assert "SECRET" not in refused.detail


@pytest.mark.parametrize("field", ["name", "version", "description", "instructions"])
def test_a_missing_field_is_named(field: str) -> None:
    manifest = "\n".join(line for line in MANIFEST.splitlines() if not line.startswith(f"{field}:"))
    assert refusal({**FILES, "plugin.yaml": manifest}).detail == f"plugin.yaml:1: {field}: Field required."


@pytest.mark.parametrize("field", ["description", "effect", "input_schema"])
def test_a_missing_field_of_a_tool_is_named(field: str) -> None:
    lines = MANIFEST.splitlines()
    lines.remove(next(line for line in lines if line.startswith(f"    {field}:")))
    refused = refusal({**FILES, "plugin.yaml": "\n".join(lines)})
    assert refused.detail.endswith(f": tools.0.{field}: Field required.")


@pytest.mark.parametrize(
    "path",
    [
        "refunds", "/a/../b", "/./a", "//a", "/a//b", "/a?b=1", "/a#b", "/a%2e", "/a b", "/é", "/{x}", "/{", "/{}",
        "/a\\b",
    ],
)  # fmt: skip
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    refused = broken("path: /refunds}\n    approval", f"path: '{path}'}}\n    approval")
    assert "tools.1.http.path: " in refused.detail


@pytest.mark.parametrize(
    "path", ["/", "/refunds/", "/{invoice}", "/a/{invoice}.json", "/a:b@c/{invoice}/{amount_cents}"]
)
def test_an_ordinary_path_is_taken(path: str) -> None:
    manifest = MANIFEST.replace("path: /refunds}\n    approval", f"path: '{path}'}}\n    approval")
    assert parse_bundle({**FILES, "plugin.yaml": manifest})


def test_a_tool_has_exactly_one_kind() -> None:
    call = "    http: {connection: shop, method: POST, path: /refunds}\n"
    assert "exactly one of http, mcp, python" in broken(call, "").detail
    assert "exactly one of http, mcp, python" in broken(call, call + "    python: refund\n").detail


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        (("other", "other"), "twice"),
        (("support-refund",), "itself"),
    ],
)
def test_a_plugin_pins_each_other_plugin_once(pins: tuple[str, ...], named: str) -> None:
    listed = "".join(f"\n  - {{plugin: {pin}, version: '1', digest: 'sha256:{'0' * 64}'}}" for pin in pins)
    refused = broken("services: [shop]", f"services: [shop]\ndependencies:{listed}")
    assert refused.code is ProblemCode.INPUT_INVALID
    assert named in refused.detail
    assert refused.extras["line"] == line_with("services: [shop]") + 1 + len(pins)


@pytest.mark.parametrize("kind", ["python: refund", "mcp: {connection: shop, tool: refund}"])
def test_every_kind_of_tool_is_taken(kind: str) -> None:
    http = "    http: {connection: shop, method: POST, path: /refunds}"
    assert parse_bundle({**FILES, "plugin.yaml": MANIFEST.replace(http, f"    {kind}")})


def test_only_an_http_tool_answers_by_a_callback() -> None:
    http = "    http: {connection: shop, method: POST, path: /refunds}"
    later = "\n    callback: {expires_in_seconds: 60}"
    bundle = parse_bundle({**FILES, "plugin.yaml": MANIFEST.replace(http, http + later)})
    tool = bundle.manifest.tool("refunds.create")
    assert tool is not None
    assert tool.callback is not None
    refused = broken(http, f"    python: refund{later}")
    assert "Only an http tool answers by a callback." in refused.detail


def test_an_mcp_tool_names_one_of_the_services() -> None:
    http = "    http: {connection: shop, method: POST, path: /refunds}"
    refused = broken(http, "    mcp: {connection: elsewhere, tool: refund}")
    assert "tools.1.mcp.connection" in refused.detail
    assert refused.extras["line"] == line_with(http)


def test_what_a_result_must_fit_is_a_schema() -> None:
    refused = broken("    hidden: true", "    hidden: true\n    output_schema: {type: 5}")
    assert "output_schema" in refused.detail


def test_absent_fields_have_their_documented_meaning() -> None:
    manifest = 'name: p\nversion: "1"\ndescription: d\ninstructions: instructions.md\nskills:\nlimits: null\n'
    bundle = parse_bundle({"plugin.yaml": manifest, "instructions.md": ""})
    parsed = bundle.manifest
    assert (parsed.skills, parsed.services, parsed.tools, parsed.policy) == ((), (), (), None)
    assert (parsed.offload, parsed.input_schema, parsed.output_schema) == ("allowed", None, None)
    limits = parsed.effective_limits
    assert (limits.max_steps, limits.max_duration_seconds, limits.max_tokens) == (1000, 86_400, 2_000_000)
    assert limits.max_cost_usd is None
    tool = sound_bundle().manifest.tools[0]
    assert (tool.timeout_seconds, tool.hidden, tool.reconcile) == (30, False, None)
    assert (tool.approval.groups, tool.approval.quorum, tool.approval.expires_in_seconds) == ((), 1, None)
