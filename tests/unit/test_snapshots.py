"""A snapshot is what its digests say each time it is loaded, whatever this process read or wrote a moment before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.blobs import Blobs
from gateway.bundles import Bundle, parse_bundle
from gateway.snapshots import Snapshot, SnapshotMismatch, Snapshots
from workflows.contract.ids import Digest, Workspace

DEMO = Workspace("demo")


def bundle(name: str, *pins: Bundle) -> Bundle:
    pinned = "".join(
        f"\n  - {{plugin: {pin.manifest.name}, version: '{pin.manifest.version}', digest: '{pin.digest}'}}"
        for pin in pins
    )
    manifest = f"name: {name}\nversion: '1'\ndescription: d\ninstructions: i.md\ndependencies:{pinned or ' []'}\n"
    return parse_bundle({"plugin.yaml": manifest, "i.md": name, "script.yaml": "- final: {}\n"})


async def stored(snapshots: Snapshots, dependency: Bundle) -> Digest:
    plugin = bundle("own", dependency)
    await snapshots.put_bundle(DEMO, dependency)
    await snapshots.put_bundle(DEMO, plugin)
    deployed = await snapshots.put_deployment(DEMO, {"plugin": "own", "model": "scripted:script.yaml"})
    return await snapshots.put(DEMO, plugin.digest, deployed)


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(Blobs.open(tmp_path.as_uri()))


def alter(blob: Path) -> None:
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")


def every_blob(folder: Path, snapshot: Snapshot) -> list[Path]:
    return [folder / DEMO / ref.removeprefix("sha256:") for ref in snapshot.refs]


async def test_a_snapshot_consists_of_pair_deployment_bundle_and_pins(snapshots: Snapshots, tmp_path: Path) -> None:
    snapshot = await snapshots.load(DEMO, await stored(snapshots, bundle("pinned")))
    held = set((tmp_path / DEMO).iterdir())
    assert set(every_blob(tmp_path, snapshot)) == held
    assert [pin.manifest.name for pin in snapshot.dependencies] == ["pinned"]


@pytest.mark.parametrize("damage", [alter, Path.unlink])
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded before", "written before"])
async def test_damage_to_any_blob_is_seen_at_the_very_next_load(
    snapshots: Snapshots, tmp_path: Path, damage: Callable[[Path], None], loaded: bool
) -> None:
    digest = await stored(snapshots, bundle("pinned"))
    blobs = every_blob(tmp_path, await Snapshots(Blobs.open(tmp_path.as_uri())).load(DEMO, digest))
    for blob in blobs:
        sound = blob.read_bytes()
        if loaded:
            await snapshots.load(DEMO, digest)
        damage(blob)
        with pytest.raises(SnapshotMismatch):
            await snapshots.load(DEMO, digest)
        blob.write_bytes(sound)
    await snapshots.load(DEMO, digest)


async def test_a_pin_that_is_another_plugin_than_it_says_makes_no_snapshot(snapshots: Snapshots) -> None:
    """Publishing refuses it; whoever wrote the blobs by hand gets no further."""
    pinned = bundle("pinned")
    files = bundle("own", pinned).files
    plugin = parse_bundle({**files, "plugin.yaml": files["plugin.yaml"].replace("plugin: pinned", "plugin: other")})
    await snapshots.put_bundle(DEMO, pinned)
    await snapshots.put_bundle(DEMO, plugin)
    deployed = await snapshots.put_deployment(DEMO, {"plugin": "own", "model": "scripted:script.yaml"})
    with pytest.raises(SnapshotMismatch):
        await snapshots.load(DEMO, await snapshots.put(DEMO, plugin.digest, deployed))
