"""The output plugin ``test_decoding``: contrib/test_decoding's text, byte for byte.

It takes contrib's options and refuses what contrib refuses, in its words. One of them has nothing
to do here, and is only checked: ``include-rewrites``; rows that ALTER TABLE or VACUUM FULL copies
into a new table's storage are not decoded.

Beyond contrib's, the session settings of ``pg/text_settings.py`` (TimeZone, DateStyle,
IntervalStyle, bytea_output, extra_float_digits) are options too: a slot has no session to take them
from.

Source: pg_decode_startup, pg_decode_filter (contrib/test_decoding/test_decoding.c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from spillway._kernels.encoders.test_decoding import Encoder
from spillway.decoding.transaction import TransactionKind
from spillway.errors import InvalidOption
from spillway.pg.boolean import parse_bool
from spillway.pg.identifier import quote_literal
from spillway.pg.text_settings import TextSettings
from spillway.plugins.interface import NO_MESSAGE_LIMIT, OutputPlugin
from spillway.plugins.message_encoding import ConvertedMessages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.interface import PluginContext

# Looked up once; as attributes of the enumeration they would cost at each transaction.
_MESSAGE: Final = TransactionKind.MESSAGE
_STREAM: Final = TransactionKind.STREAM


class TestDecoding(OutputPlugin):
    """See :class:`spillway.plugins.interface.OutputPlugin`."""

    __test__ = False

    name: ClassVar[str] = "test_decoding"

    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        settings, options = TextSettings.from_options(
            options, context.server_version_num, context.encoding
        )
        self.binary = False
        self._only_local = False
        self._skip = False
        self.two_phase = context.two_phase
        #: transactions of which a block was written
        self._streamed: set[int] = set()
        self._encoder = Encoder(settings)
        self._encoding = context.encoding
        self._converted = ConvertedMessages(context.encoding)
        for option, value in options.items():
            match option:
                case "include-xids":
                    self._encoder.include_xids = _parse(option, value)
                case "include-timestamp":
                    self._encoder.include_timestamp = _parse(option, value)
                case "force-binary":
                    self.binary = _parse(option, value)
                case "skip-empty-xacts":
                    self._encoder.skip_empty_xacts = _parse(option, value)
                case "only-local":
                    self._only_local = self._encoder.only_local = _parse(option, value)
                case "stream-changes":
                    self.streaming = _parse(option, value)
                case "include-rewrites":
                    _parse(option, value)
                case _:
                    raise InvalidOption(
                        f'option "{option}" = "{value}" is unknown',
                        hint="test_decoding knows include-xids, include-timestamp, force-binary,"
                        " skip-empty-xacts, only-local, include-rewrites and stream-changes.",
                        option=option,
                    )

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write BEGIN, unless empty transactions are to be skipped."""
        self._skip = self._is_filtered(header)
        if not self._skip:
            self._encoder.begin(header.xid, header.first_lsn, header.kind is not _MESSAGE, out)

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Write a line for each change.

        Raises:
            DecodingError: a change is malformed; the details have its lsn and relation.
        """
        streamed = header.kind is _STREAM
        if self._skip and not streamed:
            return
        with self._converted.into(out) as lines:
            if streamed:
                self._encoder.streamed_changes(chunk, lines)
            else:
                self._encoder.changes(chunk, relations, lines)

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write COMMIT, if BEGIN was written."""
        if not self._skip:
            self._encoder.commit(header.end_lsn, header.commit_time, out)

    def transactions(
        self,
        run: TransactionRun,
        out: MessageBuffer,
        batch_bytes: int,
        message_limit: int | None = None,
    ) -> None:
        """Write whole transactions; none of a run has an origin to be filtered by.

        Raises:
            DecodingError: as :meth:`changes`.
        """
        with self._converted.into(out) as lines:
            # Lines that are to be converted are not in *out* yet, beside what is.
            there, count = (0, 0) if lines is out else (out.nbytes, out.count)
            limit = NO_MESSAGE_LIMIT if message_limit is None else max(0, message_limit - count)
            self._encoder.transactions(run, lines, max(0, batch_bytes - there), limit)

    # ---- sharing

    def state(self) -> object | None:
        """Return the same always: nothing outlives a transaction, unless some are streamed."""
        return None if self.streaming else ()

    def resume(self, state: object) -> None:
        """Do nothing: there is no state."""

    # ---- two_phase

    def filter_prepare(self, header: TransactionHeader) -> bool:
        """Leave out transactions whose identifier says so."""
        assert header.prepared is not None
        return "_nodecode" in header.prepared.gid

    def begin_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write BEGIN, unless empty transactions are to be skipped."""
        self.begin(header, out)

    def prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write PREPARE TRANSACTION, if BEGIN was written."""
        assert header.prepared is not None
        # For an empty one that no BEGIN preceded, PostgreSQL 18's own crashes when empty ones are
        # to be skipped.
        wrote = self._encoder.wrote_changes and not header.prepared.empty
        if not self._encoder.skip_empty_xacts or wrote:
            self._write_prepared("PREPARE TRANSACTION", header, out)

    def commit_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write COMMIT PREPARED."""
        self._write_prepared("COMMIT PREPARED", header, out)

    def rollback_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write ROLLBACK PREPARED."""
        self._write_prepared("ROLLBACK PREPARED", header, out)

    # ---- streaming

    def stream_start(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Open a block, or leave that to its first change where there may be none."""
        assert header.streamed is not None
        if header.streamed.parts == 1:
            self._streamed.discard(header.xid)
        self._encoder.begin_part(header.xid, header.streamed.first_lsn, out)

    def stream_stop(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Close the block, if it was opened."""
        assert header.streamed is not None
        self._encoder.end_part(header.streamed.last_lsn, out)
        if self._encoder.wrote_opening:
            self._streamed.add(header.xid)

    def stream_abort(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say what aborted."""
        assert header.streamed is not None
        aborted_xid = header.streamed.aborted_xid
        if self._ends_streamed(header, ended=aborted_xid == header.xid):
            text = "aborting streamed (sub)transaction"
            if self._encoder.include_xids:
                text += f" TXN {aborted_xid}"
            self._encoder.news(text.encode(), header.end_lsn, aborted_xid, None, out)

    def stream_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a streamed transaction was prepared."""
        assert header.prepared is not None
        if self._was_left_out(header):
            self.begin_prepare(header, out)
            if not self._skip:
                self.prepare(header, out)
        elif self._ends_streamed(header) and not self._is_filtered(header):
            text = "preparing streamed transaction"
            gid = quote_literal(self._text(header.prepared.gid))
            text += f" TXN {gid}, txid {header.xid}" if self._encoder.include_xids else f" {gid}"
            data = text.encode(errors="surrogateescape")
            self._encoder.news(data, header.end_lsn, header.xid, header.commit_time, out)

    def stream_commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a streamed transaction committed; what ends as another's, and is not wanted, is
        forgotten.
        """
        if self._was_left_out(header):
            self.begin(header, out)
            self.commit(header, out)
        elif self._ends_streamed(header) and not self._is_filtered(header):
            text = "committing streamed transaction"
            if self._encoder.include_xids:
                text += f" TXN {header.xid}"
            data = text.encode()
            self._encoder.news(data, header.end_lsn, header.xid, header.commit_time, out)

    def _ends_streamed(self, header: TransactionHeader, *, ended: bool = True) -> bool:
        """Say whether to write of the end of a streamed transaction: not when nothing was written
        of it before.
        """
        wrote = header.xid in self._streamed
        if ended:
            self._streamed.discard(header.xid)
        return wrote or not (self._encoder.skip_empty_xacts or self._only_local)

    def _was_left_out(self, header: TransactionHeader) -> bool:
        """Say whether a transaction had nothing to stream but what came from elsewhere: PostgreSQL
        did not begin to stream it, and decodes it at its end.
        """
        return self._only_local and header.xid not in self._streamed

    def _write_prepared(self, what: str, header: TransactionHeader, out: MessageBuffer) -> None:
        if self._is_filtered(header):
            return
        assert header.prepared is not None
        text = f"{what} {quote_literal(self._text(header.prepared.gid))}"
        if self._encoder.include_xids:
            text += f", txid {header.xid}"
        data = text.encode(errors="surrogateescape")
        self._encoder.news(data, header.end_lsn, header.xid, header.commit_time, out)

    def _is_filtered(self, header: TransactionHeader) -> bool:
        """Say what pg_decode_filter says of the origin of a transaction's record."""
        return self._only_local and header.origin_id != 0

    def _text(self, gid: str) -> str:
        """Read an identifier, which a header has as bytes of the database's encoding in
        disguise.
        """
        return gid.encode(errors="surrogateescape").decode(self._encoding, "surrogateescape")


def _parse(option: str, value: str) -> bool:
    parsed = parse_bool(value)
    if parsed is None:
        raise InvalidOption(
            f'could not parse value "{value}" for parameter "{option}"',
            hint="Give a boolean: on or off.",
            option=option,
        )
    return parsed
