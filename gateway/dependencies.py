"""Pinned dependencies: skills of other plugins of the workspace, each by name, version and exact digest.

Publishing judges the pins against what is published; from then on the plugin's own digest covers them, and a snapshot
holds their bundles. Pins are flat: a plugin with dependencies of its own is not pinned, so what a model reads is what
plugin.yaml names, and a digest can not be in its own content.
"""

from sqlalchemy import Connection

from gateway.bundles import MANIFEST_FILE, Bundle
from gateway.ledger.catalog import PluginVersionRow, find_plugin_version
from gateway.manifest import Dependency, Manifest
from gateway.strictyaml import load_yaml
from workflows.contract.ids import Workspace


def check_dependencies(conn: Connection, workspace: Workspace, bundle: Bundle) -> None:
    """Raises Refused(INPUT_INVALID) with file and line for the first pin that names nothing publishable."""
    for index, pin in enumerate(bundle.manifest.dependencies):
        field, rule = _fault(find_plugin_version(conn, workspace, pin.plugin, pin.version), pin)
        if rule:
            document = load_yaml(bundle.files[MANIFEST_FILE], MANIFEST_FILE)
            raise document.fault(("dependencies", index, field), f"dependencies.{index}.{field}: {rule}")


def dependency_withdrawn(conn: Connection, workspace: Workspace, manifest: Manifest) -> bool:
    """Whether a pinned version was withdrawn since, so that nothing new may run on it."""
    rows = [find_plugin_version(conn, workspace, pin.plugin, pin.version) for pin in manifest.dependencies]
    return any(row is not None and row.withdrawn_at is not None for row in rows)


def _fault(row: PluginVersionRow | None, pin: Dependency) -> tuple[str, str]:
    if row is None:
        return "version", "This workspace has no such plugin or version."
    if row.digest != pin.digest:
        return "digest", "The published version has another digest."
    if row.withdrawn_at is not None:
        return "version", "This version was withdrawn."
    if row.manifest.get("dependencies"):
        return "plugin", "This plugin has dependencies of its own; pins are flat."
    return "", ""
