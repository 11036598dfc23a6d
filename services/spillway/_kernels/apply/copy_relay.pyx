# cython: language_level=3, boundscheck=False, wraparound=False
"""COPY data from one connection of libpq's into another, without anything per row in Python.

The source's server sends a message a row. libpq gives them out one by one; they are gathered to
chunks, since each message that is put costs a head on the wire and a look by the target's server,
and rows need not be whole in one.

libpq is called by addresses that the caller looked up: it is the one that made the connections.
TLS and authentication stay libpq's, so nothing is read beside it.

The target's connection does not block: whoever waits in PQputCopyData for a server that takes
nothing, as long as a lock or a trigger has it wait, hears of nobody who wants to stop. libpq keeps
what it could not send, without a bound of its own; so nothing more is read from the source until
that is gone, and at most a chunk and a row wait.

Source: PQgetCopyData, PQputCopyData, PQflush (src/interfaces/libpq/fe-exec.c)
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long nfds, int timeout)
    int POLLIN
    int POLLOUT

cdef extern from *:
    """
    typedef int (*spillway_get_copy_data)(void *connection, char **buffer, int is_async);
    typedef int (*spillway_put_copy_data)(void *connection, const char *buffer, int size);
    typedef int (*spillway_flush)(void *connection);
    typedef int (*spillway_consume_input)(void *connection);
    typedef int (*spillway_socket)(const void *connection);
    typedef void (*spillway_free)(void *buffer);
    """
    ctypedef int (*spillway_get_copy_data)(void *, char **, int) noexcept nogil
    ctypedef int (*spillway_put_copy_data)(void *, const char *, int) noexcept nogil
    ctypedef int (*spillway_flush)(void *) noexcept nogil
    ctypedef int (*spillway_consume_input)(void *) noexcept nogil
    ctypedef int (*spillway_socket)(const void *) noexcept nogil
    ctypedef void (*spillway_free)(void *) noexcept nogil

cdef enum:
    CHUNK_BYTES = 128 * 1024

# What a piece ended with; copy_relay.pyi says what they mean.
GOES_ON = 0
SOURCE_ENDED = 1
SOURCE_FAILED = 2
TARGET_FAILED = 3

cdef enum:
    _GOES_ON = 0
    _SOURCE_ENDED = 1
    _SOURCE_FAILED = 2
    _TARGET_FAILED = 3


cdef class CopyRelay:
    """One COPY of each of two connections, which must outlive this.

    Args:
        source: its PGconn's address, in COPY OUT.
        target: its PGconn's address, in COPY IN, not blocking.
        functions: the addresses of PQgetCopyData, PQputCopyData, PQflush, PQconsumeInput, PQsocket
            and PQfreemem.
    """

    cdef void *_source
    cdef void *_target
    cdef spillway_get_copy_data _get
    cdef spillway_put_copy_data _put
    cdef spillway_flush _send
    cdef spillway_consume_input _consume
    cdef spillway_socket _socket
    cdef spillway_free _free
    cdef char *_chunk
    cdef Py_ssize_t _filled
    # libpq keeps what the target did not take yet
    cdef bint _has_unsent
    cdef readonly long long size
    cdef readonly long long messages

    def __cinit__(self):
        self._chunk = <char *> malloc(CHUNK_BYTES)
        if self._chunk is NULL:
            raise MemoryError

    def __init__(self, uintptr_t source, uintptr_t target, tuple functions not None):
        cdef uintptr_t get, put, send, consume, socket, release
        get, put, send, consume, socket, release = functions
        self._source = <void *> source
        self._target = <void *> target
        self._get = <spillway_get_copy_data> get
        self._put = <spillway_put_copy_data> put
        self._send = <spillway_flush> send
        self._consume = <spillway_consume_input> consume
        self._socket = <spillway_socket> socket
        self._free = <spillway_free> release

    def __dealloc__(self):
        free(self._chunk)

    def run(self, Py_ssize_t size, int wait_ms):
        """Pass on about *size* bytes, or what comes until nothing comes, or nothing is taken, for
        *wait_ms*.
        """
        cdef int ended
        with nogil:
            ended = self._run(size, wait_ms)
        return ended

    cdef int _run(self, Py_ssize_t size, int wait_ms) noexcept nogil:
        cdef char *message = NULL
        cdef int got
        cdef Py_ssize_t passed = 0
        cdef pollfd waiting
        while passed < size:
            if self._has_unsent:
                waiting.fd = self._socket(self._target)
                # What it says while it takes data is an error, which is the caller's to read.
                waiting.events = POLLIN | POLLOUT
                waiting.revents = 0
                got = poll(&waiting, 1, wait_ms)
                if got == 0 or (got < 0 and errno == EINTR):
                    return _GOES_ON
                if got < 0 or not self._send_unsent():
                    return _TARGET_FAILED
                if waiting.revents & POLLIN:
                    return _GOES_ON
                continue
            got = self._get(self._source, &message, 1)
            if got > 0:
                passed += got
                self.messages += 1
                if not self._take(message, got):
                    self._free(message)
                    return _TARGET_FAILED
                self._free(message)
                continue
            if got == -1:
                return _SOURCE_ENDED if self._flush() else _TARGET_FAILED
            if got < 0:
                return _SOURCE_FAILED
            waiting.fd = self._socket(self._source)
            waiting.events = POLLIN
            waiting.revents = 0
            got = poll(&waiting, 1, wait_ms)
            if got == 0 or (got < 0 and errno == EINTR):
                # Signals are Python's, which must get to run.
                return _GOES_ON if self._flush() else _TARGET_FAILED
            if got < 0 or not self._consume(self._source):
                return _SOURCE_FAILED
        return _GOES_ON

    cdef bint _take(self, const char *message, Py_ssize_t size) noexcept nogil:
        self.size += size
        if self._filled + size > CHUNK_BYTES and not self._flush():
            return False
        if size > CHUNK_BYTES:
            return self._pass_on(message, size)
        memcpy(self._chunk + self._filled, message, size)
        self._filled += size
        return True

    cdef bint _flush(self) noexcept nogil:
        cdef Py_ssize_t filled = self._filled
        self._filled = 0
        return filled == 0 or self._pass_on(self._chunk, filled)

    cdef bint _pass_on(self, const char *data, Py_ssize_t size) noexcept nogil:
        return self._put(self._target, data, <int> size) == 1 and self._send_unsent()

    cdef bint _send_unsent(self) noexcept nogil:
        cdef int left = self._send(self._target)
        self._has_unsent = left > 0
        return left >= 0
