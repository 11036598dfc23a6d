"""Sets of a data file's rows, by position: which are gone.

In memory they are roaring bitmaps. As bytes they are what Delta and Iceberg both have in their
deletion vectors: a magic number, and in the portable form a roaring bitmap for each 2^32 positions.
A data file of ours has fewer rows than that, so there is one. Both put it into a file in the same
frame::

    its length, 4 bytes, big endian · the set · its CRC-32, 4 bytes, big endian

Memory: a set of n positions takes two bytes a position at the most, and an eighth of a byte for
each row of the data file.

Source: the Delta protocol, "Deletion Vector Format"; Iceberg's Puffin specification,
"deletion-vector-v1".
"""

from __future__ import annotations

import zlib
from array import array
from struct import Struct, error
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

#: No row is gone.
NONE: Final = BitMap()
Positions = npt.NDArray[np.uint32]

_MAGIC: Final = Struct("<I")
_MAGIC_NUMBER: Final = 1681511377
#: of an array: how many bitmaps there are; and of the only one: its upper 32 bits
_ONE_BITMAP: Final = Struct("<QI")
_LENGTH: Final = Struct(">I")
#: What a frame has beside its set.
FRAME_BYTES: Final = 2 * _LENGTH.size


def positions(values: npt.NDArray[Any]) -> BitMap:
    """Return a bitmap of row positions."""
    return BitMap(array("I", np.ascontiguousarray(values, dtype=np.uint32).tobytes()))


def as_array(bitmap: BitMap) -> Positions:
    """Return a bitmap's positions in order, as unsigned numbers of 32 bits."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32)


def encode(bitmap: BitMap) -> bytes:
    """Return a bitmap's bytes as deletion vectors have them."""
    return _MAGIC.pack(_MAGIC_NUMBER) + _ONE_BITMAP.pack(1, 0) + bytes(bitmap.serialize())


def decode(data: bytes) -> BitMap:
    """Return the bitmap of *data*; what follows it is passed over.

    Raises:
        ValueError: it is none, or has positions beyond 2^32.
    """
    try:
        (magic,) = _MAGIC.unpack_from(data)
        if magic != _MAGIC_NUMBER:
            raise ValueError(f"the bytes begin with {magic}")
        bitmap = BitMap64.deserialize(data[_MAGIC.size :])
    except (error, IndexError, MemoryError) as damage:
        raise ValueError(str(damage)) from damage
    if bitmap and bitmap.max() >= 1 << 32:
        raise ValueError("it has positions beyond 2^32")
    return BitMap(array("I", np.array(bitmap.to_array(), dtype=np.uint32).tobytes()))


def framed(data: bytes) -> bytes:
    """Return an encoded set in its frame."""
    return _LENGTH.pack(len(data)) + data + _LENGTH.pack(zlib.crc32(data))


def unframed(stored: bytes, size: int) -> bytes:
    """Return the encoded set, of *size* bytes, that is in a frame.

    Raises:
        ValueError: it isn't whole.
    """
    data = stored[_LENGTH.size : _LENGTH.size + size]
    try:
        if _LENGTH.unpack_from(stored) != (size,):
            raise ValueError("another length is stored than is said of it")
        if _LENGTH.unpack_from(stored, _LENGTH.size + size) != (zlib.crc32(data),):
            raise ValueError("its checksum is wrong")
    except error as damage:
        raise ValueError(str(damage)) from damage
    return data
