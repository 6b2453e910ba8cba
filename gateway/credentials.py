"""Credentials at the last line: a reference becomes a `Secret` just before it is injected, and is scrubbed after.

References come from an allowlist only. Nothing here stores, logs or caches a value; `file:` is read again each time. A
`Scrubber` finds one call's secrets as they are and in the spellings an echo gives them: percent-encoded (also twice),
JSON-escaped (also nested), as HTML entities, in base64 at each of the three alignments, in hexadecimal. It does not
find what was encrypted, hashed, reversed or torn apart.
"""

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html.entities import codepoint2name
from pathlib import Path
from typing import NoReturn

from pydantic import JsonValue

from gateway.allowlist import CredentialPolicy
from gateway.telemetry import log
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Workspace

MASK = "[secret]"
SHORTEST_SECRET = 4
"""Characters; a shorter one would be found everywhere, so replies could not be scrubbed of it."""
LONGEST_SECRET = 16 * 1024
_PRINTABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class Secret:
    """A credential's value. It shows itself as `[secret]` and can not be copied out by pickling."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not leave the process")


def resolve_credential(
    policy: CredentialPolicy,
    ref: str,
    *,
    workspace: Workspace,
    base_url: str,
    environment: Mapping[str, str] = os.environ,
) -> Secret:
    """Raises StepError `rejected` for a reference that is not allowed here, has no value, or a value unfit for use."""
    try:
        return _resolved(policy, ref, workspace, base_url, environment)
    except StepError as error:
        log.warning("credential not usable", ref=ref, reason=error.detail)  # the app's answer never names it
        raise


def _resolved(
    policy: CredentialPolicy, ref: str, workspace: Workspace, base_url: str, environment: Mapping[str, str]
) -> Secret:
    refusal = policy.refusal(ref, workspace=workspace, base_url=base_url)
    if refusal is not None:
        raise StepError(StepCode.REJECTED, refusal)
    kind, _, name = ref.partition(":")
    value = environment.get(name) if kind == "env" else _file_text(Path(name))
    if not value:
        raise StepError(StepCode.REJECTED, "The credential has no value in this process.")
    if not SHORTEST_SECRET <= len(value) <= LONGEST_SECRET or not _PRINTABLE.fullmatch(value):
        raise StepError(
            StepCode.REJECTED,
            f"The credential is not one line of {SHORTEST_SECRET} to {LONGEST_SECRET} printable ASCII characters.",
        )
    return Secret(value)


def _file_text(path: Path) -> str | None:
    """The file's text without the line break that editors and `echo` leave at the end."""
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_SECRET + 3).decode("latin-1").removesuffix("\n").removesuffix("\r")
    except OSError:
        return None


class Scrubber:
    """Built from the secrets of one call and the header values they were injected as (prefix included)."""

    def __init__(self, secrets: Iterable[Secret], header_values: Iterable[str] = ()) -> None:
        known = {*(secret.reveal() for secret in secrets), *header_values}
        longest_first = sorted(known, key=lambda value: (-len(value), value))
        self._patterns = [
            re.compile(source)
            for spellings in (_spelled, _base64, _hexadecimal)
            for value in longest_first
            for source in spellings(value)
        ]

    def also(self, *secrets: Secret) -> "Scrubber":
        """One that finds these as well."""
        more = Scrubber(secrets)
        more._patterns[:0] = self._patterns
        return more

    def scrub_text(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(MASK, text)
        return text

    def scrub_bytes(self, data: bytes) -> bytes:
        """Bytes that are not UTF-8 stay as they are around what is replaced."""
        return self.scrub_text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def scrub_json(self, value: JsonValue) -> JsonValue:
        """Texts and keys at any depth; a number or constant whose digits hold a secret becomes a text."""
        if isinstance(value, str):
            return self.scrub_text(value)
        if isinstance(value, list):
            return [self.scrub_json(item) for item in value]
        if isinstance(value, dict):
            return {self.scrub_text(key): self.scrub_json(item) for key, item in value.items()}
        if value is None or isinstance(value, bool):
            return value
        written = str(value)
        scrubbed = self.scrub_text(written)
        return value if scrubbed == written else scrubbed

    def scrub_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {self.scrub_text(name): self.scrub_text(value) for name, value in headers.items()}


def _spelled(value: str) -> Sequence[str]:
    """Every branch of a character's pattern begins with a plain literal and is bounded: searching stays linear."""
    return ["".join(map(_character, value))]


def _character(char: str) -> str:
    code = ord(char)
    digits = _either_case(f"{code:02x}")
    branches = [
        re.escape(char),
        rf"\\\\{{0,3}}(?:{re.escape(char)}|u00{digits}|x{digits})",
        rf"%(?:25){{0,3}}{digits}",
        rf"&(?:#0{{0,4}}{code}|#[xX]0{{0,4}}{digits}|{codepoint2name.get(code, 'apos' if char == chr(39) else '#x')});",
    ]
    if char == " ":
        branches.append(r"\+")
    return f"(?:{'|'.join(branches)})"


def _base64(value: str) -> Sequence[str]:
    """The characters that depend on the value alone, plus the shared ones at either edge and the padding."""
    raw = value.encode()
    sources: list[str] = []
    for offset in range(3):
        skipped = -(-offset * 8 // 6)
        whole = (offset + len(raw)) * 8 // 6
        text = base64.b64encode(b"\0" * offset + raw).decode()[skipped:whole]
        core = "".join(f"(?:{_base64_character(char)})" for char in text)
        sources.append(f"{core}(?:[A-Za-z0-9+/_-](?==))?(?:=|%3[dD]){{0,2}}")
    return sources


def _base64_character(char: str) -> str:
    match char:
        case "+":
            return r"\+|-|%2[bB]"
        case "/":
            return r"/|_|%2[fF]|\\/"
        case _:
            return char


def _hexadecimal(value: str) -> Sequence[str]:
    return [_either_case(value.encode().hex())]


def _either_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)
