"""One source while the service runs: its WAL store, its receiver, and a decoding session per
database.

Methods block (they open files, join threads, ask the primary); the event loop calls them on worker
threads. What is only looked at (``info``, ``session_of``) is cheap and for any thread.

WAL goes from the store (:meth:`Source.trim`) when no session needs it, and none that may still
come: a new database's decoding begins at the redo point of the source's last checkpoint
(``catalog/bootstrap.py``), which the sessions there are have long passed. Where that is they know
from the checkpoints' records. While it is not known, after a start, nothing goes, so a restart
keeps what was kept. A store with a bound (``max_bytes``) must not be filled by WAL that nobody
needs: half of it is for that. What is missing then costs a new checkpoint. What the disk lost of it
comes from the archive or the primary again (``receiver/refetch.py``); a store that is gone begins
as early as one of them still has what the sessions need, else where the physical slot stands. What
a failed database needs is given up before it stops the others for good (``wal_horizon.py``). A
session counts before it asks the server, and what it will need is not known until it has been
answered: nothing goes meanwhile, nor before every database that was decoded before a start has its
session again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spillway.decoding.capture import CaptureFilter, check_capture
from spillway.errors import (
    CorruptTransactionLog,
    DatabaseDropped,
    NotReady,
    ReplicationFailed,
    SpillwayError,
    StorageError,
    UnknownDatabase,
    WalRemoved,
)
from spillway.instants import Instant
from spillway.pg.conninfo import redact_dsn
from spillway.pg.lsn import Lsn
from spillway.receiver.archive import WalArchive
from spillway.receiver.continuity import check_continues
from spillway.receiver.physical_slot import renew_physical_slot
from spillway.receiver.primary import (
    database_names,
    database_renamed,
    find_database,
    has_database,
    with_database,
)
from spillway.receiver.refetch import mend_segments, primary_timeline, wal_of_primary
from spillway.receiver.store_state import STATE_NAME
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import ReceiverState, WalReceiver
from spillway.sessions.change_source import StoredChanges
from spillway.sessions.model import SourceInfo
from spillway.sessions.session import Session
from spillway.sessions.signs import newest_file_time
from spillway.sessions.wal_horizon import wal_kept_from, what_holds, who_counts
from spillway.storage.file_errors import file_error, file_errors

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from spillway.receiver.primary import SourceDatabase
    from spillway.sessions.change_source import ChangeSource
    from spillway.sessions.layout import SourceLayout
    from spillway.sessions.settings import SessionSettings
    from spillway.store.rows import SourceRow

log = logging.getLogger(__name__)

NOTHING_NEEDED: Final[Mapping[str, int]] = MappingProxyType({})
#: A server that is there answers the receiver's question, which comes after 5 s, at once.
_SILENT_S: Final = 20.0
_NOTE_S: Final = 5.0
#: States in which a receiver has ended its thread itself: it can't go on, or another takes its
#: place.
_ENDED: Final = (ReceiverState.FAILED, ReceiverState.STOPPED)


class Source:
    """A PostgreSQL cluster that WAL comes from."""

    def __init__(self, row: SourceRow, layout: SourceLayout, settings: SessionSettings) -> None:
        self.row = row
        self._layout = layout
        self._settings = settings
        self._lock = threading.Lock()
        self._store: WalWriter | None = None
        #: made of what is in the store, for all sessions
        self._changes: ChangeSource | None = None
        self._receiver: WalReceiver | None = None
        self._sessions: dict[str, Session] = {}
        self._error: SpillwayError | None = None
        stored_at = newest_file_time(layout.wal)
        #: when WAL was last received before this object was made; of a new source: now
        self._stored = Instant.now() if stored_at is None else Instant.known_as(stored_at)
        #: whether another service served it before, which may have what is not here
        self.taken_over = False
        self._stopped = False
        #: whether slots had begun before: its timeline may be another by now
        self._needs_history = False
        #: whether every database that is to have a session has one
        self._complete = False
        #: databases that slots are on and the cluster has no more, nor this directory
        self._gone: dict[str, DatabaseDropped] = {}
        #: of the source's last checkpoint that a session knows of
        self._redo_lsn = 0
        #: held while WAL is removed, and while what sessions there are changes
        self._trimming = threading.Lock()

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def capture(self) -> CaptureFilter:
        """What is decoded at all."""
        return CaptureFilter.parse(self.row.capture)

    @property
    def captured_publications(self) -> tuple[str, ...]:
        """The publications that the capture filter names; () when it names none."""
        return tuple(sorted(self.capture.publications))

    # -- life ---------------------------------------------------------------------------------

    def start(self, databases: Iterable[str], needed: Mapping[str, int] = NOTHING_NEEDED) -> None:
        """Bring the source up: store, receiver, and a session for each of *databases*.

        *needed* has the oldest position of a slot, for databases that have slots.

        May be called again after it failed; what runs already is left alone.

        Raises:
            SpillwayError: what stands in the way; it is also shown by ``info``.
        """
        with self._lock:
            self._start(databases, needed)

    def _start(self, databases: Iterable[str], needed: Mapping[str, int]) -> None:
        if self._stopped:
            return
        try:
            self._needs_history = bool(needed)
            self._start_receiver()
            failure: SpillwayError | None = self._layout.unreadable()
            remembered = self._layout.databases()
            for database in sorted({*databases, *remembered}):
                try:
                    self._open_session(database, needed.get(database, 0), remembered.get(database))
                except UnknownDatabase as error:
                    if has_database(self.row.dsn, database):
                        failure = failure or error
                    else:
                        self._note_gone(database)
                except SpillwayError as error:
                    # One database's trouble is not the others'.
                    failure = failure or error
            if failure is not None:
                raise failure
            self._complete = True
        except SpillwayError as error:
            self._error = error
            raise
        self._error = None

    def _note_gone(self, database: str) -> None:
        """Note that *database* was dropped and that nothing of it is here: there is nothing to wait
        for.
        """
        self._gone[database] = DatabaseDropped(
            f'database "{database}" was dropped from the cluster of source "{self.name}", and '
            "nothing of it is stored here",
            hint="Its slots have nothing to give any more: DELETE /v1/slots/NAME drops one.",
            source=self.name,
            database=database,
        )
        log.warning("%s", self._gone[database])

    def _start_receiver(self) -> None:
        row = self.row
        if self._store is None:
            try:
                # After the first start nothing here needs the primary: slots are served while it is
                # down.
                self._store = WalWriter(
                    self._layout.wal,
                    system_id=row.system_id,
                    segment_size=row.wal_segment_size,
                    max_bytes=self._settings.wal_store_max_bytes,
                    admit=self._layout.reserve.admit_segment,
                )
            except NotReady:
                self._store = self._new_store(row)
            self._store.explain_full = self._what_holds
            self._changes = StoredChanges(self._store.reader)
        if self._receiver is None:
            self._receiver = WalReceiver(
                row.dsn, row.slot_name, self._store, archive=self._archive(self._store)
            )
            self._receiver.start()

    def _new_store(self, row: SourceRow) -> WalWriter:
        """Make the WAL store, of a new source or of one whose WAL is lost."""
        # Of a slot that was invalidated nothing can be had any more.
        start_lsn = int(renew_physical_slot(row.dsn, row.slot_name).restart_lsn)
        timeline = row.timeline
        wanted = self._layout.oldest_snapshot_lsn()
        if self._needs_history or wanted is not None:
            timeline = primary_timeline(row.dsn)
        if wanted is not None and wanted < start_lsn and self._can_begin(wanted, timeline):
            start_lsn = wanted
        return WalWriter(
            self._layout.wal,
            system_id=row.system_id,
            segment_size=row.wal_segment_size,
            timeline=timeline,
            start_lsn=start_lsn,
            max_bytes=self._settings.wal_store_max_bytes,
            admit=self._layout.reserve.admit_segment,
        )

    def _can_begin(self, lsn: int, timeline: int) -> bool:
        """Say whether the archive or the primary has WAL at *lsn*."""
        archive = self._archive_of(self.row.wal_segment_size)
        try:
            if archive is not None and archive.read(lsn, 1):
                return True
            wal_of_primary(self.row.dsn, self.row.system_id, timeline, lsn, 1)
        except SpillwayError as error:
            log.warning(
                'source "%s": WAL at %s can\'t be had any more: %s', self.name, Lsn(lsn), error
            )
            return False
        return True

    def _mend_wal(self, first_lsn: int, last_lsn: int) -> bool:
        """Put stored WAL right; a session that can't read it asks, on its thread."""
        store = self._store
        if store is None:
            return False
        archive = self._archive(store)
        return mend_segments(self.row.dsn, archive, store, first_lsn, last_lsn)

    def check_continues(self, dsn: str) -> None:
        """Check that the server behind *dsn* goes on what is stored.

        Raises:
            WalDiverged: it has other WAL than that.
            SourceError: it is another cluster, or can't be asked.
        """
        store = self._store
        # Without a store the receiver does it, when it connects.
        if store is not None and not self._stopped:
            check_continues(dsn, store.reader)

    def reconnect(self, row: SourceRow) -> None:
        """Receive by *row*'s DSN from now on. Sessions and what is stored stay as they are.

        Raises:
            NotReady: the receiver that is at work does not end; the DSN counts from the next start
                on.
        """
        with self._lock:
            self.row = row
            for database, session in self._sessions.items():
                session.conninfo = with_database(row.dsn, database)
            receiver, store = self._receiver, self._store
            # Without a receiver the next attempt to bring the source up takes the new row.
            if receiver is None or store is None or self._stopped:
                return
            if not receiver.stop():
                raise NotReady(
                    f'the receiver of source "{self.name}" did not end in time; it goes on by the '
                    "old DSN",
                    hint="Restart the service: the new DSN is stored.",
                    source=self.name,
                )
            self._receiver = WalReceiver(
                row.dsn, row.slot_name, store, archive=self._archive(store)
            )
            self._receiver.start()

    @property
    def upgraded_to(self) -> int | None:
        """The release that the server has been brought to since it was noted last; None if it is
        that one.
        """
        receiver = self._receiver
        version = None if receiver is None else receiver.server_version_num
        return None if version == self.row.server_version_num else version

    def note_upgrade(self, row: SourceRow) -> None:
        """Take in that the server is of *row*'s release; readers that begin from now on go by
        it.
        """
        with self._lock:
            self.row = row
            for session in self._sessions.values():
                session.server_version_num = row.server_version_num

    def _archive(self, store: WalWriter) -> WalArchive | None:
        """Return the archive that fills in for WAL which the primary has removed, if the source has
        one.
        """
        return self._archive_of(store.segment_size)

    def _archive_of(self, segment_size: int) -> WalArchive | None:
        if self._settings.wal_archives is None:
            return None
        directory = self._settings.wal_archives / self.name
        with file_errors(directory, "read"):
            is_there = directory.is_dir()
        if not is_there:
            log.warning('source "%s" has no WAL archive: %s is no directory', self.name, directory)
            return None
        return WalArchive(directory, segment_size=segment_size, system_id=self.row.system_id)

    def stop(self) -> None:
        """End every thread; what was received is synced and confirmed, decoding checkpoints."""
        with self._lock:
            self._stopped = True
            for session in self._sessions.values():
                session.stop()
            if self._receiver is not None:
                self._receiver.stop()
            if self._store is not None:
                self._store.close()
                self._note_heard(0.0)

    def own_files(self) -> None:
        """See to it that the files are this source's: another one may have had its name, and was
        dropped by another process.

        Raises:
            StorageError: they can't be removed.
        """
        if self._layout.made_at() not in (None, self.row.created_at):
            log.warning('source "%s": files of another one of that name are removed', self.name)
            try:
                self._layout.clear()
            except OSError as error:
                raise file_error(error, self._layout.root) from error
            self._stored = Instant.now()
        # Slots can be dropped on a full disk, too; it is marked the next time.
        with contextlib.suppress(OSError):
            self._layout.mark(self.row.created_at)

    def remove_files(self) -> None:
        """Remove the source's directory; it must be stopped."""
        shutil.rmtree(self._layout.root, ignore_errors=True)

    def alive(self) -> bool:
        """Whether the receiver and every session that were started have their threads; one that has
        failed ended its own.
        """
        receiver = self._receiver
        return self._stopped or (
            (receiver is None or receiver.is_alive() or receiver.state in _ENDED)
            and all(session.alive() for session in tuple(self._sessions.values()))
        )

    def continuing(self) -> frozenset[str]:
        """Return the databases that were decoded before the service started."""
        return frozenset(d for d, s in tuple(self._sessions.items()) if s.signs.continues)

    def gone(self, database: str) -> DatabaseDropped | None:
        """Return why *database* has no session and gets none, if it was dropped and nothing of it
        is stored.
        """
        return self._gone.get(database)

    @property
    def is_complete(self) -> bool:
        """Whether every database that is to be decoded has its session; what is known of the others
        is not known here yet.
        """
        return self._complete

    @property
    def is_settled(self) -> bool:
        """Whether its start failed, or each session has decoded what was stored."""
        return self._error is not None or (
            self._complete and all(s.is_settled for s in tuple(self._sessions.values()))
        )

    @property
    def decoded(self) -> int:
        """The sum of how far each database is decoded, which is for comparing only."""
        return sum(session.decoded_lsn for session in tuple(self._sessions.values()))

    # -- sessions -----------------------------------------------------------------------------

    def sessions(self) -> tuple[Session, ...]:
        """Give every session that is up."""
        return tuple(self._sessions.values())

    def session_of(self, database: str) -> Session | None:
        """Return the session of *database* if there is one."""
        return self._sessions.get(database)

    def open_session(self, database: str) -> Session:
        """Return the session of *database*, begun now if there was none.

        Raises:
            NotReady: the source itself is not up.
            UnknownDatabase: the cluster has no such database.
        """
        with self._lock:
            return self._open_session(database)

    def _open_session(
        self, database: str, needed_lsn: int = 0, remembered: SourceDatabase | None = None
    ) -> Session:
        """Open it; what is *remembered* of the database need not be looked for, nor asked for."""
        session = self._sessions.get(database)
        if session is not None:
            return session
        store, changes = self._store, self._changes
        if store is None or changes is None or self._stopped:
            raise self._error or NotReady(
                f'source "{self.name}" is not up',
                hint="GET /v1/sources shows why.",
                source=self.name,
            )
        found = (
            remembered
            or self._layout.databases().get(database)
            or find_database(self.row.dsn, database)
        )
        conninfo = with_database(self.row.dsn, database)
        layout = self._layout.database(found.oid)
        elsewhere = self.taken_over and not layout.txlog.exists()
        self._layout.remember_database(found)
        session = Session(
            self.row,
            found,
            conninfo,
            layout,
            store.reader,
            changes,
            self._settings,
            self._mend_wal,
            lambda: self._archive(store),
            needed_lsn,
        )
        if elsewhere:
            layout.describe(began_in_takeover=True)
        session.began_in_takeover = elsewhere or layout.began_in_takeover()
        with self._trimming:
            session.start()
            self._sessions[database] = session
        self._gone.pop(database, None)
        return session

    def restart(self, database: str, needed: Mapping[str, int]) -> None:
        """Give the decoding of *database* a way on from what has stopped it; see the engine's
        interface.

        *needed* has the oldest position of a slot, by database.

        Raises:
            Conflict: nothing has stopped it.
            UnknownDatabase: it is not decoded, or the cluster has none of that name any more.
            SpillwayError: what stands in the way.
        """
        with self._lock:
            receiver = self._receiver
            if receiver is not None and isinstance(receiver.error, WalRemoved):
                self._begin_behind_removed_wal(receiver, needed)
                return
            session = self._sessions.get(database)
            if session is not None and not session.database_is_gone:
                session.restart(needed.get(database, 0))
                return
            if self._store is None:
                # Nothing could be opened; what was in the way may be gone.
                try:
                    self._start(needed, needed)
                except SpillwayError:
                    if database not in self._sessions:
                        raise
                if database in self._sessions:
                    return
            if session is None and database not in {*needed, *self._layout.databases()}:
                raise UnknownDatabase(
                    f'database "{database}" of source "{self.name}" is not decoded',
                    hint="GET /v1/sources lists those that are; creating a slot begins to decode "
                    "another.",
                    database=database,
                )
            found = find_database(self.row.dsn, database)
            if session is not None:
                session.stop()
                with self._trimming:
                    del self._sessions[database]
                if found.oid != session.database_oid:
                    self._layout.forget_database(session.database_oid)
            try:
                self._open_session(database, needed.get(database, 0))
            except CorruptTransactionLog as error:
                # Another cluster's, or of another format: nothing but that is given up. A file that
                # can't be read stays.
                log.error("the transaction log is given up: %s", error)  # noqa: TRY400
                shutil.rmtree(self._layout.database(found.oid).txlog)
                self._open_session(database, needed.get(database, 0))

    def _begin_behind_removed_wal(self, receiver: WalReceiver, needed: Mapping[str, int]) -> None:
        """Receive from where the primary still has WAL. It is every database's: all of them begin
        anew behind the gap.
        """
        if not receiver.stop():
            raise NotReady(
                f'the receiver of source "{self.name}" did not end in time',
                hint="Try again.",
                source=self.name,
            )
        self._receiver = None
        databases = sorted(self._sessions)
        for session in self._sessions.values():
            session.stop()
        with self._trimming:
            self._sessions.clear()
            self._complete = False
            if self._store is not None:
                self._store.close()
            self._store = self._changes = None
        shutil.rmtree(self._layout.wal)
        self._needs_history = True
        self._start_receiver()
        for database in databases:
            self._open_session(database, needed.get(database, 0))
        self._complete = True

    def check_name(self, database: str, needed: Container[str]) -> None:
        """Insist that the server means by the name *database* what is decoded by it here, if
        anything is: ``ALTER DATABASE … RENAME`` may have given it to another one, or a database
        that is decoded here already another name, and two sessions must not write its one log.

        *needed* has the names by which slots are of databases: what was decoded of a renamed one
        for nobody is given up.

        Raises:
            DatabaseRenamed: slots need what is decoded by the former name.
            SourceError: the server can't be asked.
        """
        if not self._decoded():
            return
        # Nobody waits for the lock as long as the server takes.
        names = database_names(self.row.dsn)
        with self._lock:
            for name, oid in self._decoded().items():
                # Of one that was dropped its decoding tells.
                now = names.get(oid, name)
                if now == name or database not in (name, now):
                    continue
                if name in needed:
                    raise database_renamed(name, now)
                log.warning(
                    'what was decoded of database "%s" of source "%s" is given up: it is called '
                    '"%s" now, and no slot needs it',
                    name,
                    self.name,
                    now,
                )
                session = self._sessions.get(name)
                if session is not None:
                    session.stop()
                    with self._trimming:
                        del self._sessions[name]
                self._layout.forget_database(oid)

    def _decoded(self) -> dict[str, int]:
        """Return the OIDs of databases that are decoded here, by the names that they have here."""
        remembered = {name: found.oid for name, found in self._layout.databases().items()}
        sessions = tuple(self._sessions.items())
        return remembered | {name: session.database_oid for name, session in sessions}

    def end_session_of_dropped(self, database: str) -> None:
        """End the session of a database that was dropped, with its files; another may have that
        name now.
        """
        with self._lock:
            session = self._sessions.get(database)
            if session is not None and session.database_is_gone:
                session.stop()
                with self._trimming:
                    del self._sessions[database]
                self._layout.forget_database(session.database_oid)

    # -- upkeep -------------------------------------------------------------------------------

    def trim(self, horizons: Mapping[str, int]) -> None:
        """Drop what no slot and no restart needs; *horizons* are the slots' oldest positions by
        database.
        """
        self._note_heard(_NOTE_S)
        sessions = tuple(self._sessions.values())
        # What nobody needs goes before receiving has to stop.
        keep_bytes = 0 if self._layout.reserve.is_low else self._settings.log_keep_bytes
        for session in sessions:
            horizon = horizons.get(session.database, session.decoded_lsn)
            session.remove_before(horizon, keep_bytes)
            try:
                session.tend()
            except StorageError as error:
                # One database's trouble is not the others'.
                log.warning("%s", error)
        with self._trimming:
            store = self._store
            if store is not None and self._complete and self._sessions:
                store.remove_before(self._wal_kept_from(store))

    def _note_heard(self, interval_s: float) -> None:
        """Note in a file's time when the server was heard last, every *interval_s*: a restart must
        not forget it.
        """
        receiver = self._receiver
        heard = None if receiver is None else receiver.heard
        if heard is not None and heard.monotonic_s - self._stored.monotonic_s > interval_s:
            self._stored, at = heard, heard.at.timestamp()
            with contextlib.suppress(OSError):
                os.utime(self._layout.wal / STATE_NAME, (at, at))

    def _wal_kept_from(self, store: WalWriter) -> int:
        sessions = tuple(self._sessions.values())
        self._redo_lsn = max(self._redo_lsn, *(session.redo_lsn for session in sessions))
        spare_bytes = store.max_bytes
        if spare_bytes is not None:
            # Whole segments: they are what takes space.
            spare_bytes = spare_bytes // 2 // store.segment_size * store.segment_size
        if self._layout.reserve.is_low:
            spare_bytes = 0
        return wal_kept_from(
            [session.required_lsn for session in who_counts(sessions, store)],
            self._redo_lsn,
            received_lsn=store.received_lsn,
            spare_bytes=spare_bytes,
        )

    def _what_holds(self, store: WalWriter) -> str:
        return what_holds(tuple(self._sessions.values()), store, complete=self._complete)

    # -- looking ------------------------------------------------------------------------------

    def held_elsewhere(self, error: SpillwayError) -> None:
        """Show *error*: another process serves the source."""
        self._error = error

    @property
    def streamed(self) -> bool:
        """Whether WAL was received since the service started."""
        return self._receiver is not None and self._receiver.since is not None

    def is_current(self, database: str) -> bool:
        """Whether the source is heard, and what it sent is decoded: what is not seen here is not
        there.
        """
        session, receiver = self._sessions.get(database), self._receiver
        return (
            session is not None
            and session.info().current
            and receiver is not None
            and receiver.state == ReceiverState.STREAMING
            and self._silence_s(receiver) < _SILENT_S
        )

    def _silence_s(self, receiver: WalReceiver) -> float:
        return 0.0 if receiver.heard is None else receiver.heard.ago_s

    def _stands_since(self) -> Instant:
        receiver = self._receiver
        if receiver is None or receiver.since is None:
            return self._stored
        is_silent = (
            receiver.state == ReceiverState.STREAMING and self._silence_s(receiver) >= _SILENT_S
        )
        return receiver.heard or receiver.since if is_silent else receiver.since

    @property
    def stands_s(self) -> float:
        """How long it has streamed, or has not, in seconds: since ``info().since``, whatever the
        wall clock was set to meanwhile.
        """
        return self._stands_since().ago_s

    def info(self) -> SourceInfo:
        row, store, receiver = self.row, self._store, self._receiver
        error = self._error or (receiver.error if receiver is not None else None)
        state = ("failed" if error else "connecting") if receiver is None else str(receiver.state)
        since = self._stands_since()
        if receiver is not None and state == "streaming":
            silence_s = self._silence_s(receiver)
            if silence_s >= _SILENT_S:
                state = str(ReceiverState.WAITING)
                error = ReplicationFailed(
                    f"the server has been silent for {silence_s:.0f} s, though it was asked for a "
                    "word",
                    hint="See whether the server hangs, or the network. The receiver connects "
                    "again by itself.",
                )
        if self._stopped:
            state = str(ReceiverState.STOPPED)
        sessions = (s.info() for _, s in sorted(self._sessions.items()))
        return SourceInfo(
            name=row.name,
            dsn=redact_dsn(row.dsn),
            system_id=row.system_id,
            server_version_num=row.server_version_num,
            timeline=store.timeline if store is not None else row.timeline,
            wal_segment_size=row.wal_segment_size,
            slot_name=row.slot_name,
            capture=check_capture(row.capture),
            state=state,
            received_lsn=Lsn(store.received_lsn) if store is not None else None,
            flushed_lsn=Lsn(store.flushed_lsn) if store is not None else None,
            sessions=tuple(sessions),
            created_at=row.created_at,
            error=error.message if error else None,
            error_code=error.code if error else None,
            hint=error.hint if error else None,
            since=since.at,
            heard_at=None if receiver is None or receiver.heard is None else receiver.heard.at,
        )
