"""Operators publish, deploy, release and promote: what is made, what is refused where, and what stays as it was."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tests.http.submissions import CANARY, refused
from tests.rig.client import Client
from tests.rig.plugins import fresh_name


def files_of(name: str, *, version: str = "1.0.0", **changed: str) -> dict[str, str]:
    """A sound bundle as lines, so that a fault has a line; keywords replace files, `_` for `.`."""
    manifest = f'name: {name}\nversion: "{version}"\ndescription: x\ninstructions: instructions.md\n'
    files = {"plugin.yaml": manifest, "instructions.md": "x", "script.yaml": "- final: {message: done}\n"}
    return {**files, **{path.replace("_", "."): text for path, text in changed.items()}}


async def publish(operator: Client, files: Any) -> Any:
    return await operator.http.post("/v1/plugins", json={"files": files})


# ---- publishing


async def test_publishing_makes_repeats_and_refuses_other_content(operator: Client) -> None:
    name = fresh_name("op-publish")
    first = await publish(operator, files_of(name))
    assert first.status_code == 201
    made = first.json()
    assert (made["name"], made["version"]) == (name, "1.0.0")
    again = await publish(operator, files_of(name))
    assert (again.status_code, again.json()) == (200, made)
    refused(await publish(operator, files_of(name, instructions_md="y")), 409, "version-exists")
    second = await publish(operator, files_of(name, version="1.1.0"))
    assert second.status_code == 201
    listed = (await operator.get(f"/v1/plugins/{name}/versions"))["data"]
    assert [(row["version"], row["digest"], row["phase"], row["published_by"]) for row in listed] == [
        ("1.0.0", made["digest"], "blocked_noop", "operator"),
        ("1.1.0", second.json()["digest"], "blocked_noop", "operator"),
    ]


async def test_burst_of_publications_makes_one_version(operator: Client) -> None:
    name = fresh_name("op-burst")
    texts = [f"{n % 4}" for n in range(12)]
    answers = await asyncio.gather(*(publish(operator, files_of(name, instructions_md=text)) for text in texts))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 2, 409: 9}
    assert len((await operator.get(f"/v1/plugins/{name}/versions"))["data"]) == 1


MANIFEST = 'name: {name}\nversion: "1.0.0"\ndescription: x\ninstructions: instructions.md\n'
TOOL = (
    "services: [shop]\ntools:\n  - name: a\n    description: x\n    effect: read\n    input_schema: {{}}\n"
    "    http: {{connection: shop, method: GET, path: /a}}\n"
)
FAULTS: dict[str, tuple[dict[str, str], str, int | None]] = {
    "yaml": ({"plugin_yaml": MANIFEST + f"x: [{CANARY}\n"}, "plugin.yaml", 6),
    "unknown field": ({"plugin_yaml": MANIFEST + f"{CANARY}: 1\n"}, "plugin.yaml", 5),
    "duplicate key": ({"plugin_yaml": MANIFEST + "description: y\n"}, "plugin.yaml", 5),
    "version as a number": ({"plugin_yaml": MANIFEST.replace('"1.0.0"', "1.0")}, "plugin.yaml", 2),
    "missing file": ({"plugin_yaml": MANIFEST + f"policy: {CANARY}.cedar\n"}, "plugin.yaml", 5),
    "effect": ({"plugin_yaml": MANIFEST + TOOL.replace("read", CANARY)}, "plugin.yaml", 9),
    "no kind": ({"plugin_yaml": MANIFEST + TOOL.rpartition("    http")[0]}, "plugin.yaml", 7),
    "policy does not parse": (
        {"plugin_yaml": MANIFEST + "policy: p.cedar\n", "p_cedar": f"permit (\n{CANARY} {CANARY});\n"},
        "p.cedar",
        2,
    ),
    "policy names an unknown tool": (
        {
            "plugin_yaml": MANIFEST + "policy: p.cedar\n" + TOOL,
            "p_cedar": f'// x\npermit (principal, action, resource == Tool::"{CANARY}");\n',
        },
        "p.cedar",
        2,
    ),
    "schema": ({"plugin_yaml": MANIFEST + f"input_schema:\n  type: {CANARY}\n"}, "plugin.yaml", 6),
    "title names an unknown argument": (
        {"plugin_yaml": MANIFEST + TOOL + f'    event: "x {{{{{CANARY}}}}}"\n'},
        "plugin.yaml",
        12,
    ),
}


@pytest.mark.parametrize(("changed", "file", "line"), FAULTS.values(), ids=FAULTS)
async def test_fault_of_a_bundle_names_file_and_line(
    operator: Client, changed: dict[str, str], file: str, line: int | None
) -> None:
    name = fresh_name("op-fault")
    files = files_of(name, **{path: text.replace("{name}", name) for path, text in changed.items()})
    files["plugin.yaml"] = files["plugin.yaml"].replace("{{", "{").replace("}}", "}")
    document = refused(await publish(operator, files), 422, "input-invalid")
    assert (document["file"], document["line"]) == (file, line)
    assert document["detail"].startswith(f"{file}:{line}: ")
    refused(await operator.http.get(f"/v1/plugins/{name}/versions"), 404, "plugin-unknown")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"files": {}},
        {"files": []},
        {"files": {"plugin.yaml": 1}},
        {"files": {}, CANARY: 1},
        [],
        {"files": {"a": "x"}},
    ],
    ids=repr,
)
async def test_what_is_not_a_bundle_is_input_invalid(operator: Client, body: Any) -> None:
    refused(await operator.http.post("/v1/plugins", json=body), 422, "input-invalid")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a//x", "a b", "ä", "", ".", "a\\b", "x" * 201, CANARY + "?"])
async def test_path_of_a_file_is_bounded(operator: Client, path: str) -> None:
    refused(await publish(operator, {**files_of(fresh_name("op-path")), path: CANARY}), 422, "input-invalid")


async def test_size_of_a_bundle_is_bounded(operator: Client) -> None:
    name = fresh_name("op-size")
    refused(await publish(operator, files_of(name, notes_md="x" * (1 << 20))), 413, "payload-too-large")
    refused(await publish(operator, files_of(name, notes_md="x" * (3 << 20))), 413, "payload-too-large")
    many = {f"f{number}": "" for number in range(198)}
    refused(await publish(operator, {**files_of(name), **many}), 422, "input-invalid")
    big = files_of(name, notes_md="\x01" * (1 << 18))  # each sign is six bytes of JSON
    assert (await publish(operator, {**big, **dict(list(many.items())[:196])})).status_code == 201


# ---- deploying and releasing


async def test_deployment_counts_revisions_of_content(operator: Client) -> None:
    name = fresh_name("op-deploy")
    url, sound = f"/v1/plugins/{name}/deployment", {"plugin": name, "model": "scripted:script.yaml"}
    refused(await operator.http.put(url, json=sound), 404, "plugin-unknown")
    await publish(operator, files_of(name))
    first = await operator.put(url, sound)
    assert (first["plugin"], first["revision"]) == (name, 1)
    assert await operator.put(url, sound) == first
    second = await operator.put(url, {**sound, "limits": {"max_steps": 5}})
    assert second["revision"] == 2
    assert second["digest"] != first["digest"]
    faults: list[Any] = [
        {**sound, CANARY: 1},
        {**sound, "plugin": "another"},
        {**sound, "model": CANARY},
        {**sound, "model": f"scripted:{CANARY}.yaml"},
        {**sound, "model": "openai:gpt-5"},
        {**sound, "limits": {"max_steps": 1001}},
        {**sound, "connections": {"x": {"base_url": f"ftp://{CANARY}"}}},
        {**sound, "connections": {"x": {"base_url": "http://h", "credential": {"ref": CANARY}}}},
        {},
        [],
    ]
    for broken in faults:
        refused(await operator.http.put(url, json=broken), 422, "input-invalid")
    # Nothing was added by what was refused.
    assert (await operator.put(url, {**sound, "limits": {"max_steps": 6}}))["revision"] == 3


async def test_release_is_compared_where_asked_and_keeps_its_history(operator: Client) -> None:
    name = fresh_name("op-release")
    url = f"/v1/plugins/{name}/release"
    for version in ("1.0.0", "1.1.0"):
        await publish(operator, files_of(name, version=version))
    refused(await operator.http.put(url, json={"version": "9.9.9"}), 404, "plugin-unknown")
    conflict = refused(
        await operator.http.put(url, json={"version": "1.0.0", "expected_current": "1.1.0"}), 409, "release-conflict"
    )
    assert conflict["current"] is None
    assert (await operator.get(f"/v1/plugins/{name}/releases"))["data"] == []
    made = await operator.put(url, {"version": "1.0.0"})
    assert made == {"plugin": name, "version": "1.0.0", "previous": None, "revision": 1}
    made = await operator.put(url, {"version": "1.1.0", "expected_current": "1.0.0"})
    assert (made["previous"], made["revision"]) == ("1.0.0", 2)
    stale = {"version": "1.0.0", "expected_current": "1.0.0"}
    conflict = refused(await operator.http.put(url, json=stale), 409, "release-conflict")
    assert conflict["current"] == "1.1.0"
    back = await operator.put(url, {"version": "1.0.0", "expected_current": None})
    assert (back["previous"], back["revision"]) == ("1.1.0", 3)
    listed = (await operator.get(f"/v1/plugins/{name}/releases"))["data"]
    assert [(row["version"], row["previous"], row["revision"], row["by"]) for row in listed] == [
        ("1.0.0", "1.1.0", 3, "operator"),
        ("1.1.0", "1.0.0", 2, "operator"),
        ("1.0.0", None, 1, "operator"),
    ]


async def test_of_two_racing_releases_with_one_expectation_one_wins(operator: Client) -> None:
    name = fresh_name("op-race")
    for number in range(6):
        await publish(operator, files_of(name, version=f"1.{number}.0"))
    await operator.put(f"/v1/plugins/{name}/release", {"version": "1.0.0"})
    orders = [{"version": f"1.{number}.0", "expected_current": "1.0.0"} for number in range(1, 6)]
    answers = await asyncio.gather(*(operator.http.put(f"/v1/plugins/{name}/release", json=one) for one in orders))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 4}
    assert len((await operator.get(f"/v1/plugins/{name}/releases"))["data"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"version": 1},
        {"version": ""},
        {"version": None},
        {"version": "1.0.0", CANARY: 1},
        {"version": CANARY * 9},
        [],
    ],
    ids=repr,
)
async def test_what_is_not_a_release_is_input_invalid(operator: Client, body: Any) -> None:
    name = fresh_name("op-shape")
    await publish(operator, files_of(name))
    refused(await operator.http.put(f"/v1/plugins/{name}/release", json=body), 422, "input-invalid")


@pytest.mark.parametrize("name", ["no-such-plugin", "UPPER", "a.b", "x" * 61, "%20"])
async def test_unknown_plugin_is_unknown_everywhere(operator: Client, name: str) -> None:
    for method, path, body in (
        ("GET", "versions", None),
        ("PUT", "deployment", {"plugin": "x", "model": "scripted:s"}),
        ("PUT", "release", {"version": "1.0.0"}),
        ("POST", "versions/1.0.0/promotions", {"to": "live", "break_glass": {"reason": "a test"}}),
    ):
        response = await operator.http.request(method, f"/v1/plugins/{name}/{path}", json=body)
        refused(response, 404, "plugin-unknown")


async def test_operators_bodies_are_read_as_strictly(operator: Client) -> None:
    for path in ("/v1/plugins/x/release", "/v1/plugins/x/deployment"):
        for text in ("{", f'{{"version": "{CANARY}", "version": "1"}}', '{"version": NaN}', "[" * 100):
            headers = {"Content-Type": "application/json"}
            refused(await operator.http.put(path, content=text.encode(), headers=headers), 422, "input-invalid")
        refused(await operator.http.put(path, content=b"{}"), 415, "unsupported-media-type")
        big = json.dumps({"version": "1", "pad": CANARY * 20_000}).encode()
        response = await operator.http.put(path, content=big, headers={"Content-Type": "application/json"})
        refused(response, 413, "payload-too-large")
