"""What the parts of a bundle owe each other, as one ordered list: read RULES and know what publishing refuses.

A rule yields faults as (path in plugin.yaml, sentence) and changes nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from pydantic import JsonValue

from gateway.manifest import BUILT_IN, Manifest, Tool
from gateway.schemas import SchemaInvalid, check_schema, validate
from gateway.shapes import place
from gateway.strictyaml import Document, Path
from gateway.templates import TemplateInvalid, check_template, names_in

Files = Mapping[str, str]
Fault = tuple[Path, str]
Rule = Callable[[Manifest, Files], Iterator[Fault]]

_LITERAL = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/-]*")
_FIELD = re.compile(r"\{[^{}/]+\}")
_SAMPLE_EFFECT: dict[str, JsonValue] = {"effect_id": "eff_" + "0" * 32}


def check_manifest(manifest: Manifest, document: Document, files: Files) -> None:
    """Raises Refused for the first broken rule, with file and line."""
    for rule in RULES:
        for path, sentence in rule(manifest, files):
            raise document.fault(path, f"{place(path)}: {sentence}")


def _files_exist(manifest: Manifest, files: Files) -> Iterator[Fault]:
    named: list[tuple[Path, str | None]] = [(("instructions",), manifest.instructions), (("policy",), manifest.policy)]
    named += [(("skills", index), skill) for index, skill in enumerate(manifest.skills)]
    for path, name in named:
        if name is not None and name not in files:
            yield path, "The bundle has no such file."


def _names_are_unique(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, tool in enumerate(manifest.tools):
        if tool.name in seen:
            yield ("tools", index, "name"), "Another tool has this name."
        if tool.name in BUILT_IN:
            yield ("tools", index, "name"), "This name is built in."
        seen.add(tool.name)
    for field in ("services", "skills", "requires"):
        values = cast("tuple[str, ...]", getattr(manifest, field))
        for index, value in enumerate(values):
            if value in values[:index]:
                yield (field, index), "This entry stands twice."


def _one_kind(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        if sum(kind is not None for kind in (tool.http, tool.mcp, tool.python)) != 1:
            yield ("tools", index), "A tool has exactly one of http, mcp, python."


def _schemas(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    schemas: list[tuple[Path, JsonValue]] = [
        (("input_schema",), manifest.input_schema),
        (("output_schema",), manifest.output_schema),
    ]
    for index, tool in enumerate(manifest.tools):
        schemas.append((("tools", index, "input_schema"), tool.input_schema))
        schemas.append((("tools", index, "output_schema"), tool.output_schema))
    for path, schema in schemas:
        if schema is None:
            continue
        try:
            check_schema(schema)
        except SchemaInvalid as broken:
            yield (*path, *broken.path), str(broken)
    for index, tool in enumerate(manifest.tools):
        if tool.input_schema.get("type", "object") != "object":
            yield ("tools", index, "input_schema", "type"), "The arguments of a tool are an object."


def _connections_are_services(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        kind = "http" if tool.http else "mcp"
        call = tool.http or tool.mcp
        if call is not None and call.connection not in manifest.services:
            yield ("tools", index, kind, "connection"), "This connection is not one of the services."


def _paths(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        if tool.http is not None and (sentence := _path_fault(tool.http.path, tool)):
            yield ("tools", index, "http", "path"), sentence


def _path_fault(path: str, tool: Tool) -> str | None:
    if not path.startswith("/"):
        return "A path starts with a slash."
    if not _LITERAL.fullmatch(_FIELD.sub("", path)):
        return "A path holds unreserved characters and {argument} only: no query, fragment or percent sign."
    segments = path.split("/")[1:]
    if any(segment in (".", "..") for segment in segments) or "" in segments[:-1]:
        return "A path has no empty and no dot segments."
    if not names_in(path) <= tool.arguments:
        return "Braces must hold the name of a top-level argument of the input_schema."
    return None


def _templates(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        texts: list[tuple[Path, str | None]] = [(("event",), tool.event), (("approval", "title"), tool.approval.title)]
        for path, template in texts:
            try:
                check_template(template or "", tool.arguments)
            except TemplateInvalid as broken:
                yield ("tools", index, *path), str(broken)


def _reconcile(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        if tool.reconcile is None:
            continue
        path: Path = ("tools", index, "reconcile")
        target = manifest.tool(tool.reconcile)
        if tool.effect == "read":
            yield path, "Only a write is reconciled."
        elif target is None or target.effect != "read":
            yield path, "A write is reconciled by a read tool of this plugin."
        elif validate(target.input_schema, _SAMPLE_EFFECT):
            yield path, 'The reconciling tool must take {"effect_id"} alone.'


def _dependencies(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    """What the files alone can tell; whether a pin names what is published: gateway/dependencies.py."""
    named = [pin.plugin for pin in manifest.dependencies]
    for index, plugin in enumerate(named):
        if plugin == manifest.name:
            yield ("dependencies", index, "plugin"), "A plugin does not depend on itself."
        if plugin in named[:index]:
            yield ("dependencies", index, "plugin"), "This plugin is pinned twice."


def _callbacks(manifest: Manifest, _files: Files) -> Iterator[Fault]:
    for index, tool in enumerate(manifest.tools):
        if tool.callback is not None and tool.http is None:
            yield ("tools", index, "callback"), "Only an http tool answers by a callback."


RULES: tuple[Rule, ...] = (
    _files_exist,
    _names_are_unique,
    _one_kind,
    _schemas,
    _connections_are_services,
    _paths,
    _templates,
    _reconcile,
    _dependencies,
    _callbacks,
)
