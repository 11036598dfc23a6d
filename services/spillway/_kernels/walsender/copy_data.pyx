# cython: language_level=3, boundscheck=False, wraparound=False
"""A batch of messages as a walsender sends it: each in a CopyData frame of its own, all in one
piece of memory.

A frame is ``d``, its length, and an XLogData message: ``w``, dataStart, walEnd, sendTime, and what
the output plugin wrote. Numbers are big-endian. In logical decoding dataStart and walEnd are both
the LSN that the plugin wrote at, or 0/0 when the plugin said that more follows at the same LSN
(``last_write`` is false), which standbys must not be confused by.

Which messages these are depends on the plugin alone, and can be told from the messages themselves:
see ``OPEN_WRITES``.

Source: WalSndPrepareWrite, WalSndWriteData (src/backend/replication/walsender.c); every call of
OutputPluginPrepareWrite in src/backend/replication/pgoutput/pgoutput.c and
contrib/test_decoding/test_decoding.c
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

cdef enum:
    # d, length, w, dataStart, walEnd, sendTime
    FRAME_HEAD_BYTES = 30
    # of a CopyData message what its length counts beside the plugin's bytes
    LENGTH_BYTES = 29
    # a frame's length is an int32
    MESSAGE_BYTES_MAX = 0x7FFFFFFF - LENGTH_BYTES

cdef enum Plugin:
    ANY = 0
    PGOUTPUT = 1
    TEST_DECODING_SKIPPING = 2

#: Which messages of a plugin bear 0/0, by a name: of "pgoutput" Relation and Type, and Begin, Begin
#: Prepare and Stream Start when an Origin follows; of "test_decoding" with skip-empty-xacts the
#: beginnings, which come with the first change; of others none.
OPEN_WRITES = {"": <int>ANY, "pgoutput": <int>PGOUTPUT,
               "test_decoding": <int>TEST_DECODING_SKIPPING}


cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void put_u64(uint8_t* at, uint64_t value) noexcept nogil:
    put_u32(at, <uint32_t>(value >> 32))
    put_u32(at + 4, <uint32_t>value)


cdef inline bint is_open(
    int plugin, const uint8_t* message, size_t size, const uint8_t* following, size_t following_size
) noexcept nogil:
    """Whether *message* was written with ``last_write`` false."""
    if plugin == PGOUTPUT and size:
        if message[0] == c"R" or message[0] == c"Y":
            return True
        if message[0] == c"B" or message[0] == c"b" or message[0] == c"S":
            return following_size > 0 and following[0] == c"O"
        return False
    if plugin == TEST_DECODING_SKIPPING:
        if size >= 5 and memcmp(message, b"BEGIN", 5) == 0:
            return True
        return size >= 7 and memcmp(message, b"opening", 7) == 0
    return False


def copy_data_frames(
    const uint8_t[::1] payload not None,
    const uint8_t[::1] lengths not None,
    const uint8_t[::1] lsns not None,
    int64_t send_time,
    int plugin,
):
    """Return the frames of a batch.

    Args:
        payload: the messages, back to back.
        lengths: a u32 for each, in the machine's byte order, as ``EncodedBatch`` has it.
        lsns: a u64 for each, likewise.
        send_time: microseconds since 2000-01-01.
        plugin: a value of OPEN_WRITES.

    Raises:
        ValueError: the arrays don't fit one another, or a message is longer than a frame may be.
    """
    cdef size_t count = <size_t>lengths.shape[0] // sizeof(uint32_t)
    cdef size_t payload_size = <size_t>payload.shape[0]
    cdef size_t n, total = 0
    cdef uint32_t size, following_size
    cdef uint64_t lsn
    cdef const uint8_t* message
    cdef uint8_t* at
    if (<size_t>lengths.shape[0] != count * sizeof(uint32_t)
            or <size_t>lsns.shape[0] != count * sizeof(uint64_t)):
        raise ValueError("the arrays of a batch don't fit one another")
    if count == 0:
        return b""
    with nogil:
        for n in range(count):
            memcpy(&size, &lengths[n * sizeof(uint32_t)], sizeof(uint32_t))
            if size > MESSAGE_BYTES_MAX:
                total = payload_size + 1
                break
            total += size
    if total != payload_size:
        raise ValueError("a batch's lengths don't fit its payload")
    frames = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(payload_size + count * FRAME_HEAD_BYTES))
    at = <uint8_t*>PyBytes_AS_STRING(frames)
    message = &payload[0] if payload_size else NULL
    with nogil:
        memcpy(&size, &lengths[0], sizeof(uint32_t))
        for n in range(count):
            following_size = 0
            if n + 1 < count:
                memcpy(&following_size, &lengths[(n + 1) * sizeof(uint32_t)], sizeof(uint32_t))
            memcpy(&lsn, &lsns[n * sizeof(uint64_t)], sizeof(uint64_t))
            if plugin != ANY and is_open(plugin, message, size, message + size, following_size):
                lsn = 0
            at[0] = c"d"
            put_u32(at + 1, LENGTH_BYTES + size)
            at[5] = c"w"
            put_u64(at + 6, lsn)
            put_u64(at + 14, lsn)
            put_u64(at + 22, <uint64_t>send_time)
            if size:
                memcpy(at + FRAME_HEAD_BYTES, message, size)
            at += FRAME_HEAD_BYTES + size
            message += size
            size = following_size
    return frames
