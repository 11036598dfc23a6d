# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Deforming: from the change format's tuple sections to the values of a table's columns.

A :class:`Deformer` is compiled once per relation descriptor; deforming a tuple is then one pass
over its attributes without the GIL and, unless a value is compressed, without memory being copied:
a :class:`Datum` points into the change. What makes a pass more than adding up lengths:

- A tuple may have fewer attributes than its table: ADD COLUMN does not rewrite rows. What lacks
  takes the column's *missing* value, or null. Dropped columns are still in the tuple and are
  stepped over.
- Offsets of the fixed-length attributes at a row's beginning are known beforehand, but only for a
  tuple without nulls.
- A varlena begins with a 1-byte header (no alignment), a 4-byte header, a 4-byte header over
  compressed data, or is a pointer to a TOAST value. Its first byte says which; a zero byte there is
  padding.
- The value of a TOAST pointer travels with the change when the row's change wrote it; else the
  value did not change, and is not known.

Every length is checked against the bytes that there are before it is believed: a tuple that
contradicts itself raises DecodingError, and never reads outside its section.

Source: heap_deform_tuple (src/backend/access/common/heaptuple.c), att_align_pointer (tupmacs.h),
detoast_attr (src/backend/access/common/detoast.c), varatt.h
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from spillway._kernels.reorder.changes cimport (HAS_NEW, HAS_OLD, ChangeHeader, ToastValueHeader,
                                                TupleHeader)
from spillway._kernels.pg.compress cimport lz4_decompress, pglz_decompress
from spillway.errors import DecodingError

cdef enum:
    HEAP_HASNULL = 0x0001
    HEAP_NATTS_MASK = 0x07FF
    # sizeof(HeapTupleHeaderData) up to the null bitmap
    HEAP_HEADER_SIZE = 23
    # MaxTupleAttributeNumber
    ATTRIBUTES_MAX = 1664
    VARTAG_ONDISK = 18
    # varattrib_1b_e's header and a varatt_external
    TOAST_POINTER_SIZE = 2 + 16
    VARLENA_EXTSIZE_MASK = (1 << 30) - 1
    COMPRESSION_PGLZ = 0
    COMPRESSION_LZ4 = 1
    # No method makes more than this many bytes of one (lz4: 255 a length byte); a header that says
    # otherwise lies, and must not make us allocate a gigabyte.
    COMPRESSION_RATIO_MAX = 256
    SCRATCH_BLOCK_BYTES = 32768

ALIGN_BYTES = {"c": 1, "s": 2, "i": 4, "d": 8}


cdef int invalid(const char* what) except -1 nogil:
    """Raise DecodingError with *what*."""
    with gil:
        raise DecodingError(what.decode())


# Scratch memory.

cdef uint8_t* scratch_alloc(Scratch* scratch, size_t size) except NULL nogil:
    """Return *size* bytes that stay where they are until ``scratch_reset``."""
    cdef ScratchBlock* block = scratch.blocks
    cdef size_t capacity
    if block == NULL or block.size - block.used < size:
        capacity = size if size > SCRATCH_BLOCK_BYTES else SCRATCH_BLOCK_BYTES
        block = <ScratchBlock*>malloc(sizeof(ScratchBlock) + capacity)
        if block == NULL:
            with gil:
                raise MemoryError
        block.size = capacity
        block.used = 0
        block.next = scratch.blocks
        scratch.blocks = block
    cdef uint8_t* memory = <uint8_t*>(block + 1) + block.used
    block.used += size
    return memory


cdef void scratch_reset(Scratch* scratch) noexcept nogil:
    """Forget all; one ordinary block is kept for the next tuple."""
    cdef ScratchBlock* block = scratch.blocks
    cdef ScratchBlock* kept = NULL
    cdef ScratchBlock* following
    while block != NULL:
        following = block.next
        if kept == NULL and block.size == SCRATCH_BLOCK_BYTES:
            kept = block
        else:
            free(block)
        block = following
    if kept != NULL:
        kept.next = NULL
        kept.used = 0
    scratch.blocks = kept


cdef void scratch_free(Scratch* scratch) noexcept nogil:
    cdef ScratchBlock* block = scratch.blocks
    cdef ScratchBlock* following
    while block != NULL:
        following = block.next
        free(block)
        block = following
    scratch.blocks = NULL


# Changes.

