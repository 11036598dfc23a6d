# cython: language_level=3
"""The change format as C structs; spillway/decoding/change_format.py describes it."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef packed struct ChangeHeader:
    uint32_t size
    uint8_t action
    uint8_t flags
    uint16_t toast_count
    uint32_t relation
    uint32_t xid
    uint64_t lsn
    uint32_t new_size
    uint32_t old_size

cdef packed struct TupleHeader:
    uint16_t infomask2
    uint16_t infomask
    uint8_t hoff
    uint8_t zero[3]

cdef packed struct ToastValueHeader:
    uint32_t value_id
    uint32_t size

cdef enum Action:
    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4
    MESSAGE = 5
    INVALIDATION = 6
    SCHEMA_CHANGE = 7
    TOAST_CHUNK = 16
    SPECULATIVE_INSERT = 17
    SPECULATIVE_CONFIRM = 18
    SPECULATIVE_ABORT = 19

cdef enum Flag:
    HAS_NEW = 1
    HAS_OLD = 2
    OLD_IS_KEY = 4
    CLEAR_TOAST = 8
    FROM_ORIGIN = 16
    FROM_OTHER = 32
