# cython: language_level=3, boundscheck=False, wraparound=False
"""The hot handlers: a WAL record's tuples are copied into the arena of its transaction, in the
change format.

A record has been checked by the walker as far as its own framing goes; what is inside main data and
block data has not, so every struct and tuple is checked here against the length that the record
gives. Nothing is deformed.

What PostgreSQL keeps in a change beside the tuples comes down to flags: which tuples there are,
whether the old one is only the key, and whether TOAST chunks gathered so far are done with after
the change (CLEAR_TOAST, set only in arenas that hold chunks, so that others can be handed on as
they are).

A speculative insertion (ON CONFLICT) counts only once it is confirmed. The confirmation nearly
always follows with nothing of that transaction in between; then the insert is patched into a plain
one on the spot. Otherwise the records are kept and the merge sorts it out, as PostgreSQL does.

Source: DecodeInsert, DecodeUpdate, DecodeDelete, DecodeMultiInsert, DecodeSpecConfirm,
logicalmsg_decode, src/backend/replication/logical/decode.c; src/include/access/heapam_xlog.h;
src/include/replication/message.h
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spillway._kernels.reorder.changes cimport (
    CLEAR_TOAST,
    DELETE,
    FROM_ORIGIN,
    HAS_NEW,
    HAS_OLD,
    INSERT,
    MESSAGE,
    OLD_IS_KEY,
    SPECULATIVE_ABORT,
    SPECULATIVE_CONFIRM,
    SPECULATIVE_INSERT,
    TOAST_CHUNK,
    UPDATE,
    ChangeHeader,
    TupleHeader,
)
from spillway._kernels.reorder.locators cimport LOCATOR_TOAST, LocatorKind
from spillway._kernels.reorder.table cimport (
    TXN_HAS_TOAST,
    TXN_NEEDS_ASSEMBLY,
    TXN_SPECULATION_OPEN,
    TransactionTable,
    Txn,
    id_set_add,
    pad8,
)
from spillway._kernels.wal.record_batch cimport WalBlockRef, WalRecord, load_u16, load_u32, load_u64

cdef enum:
    HEAP_HASNULL = 0x0001
    HEAP_NATTS_MASK = 0x07FF
    TUPLE_DATA_OFFSET = 23
    TOAST_COLUMNS = 3


cdef inline ChangeHeader *_begin(TransactionTable table, Txn *txn, uint8_t action,
                                 const WalRecord *record, uint32_t relation, size_t new_size,
                                 size_t old_size) noexcept nogil:
    """Reserve a change of *record* with sections of these sizes and fill its header; the caller
    adds flags.
    """
    cdef size_t size = sizeof(ChangeHeader) + pad8(new_size) + pad8(old_size)
    cdef ChangeHeader *change
    if size > <size_t> 0xFFFFFFF0:
        return NULL
    change = <ChangeHeader *> table.reserve(txn, size)
    if change == NULL:
        return NULL
    change.size = <uint32_t> size
    change.action = action
    change.flags = FROM_ORIGIN if record.origin != 0 else 0
    change.toast_count = 0
    change.relation = relation
    change.xid = txn.xid
    change.lsn = record.end_lsn if action == MESSAGE else record.lsn
    change.new_size = <uint32_t> new_size
    change.old_size = <uint32_t> old_size
    if relation != txn.last_relation and relation != 0:
        if not id_set_add(&txn.relations, relation):
            return NULL
        txn.last_relation = relation
    return change


cdef inline void _put_tuple(uint8_t *place, uint16_t infomask2, uint16_t infomask, uint8_t hoff,
                            const uint8_t *data, size_t size) noexcept nogil:
    """Write a tuple section of 8 + *size* bytes, zero-padded."""
    cdef TupleHeader *header = <TupleHeader *> place
    header.infomask2 = infomask2
    header.infomask = infomask
    header.hoff = hoff
    header.zero[0] = 0
    header.zero[1] = 0
    header.zero[2] = 0
    memcpy(place + sizeof(TupleHeader), data, size)
    memset(place + sizeof(TupleHeader) + size, 0, pad8(size) - size)


cdef inline bint _tuple_is_sound(uint16_t infomask2, uint16_t infomask, uint8_t hoff,
                                 size_t size) noexcept nogil:
    """Say whether bitmap and attributes, as the header places them, are inside *size* bytes from
    offset 23 on.
    """
    cdef size_t data_at
    if hoff < TUPLE_DATA_OFFSET or hoff & 7:
        return False
    data_at = hoff - TUPLE_DATA_OFFSET
    if data_at > size:
        return False
    return (not infomask & HEAP_HASNULL
            or <size_t> ((infomask2 & HEAP_NATTS_MASK) + 7) // 8 <= data_at)


cdef inline void _clear_toast_after(Txn *txn, ChangeHeader *change) noexcept nogil:
    if txn.flags & TXN_HAS_TOAST:
        change.flags |= CLEAR_TOAST


cdef ExtractStatus _extract_toast_chunk(TransactionTable table, Txn *txn, const WalRecord *record,
                                        uint16_t infomask, uint8_t hoff, const uint8_t *data,
                                        size_t size) noexcept nogil:
    """A TOAST table's row is (chunk_id oid, chunk_seq int4, chunk_data bytea), never null, never
    compressed.
    """
    cdef ChangeHeader *change
    cdef uint8_t *section
    cdef size_t at = hoff - TUPLE_DATA_OFFSET
    cdef size_t length, skip
    if infomask & HEAP_HASNULL or size < at + 9:
        return EXTRACT_BAD_TOAST_CHUNK
    data += at
    size -= at
    if data[8] & 1:
        # 1 alone would be an external pointer.
        if data[8] == 1:
            return EXTRACT_BAD_TOAST_CHUNK
        skip = 1
        length = data[8] >> 1
    else:
        if size < 12 or data[8] & 2:
            return EXTRACT_BAD_TOAST_CHUNK
        skip = 4
        length = load_u32(data + 8) >> 2
    if length < skip or length > size - 8:
        return EXTRACT_BAD_TOAST_CHUNK
    length -= skip
    change = _begin(table, txn, TOAST_CHUNK, record, 0, 8 + length, 0)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    change.flags |= HAS_NEW
    section = <uint8_t *> (change + 1)
    memcpy(section, data, 8)
    memcpy(section + 8, data + 8 + skip, length)
    memset(section + 8 + length, 0, pad8(length) - length)
    txn.flags |= TXN_HAS_TOAST | TXN_NEEDS_ASSEMBLY
    return EXTRACT_OK


cdef ExtractStatus extract_insert(TransactionTable table, Txn *txn, const WalRecord *record,
                                  const WalBlockRef *block, LocatorKind kind,
                                  uint32_t relation) noexcept nogil:
    """XLOG_HEAP_INSERT; the caller has seen XLH_INSERT_CONTAINS_NEW_TUPLE in the flags."""
    cdef const uint8_t *data = block.data
    cdef uint16_t infomask2, infomask
    cdef uint8_t hoff
    cdef uint8_t action = INSERT
    cdef size_t size
    cdef ChangeHeader *change
    if data == NULL or block.data_len < SIZE_OF_HEAP_HEADER:
        return EXTRACT_SHORT_BLOCK
    infomask2 = load_u16(data)
    infomask = load_u16(data + 2)
    hoff = data[4]
    data += SIZE_OF_HEAP_HEADER
    size = block.data_len - SIZE_OF_HEAP_HEADER
    if not _tuple_is_sound(infomask2, infomask, hoff, size):
        return EXTRACT_BAD_TUPLE
    if kind == LOCATOR_TOAST:
        if (infomask2 & HEAP_NATTS_MASK) != TOAST_COLUMNS:
            return EXTRACT_BAD_TOAST_CHUNK
        return _extract_toast_chunk(table, txn, record, infomask, hoff, data, size)
    if record.main_data[2] & XLH_INSERT_IS_SPECULATIVE:
        action = SPECULATIVE_INSERT
        txn.flags |= TXN_SPECULATION_OPEN
    change = _begin(table, txn, action, record, relation, sizeof(TupleHeader) + size, 0)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    change.flags |= HAS_NEW
    _put_tuple(<uint8_t *> (change + 1), infomask2, infomask, hoff, data, size)
    _clear_toast_after(txn, change)
    return EXTRACT_OK


cdef ExtractStatus extract_multi_insert(TransactionTable table, Txn *txn, const WalRecord *record,
                                        const WalBlockRef *block, LocatorKind kind,
                                        uint32_t relation) noexcept nogil:
    """XLOG_HEAP2_MULTI_INSERT; the caller has seen XLH_INSERT_CONTAINS_NEW_TUPLE in the flags.

    Tuples begin 2-byte aligned, counted from the start of the block's data.
    """
    cdef const uint8_t *data = block.data
    cdef const uint8_t *tuple_header
    cdef uint16_t ntuples = load_u16(record.main_data + 2)
    cdef uint16_t infomask2, infomask, i
    cdef uint8_t hoff
    cdef size_t end = block.data_len
    cdef size_t at = 0
    cdef size_t size
    cdef ChangeHeader *change
    cdef ExtractStatus status
    if data == NULL:
        return EXTRACT_SHORT_BLOCK
    for i in range(ntuples):
        at = (at + 1) & ~(<size_t> 1)
        if at > end or end - at < SIZE_OF_MULTI_INSERT_TUPLE:
            return EXTRACT_SHORT_BLOCK
        tuple_header = data + at
        size = load_u16(tuple_header)
        infomask2 = load_u16(tuple_header + 2)
        infomask = load_u16(tuple_header + 4)
        hoff = tuple_header[6]
        at += SIZE_OF_MULTI_INSERT_TUPLE
        if size > end - at:
            return EXTRACT_SHORT_BLOCK
        if not _tuple_is_sound(infomask2, infomask, hoff, size):
            return EXTRACT_BAD_TUPLE
        if kind == LOCATOR_TOAST:
            status = _extract_toast_chunk(table, txn, record, infomask, hoff, data + at, size)
            if status != EXTRACT_OK:
                return status
        else:
            change = _begin(table, txn, INSERT, record, relation, sizeof(TupleHeader) + size, 0)
            if change == NULL:
                return EXTRACT_NO_MEMORY
            change.flags |= HAS_NEW
            _put_tuple(<uint8_t *> (change + 1), infomask2, infomask, hoff, data + at, size)
            if i + 1 == ntuples and record.main_data[0] & XLH_INSERT_LAST_IN_MULTI:
                _clear_toast_after(txn, change)
        at += size
    # PostgreSQL asserts the same: what is left over would be a record read wrongly.
    return EXTRACT_OK if at == end else EXTRACT_SHORT_BLOCK


cdef ExtractStatus extract_update(TransactionTable table, Txn *txn, const WalRecord *record,
                                  const WalBlockRef *block, uint32_t relation) noexcept nogil:
    """XLOG_HEAP_UPDATE and XLOG_HEAP_HOT_UPDATE: either tuple may be missing."""
    cdef uint8_t flags = record.main_data[7]
    cdef const uint8_t *new_data = NULL
    cdef const uint8_t *old_data = NULL
    cdef size_t new_size = 0
    cdef size_t old_size = 0
    cdef size_t new_section = 0
    cdef size_t old_section = 0
    cdef uint8_t *place
    cdef ChangeHeader *change
    if flags & XLH_UPDATE_CONTAINS_NEW_TUPLE:
        if flags & (XLH_UPDATE_PREFIX_FROM_OLD | XLH_UPDATE_SUFFIX_FROM_OLD):
            return EXTRACT_COMPRESSED_UPDATE
        new_data = block.data
        if new_data == NULL or block.data_len < SIZE_OF_HEAP_HEADER:
            return EXTRACT_SHORT_BLOCK
        new_size = block.data_len - SIZE_OF_HEAP_HEADER
        if not _tuple_is_sound(load_u16(new_data), load_u16(new_data + 2), new_data[4], new_size):
            return EXTRACT_BAD_TUPLE
        new_section = sizeof(TupleHeader) + new_size
    if flags & (XLH_UPDATE_CONTAINS_OLD_TUPLE | XLH_UPDATE_CONTAINS_OLD_KEY):
        if record.main_len < SIZE_OF_HEAP_UPDATE + SIZE_OF_HEAP_HEADER:
            return EXTRACT_SHORT_MAIN
        old_data = record.main_data + SIZE_OF_HEAP_UPDATE
        old_size = record.main_len - SIZE_OF_HEAP_UPDATE - SIZE_OF_HEAP_HEADER
        if not _tuple_is_sound(load_u16(old_data), load_u16(old_data + 2), old_data[4], old_size):
            return EXTRACT_BAD_TUPLE
        old_section = sizeof(TupleHeader) + old_size
    change = _begin(table, txn, UPDATE, record, relation, new_section, old_section)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    place = <uint8_t *> (change + 1)
    if new_data != NULL:
        change.flags |= HAS_NEW
        _put_tuple(place, load_u16(new_data), load_u16(new_data + 2), new_data[4],
                   new_data + SIZE_OF_HEAP_HEADER, new_size)
        place += pad8(new_section)
    if old_data != NULL:
        change.flags |= HAS_OLD if flags & XLH_UPDATE_CONTAINS_OLD_TUPLE else HAS_OLD | OLD_IS_KEY
        _put_tuple(place, load_u16(old_data), load_u16(old_data + 2), old_data[4],
                   old_data + SIZE_OF_HEAP_HEADER, old_size)
    _clear_toast_after(txn, change)
    return EXTRACT_OK


cdef ExtractStatus extract_delete(TransactionTable table, Txn *txn, const WalRecord *record,
                                  uint32_t relation) noexcept nogil:
    """XLOG_HEAP_DELETE of a table's row; with XLH_DELETE_IS_SUPER the withdrawal of a speculative
    insertion.
    """
    cdef uint8_t flags = record.main_data[7]
    cdef const uint8_t *old_data = NULL
    cdef size_t old_size = 0
    cdef size_t old_section = 0
    cdef ChangeHeader *change
    if flags & XLH_DELETE_IS_SUPER:
        change = _begin(table, txn, SPECULATIVE_ABORT, record, 0, 0, 0)
        if change == NULL:
            return EXTRACT_NO_MEMORY
        txn.flags |= TXN_NEEDS_ASSEMBLY
        return EXTRACT_OK
    if flags & (XLH_DELETE_CONTAINS_OLD_TUPLE | XLH_DELETE_CONTAINS_OLD_KEY):
        if record.main_len < SIZE_OF_HEAP_DELETE + SIZE_OF_HEAP_HEADER:
            return EXTRACT_SHORT_MAIN
        old_data = record.main_data + SIZE_OF_HEAP_DELETE
        old_size = record.main_len - SIZE_OF_HEAP_DELETE - SIZE_OF_HEAP_HEADER
        if not _tuple_is_sound(load_u16(old_data), load_u16(old_data + 2), old_data[4], old_size):
            return EXTRACT_BAD_TUPLE
        old_section = sizeof(TupleHeader) + old_size
    change = _begin(table, txn, DELETE, record, relation, 0, old_section)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    if old_data != NULL:
        change.flags |= HAS_OLD if flags & XLH_DELETE_CONTAINS_OLD_TUPLE else HAS_OLD | OLD_IS_KEY
        _put_tuple(<uint8_t *> (change + 1), load_u16(old_data), load_u16(old_data + 2),
                   old_data[4], old_data + SIZE_OF_HEAP_HEADER, old_size)
    _clear_toast_after(txn, change)
    return EXTRACT_OK


cdef ExtractStatus extract_confirm(TransactionTable table, Txn *txn, const WalRecord *record,
                                   uint32_t relation) noexcept nogil:
    """XLOG_HEAP_CONFIRM: the speculative insertion counts, as of now."""
    cdef ChangeHeader *change = <ChangeHeader *> txn.last_change
    if change != NULL and change.action == SPECULATIVE_INSERT and change.relation == relation:
        change.action = INSERT
        txn.flags &= ~(<uint32_t> TXN_SPECULATION_OPEN)
        return EXTRACT_OK
    change = _begin(table, txn, SPECULATIVE_CONFIRM, record, 0, 0, 0)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    txn.flags |= TXN_NEEDS_ASSEMBLY
    return EXTRACT_OK


cdef ExtractStatus extract_message(TransactionTable table, Txn *txn,
                                   const WalRecord *record) noexcept nogil:
    """XLOG_LOGICAL_MESSAGE: dbId, transactional, prefix_size (with its zero), message_size, prefix,
    content.
    """
    cdef uint64_t prefix_size, message_size, room
    cdef ChangeHeader *change
    cdef uint8_t *section
    cdef uint32_t transactional = 1 if record.main_data[4] != 0 else 0
    cdef uint32_t prefix_out
    cdef size_t size
    prefix_size = load_u64(record.main_data + 8)
    message_size = load_u64(record.main_data + 16)
    room = record.main_len - SIZE_OF_LOGICAL_MESSAGE
    if prefix_size == 0 or prefix_size > room or message_size > room - prefix_size:
        return EXTRACT_BAD_MESSAGE
    if record.main_data[SIZE_OF_LOGICAL_MESSAGE + prefix_size - 1] != 0:
        return EXTRACT_BAD_MESSAGE
    size = <size_t> (8 + prefix_size - 1 + message_size)
    change = _begin(table, txn, MESSAGE, record, 0, size, 0)
    if change == NULL:
        return EXTRACT_NO_MEMORY
    change.flags |= HAS_NEW
    section = <uint8_t *> (change + 1)
    prefix_out = <uint32_t> (prefix_size - 1)
    memcpy(section, &transactional, 4)
    memcpy(section + 4, &prefix_out, 4)
    memcpy(section + 8, record.main_data + SIZE_OF_LOGICAL_MESSAGE, prefix_out)
    memcpy(section + 8 + prefix_out, record.main_data + SIZE_OF_LOGICAL_MESSAGE + prefix_size,
           <size_t> message_size)
    memset(section + size, 0, pad8(size) - size)
    return EXTRACT_OK