cdef int read_change(const uint8_t* chunk, size_t size, size_t* offset,
                     Change* change) except -1 nogil:
    """Set *change* to the change at *offset* and move *offset* behind it."""
    cdef size_t left = size - offset[0]
    cdef const uint8_t* start = chunk + offset[0]
    cdef size_t position, end
    cdef ChangeHeader* header = &change.header
    if offset[0] > size or left < sizeof(ChangeHeader):
        return invalid(b"a chunk of changes ends inside a change's header")
    memcpy(header, start, sizeof(ChangeHeader))
    end = header.size
    if end < sizeof(ChangeHeader) or end > left or end % 8 != 0:
        return invalid(b"a change's size does not fit its chunk")
    position = sizeof(ChangeHeader)
    if header.new_size > end - position:
        return invalid(b"a change's new section is larger than the change")
    change.new_section = start + position if header.flags & HAS_NEW or header.new_size else NULL
    change.new_size = header.new_size
    position += align_up(header.new_size, 8)
    if position > end or header.old_size > end - position:
        return invalid(b"a change's old section is larger than the change")
    change.old_section = start + position if header.flags & HAS_OLD else NULL
    change.old_size = header.old_size
    position += align_up(header.old_size, 8)
    if position > end:
        return invalid(b"a change's old section is larger than the change")
    change.toast = start + position
    change.toast_size = end - position
    offset[0] += end
    return 0


cdef int find_toast_value(const Change* change, uint32_t value_id, Datum* value) except -1 nogil:
    """Look a TOAST value up in the change; return whether it is there."""
    cdef const uint8_t* position = change.toast
    cdef size_t left = change.toast_size
    cdef size_t padded
    cdef ToastValueHeader header
    cdef int _i
    for _i in range(change.header.toast_count):
        if left < sizeof(ToastValueHeader):
            return invalid(b"a change ends inside the header of a TOAST value")
        memcpy(&header, position, sizeof(ToastValueHeader))
        position += sizeof(ToastValueHeader)
        left -= sizeof(ToastValueHeader)
        padded = align_up(header.size, 8)
        if padded > left:
            return invalid(b"a change ends inside a TOAST value")
        if header.value_id == value_id:
            value.data = position
            value.size = header.size
            return 1
        position += padded
        left -= padded
    return 0


# Varlenas.

cdef size_t varlena_size(const uint8_t* data, size_t size) except 0 nogil:
    """Return how many of *size* bytes at *data* the varlena there takes, header included."""
    cdef size_t needed
    if size == 0:
        invalid(b"a tuple ends before a variable-length value")
    if data[0] == 0x01:
        if size < 2:
            invalid(b"a tuple ends inside a TOAST pointer")
        if data[1] != VARTAG_ONDISK:
            invalid(b"a TOAST pointer has a tag that never goes to disk")
        needed = TOAST_POINTER_SIZE
    elif data[0] & 0x01:
        needed = data[0] >> 1
    else:
        if size < 4:
            invalid(b"a tuple ends inside the header of a variable-length value")
        needed = load_u32(data) >> 2
        if needed < 4:
            invalid(b"the header of a variable-length value gives a length below its own")
    if needed > size:
        invalid(b"a variable-length value is longer than its tuple")
    return needed


cdef int decompress(
    const uint8_t* data, size_t size, size_t raw_size, int method, Scratch* scratch, Datum* value
) except -1 nogil:
    """Decompress *size* bytes of *method* into *raw_size* bytes of scratch memory."""
    cdef Py_ssize_t written = -1
    cdef uint8_t* memory
    if raw_size > size * COMPRESSION_RATIO_MAX + 64:
        return invalid(b"a compressed value claims a size that its data can't have")
    memory = scratch_alloc(scratch, raw_size if raw_size else 1)
    if method == COMPRESSION_PGLZ:
        written = pglz_decompress(data, size, memory, raw_size)
    elif method == COMPRESSION_LZ4:
        written = lz4_decompress(data, size, memory, raw_size)
    else:
        return invalid(b"a compressed value names a compression method that is not known")
    if written < 0 or <size_t>written != raw_size:
        return invalid(b"a compressed value is corrupt")
    value.data = memory
    value.size = raw_size
    return 0


