"""A mirror whose database is copied to another tablespace: which record says that it moved, and
which not.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.catalog_pages import empty_mirror, locator, page
from spillway.catalog.layout import PG_NAMESPACE
from spillway.catalog.serialization import deserialize, serialize
from spillway.errors import CorruptWal, DatabaseDropped
from spillway.pg import rmgr
from spillway.wal.record import BlockRef, Record

if TYPE_CHECKING:
    from spillway.catalog.mirror import CatalogMirror

_HERE = locator(PG_NAMESPACE)
_THERE = _HERE._replace(spc=77777)
_LSNS = iter(range(1 << 20, 1 << 40, 64))


def _database_record(info: int, main: bytes, xid: int = 0) -> Record:
    lsn = next(_LSNS)
    return Record(lsn, lsn + 64, xid, rmgr.RM_DBASE_ID, info, main, ())


def _copy(mirror: CatalogMirror, source: int | None = None) -> None:
    oid = mirror.facts.database_oid
    main = struct.pack("<IIII", oid, _THERE.spc, source or oid, _HERE.spc)
    mirror.apply(_database_record(mirror.heaps.version.dbase_create_file_copy, main))


def _drop(mirror: CatalogMirror, *tablespaces: int, oid: int | None = None, xid: int = 0) -> None:
    main = struct.pack("<Ii", oid or mirror.facts.database_oid, len(tablespaces))
    main += struct.pack(f"<{len(tablespaces)}I", *tablespaces)
    mirror.apply(_database_record(mirror.heaps.version.dbase_drop, main, xid))


def _use(mirror: CatalogMirror, where: object) -> None:
    """An image of an empty page of pg_namespace in *where*."""
    lsn = next(_LSNS)
    ref = BlockRef(0, where, 0, 0, b"", page([]), True, False)  # type: ignore[arg-type]
    mirror.apply(Record(lsn, lsn + 64, 0, rmgr.RM_XLOG_ID, rmgr.XLOG_FPI, b"", (ref,)))


def _is_only_in(mirror: CatalogMirror, where: object) -> bool:
    return mirror.heaps.locations.current[PG_NAMESPACE.oid].locator == where and {
        loc.spc for loc in mirror.tracked
    } == {where.spc}  # type: ignore[attr-defined]


def test_after_the_copy_it_answers_to_both_until_the_old_files_go() -> None:
    mirror = empty_mirror()
    generation = mirror.tracked_generation
    _copy(mirror)
    assert {_HERE, _THERE} <= mirror.tracked
    assert mirror.tracked_generation > generation
    _drop(mirror, _HERE.spc)
    assert _is_only_in(mirror, _THERE)
    assert mirror.commit([], next(_LSNS)), "what was resolved for others may be different now"


@pytest.mark.parametrize("where", [_HERE, _THERE])
def test_after_a_crash_the_first_use_decides(where: object) -> None:
    mirror = empty_mirror()
    _copy(mirror)
    mirror = deserialize(serialize(mirror))
    assert {_HERE, _THERE} <= mirror.tracked
    _use(mirror, where)
    assert _is_only_in(mirror, where)
    assert _is_only_in(deserialize(serialize(mirror)), where)


def test_a_copy_that_is_removed_again_changes_nothing() -> None:
    mirror = empty_mirror()
    _copy(mirror)
    _drop(mirror, _THERE.spc)
    assert _is_only_in(mirror, _HERE)


def test_other_databases_are_no_concern() -> None:
    mirror = empty_mirror()
    _copy(mirror, source=4711)
    _drop(mirror, _HERE.spc, oid=4711, xid=5)
    _drop(mirror, 12345)
    assert _is_only_in(mirror, _HERE)


def test_the_database_is_dropped() -> None:
    mirror = empty_mirror()
    with pytest.raises(DatabaseDropped) as caught:
        _drop(mirror, _HERE.spc, _THERE.spc, xid=9)
    assert caught.value.details["datoid"] == mirror.facts.database_oid
    assert caught.value.details["lsn"]


def test_damaged_records() -> None:
    mirror = empty_mirror()
    version = mirror.heaps.version
    for info, main in (
        (version.dbase_create_file_copy, bytes(15)),
        (version.dbase_drop, bytes(7)),
        (version.dbase_drop, struct.pack("<Ii", 1, 1)),
        (version.dbase_drop, struct.pack("<Ii", 1, -1)),
    ):
        with pytest.raises(CorruptWal):
            mirror.apply(_database_record(info, main))
