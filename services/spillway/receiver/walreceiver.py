"""The receiver: streams WAL from the primary into the WAL store and confirms what is durable there.

A thread of its own for each source. It speaks physical streaming replication as a standby does and
feeds :class:`~spillway.receiver.wal_writer.WalWriter`; consumers wait on the store, not on the
receiver.

::

               ┌───────────── transient error, back-off ─────────────┐
               ▼                                                     │
    start ▶ CONNECTING ─ identified, slot there ─▶ STREAMING ─ error ┴─▶ WAITING
               ▲  │                                 │   ▲                  │
               │  └──────── fatal ──▶ FAILED ◀──────┤   └─ space again ────┤ (disk full: the
               │                                    │                      │  connection stays, for
               └────────────────────────────────────┼──────────────────────┘  some seconds)
                                 stop() from anywhere ▶ STOPPED

Confirmation is the point of it. ``write`` is what the store has received, ``flush`` what it has
fsynced; the primary recycles WAL up to ``flush``. Syncs are grouped: at most every
``sync_delay_s``, at least every ``_SYNC_BYTES_MAX``; at once when the server asks for a reply (it
does before it shuts down). Readers don't wait for syncs, so the delay costs them nothing; nor do
they wait for the disk, since ordinary syncs run beside this thread
(:mod:`~spillway.receiver.sync_thread`). Those that are due at once are waited for.

Transient errors (network, restart, authentication, slot still active, no disk space) are shown in
:attr:`WalReceiver.error` and retried for ever, with exponential back-off and jitter. Fatal ones
would lose or mix up WAL if retried: another cluster, a copy of it that went its own way
(:mod:`~spillway.receiver.continuity`), a diverged timeline, WAL removed with no archive to fill in.

Memory: one batch (1 MiB and a message of at most 128 kB) twice while its pieces are joined, and
libpq's input buffer. While the disk is full nothing is read, and TCP's flow control stops the
server; when that lasts, the connection is given up until there is space.

Source: src/backend/replication/walreceiver.c
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import (
    CorruptWalStore,
    DiskFull,
    NotReady,
    PhysicalSlotActive,
    PhysicalSlotUnusable,
    ReplicationFailed,
    ReplicationSlotsExhausted,
    SpillwayError,
    SystemIdMismatch,
    TimelineDiverged,
    UnsupportedVersion,
    WalDiverged,
    WalGap,
    WalNotContiguous,
    WalRemoved,
    WalStoreFull,
)
from spillway.failpoints import failpoint
from spillway.instants import Instant
from spillway.pg.conninfo import replication_conninfo
from spillway.pg.lsn import Lsn
from spillway.receiver.continuity import UNDEFINED_FILE, check_history, overlaps
from spillway.receiver.physical_slot import renew_physical_slot
from spillway.receiver.replication_connection import (
    CommandFailed,
    EndOfStream,
    Interrupted,
    ReplicationConnection,
    TimelineEnd,
    WakeUp,
)
from spillway.receiver.streaming_protocol import (
    KEEPALIVE,
    XLOG_DATA,
    format_status,
    parse_keepalive,
    parse_xlog_data,
    unknown_message,
)
from spillway.receiver.sync_thread import SyncThread

if TYPE_CHECKING:
    from spillway.receiver.archive import WalArchive
    from spillway.receiver.wal_writer import WalWriter

log = logging.getLogger(__name__)

#: One default segment: bounds what a crash makes us receive again, and how long one fsync can take.
_SYNC_BYTES_MAX: Final = 16 << 20
#: A write of this size costs the interpreter's lock little; gathering it takes about a millisecond.
_BATCH_BYTES: Final = 1 << 20
#: WAL of a few small transactions.
_LITTLE_BYTES: Final = 8 << 10
#: How long what libpq has decrypted, and poll() does not see, may lie before it is looked for.
_UNSEEN_S: Final = 0.001
_RETRY_FIRST_S: Final = 0.25
_RETRY_MAX_S: Final = 30.0
_SPACE_RETRY_MAX_S: Final = 5.0
#: For how long a connection is kept that is not read, while there is no space. A server that gives
#: the slot up (max_slot_wal_keep_size) ends its walsender first, which waits to tell that to whom
#: it serves; and the server's checkpoint, with all WAL that it would remove, waits for both.
_UNREAD_MAX_S: Final = 10.0
#: A server with nothing to send is asked for a word after so much silence: who looks must know
#: whether it is there.
_ASK_S: Final = 5.0

_FATAL: Final = (
    SystemIdMismatch,
    TimelineDiverged,
    WalDiverged,
    WalRemoved,
    UnsupportedVersion,
    WalGap,
    CorruptWalStore,
    NotReady,
)


class ReceiverState(StrEnum):
    """What a receiver is doing."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