cdef int open_varlena(Datum* value, const Change* change, Scratch* scratch) except -1 nogil:
    """Turn a raw varlena, whose length was checked, into its payload.

    Its state becomes DATUM_UNCHANGED when it is a TOAST pointer whose value *change* (may be NULL)
    does not have.
    """
    cdef const uint8_t* data = value.data
    cdef size_t size = value.size
    cdef uint32_t info
    cdef size_t raw_size, external_size
    if data[0] & 0x01:
        if data[0] != 0x01:
            value.data = data + 1
            value.size = size - 1
            return 0
        # struct varatt_external: va_rawsize, va_extinfo, va_valueid, va_toastrelid
        raw_size = load_u32(data + 2)
        info = load_u32(data + 6)
        external_size = info & VARLENA_EXTSIZE_MASK
        if raw_size < 4:
            return invalid(b"a TOAST pointer gives a length below that of a header")
        raw_size -= 4
        if change == NULL or not find_toast_value(change, load_u32(data + 10), value):
            value.state = DATUM_UNCHANGED
            value.data = NULL
            value.size = 0
            return 0
        if value.size != external_size:
            return invalid(b"a TOAST value's chunks do not add up to the size that its pointer "
                           b"gives")
        if external_size < raw_size:
            if external_size < 4 or load_u32(value.data) & VARLENA_EXTSIZE_MASK != raw_size:
                return invalid(b"a compressed TOAST value and its pointer give different sizes")
            return decompress(value.data + 4, external_size - 4, raw_size, info >> 30, scratch,
                              value)
        if external_size != raw_size:
            return invalid(b"a TOAST pointer gives a stored size above the value's own")
        return 0
    if data[0] & 0x02:
        if size < 8:
            return invalid(b"a compressed value ends inside its header")
        info = load_u32(data + 4)
        return decompress(data + 8, size - 8, info & VARLENA_EXTSIZE_MASK, info >> 30, scratch,
                          value)
    value.data = data + 4
    value.size = size - 4
    return 0


# Tuples.

cdef int locate_attributes(
    const AttributeLayout* layout, int count, const uint8_t* bits, int natts,
    const uint8_t* data, size_t size, Datum* values
) except -1 nogil:
    """Find the raw datums of *count* attributes; see ``datum.pxd``."""
    cdef size_t offset = 0
    cdef const AttributeLayout* attribute
    cdef Datum* value
    cdef const uint8_t* end
    cdef int i
    cdef int stored = natts if natts < count else count
    for i in range(stored):
        attribute = &layout[i]
        value = &values[i]
        if bits != NULL and not bits[i >> 3] & (1 << (i & 7)):
            value.state = DATUM_NULL
            value.data = NULL
            value.size = 0
            continue
        value.state = DATUM_VALUE
        if attribute.length > 0:
            if bits == NULL and attribute.cached_offset >= 0:
                offset = attribute.cached_offset
            else:
                offset = align_up(offset, attribute.align)
            if offset > size or size - offset < <size_t>attribute.length:
                return invalid(b"a tuple ends inside a fixed-length value")
            value.size = attribute.length
        elif attribute.length == -1:
            # A nonzero byte here is a header: short ones are not aligned, and padding is zero.
            if offset >= size:
                return invalid(b"a tuple ends before a variable-length value")
            if data[offset] == 0:
                offset = align_up(offset, attribute.align)
                if offset >= size:
                    return invalid(b"a tuple ends before a variable-length value")
            value.size = data[offset] >> 1
            # Most are short and have a short header; what is not takes longer.
            if not data[offset] & 0x01 or value.size == 0 or value.size > size - offset:
                value.size = varlena_size(data + offset, size - offset)
        else:
            offset = align_up(offset, attribute.align)
            if offset >= size:
                return invalid(b"a tuple ends before a cstring")
            end = <const uint8_t*>memchr(data + offset, 0, size - offset)
            if end == NULL:
                return invalid(b"a tuple ends inside a cstring")
            value.size = end - (data + offset) + 1
        value.data = data + offset
        offset += value.size
        if attribute.length == -2:
            value.size -= 1
    for i in range(stored, count):
        attribute = &layout[i]
        values[i].data = attribute.missing
        values[i].size = attribute.missing_size
        values[i].state = DATUM_VALUE if attribute.missing != NULL else DATUM_NULL
    return 0


cdef class Layout:
    """How the attributes of a row type lie in its tuples.

    Args:
        attributes: objects with ``length``, ``align`` and ``dropped`` in attnum order:
            ColumnDescriptor or AttributeDescriptor. Only the former have a ``missing`` value.
    """

    def __cinit__(self, attributes):
        cdef AttributeLayout* layout
        cdef int i
        cdef long offset = 0
        cdef object missing
        self.owned = []
        if len(attributes) > ATTRIBUTES_MAX:
            raise DecodingError(f"a row type has {len(attributes)} attributes, PostgreSQL allows "
                                f"{ATTRIBUTES_MAX}")
        self.natts = len(attributes)
        self.attributes = <AttributeLayout*>calloc(self.natts + 1, sizeof(AttributeLayout))
        if self.attributes == NULL:
            raise MemoryError
        for i, attribute in enumerate(attributes):
            layout = &self.attributes[i]
            layout.length = attribute.length
            if attribute.align not in ALIGN_BYTES or layout.length < -2 or layout.length == 0:
                raise DecodingError(
                    f"attribute {attribute.name!r} has a length or an alignment that PostgreSQL "
                    f"does not have: {attribute.length}, {attribute.align!r}"
                )
            layout.align = ALIGN_BYTES[attribute.align]
            layout.dropped = attribute.dropped
            layout.cached_offset = -1
            if offset >= 0 and layout.length > 0:
                offset = align_up(offset, layout.align)
                layout.cached_offset = offset
                offset += layout.length
            else:
                offset = -1
            missing = getattr(attribute, "missing", None)
            if missing is not None and not attribute.dropped:
                self.set_missing(layout, missing, attribute.name)

    cdef int set_missing(self, AttributeLayout* layout, bytes missing, object name) except -1:
        cdef size_t size = PyBytes_GET_SIZE(missing)
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(missing)
        if layout.length > 0 and size != <size_t>layout.length:
            raise DecodingError(f"the missing value of column {name!r} has {size} bytes instead of "
                                f"{layout.length}")
        if layout.length == -1 and varlena_size(data, size) != size:
            raise DecodingError(f"the missing value of column {name!r} is not one whole datum")
        self.owned.append(missing)
        layout.missing = data
        layout.missing_size = size
        return 0

    def __dealloc__(self):
        free(self.attributes)


