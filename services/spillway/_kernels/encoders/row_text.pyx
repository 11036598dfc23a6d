# cython: language_level=3, boundscheck=False, wraparound=False
"""Changes one by one, and rows as text: what a plugin written in Python is fed with.

:func:`split_changes` cuts a chunk into its changes, each a copy of its own, so that a row may
outlive the chunk. :class:`RowPrinter` is compiled once a relation descriptor; it deforms one tuple
of such a change and prints every value as the type's output function does. Everything here holds
the GIL and makes Python objects: plugins that must be fast have a kernel of their own and never see
this one.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_Decode, PyUnicode_DecodeUTF8

from spillway._kernels.values.datum cimport (DATUM_NULL, DATUM_UNCHANGED, Change, Datum, Deformer,
                                             invalid, read_change)
from spillway._kernels.messages.buffer cimport ByteBuffer, release
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler
from spillway._kernels.values.type cimport TypeOutput


def split_changes(const uint8_t[::1] chunk not None):
    """Return ``(action, flags, relation, xid, lsn, change)`` of every change of *chunk*; *change*
    is bytes.

    Raises:
        DecodingError: the chunk is malformed.
    """
    cdef size_t size = chunk.shape[0]
    cdef size_t offset = 0
    cdef size_t start
    cdef Change change
    cdef list found = []
    while offset < size:
        start = offset
        read_change(&chunk[0], size, &offset, &change)
        found.append((
            change.header.action,
            change.header.flags,
            change.header.relation,
            change.header.xid,
            change.header.lsn,
            PyBytes_FromStringAndSize(<const char*>&chunk[start], offset - start),
        ))
    return found


def new_section(const uint8_t[::1] change not None):
    """Return the new section of one change as bytes, b"" if there is none: TRUNCATE and MESSAGE
    keep theirs there.

    Raises:
        DecodingError: the change is malformed.
    """
    cdef Change parsed
    cdef size_t offset = 0
    if change.shape[0] == 0:
        invalid(b"an empty change")
    read_change(&change[0], change.shape[0], &offset, &parsed)
    if parsed.new_section == NULL:
        return b""
    return PyBytes_FromStringAndSize(<const char*>parsed.new_section, parsed.new_size)


cdef class RowPrinter:
    """Prints rows of one table as of one descriptor.

    Args:
        descriptor: the RelationDescriptor of the rows.
        context: the settings to print under.
        unchanged: what stands for a TOAST value that did not change, and so is not in WAL.
    """
    cdef readonly object descriptor
    # names of what ``texts`` returns: columns that are neither dropped nor virtual
    cdef readonly tuple columns
    cdef object unchanged
    cdef str encoding
    cdef bint utf8
    cdef Deformer deformer
    # a codec written in Python may let another thread run while the deformer's values are in use
    cdef bint busy
    # one a column; NULL: not printed
    cdef const TypeOutput** outputs
    cdef list owned

    def __cinit__(self, descriptor, TextContext context not None, unchanged):
        cdef CompiledType compiled
        cdef TypeCompiler compiler = TypeCompiler(context, descriptor.types)
        cdef int i
        self.descriptor = descriptor
        self.unchanged = unchanged
        self.encoding = context.settings.encoding
        self.utf8 = self.encoding == "utf-8"
        self.deformer = Deformer(descriptor)
        self.owned = []
        self.outputs = <const TypeOutput**>calloc(self.deformer.natts + 1, sizeof(TypeOutput*))
        if self.outputs == NULL:
            raise MemoryError
        names = []
        for i, column in enumerate(descriptor.columns):
            # The value of a virtual generated column is nowhere in WAL.
            if column.dropped or column.generated == "v":
                continue
            compiled = compiler.column(column)
            self.owned.append(compiled)
            self.outputs[i] = &compiled.output
            names.append(column.name)
        self.columns = tuple(names)

    def __dealloc__(self):
        free(self.outputs)

    def texts(self, const uint8_t[::1] change not None, bint old):
        """Return the text of every one of ``columns``, None where null; of the old or the new row
        of *change*.

        Raises:
            DecodingError: the change, or a value, is malformed, or it has no such row.
            RuntimeError: another thread is at it.
        """
        cdef Change parsed
        cdef size_t offset = 0
        cdef ByteBuffer buffer
        cdef const TypeOutput* output
        cdef const Datum* value
        cdef list result = []
        cdef int i
        if change.shape[0] == 0:
            invalid(b"an empty change")
        if self.busy:
            raise RuntimeError("rows that one reader made are used by one thread at a time")
        read_change(&change[0], change.shape[0], &offset, &parsed)
        if old:
            self.deformer.deform(parsed.old_section, parsed.old_size, &parsed)
        else:
            self.deformer.deform(parsed.new_section, parsed.new_size, &parsed)
        buffer.data = NULL
        buffer.size = buffer.capacity = 0
        self.busy = True
        try:
            for i in range(self.deformer.natts):
                output = self.outputs[i]
                value = &self.deformer.values[i]
                if output == NULL:
                    continue
                if value.state == DATUM_NULL:
                    result.append(None)
                elif value.state == DATUM_UNCHANGED:
                    result.append(self.unchanged)
                else:
                    buffer.size = 0
                    output.write(output, value.data, value.size, &buffer)
                    result.append(self.text(&buffer))
        finally:
            self.busy = False
            release(&buffer)
        return tuple(result)

    cdef object text(self, const ByteBuffer* buffer):
        if buffer.size == 0:
            return ""
        if self.utf8:
            return PyUnicode_DecodeUTF8(<const char*>buffer.data, buffer.size, "surrogateescape")
        encoding = self.encoding.encode()
        return PyUnicode_Decode(<char*>buffer.data, buffer.size, encoding, "surrogateescape")
