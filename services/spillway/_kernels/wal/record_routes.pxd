# cython: language_level=3
"""Whom the records of a batch concern, by database."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from spillway._kernels.wal.record_batch cimport RecordBatch, WalRecord


# What of a commit or abort record matters to an ordinary transaction.
cdef struct EndRecord:
    int64_t time
    uint32_t database           # 0 when the record does not say
    uint32_t subxact_count
    const uint8_t *subxacts


cdef bint parse_end(const WalRecord *record, EndRecord *end) noexcept nogil
cdef uint32_t database_of(RecordBatch batch, const WalRecord *record) noexcept nogil
cdef bint route_records(RecordBatch batch) noexcept nogil
