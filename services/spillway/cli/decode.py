"""``spillway decode``: WAL files and a catalog in, an output plugin's messages out; no service, no
slot.

Where the catalog comes from decides where decoding begins:

- ``--state``: a decoder state that an earlier run, or the service (``<lsn>.snap``), saved;
- ``--data-directory``: a base backup, or the directory of a stopped server: begins where its
  recovery would;
- ``--dsn``: a running server, now. What it has written before can't be decoded with it; a state
  saved now begins everything that comes later.

Every transaction that commits after decoding has become consistent comes out whole, in commit
order, as a slot would give it. Prepared transactions come at their COMMIT PREPARED.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from spillway.cli.options import PluginOptions  # noqa: TC001 - typer reads the annotations
from spillway.errors import (
    InvalidRequest,
    NotReady,
    SourceError,
    StorageError,
    SystemIdMismatch,
    UnsupportedWal,
    WalGap,
)
from spillway.pg.lsn import Lsn
from spillway.pg.option_list import parse_option_list
from spillway.storage.durable_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.bootstrap import Bootstrap
    from spillway.decoding.decoder import Decoder
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin
    from spillway.wal.reader import WalDirectory

_MESSAGES_BYTES: Final = 1 << 20
_POLL_S: Final = 0.2


class MessageFormat(StrEnum):
    """How messages are written."""

    TEXT = "text"
    JSON = "json"


def decode(
    wal_dir: Annotated[Path, typer.Option(help="Directory of WAL segment files.")],
    state: Annotated[
        Path | None, typer.Option(help="Begin with a saved decoder state (<lsn>.snap).")
    ] = None,
    data_directory: Annotated[
        Path | None,
        typer.Option(help="Begin with the catalog of a base backup or a stopped server."),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(help="Begin with the catalog of a running server, as of now.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="The database; needed with --data-directory, the DSN's otherwise."),
    ] = None,
    plugin: Annotated[str, typer.Option("--plugin", "-P", help="Output plugin.")] = "test_decoding",
    option: PluginOptions = None,
    start_lsn: Annotated[
        str | None,
        typer.Option(
            "--start-lsn", "--startpos", "-I", help="Pass over what commits before this LSN."
        ),
    ] = None,
    end_lsn: Annotated[
        str | None,
        typer.Option("--end-lsn", "--endpos", "-E", help="Pass over what commits from here on."),
    ] = None,
    file: Annotated[
        str, typer.Option("--file", "-f", help="Write to this file; - for standard output.")
    ] = "-",
    message_format: Annotated[
        MessageFormat,
        typer.Option(
            "--format", help="text: a line a message; json: lsn, xid, data, as REST gives them."
        ),
    ] = MessageFormat.TEXT,
    save_state: Annotated[
        Path | None, typer.Option(help="Save the decoder's state at the end, for --state.")
    ] = None,
) -> None:
    """Decode WAL files without a service, as a slot with this plugin would."""
    from spillway.decoding.offline import offline_decoder, read_on  # noqa: PLC0415 - heavy
    from spillway.wal.reader import WalDirectory  # noqa: PLC0415 - heavy

    if sum(source is not None for source in (state, data_directory, dsn)) != 1:
        raise InvalidRequest(
            "where the catalog comes from must be given once",
            hint="Give one of --state, --data-directory and --dsn.",
        )
    first = None if start_lsn is None else Lsn.parse(start_lsn)
    last = None if end_lsn is None else Lsn.parse(end_lsn)
    options = parse_option_list(option)
    if not wal_dir.is_dir():
        raise StorageError(f"{wal_dir} is no directory", hint="Give --wal-dir WAL segment files.")
    wal = WalDirectory(wal_dir)
    begin = _begin(wal, state, data_directory, dsn, database)
    with (
        tempfile.TemporaryDirectory(prefix="spillway-decode-") as spill,
        _open_output(file) as output,
    ):
        sink = _Writer(output, file, message_format, first, last)
        with offline_decoder(wal, begin, sink, spill_dir=Path(spill)) as decoder:
            mirror = decoder.mirror
            if mirror.facts.major != wal.version.major:
                raise UnsupportedWal(
                    f"the state is of PostgreSQL {mirror.facts.major}, the WAL of "
                    f"{wal.version.major}",
                    hint="Give WAL and state of the same cluster.",
                    lsn=str(Lsn(decoder.position)),
                )
            with _plugin(plugin, options, database or "", begin, decoder) as made:
                sink.plugin = made
                read_on(wal, decoder, last)
                if dsn is not None:
                    _wait_consistent(wal_dir, decoder)
                sink.flush()
            _check_consistent(decoder)
            if last is not None and decoder.position < last:
                raise WalGap(
                    f"WAL ends at {Lsn(decoder.position)}, before {last}",
                    hint="What is there was written; give more WAL, or an --end-lsn within it.",
                    lsn=str(Lsn(decoder.position)),
                )
            if save_state is not None:
                _save(save_state, decoder.serialize())


def _begin(
    wal: WalDirectory,
    state: Path | None,
    data_directory: Path | None,
    dsn: str | None,
    database: str | None,
) -> Bootstrap | bytes:
    """Read where decoding begins."""
    if state is not None:
        try:
            return state.read_bytes()
        except OSError as error:
            raise StorageError(
                f"{state} can't be read: {error.strerror}", hint="Give a state that was saved."
            ) from error
    if data_directory is not None:
        from spillway.catalog.bootstrap_files import bootstrap_files  # noqa: PLC0415 - heavy

        if database is None:
            raise InvalidRequest(
                "a data directory has several databases", hint="Name one with --database."
            )
        return bootstrap_files(data_directory, database, wal)
    from spillway.catalog.bootstrap_database import bootstrap_database  # noqa: PLC0415 - heavy

    assert dsn is not None
    begin = bootstrap_database(
        dsn if database is None else _with_database(dsn, database), progress=_tell
    )
    if begin.system_id != wal.system_id:
        raise SystemIdMismatch(
            f"the server is cluster {begin.system_id}, the WAL in {wal.path} is of {wal.system_id}",
            hint="Give the DSN of the server that wrote the WAL.",
        )
    return begin


def _with_database(dsn: str, database: str) -> str:
    from psycopg import ProgrammingError  # noqa: PLC0415 - heavy
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - heavy

    try:
        return make_conninfo(dsn, dbname=database)
    except ProgrammingError as error:
        raise SourceError(f"the DSN can't be read: {error}", hint="host=… port=… user=…") from error


@contextmanager
def _plugin(
    name: str,
    options: dict[str, str],
    database: str,
    begin: Bootstrap | bytes,
    decoder: Decoder,
) -> Iterator[OutputPlugin]:
    from spillway.plugins.interface import PluginContext  # noqa: PLC0415 - heavy
    from spillway.plugins.registry import create_plugin  # noqa: PLC0415 - heavy

    facts = decoder.mirror.facts
    # A state does not say which minor release wrote it; no plugin makes a difference between those.
    version = facts.major * 10000 if isinstance(begin, bytes) else begin.server_version
    plugin = create_plugin(
        name, options, PluginContext("decode", database, version, facts.encoding)
    )
    try:
        yield plugin
    finally:
        plugin.shutdown()


def _wait_consistent(wal_dir: Path, decoder: Decoder) -> None:
    """Read what the server writes until the catalog is exact: at once where it may, else within 15
    s.
    """
    from spillway.decoding.offline import read_on  # noqa: PLC0415 - heavy
    from spillway.decoding.snapshot_builder import SnapshotState  # noqa: PLC0415 - heavy
    from spillway.wal.reader import WalDirectory  # noqa: PLC0415 - heavy

    told = False
    while decoder.snapshot_state is not SnapshotState.CONSISTENT:
        if not told:
            _tell("waiting for a consistent point in WAL")
            told = True
        time.sleep(_POLL_S)
        read_on(WalDirectory(wal_dir), decoder)


def _check_consistent(decoder: Decoder) -> None:
    from spillway.decoding.snapshot_builder import SnapshotState  # noqa: PLC0415 - heavy

    if decoder.snapshot_state is not SnapshotState.CONSISTENT:
        raise NotReady(
            f"WAL ends at {Lsn(decoder.position)}, before decoding was consistent "
            f"({decoder.snapshot_state.label})",
            hint="Give more WAL: up to a checkpoint after the backup, and the end of the "
            "transactions that ran then.",
        )


def _tell(message: str) -> None:
    typer.echo(f"spillway: {message}", err=True)


def _save(path: Path, state: bytes) -> None:
    """Write a state; a file that is there is whole."""
    try:
        replace_file(path, state)
    except OSError as error:
        raise _storage_error(str(path), error) from error


@contextmanager
def _open_output(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = open(name, "wb")  # noqa: SIM115, PTH123 - closed below
    except OSError as error:
        raise _storage_error(name, error) from error
    with file:
        yield file


def _storage_error(name: str, error: OSError) -> StorageError:
    return StorageError(
        f"can't write {name}: {error.strerror}", hint="Mend that and run the command again."
    )


class _Writer:
    """A transaction sink that writes what the plugin makes of each transaction."""

    def __init__(
        self,
        output: BinaryIO,
        name: str,
        message_format: MessageFormat,
        start_lsn: int | None,
        end_lsn: int | None,
    ) -> None:
        from spillway._kernels.messages.buffer import MessageBuffer  # noqa: PLC0415 - heavy

        self._output = output
        self._name = name
        self._format = message_format
        self._start_lsn = start_lsn or 0
        self._end_lsn = end_lsn
        self._out = MessageBuffer(_MESSAGES_BYTES)
        self.plugin: OutputPlugin

    def consistent(self, lsn: int) -> None:
        """Nothing to prepare."""

    def progress(self, decoded_lsn: int) -> None:
        """Nothing to say."""

    def transaction(self, transaction: Transaction) -> None:
        """Encode one transaction and write it."""
        header = transaction.header
        if header.final_lsn < self._start_lsn or (
            self._end_lsn is not None and header.final_lsn >= self._end_lsn
        ):
            return
        if not header.is_ordinary:
            return
        self.plugin.begin(header, self._out)
        for chunk in transaction.chunks():
            self.plugin.changes(header, chunk, transaction.relations, self._out)
            self._write(_MESSAGES_BYTES)
        self.plugin.commit(header, self._out)
        self._write(_MESSAGES_BYTES)

    def transactions(self, run: TransactionRun) -> None:
        """Encode many small transactions and write them."""
        run.skip_before(self._start_lsn)
        if self._end_lsn is not None:
            run.limit(self._end_lsn)
        while not (run.exhausted or run.reached_upto):
            self.plugin.transactions(run, self._out, _MESSAGES_BYTES)
            self._write(_MESSAGES_BYTES)

    def flush(self) -> None:
        """Write what is held back."""
        self.plugin.flush(self._out)
        self._write(0)

    def _write(self, above: int) -> None:
        """Write the messages that are there if they are more than *above* bytes."""
        if self._out.nbytes < above or not len(self._out):
            return
        batch = self._out.take()
        pieces: list[bytes] = []
        start = 0
        for length, lsn, xid in zip(
            memoryview(batch.lengths).cast("I"),
            memoryview(batch.lsns).cast("Q"),
            memoryview(batch.xids).cast("I"),
            strict=True,
        ):
            data = bytes(batch.payload[start : start + length])
            start += length
            if self._format is MessageFormat.JSON:
                data = _as_json(lsn, xid, data, binary=self.plugin.binary)
            pieces.append(data)
        pieces.append(b"")
        try:
            self._output.write(b"\n".join(pieces))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _storage_error(self._name, error) from error


def _as_json(lsn: int, xid: int, data: bytes, *, binary: bool) -> bytes:
    """Write a message as REST shows one."""
    members: dict[str, object] = {"lsn": str(Lsn(lsn)), "xid": xid}
    as_hex = "\\x" + data.hex()
    if binary:
        members["data"] = as_hex
    else:
        try:
            members["data"] = data.decode()
        except UnicodeDecodeError:
            members |= {"data": data.decode(errors="replace"), "data_hex": as_hex}
    return json.dumps(members, ensure_ascii=False).encode()
