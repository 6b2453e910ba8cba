"""How each database is opened: two engines per ledger, one that may only read and one that writes.

SQLite: one file in WAL mode; a write transaction takes its lock at once (`BEGIN IMMEDIATE`), so none ever has to be
upgraded, and readers never wait for it. PostgreSQL: readers see one snapshot, and every statement, lock and connection
has a time limit, so that a thread cannot be stuck for good. Nothing here knows a table.

A SQLite file that was moved away or replaced would go on taking writes that nobody sees again: then nothing answers,
until the file is back. Only a migration makes a file.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

BUSY_TIMEOUT_MS = 2_000
_READERS = 4
_POSTGRES_WRITERS = 4

_POSTGRES_CONNECT: dict[str, Any] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5_000,
    # A host that vanished while we wait for its answer is noticed too, not only one that takes no bytes.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "jobgate",
    "options": "-c statement_timeout=5000 -c lock_timeout=3000 -c idle_in_transaction_session_timeout=10000",
}
_TRY_AGAIN = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: nothing was written, and the same transaction may be run again."""


class Engines(NamedTuple):
    reader: Engine
    writer: Engine
    readers: int
    writers: int


def open_engines(url: str, *, make: bool = False) -> Engines:
    """Opens no connection yet. `make`: a file that is not there is made. Raises ValueError for a database that the
    ledger does not know or has no driver for."""
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        return _open_sqlite(target, make)
    if target.drivername == "postgresql+psycopg":
        try:
            return _open_postgres(target)
        except ModuleNotFoundError:
            raise ValueError("a ledger on PostgreSQL needs the driver: pip install 'jobgate[postgres]'") from None
    raise ValueError("the ledger's URL must begin with sqlite:/// or postgresql+psycopg://")


def is_trouble(error: BaseException) -> bool:
    """Whether the database itself failed (locked, unreachable, disk full), as against a fault of the statement."""
    if isinstance(error, PoolTimeout):
        return True
    return isinstance(error, DBAPIError) and not isinstance(
        error, IntegrityError | ProgrammingError | NotSupportedError | DataError
    )


def may_run_again(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _TRY_AGAIN


def _open_sqlite(url: URL, make: bool) -> Engines:
    if not url.database or url.database == ":memory:":
        raise ValueError("the ledger needs a file: sqlite:///PATH")
    path = Path(url.database).absolute()
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
    address = f"{path.as_uri()}?mode={'rwc' if make else 'rw'}"

    def engine(begin: str, connections: int, *pragmas: str) -> Engine:
        built = create_engine(
            url,
            connect_args={"timeout": BUSY_TIMEOUT_MS / 1000, "isolation_level": None},
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            hide_parameters=True,
        )

        def name_file(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> None:
            arguments[:] = [address]
            options["uri"] = True

        def prepare(connection: Any, record: Any) -> None:
            record.info["file"] = _identity(path)
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", *pragmas):
                connection.execute(f"PRAGMA {pragma}").close()

        def still_there(_connection: Any, record: Any, _proxy: object) -> None:
            if record.info["file"] != _identity(path):
                raise DisconnectionError

        def start(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        event.listen(built, "do_connect", name_file)
        event.listen(built, "connect", prepare)
        event.listen(built, "checkout", still_there)
        event.listen(built, "begin", start)
        return built

    return Engines(engine("BEGIN", _READERS, "query_only=ON"), engine("BEGIN IMMEDIATE", 1), _READERS, 1)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands under this name; None: there is none."""
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _open_postgres(url: URL) -> Engines:
    def engine(connections: int, **options: Any) -> Engine:
        built = create_engine(
            url,
            connect_args=_POSTGRES_CONNECT,
            pool_size=connections,
            max_overflow=0,
            pool_pre_ping=True,
            hide_parameters=True,
            **options,
        )
        event.listen(built, "handle_error", _hide_the_row)
        return built

    def read_only(connection: Any, _record: object) -> None:
        connection.read_only = True

    reader = engine(_READERS, isolation_level="REPEATABLE READ")
    event.listen(reader, "connect", read_only)
    return Engines(reader, engine(_POSTGRES_WRITERS), _READERS, _POSTGRES_WRITERS)


def _hide_the_row(context: ExceptionContext) -> None:
    """Past its first line PostgreSQL's message repeats the values of the row that failed."""
    original, ours = context.original_exception, context.sqlalchemy_exception
    told = str(original)
    first_line = told.partition("\n")[0]
    original.args = (first_line,)
    if ours is not None:
        ours.args = (str(ours.args[0]).replace(told, first_line),)
