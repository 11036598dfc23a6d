"""Transactions of the metadata store, on threads of its own; the two databases that it may live in.

``Database.read()`` and ``Database.write()`` run a function in a transaction on a worker thread and
give what it returns. It gets a connection of SQLAlchemy's Core: neither the ORM nor
``sqlalchemy.ext.asyncio`` (which brings the ORM along) is ever imported, for a start's sake. A
transaction that can't commit leaves nothing behind. Once begun it runs to its end, though who waits
for it be cancelled.

On SQLite a writer begins with BEGIN IMMEDIATE: the lock is waited for before anything is read, so
that a transaction never fails half-way because somebody else wrote. The file is in WAL mode
(readers do not block the writer) with synchronous=FULL: a confirmed position that was acknowledged
must survive a power cut.

In PostgreSQL a transaction that waits for another session's lock has a thread and a connection for
as long, so what must not wait for what else is waited for has some of its own (:data:`LANES`): a
lease is renewed though every other thread waits, and a slot's position stored though nobody can
read alerts. SQLite locks its file as a whole, so that no lane would be free there.

A service that stops must not wait for that: :meth:`Database.hurry` has what waits cancelled after
:data:`STOP_S`, cut off a second later, and once something has waited that long in vain, all else
waits for :data:`IN_VAIN_S` only.

In PostgreSQL nothing is prepared and nothing is set for a session, so that a pooler may stand in
between. An answer that takes too long is an error: the server ends the statement. A server that
stands still (its processes are stopped, its disk hangs) ends nothing, and its kernel goes on to
acknowledge what is sent. So each answer is waited for here, too, a moment longer than the server
was given; before anything is asked of a connection that was kept, it has :data:`ALIVE_S` to show
that somebody is there. Its transaction is rolled back once the server sees that the connection is
closed, unless COMMIT was on its way: that may still be done, by whoever had the rows locked all the
time, with what it proved (:mod:`~spillway.store.fencing`).

Once nobody has answered for that long, be it a server that stands still or whoever has SQLite's
file locked, all others wait for :data:`SILENT_S` only, for a thread, too, until somebody answers.
Within :data:`AGAIN_S` after an attempt nobody but a lease makes another: who asks one after the
other must not wait the sum.

Whatever goes wrong in a driver leaves here as :class:`~spillway.errors.MetadataError`, except
broken constraints, which the caller knows the meaning of (:class:`ConstraintViolation`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import BigInteger, create_engine, event, literal_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from spillway.errors import InvalidRequest, MetadataError, SpillwayError
from spillway.pg.connecting import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy.engine import Connection, Engine

#: How long to wait for SQLite's write lock, or for any PostgreSQL answer, in seconds.
TIMEOUT_S: Final = 30
#: … beyond that, for PostgreSQL to say that it took too long
_SAYS_S: Final = 2.0
#: How long a kept connection may take to show that the server is there, and a new one to be made.
ALIVE_S: Final = 5.0
_CONNECT_S: Final = 10.0
#: How long to wait, for each of these, once nobody has answered in time.
SILENT_S: Final = 3.0
AGAIN_S: Final = 1.0
#: … of a service that stops, and when the store was seen not to answer meanwhile.
STOP_S: Final = 3.0
IN_VAIN_S: Final = 0.2
#: Failures with no longer pause in between are one outage, which is logged once, for all requests.
_OUTAGE_S: Final = 60.0
#: between a request to cancel, which a server that stands still does not hear, and cutting it off
_CUT_S: Final = 1.0
#: How often SQLite's lock is asked for.
_LOCK_AGAIN_S: Final = 0.2
#: PostgreSQL ends a transaction whose client has said nothing for so long: a process that stands
#: still in one would keep the rows locked, its leases among them, for as long as its connection.
IDLE_S: Final = 5


class Lane(NamedTuple):
    """Transactions that don't wait for those of other lanes."""

    #: Transactions at a time, and connections kept. Metadata statements take milliseconds, so that
    #: a handful serves a process.
    connections: int
    #: How long a statement waits for another session's lock, in seconds. A transaction that has
    #: proved a lease keeps others from renewing it meanwhile.
    lock_timeout_s: int = 0


#: What PostgreSQL is given at a time. SQLite has one writer at a time anyway.
LEASES: Final = "leases"
#: sources, slots, subscriptions and all else that the service's work needs
STATE: Final = "state"
#: what is kept to be looked at: events, alerts, metrics, conflicts, what the schema went through
NOTES: Final = "notes"
LANES: Final[Mapping[str, Lane]] = {
    LEASES: Lane(1),
    STATE: Lane(5),
    NOTES: Lane(3, lock_timeout_s=3),
}

