"""Decompression of pglz and LZ4 blocks: every form an item can take, and every way it can be
wrong.
"""

from __future__ import annotations

import random

import pytest

from spillway._kernels.pg.compress import decompress_lz4, decompress_pglz


@pytest.mark.parametrize(
    ("source", "raw"),
    [
        (b"", b""),
        (b"\x00abc", b"abc"),
        (b"\x08abc\x03\x03", b"abcabcabc"[:9]),  # a match of 6 that overlaps itself
        (b"\x02a\x0f\x01\xff", b"a" * 274),  # the longest match: 18 + 255
        (b"\x04ab\x01\x02", b"ababab"),
        (b"\x00abcdefgh\x01\x01\x08", b"abcdefghabcd"),  # a second control byte
    ],
)
def test_pglz(source, raw):
    assert decompress_pglz(source, len(raw)) == raw


def test_pglz_last_match_is_cut_by_the_end():
    assert decompress_pglz(b"\x02a\x0f\x01\xff", 100) == b"a" * 100


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (b"", 1),
        (b"\x00abc", 4),  # too few
        (b"\x00abc", 2),  # too many
        (b"\x01\x00\x01", 3),  # reaches before the output
        (b"\x02a\x00\x02", 4),
        (b"\x02a\x00\x00", 4),  # offset 0
        (b"\x02a\x00", 4),  # cut inside a match
        (b"\x02a\x0f\x01", 19),  # cut before the long length
    ],
)
def test_pglz_malformed(source, size):
    with pytest.raises(ValueError, match="pglz"):
        decompress_pglz(source, size)


@pytest.mark.parametrize(
    ("source", "raw"),
    [
        (b"\x00", b""),
        (b"\x30abc", b"abc"),
        (b"\xf0\x00" + b"x" * 15, b"x" * 15),
        (b"\xf0\xff\x00" + b"y" * 270, b"y" * 270),
        (b"\x10a\x01\x00\x50bcdef", b"aaaaabcdef"),
        (b"\x1fa\x01\x00\x05\x00", b"a" * 25),
        (b"\x24ab\x02\x00\x10c", b"ababababab" + b"c"),
    ],
)
def test_lz4(source, raw):
    assert decompress_lz4(source, len(raw)) == raw


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (b"", 0),
        (b"\x30ab", 3),  # literals cut
        (b"\x30abc", 2),  # no room
        (b"\x30abc", 4),  # too few
        (b"\xf0", 15),
        (b"\xf0\xff", 15),  # length cut
        (b"\x10a\x01", 5),  # offset cut
        (b"\x10a\x00\x00\x00", 5),  # offset 0
        (b"\x10a\x02\x00\x00", 5),  # before the output
        (b"\x1fa\x01\x00\xff", 300),  # match length cut
        (b"\x10a\x01\x00\x00", 4),  # match has no room
        (b"\x10a\x01\x00", 5),  # ends with a match
    ],
)
def test_lz4_malformed(source, size):
    with pytest.raises(ValueError, match="LZ4"):
        decompress_lz4(source, size)


@pytest.mark.parametrize("decompress", [decompress_pglz, decompress_lz4])
def test_noise_never_escapes(decompress):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(5000):
        source = bytes(rng.choices(range(256), k=rng.randrange(60)))
        try:
            size = rng.randrange(300)
            assert len(decompress(source, size)) == size
        except ValueError:
            pass


def test_negative_size():
    with pytest.raises(ValueError, match="negative"):
        decompress_pglz(b"", -1)
