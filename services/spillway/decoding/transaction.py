"""What decoding hands on: transactions; the sink that takes them is :mod:`spillway.decoding.sink`.

Most are whole, committed transactions. Slots differ in what they want of the others, and all slots
of a database read one log, so the log holds what any of them may want and a reader passes over the
rest:

- A *prepared* transaction comes whole twice: at PREPARE TRANSACTION (``PREPARE``), for slots with
  two_phase, and at COMMIT PREPARED (``COMMIT_PREPARED``), for slots without; the former take only
  the news from the latter.
- A *large* transaction in progress may come in parts (``STREAM``), for plugins that stream; it
  comes whole at its end as always, for the others, and says then how much of it was streamed.

Small committed transactions, which are nearly all that there are, come many at a time
(``_kernels/reorder/transaction_run.pyx``).

One LSN, ``final_lsn``, orders them all: where the record starts that made this come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway.catalog.descriptor import RelationDescriptor


class TransactionKind(IntEnum):
    """What a header stands for; the numbers are the transaction log's."""

    #: a committed transaction, whole
    COMMIT = 0
    #: not a transaction but one non-transactional logical message, which PostgreSQL delivers the
    #: moment it is read, outside of any transaction (``xid`` is 0 when its writer had none).
    #: Plugins get it as the only change of a chunk and write neither BEGIN nor COMMIT around it.
    #: Or, likewise, an INVALIDATION outside of any transaction, as VACUUM has them.
    MESSAGE = 1
    #: a transaction that was prepared, whole; ``final_lsn`` and ``end_lsn`` are the PREPARE
    #: record's and ``commit_time`` is when it was prepared
    PREPARE = 2
    #: the same at its COMMIT PREPARED, whole again; ``final_lsn``, ``end_lsn``, ``commit_time`` are
    #: that record's
    COMMIT_PREPARED = 3
    #: its ROLLBACK PREPARED; without changes
    ROLLBACK_PREPARED = 4
    #: a part of a transaction in progress; ``final_lsn`` and ``end_lsn`` are those of the record
    #: that made it due. A change's xid is the subtransaction's that wrote it.
    STREAM = 5
    #: a streamed transaction, or a subtransaction of one, aborted; without changes
    STREAM_ABORT = 6


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the PREPARE TRANSACTION of a transaction said."""

    #: its global identifier; bytes that are not UTF-8 are escaped (surrogateescape)
    gid: str
    #: start and end of the PREPARE record
    prepare_lsn: int
    prepare_end_lsn: int
    #: microseconds since 2000-01-01 00:00 UTC
    prepare_time: int
    #: the transaction has nothing that is replayed: as an ordinary transaction it is passed over.
    #: Its COMMIT PREPARED or ROLLBACK PREPARED is said; its PREPARE, without a beginning, only
    #: where the source's version says it (18)
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Streamed:
    """How far a transaction was streamed before its end.

    A consumer that saw every part from the first on needs, at the transaction's end, only what was
    not in them: the changes whose lsn is at or above ``upto_lsn``, except a MESSAGE at just that
    lsn (the lsn of a message is its record's end). One that did not (it began later) takes the
    transaction whole.
    """

    #: STREAM: number of this part, from 1. Otherwise: how many there were
    parts: int
    #: STREAM: lsn of the last change of this part. At the transaction's end: of what is left; 0
    #: when nothing is
    last_lsn: int
    #: STREAM_ABORT as a plugin gets it: the (sub)transaction that aborted
    aborted_xid: int = 0
    #: lsn of the first change, as last_lsn. Changes that only PostgreSQL counts (of catalogs, of
    #: rewritten tables) are among them, so that chunks may hold fewer, or none.
    first_lsn: int = 0
    #: end of the record that made the last of those parts due
    upto_lsn: int = 0
    #: STREAM_ABORT and ROLLBACK_PREPARED in the log: what aborted of what was streamed,
    #: subtransactions before their top; when the server crashed, several top-level ones, and the
    #: header's xid is 0
    aborted_xids: tuple[int, ...] = ()


_MESSAGE: Final = TransactionKind.MESSAGE


class TransactionHeader(NamedTuple):
    """A transaction, or news of one, without its changes. All LSNs are plain integers (bytes).

    A tuple, because one is made for each transaction: a frozen dataclass takes several times as
    long to make.
    """

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
    kind: TransactionKind = TransactionKind.COMMIT
    #: PREPARE, COMMIT_PREPARED and ROLLBACK_PREPARED
    prepared: Prepared | None = None
    #: STREAM and STREAM_ABORT; the others when parts of the transaction were streamed
    streamed: Streamed | None = None
    #: roname of ``origin_id`` at that time; '' for none, or for an origin that was dropped since
    origin_name: str = ""
    #: COMMIT_PREPARED, ROLLBACK_PREPARED, STREAM_ABORT: an INVALIDATION's items, thrown away
    #: behind it, where the transaction's changes were handed out before. Only for who does not take
    #: the chunks.
    invalidated: tuple[int, ...] = ()

    @property
    def is_ordinary(self) -> bool:
        """Whether a consumer that wants neither prepared nor streamed transactions takes it, with
        begin and commit.
        """
        return self.kind <= _MESSAGE or (
            self.kind is TransactionKind.COMMIT_PREPARED
            and (self.prepared is None or not self.prepared.empty)
        )


class Transaction(Protocol):
    """A transaction, or a part of one, its changes still in memory or in spill files.

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


class Piece(Protocol):
    """What a stretch of WAL has of a transaction that goes over its bounds
    (``decoding/stretch.py``).

    The receiver of one closes it.
    """

    @property
    def xid(self) -> int:
        """The top-level transaction's."""
        ...

    @property
    def header(self) -> TransactionHeader | None:
        """The transaction's, when it committed within the stretch."""
        ...

    @property
    def survivors(self) -> Sequence[int]:
        """Its xid and those of its subtransactions that have not aborted so far."""
        ...

    @property
    def relations(self) -> Mapping[int, RelationDescriptor]: ...

    def chunks(self) -> Iterator[memoryview]:
        """Yield the changes in LSN order as they were queued, TOAST chunks and all; else as a
        transaction's.
        """
        ...

    def close(self) -> None: ...
