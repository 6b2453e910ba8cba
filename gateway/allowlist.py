"""Which credential references a workspace may use, and for which hosts: the allowlist.

A reference is a name (`env:NAME`, `file:/PATH`); no value is read here. Outside development nothing is allowed that is
not listed.
"""

import re
from pathlib import Path
from typing import Self

import httpx2
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.settings import Settings, SettingsInvalid
from workflows.contract.ids import Workspace

_REF = re.compile(r"(env):([A-Za-z_][A-Za-z0-9_]*)|(file):(/.+)", re.DOTALL)
_OWN = re.compile(r"JOBGATE_.*|TEMPORAL_.*|(.*_)?PROXY", re.IGNORECASE)


class CredentialEntry(BaseModel):
    """One allowed reference and where it may be used: names of workspaces, and hosts of base URLs, exactly."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ref: str
    workspaces: frozenset[Workspace] = Field(min_length=1)
    hosts: frozenset[str] = Field(min_length=1)


class CredentialPolicy(BaseModel):
    """The allowlist. In development every `env:` name but our own, Temporal's and proxies is allowed besides it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    development: bool = False
    entries: tuple[CredentialEntry, ...] = ()

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """The file that `JOBGATE_CREDENTIALS_FILE` names (`entries: [{ref, workspaces, hosts}]`), else no entries."""
        file: Path | None = settings.credentials_file
        if file is None:
            return cls(development=settings.development)
        try:
            listed = yaml.safe_load(file.read_text(encoding="utf-8"))
            return cls.model_validate({"development": settings.development, **listed})
        except (OSError, TypeError, ValidationError, yaml.YAMLError, UnicodeDecodeError):
            raise SettingsInvalid(f"{file} is not a list of credential references") from None

    def refusal(self, ref: str, *, workspace: Workspace, base_url: str) -> str | None:
        """Why this reference may not be used for this base URL, as a fixed sentence; None where it may. Pure."""
        matched = _REF.fullmatch(ref)
        if matched is None:
            return "A credential reference is env:NAME or file:/absolute/path."
        host = _host(base_url)
        if host is None:
            return "The connection's base_url is not an http or https URL."
        named = [entry for entry in self.entries if entry.ref == ref]
        if any(workspace in entry.workspaces and host in map(_folded, entry.hosts) for entry in named):
            return None
        if named:
            return "The credential reference is not allowed for this workspace and host."
        if self.development and matched[1] and not _OWN.fullmatch(matched[2]):
            return None
        return "The credential reference is not on the allowlist."


def _host(base_url: str) -> str | None:
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, ValueError):
        return None
    return _folded(url.raw_host.decode("ascii")) if url.scheme in ("http", "https") and url.raw_host else None


def _folded(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")
