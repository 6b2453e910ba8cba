"""Tool names as model providers take them: `[a-zA-Z0-9_-]{1,64}`, one to one with the plugin's own names."""

import re
from collections.abc import Iterable

LONGEST = 64
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")


def provider_names(names: Iterable[str]) -> dict[str, str]:
    """Each name and how it is offered. Names that fit stay; the others never take a name that is in use."""
    listed = list(dict.fromkeys(names))
    offered = {name: name for name in listed if _OTHER.search(name) is None}
    taken = set(offered.values())
    for name in listed:
        if name not in offered:
            offered[name] = _free(_OTHER.sub("_", name), taken)
            taken.add(offered[name])
    return offered


def spelled(name: str) -> str:
    """A name that a model made up, in the same alphabet: histories are sent back to the provider."""
    return _OTHER.sub("_", name)[:LONGEST] or "_"


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        suffix = f"-{number}"
        name, number = wanted[: LONGEST - len(suffix)] + suffix, number + 1
    return name
