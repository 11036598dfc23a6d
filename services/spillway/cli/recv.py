"""``spillway recv``: write a slot's messages as they come, like pg_recvlogical.

The slot is told only what is safe here: of a file, what was fsynced; of a pipe or a terminal, what
was written. So whatever dies, and whenever, nothing is lost; what was written but not confirmed
comes again and is written again. While this process lives it asks, after a lost connection, for
what follows the last whole transaction that it wrote.

SIGINT and SIGTERM end it in good order: sync, confirm, wait until the slot has taken that. A second
one ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from spillway.cli import completion, connection
from spillway.cli.options import PluginOptions, grpc_address
from spillway.errors import SpillwayError, StorageError
from spillway.pg.lsn import Lsn
from spillway.pg.option_list import parse_option_list
from spillway.storage.durable_files import sync_open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.stream.client import ChangeStreamReader
    from spillway.stream.wire import Batch

_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0


def recv(
    slot: Annotated[
        str, typer.Option("--slot", "-S", help="The slot.", autocompletion=completion.slots)
    ],
    file: Annotated[
        str, typer.Option("--file", "-f", help="Append to this file; - for standard output.")
    ] = "-",
    start_lsn: Annotated[
        str | None,
        typer.Option(
            "--start-lsn", "--startpos", "-I", help="Pass over what commits before this LSN."
        ),
    ] = None,
    end_lsn: Annotated[
        str | None,
        typer.Option(
            "--end-lsn", "--endpos", "-E", help="End when all that commits before this is written."
        ),
    ] = None,
    option: PluginOptions = None,
    no_loop: Annotated[
        bool,
        typer.Option("--no-loop", "-n", help="Don't connect again when the connection is lost."),
    ] = False,
    status_interval: Annotated[
        float, typer.Option("--status-interval", "-s", min=0, help="Seconds between confirmations.")
    ] = 10.0,
    fsync_interval: Annotated[
        float,
        typer.Option("--fsync-interval", "-F", min=0, help="Seconds between fsyncs of the file."),
    ] = 10.0,
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", help="host:port of the service; SPILLWAY_GRPC otherwise."),
    ] = None,
) -> None:
    """Write a slot's messages as they come, a line each, and confirm what is safe
    (pg_recvlogical).
    """
    settings = connection.settings()
    first_lsn = None if start_lsn is None else Lsn.parse(start_lsn)
    last_lsn = None if end_lsn is None else Lsn.parse(end_lsn)
    options = parse_option_list(option)
    address = grpc_address(grpc or settings.grpc)
    with _Output(file) as output, _stopping() as stop:
        receiver = _Receiver(output, stop, status_interval, fsync_interval)
        backoff_s = _BACKOFF_FIRST_S
        while not stop.is_set():
            from spillway.stream.client import open_stream  # noqa: PLC0415 - heavy
            from spillway.stream.status import is_transient  # noqa: PLC0415 - heavy

            before = receiver.written_lsn
            try:
                with open_stream(
                    address,
                    slot,
                    start_lsn=receiver.written_lsn or first_lsn,
                    upto_lsn=last_lsn,
                    options=options,
                    token=settings.token,
                    tls=settings.client_tls,
                ) as stream:
                    receiver.receive(stream)
                    return
            except SpillwayError as error:
                if no_loop or not is_transient(error):
                    raise
                if receiver.written_lsn > before:
                    backoff_s = _BACKOFF_FIRST_S
                typer.echo(f"{error.message}; trying again in {backoff_s:g} s", err=True)
            stop.wait(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


class _Stop:
    """Set by a signal; wakes whoever waits for the service by asking the service for a
    keepalive.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.stream: ChangeStreamReader | None = None

    def set(self) -> None:
        self._event.set()
        if self.stream is not None:
            self.stream.request_reply()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> None:
        self._event.wait(timeout_s)


@contextlib.contextmanager
def _stopping() -> Iterator[_Stop]:
    """Give what SIGINT and SIGTERM set; the second one has the effect that it has without us."""
    stop = _Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:  # noqa: ARG001 - a handler's form
        restore()
        stop.set()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        restore()


class _Receiver:
    """Writes batches, syncs and confirms at its intervals. It outlives a connection."""

    def __init__(
        self, output: _Output, stop: _Stop, status_interval_s: float, fsync_interval_s: float
    ) -> None:
        self._output = output
        self._stop = stop
        self._status_interval_s = status_interval_s
        self._fsync_interval_s = fsync_interval_s
        #: every transaction that ends before is written
        self.written_lsn = Lsn(0)
        self._synced_lsn = Lsn(0)
        self._synced_at_s = time.monotonic()
        self._confirmed_at_s = time.monotonic()

    def receive(self, stream: ChangeStreamReader) -> None:
        """Receive until the stream ends or a signal comes, then sync and confirm."""
        self._stop.stream = stream
        try:
            for batch in stream:
                self._take(batch, stream)
                if self._stop.is_set() or batch.final:
                    break
            self._sync()
            self._confirm(stream)
        finally:
            self._stop.stream = None

    def _take(self, batch: Batch, stream: ChangeStreamReader) -> None:
        if batch.count:
            self._output.write(batch)
        self.written_lsn = max(self.written_lsn, batch.confirm_lsn)
        now_s = time.monotonic()
        if now_s - self._synced_at_s >= self._fsync_interval_s:
            self._sync()
        asked = batch.reply_requested or now_s - self._confirmed_at_s >= self._status_interval_s
        if asked:
            if batch.reply_requested:
                self._sync()
            self._confirm(stream)

    def _sync(self) -> None:
        if self._synced_lsn < self.written_lsn:
            self._output.sync()
            self._synced_lsn = self.written_lsn
        self._synced_at_s = time.monotonic()

    def _confirm(self, stream: ChangeStreamReader) -> None:
        # A pipe can't be synced: what was handed over is as safe as it gets.
        flush_lsn = self._synced_lsn if self._output.is_file else self.written_lsn
        if flush_lsn:
            stream.confirm(flush_lsn, write_lsn=self.written_lsn)
        self._confirmed_at_s = time.monotonic()


class _Output:
    """A file that is appended to, or standard output."""

    def __init__(self, name: str) -> None:
        self._name = name
        if name == "-":
            self._file: Any = sys.stdout.buffer
        else:
            try:
                self._file = open(name, "ab")  # noqa: SIM115, PTH123 - closed in __exit__
            except OSError as error:
                raise _storage_error(name, error) from error
        #: it can be synced; a pipe, a terminal or a stand-in for standard output can't
        self.is_file = False
        with contextlib.suppress(OSError):  # also what a file without a descriptor raises
            self.is_file = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._name != "-":
            # What matters was synced before; what fails to be written now was confirmed to nobody.
            with contextlib.suppress(OSError):
                self._file.close()

    def write(self, batch: Batch) -> None:
        """Write each message and a newline after it."""
        pieces: list[bytes | memoryview] = []
        start = 0
        for length in batch.lengths:
            pieces.append(batch.payload[start : start + length])
            start += length
        pieces.append(b"")
        try:
            self._file.write(b"\n".join(pieces))
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _storage_error(self._name, error) from error

    def sync(self) -> None:
        """Make durable what was written."""
        if not self.is_file:
            return
        try:
            sync_open_file(self._file)
        except OSError as error:
            raise _storage_error(self._name, error) from error


def _storage_error(name: str, error: OSError) -> StorageError:
    return StorageError(
        f"can't write {name}: {error.strerror}",
        hint="What was confirmed is safe; the rest comes again when recv runs again.",
    )
