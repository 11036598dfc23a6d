"""Our side of the comparison: transactions in, the lines of ``test_decoding`` out, for several sets of options at once."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, NamedTuple

from spillway._kernels.message_buffer import MessageBuffer
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin, PluginContext

_BUFFER_BYTES = 1 << 16


class Line(NamedTuple):
    """What pg_logical_slot_peek_changes returns in a row; the LSN as a number."""

    lsn: int
    xid: int
    data: bytes


class RenderingSink:
    """A transaction sink that keeps the lines that each of its plugins writes."""

    def __init__(
        self, plugin: str, options: Sequence[Mapping[str, str]], context: PluginContext
    ) -> None:
        self._plugins: list[OutputPlugin] = [
            create_plugin(plugin, chosen, context) for chosen in options
        ]
        self._out = MessageBuffer(_BUFFER_BYTES)
        #: for each set of options
        self.lines: list[list[Line]] = [[] for _ in options]
        self.transactions = 0
        self.last_final_lsn = 0
        #: transactions whose commit record starts here or later are complete; None: none is yet
        self.consistent_at: int | None = None

    def consistent(self, lsn: int) -> None:
        """See the protocol."""
        if self.consistent_at is None:
            self.consistent_at = lsn

    def transaction(self, transaction: Transaction) -> None:
        """Render one transaction; one that comes again after a restart is passed over."""
        header = transaction.header
        if header.final_lsn <= self.last_final_lsn or not header.is_ordinary:
            return
        self.last_final_lsn = header.final_lsn
        self.transactions += 1
        # They can be iterated once, and a chunk is gone when the next is asked for.
        chunks: Iterable[memoryview] = transaction.chunks()
        if len(self._plugins) > 1:
            chunks = [memoryview(bytes(chunk)) for chunk in chunks]
        for plugin, lines in zip(self._plugins, self.lines, strict=True):
            plugin.begin(header, self._out)
            for chunk in chunks:
                plugin.changes(header, chunk, transaction.relations, self._out)
            plugin.commit(header, self._out)
            plugin.flush(self._out)
            lines.extend(self._take())

    def _take(self) -> list[Line]:
        batch = self._out.take()
        lengths = struct.unpack(f"<{batch.count}I", batch.lengths)
        lsns = struct.unpack(f"<{batch.count}Q", batch.lsns)
        xids = struct.unpack(f"<{batch.count}I", batch.xids)
        return [
            Line(lsn, xid, batch.payload[end - length : end])
            for length, end, lsn, xid in zip(
                lengths, itertools.accumulate(lengths), lsns, xids, strict=True
            )
        ]

    def progress(self, decoded_lsn: int) -> None:
        """See the protocol."""
