"""The house rules that no type checker sees: who imports whom, how long a file is, what a module may be called."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("workflows", "facade", "gateway", "activities")
FORBIDDEN = frozenset({"utils", "util", "common", "base", "manager", "helper", "helpers", "core", "misc", "shared"})
LONGEST = {"workflows/loop.py": 400}


def sources(*folders: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "migrations" not in path.parts
    )


def test_imports_point_left() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sources(*FOLDERS, "examples", "tests"))
def test_file_is_short_enough_to_read(path: str) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST.get(path, 300)


def test_no_module_is_called_by_a_word_that_says_nothing() -> None:
    named = {
        path for path in sources(*FOLDERS, "examples", "tests") if FORBIDDEN & set(Path(path).with_suffix("").parts)
    }
    assert not named


@pytest.mark.parametrize("path", sources(*FOLDERS))
def test_module_opens_by_saying_what_it_owns(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not text.strip() or text.startswith('"""')


def test_a_worker_starts_without_the_libraries_that_few_jobs_need() -> None:
    rare = ("anthropic", "openai", "mcp")
    code = f"import sys, activities.worker; print([name for name in {rare!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
