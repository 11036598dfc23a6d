"""Both sides of a comparison: tables as they are published and as the target has them, snapshots of
the source, and how far the target is.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg

from spillway.apply.sync.published import describe, list_tables
from spillway.apply.sync.states import TableStates
from spillway.apply.tables.matching import match_all
from spillway.apply.target.connection import connect_target
from spillway.apply.target.failures import from_postgres
from spillway.apply.verify.pairs import print_alike
from spillway.consumer.snapshots import SourceTable
from spillway.errors import HINT, NotReady, SpillwayError, TargetNotPermitted, UnknownTable
from spillway.pg.byte_session import take_bytes
from spillway.pg.lsn import Lsn
from spillway.receiver.table_privileges import Lack, not_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from spillway.apply.sync.published import Heap, PublishedTable
    from spillway.apply.sync.states import TableState
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.verify.pairs import Connection, TablePair
    from spillway.apply.verify.settings import VerifySettings
    from spillway.consumer.slot import SlotClient
    from spillway.consumer.snapshots import Source, SourceSnapshot

_POLL_S: Final = 0.1
#: for a lock on the target
_LOCK_TIMEOUT: Final = "10s"
#: SQLSTATEs, or their beginnings, that are no single table's: no connection, no resources, a
#: shutdown, what passes by itself
_OF_THE_SERVER: Final = ("08", "53", "57P", "40")
_PRIVILEGES: Final = """
SELECT current_user::text, pg_catalog.has_schema_privilege(relnamespace, 'USAGE'),
       pg_catalog.has_table_privilege(oid, 'SELECT'), pg_catalog.row_security_active(oid)
  FROM pg_catalog.pg_class WHERE oid = %s::oid
