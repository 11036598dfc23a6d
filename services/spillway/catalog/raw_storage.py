"""Catalogs as they lie in files: pages into tuples, and what became of the tuples' transactions.

Who reads the files differs (``pg_read_binary_file`` of a running server, or a copy of its data
directory), and so how files are got at is behind :class:`ServerFiles`. What is read is at least as
new as a checkpoint's redo point; WAL from there on brings the rest.

Transactions from N, the checkpoint's next xid, on are in WAL as a whole, with their ends; for those
before, hint bits and pg_xact say what became of them. One in progress there is running still,
unless it is older than the oldest that ran at the checkpoint: then it was lost in a crash.

Source: src/backend/access/transam/clog.c; src/backend/access/heap/heapam_visibility.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spillway._kernels.catalog import heap
from spillway.catalog.page import (
    HEAP_XMAX_COMMITTED,
    HEAP_XMAX_INVALID,
    HEAP_XMAX_IS_MULTI,
    HEAP_XMIN_COMMITTED,
    HEAP_XMIN_FROZEN,
    HEAP_XMIN_INVALID,
    precedes,
    xmax_is_lock_only,
)
from spillway.catalog.tuple_store import CatalogTuple, Page, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.source_queries import Checkpoint

_XIDS_PER_CLOG_SEGMENT: Final = 32 * 8192 * 4
_CLOG_SEGMENT_SIZE: Final = 32 * 8192
_CLOG_COMMITTED: Final = 1
_CLOG_ABORTED: Final = 2
_FIRST_NORMAL_XID: Final = 3


class ServerFiles(Protocol):
    """The files of a server; paths are relative to its data directory."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return up to *size* bytes; b'' beyond the end or when there is no such file."""
        ...

    def pages(self, path: str) -> Mapping[int, bytes]:
        """Return every page of a relation's main fork by block number."""
        ...


class Transactions:
    """What pg_xact says of transactions before the checkpoint's next xid."""

    def __init__(self, files: ServerFiles, checkpoint: Checkpoint) -> None:
        self._files = files
        self._next_xid = checkpoint.next_xid & 0xFFFFFFFF
        # Shutdown checkpoints have none: nothing ran.
        self._oldest_active = checkpoint.oldest_active_xid or self._next_xid
        self._segments: dict[int, bytes] = {}

    def is_before_checkpoint(self, xid: int) -> bool:
        """Say whether *xid* was assigned before the checkpoint: WAL has all of those that were
        not.
        """
        return xid < _FIRST_NORMAL_XID or precedes(xid, self._next_xid)

    def fate(self, xid: int) -> bool | None:
        """True: committed; False: aborted or lost; None: WAL tells."""
        if xid < _FIRST_NORMAL_XID:
            return True
        if not self.is_before_checkpoint(xid):
            return None
        number, within = divmod(xid, _XIDS_PER_CLOG_SEGMENT)
        if number not in self._segments:
            self._segments[number] = self._files.read(
                f"pg_xact/{number:04X}", 0, _CLOG_SEGMENT_SIZE
            )
        segment = self._segments[number]
        if within // 4 >= len(segment):
            # Truncated away: such old transactions are frozen or their tuples dead.
            return False
        status = segment[within // 4] >> (within % 4 * 2) & 3
        if status == _CLOG_COMMITTED:
            return True
        if status == _CLOG_ABORTED:
            return False
        return False if precedes(xid, self._oldest_active) else None


def read_storage(
    files: ServerFiles, path: str, storage: Storage, *, torn_pages: bool = False
) -> list[CatalogTuple]:
    """Read every tuple of a catalog.

    With *torn_pages* a page that contradicts itself is left out: it was copied while it was
    written, and its first record from the redo point on has its image.

    Raises:
        ValueError: a page contradicts itself.
    """
    tuples: list[CatalogTuple] = []
    layout = storage.layout
    for block, page in files.pages(path).items():
        try:
            found = [
                CatalogTuple(
                    storage,
                    block << 16 | offset,
                    xmin=xmin,
                    xmax=xmax,
                    infomask2=infomask2,
                    infomask=infomask,
                    hoff=hoff,
                    data=data,
                    row=layout.row(infomask2, infomask, hoff, data),
                )
                for offset, xmin, xmax, infomask2, infomask, hoff, data in heap.parse_page(page)
            ]
        except ValueError:
            if not torn_pages:
                raise
            storage.pages[block] = Page(physical=False)
            continue
        storage.pages[block] = Page(heap.page_lsn(page))
        tuples += found
    return tuples


def admit(
    heaps: CatalogHeaps,
    tuples: Iterable[CatalogTuple],
    transactions: Transactions,
    updater: Callable[[int], int],
) -> None:
    """Judge *tuples* and enter them."""
    for tup in tuples:
        multixact = judge(tup, transactions, updater)
        if multixact is not None:
            heaps.fates.note_multixact(*multixact)
        heaps.admit(tup)


def judge(
    tup: CatalogTuple, transactions: Transactions, updater: Callable[[int], int]
) -> tuple[int, int] | None:
    """Set a tuple's state; return its multixact and who updates in it, if it has one.

    Hint bits of transactions from the checkpoint on count for nothing: the bit may be on disk
    before the commit is among the WAL that was applied.
    """
    infomask, multixact = tup.infomask, None
    hinted = transactions.is_before_checkpoint(tup.xmin)
    if infomask & HEAP_XMIN_FROZEN == HEAP_XMIN_FROZEN or (
        hinted and infomask & HEAP_XMIN_COMMITTED
    ):
        pass
    elif infomask & HEAP_XMIN_INVALID:
        tup.dead = True
    else:
        fate = transactions.fate(tup.xmin)
        tup.xmin_pending = fate is None
        tup.dead = fate is False
    xmax = tup.xmax or 0
    if not tup.dead and xmax and not infomask & HEAP_XMAX_INVALID:
        if infomask & HEAP_XMAX_IS_MULTI:
            if not xmax_is_lock_only(infomask):
                xmax = updater(xmax)
                multixact = (tup.xmax or 0, xmax)
            else:
                xmax = 0
        elif xmax_is_lock_only(infomask):
            xmax = 0
        if xmax:
            committed = (
                infomask & HEAP_XMAX_COMMITTED
                and not infomask & HEAP_XMAX_IS_MULTI
                and transactions.is_before_checkpoint(xmax)
            )
            fate = True if committed else transactions.fate(xmax)
            tup.dead = fate is True
            tup.deleter = xmax if fate is None else 0
    if tup.dead:
        tup.xmin_pending = False
    return multixact