cdef class Deformer:
    """Deforms the tuples of one table as of one descriptor.

    Args:
        descriptor: the RelationDescriptor that the tuples were written under.
    """

    def __cinit__(self, descriptor):
        self.descriptor = descriptor
        self.layout = Layout(descriptor.columns)
        self.natts = self.layout.natts
        self.values = <Datum*>calloc(self.natts + 1, sizeof(Datum))
        if self.values == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.values)
        scratch_free(&self.scratch)

    cdef int deform(self, const uint8_t* section, size_t size,
                    const Change* change) except -1 nogil:
        """Set ``values`` from a tuple section. Dropped columns are null.

        *change* has the TOAST values; NULL: every TOAST pointer counts as unchanged.
        """
        cdef TupleHeader header
        cdef const AttributeLayout* layout = self.layout.attributes
        cdef const uint8_t* bits = NULL
        cdef Datum* value
        cdef size_t before
        cdef int natts, i
        if self.scratch.blocks != NULL and (self.scratch.blocks.used
                                            or self.scratch.blocks.next != NULL):
            scratch_reset(&self.scratch)
        if section == NULL or size < sizeof(TupleHeader):
            return invalid(b"a change has no tuple where its action needs one")
        memcpy(&header, section, sizeof(TupleHeader))
        natts = header.infomask2 & HEAP_NATTS_MASK
        if header.hoff < HEAP_HEADER_SIZE:
            return invalid(b"a tuple's header ends before its fixed part")
        before = sizeof(TupleHeader) + header.hoff - HEAP_HEADER_SIZE
        if before > size:
            return invalid(b"a tuple ends inside its header")
        if header.infomask & HEAP_HASNULL:
            bits = section + sizeof(TupleHeader)
            if <size_t>((natts + 7) // 8) > before - sizeof(TupleHeader):
                return invalid(b"a tuple's null bitmap is longer than its header")
        locate_attributes(layout, self.natts, bits, natts, section + before, size - before,
                          self.values)
        for i in range(self.natts):
            value = &self.values[i]
            if layout[i].dropped:
                value.state = DATUM_NULL
            elif layout[i].length == -1 and value.state == DATUM_VALUE:
                if value.data[0] & 0x01 and value.data[0] != 0x01:
                    # a short header
                    value.data += 1
                    value.size -= 1
                else:
                    open_varlena(value, change, &self.scratch)
        return 0


def deform_change(descriptor, const uint8_t[::1] change not None):
    """Deform both tuples of one change: for tests and tools, kernels call ``Deformer.deform``.

    Returns ``(new, old)``, each None or a list with, for each column, None (null), ``...``
    (unchanged TOAST) or the payload bytes.

    Raises:
        DecodingError: the change contradicts itself.
    """
    cdef Deformer deformer = Deformer(descriptor)
    cdef Change parsed
    cdef size_t offset = 0
    cdef list result = []
    if change.shape[0] == 0:
        raise DecodingError("an empty change")
    read_change(&change[0], change.shape[0], &offset, &parsed)
    for section, size in ((<size_t>parsed.new_section, parsed.new_size),
                          (<size_t>parsed.old_section, parsed.old_size)):
        if section == 0:
            result.append(None)
            continue
        deformer.deform(<const uint8_t*><size_t>section, size, &parsed)
        values = []
        for i in range(deformer.natts):
            if deformer.values[i].state == DATUM_NULL:
                values.append(None)
            elif deformer.values[i].state == DATUM_UNCHANGED:
                values.append(...)
            else:
                values.append(
                    PyBytes_FromStringAndSize(<const char*>deformer.values[i].data,
                                              deformer.values[i].size)
                )
        result.append(values)
    return tuple(result)