"""


class Altered(Exception):
    """A table is not defined as it was when its comparison began."""


class Sides:
    """The source and the target of a subscription.

    Args:
        settings: see :class:`VerifySettings`.
        client: of the service.
        source: where snapshots come from.
        tell: told what is being waited for.
    """

    def __init__(
        self,
        settings: VerifySettings,
        client: SlotClient,
        source: Source,
        tell: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.tell = tell
        self._client = client
        self._source = source

    def of_table(self, name: str) -> Sides:
        """Return both sides of that table alone."""
        settings = replace(self.settings, tables=(name,))
        return Sides(settings, self._client, self._source, self.tell)

    def wanted(self) -> dict[str, PublishedTable | SpillwayError]:
        """Return the tables that are compared, as they are published, or one's trouble."""
        with closing(self._source.connected()) as connection:
            take_bytes(connection, shown=True)
            found = self._described(connection, self.settings.tables)
        for name in self.settings.tables:
            if name not in found:
                raise UnknownTable(
                    f"the subscription has no table {name}",
                    hint=f"It has {', '.join(found) or 'none'}.",
                    relation=name,
                )
        return found

    def _described(
        self, connection: Connection, wanted: Collection[str]
    ) -> dict[str, PublishedTable | SpillwayError]:
        """Return the tables that are *wanted*, all if none is, as *connection*, to the source, has
        them published.
        """
        publications = self.settings.selection.publications or ()
        there = {
            (schema, name): oid
            for (schema, name), oid in list_tables(
                connection, publications, self.settings.selection.has
            ).items()
            if not wanted or f"{schema}.{name}" in wanted
        }
        described = describe(connection, publications, there)
        return {f"{schema}.{name}": table for (schema, name), table in described.items()}

    def altered(self, snapshot: SourceSnapshot, tables: Mapping[str, PublishedTable]) -> set[str]:
        """Return which of *tables*, which *snapshot* has locked, the source defines otherwise."""
        if not tables:
            return set()
        take_bytes(snapshot.connection, shown=True)
        now = self._described(snapshot.connection, tables)
        return {name for name, table in tables.items() if not _is_alike(table, now.get(name))}

    @contextmanager
    def target(self) -> Iterator[Connection]:
        connection = connect_target(self.settings.target_dsn, "spillway verify")
        try:
            print_alike(connection)
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            yield connection
        except psycopg.Error as error:
            raise self.refused(error, "rows can't be compared") from error
        finally:
            connection.close()

    def snapshot(self, heaps: Sequence[Heap]) -> SourceSnapshot:
        # What has no blocks has no shape that could change.
        tables = [SourceTable(h.schema, h.table, h.size_bytes) for h in heaps if h.kind == "r"]
        return self._source.snapshot(tables, self.tell, threading.Event())

    def wait(self, lsn: int) -> None:
        deadline = time.monotonic() + self.settings.timeout_s
        told = False
        while True:
            reached = self._client.position(self.settings.slot).confirmed_flush_lsn
            if reached >= lsn:
                return
            if not told:
                told = True
                self.tell(f"waiting for the subscription to reach {Lsn(lsn)}")
            if time.monotonic() > deadline:
                raise NotReady(
                    f"slot {self.settings.slot} is confirmed to {Lsn(reached)}, not to {Lsn(lsn)},"
                    f" after {self.settings.timeout_s:.0f} s",
                    hint="Does the subscription run, and is it not far behind? One that is paused "
                    "or stopped by an error can't be compared: resume it. Or give it longer with "
                    "--timeout.",
                )
            time.sleep(_POLL_S)

    def applied(self, target: Connection) -> tuple[int, dict[str, str]]:
        """Return up to where the target's snapshot has the source's transactions, and none behind;
        -1 if it does not say. And of each table why it can't be compared yet: '' of one that the
        stream writes.
        """
        there = target.execute(
            "SELECT pg_catalog.to_regclass('spillway.progress') IS NOT NULL,"
            " pg_catalog.to_regclass('spillway.tables') IS NOT NULL,"
            " pg_catalog.has_table_privilege("
            "pg_catalog.to_regclass('spillway.committed'), 'SELECT')"
        ).fetchone()
        assert there is not None
        applied, states = -1, {}
        if there[0]:
            row = target.execute(
                "SELECT remote_lsn::text FROM spillway.progress WHERE subscription = %s",
                [self.settings.subscription],
            ).fetchone()
            applied = -1 if row is None else int(Lsn.parse(row[0]))
        # By commit_order relaxed it may have groups behind its position.
        is_ahead = there[2] is False
        if there[2]:
            is_ahead = bool(
                target.execute(
                    "SELECT FROM spillway.committed WHERE subscription = %s",
                    [self.settings.subscription],
                ).fetchall()
            )
        if is_ahead:
            applied = -1
        if there[1]:
            tables = TableStates(target, self.settings.subscription).all().values()
            states = {table.name: _why_not_yet(table) for table in tables}
        return applied, states

    def check_target(self, pair: TablePair, target: Connection) -> None:
        """Check that the target's table is defined as it was.

        Raises:
            Altered: it isn't.
        """
        relation = pair.matched.relation
        now = match_all(target, [relation], self.settings.rename.target_of)[relation.relation_id]
        if isinstance(now, SpillwayError) or _shape(now) != _shape(pair.matched):
            raise Altered

    def refused(self, error: psycopg.Error, what: str) -> SpillwayError:
        """Make the typed error of what the target refused."""
        told = from_postgres(error, what, self.settings.target_dsn)
        if isinstance(error, psycopg.errors.LockNotAvailable):
            told.hint = (
                f"Somebody has had it, or a row of it, locked there for {_LOCK_TIMEOUT}: "
                "pg_blocking_pids() says who. Run this again when that is over."
            )
        return told

    def not_permitted(
        self, error: psycopg.Error, target: Connection, matched: MatchedTable
    ) -> SpillwayError:
        """Make the error of a table of the target that the role may not read, with the SQL that
        mends it.
        """
        row = target.execute(_PRIVILEGES, [matched.oid]).fetchone()
        assert row is not None
        role, usage, select, policies = row
        if usage and select and not policies:
            return self.refused(error, f"rows of {matched.schema}.{matched.name} can't be read")
        lack = Lack(matched.schema, matched.name, not usage, not select, policies)
        told = not_readable(role, [lack], target.info.server_version)
        return TargetNotPermitted(
            f"on the target, {told.message}", hint=told.hint, sqlstate="42501"
        )


def is_the_tables_own(error: SpillwayError) -> bool:
    """Say whether other tables may be gone on with: both servers are there, and one refused
    something.
    """
    if isinstance(error, NotReady):
        return False
    if "relation" in error.details or "relations" in error.details:
        return True
    state = str(error.details.get("sqlstate") or "08")
    return not state.startswith(_OF_THE_SERVER)


def _is_alike(table: PublishedTable, now: PublishedTable | SpillwayError | None) -> bool:
    """Say whether a table of the source is published *now* as it was."""
    if now is None or isinstance(now, SpillwayError):
        return False

    def of(one: PublishedTable) -> tuple[object, ...]:
        heaps = tuple((heap.oid, heap.schema, heap.table) for heap in one.heaps)
        return one.relation, one.kind, one.filters, heaps

    return of(table) == of(now)


def _shape(matched: MatchedTable) -> tuple[object, ...]:
    """Return how a table of the target is defined, as far as it counts here."""
    return matched.oid, matched.kind, matched.columns, matched.unsent, matched.find, matched.key


def _why_not_yet(table: TableState) -> str:
    """Say why a table is not compared yet: '' of one that the stream writes."""
    if table.is_synchronized:
        return ""
    why = table.error.replace(HINT, ". ")
    if table.is_set_aside:
        return why
    return f"its first copy is not done (state {table.state.value})" + (f": {why}" if why else "")
