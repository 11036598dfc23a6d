"""``spillway subscription verify`` and ``repair``: the target against its source while the
subscription runs.

::

    snapshot of the source, as of S ──▶ wait until the slot is confirmed past S
        ──▶ snapshot of the target, which is as of P
    P ≤ S: both are as of S, so every difference is one
    P > S: what differs is looked at again, key by key

The target has every transaction before S by then, and maybe some after it. Where it has some, a key
that differs is decided by a closer look::

    the source's row, as of S' ──▶ wait until S' is confirmed ──▶ the target's row
        ──▶ the source's row, as of S" behind all that the target had

If the source's row is the same version at both ends, nothing that the target applied meanwhile was
about it, and the target's row must equal it. If the versions differ, the key is looked at again, a
few times; a key that is written to all the time stays undecided, and the report says so. S" is a
snapshot at an LSN as S' is, and not what a session sees now: a commit is in WAL, and may be on the
target, before it is seen on the source, for as long as it waits for a synchronous standby.

**What repair guarantees.** It locks the target's row, so that the subscription's program, which may
want to write to it, waits; it checks that the source's row is still of the version that the target
has been brought past; and only then it writes that row and commits. All that was committed to the
row before is thus on the target or overwritten by the source's newest, and what comes after is
applied on top. What it writes has an origin of the subscription's: it is nobody's local row. A row
that the target lacks can't be locked: should the source write to it within the same moment, the
change finds no row and is dropped (``update_missing``), so keys are compared again once they are
repaired, and repaired again if they differ. Repair never touches a row that is equal.

Rows may have swapped what a unique index of the target watches, and one statement that updates them
meets the other's value then. Such rows are deleted and inserted again, all that differ at once,
where nothing else takes effect by that: a foreign key that cascades would take other rows with it.

What a server refuses of a table (its rows may not be read, somebody has it locked) is said of it,
with the remedy, and the other tables are gone on with. What repair was refused stays as it was.

**Tables that are altered meanwhile.** A comparison has the columns of one moment. Where rows are
read or written it is looked first whether the table is defined as it was, under a lock that keeps
it so; if it isn't, all of that table is done anew. Else a row that is missing would be made without
a column that both sides have got since, and nobody would see it. Between two looks no lock of the
source is held.

The slot must move: a subscription that is paused, or stopped by an error, does not pass S.

Source: row versions are compared by xmin and ctid, as heap_fetch finds them
(src/backend/access/heap/heapam.c)
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.options import Rename
from spillway.apply.selection import Selection
from spillway.apply.sync.origins import mark
from spillway.apply.sync.published import describe, list_tables
from spillway.apply.sync.states import TableState, TableStates
from spillway.apply.tables.matching import match_all
from spillway.apply.target.connection import connect_target
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.session import grant_origins_sql
from spillway.apply.verify.pairs import TablePair, print_alike, speak_alike
from spillway.consumer.connect import DEFAULT_ADDRESS, connect, exports_of
from spillway.consumer.row_differences import Difference, differences
from spillway.consumer.snapshots import Source, SourceTable, names_any
from spillway.errors import (
    HINT,
    NotReady,
    SpillwayError,
    TargetError,
    TargetNotPermitted,
    UnknownTable,
)
from spillway.pg.byte_session import take_bytes
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.receiver.table_privileges import Lack, not_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from spillway.apply.changes import SourceRelation
    from spillway.apply.sync.published import Heap, PublishedTable
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.verify.pairs import Connection, Found, Key
    from spillway.consumer.row_checksums import TextForm
    from spillway.consumer.slot import SlotClient
    from spillway.consumer.snapshots import SourceSnapshot

_POLL_S: Final = 0.1
#: Keys of a table that are said to be undecided, one by one.
_SAID_MAX: Final = 20
#: Looks at keys that are written to meanwhile.
_LOOKS: Final = 5
#: Keys of a table that may differ only by what was written meanwhile: more are not looked at.
_LOOKED_AT: Final = 10_000
#: Keys that are looked at, and repaired, at once.
_KEYS_AT_ONCE: Final = 1000
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
#: SQLSTATEs of a row that another one is in the way of
_IN_THE_WAY: Final = frozenset({"23505", "23P01"})
#: The name of an operator; ``OPERATOR("My schema".=)``
_OPERATOR: Final = re.compile(r"\.([^.]+)\)$")
_CLASS_OF_CONSTRAINTS: Final = "23"
_TRIGGERS_REST: Final = (
    "Foreign keys and triggers are in force for this role: repair as a superuser, or from 15 on "
    "GRANT SET ON PARAMETER session_replication_role to it."
)
#: Comparisons of a table that is altered meanwhile.
_ANEW_MAX: Final = 4
_ALTERED: Final = (
    "it was altered, or was about to be, each time that it was looked at. Run this again when no "
    "ALTER TABLE is at work on it"
)
_NO_KEY: Final = (
    "nothing tells its rows apart. Leave it out of the subscription, empty it on the target, and "
    "name it again: it is copied anew"
)
_OF_THE_SYSTEM: Final = "OPERATOR(pg_catalog."
_EQUAL: Final = "OPERATOR(pg_catalog.=)"
#: Of columns of a table: their types, and the equality of such a name between two of its values,
#: of what the type is a domain over.
_TYPES: Final = """
WITH RECURSIVE named AS (
    SELECT * FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
        n(name, operator)
), base AS (
    SELECT attname::text AS name, atttypid, atttypid AS oid
      FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT b.name, b.atttypid, t.typbasetype
      FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT b.name, pg_catalog.format_type(b.atttypid, -1),
       pg_catalog.max(CASE WHEN o.oid IS NOT NULL THEN
           pg_catalog.format('OPERATOR(%%I.%%s)', s.nspname, o.oprname) END)
  FROM base b LEFT JOIN named n USING (name)
  LEFT JOIN pg_catalog.pg_operator o
    ON o.oprname OPERATOR(pg_catalog.=) n.operator AND o.oprleft = b.oid AND o.oprright = b.oid
  LEFT JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
 GROUP BY b.name, b.atttypid
"""


class _Altered(Exception):
    """A table is not defined as it was when its comparison began."""


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What both commands are told."""

    slot: str
    source_dsn: str = field(repr=False)
    target_dsn: str = field(repr=False)
    #: whose progress and table states the target has
    subscription: str = ""
    #: ``schema.table`` on the source, of those that are selected; empty: all of them
    tables: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    rename: Rename = field(default_factory=Rename)
    #: differences to name, per table
    limit: int = 20
    #: how long the subscription may take until it reaches a snapshot
    timeout_s: float = 600.0
    grpc: str = DEFAULT_ADDRESS
    token: str = field(default="", repr=False)
    #: further options of :func:`spillway.consumer.connect.connect`
    client_options: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TableOutcome:
    """What came out for one table."""

    table: str
    source_rows: int = 0
    target_rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: there are differences that were not looked for
    more: bool = False
    #: keys that were written to at each look
    undecided: list[Key] = field(default_factory=list)
    repaired: int = 0
    #: why the table was not compared
    skipped: str = ""
    #: why rows of it could not be repaired
    refused: str = ""

    @property
    def equal(self) -> bool:
        return not (self.differences or self.more or self.undecided or self.skipped or self.refused)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.table}: not compared, {self.skipped}"
        said = "equal"
        if self.differences or self.more:
            said = "DIFFERENT"
        elif self.undecided:
            said = "undecided"
        counts = f"{self.source_rows} rows at the source, {self.target_rows} at the target"
        if self.repaired:
            counts += f", {self.repaired} keys repaired"
        lines = [f"{self.table}: {said}, {counts}"]
        lines += [f"  {difference}" for difference in self.differences]
        if self.more:
            lines.append("  and more")
        lines += [
            f"  ({', '.join(map(_said, key))}) is written to too often to be compared"
            for key in self.undecided[:_SAID_MAX]
        ]
        if len(self.undecided) > _SAID_MAX:
            lines.append(f"  and {len(self.undecided) - _SAID_MAX} more")
        if self.refused:
            lines.append(f"  not repaired: {self.refused}")
        return "\n".join(lines)


