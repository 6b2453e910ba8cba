"""Test plugins: tools that point at the effect log, any script, published and promoted to live over HTTP.

It speaks the operator's part of api.md and keeps the shape of `plugin.yaml` and `deployment.yaml` in one place.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.rig.client import Client, Json

ANY_OBJECT: Json = {"type": "object"}
ALLOW_ALL = "permit (principal, action, resource);\n"
ASK_ALL = 'permit (principal, action == Action::"call", resource);\n'
CREDENTIAL: Json = {"ref": "env:TOOL_TOKEN", "header": "Authorization", "prefix": "Bearer "}
CONNECTION = "tools"


def tool(name: str, effect: str = "read", *, method: str | None = None, path: str | None = None, **more: Any) -> Json:
    """A tool at the effect log's `/tool/{name}`: GET for a read, else POST. `more`: further members of the tool."""
    verb = method or ("GET" if effect == "read" else "POST")
    return {
        "name": name,
        "description": f"The test tool {name}.",
        "effect": effect,
        "input_schema": ANY_OBJECT,
        "http": {"connection": CONNECTION, "method": verb, "path": path or f"/tool/{name}"},
        **more,
    }


def call(name: str, args: Json | None = None, *, when: str | None = None) -> Json:
    """One call of a script's turn."""
    return {"tool": name, "args": args or {}, **({"when": when} if when is not None else {})}


def turn(*calls: Json, say: str | None = None, **more: Any) -> Json:
    """One entry of a script that calls tools."""
    return {**({"say": say} if say is not None else {}), "calls": list(calls), **more}


def final(value: Any = None, **more: Any) -> Json:
    """The entry that ends the job with a result."""
    return {"final": {"message": "Done."} if value is None else value, **more}


async def publish_plugin(
    operator: Client,
    name: str,
    script: Sequence[Json],
    *,
    tools: Sequence[Json] = (),
    tools_url: str = "",
    policy: str | None = None,
    limits: Mapping[str, Any] | None = None,
    version: str = "1.0.0",
    files: Mapping[str, str] | None = None,
    manifest: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
    phase: str | None = "live",
) -> Json:
    """Publishes, deploys, releases and (by break-glass) promotes; the answer to the publication.

    `tools_url` is the effect log's. `manifest` and `deployment` replace members of plugin.yaml and deployment.yaml,
    `files` adds files of the bundle. `phase` None leaves the version where publishing puts it.
    """
    connections = [CONNECTION] if tools_url else []
    plugin: Json = {
        "name": name,
        "version": version,
        "description": f"The test plugin {name}.",
        "instructions": "instructions.md",
        "services": connections,
        "tools": list(tools),
        **({"limits": dict(limits)} if limits is not None else {}),
        **({"policy": "policy.cedar"} if policy is not None else {}),
        **(manifest or {}),
    }
    bundle = {
        "plugin.yaml": _yaml(plugin),
        "instructions.md": "Do what the script says.\n",
        "script.yaml": _yaml(list(script)),
        **({"policy.cedar": policy} if policy is not None else {}),
        **(files or {}),
    }
    bound = {CONNECTION: {"base_url": tools_url, "allow_private": True, "credential": CREDENTIAL}}
    deployed: Json = {
        "plugin": name,
        "model": "scripted:script.yaml",
        "connections": bound if tools_url else {},
        **(deployment or {}),
    }
    published = await operator.post("/v1/plugins", {"files": bundle}, expect=201)
    await operator.put(f"/v1/plugins/{name}/deployment", deployed)
    await operator.put(f"/v1/plugins/{name}/release", {"version": version})
    if phase is not None:
        await promote(operator, name, version, to=phase)
    return published


async def promote(operator: Client, name: str, version: str, *, to: str = "live") -> Json:
    """A break-glass promotion, done at once."""
    order = {"to": to, "break_glass": {"reason": "a test"}}
    return await operator.post(f"/v1/plugins/{name}/versions/{version}/promotions", order, expect=201)


def _yaml(value: Any) -> str:
    """JSON is YAML, and without anchors, which a bundle may not hold."""
    return json.dumps(value, ensure_ascii=False, indent=1)


_numbers = itertools.count(1)


def fresh_name(word: str = "plugin") -> str:
    """A plugin name that no other test of this run uses."""
    return f"{word}-{next(_numbers)}"
