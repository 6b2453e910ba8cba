"""Blobs: what comes back is what was put there, or nothing does."""

from pathlib import Path

import pytest

from gateway.blobs import BlobCorrupt, BlobMissing, Blobs, upload_folder
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import BlobRef, Digest, Workspace, sha256_of

DEMO = Workspace("demo")
OTHER = Workspace("other")
TEXT = b"an invoice"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a folder" / "blobs"


@pytest.fixture
def blobs(folder: Path) -> Blobs:
    return Blobs.open(folder.as_uri())


def file_of(folder: Path, data: bytes) -> Path:
    return folder / DEMO / sha256_of(data).removeprefix("sha256:")


@pytest.mark.parametrize("data", [b"", TEXT, b"\x00\xff" * 10, b"x" * 3_000_000])
async def test_a_blob_is_named_by_its_digest_and_comes_back_whole(folder: Path, data: bytes) -> None:
    digest = await Blobs.open(folder.as_uri()).put(DEMO, data)
    assert digest == sha256_of(data)
    assert await Blobs.open(folder.as_uri()).get(DEMO, digest) == data


async def test_putting_it_again_leaves_the_first_as_it_is(blobs: Blobs, folder: Path) -> None:
    await blobs.put(DEMO, TEXT)
    first = file_of(folder, TEXT).stat()
    await blobs.put(DEMO, TEXT)
    assert file_of(folder, TEXT).stat() == first


async def test_a_workspace_sees_only_its_own(blobs: Blobs) -> None:
    digest = await blobs.put(DEMO, TEXT)
    assert await blobs.exists(DEMO, digest)
    assert not await blobs.exists(OTHER, digest)
    with pytest.raises(BlobMissing):
        await blobs.get(OTHER, digest)


async def test_changed_bytes_are_never_returned(blobs: Blobs, folder: Path) -> None:
    digest = await blobs.put(DEMO, TEXT)
    file_of(folder, TEXT).write_bytes(b"another invoice")
    with pytest.raises(BlobCorrupt):
        await Blobs.open(folder.as_uri()).get(DEMO, digest)


@pytest.mark.parametrize(
    ("workspace", "digest"),
    [("demo", "sha256:" + "0" * 64), ("demo", "../../etc/passwd"), ("..", "sha256:" + "0" * 64), ("demo", "")],
)
async def test_what_is_not_there_is_missing_whatever_its_name(blobs: Blobs, workspace: str, digest: str) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get(Workspace(workspace), Digest(digest))


async def test_verified_bytes_are_kept_within_the_bound_and_the_oldest_goes_first(folder: Path) -> None:
    blobs = Blobs.open(folder.as_uri(), cache_bytes=250)
    texts = [bytes([number]) * 100 for number in range(3)]
    digests = [await blobs.put(DEMO, text) for text in texts]
    for text in texts:
        file_of(folder, text).unlink()
    assert [await blobs.get(DEMO, digest) for digest in digests[1:]] == texts[1:]
    with pytest.raises(BlobMissing):
        await blobs.get(DEMO, digests[0])


async def test_a_large_blob_is_not_kept_in_memory(blobs: Blobs, folder: Path) -> None:
    large = b"x" * (1024 * 1024)
    digest = await blobs.put(DEMO, large)
    file_of(folder, large).unlink()
    with pytest.raises(BlobMissing):
        await blobs.get(DEMO, digest)


def break_store(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("not a folder any more")


async def test_a_store_in_trouble_is_unavailable(blobs: Blobs, folder: Path) -> None:
    break_store(folder)
    absent = sha256_of(b"absent")
    for call in (blobs.put(DEMO, TEXT), blobs.get(DEMO, absent), blobs.exists(DEMO, absent)):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.code == ProblemCode.BLOBS_UNAVAILABLE
        assert str(folder) not in str(refused.value)


def take_away(folder: Path, left: str) -> Path:
    away = folder.rename(folder.with_name("away"))
    if left == "an empty folder":
        folder.mkdir()
    return away


def bring_back(folder: Path, away: Path) -> None:
    """Raises where something was written in its place."""
    if folder.exists():
        folder.rmdir()
    away.rename(folder)


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
async def test_a_folder_that_is_gone_has_no_missing_blobs_and_takes_none(blobs: Blobs, folder: Path, left: str) -> None:
    """A mount that went away. It comes back with all that it had."""
    digest = await blobs.put(DEMO, TEXT)
    fresh = Blobs.open(folder.as_uri(), cache_bytes=0)
    assert await fresh.get(DEMO, digest) == TEXT
    await fresh.reachable()
    away = take_away(folder, left)
    absent = sha256_of(b"absent")
    upload = BlobRef(f"{upload_folder('art_1')}/{absent}")
    for call in (
        *(fresh.get(DEMO, digest), fresh.get(DEMO, absent), fresh.exists(DEMO, absent), fresh.check(DEMO, upload)),
        *(fresh.put(DEMO, b"new"), fresh.store(DEMO, upload, b"new", {}), fresh.mend(DEMO, TEXT), fresh.reachable()),
        fresh.erase(DEMO, upload_folder("art_1")),
    ):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.code == ProblemCode.BLOBS_UNAVAILABLE
    with pytest.raises(Refused):
        fresh.stamps(DEMO, [digest])
    bring_back(folder, away)
    await fresh.reachable()
    assert await fresh.get(DEMO, digest) == TEXT
    with pytest.raises(BlobMissing):
        await fresh.get(DEMO, absent)


@pytest.mark.parametrize("url", ["", "/tmp/blobs", "http://host/blobs", "memory:///"])
def test_an_address_of_another_kind_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="blob store"):
        Blobs.open(url)
