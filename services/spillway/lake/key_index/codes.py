"""Keys as numbers: what :mod:`spillway.lake.key_index.index` keeps of a row's key.

A key of one column that fits 64 bits (integers, dates, timestamps, booleans) is its own code, and
codes are in the order of keys then: rows that are inserted together lie together in the index. Any
other key is hashed to 128 bits, by functions that a secret of the index chooses. Two keys of a
table of 10^9 rows share a code by chance in one of 10^20 tables, and nobody who doesn't know the
secret can make keys that do. So codes are compared, and keys are not read from the table again.

Texts are hashed by SipHash-2-4 (pandas'), twice, numbers by a mixing function of 64 bits, twice;
the columns' hashes, each with secrets of its own, are added.

All of it is done for columns at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Numbers = npt.NDArray[np.uint64]

_SIGN: Final = np.uint64(1 << 63)
#: Stafford's thirteenth variant of MurmurHash3's finaliser (SplitMix64's)
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes of keys, in their order."""

    high: Numbers
    #: None: the upper half is all, and exact
    low: Numbers | None

    def __len__(self) -> int:
        return len(self.high)

    def take(self, at: npt.NDArray[Any]) -> Codes:
        return Codes(self.high[at], None if self.low is None else self.low[at])


class KeyCodes:
    """Makes codes of a table's keys."""

    def __init__(self, types: Sequence[pa.DataType], secret: str) -> None:
        """Prepare for keys of columns of *types*; the same *secret* gives the same codes."""
        self._types = tuple(types)
        self.exact = len(self._types) == 1 and _is_number(self._types[0])
        self._secrets = [
            [hashlib.sha256(f"{secret} {column} {half}".encode()).hexdigest() for half in range(2)]
            for column in range(len(self._types))
        ]

    def codes(self, keys: pa.Table | pa.RecordBatch) -> Codes:
        """Return the codes of *keys*, none of which is null; columns in the order of the types.

        Raises:
            pyarrow.ArrowInvalid: a value is none of its type.
        """
        columns = [_plain(keys.column(n), type_) for n, type_ in enumerate(self._types)]
        if self.exact:
            return Codes(_numbers(columns[0]) ^ _SIGN, None)
        halves = []
        for half in range(2):
            total = np.zeros(len(keys), dtype=np.uint64)
            for column, type_, secrets in zip(columns, self._types, self._secrets, strict=True):
                total += _hashed(column, type_, secrets[half])
            halves.append(total)
        return Codes(halves[0], halves[1])


def _plain(column: Any, type_: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array if array.type == type_ else array.cast(type_)


def _is_number(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(type_)
        or types.is_boolean(type_)
        or types.is_date32(type_)
        or types.is_timestamp(type_)
    )


def _numbers(array: pa.Array) -> Numbers:
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    numbers = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).view(np.uint64)


def _hashed(array: pa.Array, type_: pa.DataType, secret: str) -> Numbers:
    if _is_number(type_):
        numbers = _numbers(array)
        for part in (secret[:16], secret[16:32]):
            numbers = _mixed(numbers ^ np.uint64(int(part, 16)))
        return numbers
    if pa.types.is_decimal(type_):
        array = array.cast(pa.string())
    values = array.to_numpy(zero_copy_only=False)
    # Sixteen letters of the secret are SipHash's key.
    hashed = pd.util.hash_array(values.astype(object), hash_key=secret[:16], categorize=False)
    return _mixed(hashed ^ np.uint64(int(secret[16:32], 16)))


def _mixed(numbers: Numbers) -> Numbers:
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers
