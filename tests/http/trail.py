"""The audit trail as tests read it: every line, over all pages."""

from tests.rig.client import Client, Json


async def audit_of(operator: Client, after: str | None = None) -> list[Json]:
    """The lines after the cursor, oldest first."""
    found: list[Json] = []
    while True:
        asked = {"limit": 500, **({"after": after} if after is not None else {})}
        page = await operator.get("/v1/audit", params=asked)
        found += page["data"]
        if not page["has_more"]:
            return found
        after = page["next_cursor"]


async def audit_end(operator: Client) -> str | None:
    """The cursor behind the newest line."""
    after: str | None = None
    while True:
        asked = {"limit": 500, **({"after": after} if after is not None else {})}
        page = await operator.get("/v1/audit", params=asked)
        after = page["next_cursor"]
        if not page["has_more"]:
            return after
