"""Exactly once: the position in the user's own database, in the user's own transaction.

::

    position = Position("audit")
    with Slot(address, "audit", start_lsn=position.load(connection)) as slot:
        for tx in slot:
            with position.transaction(connection, tx):
                connection.execute(...)          # the user's work, in the same transaction

What a transaction did and the position behind it commit together, or not at all. Whoever dies, and
whenever, the next one begins behind the last transaction whose work is there. The slot is confirmed
only after that; where it is behind, the position counts.

The position moves by an UPDATE that names the position it was at, made before the work. So of two
consumers that both think the slot is theirs (one was paused, say) one waits for the other's row,
and then finds another position: PositionConflict, and none of its work stays.

Before COMMIT the position is read again. A block may have swallowed a statement's error, or ended
the transaction itself: COMMIT then commits nothing and raises nothing (PostgreSQL answers ROLLBACK,
which drivers don't look at), and the slot would be confirmed past work that nobody did.

It goes with any DB-API connection (psycopg, psycopg2, sqlite3, …) and with SQLAlchemy's Connection.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from spillway_client.errors import InvalidUse, PositionConflict
from spillway_client.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from spillway_client.transaction import Progress, Transaction

ParamStyle = Literal["qmark", "format", "pyformat", "numeric"]

_TABLE: Final = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_MARKERS: Final = {
    "qmark": ("?", "?", "?"),
    "format": ("%s", "%s", "%s"),
    "pyformat": ("%s", "%s", "%s"),
    "numeric": (":1", ":2", ":3"),
}


class _Statements:
    """The SQL of a position, and what it knows of it."""

    def __init__(self, name: str, table: str, paramstyle: ParamStyle | None) -> None:
        if not _TABLE.fullmatch(table):
            raise InvalidUse(
                f"{table!r} is no name for the table of positions",
                hint="Give a plain name, with a schema if you like: my_schema.spillway_position.",
            )
        if paramstyle is not None and paramstyle not in _MARKERS:
            raise InvalidUse(
                f"paramstyle is {paramstyle!r}", hint=f"It is one of {', '.join(_MARKERS)}."
            )
        self.name = name
        self._table = table
        self._paramstyle = paramstyle
        #: what the table had when it was last read or written; None before, and while that is not
        #: known
        self._lsn: Lsn | None = None

    @property
    def lsn(self) -> Lsn:
        """Everything before is done; 0 if nothing is.

        Raises:
            InvalidUse: it was not loaded, or the last transaction failed, so that nobody knows.
        """
        if self._lsn is None:
            raise InvalidUse(
                f"the position {self.name} is not known",
                hint="Call its load() on a connection first, after an error anew, and give Slot "
                "what it returns as start_lsn.",
            )
        return self._lsn

    def _create(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} (name varchar(200) PRIMARY KEY, lsn "
            "varchar(20) NOT NULL)"
        )

    def _select(self, markers: tuple[str, ...]) -> str:
        return f"SELECT lsn FROM {self._table} WHERE name = {markers[0]}"  # noqa: S608 - a checked name

    def _insert(self, markers: tuple[str, ...]) -> str:
        return f"INSERT INTO {self._table} (name, lsn) VALUES ({markers[0]}, {markers[1]})"  # noqa: S608

    def _update(self, markers: tuple[str, ...]) -> str:
        return (
            f"UPDATE {self._table} SET lsn = {markers[0]} "  # noqa: S608 - a checked name
            f"WHERE name = {markers[1]} AND lsn = {markers[2]}"
        )

    def _markers(self, connection: Any) -> tuple[str, ...]:
        return _MARKERS[self._paramstyle or _paramstyle_of(connection)]

    def _next(self, event: Transaction | Progress) -> tuple[Lsn, Lsn]:
        """Return the position that is stored, and the one behind *event*."""
        before = self.lsn
        if event.end_lsn <= before:
            raise PositionConflict(
                f"everything before {before} is done, and this transaction ends at {event.end_lsn}",
                hint="Give Slot what load() returns as start_lsn: then it does not come again.",
                position=self.name,
            )
        return before, event.end_lsn

    def _check_kept(self, row: Any, after: Lsn) -> None:
        if row is None or _lsn_of(row) != after:
            raise InvalidUse(
                f"the block ended the transaction in which the position {self.name} was moved to "
                f"{after}",
                hint="Leave commit and rollback to transaction(); around a statement that may fail "
                "use a savepoint. Then load() the position and begin a new Slot.",
            )

    def _check_updated(self, rows: int, before: Lsn) -> None:
        if rows != 1:
            raise PositionConflict(
                f"the position {self.name} is not at {before} any more",
                hint="Another consumer works with it. Stop one of them, load() the position and "
                "begin a new Slot.",
                position=self.name,
            )


class Position(_Statements):
    """The position of one slot's consumer, a row of a table in the user's database."""

    def __init__(
        self,
        name: str,
        *,
        table: str = "spillway_position",
        paramstyle: ParamStyle | None = None,
    ) -> None:
        """Name the row.

        Args:
            name: of the row; the slot's name is a good one.
            table: the table, which :meth:`load` creates where it is missing.
            paramstyle: of the connection's driver, as DB-API has it; None: asked of the driver.

        Raises:
            InvalidUse: *table* is no plain name.
        """
        super().__init__(name, table, paramstyle)

    def load(self, connection: Any) -> Lsn:
        """Read the position, and commit; the row is made where there is none.

        Returns:
            What Slot takes as ``start_lsn``; 0 for a new one.

        Raises:
            InvalidUse: *connection* is in autocommit mode.
        """
        _check_manual_commit(connection)
        markers = self._markers(connection)
        self._lsn = None
        try:
            _execute(connection, self._create(), ())
            row = _execute(connection, self._select(markers), (self.name,)).fetchone()
            if row is None:
                _execute(connection, self._insert(markers), (self.name, str(Lsn(0))))
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self._lsn = Lsn(0) if row is None else _lsn_of(row)
        return self._lsn

    @contextmanager
    def transaction(self, connection: Any, event: Transaction | Progress) -> Iterator[None]:
        """Do the work of *event*: what the block does on *connection* commits together with the
        position behind it.

        An error in the block rolls both back. So does one that the block swallowed and that failed
        the transaction: the driver says so before COMMIT. After any error :meth:`load` the position
        anew, and begin a new Slot with it: an error of COMMIT itself leaves open whether it was
        done.

        Raises:
            PositionConflict: the stored position is another one: another consumer works with it.
            InvalidUse: the position was not loaded, *connection* is in autocommit mode, or the
                block ended the transaction.
        """
        _check_manual_commit(connection)
        before, after = self._next(event)
        self._lsn = None
        try:
            moved = _execute(
                connection,
                self._update(self._markers(connection)),
                (str(after), self.name, str(before)),
            )
            self._check_updated(moved.rowcount, before)
            yield
            kept = _execute(connection, self._select(self._markers(connection)), (self.name,))
            self._check_kept(kept.fetchone(), after)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self._lsn = after


class AsyncPosition(_Statements):
    """:class:`Position` for connections whose methods are awaited, as those of psycopg's
    AsyncConnection.
    """

    def __init__(
        self,
        name: str,
        *,
        table: str = "spillway_position",
        paramstyle: ParamStyle | None = None,
    ) -> None:
        """Name the row; see :class:`Position`."""
        super().__init__(name, table, paramstyle)

    async def load(self, connection: Any) -> Lsn:
        """Read the position, and commit; see :meth:`Position.load`."""
        _check_manual_commit(connection)
        markers = self._markers(connection)
        self._lsn = None
        try:
            await connection.execute(self._create())
            cursor = connection.cursor(**_plain_rows(connection))
            await cursor.execute(self._select(markers), (self.name,))
            row = await cursor.fetchone()
            if row is None:
                await connection.execute(self._insert(markers), (self.name, str(Lsn(0))))
            await connection.commit()
        except BaseException:
            await connection.rollback()
            raise
        self._lsn = Lsn(0) if row is None else _lsn_of(row)
        return self._lsn

    @asynccontextmanager
    async def transaction(
        self, connection: Any, event: Transaction | Progress
    ) -> AsyncIterator[None]:
        """Do the work of *event*; see :meth:`Position.transaction`."""
        _check_manual_commit(connection)
        before, after = self._next(event)
        self._lsn = None
        try:
            moved = await connection.execute(
                self._update(self._markers(connection)), (str(after), self.name, str(before))
            )
            self._check_updated(moved.rowcount, before)
            yield
            kept = connection.cursor(**_plain_rows(connection))
            await kept.execute(self._select(self._markers(connection)), (self.name,))
            self._check_kept(await kept.fetchone(), after)
            await connection.commit()
        except BaseException:
            await connection.rollback()
            raise
        self._lsn = after


def _execute(connection: Any, statement: str, parameters: tuple[str, ...]) -> Any:
    if hasattr(connection, "exec_driver_sql"):
        # SQLAlchemy's
        return connection.exec_driver_sql(statement, parameters)
    cursor = connection.cursor(**_plain_rows(connection))
    cursor.execute(statement, parameters)
    return cursor


def _plain_rows(connection: Any) -> dict[str, Any]:
    """Return what a cursor of psycopg's is made with, whatever rows the user's are made into."""
    rows = sys.modules.get("psycopg.rows")
    is_psycopg = type(connection).__module__.partition(".")[0] == "psycopg"
    return {"row_factory": rows.tuple_row} if is_psycopg and rows is not None else {}


def _lsn_of(row: Any) -> Lsn:
    """Read a row of the table. Cursors of other drivers make dicts of it where the user wants that
    of all of a connection's.
    """
    return Lsn(str(row["lsn"] if isinstance(row, Mapping) else row[0]))


def _paramstyle_of(connection: Any) -> str:
    """Ask the driver how it marks parameters."""
    dialect = getattr(connection, "dialect", None)
    if dialect is not None:
        style = dialect.paramstyle
    else:
        # DB-API: a global of the driver's module, or of the package that it is in.
        name = type(connection).__module__
        while name and not hasattr(sys.modules.get(name), "paramstyle"):
            name = name.rpartition(".")[0]
        style = getattr(sys.modules.get(name), "paramstyle", None)
    if style not in _MARKERS:
        raise InvalidUse(
            f"how {type(connection).__module__} marks parameters is not known ({style})",
            hint=f"Give Position(..., paramstyle=...) one of {', '.join(_MARKERS)}.",
        )
    return str(style)


def _check_manual_commit(connection: Any) -> None:
    """Refuse a connection on which the position and the work would be transactions of their own."""
    is_sqlite = type(connection).__module__.partition(".")[0] == "sqlite3"
    implicit = is_sqlite and getattr(connection, "isolation_level", "") is None
    if getattr(connection, "autocommit", False) is True or (
        implicit and getattr(connection, "autocommit", -1) == -1
    ):
        raise InvalidUse(
            "the connection is in autocommit mode",
            hint="Give one whose transactions are ended by commit(): the position and the work are "
            "one transaction.",
        )
