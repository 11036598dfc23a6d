"""Scripts for several sessions of one database, where the order of statements across sessions
counts.

A script is a list of steps:

==================  ===============================================================================
``SQL``             in the first session
``N> SQL``          in session N
``N& SQL``          begun in session N, and left when it waits for a lock (or has ended already)
``N.``              session N's statement that waited ends now
``COPY table``      :data:`COPIED_ROWS` rows ``(i, 'copied i', NULL)`` from the client
``!WORD``           what the decoder's side calls WORD; see
                    :class:`~harness.standing_decoder.StandingDecoder`
a callable          called with the :class:`Sessions`
==================  ===============================================================================

``{0}`` in SQL is replaced by a name that is unique in the cluster, for objects that databases
share.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import psycopg

    from harness.cluster import Database

Step: TypeAlias = "str | Callable[[Sessions], None]"

COPIED_ROWS = 3000
_STEP = re.compile(r"(\d)([>&.]) ?(.*)", re.DOTALL)


class Sessions:
    """Sessions of *database* by number, each with *search_path*; closed at the end of the block."""

    def __init__(
        self,
        database: Database,
        *,
        search_path: str,
        unique: str,
        commands: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self.database = database
        self.unique = unique
        self._commands = commands or {}
        self._search_path = search_path
        self._connections: dict[str, psycopg.Connection[tuple[Any, ...]]] = {}
        self._waiting: dict[str, Future[None]] = {}
        self._threads = ThreadPoolExecutor(8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            if exc_type is not None:
                connection.cancel()
        self._threads.shutdown()
        for connection in self._connections.values():
            connection.close()
        if exc_type is None:
            assert not self._waiting, f"sessions {sorted(self._waiting)} still wait"

    def play(self, steps: Sequence[Step]) -> None:
        """Go through a script."""
        for step in steps:
            if callable(step):
                step(self)
                continue
            if step.startswith("!"):
                self._commands[step[1:]]()
                continue
            match = _STEP.fullmatch(step)
            number, kind, sql = match.groups() if match else ("1", ">", step)
            if kind == ">":
                self.execute(number, sql)
            elif kind == "&":
                self._begin(number, sql)
            else:
                self._waiting.pop(number).result(30)

    def session(self, number: str) -> psycopg.Connection[tuple[Any, ...]]:
        """Return the connection of a session; made when it is first asked for."""
        if number not in self._connections:
            connection = self._connections[number] = self.database.connect()
            connection.execute(f"SET search_path = {self._search_path}")
            # A script that waits for itself is a mistake, and says so.
            connection.execute("SET lock_timeout = '20s'")
        return self._connections[number]

    def execute(self, number: str, sql: str) -> None:
        """Run a statement in a session."""
        connection = self.session(number)
        sql = sql.replace("{0}", self.unique)
        if sql.startswith("COPY ") and "'" not in sql:
            with connection.cursor().copy(f"{sql} FROM STDIN") as copy:
                for i in range(COPIED_ROWS):
                    copy.write_row((i, f"copied {i}", None))
        else:
            connection.execute(sql)

    def _begin(self, number: str, sql: str) -> None:
        assert number not in self._waiting
        connection = self.session(number)
        future = self._waiting[number] = self._threads.submit(self.execute, number, sql)
        deadline = time.monotonic() + 30
        # In another database: this one's catalogs may be locked.
        with self.database.cluster.connect() as observer:
            while not future.done():
                waits = observer.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                    [connection.info.backend_pid],
                ).fetchone()
                if waits:
                    return
                assert time.monotonic() < deadline, f"neither waits nor ends: {sql}"
                time.sleep(0.005)
