"""The two databases of a table sync: sessions on either, whose errors are typed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from spillway.apply.sync.copiers import connect_source
from spillway.apply.target.failures import from_postgres
from spillway.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.apply.target.stop import Stop
    from spillway.consumer.snapshots import Source

Connection = psycopg.Connection[tuple[Any, ...]]


class Sides:
    """See the module.

    Args:
        source: of the subscription's database; asked when it is needed first, for it connects.
        connect_target: opens a session on the target that may write, in autocommit, with
            session_replication_role as it may be, which is ended by the same.
        stopping: ends the sessions on the source once it is set: a question there waits for who
            has a table locked.
    """

    def __init__(
        self,
        source: Callable[[], Source],
        connect_target: Callable[[], Connection],
        stopping: Stop,
    ) -> None:
        self.source = source
        self.connect_target = connect_target
        self._stopping = stopping

    @contextmanager
    def source_session(self) -> Iterator[Connection]:
        """Be connected to the source for SQL, in autocommit.

        Raises:
            SourceError: it can't be reached, or refuses.
        """
        with connect_source(self.source().conninfo, self._stopping) as connection:
            try:
                connection.execute(
                    "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)"
                )
                yield connection
            except psycopg.Error as error:
                raise SourceError(
                    f"the source refused: {error}", hint="Check the source's log."
                ) from None

    @contextmanager
    def target_session(self) -> Iterator[Connection]:
        """Be connected to the target.

        Raises:
            TargetError: it can't be reached, or refuses.
        """
        try:
            with self.connect_target() as connection:
                yield connection
        except psycopg.Error as error:
            raise from_postgres(error, "table sync") from None
