"""Brings a ledger's schema to this version's, from whatever it has. Forward only, and all steps in one transaction.

Any number of processes may migrate at once: the first holds the database's own lock, the others then find nothing
left to do. `jobgate setup` and `jobgate dev` call it; a serving process never does.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.ledger.database import is_trouble, open_engines
from workflows.contract.errors import ProblemCode, Refused

_ONE_MIGRATION = 0x6A6F6267
"""The advisory lock that stands for migrating this ledger."""


def migrate(url: str) -> None:
    """Raises `Refused(LEDGER_UNAVAILABLE)` when the database does not answer or stays locked."""
    engines = open_engines(url, make=True)
    try:
        with engines.writer.begin() as conn:
            if conn.dialect.name == "postgresql":
                conn.execute(text("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s'"))
                conn.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ONE_MIGRATION})
            upgrade(conn)
    except Exception as error:
        if is_trouble(error):
            raise Refused(ProblemCode.LEDGER_UNAVAILABLE, "The ledger can not be migrated now.") from error
        raise
    finally:
        engines.writer.dispose()
        engines.reader.dispose()


def upgrade(conn: Connection) -> None:
    """Every missing step, inside the caller's transaction."""
    config = _config()
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def is_current(conn: Connection) -> bool:
    """Whether the ledger has exactly the schema of this version. Reads alone."""
    present = MigrationContext.configure(conn).get_current_revision()
    return present == ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
