"""A part's rows, sorted, become the plugin's messages: the second half of a replay.

Rows come in commit order, as :mod:`spillway.replay.pieces` says. Transactions that were whole in a
stretch go to the plugin as they are; of others the pieces are put together first
(:mod:`spillway.decoding.assembly`). One plugin sees all of a part, so that its messages are those
that a slot's reader would make: many transactions in one, a table's schema as of each change.

Memory: a row, one transaction's pieces up to ``work_mem_bytes`` (the rest spilled), what the plugin
gathers.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.assembly import Assembler
from spillway.errors import DecodingError
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.replay import pieces
from spillway.txlog.cursor import LoggedRelations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.interface import OutputPlugin
    from spillway.replay.pieces import Row

_MESSAGES_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoding:
    """How messages are made. Pickled to executors."""

    slot_name: str
    database: str
    database_oid: int
    major: int
    encoding: str
    plugin: str = "arrow"
    options: dict[str, str] = field(default_factory=dict)

    def plugin_made(self) -> OutputPlugin:
        """Make the plugin.

        Raises:
            InvalidOption: it does not know an option.
        """
        # Which minor release it was, nothing here says; no plugin makes a difference between those.
        context = PluginContext(self.slot_name, self.database, self.major * 10000, self.encoding)
        return create_plugin(self.plugin, self.options, context)


def messages(
    rows: Iterator[Row], encoding: Encoding, range_start: int, range_end: int
) -> Iterator[bytes]:
    """Yield the messages of one part: of what commits in [*range_start*, *range_end*).

    Raises:
        DecodingError: the rows are not what the stretches gave.
        ValueNotRepresentable: a value has no form in its column's type.
        StorageError: a transaction can't be spilled.
    """
    plugin = encoding.plugin_made()
    with tempfile.TemporaryDirectory(prefix="spillway-replay-") as directory:
        version = version_of_server(encoding.major * 10000)
        assembler = Assembler(version, encoding.database_oid, Path(directory))
        try:
            with closing(assembler):
                yield from _Part(plugin, assembler, range_start, range_end).messages(rows)
        finally:
            plugin.shutdown()


class _Part:
    """One part on its way through the plugin."""

    def __init__(
        self, plugin: OutputPlugin, assembler: Assembler, range_start: int, range_end: int
    ) -> None:
        self._plugin = plugin
        self._assembler = assembler
        self._range = (range_start, range_end)
        self._out = MessageBuffer(_MESSAGES_BYTES)
        #: by stretch: an id means what that stretch says
        self._relations: dict[int, LoggedRelations] = defaultdict(LoggedRelations)
        self._header: TransactionHeader | None = None
        self._survivors: frozenset[int] = frozenset()

    def messages(self, rows: Iterator[Row]) -> Iterator[bytes]:
        ended = False
        for row in rows:
            if row.kind == pieces.RELATION:
                self._relations[row.stretch].add(row.payload)
            elif row.kind == pieces.RUN:
                yield from self._finish()
                yield from self._run(row)
            elif row.kind == pieces.HEADER:
                yield from self._finish()
                self._header, self._survivors = pieces.parse_header(row.payload)
                if not self._survivors:
                    self._plugin.begin(self._header, self._out)
            elif row.kind == pieces.END:
                ended = True
            else:
                self._changes(row)
            yield from self._taken(_MESSAGES_BYTES)
        if not ended:
            raise DecodingError(
                f"a replay's part that ends at {Lsn(self._range[1])} was not read to its end",
                hint="Run the replay again; report this if it repeats.",
                lsn=str(Lsn(self._range[1])),
            )
        yield from self._finish()
        self._plugin.flush(self._out)
        yield from self._taken(0)

    def _run(self, row: Row) -> Iterator[bytes]:
        run = TransactionRun(row.payload, self._relations[row.stretch])
        run.skip_before(self._range[0])
        run.limit(self._range[1])
        while not (run.exhausted or run.reached_upto):
            self._plugin.transactions(run, self._out, _MESSAGES_BYTES)
            yield from self._taken(_MESSAGES_BYTES)

    def _changes(self, row: Row) -> None:
        header = self._header
        if header is None or header.final_lsn != row.final_lsn:
            raise DecodingError(
                f"of the transaction that commits at {Lsn(row.final_lsn)} the end is missing",
                hint="Run the replay again; report this if it repeats.",
                lsn=str(Lsn(row.final_lsn)),
            )
        relations = self._relations[row.stretch]
        if row.kind == pieces.CHUNK:
            self._plugin.changes(header, row.payload, relations, self._out)
        else:
            self._assembler.add(header, row.payload, relations, self._survivors)

    def _finish(self) -> Iterator[bytes]:
        """End the transaction at hand."""
        header, self._header = self._header, None
        if header is None:
            return
        if self._survivors:
            with closing(self._assembler.finish(header)) as transaction:
                self._plugin.begin(header, self._out)
                for chunk in transaction.chunks():
                    self._plugin.changes(header, chunk, transaction.relations, self._out)
                    yield from self._taken(_MESSAGES_BYTES)
        self._plugin.commit(header, self._out)

    def _taken(self, least: int) -> Iterator[bytes]:
        """Yield the messages that are there if they are at least *least* bytes."""
        if not len(self._out) or self._out.nbytes < least:
            return
        batch = self._out.take()
        start = 0
        for length in memoryview(batch.lengths).cast("I"):
            yield bytes(batch.payload[start : start + length])
            start += length
