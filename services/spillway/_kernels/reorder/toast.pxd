# cython: language_level=3
"""TOAST values of the current row, gathered chunk by chunk until the row itself comes."""

from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t

from spillway._kernels.reorder.changes cimport ChangeHeader

cdef enum ToastStatus:
    TOAST_OK = 0
    TOAST_NO_MEMORY = 1
    TOAST_NO_PLAN = 2           # the relation's columns are not known
    TOAST_BAD_CHUNK = 3         # chunk_seq out of order
    TOAST_BAD_SIZE = 4          # the chunks do not add up to the pointer's va_extsize
    TOAST_BAD_TUPLE = 5         # the tuple ends before its columns do
    TOAST_TOO_LARGE = 6         # the change would need more than 4 GiB


# How to step over a relation's columns.
cdef struct RelationPlan:
    int16_t *lengths            # attlen
    uint8_t *aligns             # attalign in bytes
    uint8_t *dropped
    uint16_t column_count


cdef class RelationPlans:
    cdef RelationPlan *_plans
    cdef uint32_t _room
    # A table may come to be read, or cease to be, between the chunks of a value, or before the row
    # that has it. What was not gathered whole is then left out: the row has a pointer without its
    # value.
    cdef bint partial_values

    cdef const RelationPlan *find(self, uint32_t relation) noexcept nogil
    cdef int add(self, uint32_t relation, object lengths, object aligns, object dropped) except -1
    cdef void remove(self, uint32_t relation) noexcept nogil


cdef struct ToastValue:
    uint8_t *data
    size_t size
    size_t room
    uint32_t value_id
    uint32_t last_seq


cdef class ToastGatherer:
    cdef ToastValue *_values
    cdef uint32_t _count
    cdef uint32_t _room
    cdef uint32_t _hint
    # Indexes of the values that the tuple looked at last points to.
    cdef uint32_t *matches
    cdef uint32_t match_count
    cdef uint32_t _match_room
    cdef RelationPlans plans

    cdef ToastStatus append(self, const ChangeHeader *change) noexcept nogil
    cdef ToastStatus match(self, const ChangeHeader *change, size_t *extra) noexcept nogil
    cdef size_t write(self, uint8_t *place) noexcept nogil
    cdef void reset(self) noexcept nogil
    cdef ToastStatus _match_pointer(self, const uint8_t *pointer, size_t *extra) noexcept nogil
    cdef ToastValue *_find(self, uint32_t value_id) noexcept nogil
