"""Our side of the comparison: transactions in, the messages of output plugins out.

A :class:`Subject` is what is compared: a plugin with options. The sink renders every transaction
for each subject at once, since its chunks can be read once only, and hands the messages on chunk by
chunk: memory is bounded by a chunk and what it renders to.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.messages.buffer import MessageBuffer
from spillway.decoding.sink import TransactionSink
from spillway.decoding.transaction import TransactionKind
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin, PluginContext

_BUFFER_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin with its options: what both sides are asked for."""

    plugin: str
    options: Mapping[str, str]
    #: pg_logical_slot_get_binary_changes is needed
    binary: bool = False


class Line(NamedTuple):
    """What pg_logical_slot_get_changes returns in a row; the LSN as a number."""

    lsn: int
    xid: int
    data: bytes


@dataclass(slots=True)
class Seen:
    """What went through a sink."""

    transactions: int = 0
    changes_bytes: int = 0
    tables: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    _relations: set[int] = field(default_factory=set)

    def note(self, relations: Mapping[int, RelationDescriptor]) -> None:
        """Take down tables and types."""
        for number in relations.keys() - self._relations:
            self._relations.add(number)
            descriptor = relations[number]
            self.tables.add(f"{descriptor.schema}.{descriptor.name}")
            self.types.update(
                descriptor.types[column.type_oid].name
                for column in descriptor.columns
                if not column.dropped and column.type_oid in descriptor.types
            )


class RenderingSink(TransactionSink):
    """A transaction sink that renders what it takes for each subject."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        context: PluginContext,
        deliver: Callable[[int, list[Line]], None],
        start_lsns: Sequence[int] = (),
    ) -> None:
        """Make the plugins.

        Args:
            subjects: what to render for.
            context: of the plugins.
            deliver: gets a subject's number and messages, in order.
            start_lsns: for each subject, where its first transaction's commit record may start; all
                by default.

        Raises:
            UnknownPlugin, InvalidOption: a subject can't be rendered.
        """
        self._plugins: list[OutputPlugin] = [
            create_plugin(subject.plugin, subject.options, context) for subject in subjects
        ]
        self._deliver = deliver
        self._start_lsns = list(start_lsns) or [0] * len(subjects)
        self._out = MessageBuffer(_BUFFER_BYTES)
        self._last_final_lsn = 0
        self.seen = Seen()
        #: transactions whose commit record starts here or later are complete; None: none is yet
        self.consistent_at: int | None = None

    def consistent(self, lsn: int) -> None:
        """See the protocol."""
        if self.consistent_at is None:
            self.consistent_at = lsn

    def transaction(self, transaction: Transaction) -> None:
        """Render one transaction; one that comes again after a restart is passed over."""
        header = transaction.header
        if not header.is_ordinary or header.final_lsn <= self._last_final_lsn:
            return
        self._last_final_lsn = header.final_lsn
        chosen = [
            (number, plugin)
            for number, (plugin, start_lsn) in enumerate(
                zip(self._plugins, self._start_lsns, strict=True)
            )
            if header.final_lsn >= start_lsn
        ]
        if not chosen:
            return
        # The other kind is a message outside of transactions.
        self.seen.transactions += header.kind is not TransactionKind.MESSAGE
        self.seen.note(transaction.relations)
        for number, plugin in chosen:
            plugin.begin(header, self._out)
            self._flush(number)
        for chunk in transaction.chunks():
            self.seen.changes_bytes += len(chunk)
            for number, plugin in chosen:
                plugin.changes(header, chunk, transaction.relations, self._out)
                self._flush(number)
        for number, plugin in chosen:
            plugin.commit(header, self._out)
            plugin.flush(self._out)
            self._flush(number)

    def _flush(self, number: int) -> None:
        batch = self._out.take()
        if not batch.count:
            return
        lengths = struct.unpack(f"<{batch.count}I", batch.lengths)
        lsns = struct.unpack(f"<{batch.count}Q", batch.lsns)
        xids = struct.unpack(f"<{batch.count}I", batch.xids)
        lines = [
            Line(lsn, xid, bytes(batch.payload[end - length : end]))
            for length, end, lsn, xid in zip(
                lengths, itertools.accumulate(lengths), lsns, xids, strict=True
            )
        ]
        self._deliver(number, lines)

    def progress(self, decoded_lsn: int) -> None:
        """See the protocol."""
