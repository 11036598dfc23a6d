# cython: language_level=3, boundscheck=False, wraparound=False
"""Leaving out of a transaction what was in its streamed parts already.

In comes a chunk of the change format and where the last part ended (``Streamed.upto_lsn``); out
goes what of the chunk came after. Changes are in LSN order, so all of that but a few changes at
just that LSN is one piece: a message bears its record's end, and may stand beside a change of the
record that starts there.
"""

from libc.stdint cimport uint64_t

from cpython.bytes cimport PyBytes_FromStringAndSize

from spillway._kernels.reorder.changes cimport MESSAGE
from spillway._kernels.values.datum cimport Change, read_change


def changes_after(chunk, uint64_t upto_lsn):
    """Return the part of *chunk*, a memoryview, that was not streamed: a view of it or a copy,
    maybe empty.

    Raises:
        DecodingError: the chunk is damaged.
    """
    cdef const unsigned char[::1] data = chunk
    cdef size_t size = data.shape[0]
    cdef size_t offset = 0
    cdef size_t start, first
    cdef Change change
    cdef list pieces = []
    if size == 0:
        return chunk
    first = size
    while offset < size:
        start = offset
        read_change(&data[0], size, &offset, &change)
        if change.header.lsn > upto_lsn:
            # So is everything behind it.
            first = min(first, start)
            break
        if change.header.lsn == upto_lsn and change.header.action != MESSAGE:
            if first == size:
                first = start
        elif first != size:
            # Streamed, behind one that was not.
            pieces.append(PyBytes_FromStringAndSize(<const char*>&data[first],
                                                    <Py_ssize_t>(start - first)))
            first = size
    if not pieces:
        return chunk[first:]
    if first < size:
        pieces.append(PyBytes_FromStringAndSize(<const char*>&data[first],
                                                <Py_ssize_t>(size - first)))
    return memoryview(b"".join(pieces))
