"""What arrives from the service: a thread that reads the change stream ahead of the worker, into a
queue that is bounded in bytes.

::

    service ──gRPC──▶ reader thread ──▶ queue (≤ bytes_max, or one batch) ──▶ take() ──▶ the worker
       ▲                                                                                    │
       └───────────────────────── confirm(flush, apply) ◀───────────────────────────────────┘

While the queue is full the thread reads nothing, gRPC's window fills, and the service waits: memory
is bounded on both sides. A keepalive that waits in the queue is replaced by the next one: only the
last counts. An error of the stream is raised when everything that came before it is taken.

By the socket that the service has for its own programs the thread rests while little comes: the
worker waits for the socket itself, and has a small transaction without another thread. A batch that
is larger than :data:`_AHEAD_BYTES` may be followed by more, which the thread reads while the worker
writes that one, until one comes that is smaller.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from spillway.errors import NotReady, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import UNIX_EPOCH_US
from spillway.stream.client import open_own_stream, open_stream
from spillway.stream.own_client import SILENCE_S, OwnStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from spillway._kernels.apply.change_group import ChangeGroup
    from spillway.stream.client import ChangeStreamReader
    from spillway.stream.wire import Batch
    from spillway.tls import ClientTls

#: What the plugin gathers in a message, and gRPC in a batch.
_BATCH_BYTES: Final = 1 << 20
_QUEUE_BYTES: Final = 16 << 20
#: A batch of that size has more behind it, as like as not.
_AHEAD_BYTES: Final = 64 << 10
#: how late it is noticed that whoever reads all is to stop
_WAIT_S: Final = 0.5


class ArrivingChanges:
    """An open stream, read ahead. A context manager; taken from and confirmed on one thread.

    Args:
        grpc: host:port of the service.
        slot: its name.
        start_lsn: transactions whose commit record starts before this are not sent.
        options: of pgoutput.
        upto_lsn: the stream ends behind what commits before; 0: never.
        peek: beside whoever has the slot; nothing can be confirmed.
        token: the service's.
        tls: what it is verified with.
        own_socket: the service's, for its own programs; '' where there is none.
        silence_s: how long the service may say nothing by that; 0: for ever.
        bytes_max: of payload that may wait, but for one batch.

    Raises:
        SpillwayError: what the service refuses it for; NotReady when it can't be reached.
    """

    def __init__(
        self,
        grpc: str,
        slot: str,
        start_lsn: Lsn,
        options: Mapping[str, str],
        *,
        upto_lsn: Lsn | None = None,
        peek: bool = False,
        token: str | None = None,
        tls: ClientTls | None = None,
        own_socket: str = "",
        silence_s: float = SILENCE_S,
        bytes_max: int = _QUEUE_BYTES,
    ) -> None:
        self._reader: ChangeStreamReader | OwnStreamReader
        if own_socket and not peek and upto_lsn is None:
            self._reader = open_own_stream(
                own_socket,
                slot,
                start_lsn=start_lsn,
                options=options,
                batch_bytes=_BATCH_BYTES,
                token=token,
                silence_s=silence_s,
            )
        else:
            self._reader = open_stream(
                grpc,
                slot,
                start_lsn=start_lsn,
                upto_lsn=upto_lsn,
                options=options,
                batch_bytes=_BATCH_BYTES,
                peek=peek,
                token=token,
                tls=tls,
            )
        #: what the worker reads by itself while the thread rests
        self._direct = self._reader if isinstance(self._reader, OwnStreamReader) else None
        self._is_ahead = self._direct is None
        self._bytes_max = bytes_max
        self._queue: deque[Batch] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._woken = False
        self._confirmed = (Lsn(0), Lsn(0))
        #: how far the source's WAL is decoded, as last heard
        self.wal_end = Lsn(0)
        #: what has arrived by now is everything before this
        self.received_lsn = Lsn(start_lsn)
        #: when a message was last received, and sent: seconds since 1970; 0.0: never
        self.received_at = 0.0
        self.sent_at = 0.0
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more, and everything was taken: upto_lsn was reached."""
        with self._changed:
            return self._ended and not self._queue and self._error is None

    @property
    def is_read_ahead(self) -> bool:
        """Whether the thread reads what comes next, or whoever takes it."""
        return self._is_ahead

    def read_into(
        self, group: ChangeGroup, write: Callable[[], None], stopping: threading.Event
    ) -> bool:
        """Take all up to the end of a stream that has one, and have *write* write and clear *group*
        whenever it is full, and at the end; return False if *stopping* was set before.

        Raises:
            SpillwayError: as :meth:`take`; or what *write* raises.
        """
        while not self.has_ended:
            if stopping.is_set():
                return False
            batch = self.take(_WAIT_S)
            taken = 0
            while batch is not None and taken < batch.count:
                taken = group.feed(batch.payload, batch.lengths.cast("B"), taken)
                if group.is_full:
                    write()
        write()
        return True

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None when there is none within *timeout_s*, or no more at all.

        Raises:
            SpillwayError: the stream broke; NotReady if the service is gone.
        """
        with self._changed:
            direct = None if self._is_ahead or self._queue or self._ended else self._direct
        if direct is not None:
            return self._take_directly(direct, timeout_s)
        with self._changed:
            if not self._queue and not self._ended:
                self._changed.wait_for(lambda: self._queue or self._ended or self._woken, timeout_s)
            self._woken = False
            if self._queue:
                batch = self._queue.popleft()
                self._bytes -= len(batch.payload)
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def _take_directly(self, reader: OwnStreamReader, timeout_s: float) -> Batch | None:
        """Read on the worker's thread; the other one rests."""
        if self._woken:
            self._woken = False
            return None
        try:
            batch = reader.take(timeout_s)
        except StopIteration:
            with self._changed:
                self._ended = True
            return None
        except SpillwayError as error:
            with self._changed:
                self._ended, self._error = True, error
            raise
        self._woken = False
        if batch is None:
            return None
        self._note(batch)
        if len(batch.payload) >= _AHEAD_BYTES:
            with self._changed:
                self._is_ahead = True
                self._changed.notify_all()
        return batch

    def wake(self) -> None:
        """Have who waits in :meth:`take`, or the next who would, come back at once; on any
        thread.
        """
        with self._changed:
            self._woken = True
            self._changed.notify_all()
        if self._direct is not None:
            self._direct.wake()

    def confirm(self, flush_lsn: Lsn, apply_lsn: Lsn, *, at_once: bool = False) -> None:
        """Tell the service what is durable on the target, and what is written there; now if it is
        news.
        """
        told = flush_lsn, max(flush_lsn, apply_lsn)
        if flush_lsn and (told != self._confirmed or at_once):
            self._confirmed = told
            self._reader.confirm(flush_lsn, write_lsn=told[1], apply_lsn=told[1])

    def close(self) -> None:
        """End the stream; the slot takes the last feedback before if it can soon."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # The reader's own thread may be in the middle of a read: asked for a reply, it comes back.
        if not self._ended and self._is_ahead:
            self._reader.request_reply()
            self._thread.join(timeout=2.0)
        self._reader.close()
        self._thread.join(timeout=10.0)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            while self._may_read() and (batch := next(self._reader, None)) is not None:
                with self._changed:
                    if self._closed:
                        break
                    self._note(batch)
                    if batch.count == 0 and self._queue and self._queue[-1].count == 0:
                        self._queue.pop()
                    self._changed.wait_for(lambda: self._closed or self._bytes < self._bytes_max)
                    self._queue.append(batch)
                    self._bytes += len(batch.payload)
                    if self._direct is not None and len(batch.payload) < _AHEAD_BYTES:
                        self._is_ahead = False
                    self._changed.notify_all()
        except SpillwayError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - raised where it is waited for
            error = NotReady(f"the stream broke: {failed}", hint="It is opened again.")
        with self._changed:
            self._ended = True
            if error is not None and not self._closed:
                self._error = error
            self._changed.notify_all()

    def _may_read(self) -> bool:
        """Wait until it is this thread that reads; False when nothing is to be read any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ahead or self._closed or self._ended)
            return not self._closed and not self._ended

    def _note(self, batch: Batch) -> None:
        self.received_at = time.time()
        self.sent_at = (batch.send_time + UNIX_EPOCH_US) / 1e6
        self.wal_end = max(self.wal_end, batch.wal_end)
        self.received_lsn = max(self.received_lsn, batch.confirm_lsn)
