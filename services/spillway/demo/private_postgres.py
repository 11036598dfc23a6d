"""A PostgreSQL server of one's own: made, started, stopped and killed by this process, gone with
it.

The demo runs on one and the tests' cluster builds on it. It listens on a free port of the loopback
address only, trusts local connections, and lives in a directory that its owner may delete.

Two things make this more than ``initdb`` and ``postgres``:

- PostgreSQL refuses to run as root. As root, the server runs as ``postgres`` or, where there is
  none, as ``nobody``; no system user is created. Its files must then be readable by that user: an
  installation below a directory that is closed to it (/root, most often) is copied once per
  process.
- The server is a child of this process in a process group of its own, so that Ctrl-C in a terminal
  does not take it down under its clients, and so that :meth:`PrivatePostgres.kill` ends the
  postmaster and all backends in the same instant, as a power cut does. What a process still has
  running when it exits is stopped then; if it is killed, a shell beside each server does that,
  which waits for the end of a pipe that nobody writes to.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

import psycopg

from spillway.errors import PrivatePostgresError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Setting: TypeAlias = str | int | bool
StopMode = Literal["smart", "fast", "immediate"]

#: Superuser of every private server.
SUPERUSER = "postgres"

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
#: A zombie that nobody reaps stays in its group.
_KILL_TIMEOUT_S = 5.0
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
#: Clients are given ports from 32768 on (Linux), or from 49152 (others).
_SERVERS_PORTS: Final = range(15_000, 32_000)
_PORTS_TRIED: Final = 100
#: by this process
_GIVEN_PORTS: Final[set[int]] = set()
_RUNNING: set[PrivatePostgres] = set()
#: Arguments: the postmaster, and a directory to delete after it, if any.
_WARDEN = """
read -r _
kill -QUIT "$0" || exit 0
while kill -0 "$0"; do sleep 0.1; done
[ -z "$1" ] || rm -rf "$1"
"""


#: Arguments: a user's id, a group's, and the program with its arguments, which takes this one's
#: place and process id.
_AS_USER: Final = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True, slots=True)
class Account:
    """The system user that a server runs as."""

    name: str
    uid: int
    gid: int


@cache
def server_account() -> Account | None:
    """Say as whom servers run: None means as this process's own user.

    Raises:
        PrivatePostgresError: this is root, and the system has no unprivileged user to run as.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise PrivatePostgresError(
        "PostgreSQL does not run as root, and this system has neither a user postgres nor nobody",
        hint="Run as an ordinary user.",
    )


def as_servers_user(arguments: list[str]) -> list[str]:
    """Return the command that runs *arguments* as the servers' user.

    Popen's own *user* and *group* make it fork, and what gRPC does in a forked child while its
    threads are busy kills one in three before it becomes the program: see
    tests/unit/test_architecture.py.
    """
    account = server_account()
    if account is None:
        return arguments
    ids = [str(account.uid), str(account.gid)]
    return [sys.executable, "-I", "-S", "-c", _AS_USER, *ids, *arguments]


