"""Another build: a frozen copy of the packages with some text changed, and the environment of a process that runs it.

The build that a process tells of itself is a digest over its own files, so a copy without a change is the same build.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.presence import PACKAGES, build_of
from tests.rig.process import ROOT

COMMENT: Mapping[str, tuple[str, str]] = {"activities/tool.py": ('"""', '# another build\n"""')}
"""A change that no history notices."""
ONE_MORE_STEP: Mapping[str, tuple[str, str]] = {
    "workflows/loop.py": (
        "        step = self._meter.spend_step()\n",
        "        await self._steps.read_authority()\n        step = self._meter.spend_step()\n",
    )
}
"""A change that no history of the code before fits: every turn begins with one activity more."""


@dataclass(frozen=True)
class Build:
    """`name` as its processes tell it; `environment` makes a process of the rig run it."""

    name: str
    environment: Mapping[str, str]


def build(folder: Path, changes: Mapping[str, tuple[str, str]]) -> Build:
    """The code as it is now with each file's first `old` put as `new`, in an empty folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)  # what is compiled already, too: times are kept
    for path, (old, new) in changes.items():
        text = (folder / path).read_text(encoding="utf-8")
        assert old in text, f"{path} has no such text"
        (folder / path).write_text(text.replace(old, new, 1), encoding="utf-8")
    return Build(build_of(folder), {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"})
