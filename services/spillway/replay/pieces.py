"""Rows between the two halves of a replay: what stretches hand to those who put transactions
together.

A row is up to :data:`PAYLOAD_BYTES_MAX` of changes in the kernels' own form, never a single change:

========  ==============================================================  =======================
kind      payload                                                         ``final_lsn``
========  ==============================================================  =======================
RELATION  u32 id, u32 0, descriptor as JSON: what the stretch calls so    0: before all others
HEADER    u32 n, u32 0, n surviving xids, the header as the log has it    the transaction's commit
CHUNK     changes of a transaction that is whole in the stretch           the transaction's commit
PIECE     changes of one that is not, as they were queued                 the transaction's commit
RUN       many small transactions, as they will lie in the log            the first one's commit
END       nothing: the stretch was decoded to its end                     2^63 - 1: after all others
========  ==============================================================  =======================

``part`` is where a row has to go: the number of the stretch whose commits its transaction belongs
to. Sorted by (part, final_lsn, kind, stretch, place), rows are transactions in commit order, each
one's header before its changes and those in LSN order: what a reorder buffer does, as a sort. A
commit LSN names a transaction for good, an xid does not.

A payload longer than a row may be goes over several; all but the last say so (``more``). Payloads
are a multiple of eight bytes, as kernels want it.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from spillway.txlog import frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader

RELATION: Final = 0
HEADER: Final = 1
CHUNK: Final = 2
PIECE: Final = 3
RUN: Final = 4
END: Final = 9

LAST: Final = (1 << 63) - 1
PAYLOAD_BYTES_MAX: Final = 8 << 20

SCHEMA: Final = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("final_lsn", pa.int64()),
        pa.field("kind", pa.int16()),
        pa.field("stretch", pa.int32()),
        pa.field("place", pa.int64()),
        pa.field("more", pa.bool_()),
        pa.field("payload", pa.binary()),
    ]
)
#: What rows are sorted by.
ORDER: Final = ("part", "final_lsn", "kind", "stretch", "place")

_COUNT: Final = struct.Struct("<II")


class Row(NamedTuple):
    """One row; see the module."""

    part: int
    final_lsn: int
    kind: int
    stretch: int
    payload: memoryview


def relation_payload(number: int, descriptor: RelationDescriptor) -> bytes:
    """Return the payload that says what *number* means in the rows of a stretch."""
    text = json.dumps(descriptor.to_json()).encode()
    return frames.RELATION_PREFIX.pack(number, 0) + text + b" " * (-len(text) % 8)


def header_payload(header: TransactionHeader, survivors: Sequence[int]) -> bytes:
    """Return the payload that begins a transaction; *survivors* for one in pieces, none for one
    that is whole.
    """
    xids = struct.pack(f"<{len(survivors)}I", *survivors) + b"\0" * (4 * (len(survivors) % 2))
    return _COUNT.pack(len(survivors), 0) + xids + frames.encode_transaction_header(header)


def parse_header(payload: memoryview) -> tuple[TransactionHeader, frozenset[int]]:
    """Reverse :func:`header_payload`."""
    count, _ = _COUNT.unpack_from(payload)
    survivors = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
    at = _COUNT.size + 4 * (count + count % 2)
    header, _ = frames.decode_transaction_header(payload[at:])
    return header, frozenset(survivors)


def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read rows that are sorted, payloads put together again. A payload is valid until the next
    row.
    """
    started: list[bytes] = []
    for batch in batches:
        keys = batch.select(["part", "final_lsn", "kind", "stretch", "more"]).to_pylist()
        for key, value in zip(keys, batch.column("payload"), strict=True):
            buffer = value.as_buffer()
            if key.pop("more"):
                started.append(buffer.to_pybytes())
                continue
            if started:
                payload = memoryview(b"".join((*started, buffer)))
                started = []
            elif buffer.address % 8:
                payload = memoryview(buffer.to_pybytes())
            else:
                payload = memoryview(buffer).cast("B")
            yield Row(**key, payload=payload)
