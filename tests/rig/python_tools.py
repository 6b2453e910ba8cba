"""A distribution with Python tools, as a worker finds it on its path: files in a folder, nothing that is installed."""

from pathlib import Path


def distribution(folder: Path, name: str, source: str) -> dict[str, str]:
    """One whose entry point `name` is the source's `run`; the settings of a stack whose processes find it."""
    module = f"rig_{name}"
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[jobgate.tools]\n{name} = {module}:run\n")
    return {"PYTHONPATH": str(folder)}
