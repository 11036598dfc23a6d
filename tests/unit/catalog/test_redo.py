"""Redo on a mirror made by hand: each record's effect, and that damaged ones raise typed errors."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest

from harness.catalog_pages import empty_mirror, locator, namespace_data, page
from spillway.catalog.layout import NAMESPACE_BY_OID, PG_CLASS, PG_NAMESPACE
from spillway.catalog.serialization import deserialize, serialize
from spillway.errors import CorruptWal, DecodingError, SpillwayError
from spillway.pg import rmgr
from spillway.wal.record import BlockRef, Record, RelFileLocator

if TYPE_CHECKING:
    from spillway.catalog.mirror import CatalogMirror

_WHERE = locator(PG_NAMESPACE)
_CLOCK = iter(range(2000, 1 << 40, 8))


def _record(
    rmid: int,
    info: int,
    xid: int = 0,
    main: bytes = b"",
    *blocks: BlockRef,
    lsn: int | None = None,
) -> Record:
    start = next(_CLOCK) if lsn is None else lsn
    return Record(start, start + 8, xid, rmid, info, main, tuple(blocks))


def _block(
    data: bytes = b"",
    *,
    block: int = 0,
    image: bytes | None = None,
    init: bool = False,
    ref: int = 0,
) -> BlockRef:
    return BlockRef(ref, _WHERE, 0, block, data, image, image is not None, init)


def _image(
    *tuples: tuple[int, int, int, int, bytes], block: int = 0, lsn: int | None = None
) -> Record:
    return _record(
        rmgr.RM_XLOG_ID, rmgr.XLOG_FPI, 0, b"", _block(image=page(tuples), block=block), lsn=lsn
    )


def _insert(xid: int, offset: int, oid: int, name: str, *, init: bool = False) -> Record:
    header = struct.pack("<HHB", 2, 0x0800, 24)
    return _record(
        rmgr.RM_HEAP_ID,
        rmgr.XLOG_HEAP_INSERT | (rmgr.XLOG_HEAP_INIT_PAGE if init else 0),
        xid,
        struct.pack("<HB", offset, 0),
        _block(header + namespace_data(oid, name), init=init),
    )


def _delete(xid: int, offset: int, infobits: int = 0, xmax: int | None = None) -> Record:
    main = struct.pack("<IHBB", xid if xmax is None else xmax, offset, infobits, 0)
    return _record(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_DELETE, xid, main, _block())


def _lock(xid: int, offset: int, infobits: int, xmax: int) -> Record:
    main = struct.pack("<IHBB", xmax, offset, infobits, 0)
    return _record(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_LOCK, xid, main, _block())


def _names(mirror: CatalogMirror, *own: int) -> list[str]:
    return sorted(row.nspname for row in mirror.visible_rows(frozenset(own)).whole(PG_NAMESPACE))


@pytest.fixture
def mirror() -> CatalogMirror:
    return empty_mirror()


def test_insert_is_seen_by_its_own_then_by_all(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    assert _names(mirror) == []
    assert _names(mirror, 800) == ["a"]
    mirror.commit([800], 3000)
    assert _names(mirror) == ["a"]


def test_abort_undoes_inserts_and_deletes(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    mirror.commit([800], 3000)
    mirror.apply(_insert(801, 2, 12, "b"))
    mirror.apply(_delete(801, 1))
    assert _names(mirror) == ["a"]
    assert _names(mirror, 801) == ["b"]
    mirror.abort([801], 3100)
    assert _names(mirror) == ["a"]
    assert _names(mirror, 801) == ["a"]


def test_update_with_prefix_and_suffix_of_the_old_tuple(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "aaaa", init=True))
    mirror.commit([800], 3000)
    # oid and "aa" are the old tuple's, then "XY", then the rest of the name.
    data = struct.pack("<HHHHB", 6, 60, 2, 0x0800, 24) + b"\0" + b"XY"
    main = struct.pack("<IHBBIH", 801, 1, 0, 1 << 5 | 1 << 6, 0, 2)
    mirror.apply(_record(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_HOT_UPDATE, 801, main, _block(data)))
    assert _names(mirror) == ["aaaa"]
    assert _names(mirror, 801) == ["aaXY"]
    mirror.commit([801], 3100)
    assert _names(mirror) == ["aaXY"]


def test_inplace(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    mirror.commit([800], 3000)
    data = struct.pack("<I64s", 11, b"changed")
    mirror.apply(
        _record(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INPLACE, 0, struct.pack("<H", 1), _block(data))
    )
    assert _names(mirror) == ["changed"]


def test_multi_insert(mirror: CatalogMirror) -> None:
    body = b""
    for i, name in enumerate(("a", "b", "c")):
        tuple_data = namespace_data(20 + i, name)
        body += bytes(len(body) & 1)
        body += struct.pack("<HHHB", len(tuple_data), 2, 0x0800, 24) + tuple_data
    main = struct.pack("<BxH3H", 0, 3, 5, 7, 9)
    mirror.apply(_record(rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_MULTI_INSERT, 800, main, _block(body)))
    assert _names(mirror, 800) == ["a", "b", "c"]
    storage = mirror.heaps.storage_at(_WHERE)
    assert storage is not None
    assert [t.ctid for t in storage.tuples()] == [(0, 5), (0, 7), (0, 9)]


def test_lockers_do_not_delete_and_updaters_in_multixacts_do(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    mirror.commit([800], 3000)
    mirror.apply(_lock(801, 1, 0x02 | 0x08, 801))
    mirror.commit([801], 3100)
    assert _names(mirror) == ["a"]
    members = struct.pack("<IIiIiIi", 50, 1, 2, 802, 0, 803, 5)
    mirror.apply(_record(rmgr.RM_MULTIXACT_ID, rmgr.XLOG_MULTIXACT_CREATE_ID, 803, members))
    mirror.apply(_delete(803, 1, 0x01, 50))
    mirror.commit([802], 3200)
    assert _names(mirror) == ["a"]
    assert _names(mirror, 803) == []
    mirror.commit([803], 3300)
    assert _names(mirror) == []


@pytest.mark.parametrize("major", [15, 16, 17])
def test_prune_and_vacuum(major: int) -> None:
    mirror = empty_mirror(major)
    for i in range(1, 7):
        mirror.apply(_insert(800, i, 10 + i, f"n{i}", init=i == 1))
    mirror.commit([800], 3000)
    if major >= 17:
        main = struct.pack("<BB", 0, 1 << 5 | 1 << 6 | 1 << 7)
        data = struct.pack("<H2HH1HH1H", 1, 1, 2, 1, 3, 1, 4)
    else:
        main = struct.pack("<IHH", 0, 1, 1) + (b"\0" if major == 16 else b"")
        data = struct.pack("<2HHH", 1, 2, 3, 4)
    mirror.apply(_record(rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_PRUNE, 0, main, _block(data)))
    assert _names(mirror) == ["n2", "n5", "n6"]
    if major < 17:
        data = struct.pack("<H", 5)
        main = struct.pack("<H", 1)
        mirror.apply(_record(rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_VACUUM, 0, main, _block(data)))
        assert _names(mirror) == ["n2", "n6"]


@pytest.mark.parametrize("major", [15, 16, 17])
def test_freeze(major: int) -> None:
    mirror = empty_mirror(major)
    for i in (1, 2):
        mirror.apply(_insert(800, i, 10 + i, f"n{i}", init=i == 1))
    mirror.commit([800], 3000)
    if major >= 17:
        main = struct.pack("<BB", 1, 1 << 4)
        data = struct.pack("<HxxIHHBxH2H", 1, 0, 2, 0x0B00, 0, 2, 1, 2)
        info = rmgr.XLOG_HEAP2_PRUNE_VACUUM_SCAN
    elif major == 16:
        main = struct.pack("<IHB", 0, 1, 1)
        data = struct.pack("<IHHBxH2H", 0, 2, 0x0B00, 0, 2, 1, 2)
        info = rmgr.XLOG_HEAP2_FREEZE_PAGE
    else:
        main = struct.pack("<IH", 0, 2)
        data = b"".join(struct.pack("<IHHHBx", 0, i, 2, 0x0B00, 0) for i in (1, 2))
        info = rmgr.XLOG_HEAP2_FREEZE_PAGE
    mirror.apply(_record(rmgr.RM_HEAP2_ID, info, 0, main, _block(data)))
    storage = mirror.heaps.storage_at(_WHERE)
    assert storage is not None
    assert [t.infomask for t in storage.tuples()] == [0x0B00, 0x0B00]
    assert _names(mirror) == ["n1", "n2"]


def test_truncate_drops_blocks(mirror: CatalogMirror) -> None:
    for block in range(3):
        mirror.apply(
            _image((1, 2, 0, 0x0B00, namespace_data(20 + block, f"b{block}")), block=block)
        )
    main = struct.pack("<IIIIi", 1, *_WHERE, 7)
    mirror.apply(_record(rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_TRUNCATE, 0, main))
    assert _names(mirror) == ["b0"]


def test_an_image_carries_over_what_is_known(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    mirror.apply(_insert(801, 2, 12, "b"))
    mirror.apply(_insert(802, 3, 13, "c"))
    mirror.commit([800], 3000)
    mirror.abort([801], 3010)
    # No hint bits: 800 committed, 801 aborted, 802 goes on and deletes 1.
    mirror.apply(
        _image(
            (1, 800, 802, 0, namespace_data(11, "a")),
            (2, 801, 0, 0x0800, namespace_data(12, "b")),
            (3, 802, 0, 0x0800, namespace_data(13, "c")),
        )
    )
    assert _names(mirror) == ["a"]
    assert _names(mirror, 802) == ["c"]
    mirror.commit([802], 3100)
    assert _names(mirror) == ["c"]


def test_an_image_over_sql_rows_keeps_what_sql_showed() -> None:
    """Tuples of before the horizon live iff SQL showed them, whatever their hint bits say."""
    mirror = empty_mirror(complete=False, horizon=700)
    mirror.apply(_image((1, 600, 0, 0x0900, namespace_data(11, "not shown")), lsn=100))
    assert _names(mirror) == []
    mirror.apply(
        _image(
            (1, 600, 0, 0x0900, namespace_data(11, "not shown")),
            (2, 710, 0, 0x0800, namespace_data(12, "running")),
            lsn=200,
        )
    )
    assert _names(mirror) == []
    mirror.commit([710], 300)
    assert _names(mirror) == ["running"]


def test_a_page_that_is_ahead_skips_what_it_contains(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    storage = mirror.heaps.storage_at(_WHERE)
    assert storage is not None
    storage.pages[0].lsn = 1 << 50
    mirror.apply(_insert(800, 2, 12, "skipped"))
    assert _names(mirror, 800) == ["a"]
    # An image is taken all the same, and what follows it counts again.
    mirror.apply(_image((1, 800, 0, 0x0800, namespace_data(11, "a"))))
    mirror.apply(_insert(800, 2, 12, "taken"))
    assert _names(mirror, 800) == ["a", "taken"]


def test_a_crash_is_noticed_by_running_xacts(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "lost", init=True))
    mirror.apply(_insert(900, 2, 12, "running"))
    mirror.advance(900, 3000)
    assert not mirror.has_changes({800})
    assert mirror.has_changes({900})
    assert _names(mirror, 800, 900) == ["running"]


def test_xids_wrap_around() -> None:
    mirror = empty_mirror(horizon=0xFFFFFF00)
    mirror.apply(_insert(0xFFFFFFF0, 1, 11, "before", init=True))
    mirror.apply(_insert(5, 2, 12, "after"))
    mirror.commit([0xFFFFFFF0], 3000)
    mirror.advance(5, 3100)
    assert mirror.has_changes({5})
    mirror.commit([5], 3200)
    assert _names(mirror) == ["after", "before"]
    mirror.advance(10, 3300)
    assert mirror.heaps.fates.horizon == 10
    assert mirror.heaps.fates.to_json()["finished"] == []


def test_changing_a_tuple_that_is_not_there(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    with pytest.raises(DecodingError, match=r"tuple \(0,9\) of pg_namespace") as caught:
        mirror.apply(_delete(801, 9))
    assert caught.value.details["ctids"] == [[0, 9]]


def test_two_visible_versions_are_an_error(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    mirror.apply(_insert(800, 2, 11, "b"))
    mirror.commit([800], 3000)
    tuples = mirror.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 11)
    error = mirror.visible_rows().contradiction(PG_NAMESPACE, tuples, "oid 11")
    assert error.details["ctids"] == [[0, 1], [0, 2]]
    assert "2 visible rows" in error.message


def test_other_storage_is_ignored(mirror: CatalogMirror) -> None:
    ref = BlockRef(0, RelFileLocator(1663, 5, 99999), 0, 0, b"", None, False, True)
    mirror.apply(_record(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INSERT, 800, b"", ref))
    assert not mirror.has_changes({800})


def test_a_relation_map_to_unseen_storage(mirror: CatalogMirror) -> None:
    mirror.apply(_insert(800, 1, 11, "a", init=True))
    with pytest.raises(DecodingError, match="pg_class moved"):
        mirror.heaps.replace_relation_map({PG_CLASS.oid: 77777})


@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
@pytest.mark.parametrize("seed", range(5))
def test_random_records_raise_typed_errors(major: int, seed: int) -> None:
    """Any bytes in any record: a SpillwayError or nothing, and the mirror can still be
    serialised.
    """
    r = random.Random(f"{major}-{seed}")
    mirror = empty_mirror(major)
    for i in range(1, 10):
        mirror.apply(_insert(800, i, 10 + i, f"n{i}", init=i == 1))
    mirror.commit([800], 3000)
    rmids = (
        rmgr.RM_HEAP_ID,
        rmgr.RM_HEAP2_ID,
        rmgr.RM_SMGR_ID,
        rmgr.RM_MULTIXACT_ID,
        rmgr.RM_RELMAP_ID,
    )
    failures = 0
    for _ in range(400):
        data = r.randbytes(r.randrange(60))
        if r.random() < 0.5:
            data = struct.pack("<HHB", 2, 0x0800, 24) + namespace_data(r.randrange(99), "x")
        main = r.randbytes(r.randrange(24))
        if r.random() < 0.7:
            main = struct.pack("<IHBBIH", r.randrange(900), r.randrange(12), r.randrange(32),
                               r.randrange(128), 0,
                               r.randrange(12))[r.choice((0, 4)) :]  # fmt: skip
        image = None
        if r.random() < 0.1:
            content = bytearray(page([(1, 800, 0, 0, namespace_data(1, "y"))]))
            content[r.randrange(40)] = r.randrange(256)
            image = bytes(content)
        record = _record(
            r.choice(rmids), r.randrange(16) << 4, r.randrange(800, 900), main,
            _block(data, image=image, init=r.random() < 0.05, block=r.randrange(2)),
        )  # fmt: skip
        try:
            mirror.apply(record)
        except (CorruptWal, DecodingError) as error:
            failures += "lsn" in error.details
        if r.random() < 0.1:
            mirror.commit([r.randrange(800, 900)], record.lsn)
        if r.random() < 0.1:
            mirror.abort([r.randrange(800, 900)], record.lsn)
    assert failures
    content_ = serialize(mirror)
    try:
        assert serialize(deserialize(content_)) == content_
    except SpillwayError as error:
        pytest.fail(f"seed {major}-{seed}: {error}")
