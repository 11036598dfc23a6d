"""The walker on WAL that no server writes: every kind of damage, and what is rare."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.wal_writer import CONTRECORD, OVERWRITE, PAGE_SIZE, WalWriter, main_data, record_bytes
from spillway._kernels.wal.record_batch import RecordBatch
from spillway._kernels.wal.walker import Walker
from spillway.errors import CorruptWal, UnsupportedWal, WalError
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

START = 3 << 20
V15, V14 = WAL_VERSIONS[15], WAL_VERSIONS[14]
IMAGE = bytes(range(256)) * 32


@pytest.fixture
def wal() -> WalWriter:
    return WalWriter(V15, START)


def next_batch(walker: Walker, max_records: int = 4096) -> RecordBatch:
    """Return the next batch, which must be there."""
    batch = walker.next_batch(max_records)
    assert batch is not None
    return batch


def walk(wal: WalWriter, **options):
    walker = Walker(wal.version, wal.start_lsn, wal.segment_size, **options)
    walker.feed(wal.start_lsn, bytes(wal.data))
    records = []
    while (batch := walker.next_batch()) is not None:
        records += list(batch)
    return walker, records


def error_of(
    wal: WalWriter, kind: type[WalError] = CorruptWal, good: int = 1, **options
) -> WalError:
    """Walk to the error; *good* records come before it, and it is raised again by every later
    call.
    """
    walker = Walker(wal.version, wal.start_lsn, wal.segment_size, **options)
    walker.feed(wal.start_lsn, bytes(wal.data))
    if good:
        assert len(next_batch(walker)) == good
    with pytest.raises(kind) as first:
        walker.next_batch()
    with pytest.raises(kind) as again:
        walker.next_batch()
    assert str(first.value) == str(again.value)
    assert type(first.value) is kind
    return first.value


def block(
    block_id: int, flags: int = 0, data: int = 0, *, more: bytes = b"", same: bool = False
) -> bytes:
    locator = b"" if same else struct.pack("<III", 1663, 5, 16384)
    return struct.pack("<BBH", block_id, flags, data) + more + locator + struct.pack("<I", 9)


def test_a_record(wal):
    lsn = wal.append(main_data(b"abc"), xid=77, info=0xA3, rmid=11)
    walker, (record,) = walk(wal)
    assert (record.lsn, record.end_lsn) == (lsn, wal.lsn)
    assert (record.xid, record.rmid, record.info, record.data) == (77, 11, 0xA0, b"abc")
    assert record.blocks == ()
    assert (walker.position, walker.fed_lsn, walker.timeline) == (wal.lsn, wal.lsn, 1)


def test_header_fragments(wal):
    body = (
        block(0, 0x20, 3) + block(2, 0x20 | 0x40 | 0x80, 2, same=True)
        + b"\xfd" + struct.pack("<H", 513) + b"\xfc" + struct.pack("<I", 4711) + b"\xff\x01"
        + b"xyzvwm"
    )  # fmt: skip
    wal.append(body)
    _, (record,) = walk(wal)
    first, second = record.blocks
    assert (record.origin, record.top_xid, record.data) == (513, 4711, b"m")
    assert (first.id, first.data, first.will_init, first.locator) == (
        0,
        b"xyz",
        False,
        (1663, 5, 16384),
    )
    assert (second.id, second.data, second.will_init, second.locator) == (
        2,
        b"vw",
        True,
        (1663, 5, 16384),
    )
    assert (second.block, second.fork, second.image) == (9, 0, None)


@pytest.mark.parametrize(
    ("version", "apply"), [(V14, 0x04), (V15, 0x02)], ids=["flags of 14", "flags of 15"]
)
@pytest.mark.parametrize("hole", [0, 100])
def test_plain_image(version, apply, hole):
    wal = WalWriter(version, START)
    stored = IMAGE[: 8192 - hole]
    header = struct.pack("<HHB", len(stored), 40 if hole else 0, apply | (1 if hole else 0))
    wal.append(block(0, 0x10, more=header) + stored)
    _, (record,) = walk(wal)
    image = record.blocks[0].image
    assert record.blocks[0].apply_image
    assert image == (stored[:40] + bytes(hole) + stored[40:] if hole else IMAGE)


def test_compressed_images(wal):
    import zstandard

    # LZ4: one literal run of 4, then a match of the rest with offset 4.
    rest = 8192 - 4 - 5
    lz4 = (
        b"\x4f"
        b"abcd"
        b"\x04\x00" + b"\xff" * ((rest - 19) // 255) + bytes([(rest - 19) % 255]) + b"\x50bcdab"
    )
    zstd = zstandard.compress(b"abcd" * 2000)
    wal.append(block(0, 0x10, more=struct.pack("<HHB", len(lz4), 0, 0x02 | 0x08)) + lz4)
    wal.append(block(0, 0x10, more=struct.pack("<HHBH", len(zstd), 30, 0x02 | 0x11, 192)) + zstd)
    wal.append(block(0, 0x10, more=struct.pack("<HHB", len(zstd), 0, 0x02 | 0x10)) + zstd)
    wal.append(block(0, 0x10, more=struct.pack("<HHB", 9, 0, 0x02 | 0x04)) + bytes(9))
    walker = Walker(wal.version, START, wal.segment_size)
    walker.feed(START, bytes(wal.data))
    batch = next_batch(walker)
    whole, page = batch.record(0).blocks[0].image, batch.record(1).blocks[0].image
    assert whole is not None
    assert len(whole) == 8192
    assert page == (b"abcd" * 8)[:30] + bytes(192) + (b"abcd" * 2001)[30:8000]
    for bad in (2, 3):
        with pytest.raises(CorruptWal) as error:
            batch.record(bad)
        assert error.value.details["lsn"] == f"0/{batch.header(bad)[0]:X}"


def test_records_over_pages_and_segments_are_assembled(wal):
    sizes = [10, 8_100, 8_192, 30, 40_000, 3_000_000, 5, 8_136]
    starts = [wal.append(main_data(bytes([i]) * size)) for i, size in enumerate(sizes)]
    _, records = walk(wal)
    assert [r.lsn for r in records] == starts
    assert [r.data for r in records] == [bytes([i]) * size for i, size in enumerate(sizes)]
    # Byte by byte it is the same, and each record comes with its last byte.
    walker = Walker(wal.version, START, wal.segment_size)
    found = []
    for i in range(70_000):
        walker.feed(START + i, wal.data[i : i + 1])
        if (batch := walker.next_batch()) is not None:
            found += list(batch)
            assert found[-1].end_lsn - 7 <= START + i + 1 <= found[-1].end_lsn
    assert found == records[: len(found)]
    assert len(found) == 5


def test_record_header_over_a_page_boundary(wal):
    # 40 bytes of header, a record that leaves 8 bytes of the page: only xl_tot_len and xl_xid fit.
    wal.append(main_data(b"x" * (PAGE_SIZE - 40 - 8 - 24 - 5)))
    assert wal.lsn % PAGE_SIZE == PAGE_SIZE - 8
    wal.append(main_data(b"split"))
    wal.append(main_data(b"after"))
    assert [r.data[:5] for r in walk(wal)[1]] == [b"xxxxx", b"split", b"after"]


def test_record_that_ends_with_its_page_ends_at_the_boundary(wal):
    wal.append(main_data(b"x" * (PAGE_SIZE - 40 - 24 - 5)))
    lsn = wal.append(main_data(b"next"))
    assert walk(wal)[1][0].end_lsn == START + PAGE_SIZE
    assert lsn == START + PAGE_SIZE + 24


def test_switch_goes_to_the_next_segment(wal):
    wal.append(b"", rmid=0, info=0x40)
    wal.data += b"\xee" * (wal.segment_size - len(wal.data))
    lsn = wal.append(main_data(b"next"))
    _, (switch, following) = walk(wal)
    assert (switch.end_lsn, following.lsn) == (START + wal.segment_size, lsn)


def test_overwritten_contrecord(wal):
    wal.append(main_data(b"before"))
    lost = wal.lsn
    wal.data += record_bytes(main_data(b"lost" * 5000), prev=wal.prev_lsn)[
        : PAGE_SIZE - len(wal.data)
    ]
    wal.page_header(flags=OVERWRITE)
    wal.append(main_data(struct.pack("<Qq", lost, 0)), rmid=0, info=0xD0)
    walker, (_, overwrite) = walk(wal)
    assert overwrite.info == 0xD0
    assert walker.overwritten_lsn == lost
    # Reading that begins with such a page finds the same record.
    later = Walker(V15, START + PAGE_SIZE, wal.segment_size)
    later.feed(START + PAGE_SIZE, bytes(wal.data[PAGE_SIZE:]))
    assert next_batch(later).record(0) == overwrite


def test_more_bytes_needed_is_no_error(wal):
    wal.append(main_data(b"x" * 20_000))
    data = bytes(wal.data)
    walker = Walker(V15, START, wal.segment_size)
    assert walker.next_batch() is None
    for i in range(0, len(data) - 8, 1000):
        walker.feed(START + i, data[i : i + 1000][: len(data) - 8 - i])
        assert walker.next_batch() is None
    walker.feed(walker.fed_lsn, data[-8:])
    assert len(next_batch(walker)) == 1


def test_feeding_overlaps_and_gaps(wal):
    wal.append(main_data(b"abc"))
    data = bytes(wal.data)
    walker = Walker(V15, START, wal.segment_size)
    with pytest.raises(ValueError, match="is missing"):
        walker.feed(START + 8, data)
    walker.feed(START - 1000, bytes(1000) + data[:50])
    walker.feed(START, data[:40])
    walker.feed(START, bytearray(data))
    walker.feed(START, data)
    assert len(next_batch(walker)) == 1
    assert walker.next_batch() is None


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"rem_len": 17}, "page says that 17 bytes"),
        ({"flags": 0}, "does not go on"),
        ({"flags": 0x11}, "flags"),
        ({"address": START}, "recycled"),
        ({"timeline": 0}, "timeline 0 comes after timeline 1"),
        ({"flags": 3}, "inside a segment"),
    ],
)
def test_bad_page_header(wal, damage, text):
    wal.append(main_data(b"good"))
    record = record_bytes(main_data(b"x" * 20_000), prev=wal.prev_lsn)
    room = PAGE_SIZE - len(wal.data)
    wal.data += record[:room]
    page = wal.lsn
    wal.page_header(**{"flags": CONTRECORD, "rem_len": len(record) - room, **damage})
    wal.data += bytes(5000)
    error = error_of(wal)
    assert text in str(error)
    assert error.details["lsn"] == f"0/{page:X}"


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        ({"magic": 0xD118}, UnsupportedWal, "PostgreSQL 18"),
        ({"magic": 0xD1F0}, UnsupportedWal, "D1F0"),
        ({"magic": 0x1234}, CorruptWal, "1234"),
        ({"system_id": 8}, CorruptWal, "database system 8, not 7"),
        ({"segment_size": 1 << 24}, CorruptWal, "segment size is 16777216"),
        ({"block_size": 4096}, UnsupportedWal, "4096"),
        ({"flags": 0}, CorruptWal, "no long header"),
    ],
)
def test_bad_segment_header(wal, damage, kind, text):
    wal.page_header(**damage)
    wal.data += bytes(100)
    assert text in str(error_of(wal, kind, good=0, system_id=7))


def test_page_that_goes_on_with_nothing(wal):
    wal.append(main_data(b"good"))
    wal.raw(record_bytes(main_data(b"x" * (PAGE_SIZE - len(wal.data) - 24 - 5)), prev=wal.prev_lsn))
    wal.page_header(flags=CONTRECORD, rem_len=500)
    wal.data += bytes(1000)
    assert "did not begin" in str(error_of(wal, good=2))


@pytest.mark.parametrize("length", [1, 23, (1 << 30) - 1, 0xFFFFFFFF])
def test_bad_record_length(wal, length):
    wal.append(main_data(b"good"))
    lsn = wal.lsn
    wal.data += record_bytes(b"", prev=wal.prev_lsn, total_len=length) + bytes(64)
    if length == (1 << 30) - 1:  # legal in 15: believed only as far as bytes come
        wal.fill_page()
        wal.page_header()
        assert "does not go on" in str(error_of(wal))
        return
    error = error_of(wal)
    assert "record length" in str(error)
    assert error.details["lsn"] == f"0/{lsn:X}"


def test_wrong_back_link(wal):
    wal.append(main_data(b"good"))
    wal.append(main_data(b"bad"), prev=8)
    assert "the record says that the one before it is at 0/8, but it is at 0/300028" in str(
        error_of(wal)
    )
    # The first record's link has nothing to agree with but its own position.
    first = WalWriter(V15, START)
    first.append(main_data(b"bad"), prev=START + 40)
    assert "one before it" in str(error_of(first, good=0))


def test_wrong_checksum(wal):
    wal.append(main_data(b"good"))
    wal.append(main_data(b"bad"))
    wal.data[-8] ^= 1
    assert "checksum" in str(error_of(wal))


def image(length: int, hole_offset: int, info: int, *more: int) -> Callable[[], bytes]:
    return lambda: block(0, 0x10, more=struct.pack("<HHB", length, hole_offset,
                                                   info) + struct.pack("<H", *more) if more
                         else struct.pack("<HHB", length, hole_offset,
                                          info)) + bytes(length)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda: block(1) + block(1, same=True), CorruptWal, "block id 1 comes after 1"),
        (lambda: block(0, 0x20, 0), CorruptWal, "contradicts data length 0"),
        (lambda: block(0, 0x00, 3) + b"abc", CorruptWal, "contradicts data length 3"),
        (lambda: block(0, 0x80, same=True), CorruptWal, "no block comes before"),
        (image(8191, 0, 0x00), CorruptWal, "hole"),
        (image(8000, 0, 0x01), CorruptWal, "hole"),
        (image(0, 0, 0x00), CorruptWal, "image of 0 bytes"),
        (image(9000, 0, 0x00), CorruptWal, "image of 9000 bytes"),
        (image(8192, 5, 0x01), CorruptWal, "hole"),
        (image(500, 8000, 0x05, 500), CorruptWal, "hole"),
        (image(500, 10, 0x04), CorruptWal, "hole"),
        (image(8192, 0, 0x04), CorruptWal, "image of 8192 bytes"),
        (image(500, 0, 0x0C), UnsupportedWal, "image flags 0C"),
        (image(500, 0, 0x20), UnsupportedWal, "image flags 20"),
        (lambda: b"\xff", CorruptWal, "ends inside"),
        (lambda: b"\xfe\x01\x00", CorruptWal, "ends inside"),
        (lambda: b"\xfd\x01", CorruptWal, "ends inside"),
        (lambda: b"\xfc\x01\x01\x01", CorruptWal, "ends inside"),
        (lambda: b"\x00", CorruptWal, "ends inside"),
        (lambda: block(0)[:10], CorruptWal, "ends inside"),
        (lambda: block(0)[:17], CorruptWal, "ends inside"),
        (lambda: b"\xff\x05abc", CorruptWal, "announce 5 bytes"),
        (lambda: b"\xff\x02abc", CorruptWal, "announce 2 bytes"),
        (lambda: b"\xfe\xff\xff\xff\xffabc", CorruptWal, "announce 4294967295 bytes"),
        (lambda: block(0, 0x20, 9) + b"abc", CorruptWal, "announce 9 bytes"),
        (lambda: bytes([33]) + bytes(30), UnsupportedWal, "block id 33"),
        (lambda: bytes([251]) + bytes(30), UnsupportedWal, "block id 251"),
    ],
)
def test_record_that_contradicts_itself_under_a_right_checksum(wal, body, kind, text):
    wal.append(main_data(b"good"))
    lsn = wal.append(body())
    error = error_of(wal, kind)
    assert text in str(error)
    assert error.details["lsn"] == f"0/{lsn:X}"


@pytest.mark.parametrize(("version", "rmid"), [(V14, 22), (V14, 128), (V15, 22), (V15, 127)])
def test_unknown_resource_manager(version, rmid):
    wal = WalWriter(version, START)
    wal.append(main_data(b"good"))
    wal.append(main_data(b"?"), rmid=rmid)
    assert f"resource manager id {rmid}" in str(error_of(wal, UnsupportedWal))


def test_custom_resource_manager(wal):
    wal.append(main_data(b"?"), rmid=128)
    assert walk(wal)[1][0].rmid == 128


@pytest.mark.parametrize("what", ["zeros", "zero page", "recycled", "inside a record"])
def test_end_of_wal(wal, what):
    wal.append(main_data(b"good"))
    end = wal.lsn
    if what == "zeros":
        wal.data += bytes(100)
    elif what == "inside a record":
        wal.data += record_bytes(main_data(b"x" * 20_000), prev=wal.prev_lsn)[
            : PAGE_SIZE - len(wal.data)
        ]
        end = wal.lsn
        wal.data += bytes(PAGE_SIZE)
    else:
        wal.raw(
            record_bytes(main_data(b"x" * (PAGE_SIZE - len(wal.data) - 24 - 5)), prev=wal.prev_lsn)
        )
        end = wal.lsn
        if what == "recycled":
            wal.page_header(address=START + PAGE_SIZE - (1 << 20))
        wal.data += bytes(PAGE_SIZE)
    good = 1 if what in {"zeros", "inside a record"} else 2
    error_of(wal, good=good)
    walker, records = walk(wal, end_is_error=False)
    assert len(records) == good
    lsn, why = walker.end_of_wal
    assert lsn == end
    assert why
    walker.feed(walker.fed_lsn, b"more")
    assert walker.next_batch() is None


@pytest.mark.parametrize("lsn", [START + 8, START + 4, START + PAGE_SIZE + 16, START + 100])
def test_no_record_starts_there(lsn):
    with pytest.raises(CorruptWal):
        Walker(V15, lsn, 1 << 20)


@pytest.mark.parametrize("size", [0, 1 << 19, 3 << 20, 1 << 31])
def test_segment_sizes_that_no_cluster_has(size):
    with pytest.raises(ValueError, match="power of two"):
        Walker(V15, START, size)


def test_a_batch_outlives_walker_and_bytes(wal):
    wal.append(main_data(b"abc"))
    wal.append(main_data(b"x" * 50_000))
    walker = Walker(V15, START, wal.segment_size)
    walker.feed(START, bytes(wal.data))
    batch = next_batch(walker)
    del walker, wal
    assert [len(r.data) for r in batch] == [3, 50_000]
    with pytest.raises(IndexError):
        batch.record(2)
    with pytest.raises(IndexError):
        batch.header(-1)
    with pytest.raises(TypeError):
        RecordBatch()


def test_batches_are_bounded(wal):
    for i in range(10):
        wal.append(main_data(bytes([i])))
    walker = Walker(V15, START, wal.segment_size)
    walker.feed(START, bytes(wal.data))
    assert [len(next_batch(walker, 4)) for _ in range(3)] == [4, 4, 2]
    with pytest.raises(ValueError, match="at least 1"):
        walker.next_batch(0)
