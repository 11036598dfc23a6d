"""Transactions of the metadata store, on threads of its own, and the translation of drivers' errors.

``Database.read()`` and ``Database.write()`` run a function in a transaction on a worker thread and give what it returns.
A transaction that can't commit leaves nothing behind. Once begun it runs to its end, though who waits for it be cancelled.

Whatever goes wrong in a driver leaves here as :class:`~spillway.errors.MetadataError`, except broken
constraints, which the caller knows the meaning of (:class:`ConstraintViolation`).
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from spillway.errors import InvalidRequest, MetadataError
from spillway.store.sqlite import SqliteBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

_ACCEPTED: Final = "sqlite:///path/to/file, postgresql://user@host/database"

Row = dict[str, Any]
T = TypeVar("T")


class ConstraintViolation(Exception):
    """A statement broke a constraint: *foreign_key* says which sort, a unique one otherwise."""

    def __init__(self, *, foreign_key: bool) -> None:
        super().__init__("foreign key" if foreign_key else "unique")
        self.foreign_key = foreign_key


class Backend(Protocol):
    """What differs between the two databases. All but its constants runs on the store's threads."""

    #: the database as messages name it, without a password
    where: str
    #: what to check when it fails
    hint: str
    #: transactions at a time
    threads: int
    #: what its driver raises
    errors: tuple[type[Exception], ...]
    #: SQL for its clock, in milliseconds since 1970
    clock: str
    #: SQL behind a SELECT that keeps others from changing what it found
    lock_found: str
    #: SQL for the type of a moment
    moment_type: str
    #: SQL for whether there is a table *name*
    has_table: str
    #: SQLAlchemy's name of it and of the driver, for migrations
    sqlalchemy_url: str

    def prepare(self) -> None:
        """Make the database usable; may be repeated."""

    def connect(self, *, as_dicts: bool = True) -> Any:
        """Open a connection, whose rows are dicts or tuples."""

    def is_usable(self, connection: Any) -> bool:
        """Say whether a connection that has waited for its next use still works."""

    def begin(self, connection: Any, *, writes: bool) -> None:
        """Begin a transaction."""

    def execute(self, connection: Any, statement: str, values: Mapping[str, Any]) -> Any:
        """Execute a statement with ``:name`` where values go; return the cursor."""

    def lock_schema(self, connection: Any) -> None:
        """Let no other process create or migrate tables until the transaction's end."""

    def violated(self, error: Exception) -> bool | None:
        """Say of a broken constraint whether it is a foreign key; None of another error."""

    def moment(self, value: datetime) -> object:
        """Return what is stored for a moment."""


class Connection:
    """A transaction, as statements see it. Values stand in them as ``:name``."""

    def __init__(self, backend: Backend, connection: Any) -> None:
        self.backend = backend
        self.raw = connection

    def rows(self, statement: str, **values: Any) -> list[Row]:
        """Execute what gives rows, and give them."""
        found: list[Row] = self.backend.execute(self.raw, statement, values).fetchall()
        return found

    def row(self, statement: str, **values: Any) -> Row | None:
        """Execute what gives one row or none."""
        found = self.rows(statement, **values)
        return found[0] if found else None

    def run(self, statement: str, **values: Any) -> int:
        """Execute what gives no rows; return how many it was about."""
        count: int = self.backend.execute(self.raw, statement, values).rowcount
        return count


class Database:
    """Transactions on one of the two databases.

    Raises:
        InvalidRequest: it is not a URL, or of a database that metadata can't live in.
    """

    def __init__(self, url: str) -> None:
        self.backend = _backend(url)
        self._threads = ThreadPoolExecutor(self.backend.threads, "spillway-metadata")
        self._idle: list[Any] = []
        self._closed = False

    async def prepare(self) -> None:
        """Make the database usable: SQLite's file, readable by its owner alone. May be repeated."""
        await self._in_thread(self.backend.prepare)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a transaction that reads."""
        return await self._in_thread(self._transaction, work, writes=False)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a transaction that commits at its end, durably.

        Raises:
            ConstraintViolation: a statement in it broke a constraint.
        """
        return await self._in_thread(self._transaction, work, writes=True)

    async def close(self) -> None:
        """Close every connection; safe to call twice."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._close_idle)
            self._threads.shutdown(wait=False)

    def failed(self, error: Exception) -> MetadataError:
        """Return the error that says what *error* of a driver means."""
        # libpq's messages have lines.
        text = " ".join(str(error).split()) or type(error).__name__
        where, hint = self.backend.where, self.backend.hint
        return MetadataError(f"the metadata store {where} failed: {text}", hint=hint)

    async def _in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self._closed:
            raise MetadataError("the metadata store is closed", hint="The service is stopping.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    # ---- on a thread

    def _transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        backend = self.backend
        try:
            connection = self._take()
            try:
                backend.begin(connection, writes=writes)
                result = work(Connection(backend, connection))
                connection.commit()
            except BaseException:
                self._undo(connection)
                raise
        except backend.errors as error:
            foreign_key = backend.violated(error)
            if foreign_key is not None:
                raise ConstraintViolation(foreign_key=foreign_key) from error
            raise self.failed(error) from error
        self._give_back(connection)
        return result

    def _take(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.backend.connect()
            if self.backend.is_usable(connection):
                return connection
            self._drop(connection)

    def _give_back(self, connection: Any) -> None:
        if self._closed:
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _undo(self, connection: Any) -> None:
        try:
            connection.rollback()
        except self.backend.errors:
            self._drop(connection)
        else:
            self._give_back(connection)

    def _drop(self, connection: Any) -> None:
        with contextlib.suppress(*self.backend.errors):
            connection.close()

    def _close_idle(self) -> None:
        while self._idle:
            self._drop(self._idle.pop())


def _backend(url: str) -> Backend:
    scheme, separator, rest = url.partition("://")
    # The driver that SQLAlchemy's URLs name is ours to choose.
    name = scheme.partition("+")[0].lower()
    if not separator or not name:
        raise InvalidRequest("the metadata URL can't be parsed", hint=f"Accepted: {_ACCEPTED}.")
    if name == "sqlite":
        return SqliteBackend(rest)
    if name in ("postgresql", "postgres"):
        # psycopg is imported by a service that has sources anyway, but not before it decodes.
        from spillway.store.postgresql import PostgresqlBackend  # noqa: PLC0415

        return PostgresqlBackend(f"postgresql://{rest}")
    raise InvalidRequest(f"metadata can't live in {scheme!r}", hint=f"Accepted: {_ACCEPTED}.")