@dataclass(slots=True)
class Verification:
    """What came out: as of *lsn*, but for what the tables' outcomes say."""

    lsn: Lsn
    tables: list[TableOutcome]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)


def verify(
    settings: VerifySettings,
    *,
    repair: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    on_table: Callable[[TableOutcome], None] = lambda _: None,
) -> Verification:
    """Compare the target with its source, and with *repair* bring the keys in order that differ.

    Args:
        settings: see :class:`VerifySettings`; with *repair* its ``limit`` bounds how many keys of a
            table are repaired.
        repair: of tables with a key only.
        tell: told what is being waited for.
        on_table: called with each table's outcome as it is known.

    Raises:
        SourceError: the source gives no snapshot.
        TargetError: the target refuses.
        NotReady: the subscription did not reach the snapshot in time.
    """
    options = {"grpc": settings.grpc, "token": settings.token, **settings.client_options}
    with closing(connect(options)) as client:
        # Values are compared as both servers print them: the slot's options are nothing to that.
        source = Source(settings.source_dsn, {}, exports_of(options, settings.slot))
        run = _Run(settings, client, source, tell)
        return run.all(on_table, repair=repair)


class _Run:
    def __init__(
        self,
        settings: VerifySettings,
        client: SlotClient,
        source: Source,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._client = client
        self._source = source
        self._tell = tell
        self._said_unmarked = False

    def all(
        self, on_table: Callable[[TableOutcome], None], attempt: int = 1, *, repair: bool
    ) -> Verification:
        wanted = self._wanted()
        outcomes = {name: TableOutcome(name) for name in wanted}
        tables: dict[str, PublishedTable] = {}
        for name, one in wanted.items():
            if isinstance(one, SpillwayError):
                outcomes[name].skipped = _why(one)
            else:
                tables[name] = one
        pairs: dict[str, TablePair] = {}
        inexact = []
        with ExitStack() as held:
            snapshot = self._reached_snapshot(tables, outcomes)
            held.callback(snapshot.close)
            target = held.enter_context(self._target())
            target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            applied, states = self._applied(target)
            is_exact = 0 <= applied <= snapshot.lsn
            altered = self._altered(snapshot, tables)
            print_alike(snapshot.connection)
            forms = speak_alike(snapshot.connection, target)
            for name, table in tables.items():
                outcome = outcomes[name]
                if why := states.get(name, ""):
                    outcome.skipped = why
                    continue
                if name in altered:
                    continue
                try:
                    pair, found = self._compared(table, snapshot, target, forms, repair=repair)
                except SpillwayError as error:
                    if not _is_the_tables_own(error):
                        raise
                    outcome.skipped = _why(error)
                    continue
                pairs[name] = pair
                outcome.source_rows, outcome.target_rows = found.source_rows, found.target_rows
                outcome.differences, outcome.more = found.differences, found.more
                if found.differences and not is_exact:
                    inexact.append(name)
            lsn = Lsn(snapshot.lsn)
        for name, outcome in list(outcomes.items()):
            try:
                if name in altered:
                    raise _Altered  # noqa: TRY301 - as who finds it out later
                if name in pairs:
                    self._look_closer(
                        tables[name], pairs[name], outcome, name in inexact, repair=repair
                    )
            except _Altered:
                outcomes[name] = self._anew(outcome, attempt, repair=repair)
            on_table(outcomes[name])
        return Verification(lsn, list(outcomes.values()))

    def _look_closer(
        self,
        table: PublishedTable,
        pair: TablePair,
        outcome: TableOutcome,
        is_inexact: bool,
        *,
        repair: bool,
    ) -> None:
        """Decide about what differs, and with *repair* mend it."""
        differing = outcome.differences
        try:
            if differing and pair.key and (repair or is_inexact):
                keys = list(dict.fromkeys(d.key for d in differing))
                self._by_keys(table, pair, outcome, keys, repair=repair)
                if is_inexact and outcome.more and not outcome.differences:
                    # What was not looked at may have been written meanwhile, too.
                    self._again(table, pair, outcome)
            elif is_inexact:
                self._again(table, pair, outcome)
        except SpillwayError as error:
            if not _is_the_tables_own(error):
                raise
            if repair:
                outcome.refused = _why(error)
                outcome.differences = differing[:_SAID_MAX]
                outcome.more = outcome.more or len(differing) > _SAID_MAX
            else:
                # What was found may have been written meanwhile.
                outcome.skipped = _why(error)
        if repair and not pair.key and not outcome.equal:
            outcome.refused = _NO_KEY
        limit = self._settings.limit
        outcome.more = outcome.more or len(outcome.differences) > limit
        del outcome.differences[limit:]

    def _anew(self, outcome: TableOutcome, attempt: int, *, repair: bool) -> TableOutcome:
        """Do all of a table again that was altered; return what comes out."""
        if attempt == _ANEW_MAX:
            return replace(
                outcome,
                differences=[],
                more=False,
                undecided=[],
                skipped=outcome.skipped or _ALTERED,
            )
        self._tell(f"{outcome.table} was altered meanwhile: looking at it again")
        time.sleep(_POLL_S * attempt)
        again = _Run(
            replace(self._settings, tables=(outcome.table,)),
            self._client,
            self._source,
            self._tell,
        )
        try:
            (anew,) = again.all(lambda _: None, attempt + 1, repair=repair).tables
        except UnknownTable as error:
            anew = TableOutcome(outcome.table, skipped=_why(error))
        anew.repaired += outcome.repaired
        return anew

    def _altered(self, snapshot: SourceSnapshot, tables: Mapping[str, PublishedTable]) -> set[str]:
        """Return which of *tables*, which *snapshot* has locked, the source defines otherwise."""
        if not tables:
            return set()
        take_bytes(snapshot.connection, shown=True)
        now = self._described(snapshot.connection, tables)
        return {name for name, table in tables.items() if not _is_alike(table, now.get(name))}

    def _compared(
        self,
        table: PublishedTable,
        snapshot: SourceSnapshot,
        target: Connection,
        forms: tuple[TextForm, TextForm],
        *,
        repair: bool,
    ) -> tuple[TablePair, Found]:
        """Compare a table's rows as both snapshots have them; what fails ends neither of them."""
        source, relation = snapshot.connection, table.relation
        matched = match_all(target, [relation], self._settings.rename.target_of)[
            relation.relation_id
        ]
        if isinstance(matched, SpillwayError):
            raise matched
        pair = TablePair(table, matched, _types(source, relation, matched), forms)
        limit = self._settings.limit
        looked = limit if repair or not pair.key else max(limit, _LOOKED_AT)
        try:
            with source.transaction(), target.transaction():
                return pair, pair.compare(source, target, looked)
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._not_permitted(error, target, matched) from error
        except psycopg.Error as error:
            raise self._refused(error, f"rows of {pair.name} can't be compared") from error

    def _refused(self, error: psycopg.Error, what: str) -> SpillwayError:
        """Make the typed error of what the target refused."""
        told = from_postgres(error, what, self._settings.target_dsn)
        if isinstance(error, psycopg.errors.LockNotAvailable):
            told.hint = (
                f"Somebody has had it, or a row of it, locked there for {_LOCK_TIMEOUT}: "
                "pg_blocking_pids() says who. Run this again when that is over."
            )
        return told

    def _not_permitted(
        self, error: psycopg.Error, target: Connection, matched: MatchedTable
    ) -> SpillwayError:
        """Make the error of a table of the target that the role may not read, with the SQL that
        mends it.
        """
        row = target.execute(_PRIVILEGES, [matched.oid]).fetchone()
        assert row is not None
        role, usage, select, policies = row
        if usage and select and not policies:
            return self._refused(error, f"rows of {matched.schema}.{matched.name} can't be read")
        lack = Lack(matched.schema, matched.name, not usage, not select, policies)
        told = not_readable(role, [lack], target.info.server_version)
        return TargetNotPermitted(
            f"on the target, {told.message}", hint=told.hint, sqlstate="42501"
        )

    def _wanted(self) -> dict[str, PublishedTable | SpillwayError]:
        """Return the tables that are compared, as they are published, or one's trouble."""
        with closing(self._source.connected()) as connection:
            take_bytes(connection, shown=True)
            found = self._described(connection, self._settings.tables)
        for name in self._settings.tables:
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
        publications = self._settings.selection.publications or ()
        there = {
            (schema, name): oid
            for (schema, name), oid in list_tables(
                connection, publications, self._settings.selection.has
            ).items()
            if not wanted or f"{schema}.{name}" in wanted
        }
        described = describe(connection, publications, there)
        return {f"{schema}.{name}": table for (schema, name), table in described.items()}

    # ---- both sides

    @contextmanager
    def _target(self) -> Iterator[Connection]:
        connection = connect_target(self._settings.target_dsn, "spillway verify")
        try:
            print_alike(connection)
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            yield connection
        except psycopg.Error as error:
            raise self._refused(error, "rows can't be compared") from error
        finally:
            connection.close()

    def _snapshot(self, heaps: Sequence[Heap]) -> SourceSnapshot:
        # What has no blocks has no shape that could change.
        tables = [SourceTable(h.schema, h.table, h.size_bytes) for h in heaps if h.kind == "r"]
        return self._source.snapshot(tables, self._tell, threading.Event())

    def _reached_snapshot(
        self, tables: dict[str, PublishedTable], outcomes: Mapping[str, TableOutcome]
    ) -> SourceSnapshot:
        """Take a snapshot of the source, and wait until the target has all that it has. Tables that
        the source refuses are taken out of *tables*, and their outcomes say why.
        """
        while True:
            try:
                snapshot = self._snapshot([h for t in tables.values() for h in t.heaps])
                break
            except SpillwayError as error:
                refused = [
                    name
                    for name, table in tables.items()
                    if names_any(error, [f"{h.schema}.{h.table}" for h in table.heaps])
                ]
                if not refused:
                    raise
                for name in refused:
                    outcomes[name].skipped = _why(error)
                    del tables[name]
        try:
            self._wait(snapshot.lsn)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _wait(self, lsn: int) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        told = False
        while True:
            reached = self._client.position(self._settings.slot).confirmed_flush_lsn
            if reached >= lsn:
                return
            if not told:
                told = True
                self._tell(f"waiting for the subscription to reach {Lsn(lsn)}")
            if time.monotonic() > deadline:
                raise NotReady(
                    f"slot {self._settings.slot} is confirmed to {Lsn(reached)}, not to {Lsn(lsn)},"
                    f" after {self._settings.timeout_s:.0f} s",
                    hint="Does the subscription run, and is it not far behind? One that is paused "
                    "or stopped by an error can't be compared: resume it. Or give it longer with "
                    "--timeout.",
                )
            time.sleep(_POLL_S)

    def _applied(self, target: Connection) -> tuple[int, dict[str, str]]:
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
                [self._settings.subscription],
            ).fetchone()
            applied = -1 if row is None else int(Lsn.parse(row[0]))
        # By commit_order relaxed it may have groups behind its position.
        is_ahead = there[2] is False
        if there[2]:
            is_ahead = bool(
                target.execute(
                    "SELECT FROM spillway.committed WHERE subscription = %s",
                    [self._settings.subscription],
                ).fetchall()
            )
        if is_ahead:
            applied = -1
        if there[1]:
            tables = TableStates(target, self._settings.subscription).all().values()
            states = {table.name: _why_not_yet(table) for table in tables}
        return applied, states

    # ---- a closer look

    def _again(self, table: PublishedTable, pair: TablePair, outcome: TableOutcome) -> None:
        """Compare a table as a whole, until both sides are as of one LSN, or alike."""
        for _ in range(_LOOKS):
            with ExitStack() as held:
                snapshot = self._snapshot(table.heaps)
                held.callback(snapshot.close)
                if self._altered(snapshot, {pair.name: table}):
                    raise _Altered
                self._wait(snapshot.lsn)
                target = held.enter_context(self._target())
                target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                applied, _ = self._applied(target)
                self._check_target(pair, target)
                print_alike(snapshot.connection)
                speak_alike(snapshot.connection, target)
                found = pair.compare(snapshot.connection, target, self._settings.limit)
            outcome.source_rows, outcome.target_rows = found.source_rows, found.target_rows
            outcome.differences, outcome.more = found.differences, found.more
            if not found.differences or 0 <= applied <= snapshot.lsn:
                return
        outcome.undecided = list(dict.fromkeys(d.key for d in outcome.differences))
        outcome.differences, outcome.more = [], False

    def _by_keys(
        self,
        table: PublishedTable,
        pair: TablePair,
        outcome: TableOutcome,
        keys: list[Key],
        *,
        repair: bool,
    ) -> None:
        outcome.differences = []
        at, at_once = 0, _KEYS_AT_ONCE
        while at < len(keys):
            pending = keys[at : at + at_once]
            mended: set[Key] = set()
            for _ in range(_LOOKS):
                try:
                    differing, pending = self._look(table, pair, pending, repair=repair)
                except TargetError as error:
                    if (
                        error.details.get("sqlstate") not in _IN_THE_WAY
                        or len(keys) <= at + at_once
                    ):
                        raise
                    # What is in the way may be a row whose turn is later.
                    at_once = len(keys)
                    pending = keys[at:]
                    continue
                if repair:
                    # What was written is looked at once more.
                    repaired = {d.key for d in differing}
                    mended |= repaired
                    pending += list(repaired)
                else:
                    outcome.differences += differing
                if not pending:
                    break
            at += at_once
            outcome.undecided += pending
            outcome.repaired += len(mended - set(pending))

    def _look(
        self, table: PublishedTable, pair: TablePair, keys: list[Key], *, repair: bool
    ) -> tuple[list[Difference], list[Key]]:
        """Look at *keys* once: how those differ that can be told, which *repair* mends; and those
        that were written to meanwhile.
        """
        with self._target() as target:
            # It is not held while something is waited for: ALTER TABLE would wait for it, and
            # everybody, this session too, for ALTER TABLE.
            with closing(self._snapshot(table.heaps)) as snapshot:
                if self._altered(snapshot, {pair.name: table}):
                    raise _Altered
                print_alike(snapshot.connection)
                speak_alike(snapshot.connection, target)
                rows = pair.source_rows(snapshot.connection, keys)
                before = pair.source_versions(snapshot.connection, keys)
            self._wait(snapshot.lsn)
            if not repair:
                self._check_target(pair, target)
                return self._told(table, pair, keys, rows, before, target)
            self._mark(target)
            rests = False
            try:
                target.execute("BEGIN")
                rests = _rest_triggers(target)
                pair.lock_target_rows(target, keys)
                # Nobody alters it from here on.
                self._check_target(pair, target)
                differing, moved = self._told(table, pair, keys, rows, before, target)
                self._mend(target, pair, differing, rows, rests=rests)
                target.execute("COMMIT")
            except psycopg.errors.DeadlockDetected:
                # The program writes to these very rows, in an order of its own.
                target.execute("ROLLBACK")
                return [], keys
            except psycopg.Error as error:
                told = self._refused(error, f"rows of {pair.name} can't be repaired")
                if not rests and (error.sqlstate or "").startswith(_CLASS_OF_CONSTRAINTS):
                    told.hint = _TRIGGERS_REST
                raise told from error
        return differing, moved

    def _told(
        self,
        table: PublishedTable,
        pair: TablePair,
        keys: list[Key],
        rows: dict[str, list[Any]],
        before: dict[str, str],
        target: Connection,
    ) -> tuple[list[Difference], list[Key]]:
        """Compare *rows*, of which *before* has the versions, with the target's; part those that
        differ from those that were written to since.
        """
        theirs = pair.target_rows(target, keys)
        differing: dict[Key, list[Difference]] = {}
        for key in keys:
            text = pair.key_text(key)
            ours = rows.get(text, [])
            found = differences(
                text, ours, theirs.get(text, []), pair.columns, keyed=True, other="target"
            )
            if told := list(found):
                differing[key] = told
        if not differing:
            return [], []
        # Behind the end of WAL, and so behind all that the target had.
        with closing(self._snapshot(table.heaps)) as snapshot:
            if self._altered(snapshot, {pair.name: table}):
                raise _Altered
            print_alike(snapshot.connection)
            speak_alike(snapshot.connection, target)
            after = pair.source_versions(snapshot.connection, list(differing))
        texts = {key: pair.key_text(key) for key in differing}
        moved = [k for k, text in texts.items() if before.get(text) != after.get(text)]
        for key in moved:
            del differing[key]
        return [one for told in differing.values() for one in told], moved

    def _check_target(self, pair: TablePair, target: Connection) -> None:
        """Check that the target's table is defined as it was.

        Raises:
            _Altered: it isn't.
        """
        relation = pair.matched.relation
        now = match_all(target, [relation], self._settings.rename.target_of)[relation.relation_id]
        if isinstance(now, SpillwayError) or _shape(now) != _shape(pair.matched):
            raise _Altered

    def _mark(self, target: Connection) -> None:
        """Have what is written be the subscription's, if what it writes itself is."""
        if not (origin := self._origin(target)):
            return
        if not mark(target, origin) and not self._said_unmarked:
            self._said_unmarked = True
            self._tell(
                "what is repaired will be taken for somebody else's, by conflicts and by a "
                "subscription in the other direction: the target has no replication origin for "
                f"the role, or no room for one more. {grant_origins_sql(target.info.user)}"
            )

    def _origin(self, target: Connection) -> str | None:
        row = target.execute(
            "SELECT pg_catalog.to_regclass('spillway.progress') IS NOT NULL"
        ).fetchone()
        if row is None or not row[0]:
            return None
        row = target.execute(
            "SELECT origin FROM spillway.progress WHERE subscription = %s",
            [self._settings.subscription],
        ).fetchone()
        return None if row is None else row[0]

    def _mend(
        self,
        target: Connection,
        pair: TablePair,
        differing: list[Difference],
        rows: dict[str, list[Any]],
        *,
        rests: bool,
    ) -> None:
        def texts(only: str) -> dict[Key, list[Any]]:
            """Return the source's rows of those that differ so, by key."""
            keys = dict.fromkeys(d.key for d in differing if d.only == only)
            return {key: [row.texts for row in rows[pair.key_text(key)]] for key in keys}

        extra = [d.key for d in differing if d.only == "target"]
        if extra:
            pair.delete(target, extra)
        missing, changed = texts("source"), texts("")
        # A deletion has effects of its own where these are in force.
        has_effects = not rests and bool(pair.matched.references or pair.matched.fires)
        made_again = {
            key: changed.pop(key)
            for key in dict.fromkeys(
                d.key for d in differing if pair.unsettable.intersection(d.columns)
            )
        }
        if made_again and has_effects:
            raise TargetNotPermitted(
                f"rows of {pair.name} can't be repaired: only who makes a row again gives it "
                f"another value of a column GENERATED ALWAYS AS IDENTITY",
                hint=_TRIGGERS_REST,
                sqlstate="428C9",
            )
        target.execute("SAVEPOINT mended")
        try:
            if made_again:
                pair.replace(target, made_again)
            for some, write in ((missing, pair.insert), (changed, pair.update)):
                if some:
                    write(target, [one for row in some.values() for one in row])
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            changed |= made_again
            if has_effects or not changed:
                raise
            target.execute("ROLLBACK TO SAVEPOINT mended")
            pair.replace(target, changed)
            if missing:
                pair.insert(target, [one for row in missing.values() for one in row])


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


