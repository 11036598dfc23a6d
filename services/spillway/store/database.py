"""Transactions of the metadata store, on threads of its own.

``Database.read()`` and ``Database.write()`` run a function in a transaction on a worker thread and
give what it returns. It gets a connection of SQLAlchemy's Core: neither the ORM nor
``sqlalchemy.ext.asyncio`` (which brings the ORM along) is ever imported, for a start's sake. A
transaction that can't commit leaves nothing behind. Once begun it runs to its end, though who waits
for it be cancelled.

In PostgreSQL a transaction that waits for another session's lock has a thread and a connection for
as long, so what must not wait for what else is waited for has some of its own (:data:`LANES`): a
lease is renewed though every other thread waits, and a slot's position stored though nobody can
read alerts. SQLite locks its file as a whole, so that no lane would be free there.

How long anything is waited for, :mod:`~spillway.store.patience` says, and what the two databases
need of SQLAlchemy, :mod:`~spillway.store.engines`.

Whatever goes wrong in a driver leaves here as :class:`~spillway.errors.MetadataError`, except
broken constraints, which the caller knows the meaning of (:class:`ConstraintViolation`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sqlalchemy import BigInteger, literal_column
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError

from spillway.errors import MetadataError, SpillwayError
from spillway.pg.connecting import NOT_ANSWERED
from spillway.store.engines import (
    is_locked,
    parse_url,
    postgresql_engine,
    prepare_file,
    sqlite_engine,
)
from spillway.store.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.engine import Connection


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
log = logging.getLogger(__name__)

T = TypeVar("T")


class ConstraintViolation(Exception):
    """A statement broke a constraint: *foreign_key* says which sort, a unique one otherwise."""

    def __init__(self, *, foreign_key: bool) -> None:
        super().__init__("foreign key" if foreign_key else "unique")
        self.foreign_key = foreign_key


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
        patience = Patience()
        lanes = _SQLITE_LANES if self.is_sqlite else LANES
        make_engine = sqlite_engine if self.is_sqlite else postgresql_engine
        connections = sum(lane.connections for lane in lanes.values())
        self._engine = make_engine(self._url, connections, patience)
        self._threads = {
            name: ThreadPoolExecutor(lane.connections, f"spillway-metadata-{name}")
            for name, lane in lanes.items()
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
        """Wait no longer than a service may that stops (:mod:`~spillway.store.patience`)."""
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
            prepare_file(path)
        except MetadataError as error:
            if not (_is_full(error.__cause__) and self._make_room()):
                raise
            prepare_file(path)

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
        is_silent = is_locked(error) or "timeout expired" in text
        if is_silent:
            self._patience.note_silence()
        hint = _HINTS[self.name]
        if is_silent or NOT_ANSWERED in text:
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


def _constraint(error: IntegrityError) -> ConstraintViolation:
    # 23503 and 23001: foreign_key_violation and restrict_violation.
    sqlstate = getattr(error.orig, "sqlstate", None)
    name = getattr(error.orig, "sqlite_errorname", None)
    return ConstraintViolation(
        foreign_key=sqlstate in ("23503", "23001") or name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    )
