"""A parsed WAL record as Python sees it.

The hot path never makes one: kernels read the C form in a batch. Python gets a :class:`Record` for
what is rare (catalog changes, running-xacts, commits with invalidations), for tests and for tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RelFileLocator(NamedTuple):
    """Where a relation's storage is: tablespace oid, database oid (0: shared), relfilenumber."""

    spc: int
    db: int
    rel: int


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block that the record refers to."""

    id: int
    locator: RelFileLocator
    #: fork number: 0 main, 1 free space map, 2 visibility map, 3 init
    fork: int
    block: int
    #: block data registered with the record, b'' without
    data: bytes
    #: the page image, decompressed and with its hole filled: 8192 bytes; None without one
    image: bytes | None
    #: BKPIMAGE_APPLY: the image is to be restored at redo, not only for consistency checks
    apply_image: bool
    #: BKPBLOCK_WILL_INIT: redo starts from an empty page
    will_init: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One WAL record.

    ``lsn`` is its start, ``end_lsn`` where the next begins (8-byte aligned; for XLOG_SWITCH the end
    of the segment): PostgreSQL's ReadRecPtr and EndRecPtr.
    """

    lsn: int
    end_lsn: int
    #: xl_xid, 0 for none
    xid: int
    #: resource manager id
    rmid: int
    #: xl_info without the bits that WAL insertion keeps for itself (XLR_INFO_MASK)
    info: int
    #: main data
    data: bytes
    blocks: tuple[BlockRef, ...]
    #: replication origin id, 0 for none
    origin: int = 0
    #: top-level xid when the record carries the link (block id 252), else 0
    top_xid: int = 0