def make_directory(prefix: str, parent: Path | None = None) -> Path:
    """Make a temporary directory that belongs to the servers' user; the caller deletes it.

    Args:
        prefix: of its name.
        parent: where; the system's place for temporary files when None.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    account = server_account()
    if account is not None:
        os.chown(directory, account.uid, account.gid)
    return directory


@cache
def reachable_programs(bin_directory: Path) -> Path:
    """Return *bin_directory*, or that of a copy of its installation which the servers' user can
    read.

    The installation is the directory above; a copy lasts as long as this process.
    """
    account = server_account()
    if account is None or _searchable_by(account, bin_directory):
        return bin_directory
    installation, package = bin_directory.parent, bin_directory.parent.parent
    copy = make_directory("spillway-postgres-")
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    target = copy / package.name / installation.name
    shutil.copytree(installation, target, symlinks=True)
    # A wheel keeps its shared libraries in <package>.libs beside the package.
    if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
        shutil.copytree(libraries, copy / libraries.name)
    return target / bin_directory.name


def _searchable_by(account: Account, path: Path) -> bool:
    def allowed(directory: Path) -> bool:
        status = directory.stat()
        if status.st_uid == account.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == account.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)

    return all(allowed(directory) for directory in (path.resolve(), *path.resolve().parents))


class PrivatePostgres:
    """One private server. Not for use by several threads at once, its connections aside.

    Args:
        bin_directory: where ``postgres`` and ``initdb`` are.
        directory: made, and deleted by :meth:`destroy`; a temporary one when None.
        parent: where a temporary one is made; the system's place for them when None.
        settings: postgresql.conf, over the defaults of a server whose WAL can be decoded.
        initdb_options: further arguments of ``initdb``.
    """

    #: What every private server runs with unless told otherwise.
    DEFAULT_SETTINGS: Mapping[str, Setting] = {
        "wal_level": "logical",
        "max_wal_senders": 32,
        "max_replication_slots": 64,
        "max_connections": 100,
        "shared_buffers": "64MB",
        "log_min_messages": "log",
        "log_line_prefix": "%m [%p] %q%u@%d ",
        "log_timezone": "UTC",
        "timezone": "UTC",
    }

    def __init__(
        self,
        bin_directory: Path,
        directory: Path | None = None,
        *,
        parent: Path | None = None,
        settings: Mapping[str, Setting] | None = None,
        initdb_options: Sequence[str] = (),
    ) -> None:
        self.bin_directory = reachable_programs(bin_directory)
        self.directory = directory or make_directory("spillway-pg-", parent)
        self.settings: dict[str, Setting] = {**self.DEFAULT_SETTINGS, **(settings or {})}
        self.initdb_options = tuple(initdb_options)
        self.port = 0
        self._temporary = directory is None
        self._process: subprocess.Popen[bytes] | None = None
        self._warden: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.destroy()

    @property
    def data_directory(self) -> Path:
        """PGDATA."""
        return self.directory / "data"

    @property
    def wal_directory(self) -> Path:
        """The server's WAL segments."""
        return self.data_directory / "pg_wal"

    @property
    def log_file(self) -> Path:
        """What the server writes to stderr."""
        return self.directory / "postgres.log"

    @property
    def running(self) -> bool:
        """Say whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id, which is its process group's too."""
        if self._process is None:
            raise PrivatePostgresError("the server was not started")
        return self._process.pid

    def make_own_directory(self) -> None:
        """Make what the data directory, the log and the settings are kept in, if it is not there.

        Raises:
            PrivatePostgresError: the servers' user can't reach it.
        """
        account = server_account()
        self.directory.mkdir(parents=True, exist_ok=True)
        if account is not None:
            os.chown(self.directory, account.uid, account.gid)
            if not _searchable_by(account, self.directory):
                raise PrivatePostgresError(
                    f"{self.directory} can't be reached by {account.name}, as whom PostgreSQL runs",
                    hint="Name a directory outside of root's home, or run as an ordinary user.",
                )

    def initialise(self) -> None:
        """Make the data directory, once; :meth:`start` does it when it is not there."""
        self.make_own_directory()
        arguments = [
            str(self.bin_directory / "initdb"),
            f"--pgdata={self.data_directory}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "--no-instructions",
            *self.initdb_options,
        ]
        done = subprocess.run(
            as_servers_user(arguments),
            check=False,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise PrivatePostgresError(
                f"initdb failed:\n{done.stdout}", hint="See its output above."
            )

    def start(self) -> None:
        """Start the server on a free port, the port it had before if there was one, and wait for
        it.

        Raises:
            PrivatePostgresError: it did not come up; the message ends with the server's log.
        """
        if self.running:
            return
        self._ended()
        if not (self.data_directory / "PG_VERSION").exists():
            self.initialise()
        self.port = self.port or free_port()
        self._write_settings()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                as_servers_user(
                    [str(self.bin_directory / "postgres"), "-D", str(self.data_directory)]
                ),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _RUNNING.add(self)
        self._warden = subprocess.Popen(
            ["sh", "-c", _WARDEN, str(self.pid), str(self.directory) if self._temporary else ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.wait_ready()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until the server takes connections, after crash recovery where it needs one.

        Raises:
            PrivatePostgresError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running:
                raise PrivatePostgresError(
                    f"PostgreSQL did not start; its log ends:\n{self.log_tail()}"
                )
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise PrivatePostgresError(
                        f"PostgreSQL was not ready after {timeout_s:.0f} s ({error}); "
                        f"its log ends:\n{self.log_tail()}"
                    ) from error
                time.sleep(0.02)
            else:
                return

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as pg_ctl would; ``immediate`` leaves it to crash recovery."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(_STOP_SIGNALS[mode])
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._ended()

    def kill(self) -> None:
        """End the postmaster and all backends with SIGKILL, as a power cut would."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            # A backend that still ends holds the shared memory, which a new postmaster would find
            # in use.
            deadline = time.monotonic() + _KILL_TIMEOUT_S
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.005)
        self._ended()

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._warden is not None:
            # Before its pipe is closed: it would take that for our end.
            self._warden.kill()
            self._warden.communicate()
            self._warden = None
        _RUNNING.discard(self)

    def restart(self, mode: StopMode = "fast", **settings: Setting) -> None:
        """Stop and start again on the same port, with *settings* changed."""
        self.stop(mode)
        self.settings.update(settings)
        self.start()

    def destroy(self) -> None:
        """Stop the server and delete its directory."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER) -> str:
        """Return a libpq connection string."""
        return psycopg.conninfo.make_conninfo(
            host="127.0.0.1", port=self.port, dbname=dbname, user=user
        )

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of the server's log."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _write_settings(self) -> None:
        """Write the settings to a file of our own, which ends postgresql.conf by an include."""
        settings: dict[str, Setting] = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
        }
        lines = [f"{name} = {_quoted(value)}" for name, value in settings.items()]
        private = self.data_directory / "private.conf"
        private.write_text("\n".join(lines) + "\n")
        account = server_account()
        if account is not None:
            os.chown(private, account.uid, account.gid)
        main = self.data_directory / "postgresql.conf"
        include = "include 'private.conf'"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(f"\n{include}\n")


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on now, another one each time. It
    is none of those that are given to clients, where there is one: a server that is started again
    finds it free then.
    """
    for port in random.SystemRandom().sample(_SERVERS_PORTS, _PORTS_TRIED):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            if port not in _GIVEN_PORTS:
                _GIVEN_PORTS.add(port)
                return port
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        given: int = listener.getsockname()[1]
        return given


def _quoted(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"


@atexit.register
def _stop_all() -> None:
    for server in list(_RUNNING):
        server.kill()
