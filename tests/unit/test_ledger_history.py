"""The ledger's history only grows: no code deletes a row, and rows of history change in the columns named here alone.

Read from the source of every package that may hold a statement, so a new `update(..)` has to be named here first.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger import authority_tables, catalog_tables, receipts
from gateway.ledger.tables import metadata

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("workflows", "facade", "gateway", "activities")
ANY = "*"
"""The columns are not named where the statement is written."""

HISTORY = {
    "audit",
    "releases",
    "deployments",
    "usage",
    "promotions",
    "evidence",
    "stops",
    "workspaces",
}
MAY_CHANGE = {
    # `*` is a refused key reserved anew, which test_only_a_refused_key_is_written_anew bounds.
    # A reservation that takes over what the engine's job says is bounded there as well.
    "receipts": {
        *("confirmed_at", "refused_at", "first_run", "job_input", "erased_at", "emptied_at", ANY),
        *("receipt", "version", "plugin_digest", "snapshot", "deadline_at", "reserved_at"),
    },
    # Three are erased on request, in `gateway.ledger.erasures` alone; two say whether the job has read the verdict.
    "decisions": {"answer", "reason", "shown", "due_at", "taken_at"},
    "votes": {"reason"},
    "artifacts": {"erased_at"},
    "plugin_versions": {"withdrawn_at", "withdrawn_reason"},
    "grants": {"revoked_at"},
    "api_keys": {"revoked_at"},
    "changes": {"delivered_at"},
    "packets": {"approved_by", "approved_at", "revoked_by", "revoked_at", "redeemed_run", "redeemed_at"},
    "processes": {"seen_at", "good_until", "warnings", "last_warning", "stopped_at"},
    "callbacks": {"answered_at", "outcome", "result_ref", "closed_at"},
    "effects": {"state", "epoch", "sent_at", "finished_at", "outcome_ref", "attempt", "request_id"},
    "sessions": {"last_job", "conversation", "head_step", "head_attempt"},
    "authorities": {"expires_at", "revoked_at", "revoked_reason", "ended_at", ANY},
}
_SQL = re.compile(
    r"(?i)\b(DELETE\s+FROM|UPDATE\s+\w+\s+SET|TRUNCATE|(DROP|ALTER)\s+TABLE|MERGE\s+INTO|REPLACE\s+INTO)\b"
)


def changes_in(source: str) -> Iterator[tuple[str, str]]:
    """(table, column) of each `update`, (`delete`, what) of each deletion and (`sql`, text) of each raw statement."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    verbs = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for alias in node.names
        if alias.name in ("update", "delete")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := _SQL.search(node.value)):
            yield "sql", found.group()
        if not isinstance(node, ast.Call):
            continue
        verb, table = _verb_and_table(node, verbs)
        if verb == "delete":
            yield "delete", table
        elif verb == "update":
            for column in _columns(node, parents):
                yield table, column


def _verb_and_table(call: ast.Call, verbs: dict[str, str]) -> tuple[str | None, str]:
    func = call.func
    first = ast.unparse(call.args[0]).rpartition(".")[2] if call.args else "?"
    if isinstance(func, ast.Name):
        return verbs.get(func.id), first
    if isinstance(func, ast.Attribute) and func.attr in ("update", "delete"):
        owner = ast.unparse(func.value).rpartition(".")[2]
        if owner in ("sqlalchemy", "sa"):
            return func.attr, first
        if owner in metadata.tables:
            return func.attr, owner
    return None, first


def _columns(call: ast.Call, parents: dict[ast.AST, ast.AST]) -> set[str]:
    """What `.values(..)` names in the chain that begins with this call."""
    node: ast.AST = call
    named: set[str] = set()
    while isinstance(parents.get(node), ast.Attribute | ast.Call):
        node = parents[node]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
            named |= {keyword.arg or ANY for keyword in node.keywords} | ({ANY} if node.args else set())
    return named or {ANY}


def refused(source: str) -> list[tuple[str, str]]:
    return [
        (table, column)
        for table, column in changes_in(source)
        if table not in MAY_CHANGE or column not in MAY_CHANGE[table]
    ]


def sources() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts
    ]


def test_no_row_is_deleted_and_no_history_is_rewritten() -> None:
    assert {
        path.relative_to(ROOT).as_posix(): found for path in sources() if (found := refused(path.read_text()))
    } == {}


def test_content_goes_in_one_place_alone() -> None:
    erased = {("receipts", "job_input"), *(("decisions", column) for column in ("answer", "reason", "shown"))}
    erased |= {("votes", "reason")}
    where = {path.name for path in sources() if erased & set(changes_in(path.read_text()))}
    assert where == {"erasures.py"}


def test_every_table_is_history_or_says_what_may_change() -> None:
    assert authority_tables.metadata is catalog_tables.metadata is metadata
    assert HISTORY | set(MAY_CHANGE) == set(metadata.tables)
    assert not HISTORY & set(MAY_CHANGE)


def test_every_change_that_is_named_is_made() -> None:
    made = {change for path in sources() for change in changes_in(path.read_text())}
    assert {(table, column) for table, columns in MAY_CHANGE.items() for column in columns} == made


def test_only_a_refused_key_is_written_anew() -> None:
    # One statement of receipts names no columns: it holds for keys that were refused and never accepted.
    (anew,) = [name for name, value in vars(receipts).items() if name.startswith("_RESERVE_") and value is not None]
    condition = str(vars(receipts)[anew].whereclause)
    assert "receipts.confirmed_at IS NULL" in condition
    assert "receipts.refused_at IS NOT NULL" in condition
    adopted = str(vars(receipts)["_ADOPT"].whereclause)
    assert "receipts.confirmed_at IS NULL" in adopted
    assert "receipts.fingerprint = " in adopted


@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        ("from sqlalchemy import delete\ndelete(audit)", [("delete", "audit")]),
        ("from sqlalchemy import delete as drop\ndrop(tables.receipts).where(x)", [("delete", "receipts")]),
        ("import sqlalchemy as sa\nsa.delete(votes)", [("delete", "votes")]),
        ("votes.delete().where(x)", [("delete", "votes")]),
        ("from sqlalchemy import update\nupdate(audit).values(actor='eve')", [("audit", "actor")]),
        ("from sqlalchemy import update\nupdate(usage)", [("usage", ANY)]),
        ("decisions.update().values(decision='r')", [("decisions", "decision")]),
        (
            "from sqlalchemy import update\nupdate(receipts).where(x).values(principal='eve')",
            [("receipts", "principal")],
        ),
        (
            "from sqlalchemy import update\nupdate(receipts).values(start_input=b'').returning(y)",
            [("receipts", "start_input")],
        ),
        ("from sqlalchemy import update\nupdate(grants).values(revoked_at=now, actions=a)", [("grants", "actions")]),
        ("from sqlalchemy import update\nupdate(changes).values(new)", [("changes", ANY)]),
        ("conn.execute(text('delete from audit'))", [("sql", "delete from")]),
        ("conn.exec_driver_sql('UPDATE audit SET actor = 1')", [("sql", "UPDATE audit SET")]),
    ],
)
def test_the_check_sees_what_it_forbids(mutant: str, found: list[tuple[str, str]]) -> None:
    assert refused(mutant) == found


def test_migrations_delete_nothing() -> None:
    for path in (ROOT / "gateway/ledger/migrations/versions").glob("*.py"):
        assert not re.search(r"(?i)\bdelete\s+from\b|drop_table|drop_column", path.read_text()), path
