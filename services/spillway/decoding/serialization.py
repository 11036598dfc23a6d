"""A decoder's state as bytes: what ``<lsn>.snap`` holds.

In and out: the LSN that it is as of, where delivery begins, the transactions in progress, the
catalog mirror. Not in it, mostly: changes. A decoder that starts from it reads WAL from its LSN on,
and transactions in progress there had been delivered before (see ``decoder.py``). A state that
*carries* its transactions has their changes, too, or names the spill files that they are in
(``carried.py``).

::

    magic 8 | u32 format | u32 crc32c of the rest | u64 length of the rest
    u32 database_oid | u32 number of transactions | u64 lsn | u64 start_decoding_at
    u64 size of the invalidations | u64 size of what is carried, 0 for nothing (not in format 3)
    (u32 xid | u32 top xid or 0 | u32 flags | u32 0 | u64 first_lsn) for each transaction
    the invalidations, in their own format | what is carried, in its own | the mirror, in its own

All integers are little-endian. Any flipped or missing byte is found by the checksum. Format 3, of
releases that carried nothing, is read as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway._kernels.pg.crc32c import crc32c
from spillway.catalog import serialization as catalog_serialization
from spillway.decoding.carried import Carried
from spillway.errors import CorruptSnapshot, StorageError

if TYPE_CHECKING:
    from spillway.catalog.mirror import CatalogMirror

MAGIC: Final = b"SPWDECOD"
FORMAT: Final = 4
#: without the size of what is carried, which is nothing
_FORMAT_WITHOUT_CARRIED: Final = 3
#: A header that names a later one than this is damaged.
_FORMAT_MAX: Final = 64
_HEAD: Final = struct.Struct("<8sIIQ")
_STATE: Final = struct.Struct("<IIQQQ")
_SIZE: Final = struct.Struct("<Q")
_TRANSACTION: Final = struct.Struct("<IIIIQ")


@dataclass(frozen=True, slots=True)
class DecoderState:
    """What a decoder is made of, between two records."""

    database_oid: int
    #: end of the last record processed
    lsn: int
    #: transactions whose commit record starts before this were not delivered
    start_decoding_at: int
    #: (xid, top xid or 0, first_lsn, flags), top-level ones before their subtransactions
    transactions: tuple[tuple[int, int, int, int], ...]
    mirror: CatalogMirror
    #: what the transactions in progress have invalidated, as ``Invalidations.dump`` gives it
    invalidations: bytes
    #: the transactions with their changes; None when those must be read again
    carried: Carried | None = None


def dump(state: DecoderState) -> bytes:
    """Return *state* as bytes."""
    carried = b"" if state.carried is None else state.carried.dump()
    parts = [
        _STATE.pack(
            state.database_oid,
            len(state.transactions),
            state.lsn,
            state.start_decoding_at,
            len(state.invalidations),
        ),
        _SIZE.pack(len(carried)),
    ]
    parts += [
        _TRANSACTION.pack(xid, top_xid, flags, 0, first_lsn)
        for xid, top_xid, first_lsn, flags in state.transactions
    ]
    parts += [state.invalidations, carried]
    parts += catalog_serialization.serialized_parts(state.mirror)
    # Of a large catalog these are megabytes: joined once, and not copied before.
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((_HEAD.pack(MAGIC, FORMAT, crc, sum(map(len, parts))), *parts))


def load(data: bytes) -> DecoderState:
    """Reverse :func:`dump`.

    Raises:
        CorruptSnapshot: *data* is damaged.
        StorageError: it is of another format.
    """
    if len(data) < _HEAD.size:
        raise _damaged("it is too short")
    magic, version, crc, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _damaged("it is none")
    if version > _FORMAT_MAX:
        raise _damaged("its header is damaged")
    if version not in (_FORMAT_WITHOUT_CARRIED, FORMAT):
        raise StorageError(
            f"a serialised decoder state has format {version}, this version reads "
            f"{_FORMAT_WITHOUT_CARRIED} and {FORMAT}",
            hint="Run the version of Spillway that wrote it; or remove the file, which costs the "
            "slots what they have not read yet.",
        )
    rest = memoryview(data)[_HEAD.size :]
    if len(rest) != length or crc32c(rest) != crc:
        raise _damaged("its checksum is wrong")
    database_oid, count, lsn, start_decoding_at, size = _STATE.unpack_from(rest)
    at = _STATE.size
    carried_size = 0
    if version != _FORMAT_WITHOUT_CARRIED:
        (carried_size,) = _SIZE.unpack_from(rest, at)
        at += _SIZE.size
    transactions = []
    for _ in range(count):
        xid, top_xid, flags, _, first_lsn = _TRANSACTION.unpack_from(rest, at)
        transactions.append((xid, top_xid, first_lsn, flags))
        at += _TRANSACTION.size
    invalidations = bytes(rest[at : at + size])
    at += size
    carried = Carried.load(rest[at : at + carried_size]) if carried_size else None
    mirror = catalog_serialization.deserialize(rest[at + carried_size :])
    return DecoderState(
        database_oid, lsn, start_decoding_at, tuple(transactions), mirror, invalidations, carried
    )


def _damaged(why: str) -> CorruptSnapshot:
    return CorruptSnapshot(
        f"a serialised decoder state can't be used: {why}",
        hint="Decoding goes on from another one, or begins anew from the server's catalog, by "
        "itself.",
    )
