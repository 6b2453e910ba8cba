"""Pinned dependencies: skills of other plugins, exactly as they were pinned, and nothing else of them."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from tests.http.jobs import grant, plugin_of
from tests.rig.client import Client, Json, problem
from tests.rig.model_server import Completion, ModelServer
from tests.rig.plugins import final, fresh_name
from tests.rig.stack import SECRETS, Stack
from workflows.contract.ids import sha256_of

OTHER_DIGEST = sha256_of(b"another bundle")


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as server:
        yield server


def bundle(name: str, *pins: Json, skills: dict[str, str] | None = None, version: str = "1.0.0") -> Json:
    """A plugin of instructions, these skills and these pins; each pin stands on a line of its own."""
    listed = "".join(f"\n  - {json.dumps(pin)}" for pin in pins) or " []"
    files = {path: f"{text}\n" for path, text in (skills or {}).items()}
    manifest = (
        f'name: {name}\nversion: "{version}"\ndescription: A test.\ninstructions: instructions.md\n'
        f"skills: {json.dumps(list(files))}\ndependencies:{listed}\n"
    )
    return {"files": {"plugin.yaml": manifest, "instructions.md": f"I am {name}.\n", **files}}


async def pin_of(operator: Client, name: str, *pins: Json, **options: Any) -> Json:
    """A published plugin, as another one pins it."""
    made = await operator.post("/v1/plugins", bundle(name, *pins, **options), expect=201)
    return {"plugin": name, "version": made["version"], "digest": made["digest"]}


async def refused(operator: Client, *pins: Json) -> Json:
    answer = await operator.http.post("/v1/plugins", json=bundle(fresh_name("dependent"), *pins))
    assert problem(answer) == (422, "input-invalid"), answer.text
    return answer.json()


async def test_a_model_reads_its_own_skills_and_then_those_of_each_pin_in_order(
    stack: Stack, operator: Client, app: Client, model: ModelServer
) -> None:
    model.script(Completion(text="Understood."))
    first = await pin_of(operator, fresh_name("first"), skills={"b.md": "Skill B.", "a.md": "Skill A."})
    second = await pin_of(operator, fresh_name("second"), skills={"c.md": "Skill C."})
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    plugin = await plugin_of(
        stack,
        operator,
        [final()],
        manifest={"dependencies": [second, first], "skills": ["own.md"]},
        files={"own.md": "My own skill."},
        deployment={"model": "openai-chat:test-model", "model_connection": connection},
    )
    await app.until_ended(await app.accepted(plugin))
    instructions = model.requests[0].messages[0]["content"].split("\n\n")
    assert instructions == ["Do what the script says.", "My own skill.", "Skill C.", "Skill B.", "Skill A."]


async def test_a_job_keeps_the_skills_that_were_pinned(
    stack: Stack, operator: Client, app: Client, model: ModelServer
) -> None:
    model.script(Completion(text="Understood."))
    name = fresh_name("pinned")
    pin = await pin_of(operator, name, skills={"a.md": "The first wording."})
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    plugin = await plugin_of(
        stack,
        operator,
        [final()],
        manifest={"dependencies": [pin]},
        deployment={"model": "openai-chat:test-model", "model_connection": connection},
    )
    await pin_of(operator, name, version="2.0.0", skills={"a.md": "The second wording."})
    await app.until_ended(await app.accepted(plugin))
    assert model.requests[0].messages[0]["content"].endswith("The first wording.")


async def test_a_pin_that_names_nothing_published_is_refused_with_file_and_line(stack: Stack, operator: Client) -> None:
    good = await pin_of(operator, fresh_name("good"))
    named = {
        "no such plugin or version": {**good, "plugin": fresh_name("never")},
        "such plugin or version": {**good, "version": "9.9.9"},
        "another digest": {**good, "digest": OTHER_DIGEST},
    }
    for words, pin in named.items():
        for pins in ([pin], [good, pin] if pin["plugin"] != good["plugin"] else [pin]):
            fault = await refused(operator, *pins)
            assert words in fault["detail"]
            assert (fault["file"], fault["line"]) == ("plugin.yaml", 6 + len(pins))


async def test_a_pin_of_another_workspace_is_refused(stack: Stack, operator: Client) -> None:
    await grant(stack, "pins", "operator", "*")
    pin = await pin_of(stack.client("operator", workspace="pins"), fresh_name("foreign"))
    assert "no such plugin or version" in (await refused(operator, pin))["detail"]


async def test_pins_are_flat(stack: Stack, operator: Client) -> None:
    leaf = await pin_of(operator, fresh_name("leaf"))
    middle = await pin_of(operator, fresh_name("middle"), leaf)
    assert "dependencies of its own" in (await refused(operator, middle))["detail"]


async def test_a_withdrawn_pin_is_refused_and_what_is_published_stays(stack: Stack, operator: Client) -> None:
    pin = await pin_of(operator, fresh_name("withdrawn"))
    body = bundle(fresh_name("dependent"), pin)
    await operator.post("/v1/plugins", body, expect=201)
    path = f"/v1/plugins/{pin['plugin']}/versions/{pin['version']}/withdrawal"
    await operator.post(path, {"reason": "a test"})
    assert "withdrawn" in (await refused(operator, pin))["detail"]
    await operator.post("/v1/plugins", body, expect=200)


async def test_the_digest_covers_the_pin(stack: Stack, operator: Client) -> None:
    pins = [await pin_of(operator, fresh_name("leaf"), skills={"a.md": text}) for text in ("one", "two")]
    name = fresh_name("dependent")
    first = await operator.post("/v1/plugins", bundle(name, pins[0]), expect=201)
    answer = await operator.http.post("/v1/plugins", json=bundle(name, pins[1]))
    assert problem(answer) == (409, "version-exists")
    second = await operator.post("/v1/plugins", bundle(name, pins[1], version="2.0.0"), expect=201)
    assert first["digest"] != second["digest"]
