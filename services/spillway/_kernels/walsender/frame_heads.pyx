# cython: language_level=3, boundscheck=False, wraparound=False
"""Where messages begin in a stream of PostgreSQL's protocol that comes in pieces of any size.

A message is a letter, an int32 that counts itself and what follows, and what follows. A relay
passes on almost all of them as they are, rows above all, and looks into few. So nothing is made of
a message that nobody watches for: :meth:`FrameHeads.walk` goes from head to head until it is at one
that is watched for or at the end of the piece, and remembers how much of a message is still to come
in the next piece.
"""

from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

cdef enum:
    HEAD_BYTES = 5
    # what a length counts beside the message's body
    LENGTH_BYTES = 4


cdef class FrameHeads:
    """One direction of one connection.

    Args:
        watched: letters to stop at.
        bytes_max: not at a message that is longer with its head, which is walked over as others.
    """

    cdef uint8_t _is_watched[256]
    cdef Py_ssize_t _bytes_max
    cdef Py_ssize_t _left

    def __init__(self, bytes watched not None, Py_ssize_t bytes_max=PY_SSIZE_T_MAX):
        cdef uint8_t letter
        self._bytes_max = bytes_max
        memset(self._is_watched, 0, sizeof(self._is_watched))
        for letter in watched:
            self._is_watched[letter] = 1
        self._left = 0

    @property
    def is_between(self):
        """Whether all that was walked over ends with a message's end."""
        return self._left == 0

    def walk(self, const uint8_t[::1] data not None, Py_ssize_t at):
        """Go on at *at*; return where a message begins that is watched for, and the bytes that it
        has with its head; or where the piece ends, or a head begins that it does not hold whole,
        and 0.

        A message that is stopped at has not been walked over: the caller goes on behind it.

        Raises:
            ValueError: there is a length that no message has.
        """
        cdef Py_ssize_t end = data.shape[0]
        cdef uint32_t length
        if self._left:
            if self._left > end - at:
                self._left -= end - at
                return end, 0
            at += self._left
            self._left = 0
        while end - at >= HEAD_BYTES:
            length = (
                <uint32_t>data[at + 1] << 24 | <uint32_t>data[at + 2] << 16
                | <uint32_t>data[at + 3] << 8 | data[at + 4]
            )
            if length < LENGTH_BYTES or length > 0x7FFFFFFF:
                raise ValueError(f"a message has the length {length}")
            if self._is_watched[data[at]] and <Py_ssize_t>length + 1 <= self._bytes_max:
                return at, <Py_ssize_t>length + 1
            if <Py_ssize_t>length + 1 > end - at:
                self._left = <Py_ssize_t>length + 1 - (end - at)
                return end, 0
            at += <Py_ssize_t>length + 1
        return at, 0