#: SQLite's: who reads does not wait for whoever writes.
_READS: Final = "reads"
_WRITES: Final = "writes"
_SQLITE_LANES: Final[Mapping[str, Lane]] = {_READS: Lane(1), _WRITES: Lane(1)}

#: How often a transaction asks for room on a full disk: each time it is given a part of what there
#: is.
_ROOMS: Final = 8

#: The database's clock, in milliseconds since 1970.
_CLOCKS: Final = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    # Not now(), which stands still in a transaction that has waited for a lock.
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}

_ACCEPTED: Final = "sqlite:///path/to/file, postgresql://user@host/database"
#: PostgreSQL's lock_not_available and query_canceled.
_WAITED: Final = ("55P03", "57014")
_WAITED_HINT: Final = (
    "Another session of that PostgreSQL may have the service's tables locked, or its server may be "
    "slow: see pg_locks and pg_stat_activity there. Requests work again once that is over."
)
_HINTS: Final = {
    "sqlite": "Check the file, its directory and the space left on its disk.",
    "postgresql": (
        "Check that PostgreSQL is up and SPILLWAY_METADATA_URL is right; requests work again once "
        "it is."
    ),
}

#: What to do about a store from which no answer comes.
_SILENT_HINTS: Final = {
    "sqlite": (
        "Another program has the file locked: see what has it open (fuser, lsof), and end its "
        "transaction. Requests work again once it has."
    ),
    "postgresql": (
        "PostgreSQL takes connections and says nothing: its processes are stopped, or its machine "
        "or disk hangs. Requests work again once it goes on."
    ),
}
_NOT_ANSWERED: Final = "has not answered within"
#: psycopg's, for signals
_WAIT_INTERVAL_S: Final = 0.1

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Patience:
    """How long an answer is waited for, by all lanes, and who waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[psycopg.Connection[Any]] = set()
        self._ending: threading.Timer | None = None
        self._ending_since = 0.0
        self._is_in_vain = False
        self._is_silent = False
        self._silent_at = 0.0
        self._failed_at = -math.inf

    @property
    def seconds(self) -> float:
        """For a statement, or a lock."""
        if self._ending is None:
            return SILENT_S if self._is_silent else TIMEOUT_S
        return IN_VAIN_S if self._is_in_vain or self._is_silent else STOP_S

    def left_s(self, began: float) -> float:
        """For what has waited since *began*, also if it began before a stop."""
        return max(began, self._ending_since) + self.seconds - time.monotonic()

    @property
    def alive_s(self) -> float:
        """For a sign of life."""
        return min(ALIVE_S, self.seconds)

    @property
    def connect_s(self) -> float:
        """For a new connection."""
        return min(_CONNECT_S, self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be begun any more: the service stops, and nobody answers."""
        return self._ending is not None and self._is_silent

    @property
    def is_just_tried(self) -> bool:
        """Whether nobody answered a moment ago."""
        return self._is_silent and time.monotonic() - self._silent_at < AGAIN_S

    def note_failure(self) -> bool:
        """Take note that a transaction failed; say whether that is news."""
        now = time.monotonic()
        is_news = now - self._failed_at > _OUTAGE_S
        self._failed_at = now
        return is_news

    def note_in_vain(self) -> None:
        """Take note that somebody has waited for too long, for a lock or the like."""
        self._is_in_vain = self._ending is not None

    def note_silence(self) -> None:
        """Take note that nobody answers."""
        self._is_silent = True
        self._silent_at = time.monotonic()

    def note_answer(self) -> None:
        """Take note that somebody does."""
        self._is_silent = False

    @contextlib.contextmanager
    def of(self, connection: Any) -> Iterator[None]:
        """Have the statements of *connection* cancelled when they wait too long for a stop."""
        if not isinstance(connection, psycopg.Connection):
            yield
            return
        with self._lock:
            self._waiting.add(connection)
        try:
            yield
        finally:
            # Not while it is cancelled: that would be another transaction's statement.
            with self._lock:
                self._waiting.discard(connection)

    def hurry(self) -> None:
        """Wait no longer than a stop may."""
        if self._ending is None:
            self._ending_since = time.monotonic()
            self._ending = threading.Timer(STOP_S, self._cancel, (self._waiting.copy(),))
            self._ending.daemon = True
            self._ending.start()

    def end(self) -> None:
        """Nobody waits any more."""
        if self._ending is not None:
            self._ending.cancel()

    def _cancel(self, former: set[psycopg.Connection[Any]]) -> None:
        with self._lock:
            for connection in self._waiting & former:
                try:
                    connection.cancel_safe(timeout=_CUT_S)
                except psycopg.errors.CancellationTimeout:
                    break  # nor would it hear the others
                except psycopg.Error:
                    continue
        time.sleep(_CUT_S)
        with self._lock:
            for connection in self._waiting & former:
                self.note_silence()
                cut(connection)


