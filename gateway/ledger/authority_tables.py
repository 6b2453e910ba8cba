"""The tables of who may do what: workspaces, grants, API keys, and the authority and spending of each job."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table

from gateway.ledger.tables import instant, json, key, metadata, of_a_job, words

workspaces = Table(
    "workspaces",
    metadata,
    key("name"),
    words("by"),
    instant("at"),
)

grants = Table(
    "grants",
    metadata,
    key("grant_id"),
    words("workspace"),
    words("principal"),
    json("actions"),
    json("plugins"),
    json("limits"),
    instant("expires_at", null=True),
    words("by"),
    instant("at"),
    instant("revoked_at", null=True),
    Index(None, "workspace", "principal"),
)

api_keys = Table(
    "api_keys",
    metadata,
    key("key_id"),
    words("workspace"),
    words("principal"),
    words("secret_hash"),
    json("scopes"),
    json("groups"),
    instant("expires_at", null=True),
    words("by"),
    instant("at"),
    instant("revoked_at", null=True),
    Index(None, "workspace", "principal"),
)

authorities = Table(
    "authorities",
    metadata,
    key("workspace"),
    key("job_id"),
    words("principal"),
    words("submitted_by"),
    words("credential", null=True),
    words("plugin"),
    words("version"),
    words("snapshot"),
    words("model"),
    json("limits"),
    Column("seen_change", BigInteger, nullable=False),
    instant("minted_at"),
    instant("expires_at"),
    instant("revoked_at", null=True),
    words("revoked_reason", null=True),
    instant("ended_at", null=True),
    of_a_job(),
    Index(None, "workspace", "principal", "ended_at"),
    Index(None, "ended_at"),
)

usage = Table(
    "usage",
    metadata,
    key("workspace"),
    key("job_id"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("call", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    words("principal"),
    words("plugin"),
    words("kind"),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    words("cost_usd"),
    Column("estimated", Boolean, nullable=False),
    instant("at"),
    of_a_job(),
    Index(None, "workspace", "principal", "at"),
)
