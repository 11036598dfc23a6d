"""A decoding session: one thread that decodes one database of one source, once for all its slots.

WAL store → changes (``change_source.py``) → transaction log. What must survive is in files, none of
it in the metadata store, and written in an order that any kill leaves usable:

1. ``snapshots/<lsn>.snap``: decoder state as of <lsn>, synced, then renamed into place;
2. a PROGRESS frame in the transaction log that names a restart_lsn, synced;
3. only then are older snapshots and WAL before the snapshot that restart_lsn needs given up.

A transaction that stays open keeps restart_lsn where it began. When that is far back a checkpoint
*carries* what is in progress: the snapshot has it, partly by naming spill files, which were synced
before (``decoding/carried.py``). So no transaction holds more WAL than
``SessionSettings.carry_bytes``, nor has a restart more to read again.

Start: take the newest snapshot at or before the log's restart_lsn and decode again from there; the
log drops what it has. Without a log: bootstrap the catalog from the running server. Slots may begin
once a first checkpoint could be made, which is when decoding is consistent; until then a restart
throws the log away and bootstraps again, so that WAL which was decoded need not be kept.

Errors: any typed error ends the attempt, is shown on the session, and the whole start is tried
again after a back-off, from durable state only. An operator who frees disk space or restores a file
need do nothing more. Slots that exist keep their position meanwhile.

State that is lost or damaged is made again of what is left (``healing.py``). Where decoding can't
get past a place, :meth:`Session.restart` begins anew behind it, from the server's catalog as it is
now; after wal_level was lowered and set back that happens by itself. The log that is there is read
until the new beginning is consistent, and goes on if nothing is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from spillway.catalog.bootstrap_database import bootstrap_database
from spillway.collector import collector
from spillway.decoding.capture import CaptureFilter
from spillway.decoding.decoder import Decoder
from spillway.decoding.moment import DecodingMoment
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.errors import (
    Conflict,
    CorruptSnapshot,
    CorruptWal,
    DatabaseDropped,
    DecodingStateLost,
    LsnNotRetained,
    NotReady,
    SpillwayError,
    WalGap,
    WalLevelNotLogical,
)
from spillway.failpoints import failpoint
from spillway.memory import WORTH_BYTES, freed_memory
from spillway.pg.encoding import readable, server_encoding
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.receiver.primary import check_database_name, check_wal_level, wal_flush_lsn
from spillway.sessions import waiting
from spillway.sessions.catalog_questions import CatalogQuestions
from spillway.sessions.failure_clock import FailureClock
from spillway.sessions.healing import (
    WAL_LEVEL_INSUFFICIENT,
    WAL_REMOVED,
    LogSink,
    WholeFrom,
    begin_behind,
)
from spillway.sessions.mending import Mending
from spillway.sessions.model import DatabaseSession
from spillway.sessions.signs import DecodingSigns
from spillway.sessions.snapshots import Snapshots
from spillway.storage.file_errors import file_error
from spillway.txlog import LogWriter
from spillway.txlog.contents import contents_of
from spillway.txlog.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spillway.catalog.mirror import CatalogMirror
    from spillway.decoding.schema_changes import CommittedDdl
    from spillway.receiver.archive import WalArchive
    from spillway.receiver.primary import SourceDatabase
    from spillway.receiver.wal_reader import WalReader
    from spillway.sessions.change_source import Changes, ChangeSource
    from spillway.sessions.layout import DatabaseLayout
    from spillway.sessions.settings import SessionSettings
    from spillway.store.rows import SourceRow

log = logging.getLogger(__name__)

T = TypeVar("T")

#: with little space left: what is decoded is to go
_LOW_CHECKPOINT_BYTES: Final = 16 << 20
_DROPPED_WAIT_S: Final = 0.5
#: Who waits for something that nobody tells looks so often.
_LOOK_S: Final = 0.02
#: More than what little WAL makes of the log.
_LIGHT_LOG_BYTES: Final = 1 << 20
#: Nothing is decoded during a checkpoint, which takes long when the catalog is large. At one in
#: 200, fewer than one commit in a hundred comes into one.
_CHECKPOINT_SHARE: Final = 200
#: However long one took, in intervals.
_CHECKPOINT_PAUSE_MAX: Final = 30
#: A database of which nothing was written makes one so many times less often: to pass over again
#: what is others' costs next to nothing after a restart.
_IDLE_PAUSES: Final = 12
#: transactions with DDL, when nobody takes them
_DDL_KEPT: Final = 2000
_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_WAL_LEVEL_MAX_S: Final = 1.0


def checkpoint_pause_s(interval_s: float, took_s: float) -> float:
    """Return how long to decode before the next checkpoint, unless much WAL comes, when one
    *took_s*.
    """
    return max(interval_s, min(took_s * _CHECKPOINT_SHARE, interval_s * _CHECKPOINT_PAUSE_MAX))


class Session:
    """Decodes *database* of a source on a thread of its own. Methods are for any thread."""

    def __init__(
        self,
        source: SourceRow,
        database: SourceDatabase,
        conninfo: str,
        layout: DatabaseLayout,
        store: WalReader,
        changes: ChangeSource,
        settings: SessionSettings,
        mend_wal: Callable[[int, int], bool],
        archive: Callable[[], WalArchive | None],
        needed_lsn: int = 0,
    ) -> None:
        """Open the transaction log; nothing runs yet.

        *changes* are the source's, of which *store* has the WAL. *mend_wal* puts stored WAL from
        one LSN to another right; *archive* opens what has older WAL; *needed_lsn* is the oldest
        position that a slot has here, 0 without slots.

        Raises:
            CorruptTransactionLog, StorageError: the log can't be opened.
        """
        self.database = database.name
        self.database_oid = database.oid
        #: Python's name of the database's encoding
        self.encoding = server_encoding(database.encoding).codec
        self._server_encoding = database.encoding
        self.server_version_num = source.server_version_num
        self._source = source
        self._capture = CaptureFilter.parse(source.capture)
        self.conninfo = conninfo
        self._layout = layout
        self._store = store
        self._changes = changes
        #: what the thread takes its changes from; None while it has not come to that
        self._followed: Changes | None = None
        self._settings = settings
        #: how it stands and since when
        self.signs = DecodingSigns(layout.txlog)
        self._log = LogWriter(
            layout.txlog,
            system_id=int(source.system_id),
            database_oid=database.oid,
            admit=layout.reserve.admit,
            is_low=lambda: layout.reserve.is_low,
        )
        #: what slots read
        self.log = self._log.reader
        if needed_lsn:
            self._log.miss(needed_lsn)
        #: what is before the log's beginning was decoded by another service, in whose directory it
        #: is
        self.began_in_takeover = False
        #: why slots are invalidated that stand before the log's beginning
        self.lost_reason = WAL_REMOVED
        self._mend_wal = mend_wal
        self._decoder: Decoder | None = None
        self._waiting = waiting.reading_catalog("it begins")
        self._stop = threading.Event()
        #: set when a back-off is to end
        self._again = threading.Event()
        #: begin anew behind this LSN; None: go on from what is stored
        self._anew_behind: int | None = None
        self._read_lsn = 0
        self._whole = WholeFrom(
            store, version_of_server(self.server_version_num), database.oid, self._stop
        )
        self._whole.needed_lsn = needed_lsn
        self._changed = threading.Condition()
        self._required_lsn = 0
        self._redo_lsn = 0
        self._read_lsn = 0
        self._failing = FailureClock(layout)
        #: where and when the last checkpoint was made, or decoding began, and how many batches
        #: were the database's own by then; how long to wait for the next one
        self._checkpoint_lsn = self._checkpoint_own = 0
        self._checkpoint_at = self._pause_s = 0.0
        self._streaming_wanted = False
        self._streams = False
        self._caught_up = False
        #: the collector leaves alone what an attempt to decode has made
        self._is_set_aside = False
        self._snapshots = Snapshots(layout)
        self._mending = Mending(
            source,
            database.oid,
            self._log,
            self._snapshots,
            layout,
            store,
            settings,
            archive,
            mend_wal,
        )
        self._verification = Verification(self._log, layout.root / "verified.json")
        self._questions = CatalogQuestions(database.name)
        #: what DDL did, of transactions that have committed; taken by :meth:`take_ddl`
        self._ddl: deque[CommittedDdl] = deque(maxlen=_DDL_KEPT)
        #: somebody waits for it to get further
        self._is_asked = False
        self._thread = threading.Thread(
            target=self._run, name=f"spillway-decode-{source.name}-{database.name}", daemon=True
        )

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, with a checkpoint if there is something to keep, and close the log."""
        self._stop.set()
        self._again.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._mending.stop()
        self._log.close()
        # Who has asked for this session may have it for a while: not with a catalog in memory.
        self._decoder = None
        if self._is_set_aside:
            collector.ask()

    def restart(self, needed_lsn: int) -> None:
        """Try again at once; where trying again can't help, begin anew behind what stopped
        decoding.

        Args:
            needed_lsn: the oldest position that a slot has here, 0 without slots.

        Raises:
            Conflict: nothing has stopped it.
        """
        error = self._error
        if error is None:
            raise Conflict(
                f'database "{self.database}" is being decoded: nothing has stopped it',
                hint="A restart is for a database whose decoding has stopped; GET /v1/sources "
                "shows why.",
                database=self.database,
            )
        self._whole.needed_lsn = needed_lsn
        behind = begin_behind(error, self._source.wal_segment_size)
        if behind is not None:
            if isinstance(error, WalLevelNotLogical):
                self.lost_reason = WAL_LEVEL_INSUFFICIENT
            self._anew_behind = max(behind, self._anew_behind or 0)
        self._again.set()

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    # -- what others ask ----------------------------------------------------------------------

    @property
    def decoded_lsn(self) -> int:
        return self.log.decoded_lsn

    @property
    def log_start_lsn(self) -> int:
        """The oldest position that a slot can have."""
        return self.log.start_lsn or 0

    def check_retained(self, lsn: int) -> None:
        """Raise LsnNotRetained when a slot can't stand at *lsn*."""
        first, last = Lsn(self.log_start_lsn), Lsn(self.decoded_lsn)
        if not first <= lsn <= last:
            raise LsnNotRetained(
                f"position {Lsn(lsn)} is not between {first} and {last}, which is what the "
                "transaction log holds",
                hint=f"Take a position from {first} to {last}.",
                lsn=str(Lsn(lsn)),
                first_lsn=str(first),
                last_lsn=str(last),
            )

    @property
    def required_lsn(self) -> int:
        """WAL from here on must be kept; 0 while that is not known."""
        if self._mending.needs_wal:
            return min(self._required_lsn, self._store.first_lsn)
        return self._required_lsn

    def remove_before(self, lsn: int, keep_bytes: int) -> None:
        """Remove what no slot needs of the log: see :meth:`LogWriter.remove_before`."""
        self._log.remove_before(lsn, keep_bytes)

    def tend(self) -> None:
        """Look after the log: verify a little of it, mend what is damaged, write down what a
        segment has that was sealed. The engine's upkeep calls it; blocks for a moment.

        Raises:
            StorageError: a segment can't be read.
        """
        visible = self.log.snapshot()
        if visible is not None and len(visible.segments) == 1 and not self._log.is_damaged:
            # Nothing is sealed: most databases of many are that small.
            return
        self._mending.tend()
        self._verification.step()
        contents_of(self.log).keep_one(self.log)

    @property
    def read_lsn(self) -> int:
        """How far stored WAL was read; beyond what is decoded lies a record that is not whole
        yet.
        """
        return self._read_lsn

    @property
    def failed_for_s(self) -> float:
        """For how long decoding has failed without getting further, durably, over restarts; 0 when
        it has not.
        """
        return 0.0 if self._error is None else self._failing.for_s

    @property
    def redo_lsn(self) -> int:
        """Redo point of the source's last checkpoint, as far as it was seen here; 0 while that is
        not known.
        """
        decoder = self._decoder
        return max(self._redo_lsn, decoder.redo_lsn if decoder is not None else 0)

    @property
    def _error(self) -> SpillwayError | None:
        return self.signs.error

    @property
    def is_settled(self) -> bool:
        """Whether what was stored at the start is decoded, or can't be."""
        return self._caught_up or self._error is not None

    @property
    def error(self) -> SpillwayError | None:
        """What ended the last attempt to decode, as long as no attempt went on since."""
        return self._error

    @property
    def database_is_gone(self) -> bool:
        """Whether decoding ended with the drop of the database."""
        return isinstance(self._error, DatabaseDropped)

    def check_readable(self) -> None:
        """Raise what ended the last attempt to decode, as long as no attempt went on since."""
        error = self._error
        if error is not None:
            raise error

    async def ask(self, question: Callable[[CatalogMirror], T]) -> T:
        """Have *question* answered by the catalog as of where decoding is; it must be quick, for
        decoding waits meanwhile.

        Raises:
            NotReady: decoding has not begun, has stopped, or has no time for it.
            SpillwayError: what the question raises.
        """
        decoder = self._decoder
        if decoder is None or self._error is not None or not self._log.restart_lsn:
            self.check_readable()
            raise NotReady(
                f'the catalog of database "{self.database}" is not read yet',
                hint="Wait for a consistent point; GET /v1/sources shows how far it is.",
                database=self.database,
            )
        return await self._questions.ask(question, self._wake)

    async def moment(self) -> DecodingMoment:
        """Say what is in progress where decoding is.

        Raises:
            NotReady: the decoding thread has no time for it.
            SpillwayError: what stopped decoding.
        """
        return await self.ask(lambda _: self._moment())

    def _moment(self) -> DecodingMoment:
        decoder = self._decoder
        assert decoder is not None
        in_progress = frozenset(xid for xid, top_xid, _, _ in decoder.transactions() if not top_xid)
        return DecodingMoment(decoder.position, in_progress, decoder.xid_marks())

    def info(self) -> DatabaseSession:
        decoder, error = self._decoder, self._error
        if error is not None:
            state = "failed"
        else:
            state = (decoder.snapshot_state if decoder is not None else SnapshotState.START).label
        decoded = self.log.decoded_lsn
        return DatabaseSession(
            database=self.database,
            datoid=self.database_oid,
            snapshot_state=state,
            decoded_lsn=Lsn(decoded) if decoded else None,
            restart_lsn=Lsn(decoder.restart_lsn) if decoder is not None else None,
            error=readable(error.message) if error else None,
            error_code=error.code if error else None,
            hint=error.hint if error else None,
            state=self.signs.state,
            since=self.signs.since,
            current=self.signs.is_current(self._store.received_lsn - decoded),
            log_damaged=self._log.is_damaged,
            log_verified_at=self._verification.all_verified_at(),
            log_start_lsn=Lsn(self.log_start_lsn) if self.log_start_lsn else None,
            encoding=self._server_encoding,
        )

    def spill_stats(self) -> tuple[int, int, int]:
        """Return (spill_txns, spill_count, spill_bytes) since the session's last start."""
        decoder = self._decoder
        if decoder is None:
            return 0, 0, 0
        stats = decoder.stats
        return stats.spill_txns, stats.spill_count, stats.spill_bytes

    def want_streaming(self) -> None:
        """Have transactions streamed that begin from now on; for good, since a slot may come back
        for them.
        """
        self._streaming_wanted = True
        self._wake()

    async def wait_streaming(self, timeout_s: float) -> None:
        """Wait until what begins from now on is streamed; after :meth:`want_streaming`."""
        await self._wait(
            lambda: self._streams,
            timeout_s,
            lambda: f'database "{self.database}" is not decoded yet',
            lambda: "Decoding has not begun; GET /v1/sources shows why.",
        )

    async def wait_consistent(self, timeout_s: float) -> None:
        """Wait until slots can begin here.

        Raises:
            NotReady: it took longer; it says what is being waited for.
        """
        database = self.database
        await self._wait(
            lambda: self._log.restart_lsn != 0,
            timeout_s,
            lambda: f'no consistent point yet for database "{database}": {self._waiting.what}',
            lambda: self._waiting.hint,
        )

    async def wait_decoded(self, lsn: int, timeout_s: float) -> None:
        """Wait until WAL is decoded up to *lsn*."""

        def reached() -> bool:
            if self.log.decoded_lsn >= lsn:
                return True
            # What is of no interest here is passed over without haste.
            self._is_asked = True
            self._wake()
            return False

        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def look() -> None:
            if self.log.decoded_lsn >= lsn:
                loop.call_soon_threadsafe(told.set)

        self.log.add_listener(look)
        try:
            await self._wait(
                reached,
                timeout_s,
                lambda: f'database "{self.database}" is not decoded up to {Lsn(lsn)} yet',
                lambda: "Decoding lags behind the source; try again, or give an earlier start_lsn.",
                told,
            )
        finally:
            self.log.remove_listener(look)

    async def _wait(
        self,
        reached: Callable[[], bool],
        timeout_s: float,
        what: Callable[[], str],
        hint: Callable[[], str],
        told: asyncio.Event | None = None,
    ) -> None:
        """Look every few milliseconds whether it is *reached*, and when it is *told*."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not reached():
            self.check_readable()
            if loop.time() >= deadline:
                raise NotReady(what(), hint=hint(), database=self.database)
            if told is None:
                await asyncio.sleep(_LOOK_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await told.wait()

    def take_ddl(self) -> list[CommittedDdl]:
        """Take what DDL did in transactions that committed since this was called last. After a
        start some come again.
        """
        return [self._ddl.popleft() for _ in range(len(self._ddl))]

    async def source_flush_lsn(self) -> int:
        """Ask the primary where its WAL ends."""
        return await asyncio.to_thread(wal_flush_lsn, self.conninfo)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = _BACKOFF_FIRST_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._decode()
            except DatabaseDropped as error:
                # Nothing mends that; what was decoded is served until the session is ended.
                self._fail(error)
                while not self._stop.wait(_DROPPED_WAIT_S):
                    with contextlib.suppress(SpillwayError):
                        self._log.seal_damaged()
            except (CorruptWal, WalGap) as error:
                if self._mend_wal(begin_behind(error, 0) or self._read_lsn, self._read_lsn):
                    continue
                self._fail(error)
            except WalLevelNotLogical as error:
                # What was written meanwhile can't be decoded, whoever waits: go on behind it when
                # the level is right.
                self._fail(error)
                self.lost_reason = WAL_LEVEL_INSUFFICIENT
                self._anew_behind = max(begin_behind(error, 0) or 0, self._anew_behind or 0)
                # What mends it, the source's restart, is asked for with a short question.
                backoff = min(backoff, _WAL_LEVEL_MAX_S)
            except SpillwayError as error:
                self._fail(error)
            except OSError as error:
                self._fail(file_error(error, self._layout.root))
            except Exception as error:
                log.exception("decoding of %s failed", self.database)
                self._fail(SpillwayError(f"{type(error).__name__}: {error}", hint="Report this."))
            if time.monotonic() - began > _BACKOFF_MAX_S:
                backoff = _BACKOFF_FIRST_S
            if self._again.wait(backoff):
                self._again.clear()
                backoff = _BACKOFF_FIRST_S
            else:
                backoff = min(backoff * 2, _BACKOFF_MAX_S)

    def _fail(self, error: SpillwayError) -> None:
        behind = begin_behind(error, self._source.wal_segment_size)
        if behind is not None and not isinstance(error, WalLevelNotLogical):
            what = (
                "One that was made again" if isinstance(error, DatabaseDropped) else "What follows"
            )
            error.hint += (
                f" {what} is decoded after: spillway source restart {self._source.name} "
                f"{self.database}. Slots that missed something are invalidated then."
            )
        if str(error) != str(self._error):
            log.error('decoding of database "%s" stopped: %s', self.database, error)
        self.signs.failed(error)
        self._failing.failed(self.signs.lsn)

    def _decode(self) -> None:
        """Start from durable state and decode until told to stop."""
        self._log.recover()
        decoder = self._open_decoder()
        decoder.note_ddl(self._ddl.append)
        self._decoder = decoder
        self._resume_streaming(decoder)
        try:
            self._follow(decoder)
        finally:
            decoder.close()

    # Parts must be made again as they were when their WAL is decoded again, else a slot's reader
    # could not put together those from before and those from after. So it is written down from
    # where on they are made, and how.

    def _begin_streaming(self, decoder: Decoder, lsn: int) -> None:
        """Stream what begins at *lsn* or later."""
        stream_bytes = self._part_bytes
        self._layout.describe(streaming=[lsn, stream_bytes])
        decoder.stream_from(lsn, stream_bytes)
        self._streams = True

    def _resume_streaming(self, decoder: Decoder) -> None:
        """Go on streaming as before the start; with another size of parts only what begins after
        all that is logged.
        """
        before = self._layout.streaming()
        self._streams = before is not None
        if before is None:
            return
        if before[1] == self._part_bytes:
            decoder.stream_from(*before)
        else:
            # What was streamed in other parts can't be made again as it was.
            self._snapshots.remove_bases()
            logged = max(self._log.last_final_lsn + 1, self._log.decoded_lsn, before[0])
            self._begin_streaming(decoder, logged)

    @property
    def _part_bytes(self) -> int:
        settings = self._settings
        if settings.stream_bytes is None:
            return settings.logical_decoding_work_mem
        return settings.stream_bytes

    def _open_decoder(self) -> Decoder:
        self._layout.spill.mkdir(parents=True, exist_ok=True)
        self._snapshots.prepare()
        if self._anew_behind is None:
            found = self._snapshots.candidates(
                self._store.first_lsn,
                self._log.restart_lsn,
                self._log.complete_to,
                self._whole.needed_lsn,
            )
            for lsn, path, logged in found:
                try:
                    decoder = self._restore(lsn, path, logged)
                except (CorruptSnapshot, DecodingStateLost) as damage:
                    log.error("%s is of no use, and is removed: %s", path, damage)  # noqa: TRY400
                    path.unlink()
                    continue
                self._required_lsn = lsn
                self._snapshots.restored(lsn, decoder)
                return decoder
            if self._log.restart_lsn:
                self._say("no snapshot reaches back to the log's end: the catalog is read anew")
        return self._bootstrap()

    def _restore(self, lsn: int, path: Path, logged: int | None) -> Decoder:
        return Decoder.restore(
            path.read_bytes(),
            version_of_server(self.server_version_num),
            LogSink(self._log, self._whole),
            work_mem_bytes=self._settings.logical_decoding_work_mem,
            spill_dir=self._layout.spill,
            start_decoding_at=logged,
            capture=self._capture,
            as_of=lsn,
        )

    def _bootstrap(self) -> Decoder:
        """Read the catalog from the running server."""
        # What changes are made of is not in WAL of a lower level, and where it was lowered may be
        # before what is read.
        check_wal_level(self.conninfo)
        # Another database's catalog would be taken for this one's.
        check_database_name(self.conninfo, self.database, self.database_oid)
        self._snapshots.remove_all()
        # The source removes no WAL while required_lsn is not known.
        self._required_lsn = 0
        bootstrap = bootstrap_database(
            self.conninfo,
            first_lsn=max(self._store.first_lsn, self._anew_behind or 0),
            progress=self._say_of_catalog,
            cancel=self._stop,
        )
        self._anew_behind = None
        self._required_lsn = self._redo_lsn = bootstrap.redo_lsn
        return Decoder(
            version_of_server(self.server_version_num),
            self.database_oid,
            bootstrap.mirror,
            LogSink(self._log, self._whole),
            work_mem_bytes=self._settings.logical_decoding_work_mem,
            spill_dir=self._layout.spill,
            start=bootstrap.redo_lsn,
            capture=self._capture,
        )

    def _say_of_catalog(self, what: str) -> None:
        self._waiting = waiting.reading_catalog(what)
        self._say(what)

    def _say(self, what: str) -> None:
        log.info('database "%s": %s', self.database, what)

    def _follow(self, decoder: Decoder) -> None:
        if self._settings.audit:
            decoder.audit()
        version = version_of_server(self.server_version_num)
        changes = self._followed = self._changes.follow(decoder, version, self._went_on)
        try:
            self._take(changes, decoder)
        finally:
            self._followed = None
            changes.close()
        self._checkpoint(decoder)

    def _take(self, changes: Changes, decoder: Decoder) -> None:
        """Take changes until told to stop, with a checkpoint now and then."""
        started_at = decoder.position
        self._caught_up = False
        self._note_checkpoint(decoder, 0.0)
        wait_s = 0.0
        while not self._stop.is_set():
            self._questions.answer(decoder.mirror)
            if self._streaming_wanted and not self._streams:
                self._begin_streaming(decoder, decoder.position)
            if self._log.is_damaged:
                self._log.seal_damaged()
            held, before = decoder.memory_bytes, decoder.position
            self._is_asked = False
            try:
                changes.advance(wait_s, self._is_called, self._live_for(decoder))
            finally:
                lsn = self._read_lsn = self.signs.lsn = changes.read_lsn
            if decoder.position > before:
                self._log.publish()
                if held - decoder.memory_bytes >= WORTH_BYTES:
                    freed_memory.give_back()
            caught_up = changes.caught_up
            # Until it has caught up, or is past what failed, it is to be known when it does.
            settles = not self._caught_up or self._error is not None or self._failing.runs
            wait_s = 0.0 if settles and not caught_up else changes.look_s
            if not self._log.restart_lsn:
                self._waiting = waiting.decoding(decoder, lsn, self._store.flushed_lsn)
            if self.signs.is_past_failure(caught_up=caught_up):
                if self._error is not None or (self._failing.runs and caught_up):
                    # What failed may have been the writing of one.
                    self._checkpoint(decoder)
                if caught_up:
                    self._failing.stop()
                self.signs.went_on()
            if self._is_checkpoint_due(decoder):
                began = time.monotonic()
                self._checkpoint(decoder)
                self._note_checkpoint(decoder, time.monotonic() - began)
            if caught_up and not self._caught_up:
                # Told once a start, and measured: `make bench` takes the time of a restart from it.
                self._say(f"decoded what is stored, from {Lsn(started_at)} to {Lsn(lsn)}")
                self._caught_up = self.signs.settled = True
                self._set_aside()

    def _went_on(self, lsn: int) -> bool:
        """Let be seen what the thread of another session has brought, while this one's sleeps."""
        self._read_lsn = self.signs.lsn = max(lsn, self._read_lsn)
        self._log.publish()
        decoder = self._decoder
        return decoder is None or self._is_checkpoint_due(decoder)

    def _note_checkpoint(self, decoder: Decoder, took_s: float) -> None:
        self._checkpoint_lsn, self._checkpoint_own = decoder.position, decoder.own_batches
        self._checkpoint_at = time.monotonic()
        self._pause_s = checkpoint_pause_s(self._settings.checkpoint_interval_s, took_s)

    def _is_checkpoint_due(self, decoder: Decoder) -> bool:
        grown = decoder.position - self._checkpoint_lsn
        if not grown:
            return False
        pauses = 1 if decoder.own_batches > self._checkpoint_own else _IDLE_PAUSES
        return (
            time.monotonic() - self._checkpoint_at >= self._pause_s * pauses
            or grown >= self._settings.checkpoint_bytes
            or not self._log.restart_lsn
            or (grown >= _LOW_CHECKPOINT_BYTES and self._layout.reserve.is_low)
        )

    def _live_for(self, decoder: Decoder) -> Callable[[], bool] | None:
        """Return what is to be called when another thread has had *decoder* take the little that
        came while this one waits; None when this one is to do that itself.
        """
        # Before the first checkpoint, and behind a failure, each step is to be looked at.
        is_calm = self._caught_up and self._error is None and not self._failing.runs
        if not is_calm or not self._log.restart_lsn or not self._is_light(decoder):
            return None
        return functools.partial(self._took, decoder)

    def _is_light(self, decoder: Decoder) -> bool:
        """Whether little WAL is taken in no time."""
        return decoder.is_light and self._log.has_room(_LIGHT_LOG_BYTES)

    def _took(self, decoder: Decoder) -> bool:
        """Let what was decoded be seen; False when what comes next may be more than little.

        In the stead of the session's thread, which sleeps and looks after all else when it wakes.
        """
        self._log.publish()
        self._read_lsn = self.signs.lsn = decoder.position
        return self._is_light(decoder) and not self._is_checkpoint_due(decoder)

    def _set_aside(self) -> None:
        """Have Python's collector leave alone what this attempt to decode has made, but for what a
        former one left.
        """
        if self._is_set_aside:
            collector.ask()
        self._is_set_aside = True
        collector.set_aside()

    def _wake(self) -> None:
        """Have the thread look whether it is called. For any thread."""
        if (followed := self._followed) is not None:
            followed.wake()

    def _is_called(self) -> bool:
        """Whether the thread has something else to do than to wait for changes."""
        is_to_stream = self._streaming_wanted and not self._streams
        is_asked = self._is_asked or is_to_stream or self._questions.are_waiting()
        return self._stop.is_set() or is_asked

    # -- durable state ------------------------------------------------------------------------

    def _checkpoint(self, decoder: Decoder) -> None:
        """Serialise, sync the log, then give up what a restart no longer needs."""
        if decoder.snapshot_state != SnapshotState.CONSISTENT:
            if not self._log.restart_lsn:
                self._required_lsn = decoder.position
            return
        # The first one carries, too: before it there is nothing to restart from.
        behind = decoder.position - decoder.restart_lsn
        carries = behind > (self._settings.carry_bytes if self._log.restart_lsn else 0)
        is_first = not self._log.restart_lsn
        self._snapshots.write(decoder, carries=carries)
        restart_lsn = decoder.restart_lsn
        needed = max((lsn for lsn, _ in self._snapshots.all() if lsn <= restart_lsn), default=None)
        if needed is None:
            return
        failpoint("session.before_log_sync")
        self._log.checkpoint(restart_lsn)
        failpoint("session.after_log_sync")
        self._snapshots.keep_base(needed, self._log.complete_to)
        self._snapshots.remove_before(needed)
        self._snapshots.remove_bases(
            (segment.start_lsn for segment in self._log.segments()),
            0 if self._settings.wal_archives is not None else self._store.first_lsn,
        )
        self._required_lsn = needed
        self._failing.got_to(decoder.position)
        if is_first:
            # What came with WAL since the source's last checkpoint, most of which nobody asks for:
            # else the next checkpoint would have it go, in a time when much WAL comes.
            decoder.condense()