def _bounded(patience: _Patience) -> type[psycopg.Connection[Any]]:
    """Make the class of connections that wait for each answer as *patience* has it."""

    class Bounded(psycopg.Connection[Any]):
        def wait(
            self, gen: Any, interval: float = _WAIT_INTERVAL_S, timeout: float | None = None
        ) -> Any:
            # Nothing but a look whether the server is there runs without a transaction.
            longest_s = patience.alive_s if self.autocommit else patience.seconds + _SAYS_S
            given_s = longest_s if timeout is None else min(timeout, longest_s)
            began = time.monotonic()
            try:
                answer = super().wait(gen, interval, given_s)
            except psycopg.Error as error:
                if time.monotonic() - began < given_s:
                    raise
                # What it was to answer is unknown; nobody may go on with it.
                self.close()
                patience.note_silence()
                raise psycopg.OperationalError(
                    f"the server {_NOT_ANSWERED} {given_s:g} s"
                ) from error
            patience.note_answer()
            return answer

    return Bounded


class ConstraintViolation(Exception):
    """A statement broke a constraint: *foreign_key* says which sort, a unique one otherwise."""

    def __init__(self, *, foreign_key: bool) -> None:
        super().__init__("foreign key" if foreign_key else "unique")
        self.foreign_key = foreign_key


