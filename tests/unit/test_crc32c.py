"""CRC-32C against the values of RFC 3720, and the two implementations against each other."""

from __future__ import annotations

import random

import pytest

from spillway._kernels.pg import crc32c as kernel
from spillway._kernels.pg.crc32c import checksum_by_table, crc32c


@pytest.mark.parametrize("checksum", [crc32c, checksum_by_table])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_values(checksum, data, expected):
    assert checksum(data) == expected


def test_implementations_agree_at_every_length_and_alignment():
    data = random.Random(1).randbytes(300)
    for offset in range(8):
        for end in range(offset, 300, 7):
            piece = memoryview(data)[offset:end]
            assert crc32c(piece) == checksum_by_table(piece)


@pytest.mark.parametrize("near", [3 * 128, 2 * 3 * 128, 3 * 2048, 3 * 2048 + 3 * 128, 3 * 3 * 2048])
def test_implementations_agree_where_stretches_begin_and_end(near):
    data = random.Random(3).randbytes(near + 64)
    for size in range(near - 17, near + 18):
        for offset in (0, 1, 7):
            piece = memoryview(data)[offset : offset + size]
            for crc in (0, 1, 0xFFFFFFFF, 0xDEADBEEF):
                assert crc32c(piece, crc) == checksum_by_table(piece, crc)


def test_going_on_from_a_sum():
    data = random.Random(2).randbytes(1000)
    for cut in (0, 1, 8, 500, 999, 1000):
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_implementation_is_named():
    assert kernel.IMPLEMENTATION in {"sse4.2", "table"}
    assert crc32c.__name__ == "crc32c"
