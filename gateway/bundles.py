"""A plugin's files as one content-addressed value: what was checked at publishing is what every later reader loads.

Digest = SHA-256 of RFC 8785 `{path: digest of the file's UTF-8 bytes}`, each digest written `sha256:<hex>`. This module
parses and verifies; storing bundles and knowing which one is current belong to gateway/plugins.py and the ledger.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationError

from gateway.cedar import PolicyInvalid, compile_policy
from gateway.manifest import Manifest
from gateway.rules import check_manifest
from gateway.shapes import Shape, shape_of
from gateway.strictjson import canonical, digest_of
from gateway.strictyaml import fault_in, load_yaml
from workflows.contract.errors import JobgateError, ProblemCode, Refused
from workflows.contract.ids import Digest, ToolName, sha256_of
from workflows.contract.job import EffectClass

MANIFEST_FILE = "plugin.yaml"
MAX_BYTES = 1024 * 1024
MAX_FILES = 200
MAX_PATH = 200

_PATH = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class DigestMismatch(JobgateError):
    """Stored bytes are not what their digest says, or this release can not read them; what follows is the caller's."""

    def __init__(self) -> None:
        super().__init__("snapshot_mismatch", "A stored bundle does not match its digest.")


PolicyCheck = Callable[[str, Mapping[ToolName, EffectClass]], object]
"""Takes the policy's text and the plugin's tools with their effects; raises PolicyInvalid."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """`blob` is the stored form; `load_bundle` gives back an equal bundle."""

    manifest: Manifest
    files: Mapping[str, str]
    digest: Digest
    blob: bytes


class _Stored(Shape):
    digest: str
    files: dict[str, str]


def parse_bundle(files: Mapping[str, str], check_policy: PolicyCheck = compile_policy) -> Bundle:
    """The bundle of `files`. Raises Refused: `payload-too-large`, or `input-invalid` with
    `file` and `line`."""
    _check_files(files)
    document = load_yaml(files[MANIFEST_FILE], MANIFEST_FILE)
    manifest = shape_of(Manifest, document)
    check_manifest(manifest, document, files)
    if manifest.policy is not None:
        try:
            check_policy(files[manifest.policy], manifest.effects)
        except PolicyInvalid as broken:
            raise fault_in(manifest.policy, broken.line, broken.reason) from None
    digest = bundle_digest(files)
    return Bundle(
        manifest=manifest,
        files=MappingProxyType(dict(files)),
        digest=digest,
        blob=canonical({"digest": digest, "files": dict(files)}),
    )


def load_bundle(blob: bytes, expected: Digest | None = None) -> Bundle:
    """A stored bundle again, with its digest computed anew. Raises DigestMismatch."""
    try:
        stored = _Stored.model_validate_json(blob)
    except ValidationError:
        raise DigestMismatch from None
    digest = bundle_digest(stored.files)
    if digest != stored.digest or digest != (expected or digest):
        raise DigestMismatch
    try:
        manifest = shape_of(Manifest, load_yaml(stored.files[MANIFEST_FILE], MANIFEST_FILE))
    except (KeyError, Refused):
        raise DigestMismatch from None
    return Bundle(manifest=manifest, files=MappingProxyType(stored.files), digest=digest, blob=blob)


def bundle_digest(files: Mapping[str, str]) -> Digest:
    return digest_of({path: sha256_of(text.encode()) for path, text in files.items()})


def snapshot_digest(plugin: Digest, deployment: Digest) -> Digest:
    """What a job is bound to: SHA-256 of RFC 8785 `{plugin, deployment}`."""
    return digest_of({"plugin": plugin, "deployment": deployment})


def _check_files(files: Mapping[str, str]) -> None:
    if len(files) > MAX_FILES:
        raise Refused(ProblemCode.INPUT_INVALID, f"A bundle has at most {MAX_FILES} files.")
    size = 0
    for path, text in files.items():
        if not _is_path(path):
            raise Refused(
                ProblemCode.INPUT_INVALID,
                f"A file's path is at most {MAX_PATH} of [A-Za-z0-9._/-], without empty and dot segments.",
            )
        try:
            size += len(path) + len(text.encode())
        except UnicodeEncodeError as broken:
            line = text.count("\n", 0, broken.start) + 1
            raise fault_in(path, line, "The file is not UTF-8.") from None
    if size > MAX_BYTES:
        raise Refused(ProblemCode.PAYLOAD_TOO_LARGE, "A bundle has at most 1 MiB.")
    if MANIFEST_FILE not in files:
        raise fault_in(MANIFEST_FILE, None, "The bundle has no such file.")


def _is_path(path: str) -> bool:
    return (
        len(path) <= MAX_PATH
        and _PATH.fullmatch(path) is not None
        and not any(segment in (".", "..") for segment in path.split("/"))
    )
