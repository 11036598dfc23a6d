"""Our side on a live server: a physical stream into a decoder, in a thread, without the service.

The WAL is streamed through a temporary physical slot, which goes with its connection; no file of it
is kept. The catalog is read at the start, as a source's is. What comes out goes to a sink.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from spillway._kernels.wal.walker import Walker
from spillway.catalog.bootstrap_database import bootstrap_database
from spillway.decoding.decoder import WORK_MEM_BYTES_DEFAULT, Decoder
from spillway.errors import ReplicationFailed
from spillway.pg.conninfo import replication_conninfo
from spillway.pg.versions import version_of_server
from spillway.receiver.replication_connection import (
    CommandFailed,
    EndOfStream,
    Interrupted,
    ReplicationConnection,
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.catalog.bootstrap import Bootstrap
    from spillway.certify.rendering import RenderingSink
    from spillway.receiver.checks import SourceFacts

_BATCH_RECORDS: Final = 4096
_STATUS_INTERVAL_S: Final = 1.0
_WAIT_S: Final = 0.2


class Follower:
    """Decodes what the server writes: ``prepare``, then from ``start`` until ``stop``."""

    def __init__(self, dsn: str, facts: SourceFacts, slot_name: str) -> None:
        self._dsn = dsn
        self._facts = facts
        self._slot_name = slot_name
        self._wake_up = WakeUp()
        self._thread = threading.Thread(target=self._run, name="certify", daemon=True)
        self._connection: ReplicationConnection | None = None
        self._bootstrap: Bootstrap | None = None
        self._decoder: Decoder | None = None
        self._spill = tempfile.TemporaryDirectory(prefix="spillway-certify-")
        #: what ended the thread, if anything did
        self.error: Exception | None = None
        #: end of the WAL that was received, and of the last record decoded
        self.received_lsn = 0
        self.position = 0
        self.start_lsn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        if self._decoder is not None:
            self._decoder.close()
        if self._connection is not None:
            self._connection.close()
        self._spill.cleanup()

    def prepare(self, progress: Callable[[str], None], cancel: threading.Event) -> None:
        """Create the slot and read the catalog.

        Raises:
            SourceError: the server refuses one of these.
            NotReady: *cancel* was set while old transactions were waited for.
        """
        connection = self._connection = ReplicationConnection.connect(
            replication_conninfo(self._dsn), self._wake_up
        )
        try:
            connection.create_physical_slot(self._slot_name, temporary=True)
        except CommandFailed as failure:
            raise _refused(failure) from None
        self._bootstrap = bootstrap_database(self._dsn, progress=progress, cancel=cancel)
        self.start_lsn = self.received_lsn = self.position = int(self._bootstrap.redo_lsn)

    def start(self, sink: RenderingSink) -> None:
        """Begin to stream and to decode into *sink*.

        Raises:
            SourceError: the server refuses to stream.
        """
        bootstrap, connection = self._bootstrap, self._connection
        assert bootstrap is not None
        assert connection is not None
        version = version_of_server(bootstrap.server_version)
        self._decoder = Decoder(
            version,
            bootstrap.mirror.facts.database_oid,
            bootstrap.mirror,
            sink,
            work_mem_bytes=WORK_MEM_BYTES_DEFAULT,
            spill_dir=Path(self._spill.name),
            start=self.start_lsn,
        )
        self._decoder.audit()
        self._walker = Walker(
            version,
            self.start_lsn,
            self._facts.wal_segment_size,
            system_id=int(self._facts.system_id),
        )
        try:
            ended = connection.start_replication(
                self._slot_name, self.start_lsn, bootstrap.timeline_id
            )
        except CommandFailed as failure:
            raise _refused(failure) from None
        if ended is not None:
            raise ReplicationFailed(
                "the server has gone on to another timeline", hint="Run certify again."
            )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; may be repeated."""
        self._wake_up.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raise what ended the thread.

        Raises:
            SpillwayError: decoding or the connection failed.
        """
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with contextlib.suppress(Interrupted):
                self._pump()
        except CommandFailed as failure:
            self.error = ReplicationFailed(f"the server ended the WAL stream: {failure.message}")
        except EndOfStream:
            self.error = ReplicationFailed("the server ended the WAL stream: it shuts down")
        except Exception as error:  # noqa: BLE001 - raised again by check()
            self.error = error

    def _pump(self) -> None:
        connection = self._connection
        assert connection is not None
        status_at = 0.0
        while True:
            asked = False
            message = connection.receive()
            if message is None:
                connection.wait(_WAIT_S)
            elif message[0] == XLOG_DATA:
                lsn, _, data = parse_xlog_data(message)
                self._take(lsn, bytes(data))
                self._wake_up.check()
            elif message[0] == KEEPALIVE:
                asked = parse_keepalive(message).reply_requested
            else:
                raise unknown_message(message)
            now = time.monotonic()
            if asked or now - status_at >= _STATUS_INTERVAL_S:
                connection.send(format_status(self.received_lsn, self.position))
                status_at = now

    def _take(self, lsn: int, data: bytes) -> None:
        decoder = self._decoder
        assert decoder is not None
        self._walker.feed(lsn, data)
        while (batch := self._walker.next_batch(_BATCH_RECORDS)) is not None:
            decoder.process(batch)
            self.position = decoder.position
        self.received_lsn = lsn + len(data)


def _refused(failure: CommandFailed) -> ReplicationFailed:
    return ReplicationFailed(
        f"the server refuses to stream WAL: {failure.message}", hint="See the server's log."
    )