def parse_url(text: str) -> URL:
    """Turn the URL of a metadata store into one that names its driver.

    Raises:
        InvalidRequest: it is not a URL, or of a database that metadata can't live in.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InvalidRequest(
            "the metadata URL can't be parsed", hint=f"Accepted: {_ACCEPTED}."
        ) from error
    # The driver that a URL names is ours to choose.
    name = url.drivername.partition("+")[0]
    if name == "sqlite":
        if url.host or not url.database or url.database == ":memory:":
            raise InvalidRequest(
                "the metadata URL names no SQLite file",
                hint="Metadata must outlive the process: use sqlite:///path/to/file.",
            )
        return URL.create("sqlite", database=url.database)
    if name in ("postgresql", "postgres"):
        # asyncpg's name for it, which URLs of earlier releases may have.
        if "ssl" in url.query:
            mode = url.query["ssl"]
            url = url.difference_update_query(["ssl"]).update_query_dict({"sslmode": mode})
        try:
            make_conninfo(**dict.fromkeys(url.query, ""))
        except psycopg.ProgrammingError as error:
            raise InvalidRequest(
                f"the metadata URL has unknown parameters: {error}",
                hint="postgresql://user:password@host:port/database?parameter=value, with libpq's "
                "parameters.",
            ) from error
        return url.set(drivername="postgresql+psycopg")
    raise InvalidRequest(
        f"metadata can't live in {url.drivername!r}", hint=f"Accepted: {_ACCEPTED}."
    )


class Database:
    """An engine of SQLAlchemy's and what this service does around it.

    Args:
        url_text: which database.
        make_room: called when SQLite's disk is full; true when there is space now that was not
            before.

    Raises:
        InvalidRequest: it is not a URL, or of a database that metadata can't live in.
    """

    def __init__(self, url_text: str, make_room: Callable[[], bool] = lambda: False) -> None:
        self._url = parse_url(url_text)
        self._make_room = make_room
        self.name = self._url.get_backend_name()
        self.clock = literal_column(_CLOCKS[self.name], BigInteger)
        patience = _Patience()
        self._engine = (
            _sqlite_engine(self._url, patience)
            if self.is_sqlite
            else _postgresql_engine(self._url, patience)
        )
        self._threads = {
            name: ThreadPoolExecutor(lane.connections, f"spillway-metadata-{name}")
            for name, lane in (_SQLITE_LANES if self.is_sqlite else LANES).items()
        }
        self._closed = threading.Event()
        self._lane = STATE
        self._patience = patience

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of this machine."""
        return self.name == "sqlite"

    @property
    def where(self) -> str:
        """The database as messages name it: without a password, which may be among the parameters
        too.
        """
        url = self._url
        return str(URL.create(self.name, host=url.host, port=url.port, database=url.database))

    async def prepare(self) -> None:
        """Make a new SQLite file readable by its owner alone and put it in WAL mode; may be
        repeated.
        """
        if self.is_sqlite:
            await self._in_thread(_WRITES, self._prepare_file)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a transaction that reads."""
        lane = _READS if self.is_sqlite else self._lane
        return await self._in_thread(lane, self._transaction, work, writes=False)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a transaction that commits at its end, durably.

        Raises:
            ConstraintViolation: a statement in it broke a constraint.
        """
        lane = _WRITES if self.is_sqlite else self._lane
        return await self._in_thread(lane, self._transaction, work, writes=True)

    def in_lane(self, lane: str) -> Database:
        """Return this database with its transactions in *lane*; it is closed together with this."""
        beside = copy(self)
        beside._lane = lane  # noqa: SLF001 - its own
        return beside

    def hurry(self) -> None:
        """Wait no longer than a service may that stops; see the top."""
        self._patience.hurry()

    async def close(self) -> None:
        """Let what has begun end, then close every connection; safe to call twice."""
        if not self._closed.is_set():
            self._closed.set()
            for threads in self._threads.values():
                await asyncio.to_thread(threads.shutdown)
            self._patience.end()
            await asyncio.to_thread(self._engine.dispose)

    async def _in_thread(self, lane: str, function: Callable[..., T], *args: Any, **kw: Any) -> T:
        if self._closed.is_set():
            raise MetadataError("the metadata store is closed", hint="The service is stopping.")
        loop = asyncio.get_running_loop()
        asked = time.monotonic()

        def run() -> T:
            patience = self._patience
            in_vain = lane not in (LEASES, _READS) and patience.is_just_tried
            if in_vain or patience.left_s(asked) < 0:
                raise MetadataError(
                    f"the metadata store {self.where} failed: it does not answer others either",
                    hint=_SILENT_HINTS[self.name],
                )
            return function(*args, **kw)

        return await loop.run_in_executor(self._threads[lane], run)

    # ---- on a thread

    def _prepare_file(self) -> None:
        path = Path(self._url.database or "")
        try:
            _prepare_file(path)
        except MetadataError as error:
            if not (_is_full(error.__cause__) and self._make_room()):
                raise
            _prepare_file(path)

    def _transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        for _ in range(_ROOMS):
            try:
                return self._try_transaction(work, writes=writes)
            except MetadataError as error:
                # Nothing of it is there, so it may be done again.
                if not (_is_full(error.__cause__) and self._make_room()):
                    raise
        return self._try_transaction(work, writes=writes)

    def _try_transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        try:
            with self._engine.connect() as connection:
                connection.execution_options(
                    spillway_writes=writes,
                    spillway_timeout_s=self._patience.seconds,
                    spillway_lock_timeout_s=LANES[self._lane].lock_timeout_s,
                )
                with (
                    self._patience.of(connection.connection.driver_connection),
                    connection.begin(),
                ):
                    done = work(connection)
            if self.is_sqlite and writes:
                self._patience.note_answer()
        except IntegrityError as error:
            raise _constraint(error) from error
        except StatementError as error:
            # SQLAlchemy wraps what a column type raises for a value that it refuses.
            if isinstance(error.orig, SpillwayError):
                raise error.orig from None
            raise self._failed(error.orig or error) from error
        except (SQLAlchemyError, OSError) as error:
            raise self._failed(error) from error
        else:
            return done

    def _failed(self, error: BaseException) -> MetadataError:
        # libpq's messages have lines.
        text = " ".join(str(error).split()) or type(error).__name__
        waited = getattr(error, "sqlstate", None) in _WAITED
        if waited:
            self._patience.note_in_vain()
        is_silent = _is_locked(error) or "timeout expired" in text
        if is_silent:
            self._patience.note_silence()
        hint = _HINTS[self.name]
        if is_silent or _NOT_ANSWERED in text:
            hint = _SILENT_HINTS[self.name]
        failure = MetadataError(
            f"the metadata store {self.where} failed: {text}",
            hint=_WAITED_HINT if waited else hint,
        )
        if self._patience.note_failure():
            log.error("%s", failure)
        return failure