class _SpaceAgain(Exception):
    """There is space again, after the connection was given up for want of it."""


class _Taken(NamedTuple):
    """What one turn at the socket gave."""

    #: anything at all
    heard: bool
    reply_requested: bool
    #: nothing more was ready
    drained: bool
    #: it was more than a few small transactions
    is_much: bool


class WalReceiver:
    """Streams one source's WAL into *store* from :meth:`start` to :meth:`stop`.

    Args:
        conninfo: the source's DSN.
        slot_name: the physical slot on the primary; created when it is missing, after a failover
            for one.
        store: where WAL goes; this is its only writer. Streaming resumes where it ends.
        archive: asked for WAL that the primary has removed.
        status_interval_s: the primary hears from us at least this often.
        receiver_timeout_s: silence of the server after which the connection is given up.
        sync_delay_s: syncs are at least this far apart while nothing urges.
    """

    def __init__(
        self,
        conninfo: str,
        slot_name: str,
        store: WalWriter,
        *,
        archive: WalArchive | None = None,
        status_interval_s: float = 1.0,
        receiver_timeout_s: float = 60.0,
        sync_delay_s: float = 0.02,
    ) -> None:
        self._dsn = conninfo
        self._conninfo = replication_conninfo(conninfo)
        self._slot_name = slot_name
        self._store = store
        self._archive = archive
        self._status_interval_s = status_interval_s
        self._receiver_timeout_s = receiver_timeout_s
        self._sync_delay_s = sync_delay_s
        self._wake_up = WakeUp()
        self._thread = threading.Thread(
            target=self._run, name=f"walreceiver {slot_name}", daemon=True
        )
        self._syncs = SyncThread(store, f"walsync {slot_name}", self._wake_up.nudge)
        self._shown_state = ReceiverState.CONNECTING
        #: since when it streams, or does not; None: it never did
        self.since: Instant | None = None
        #: when the server was last heard; None: never
        self.heard: Instant | None = None
        #: what the server said that it was connected to last; None: no server yet
        self.server_version_num: int | None = None
        self._error: SpillwayError | None = None
        self._server_wal_end = Lsn(0)
        self._retry_s = _RETRY_FIRST_S

    # -- for other threads --------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Sync, confirm, disconnect. Return whether the thread ended within *timeout_s*. May be
        repeated.
        """
        self._wake_up.set()
        if self._thread.ident is None:
            self._state = ReceiverState.STOPPED
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def state(self) -> ReceiverState:
        """What the receiver is doing now."""
        return self._state

    @property
    def _state(self) -> ReceiverState:
        return self._shown_state

    @_state.setter
    def _state(self, state: ReceiverState) -> None:
        if ReceiverState.STREAMING in (state, self._shown_state) and state != self._shown_state:
            self.since = Instant.now()
        self._shown_state = state

    @property
    def error(self) -> SpillwayError | None:
        """Why it waits or has failed; None while all is well."""
        return self._error

    @property
    def server_wal_end(self) -> Lsn:
        """How far the server's WAL reached when it last said so; 0/0 before that."""
        return self._server_wal_end

    def is_alive(self) -> bool:
        """Say whether the thread runs."""
        return self._thread.is_alive()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        self._syncs.start()
        try:
            self._receive()
        finally:
            self._syncs.stop()

    def _receive(self) -> None:
        try:
            while True:
                try:
                    self._attempt()
                except _SpaceAgain:
                    continue
                except SpillwayError as raised:
                    error = self._cause(raised)
                    if isinstance(error, _FATAL) and not self._filled_in_from_archive(error):
                        self._show(error, ReceiverState.FAILED)
                        log.error("receiver of slot %s has failed: %s", self._slot_name, error)  # noqa: TRY400
                        return
                    # What came before the error may be all that is left of the primary: keep it.
                    with contextlib.suppress(SpillwayError):
                        self._store.sync()
                    self._back_off(error)
        except Interrupted:
            self._state = ReceiverState.STOPPED
        except Exception as error:
            log.exception("receiver of slot %s has failed", self._slot_name)
            unexpected = SpillwayError(f"the receiver failed unexpectedly: {error!r}")
            self._show(unexpected, ReceiverState.FAILED)

    def _cause(self, error: SpillwayError) -> SpillwayError:
        """Wait for the sync that may be under way; return what it raised if *error* only follows
        from that.
        """
        try:
            self._syncs.finish()
        except SpillwayError as failed:
            return failed if isinstance(error, WalNotContiguous) else error
        return error

    def _attempt(self) -> None:
        """Connect and stream until something ends it; always by an exception."""
        self._state = ReceiverState.CONNECTING
        with ReplicationConnection.connect(self._conninfo, self._wake_up) as connection:
            try:
                check_history(connection, self._store.reader, self._store.received_lsn)
                self.server_version_num = connection.server_version_num
                compared = False
                while True:
                    end = self._stream_timeline(connection, compared=compared)
                    compared = True
                    if end is None:
                        raise ReplicationFailed(
                            "the server ended the stream: it shuts down",
                            hint="The receiver reconnects by itself.",
                        )
                    self._follow(connection, end)
            except CommandFailed as failure:
                raise self._typed(failure) from failure
            except Interrupted:
                self._say_goodbye(connection)
                raise

    def _stream_timeline(
        self, connection: ReplicationConnection, *, compared: bool
    ) -> TimelineEnd | None:
        """Stream the store's timeline to its end; None when the server ends the stream for another
        reason.

        Nothing is taken before the server was *compared* with what is stored, and nothing is
        confirmed to it.
        """
        store = self._store
        if compared or not self._compare(connection):
            end = self._start(connection, store.received_lsn)
            if end is not None:
                return end
        self.heard = Instant.now()
        self._state, self._error = ReceiverState.STREAMING, None
        log.info("streaming from %s on timeline %d", store.received_lsn, store.timeline)
        with contextlib.suppress(EndOfStream):
            self._pump(connection)
        self._store.sync()
        return connection.finish_copy()

    def _compare(self, connection: ReplicationConnection) -> bool:
        """Open the stream before the store's end and compare what comes again; False if there was
        nothing to compare.
        """
        store = self._store
        for overlap in overlaps(store.reader, store.received_lsn):
            try:
                self._start(connection, overlap.start)
                rest = overlap.compare(connection)
            except CommandFailed as failure:
                if failure.sqlstate != UNDEFINED_FILE:
                    raise
                continue
            if rest:
                self._append(connection, store.received_lsn, rest)
            return True
        if store.received_lsn > store.first_lsn:
            log.warning(
                "the server has removed the WAL before %s: it can't be compared with what was "
                "received",
                store.received_lsn,
            )
        return False

    def _start(self, connection: ReplicationConnection, lsn: int) -> TimelineEnd | None:
        """Open the stream at *lsn*, with our slot, created if need be."""
        timeline = self._store.timeline
        try:
            return connection.start_replication(self._slot_name, lsn, timeline)
        except CommandFailed as failure:
            if failure.sqlstate != _UNDEFINED_OBJECT:
                raise
        log.warning("physical slot %s is missing on the server, creating it", self._slot_name)
        connection.create_physical_slot(self._slot_name)
        return connection.start_replication(self._slot_name, lsn, timeline)

    def _pump(self, connection: ReplicationConnection) -> None:
        """Move messages to the store until an exception ends it, :class:`EndOfStream` for one."""
        store = self._store
        heard_at = synced_at = time.monotonic()
        status_at = 0.0  # the first one is due: the slot takes our position from it
        told_lsn = store.flushed_lsn
        reply_requested = asked = False
        # Until then nothing is due, unless a sync has ended or the server asks.
        calm_until = 0.0
        while True:
            self._syncs.check()
            taken = self._take(connection)
            reply_requested |= taken.reply_requested
            now = time.monotonic()
            if now < calm_until and not reply_requested and store.flushed_lsn <= told_lsn:
                # Who was woken by what was appended waits for the interpreter's lock: most of what
                # follows is for others, and can wait a moment.
                if taken.heard:
                    heard_at, asked = now, False
                    self.heard = Instant.now()
                if taken.drained:
                    connection.wait(calm_until - now)
                    continue
                if not taken.is_much:
                    # Not to be drained first: most often nothing is there, and waiting lets go of
                    # the lock at once.
                    connection.wait(_UNSEEN_S)
                    continue
            if taken.heard:
                heard_at, asked = now, False
                self.heard = Instant.now()
            silence_s = now - heard_at  # not counting our own sync
            unsynced_bytes = store.received_lsn - store.flushed_lsn
            urgent = reply_requested or unsynced_bytes >= _SYNC_BYTES_MAX
            if unsynced_bytes > 0 and urgent:
                store.sync()
                unsynced_bytes = 0
                now = synced_at = time.monotonic()
            sync_wait_s = self._sync_delay_s - (now - synced_at)
            if unsynced_bytes > 0 and sync_wait_s <= 0 and self._syncs.begin():
                synced_at = now
            flushed = store.flushed_lsn > told_lsn
            if flushed or reply_requested or now - status_at >= self._status_interval_s:
                told_lsn = self._send_status(connection)
                status_at, reply_requested = now, False
            if silence_s >= self._receiver_timeout_s:
                raise ReplicationFailed(
                    f"the server was silent for {silence_s:.0f} s",
                    hint="The receiver reconnects by itself.",
                )
            if silence_s >= min(self._receiver_timeout_s / 2, _ASK_S) and not asked:
                self._send_status(connection, reply_requested=True)
                asked = True
            timeout_s = self._status_interval_s - (now - status_at)
            if unsynced_bytes > 0 and sync_wait_s > 0:
                timeout_s = min(timeout_s, sync_wait_s)
            calm_until = now + min(timeout_s, self._sync_delay_s)
            if taken.drained:
                connection.wait(max(0.0, timeout_s))
            else:
                self._wake_up.check()

    def _take(self, connection: ReplicationConnection) -> _Taken:
        """Append what the socket has ready, up to ``_BATCH_BYTES``.

        Messages are joined: every write lets go of the interpreter's lock, and beside busy threads
        taking it again is what costs. When a little has come it is appended before anybody looks
        for more: most often that was all, and somebody waits for it.
        """
        pieces: list[memoryview] = []
        start_lsn = next_lsn = 0
        heard = reply_requested = drained = False
        try:
            while next_lsn - start_lsn < _BATCH_BYTES:
                looks = not pieces or next_lsn - start_lsn > _LITTLE_BYTES
                message = connection.receive(looks=looks)
                if message is None:
                    drained = looks
                    break
                heard = True
                self._retry_s = _RETRY_FIRST_S
                kind = message[0]
                if kind == XLOG_DATA:
                    lsn, wal_end, data = parse_xlog_data(message)
                    self._server_wal_end = Lsn(wal_end)
                    if pieces and lsn != next_lsn:
                        raise ReplicationFailed(
                            f"the server sent WAL at {Lsn(lsn)} where {Lsn(next_lsn)} was to come",
                            hint="The receiver reconnects by itself.",
                        )
                    if not pieces:
                        start_lsn = lsn
                    pieces.append(data)
                    next_lsn = lsn + len(data)
                elif kind == KEEPALIVE:
                    keepalive = parse_keepalive(message)
                    self._server_wal_end = Lsn(keepalive.wal_end)
                    reply_requested |= keepalive.reply_requested
                else:
                    raise unknown_message(message)
        finally:
            # Also what came before the end of the stream, or before an error.
            if pieces:
                data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
                self._append(connection, start_lsn, data)
        return _Taken(heard, reply_requested, drained, next_lsn - start_lsn > _LITTLE_BYTES)

    def _append(self, connection: ReplicationConnection, lsn: int, data: memoryview) -> None:
        """Append *data*, waiting for space if there is none.

        While it waits the connection is kept alive but not read: nothing is lost, and the server
        keeps what it can't send. When that lasts, the connection is closed, and made again once
        there is space.

        Raises:
            _SpaceAgain: *data* is appended, and the connection closed.
        """
        delay_s = _RETRY_FIRST_S
        unread_since = time.monotonic()
        is_connected = True
        while True:
            try:
                self._store.append(lsn, data)
            except DiskFull as error:
                if self._error is None:
                    log.warning("receiver of slot %s pauses: %s", self._slot_name, error)
                self._show(error, ReceiverState.WAITING)
                self._syncs.finish()  # had one failed, the store would not end where this began
                taken = self._store.received_lsn - lsn
                lsn, data = lsn + taken, data[taken:]
                self._store.sync()  # may fall back, then the exception makes us reconnect
                if is_connected and time.monotonic() - unread_since >= _UNREAD_MAX_S:
                    log.warning(
                        "receiver of slot %s disconnects until there is space", self._slot_name
                    )
                    connection.close()
                    is_connected = False
                if is_connected:
                    self._wait_unread(connection, delay_s)
                else:
                    self._wake_up.sleep(delay_s)
                # What is decoded leaves a store that is only full soon; a disk may be full for
                # long.
                if not isinstance(error, WalStoreFull):
                    delay_s = min(2 * delay_s, _SPACE_RETRY_MAX_S)
            else:
                if self._error is not None:
                    log.info(
                        "receiver of slot %s resumes at %s",
                        self._slot_name,
                        self._store.received_lsn,
                    )
                    if not is_connected:
                        raise _SpaceAgain
                    self._error, self._state = None, ReceiverState.STREAMING
                return

    def _wait_unread(self, connection: ReplicationConnection, seconds: float) -> None:
        """Keep the connection alive for so long, without reading from it."""
        self._send_status(connection)
        waited_until = time.monotonic() + seconds
        while (remaining_s := waited_until - time.monotonic()) > 0:
            connection.wait(min(remaining_s, self._status_interval_s), receive=False)
            self._send_status(connection)

    def _send_status(
        self, connection: ReplicationConnection, *, reply_requested: bool = False
    ) -> Lsn:
        """Tell the server our positions; return what it was told to be flushed."""
        failpoint("walreceiver.before_status")
        flushed_lsn = self._store.flushed_lsn
        # In this order: what is received never is behind it.
        received_lsn = max(self._store.received_lsn, flushed_lsn)
        connection.send(format_status(received_lsn, flushed_lsn, reply_requested=reply_requested))
        return flushed_lsn

    def _say_goodbye(self, connection: ReplicationConnection) -> None:
        """On stop: make what was received durable and confirm it, so that nothing is received
        twice.
        """
        try:
            self._store.sync()
            if self._state == ReceiverState.STREAMING:
                self._send_status(connection)
        except SpillwayError as error:
            log.warning(
                "receiver of slot %s could not confirm before it stopped: %s",
                self._slot_name,
                error,
            )

    # -- timelines, archive, errors -----------------------------------------------------------

    def _follow(self, connection: ReplicationConnection, end: TimelineEnd) -> None:
        if end.fork_lsn != self._store.received_lsn:
            raise ReplicationFailed(
                f"the server ended timeline {self._store.timeline} at {end.fork_lsn}, but sent it "
                f"up to {self._store.received_lsn}",
                hint="The receiver reconnects and compares the histories.",
            )
        log.info("following timeline %d, which forks off at %s", end.next_timeline, end.fork_lsn)
        history = connection.timeline_history(end.next_timeline)
        self._store.switch_timeline(end.next_timeline, end.fork_lsn, history)

    def _filled_in_from_archive(self, error: SpillwayError) -> bool:
        """On removed WAL, copy from the archive what it has; say whether that was anything.

        The slot may be invalidated, which servers before 18 hide from a receiver. It is renewed
        first, so that the server keeps from now on what is not archived yet.
        """
        if self._archive is None or not isinstance(error, WalRemoved):
            return False
        store = self._store
        before = store.received_lsn
        log.warning("receiver of slot %s turns to the archive: %s", self._slot_name, error)
        try:
            renew_physical_slot(self._dsn, self._slot_name)
            while data := self._archive.read(store.received_lsn, _BATCH_BYTES):
                store.append(store.received_lsn, data)
                if store.received_lsn - store.flushed_lsn >= _SYNC_BYTES_MAX:
                    store.sync()
                self._wake_up.check()
            store.sync()
        except SpillwayError as failure:
            log.warning(
                "receiver of slot %s can't go on from the archive: %s", self._slot_name, failure
            )
        else:
            log.info("WAL from %s to %s came from the archive", before, store.received_lsn)
        return store.received_lsn > before

    def _typed(self, failure: CommandFailed) -> SpillwayError:
        """Turn the server's error into ours."""
        position, slot = self._store.received_lsn, self._slot_name
        if failure.sqlstate == UNDEFINED_FILE or (
            failure.sqlstate == _WRONG_STATE and _INVALIDATED in failure.message
        ):
            return WalRemoved(
                f"the source has removed WAL that was not received yet, from {position} on: "
                f"{failure.message}",
                hint="All changes from there to the source's present position are lost to "
                "decoding, unless a WAL archive has them: give the source its archive directory, "
                "and restart the service. Else begin anew behind them: spillway source restart "
                "SOURCE DATABASE, for any one database; slots that missed something are "
                "invalidated then, and their consumers must be loaded anew. max_slot_wal_keep_size "
                "limits what the source keeps.",
                lsn=str(position),
                slot=slot,
            )
        if failure.sqlstate == _IN_USE:
            # 'replication slot "…" is active for PID 4711', in the language of lc_messages
            numbers = re.findall(r"[0-9]+", failure.message.replace(slot, ""))
            return PhysicalSlotActive(slot, int(numbers[-1]) if numbers else None)
        if failure.sqlstate == _WRONG_STATE:
            return PhysicalSlotUnusable(
                f"the physical slot {slot} can't be used: {failure.message}",
                hint="The receiver tries again by itself; pg_replication_slots shows the slot's "
                "state.",
                slot=slot,
            )
        if failure.sqlstate == _CONFIGURATION_LIMIT:
            return ReplicationSlotsExhausted(
                f"the physical slot {slot} is missing and can't be created: {failure.message}",
                hint="ALTER SYSTEM SET max_replication_slots = 20; -- more than now; then restart "
                "the server",
                slot=slot,
            )
        return ReplicationFailed(
            f"the server ended replication: {failure.message}",
            hint="The receiver reconnects by itself.",
            sqlstate=failure.sqlstate,
        )

    def _show(self, error: SpillwayError, state: ReceiverState) -> None:
        """Show *error* to other threads, for as long as it lasts: without the frames, and the WAL,
        it came from.
        """
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self._error, self._state = error, state

    def _back_off(self, error: SpillwayError) -> None:
        """Show *error* and wait, longer each time until WAL arrives again."""
        self._show(error, ReceiverState.WAITING)
        delay_s = self._retry_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter, not a secret
        log.warning(
            "receiver of slot %s tries again in %.1f s: %s", self._slot_name, delay_s, error
        )
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
        self._wake_up.sleep(delay_s)


# SQLSTATEs, from src/backend/utils/errcodes.txt
_UNDEFINED_OBJECT: Final = "42704"
_WRONG_STATE: Final = "55000"
_IN_USE: Final = "55006"
_CONFIGURATION_LIMIT: Final = "53400"
_INVALIDATED: Final = "invalidated"
