"""The change format: how one row change is laid out in memory, spill files and the transaction log.

One layout for all three, so that a small transaction is copied, never converted. Tuples stay as
PostgreSQL wrote them to WAL; deforming and encoding happen at delivery, once per slot that wants
it. The same layout as C structs is in ``_kernels/reorder/changes.pxd``; a test holds the two
together.

All integers are little-endian. A chunk is a sequence of changes; each begins 8-byte aligned
relative to the chunk's start and its ``size`` is a multiple of 8.

::

    offset  size  field
    0       4     size        the whole change: this header, sections and padding
    4       1     action      see below
    5       1     flags       see below
    6       2     toast_count number of TOAST values after the sections
    8       4     relation    id of the relation's descriptor; 0 for MESSAGE, TRUNCATE, INVALIDATION,
                              SCHEMA_CHANGE
    12      4     xid         the (sub)transaction that wrote it
    16      8     lsn         start of the WAL record
    24      4     new_size    bytes of the new section, padding not counted
    28      4     old_size    bytes of the old section, padding not counted
    32            new section, zero-padded to 8; old section, zero-padded to 8; TOAST values

Tuple section (INSERT new; UPDATE new and old; DELETE old)::

    0       2     infomask2   t_infomask2; natts = infomask2 & 0x07FF
    2       2     infomask    t_infomask; HEAP_HASNULL = 1
    4       1     hoff        t_hoff of the heap tuple
    5       3     zero
    8             the tuple from offset 23 of its heap form: null bitmap, padding, then at
                  8 + (hoff - 23) the attributes; alignment counts from there

TRUNCATE: the new section is ``u32 flags`` (1 CASCADE, 2 RESTART IDENTITY), ``u32 n``,
``u32 relation[n]``.
MESSAGE: the new section is ``u32 transactional``, ``u32 prefix_size``, prefix (without its final
zero), content. Its lsn is the *end* of the WAL record: PostgreSQL queues messages with that and
prints it.

INVALIDATION: the new section is ``u32 n``, ``u32 zero``, ``u64 item[n]``: what the server threw out
of its caches at this point of the decoding (``decoding/invalidations.py``). An item is the oid of a
relation whose definition it was (0: of all); or, with a catalog's oid in its upper half, a row of
that catalog by the hash of its key, or with the highest bit all of them. Only who announces
relations to its consumer (pgoutput) cares. Those that are executed at a transaction's end are its
last changes; they concern what comes after it. A consumer that leaves the transaction out executes
those without FROM_OTHER alone.

SCHEMA_CHANGE: the new section is JSON: how the transaction has changed a table's definition since its
beginning, or since the SCHEMA_CHANGE of that table before (``decoding/schema_changes.py``). It is
in front of the first row that is written with the new definition. Only who asks for events of DDL
cares.

TOAST value (``toast_count`` times; the value of an external pointer with that va_valueid)::

    0       4     value_id
    4       4     size        bytes that follow, padding not counted
    8             the chunks' data joined, zero-padded to 8. When va_extinfo says that it is
                  compressed it begins with the 4-byte tcinfo (raw size and method), as on disk.

An external pointer in a new tuple whose value id is not listed is an unchanged TOAST datum.

Between record and commit there are further actions. TOAST_CHUNK: the new section is
``u32 value_id``, ``u32 chunk_seq``, the chunk's bytes. SPECULATIVE_INSERT is an INSERT that counts
only once a SPECULATIVE_CONFIRM follows; a SPECULATIVE_ABORT withdraws it and the TOAST chunks
gathered for it.
"""

from __future__ import annotations

from typing import Final

HEADER_SIZE: Final = 32
TUPLE_HEADER_SIZE: Final = 8

# Actions.
INSERT: Final = 1
UPDATE: Final = 2
DELETE: Final = 3
TRUNCATE: Final = 4
MESSAGE: Final = 5
INVALIDATION: Final = 6
SCHEMA_CHANGE: Final = 7
#: Below this line: only between record and commit, never in what a Transaction yields.
TOAST_CHUNK: Final = 16
SPECULATIVE_INSERT: Final = 17
SPECULATIVE_CONFIRM: Final = 18
SPECULATIVE_ABORT: Final = 19

# Flags.
HAS_NEW: Final = 1
HAS_OLD: Final = 2
#: the old tuple holds the replica identity's columns only, the others are null
OLD_IS_KEY: Final = 4
#: the record was written under a replication origin
FROM_ORIGIN: Final = 16
#: of an INVALIDATION: another transaction's commit made it so, while this one was in progress
FROM_OTHER: Final = 32
#: arena only: TOAST chunks gathered so far are done with after this change
CLEAR_TOAST: Final = 8
