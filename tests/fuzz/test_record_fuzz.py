"""Damage inside records whose checksum is right: what a bug in a server, or bad memory, would make.

Records of the golden WAL of every major, so that each version's layouts are met; the walker parses
them, the page images are decompressed, and either works or raises a WalError with the LSN.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
import zstandard

from harness.damage import damage, damage_record, lay_out, raw_records, rounds, seeded
from harness.golden import golden_wal
from harness.tiers import majors_by_tier
from harness.wal_writer import WalWriter
from spillway._kernels.wal import record_batch
from spillway._kernels.wal.walker import Walker
from spillway.errors import WalError
from spillway.wal.images import IMAGE_LZ4, IMAGE_PLAIN, IMAGE_ZSTD, restore_image

SEGMENT = 1 << 24


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_damaged_records(major: int) -> None:
    rng = seeded()
    golden = golden_wal(major)
    records = [
        record
        for _, record in raw_records(
            golden.version, golden.data, golden.start_lsn, golden.segment_size
        )
        if len(record) < 40_000
    ]
    parsed = refused = 0
    for _ in rounds(2):
        writer = WalWriter(golden.version, SEGMENT, SEGMENT)
        damaged_at = rng.randrange(20)
        for i in range(20):
            record = rng.choice(records)
            lay_out(writer, damage_record(record, rng) if i == damaged_at else record)
        walker = Walker(golden.version, SEGMENT, SEGMENT, end_is_error=False)
        walker.feed(SEGMENT, bytes(writer.data))
        try:
            while (batch := walker.next_batch()) is not None:
                for found in batch:
                    assert found.lsn >= SEGMENT
                    parsed += 1
        except WalError as error:
            refused += 1
            where = str(error.details["lsn"])
            if re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", where) is None:
                pytest.fail(f"no place: {error!r}")
    assert parsed
    assert refused


def test_damaged_page_images() -> None:
    """pglz, lz4 and zstd content that lies: a ValueError, or a page of the right size."""
    rng = seeded()
    images = _images()
    assert {method for method, *_ in images} == {0, 1, 2, 3}
    restored = refused = 0
    for _ in rounds(4):
        method, stored, hole_offset, hole_length = rng.choice(images)
        stored = damage(stored, rng)
        if rng.random() < 0.1:
            hole_offset, hole_length = rng.randrange(8192), rng.randrange(8192)
        try:
            page = restore_image(
                stored,
                rng.choice((method, method, method, rng.randrange(5))),
                hole_offset,
                hole_length,
            )
        except ValueError:
            refused += 1
        else:
            restored += 1
            assert len(page) == 8192
    assert restored
    assert refused


def _images() -> list[tuple[int, bytes, int, int]]:
    """Images as the servers stored them: method, bytes, place and size of the hole.

    The servers of the golden WAL have pglz only: of lz4 and zstd are what these libraries make of
    the same pages.
    """
    found: dict[int, list[tuple[int, bytes, int, int]]] = {}

    def keep(stored: bytes, method: int, hole_offset: int, hole_length: int) -> bytes:
        kept = found.setdefault(method, [])
        if len(kept) < 50:
            kept.append((method, bytes(stored), hole_offset, hole_length))
        return restore_image(stored, method, hole_offset, hole_length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batch, "restore_image", keep)
        for major in (14, 15, 18):
            golden = golden_wal(major)
            walker = Walker(
                golden.version, golden.start_lsn, golden.segment_size, end_is_error=False
            )
            walker.feed(golden.start_lsn, golden.data)
            while (batch := walker.next_batch()) is not None:
                for record in batch:
                    _ = record.blocks
    for stored, hole_offset, hole_length in [image[1:] for image in found[IMAGE_PLAIN]]:
        lz4 = pa.compress(stored, codec="lz4_raw", asbytes=True)
        zstd = zstandard.ZstdCompressor().compress(stored)
        found.setdefault(IMAGE_LZ4, []).append((IMAGE_LZ4, lz4, hole_offset, hole_length))
        found.setdefault(IMAGE_ZSTD, []).append((IMAGE_ZSTD, zstd, hole_offset, hole_length))
    images = [image for kept in found.values() for image in kept]
    for method, stored, hole_offset, hole_length in images:
        assert len(restore_image(stored, method, hole_offset, hole_length)) == 8192
    return images
