"""Table sync of one subscription: what is missing is copied, then handed to the worker.

::

    first_copy (the worker's thread, before it streams)    i ─▶ d ─▶ f ─▶ s      FirstCopy
    a thread of its own, beside the stream                 i ─▶ d ─▶ f ─▶ (catch up) ─┐
    at_boundary (the worker's thread, between two groups)               f ─▶ s, s ─▶ r ◀┘   HandOver

This is the side that the worker talks to, and the thread beside the stream: which tables there are,
when they are looked up again, and sequences. How a table is copied is :mod:`first_copy`'s, how it
becomes the stream's :mod:`hand_over`'s.

The source is asked which tables it publishes whenever the program begins. If it can't be, and every
table is the stream's already, the stream goes on without it: the service has the WAL.

That it is asked is no refresh. What it publishes now is not what it published when that happened
which the stream is yet to bring, and may be another thing tomorrow: a table that is left out of a
publication, or dropped, goes on to be the subscription's, and no table that has rows of one which
is takes its place, before somebody wishes a refresh.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.sync import indexes, sequences
from spillway.apply.sync.copiers import source_lsn
from spillway.apply.sync.creation import MissingTables
from spillway.apply.sync.first_copy import FirstCopy, has_rows
from spillway.apply.sync.hand_over import HandOver
from spillway.apply.sync.held_snapshot import HeldSnapshot
from spillway.apply.sync.published import below, list_tables
from spillway.apply.sync.retries import FIRST_S, MOST_S, Retries
from spillway.apply.sync.setting_aside import table_of, why_aside
from spillway.apply.sync.sides import Sides
from spillway.apply.sync.states import SyncState, TableName, TableState, TableStates
from spillway.apply.target.failures import from_postgres
from spillway.errors import SourceError, SpillwayError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from spillway.apply.schema.following import Following
    from spillway.apply.sync.hand_over import CatchUp
    from spillway.apply.sync.settings import SyncSettings
    from spillway.apply.target.stop import Stop
    from spillway.consumer.slot import ExportedSnapshot

_log = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]

#: Which of the target's tables of some names are partitions of which.
_PARTITIONS: Final = """
SELECT n.nspname::text, c.relname::text, an.nspname::text, a.relname::text
  FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) w(schema, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name,
       LATERAL pg_catalog.pg_partition_ancestors(c.oid) p
  JOIN pg_catalog.pg_class a ON a.oid = p.relid
  JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace
 WHERE c.relispartition AND a.oid <> c.oid
"""
#: begins anew by itself, with what was copied taken away
_BEING_COPIED: Final = (SyncState.INIT, SyncState.DATA_SYNC, SyncState.FINISHED_COPY)
_POLL_S: Final = 0.2
#: how often it is looked whether tables that were set aside are empty
_ASIDE_LOOK_S: Final = 2.0
#: of the first copy, when connections break
_ATTEMPTS: Final = 6


class _Ahead:
    """Tables of which the source shows what the stream has yet to come to."""

    def __init__(self) -> None:
        #: where the source was when that was seen first
        self._seen_at: Mapping[TableName, int] = {}

    def still(
        self, tables: set[TableName], position: int, seen_at: Callable[[], int]
    ) -> set[TableName]:
        """Return which of *tables*, all of which it is so, the stream has not come to; *seen_at*
        says where the source is.
        """
        new = tables - self._seen_at.keys()
        now = seen_at() if new else 0
        at = {key: self._seen_at.get(key, now) for key in tables}
        ahead = {key for key, lsn in at.items() if position < lsn}
        # A new one is looked for once more in any case: the stream may have come there just now.
        self._seen_at = {key: at[key] for key in ahead | new}
        return ahead

    def is_passed(self, position: int) -> bool:
        """Say whether the stream has come to one of them."""
        return any(lsn <= position for lsn in self._seen_at.values())


class TableSync:
    """See the module's docstring.

    Args:
        subscription: its name.
        settings: its.
        source_dsn: a libpq connection string.
        connect_target: opens a session on the target that may write, in autocommit, with
            session_replication_role as it may be.
        exports: has the service hold a snapshot that is paired with an LSN
            (:func:`spillway.consumer.connect.exports_of`).
        catch_up: reads and writes what tables lack.
        stopping: ends it, with every session that *connect_target* opened; what is durable stays.
        tell: is told what a person may want to know.
        following: makes what does DDL in a session on the target; without it DDL is passed over.

    Raises:
        SpillwayError: the target can't be asked, or has no ``spillway.tables``.
    """

    def __init__(
        self,
        subscription: str,
        settings: SyncSettings,
        source_dsn: str,
        connect_target: Callable[[], Connection],
        exports: Callable[[], AbstractContextManager[ExportedSnapshot]] | None,
        catch_up: CatchUp,
        stopping: Stop,
        tell: Callable[[str], None] = _log.info,
        following: Callable[[Connection], Following] | None = None,
    ) -> None:
        self._settings = settings
        self._follows_ddl = following is not None
        self._tell = tell
        self._stopping = stopping
        self._wanted = threading.Event()
        self._refreshing = threading.Event()
        self._position = 0
        self._sequences_at = 0.0
        self._aside_look_at = 0.0
        #: the next look at what is published is a refresh that somebody wished
        self._is_refresh = settings.refreshes
        #: by then, tables that are to be copied anew
        self._left = settings.forgets
        #: known tables by their OIDs on the source, as of the last look
        self._known_as: Mapping[int, TableName] = {}
        #: partitions that the stream has yet to detach
        self._to_be_detached = _Ahead()
        #: tables that it has yet to find made again by their names
        self._to_be_made = _Ahead()
        #: tables with the name that a known one had before, which it has yet to rename
        self._to_be_renamed = _Ahead()
        #: how sequences stood when they were last set; None: never yet
        self.sequences: sequences.SequenceSync | None = None
        self._thread: threading.Thread | None = None
        try:
            with connect_target() as connection:
                self.states = TableStates(connection, subscription)
        except psycopg.Error as error:
            raise from_postgres(error, "the states of the subscription's tables") from None
        self._snapshot = HeldSnapshot(source_dsn, exports, self.states, tell, self._stopping)
        self._sides = Sides(self._snapshot.source, connect_target, self._stopping)
        self._retries = Retries(tell)
        #: what the target lacked, and what became of it
        self.missing = MissingTables(self._sides, settings, tell)
        self._copy = FirstCopy(
            settings,
            self._sides,
            self._snapshot,
            self.states,
            self._retries,
            self.missing.why,
            tell,
            self._stopping,
            following,
        )
        self._hand_over = HandOver(
            self._sides,
            self.states,
            self._retries,
            catch_up,
            self._stopping,
            settings.prepared,
        )

    @property
    def errors(self) -> Mapping[TableName, SpillwayError]:
        """What each table last failed with, in this process."""
        return self._retries.errors

    # --- the worker's side --------------------------------------------------------------------

    def first_copy(self, position: int) -> None:
        """Copy what has nothing yet, before the stream begins. Blocking; :meth:`stop` ends it.

        A table's trouble is its own, and it is tried again beside the stream. Where the stream has
        tables already, nothing is copied here: they don't wait for others, which a refresh or a
        program that was killed has left to be copied.

        Args:
            position: where the stream will begin: nothing behind it is applied.

        Raises:
            SpillwayError: the source or the target can't be reached, a publication is missing, or
                it was stopped.
        """
        self._position = position
        if not self._list_at_start():
            return
        # Of a process that was killed after a copy.
        self.at_boundary(position)
        if any(table.is_synchronized for table in self.states.all().values()):
            self.synchronize_sequences()
            return
        failures = 0
        while self._copy.due() and not self._stopping.is_set():
            try:
                self._copy.attempt(position)
            except SpillwayError as error:
                failures += 1
                if failures >= _ATTEMPTS or self._stopping.is_set():
                    raise
                # The snapshot is kept for a while: what is durable need not be copied again.
                self._tell(f"table sync: {error.message}: it is tried again")
                self._stopping.wait(min(2.0**failures / 2, FIRST_S))
            # Nothing streams: a table is handed over as soon as it is copied.
            self.at_boundary(position)
        self._snapshot.let_go()
        if not self._stopping.is_set():
            self.synchronize_sequences()

    def begin_without_copy(self, position: int) -> None:
        """Take the tables as they are on the target: ``copy_data = false``. Sequences are left
        alone, too, when that is done for the first time; a program that is started again, as by a
        refresh, sets them.

        Args:
            position: where the stream will begin.

        Raises:
            SpillwayError: as :meth:`first_copy`.
        """
        self._position = position
        is_first = not self.states.all()
        if self._list_at_start() and not is_first:
            self.synchronize_sequences()
        if self._settings.sequences_every_s is not None:
            self._sequences_at = time.monotonic()

    def _list_at_start(self) -> bool:
        """Look which tables there are; return whether the source could be asked."""
        try:
            self.list_tables(is_start=True)
        except SourceError as error:
            tables = self.states.all().values()
            if not tables or not all(table.is_synchronized for table in tables):
                raise
            self._tell(f"table sync: {error.message}: the stream goes on without the source")
            self.look_again()
            return False
        return True

    def copy_anew(self, before: int) -> None:
        """Have tables copied anew that were copied as of before *before*, and lack what came since:
        the slot does not reach back to it.

        Raises:
            SpillwayError: the target can't be reached.
        """
        self._copy.give_up(before)

    def tables_with_rows(self) -> Sequence[str]:
        """Return the tables on the target that are the subscription's and are not empty.

        Raises:
            SpillwayError: a side can't be reached, or a publication is missing.
        """
        settings = self._settings
        with self._sides.source_session() as source:
            found = list_tables(source, settings.publications, settings.selected)
        renamed = settings.rename
        names = sorted({renamed(*key) for key in found})
        with self._sides.target_session() as target:
            return tuple(".".join(name) for name in names if has_rows(target, *name))

    def start(self) -> None:
        """Begin to copy beside the stream what is missing, now and later."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="table sync", daemon=True)
        self._thread.start()

    def at_boundary(self, position: int, recorded: int | None = None) -> None:
        """Hand over what is ready for it. Cheap when nothing is.

        Called by the worker between groups and when it idles, with no transaction open.

        Args:
            position: every transaction with its commit record before it is applied, none behind.
            recorded: the position that the target keeps, where that is not *position*: the next
                program begins there, and what it passes again is not to be written to a table that
                was copied as of later.
        """
        self._position = position
        self._hand_over.at_boundary(position, position if recorded is None else recorded)

    def set_aside(self, connection: Connection, error: SpillwayError, position: int) -> bool:
        """Have the stream write a table no more, whose trouble *error* is; return False if it is no
        single table's, or not one that the stream writes. It is copied anew once it is empty on the
        target. Durable when this returns.

        Args:
            connection: the worker's, with no transaction open.
            error: what applying failed with, and nothing of it is left.
            position: everything before it is applied.

        Raises:
            psycopg.Error: the target did not answer.
        """
        if not self._settings.sets_aside:
            return False
        renamed = self._settings.rename
        written = [key for key, one in self.states.all().items() if one.is_synchronized]
        key = table_of(error, written, renamed)
        if key is None:
            return False
        self.states.set_aside(connection, key, position, why_aside(error, renamed(*key)))
        self._tell(f"{'.'.join(key)} is set aside at {Lsn(position)}: {error.message}")
        return True

    def look_again(self) -> None:
        """Look soon which tables are published: new ones are copied."""
        self._refreshing.set()
        self._wanted.set()

    def known_as(self, relation_id: int) -> TableName | None:
        """Return under which name a table of the source is one of the subscription's, if nobody
        follows DDL: one that was renamed goes on, and is missing on the target until it is renamed
        there, too, as with PostgreSQL's own, which knows the target's table.
        """
        return None if self._follows_ddl else self._known_as.get(relation_id)

    @property
    def has_waiting(self) -> bool:
        """Whether the next boundary applies what a table lacks yet."""
        return self._hand_over.has_waiting

    def progress(self) -> Mapping[TableName, TableState]:
        """Return how far each table is, with the bytes that are under way."""
        return self._copy.progress()

    def stop(self) -> None:
        """End what runs, whatever it waits for; what is durable stays. Safe to repeat."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._snapshot.let_go()
        self._hand_over.close()

    # --- what is there ------------------------------------------------------------------------

    def list_tables(self, *, is_start: bool = False) -> None:
        """Bring the states in line with what is published, and make what the target lacks.

        A table that the stream has, and that has been attached to one that is published by its
        root, stays: its changes are the root's from there on. One that has been detached from it is
        not added before the stream has come there: it has the table's rows until then, and is to
        go on with them. What is no refresh forgets nothing; and what is not asked for, as the
        program only begins, adds no table whose rows known ones have, or that has theirs: that is
        so where publish_via_partition_root was changed.

        Raises:
            SpillwayError: a publication is missing, or a side can't be reached.
        """
        settings = self._settings
        with self._sides.target_session() as target:
            known, relation_ids = self.states.committed(target)
        with self._sides.source_session() as source:
            found = list_tables(source, settings.publications, settings.selected)
            renamed = self._renamed(relation_ids, found)
            gone = known.keys() - found.keys() - renamed.keys()
            # By its own name the stream has what was written before it was attached, and PostgreSQL
            # 14 what is written as long as a walsender goes on. Detached again, it lacks nothing.
            streamed = {key for key in gone & relation_ids.keys() if known[key].is_synchronized}
            attached = below(source, [relation_ids[key] for key in streamed], found.values())
            gone -= {key for key in streamed if relation_ids[key] in attached}
            more = found.keys() - known.keys() - set(renamed.values())
            if self._follows_ddl:
                # The source may have renamed it since, whom the stream follows later.
                named = set(relation_ids.values())
                more -= {key for key in more if found[key] in named}
            more -= self._yet_to_be_detached(source, more)
            self._note_taken_names(source, found, relation_ids, renamed)
            same = {} if self._follows_ddl else _under_new_names(known, relation_ids, found)
            more -= set(same.values())
            gone -= same.keys()
            if self._is_refresh:
                # Published again since: what was written meanwhile the stream does not have.
                left = self._left_meanwhile(known, found, relation_ids)
                gone |= left
                more |= left
            else:
                gone, same = set(), {}
                if is_start:
                    added = {key: found[key] for key in more}
                    more -= _of_the_same_rows(source, added, relation_ids)
            kept = (known.keys() & found.keys()) - renamed.keys()
            other = {key for key in kept if relation_ids.get(key) != found[key]}
            # One that was made again is the former as long as the stream has not met its event.
            again = kept & other & relation_ids.keys() if self._follows_ddl else set()
            at = self._position
            other -= self._to_be_made.still(again, at, lambda: source_lsn(source))
            if self._follows_ddl:
                other -= {key for key in other if found[key] in named}
        init = {key for key, table in known.items() if table.state == SyncState.INIT}
        # Before their states: a table that is ready as it is has to be there.
        self.missing.make(more | (init - gone))
        identified = {key: found[key] for key in other}
        if gone or more or identified or same:
            begun = [known[key] for key in gone & more if known[key].state in _BEING_COPIED]
            if begun:
                with self._sides.target_session() as target:
                    self._copy.begin_anew(target, begun)
                gone -= {table.key for table in begun}
                more -= {table.key for table in begun}
            with self._sides.target_session() as target, target.transaction():
                for key in gone:
                    indexes.make(target, known[key].dropped_indexes)
                self.states.forget(target, gone)
                for old, name in same.items():
                    self.states.move(target, old, name)
                new = self.states.add(target, more)
                identified.update((table.key, found[table.key]) for table in new)
                self.states.identify(target, identified, relation_ids)
                if not settings.copy_data:
                    new = [replace(table, state=SyncState.READY) for table in new]
                    for table in new:
                        self.states.store(target, table)
            self.states.forgotten(gone)
            self.states.changed(*new)
            for old, (schema, new_name) in same.items():
                moved = replace(known[old], schema=schema, table=new_name)
                self.states.changed(moved, gone=[old])
        self._is_refresh, self._left = False, frozenset()
        self._known_as = {
            oid: same.get(key, key)
            for key, oid in {**relation_ids, **identified}.items()
            if key not in gone or key in more
        }

    def _left_meanwhile(
        self,
        known: Mapping[TableName, TableState],
        found: Mapping[TableName, int],
        relation_ids: Mapping[TableName, int],
    ) -> set[TableName]:
        """Return which of the known tables were not published for a while, as somebody wished a
        refresh, and are again: the same ones, under their names.
        """
        return {
            key
            for key in known.keys() & found.keys()
            if ".".join(key) in self._left and relation_ids.get(key) == found[key]
        }

    def _yet_to_be_detached(self, source: Connection, new: Collection[TableName]) -> set[TableName]:
        """Return which of the tables that are published by now are partitions of known ones on the
        target, as long as the stream has not come to where this was seen.
        """
        renamed = self._settings.rename
        above = {renamed(*key) for key in self.states.all()}
        found: set[TableName] = set()
        if self._follows_ddl and new and above:
            named = {renamed(*key): key for key in new}
            with self._sides.target_session() as target:
                rows = target.execute(
                    _PARTITIONS, [list(column) for column in zip(*named, strict=True)]
                )
                found = {named[row[:2]] for row in rows if row[2:] in above}
        return self._to_be_detached.still(found, self._position, lambda: source_lsn(source))

    def _note_taken_names(
        self,
        source: Connection,
        found: Mapping[TableName, int],
        relation_ids: Mapping[TableName, int],
        renamed: Collection[TableName],
    ) -> None:
        """Note which tables are to be looked for again once the stream has *renamed* the known ones
        that they share a name with: there is one row a name.
        """
        known = set(relation_ids.values())
        taken = {key for key in renamed if key in found and found[key] not in known}
        self._to_be_renamed.still(taken, self._position, lambda: source_lsn(source))

    def _renamed(
        self, relation_ids: Mapping[TableName, int], found: Mapping[TableName, int]
    ) -> dict[TableName, TableName]:
        """Return what known tables are called on the source by now, as far as that is new: neither
        the stream nor who reads what a table lacks has come to that name yet. Who passes over DDL
        never will.
        """
        if not self._follows_ddl:
            return {}
        known, names = self.states.all(), {oid: key for key, oid in found.items()}
        return {
            key: names[oid]
            for key, oid in relation_ids.items()
            if key in known and names.get(oid, key) != key
        }

    def synchronize_sequences(self, *, may_go_back: bool = False) -> sequences.SequenceSync:
        """Set the target's sequences to where the source's are now.

        Args:
            may_go_back: also those that are further on the target.

        Raises:
            SpillwayError: a side can't be reached.
        """
        of = tuple(self.states.all()) if self._settings.publications else None
        with self._sides.source_session() as source:
            theirs = sequences.read(source, of)
        with self._sides.target_session() as target:
            found = sequences.write(target, theirs, self._settings.rename, may_go_back=may_go_back)
        self.sequences = found
        for name, reason in found.failed.items():
            self._tell(f"sequence {name} is not synchronized: {reason}")
        every_s = self._settings.sequences_every_s
        self._sequences_at = 0.0 if every_s is None else time.monotonic() + every_s
        return found

    # --- beside the stream --------------------------------------------------------------------

    def _run(self) -> None:
        pause = FIRST_S
        while not self._stopping.is_set():
            self._wanted.wait(_POLL_S)
            self._wanted.clear()
            if self._stopping.is_set():
                break
            try:
                if self._refreshing.is_set():
                    self._refreshing.clear()
                    self._refresh()
                elif any(
                    one.is_passed(self._position)
                    for one in (self._to_be_detached, self._to_be_made, self._to_be_renamed)
                ):
                    self.list_tables()
                elif self._sequences_at and time.monotonic() >= self._sequences_at:
                    self.synchronize_sequences()
                if time.monotonic() >= self._aside_look_at:
                    self._copy.take_back()
                    self._aside_look_at = time.monotonic() + _ASIDE_LOOK_S
                if self._copy.due():
                    self._copy.attempt(self._position)
                self._hand_over.approach(self._position)
                pause = FIRST_S
            except SpillwayError as error:
                if not self._stopping.is_set():
                    self._tell(f"table sync: {error.message}: tried again in {pause:.0f} s")
                self._stopping.wait(pause)
                pause = min(2 * pause, MOST_S)

    def _refresh(self) -> None:
        try:
            self.list_tables()
            self.synchronize_sequences()
        except SpillwayError:
            # What was asked for is still to be done.
            self._refreshing.set()
            raise


def _under_new_names(
    known: Collection[TableName],
    relation_ids: Mapping[TableName, int],
    found: Mapping[TableName, int],
) -> dict[TableName, TableName]:
    """Return what *known* tables are called on the source by now that have another name there."""
    names = {oid: key for key, oid in found.items() if key not in known}
    return {
        key: names[oid]
        for key, oid in relation_ids.items()
        if key in known and key not in found and oid in names
    }


def _of_the_same_rows(
    source: Connection, new: Mapping[TableName, int], known: Mapping[TableName, int]
) -> set[TableName]:
    """Return which of the *new* tables are partitions of *known* ones, or have such partitions, by
    their OIDs on the source.
    """
    under = below(source, new.values(), known.values())
    above = {oid for oid in new.values() if below(source, known.values(), [oid])}
    return {key for key, oid in new.items() if oid in under | above}
