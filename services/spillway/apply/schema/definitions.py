"""What the two sides' catalogs say of a table, for who compares it with an event: the target's as
it is within the open transaction, and of the source what only a server prints.

The source is asked now, which may be later than the event. Its present defaults and bounds are
right all the same: a default counts for rows that are yet to come, and a later change of it has an
event of its own.

It may be earlier, too. A commit's record is in WAL before others see what it did: for a moment, or
for as long as it waits for a synchronous standby. Whoever asks for an event's sake waits until its
transaction is seen (:meth:`SourceCatalog.as_of`); else a new partition would be none, silently.
Nobody waits for one that is prepared: what it did is seen when it is committed, after it was to be
written.

Source: RecordTransactionCommit, CommitTransaction (src/backend/access/transam/xact.c)
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.sync.copiers import connect_source
from spillway.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway.apply.target.stop import Stop

    Connection = psycopg.Connection[tuple[Any, ...]]

_TABLE: Final = """
SELECT c.oid, c.relkind::text, pn.nspname::text, p.relname::text,
       ARRAY (SELECT a.attname::text FROM pg_catalog.pg_index i,
                     pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, place),
                     pg_catalog.pg_attribute a
               WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid
                 AND a.attnum = k.attnum AND k.place <= i.indnkeyatts ORDER BY k.place)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_inherits h ON c.relispartition AND h.inhrelid = c.oid
  LEFT JOIN pg_catalog.pg_class p ON p.oid = h.inhparent
  LEFT JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
 WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS: Final = """
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, a.attgenerated::text,
       CASE WHEN a.attcollation <> 100 THEN co.collname::text END
  FROM pg_catalog.pg_attribute a
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_EXPRESSIONS: Final = """
SELECT d.adnum::int, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
  FROM pg_catalog.pg_attrdef d WHERE d.adrelid = %s::oid
"""
_DOMAIN_DEFAULT: Final = """
SELECT typdefault IS NOT NULL FROM pg_catalog.pg_type WHERE oid = %s::oid AND typtype = 'd'
"""
_BOUND: Final = """
SELECT pg_catalog.pg_get_expr(c.relpartbound, c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_inherits h ON h.inhrelid = c.oid
 WHERE c.oid = %s::oid AND h.inhparent = %s::oid
"""
_PARTITION_KEY: Final = "SELECT pg_catalog.pg_get_partkeydef(%s::oid)"
_PUBLISHED: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_publication p,
                LATERAL pg_catalog.pg_get_publication_tables(p.pubname::text) t
     WHERE p.pubname = ANY (%s)
       AND (t.relid = ANY (%s::oid[])
            OR EXISTS (SELECT FROM pg_catalog.pg_partition_tree(t.relid) m
                        WHERE m.relid = ANY (%s::oid[]))
            OR t.relid IN (SELECT m.relid FROM pg_catalog.pg_partition_tree(%s::oid) m)))
"""

#: Whether a transaction that has committed is seen, by its xid of 32 bits: the one of 64 bits is
#: that which is nearest to the next.
_IS_SEEN: Final = """
SELECT pg_catalog.pg_visible_in_snapshot(
           (n.next + ((%s::int8 - n.next) %% 4294967296 + 6442450944) %% 4294967296 - 2147483648
           )::text::xid8, s.snapshot)
  FROM (SELECT pg_catalog.pg_current_snapshot() AS snapshot) s,
       LATERAL (SELECT pg_catalog.pg_snapshot_xmax(s.snapshot)::text::int8 AS next) n
"""
#: for a transaction to be seen
_WAIT_S: Final = 5.0
_LOOK_FIRST_S: Final = 0.001
_LOOK_MAX_S: Final = 0.05
_PUBLISHED_ITSELF: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_publication p,
                LATERAL pg_catalog.pg_get_publication_tables(p.pubname::text) t
     WHERE p.pubname = ANY (%s) AND t.relid = %s::oid)
"""
_IN_PART: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_publication p
      JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
     WHERE p.pubname = ANY (%s) AND r.prrelid = ANY (%s::oid[])
       AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL))
"""
#: Row filters and column lists.
_FILTERS: Final = 150000

_HEIRS: Final = """
WITH RECURSIVE heir AS (
    SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %s AND c.relname = %s
    UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN heir ON i.inhparent = heir.oid)
SELECT n.nspname::text, c.relname::text FROM heir
  JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""

_IDENTITY: Final = {"a": "always", "d": "by default"}
_GENERATED: Final = {"s": "stored", "v": "virtual"}


@dataclass(frozen=True, slots=True)
class TargetColumnNow:
    """A column of the target's table."""

    type: str
    not_null: bool
    default: str | None
    identity: str | None
    generated: str | None
    collation: str | None


@dataclass(frozen=True, slots=True)
class TargetTableNow:
    """A table of the target."""

    is_partitioned: bool
    #: schema and name of what it is a partition of
    parent: tuple[str, str] | None
    primary_key: tuple[str, ...]
    columns: Mapping[str, TargetColumnNow] = field(default_factory=dict)


def has_schema(connection: Connection, name: str) -> bool:
    """Say whether the target has a schema.

    Raises:
        psycopg.Error: the target did not answer.
    """
    query = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s"
    return bool(connection.execute(query, [name]).fetchall())


