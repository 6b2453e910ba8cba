"""An address is good for the artifact, the time and the key it was signed with, and for nothing else."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.signed_paths import KEY, SignedPaths

ONE, OTHER = "art_" + "1" * 32, "art_" + "2" * 32
EXPIRES = 2_000_000_000


@pytest.fixture
def paths(tmp_path: Path) -> SignedPaths:
    return SignedPaths.load(tmp_path)


def proof_in(path: str) -> tuple[str, str]:
    query = parse_qs(urlsplit(path).query)
    return query["expires"][0], query["signature"][0]


def test_a_path_proves_itself_until_its_time_is_over(paths: SignedPaths) -> None:
    path = paths.sign(ONE, EXPIRES)
    assert urlsplit(path).path == f"/v1/artifacts/{ONE}/content"
    assert paths.proves(ONE, *proof_in(path), EXPIRES - 0.001)
    assert not paths.proves(ONE, *proof_in(path), EXPIRES)


def test_no_part_of_a_path_can_be_changed(paths: SignedPaths, tmp_path: Path) -> None:
    expires, signature = proof_in(paths.sign(ONE, EXPIRES))
    now = EXPIRES - 60.0
    assert not paths.proves(OTHER, expires, signature, now)
    assert not paths.proves(ONE, str(EXPIRES + 1), signature, now)
    assert not paths.proves(ONE, expires, signature[:-1], now)
    assert not paths.proves(ONE, expires, signature + "A", now)
    assert not SignedPaths.load(tmp_path / "elsewhere").proves(ONE, expires, signature, now)


@pytest.mark.parametrize("expires", ["", "-1", "+1", "1.5", "1_0", "\u0661", "9" * 13, " 1", "0x1", "inf"])
def test_a_time_that_is_none_proves_nothing(paths: SignedPaths, expires: str) -> None:
    _, signature = proof_in(paths.sign(ONE, EXPIRES))
    assert not paths.proves(ONE, expires, signature, 0.0)
    assert not paths.proves(ONE, str(EXPIRES), "\u00e9", 0.0)


def test_processes_that_start_together_share_one_key_that_only_the_owner_reads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        loaded = list(threads.map(SignedPaths.load, [tmp_path] * 64))
    assert len(set(loaded)) == 1
    key = tmp_path / "keys" / KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    assert [path.name for path in key.parent.iterdir()] == [KEY]
    assert key.read_bytes().hex() not in repr(loaded[0])