def _is_full(error: BaseException | None) -> bool:
    """Say whether SQLite failed for want of space: of the file itself, or of those that it works
    with.
    """
    cause = getattr(error, "orig", None) or error
    name = str(getattr(cause, "sqlite_errorname", None) or "")
    return name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR") or name == "SQLITE_CANTOPEN"


def _is_locked(error: BaseException) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")


def _constraint(error: IntegrityError) -> ConstraintViolation:
    # 23503 and 23001: foreign_key_violation and restrict_violation.
    sqlstate = getattr(error.orig, "sqlstate", None)
    name = getattr(error.orig, "sqlite_errorname", None)
    return ConstraintViolation(
        foreign_key=sqlstate in ("23503", "23001") or name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    )


def _prepare_file(path: Path) -> None:
    try:
        # The file holds DSNs with passwords.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise MetadataError(
            f"can't open the metadata file {path}: {error.strerror}",
            hint="Its directory must exist and be writable.",
        ) from error
    # Not through the engine: the mode can't change inside a transaction.
    _enter_wal_mode(path)


def _enter_wal_mode(path: Path) -> None:
    """Put the file in WAL mode, where it stays; no lock is taken if it is already."""
    # Changing the mode takes an exclusive lock that SQLite's own busy handler does not wait for.
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as connection:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.Error as error:
            locked = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            if not locked or time.monotonic() > deadline:
                raise MetadataError(
                    f"the metadata file {path} can't be opened: {error}",
                    hint="It must be an SQLite database that no other program has locked.",
                ) from error
            time.sleep(0.05)
    if mode != "wal":
        raise MetadataError(
            f"the metadata file {path} can't be put in WAL mode",
            hint="It must be on a local file system: network file systems lack the locks.",
        )


def _json(value: object) -> str:
    return json.dumps(value, default=dict)  # JSON takes a dict, not any mapping


def _sqlite_engine(url: URL, patience: _Patience) -> Engine:
    engine = create_engine(
        url,
        json_serializer=_json,
        pool_size=sum(lane.connections for lane in _SQLITE_LANES.values()),
        # The driver must not begin transactions of its own accord: ``_begin`` does.
        connect_args={"timeout": TIMEOUT_S, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def _connect(dbapi_connection: Any, record: object) -> None:  # noqa: ARG001
        dbapi_connection.execute("PRAGMA foreign_keys=ON")
        dbapi_connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("spillway_writes", True):
            connection.exec_driver_sql("BEGIN")
            return
        # SQLite waits as long as it was told when it began to: a stop would wait for that.
        began = time.monotonic()
        connection.exec_driver_sql(f"PRAGMA busy_timeout={round(_LOCK_AGAIN_S * 1000)}")
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError as error:
                if not (_is_locked(error.orig or error) and patience.left_s(began) > 0):
                    raise
            else:
                break
        connection.exec_driver_sql(f"PRAGMA busy_timeout={TIMEOUT_S * 1000}")

    return engine


def _postgresql_engine(url: URL, patience: _Patience) -> Engine:
    engine = create_engine(
        url,
        json_serializer=_json,
        pool_size=sum(lane.connections for lane in LANES.values()),
        # The server may have gone since, and be back.
        pool_pre_ping=True,
        connect_args={
            "application_name": "spillway metadata",
            "client_encoding": "utf8",
            "tcp_user_timeout": TIMEOUT_S * 1000,
            "prepare_threshold": None,
        },
    )

    bounded = _bounded(patience)

    @event.listens_for(engine, "do_connect")
    def _do_connect(
        dialect: object, record: object, arguments: Any, parameters: dict[str, Any]
    ) -> Any:
        del dialect, record
        if patience.is_over:
            raise psycopg.OperationalError("it does not answer, and the service stops")
        parameters["connect_timeout"] = math.ceil(patience.connect_s)
        return bounded.connect(*arguments, **parameters)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # For the transaction alone: a pooler may give the session to others.
        options = connection.get_execution_options()
        timeout_ms = round(options.get("spillway_timeout_s", TIMEOUT_S) * 1000)
        lock_timeout_s = options.get("spillway_lock_timeout_s", 0)
        connection.exec_driver_sql(
            f"SELECT set_config('statement_timeout', '{timeout_ms}ms', true),"
            f" set_config('lock_timeout', '{lock_timeout_s}s', true),"
            f" set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true)"
        )

    return engine
