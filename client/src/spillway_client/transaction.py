"""A transaction: what the slot's loop is given, and its changes.

A transaction is handed out when its COMMIT has come, so a cut in its middle is nobody's business.
Its changes are kept as the bytes that came, in memory up to a bound (``buffer_bytes``) and beyond
that in a temporary file without a name; a change is read when it is asked for. So a transaction of
any size takes no more memory than that, and is a sequence all the same.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, overload

from spillway_client.pgoutput import Change, read_change

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Literal

    from spillway_client.lsn import Lsn
    from spillway_client.pgoutput import Relation

#: What is read of the file at once.
_BLOCK_BYTES: Final = 256 << 10


class Changes(Sequence[Change]):
    """The changes of a transaction, in the order in which they were made."""

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        #: what is not in the file
        self._tail = bytearray()
        #: where each change ends
        self._ends = array("Q")
        self._file: IO[bytes] | None = None
        self._in_file = 0
        #: by OID: from which change on a table is what
        self._relations: dict[int, tuple[array[int], list[Relation]]] = {}

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def nbytes(self) -> int:
        """The bytes of all changes as they came."""
        return self._in_file + len(self._tail)

    @property
    def is_spilled(self) -> bool:
        """Whether a part is in a temporary file."""
        return self._file is not None

    @property
    def memory_bytes(self) -> int:
        """What of the changes is in memory."""
        return len(self._tail) + 8 * len(self._ends)

    def append(self, data: bytes, relation: Relation | None) -> None:
        """Add the message of a change of *relation*; None for one of no table."""
        if relation is not None:
            known = self._relations.get(relation.oid)
            if known is None:
                self._relations[relation.oid] = (array("Q", [0]), [relation])
            elif known[1][-1] is not relation:
                known[0].append(len(self._ends))
                known[1].append(relation)
        self._tail += data
        if len(self._tail) > self._buffer_bytes:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="spillway-")  # noqa: SIM115 - closed in __del__
            self._file.write(self._tail)
            self._in_file += len(self._tail)
            self._tail.clear()
        self._ends.append(self._in_file + len(self._tail))

    def finish(self) -> None:
        """Make what is in the file readable; nothing is added from now on."""
        if self._file is not None:
            self._file.flush()

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        return self._change(index, self._bytes(start, self._ends[index]))

    def __iter__(self) -> Iterator[Change]:
        block, block_start = b"", 0
        start = 0
        for index, end in enumerate(self._ends):
            if end > block_start + len(block):
                block_start = start
                block = self._bytes(start, min(self.nbytes, max(end, start + _BLOCK_BYTES)))
            yield self._change(index, block[start - block_start : end - block_start])
            start = end

    def _bytes(self, start: int, end: int) -> bytes:
        if start >= self._in_file:
            return bytes(self._tail[start - self._in_file : end - self._in_file])
        assert self._file is not None
        stop = min(end, self._in_file)
        pieces = []
        while start < stop:
            piece = os.pread(self._file.fileno(), stop - start, start)
            if not piece:
                raise OSError("the temporary file of a large transaction was cut off")
            pieces.append(piece)
            start += len(piece)
        if end > self._in_file:
            pieces.append(bytes(self._tail[: end - self._in_file]))
        return b"".join(pieces)

    def _change(self, index: int, data: bytes) -> Change:
        def relation_of(oid: int) -> Relation:
            since, relations = self._relations[oid]
            return relations[bisect_right(since, index) - 1]

        return read_change(data, relation_of)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the source, whole."""

    xid: int
    #: where its commit record starts in WAL
    commit_lsn: Lsn
    #: where that record ends: the position to store, and to go on from
    end_lsn: Lsn
    commit_time: datetime
    changes: Sequence[Change] = field(repr=False)
    #: the replication origin that it came in through; None for one that was made on the source
    #: itself
    origin: str | None = None
    #: ``commit``; ``message`` for one pg_logical_emit_message outside of any transaction; of a slot
    #: with two_phase ``prepare`` with the changes at PREPARE TRANSACTION, and later
    #: ``commit_prepared`` or ``rollback_prepared`` without any
    kind: Literal["commit", "message", "prepare", "commit_prepared", "rollback_prepared"] = "commit"
    #: the name of a prepared transaction
    gid: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Nothing for this consumer is before *end_lsn*: what ``events()`` gives when the source moves
    on without changes of its tables.
    """

    end_lsn: Lsn

    @property
    def changes(self) -> tuple[Change, ...]:
        """None."""
        return ()
