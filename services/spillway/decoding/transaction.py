"""What decoding hands on: whole transactions, and the sink that takes them.

The sink is the seam between decoding and the transaction log: decoding imports nothing above
itself, the log (or a test, or ``spillway decode``) implements :class:`TransactionSink`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.catalog.descriptor import RelationDescriptor


@dataclass(frozen=True, slots=True)
class TransactionHeader:
    """A committed transaction without its changes. All LSNs are plain integers (bytes)."""

    #: top-level transaction id, 32 bits as in WAL
    xid: int
    #: start of the first record that bears this transaction's xid or a subtransaction's
    first_lsn: int
    #: start of the commit record: PostgreSQL's final_lsn
    final_lsn: int
    #: end of the commit record; a consumer that has it confirms this
    end_lsn: int
    #: microseconds since 2000-01-01 00:00 UTC
    commit_time: int
    #: replication origin (0 for none) and its position
    origin_id: int = 0
    origin_lsn: int = 0
    #: False: not a transaction but one non-transactional logical message, which PostgreSQL delivers the
    #: moment it is read, outside of any transaction (``xid`` is 0 when its writer had none). Plugins get
    #: it as the only change of a chunk and write neither BEGIN nor COMMIT around it.
    transactional: bool = True


class Transaction(Protocol):
    """A committed transaction, its changes still in memory or in spill files.

    The receiver of one owns it and calls :meth:`close`, which frees memory and spill files.
    """

    @property
    def header(self) -> TransactionHeader: ...

    @property
    def relations(self) -> Mapping[int, RelationDescriptor]:
        """Descriptors of every relation id that occurs in the chunks."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """Yield the changes in LSN order, in the format of ``decoding/change_format.py``.

        A chunk holds whole changes, about 1 MiB (one change may be larger), and is valid until the
        next is asked for. Subtransactions are merged, TOAST values assembled. May be called once.
        """
        ...

    def close(self) -> None: ...


class TransactionSink(Protocol):
    """Takes committed transactions in commit order."""

    def consistent(self, lsn: int) -> None:
        """Hear that the snapshot builder reached CONSISTENT: every transaction whose commit record starts
        at *lsn* or later comes, whole. Called before the first of them, and again after every restart.
        """
        ...

    def transaction(self, transaction: Transaction) -> None:
        """Take one transaction; *transaction* is closed by the caller of this method afterwards.

        After a restart, transactions already taken come again (same ``final_lsn``): the sink drops
        those at or before the last one that it has durably.
        """
        ...

    def progress(self, decoded_lsn: int) -> None:
        """Say that WAL is decoded up to *decoded_lsn*: no transaction that commits before it is to come."""
        ...