def _said(value: str | None) -> str:
    return "None" if value is None else readable(value)


def _is_the_tables_own(error: SpillwayError) -> bool:
    """Say whether other tables may be gone on with: both servers are there, and one refused
    something.
    """
    if isinstance(error, NotReady):
        return False
    if "relation" in error.details or "relations" in error.details:
        return True
    state = str(error.details.get("sqlstate") or "08")
    return not state.startswith(_OF_THE_SERVER)


def _why(error: SpillwayError) -> str:
    """Say what was refused, and what mends it."""
    return f"{error.message}. {error.hint}" if error.hint else error.message


def _why_not_yet(table: TableState) -> str:
    """Say why a table is not compared yet: '' of one that the stream writes."""
    if table.is_synchronized:
        return ""
    why = table.error.replace(HINT, ". ")
    if table.is_set_aside:
        return why
    return f"its first copy is not done (state {table.state.value})" + (f": {why}" if why else "")


def _rest_triggers(target: Connection) -> bool:
    """Write as the subscription's program does, where the role may; say whether it may."""
    try:
        with target.transaction():
            target.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _types(
    source: Connection, relation: SourceRelation, matched: MatchedTable
) -> dict[str, tuple[str, str]]:
    """Return type and equality of the columns of the source's table, as SQL has them there.

    The target's key says which equality a column has. Of the system's it is that; of an extension's
    type, such as citext, the source's operator of that name, wherever it lies there. A type that
    has none is another than the target's: the system's equality tells its values apart.
    """
    equalities = {relation.columns[key.position].name: key.equals for key in matched.key}
    names = {
        name: found[1]
        for name, equals in equalities.items()
        if not equals.startswith(_OF_THE_SYSTEM) and (found := _OPERATOR.search(equals))
    }
    asked = [list(names), list(names.values()), relation.relation_id]
    return {
        name: (
            type_name,
            operator or (_EQUAL if name in names else equalities.get(name, _EQUAL)),
        )
        for name, type_name, operator in source.execute(_TYPES, asked).fetchall()
    }
