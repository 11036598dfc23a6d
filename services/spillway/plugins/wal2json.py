"""The output plugin ``wal2json``: the original's JSON in both formats, byte for byte.

The original (github.com/eulerto/wal2json) is a plugin that many consumers were written for. It is
followed where its output is no valid JSON too, for there are consumers that have learnt to live
with it; what the next release mended is had with ``wal2json-version`` = 2.6:

- Format 1 put a comma before a non-transactional message that follows a transaction of several
  changes.
- Format 1 showed a primary key (include-pk) only where it was the replica identity.

Format 1 writes a transaction as one message, at its commit, unless write-in-chunks is on; format 2
writes each change as one. Neither streams transactions in progress nor knows two-phase commit: a
prepared transaction comes at its COMMIT PREPARED.

Not here: include-default, which prints expressions that only the server can (pg_get_expr). Origins
are filtered by the origin of the transaction's commit; a transaction whose records bear different
origins is shown or left out as a whole.

Beyond the original's, the session settings of ``pg/text_settings.py`` are options.

Source: pg_decode_begin_txn, pg_decode_commit_txn, pg_filter_by_origin (eulerto/wal2json, 2.5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from spillway._kernels.encoders.wal2json.encoder import Format1Encoder, Format2Encoder
from spillway.decoding.transaction import TransactionKind
from spillway.pg.lsn import Lsn
from spillway.pg.text_settings import TextSettings
from spillway.plugins.interface import OutputPlugin
from spillway.plugins.message_encoding import ConvertedMessages
from spillway.plugins.wal2json_options import Wal2JsonOptions
from spillway.plugins.wal2json_text import Format1Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.interface import PluginContext

    class Format(Protocol):
        """What a format does with a transaction."""

        @property
        def encoder(self) -> Format1Encoder | Format2Encoder: ...

        def begin(self, header: TransactionHeader, out: MessageBuffer) -> None: ...

        def commit(self, header: TransactionHeader, out: MessageBuffer) -> None: ...

        def begin_message(self, header: TransactionHeader) -> None: ...


class Wal2Json(OutputPlugin):
    """See :class:`spillway.plugins.interface.OutputPlugin`."""

    name: ClassVar[str] = "wal2json"
    binary = False

    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        settings, rest = TextSettings.from_options(
            options, context.server_version_num, context.encoding
        )
        parsed = Wal2JsonOptions.from_options(rest)
        self._filter_origins = parsed.filter_origins
        self._format: Format = (
            _Format1(settings, parsed) if parsed.format_version == 1 else _Format2(settings, parsed)
        )
        self._converted = ConvertedMessages(context.encoding)
        self._skip = False

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write the beginning of a transaction, unless its origin is filtered."""
        self._skip = header.origin_id != 0 and header.origin_id in self._filter_origins
        if self._skip:
            return
        if header.kind is TransactionKind.MESSAGE:
            self._format.begin_message(header)
        else:
            self._format.begin(header, out)

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Write the changes of *chunk*.

        Raises:
            DecodingError: a change is malformed; the details have its lsn and relation.
        """
        del header
        if not self._skip:
            with self._converted.into(out) as buffer:
                self._format.encoder.changes(chunk, relations, buffer)

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write the end of a transaction."""
        if self._skip or header.kind is TransactionKind.MESSAGE:
            return
        with self._converted.into(out) as buffer:
            self._format.commit(header, buffer)

    # ---- sharing

    def state(self) -> object | None:
        """Return the same always: nothing outlives a transaction."""
        return ()

    def resume(self, state: object) -> None:
        """Do nothing: there is no state."""


class _Format1:
    """An object for a transaction."""

    def __init__(self, settings: TextSettings, options: Wal2JsonOptions) -> None:
        self.encoder = Format1Encoder(settings, options)
        self._options = options
        layout = self._layout = Format1Layout.of(options)
        end = f"{layout.tab}]{layout.newline}}}"
        # A transaction in one piece has its last line break where chunks would have none.
        self._end = (end if options.write_in_chunks else layout.newline + end).encode()

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        options, layout = self._options, self._layout
        text = f"{{{layout.newline}"
        if options.include_xids:
            text += f"{layout.member(1, 'xid')}{header.xid}{layout.end()}"
        if options.include_lsn:
            text += f'{layout.member(1, "nextlsn")}"{Lsn(header.end_lsn)}"{layout.end()}'
        if options.include_timestamp:
            time = self.encoder.timestamp(header.commit_time)
            text += f'{layout.member(1, "timestamp")}"{time}"{layout.end()}'
        if options.include_origin:
            text += f"{layout.member(1, 'origin')}{header.origin_id}{layout.end()}"
        text += f"{layout.member(1, 'change')}["
        self.encoder.begin(header.xid)
        if options.write_in_chunks:
            out.append(header.first_lsn, header.xid, text.encode())
        else:
            self.encoder.append(text.encode())

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        if self._options.write_in_chunks:
            out.append(header.end_lsn, header.xid, self._end)
        else:
            self.encoder.append(self._end)
            self.encoder.finish(header.end_lsn, out)

    def begin_message(self, header: TransactionHeader) -> None:
        self.encoder.begin_message(header.xid)


class _Format2:
    """An object for each change, and for the beginning and the end of a transaction."""

    def __init__(self, settings: TextSettings, options: Wal2JsonOptions) -> None:
        self.encoder = Format2Encoder(settings, options)
        self._options = options
        self._frame = ""
        # Outside of a transaction these are not known.
        shown = {
            "xid": options.include_xids,
            "timestamp": options.include_timestamp,
            "origin": options.include_origin,
        }
        self._frame_of_message = "".join(f',"{name}":null' for name in shown if shown[name])

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        options = self._options
        frame = ""
        if options.include_xids:
            frame += f',"xid":{header.xid}'
        if options.include_timestamp:
            frame += f',"timestamp":"{self.encoder.timestamp(header.commit_time)}"'
        if options.include_origin:
            frame += f',"origin":{header.origin_id}'
        self._frame = frame
        self.encoder.begin(header.xid, frame.encode())
        if options.include_transaction:
            out.append(header.first_lsn, header.xid, self._edge("B", header))

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        if self._options.include_transaction:
            out.append(header.end_lsn, header.xid, self._edge("C", header))

    def begin_message(self, header: TransactionHeader) -> None:
        self.encoder.begin(header.xid, self._frame_of_message.encode())

    def _edge(self, action: str, header: TransactionHeader) -> bytes:
        text = f'{{"action":"{action}"{self._frame}'
        if self._options.include_lsn:
            text += f',"lsn":"{Lsn(header.final_lsn)}","nextlsn":"{Lsn(header.end_lsn)}"'
        return f"{text}}}".encode()
