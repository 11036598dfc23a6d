"""What arrives from the service: a thread that reads the change stream ahead of the worker, into a
queue that is bounded in bytes.

::

    service ──gRPC──▶ reader thread ──▶ queue (≤ bytes_max, or one batch) ──▶ take() ──▶ the worker
       ▲                                                                                    │
       └───────────────────────── confirm(flush, apply) ◀───────────────────────────────────┘

While the queue is full the thread reads nothing, gRPC's window fills, and the service waits: memory
is bounded on both sides. A keepalive that waits in the queue is replaced by the next one: only the
last counts. An error of the stream is raised when everything that came before it is taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from spillway.errors import NotReady, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from spillway.stream.wire import Batch
    from spillway.tls import ClientTls

#: What the plugin gathers in a message, and gRPC in a batch.
_BATCH_BYTES: Final = 1 << 20
_QUEUE_BYTES: Final = 16 << 20
_POSTGRES_EPOCH_S: Final = 946_684_800


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
        bytes_max: int = _QUEUE_BYTES,
    ) -> None:
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

    def take(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None when there is none within *timeout_s*, or no more at all.

        Raises:
            SpillwayError: the stream broke; NotReady if the service is gone.
        """
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

    def wake(self) -> None:
        """Have who waits in :meth:`take`, or the next who would, come back at once; on any
        thread.
        """
        with self._changed:
            self._woken = True
            self._changed.notify_all()

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
        if not self._ended:
            self._reader.request_reply()
            self._thread.join(timeout=2.0)
        self._reader.close()
        self._thread.join(timeout=10.0)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._reader:
                with self._changed:
                    if self._closed:
                        break
                    self.received_at = time.time()
                    self.sent_at = batch.send_time / 1e6 + _POSTGRES_EPOCH_S
                    self.wal_end = max(self.wal_end, batch.wal_end)
                    self.received_lsn = max(self.received_lsn, batch.confirm_lsn)
                    if batch.count == 0 and self._queue and self._queue[-1].count == 0:
                        self._queue.pop()
                    self._changed.wait_for(lambda: self._closed or self._bytes < self._bytes_max)
                    self._queue.append(batch)
                    self._bytes += len(batch.payload)
                    self._changed.notify_all()
        except SpillwayError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - raised where it is waited for
            error = NotReady(f"the stream broke: {failed}", hint="It is opened again.")
        with self._changed:
            self._ended = True
            self._error = None if self._closed else error
            self._changed.notify_all()
