"""Bits of heap tuple headers, as catalog redo reads them.

A page's bytes are taken apart by ``_kernels/catalog/heap``; what the bits in its tuples mean is
here.

Source: src/include/access/htup_details.h, src/include/access/heapam_xlog.h
"""

from __future__ import annotations

from typing import Final

PAGE_SIZE: Final = 8192

HEAP_XMAX_KEYSHR_LOCK: Final = 0x0010
HEAP_XMAX_EXCL_LOCK: Final = 0x0040
HEAP_XMAX_LOCK_ONLY: Final = 0x0080
HEAP_XMIN_COMMITTED: Final = 0x0100
HEAP_XMIN_INVALID: Final = 0x0200
HEAP_XMIN_FROZEN: Final = HEAP_XMIN_COMMITTED | HEAP_XMIN_INVALID
HEAP_XMAX_COMMITTED: Final = 0x0400
HEAP_XMAX_INVALID: Final = 0x0800
HEAP_XMAX_IS_MULTI: Final = 0x1000
HEAP_XMAX_BITS: Final = (
    HEAP_XMAX_KEYSHR_LOCK
    | HEAP_XMAX_EXCL_LOCK
    | HEAP_XMAX_LOCK_ONLY
    | HEAP_XMAX_COMMITTED
    | HEAP_XMAX_INVALID
    | HEAP_XMAX_IS_MULTI
)

# xl_heap_delete.infobits_set and its like.
XLHL_XMAX_IS_MULTI: Final = 0x01
XLHL_XMAX_LOCK_ONLY: Final = 0x02
XLHL_XMAX_EXCL_LOCK: Final = 0x04
XLHL_XMAX_KEYSHR_LOCK: Final = 0x08


def xmax_is_lock_only(infomask: int) -> bool:
    """Say whether xmax only locks the tuple (HEAP_XMAX_IS_LOCKED_ONLY)."""
    if infomask & HEAP_XMAX_LOCK_ONLY:
        return True
    lock_bits = HEAP_XMAX_IS_MULTI | HEAP_XMAX_EXCL_LOCK | HEAP_XMAX_KEYSHR_LOCK
    return infomask & lock_bits == HEAP_XMAX_EXCL_LOCK


def infomask_of_infobits(infomask: int, infobits: int) -> int:
    """Return *infomask* with its xmax bits as a record's infobits_set says
    (fix_infomask_from_infobits).
    """
    infomask &= ~HEAP_XMAX_BITS
    if infobits & XLHL_XMAX_IS_MULTI:
        infomask |= HEAP_XMAX_IS_MULTI
    if infobits & XLHL_XMAX_LOCK_ONLY:
        infomask |= HEAP_XMAX_LOCK_ONLY
    if infobits & XLHL_XMAX_EXCL_LOCK:
        infomask |= HEAP_XMAX_EXCL_LOCK
    if infobits & XLHL_XMAX_KEYSHR_LOCK:
        infomask |= HEAP_XMAX_KEYSHR_LOCK
    return infomask


def precedes(xid: int, other: int) -> bool:
    """Compare two normal 32-bit xids modulo 2**32 (TransactionIdPrecedes); special xids come
    first.
    """
    if xid < 3 or other < 3:
        return xid < other
    return ((xid - other) & 0xFFFFFFFF) >= 0x80000000