def target_table(connection: Connection, name: tuple[str, str]) -> TargetTableNow | None:
    """Return a table of the target as the open transaction sees it; None without one.

    Raises:
        psycopg.Error: the target did not answer.
    """
    found = connection.execute(_TABLE, name).fetchone()
    if found is None:
        return None
    oid, kind, parent_schema, parent, key = found
    columns = {
        column: TargetColumnNow(
            type_name,
            not_null,
            None if generated else default,
            _IDENTITY.get(identity),
            _GENERATED.get(generated),
            collation,
        )
        for column, type_name, not_null, default, identity, generated, collation in (
            connection.execute(_COLUMNS, [oid])
        )
    }
    return TargetTableNow(
        kind == "p",
        None if parent is None else (parent_schema, parent),
        tuple(key),
        columns,
    )


def target_heirs(connection: Connection, name: tuple[str, str]) -> set[tuple[str, str]]:
    """Return a table of the target and all that inherit from it, partitions of partitions too; no
    table when there is none of that name.

    Raises:
        psycopg.Error: the target did not answer.
    """
    return set(connection.execute(_HEIRS, name).fetchall())


class SourceCatalog:
    """The source, asked for what an event can't say; connected to when it is asked first.

    Args:
        dsn: a libpq connection string.
        stop: ends the session once it is set: a question waits for who has a table locked.
    """

    def __init__(self, dsn: str, stop: Stop) -> None:
        self._dsn = dsn
        self._stop = stop
        self._connection: Connection | None = None
        #: whose event it is asked for, until that is seen
        self._unseen: int | None = None
        self._waits = True

    def as_of(self, xid: int, *, is_prepared: bool = False) -> None:
        """Have who asks next wait until the source shows what transaction *xid* did, which has
        committed; one that *is_prepared* is not waited for.
        """
        self._unseen, self._waits = xid, not is_prepared

    @property
    def shows_event(self) -> bool:
        """Whether the last answer was of a source that shows what the event's transaction did."""
        return self._unseen is None

    def close(self) -> None:
        """End the session, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend the connection, in autocommit, with an empty search_path.

        Raises:
            SourceError: the source can't be reached, or refuses, or does not show what it is to be
                asked about.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect_source(self._dsn, self._stop)
            self._connection.execute("SELECT pg_catalog.set_config('search_path', '', false)")
        try:
            if self._unseen is not None and _is_seen(
                self._connection, self._unseen, _WAIT_S if self._waits else 0.0
            ):
                self._unseen = None
            if self._unseen is not None and self._waits:
                raise SourceError(
                    f"transaction {self._unseen} has committed on the source, and nobody sees there"
                    " yet what it did",
                    hint="It waits for a synchronous standby, as those that committed since do: "
                    "have one connect, or take it out of synchronous_standby_names on the source. "
                    "Then it goes on by itself.",
                    xid=self._unseen,
                )
            yield self._connection
        except psycopg.Error as error:
            raise SourceError(
                f"the source can't be asked for a definition: {' '.join(str(error).split())}",
                hint="Check that the source runs, and its log; it is tried again.",
            ) from None

    def expressions(self, oid: int) -> dict[int, str]:
        """Return what columns of a table have as default, or are generated by, by attnum."""
        with self.connected() as connection:
            return dict(connection.execute(_EXPRESSIONS, [oid]).fetchall())

    def is_domain_with_default(self, type_oid: int) -> bool:
        """Say whether a type is a domain that has a default, its base type's among them."""
        with self.connected() as connection:
            found = connection.execute(_DOMAIN_DEFAULT, [type_oid]).fetchone()
        return found is not None and bool(found[0])

    def bound(self, oid: int, parent: int) -> str | None:
        """Return a table's bounds as a partition of *parent*, an OID: ``FOR VALUES …`` or DEFAULT;
        None: it is none by now, or another table's.
        """
        with self.connected() as connection:
            found = connection.execute(_BOUND, [oid, parent]).fetchone()
        return None if found is None else found[0]

    def partition_key(self, oid: int) -> str | None:
        """Return what a partitioned table is partitioned by; None for another."""
        with self.connected() as connection:
            found = connection.execute(_PARTITION_KEY, [oid]).fetchone()
        return None if found is None else found[0]

    def publishes(self, publications: Sequence[str], oid: int, above: Sequence[int]) -> bool:
        """Say whether one of *publications* publishes a table, or what it is a partition of, or
        has been: *above*, as what those are partitions of.
        """
        with self.connected() as connection:
            oids = [oid, *above]
            values = [list(publications), oids, oids, oid]
            found = connection.execute(_PUBLISHED, values).fetchone()
        return found is not None and bool(found[0])

    def publishes_itself(self, publications: Sequence[str], oid: int, above: Sequence[int]) -> bool:
        """Say whether one of *publications* publishes a table, and none of them only some rows or
        columns of it or of *above*.
        """
        with self.connected() as connection:
            named = list(publications)
            found = connection.execute(_PUBLISHED_ITSELF, [named, oid]).fetchone()
            if found is None or not found[0] or connection.info.server_version < _FILTERS:
                return found is not None and bool(found[0])
            found = connection.execute(_IN_PART, [named, [oid, *above]]).fetchone()
        return found is not None and not found[0]


def _is_seen(connection: Connection, xid: int, wait_s: float) -> bool:
    """Say whether others see what a transaction did; wait for that.

    Raises:
        psycopg.Error: the source did not answer.
    """
    deadline, pause_s = time.monotonic() + wait_s, _LOOK_FIRST_S
    while connection.execute(_IS_SEEN, [xid]).fetchone() != (True,):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_MAX_S)
    return True
