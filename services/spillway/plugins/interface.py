"""The contract between a slot's reader and an output plugin.

A plugin turns transactions into messages at delivery. It is called per transaction and per chunk of
changes, never per row from Python: the loop over a chunk is in a kernel. A plugin instance serves one
reader, is called from one thread at a time and keeps no state that outlives it.

Call order, repeated in commit order of transactions::

    begin(header, out)  →  changes(header, chunk, relations, out)*  →  commit(header, out)

``flush(out)`` may come between transactions: emit whatever was held back to make larger messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway._kernels.message_buffer import MessageBuffer
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What a plugin may know of its surroundings."""

    slot_name: str
    database: str
    #: PG_VERSION_NUM of the source, 180004 for one
    server_version_num: int
    #: Python's codec of the database's encoding (``pg/encoding.py``). Text in changes is in it, messages are
    #: in UTF-8; a byte that is no character of it passes unchanged.
    encoding: str = "utf-8"


class OutputPlugin(Protocol):
    """Implemented by every output plugin; found by name in ``plugins.registry``."""

    name: ClassVar[str]
    #: true when messages are bytes that only a program reads (REST shows them as ``\\x…``); an instance's
    #: options may decide it
    binary: bool

    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        """Check *options*, PostgreSQL's startup callback.

        Raises:
            InvalidOption: an option or its value is not known; the text is PostgreSQL's own.
        """

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None: ...

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Encode a chunk of the change format. The same id may mean another descriptor later on:
        compare the descriptor's identity before using what was compiled for an id.
        """

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None: ...

    def flush(self, out: MessageBuffer) -> None: ...
