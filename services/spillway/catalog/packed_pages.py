"""A catalog's page as bytes: what a serialised mirror consists of, and how it lies in memory until
it is asked for.

A database of 20,000 tables has some 700,000 catalog rows. As objects they take half a gigabyte and
seconds to make, at each restart, although decoding asks for the rows of few tables; and every
checkpoint would spend a second on writing the same rows again. So a page keeps the bytes that it
was written as until something on it changes (``Page.packed``), and a page that was read is
*unpacked*, into tuples in the indexes, when something on it is asked for or changed. At a
checkpoint what has not changed since the one before is packed again.

What is asked for is rows by a key. The bytes say which keys a page has; of all packed pages a
storage keeps them as one sorted array of numbers for each index, ``key << 32 | block``
(``Storage.with_key`` looks there first).

::

    page := u32 block | u64 lsn | u8 flags | u32 tuples | u32 bytes of tuples | u32 bytes of rows
            | u32 keys[indexes] | u64 key << 32 | block, for each index
            | tuples (fixed fields, then bytes) | rows that SQL showed (JSON)

Unpacked at once are pages with a tuple of an unfinished transaction, which must be found by its
xid, or with a multixact, which upkeep looks for.
"""

from __future__ import annotations

import base64
import json
import struct
from array import array
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.layout import PG_ATTRIBUTE
from spillway.catalog.missing_value import UnreadableMissing
from spillway.catalog.page import HEAP_XMAX_IS_MULTI
from spillway.catalog.tuple_store import CatalogTuple, Page, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spillway.catalog.layout import CatalogLayout

_PAGE: Final = struct.Struct("<IQBIII")
#: where in a page its flags are
_FLAGS_AT: Final = 12
#: how many keys a page has, by the number of indexes
_KEY_COUNTS: Final = [struct.Struct(f"<{n}I") for n in range(8)]
_KEY_SIZE: Final = 8
#: tid, xmin, xmax, deleter, infomask2, infomask, hoff, state bits, bytes of data
_TUPLE: Final = struct.Struct("<QIIIHHBBI")

#: places of the columns of pg_attribute that an earlier release did not keep
_NOT_KEPT_ONCE: Final = tuple(map(PG_ATTRIBUTE.columns.index, ("atthasdef", "attcollation")))

_PHYSICAL: Final = 1
_UNPACK_AT_ONCE: Final = 2

_XMAX_UNKNOWN: Final = 1
_XMIN_PENDING: Final = 2
_DEAD: Final = 4
_FROM_SQL: Final = 8


def pack_storage(storage: Storage) -> list[bytes]:
    """Return every page as bytes, in order: those of last time unless it has changed since.

    What has not changed between two calls is packed again: its tuples go.
    """
    pages = []
    again = False
    for block, page in storage.pages.items():
        if page.packed is None:
            page.packed = _pack(storage, block, page)
        elif page.unpack is None and not page.packed[_FLAGS_AT] & _UNPACK_AT_ONCE:
            _pack_again(storage, page, page.packed)
            again = True
        pages.append(page.packed)
    if again:
        keys = [array("Q") for _ in storage.indexes]
        for page in storage.pages.values():
            if page.unpack is not None and page.packed is not None:
                _read_keys(keys, page.packed)
        keep_keys(storage, keys)
    return pages


def keep_keys(storage: Storage, keys: Sequence[array[int]]) -> None:
    """Have *storage* find the keys of its packed pages, an array for each index."""
    storage.packed_keys = [array("Q", sorted(found)) for found in keys]


def _pack_again(storage: Storage, page: Page, packed: bytes) -> None:
    for tup in page.tuples.values():
        if not tup.dead:
            storage.unindex(tup)
    page.tuples.clear()
    _, _, _, count, body_size, rows_size = _PAGE.unpack_from(packed)
    page.unpack = partial(
        _unpack, storage, page, packed, len(packed) - body_size - rows_size, count, body_size
    )


def _pack(storage: Storage, block: int, page: Page) -> bytes:
    flags = _PHYSICAL * page.physical
    sql_rows: list[Any] = []
    tuples: list[bytes] = []
    for tup in page.tuples.values():
        state = _XMIN_PENDING * tup.xmin_pending | _DEAD * tup.dead
        if tup.xmin_pending or tup.deleter or tup.infomask & HEAP_XMAX_IS_MULTI:
            flags |= _UNPACK_AT_ONCE
        if tup.xmax is None:
            state |= _XMAX_UNKNOWN
        data = tup.data
        if data is None:
            state |= _FROM_SQL
            sql_rows.append(tup.row)
            data = b""
        tuples.append(
            _TUPLE.pack(
                tup.tid, tup.xmin, tup.xmax or 0, tup.deleter, tup.infomask2, tup.infomask,
                tup.hoff, state, len(data),
            )
        )  # fmt: skip
        tuples.append(data)
    if storage.catalog is PG_ATTRIBUTE:
        sql_rows = [_plain_attribute(row) for row in sql_rows]
    rows = json.dumps(sql_rows, separators=(",", ":")).encode() if sql_rows else b""
    keys = storage.keys_of_rows([tup.row for tup in page.tuples.values() if not tup.dead])
    return _packed(keys, block, page.lsn, flags, len(page.tuples), b"".join(tuples), rows)


def pack_rows(storage: Storage, rows: Iterable[tuple[int, int, int, Any]]) -> None:
    """Enter rows that SQL showed, (block, offset, xmin, row) each, into *storage*, which is empty,
    as packed pages.

    Rows of a block come one after the other, so that one page's are objects at a time; what comes
    of it later is added.
    """
    keys = [array("Q") for _ in storage.indexes]
    plain = _plain_attribute if storage.catalog is PG_ATTRIBUTE else None
    state = _XMAX_UNKNOWN | _FROM_SQL
    for block, of_block in groupby(rows, itemgetter(0)):
        entries = list(of_block)
        if block in storage.pages:
            entries = _entries(storage, storage.pages[block]) + entries
        shown = [entry[3] for entry in entries]
        tuples = b"".join(
            [
                _TUPLE.pack(block << 16 | offset, xmin, 0, 0, 0, 0, 0, state, 0)
                for _, offset, xmin, _ in entries
            ]
        )
        values = shown if plain is None else [plain(row) for row in shown]
        json_rows = json.dumps(values, separators=(",", ":")).encode()
        packed = _packed(storage.keys_of_rows(shown), block, 0, 0, len(entries), tuples, json_rows)
        page = storage.pages[block] = Page(physical=False)
        page.packed = packed
        page.unpack = partial(
            _unpack, storage, page, packed, len(packed) - len(tuples) - len(json_rows),
            len(entries), len(tuples),
        )  # fmt: skip
        _read_keys(keys, packed)
    keep_keys(storage, keys)


def _entries(storage: Storage, page: Page) -> list[tuple[int, int, int, Any]]:
    """Return the rows of a packed page that SQL showed, as :func:`pack_rows` takes them."""
    packed = page.packed
    assert packed is not None
    block, _, _, count, body_size, rows_size = _PAGE.unpack_from(packed)
    tuples = _tuples(storage, packed, len(packed) - body_size - rows_size, count, body_size)
    return [(block, tup.tid & 0xFFFF, tup.xmin, tup.row) for tup in tuples]


def _packed(
    keys_found: Iterable[set[int]],
    block: int,
    lsn: int,
    flags: int,
    count: int,
    body: bytes,
    rows: bytes,
) -> bytes:
    keys = [array("Q", sorted({key << 32 | block for key in found})) for found in keys_found]
    head = _PAGE.pack(block, lsn, flags, count, len(body), len(rows))
    counts = _KEY_COUNTS[len(keys)].pack(*map(len, keys))
    return b"".join((head, counts, *map(bytes, keys), body, rows))


def read_page(
    storage: Storage, keys: Sequence[array[int]], content: memoryview, at: int
) -> tuple[int, list[CatalogTuple]]:
    """Enter the page that is packed at *at* of *content*; return where it ends and its tuples if it
    is unpacked at once.

    What keys it has is added to *keys*, an array for each index. The tuples returned are in no
    index yet.

    Raises:
        struct.error, ValueError: it contradicts itself.
    """
    block, lsn, flags, count, body_size, rows_size = _PAGE.unpack_from(content, at)
    counts = _KEY_COUNTS[len(keys)].unpack_from(content, at + _PAGE.size)
    body_at = _PAGE.size + 4 * len(counts) + _KEY_SIZE * sum(counts)
    end = at + body_at + body_size + rows_size
    if end > len(content):
        raise ValueError("a page is cut short")
    packed = bytes(content[at:end])
    page = storage.pages[block] = Page(lsn, physical=bool(flags & _PHYSICAL))
    page.packed = packed
    if flags & _UNPACK_AT_ONCE:
        return end, _tuples(storage, packed, body_at, count, body_size)
    _read_keys(keys, packed)
    page.unpack = partial(_unpack, storage, page, packed, body_at, count, body_size)
    return end, []


def _read_keys(keys: Sequence[array[int]], packed: bytes) -> None:
    """Add the keys of a page to *keys*."""
    counts = _KEY_COUNTS[len(keys)].unpack_from(packed, _PAGE.size)
    at = _PAGE.size + 4 * len(counts)
    for found, count in zip(keys, counts, strict=True):
        if count:
            found.frombytes(packed[at : at + _KEY_SIZE * count])
            at += _KEY_SIZE * count


def _unpack(
    storage: Storage, page: Page, packed: bytes, at: int, count: int, body_size: int
) -> None:
    for tup in _tuples(storage, packed, at, count, body_size):
        page.tuples[tup.tid & 0xFFFF] = tup
        if not tup.dead:
            storage.index(tup)


def _tuples(
    storage: Storage, packed: bytes, at: int, count: int, body_size: int
) -> list[CatalogTuple]:
    layout = storage.layout
    rows_at = at + body_size
    from_sql: list[CatalogTuple] = []
    tuples: list[CatalogTuple] = []
    for _ in range(count):
        tid, xmin, xmax, deleter, infomask2, infomask, hoff, state, size = _TUPLE.unpack_from(
            packed, at
        )
        at += _TUPLE.size
        tup = CatalogTuple(
            storage,
            tid,
            xmin=xmin,
            row=None,
            xmax=None if state & _XMAX_UNKNOWN else xmax,
            infomask2=infomask2,
            infomask=infomask,
            hoff=hoff,
        )
        tup.deleter = deleter
        tup.xmin_pending = bool(state & _XMIN_PENDING)
        tup.dead = bool(state & _DEAD)
        if state & _FROM_SQL:
            from_sql.append(tup)
        else:
            tup.data = packed[at : at + size]
            if not tup.dead or storage.unplaced:
                tup.row = layout.row(infomask2, infomask, hoff, tup.data)
        at += size
        tuples.append(tup)
    if from_sql:
        for tup, values in zip(from_sql, json.loads(packed[rows_at:]), strict=True):
            tup.row = sent_row(layout, values)
    return tuples


def _plain_attribute(row: Any) -> Any:
    """A pg_attribute row whose attmissingval JSON can hold."""
    missing = row.attmissingval
    if missing is None:
        return row
    if isinstance(missing, UnreadableMissing):
        return row._replace(attmissingval={"type": missing.type_name})
    return row._replace(attmissingval={"datum": base64.b64encode(missing).decode()})


def sent_row(layout: CatalogLayout, values: Sequence[Any]) -> Any:
    """Return the row that JSON held as *values*.

    Of pg_attribute an earlier release kept no atthasdef and no attcollation.
    """
    if layout.catalog is PG_ATTRIBUTE and len(values) == len(layout.names) - len(_NOT_KEPT_ONCE):
        values = list(values)
        for place in _NOT_KEPT_ONCE:
            values.insert(place, None)
    if list in map(type, values):
        values = [tuple(v) if type(v) is list else v for v in values]
    row = layout.sent_row(values)
    if layout.catalog is PG_ATTRIBUTE and row.attmissingval is not None:
        missing = row.attmissingval
        value = (
            base64.b64decode(missing["datum"])
            if "datum" in missing
            else UnreadableMissing(missing["type"])
        )
        row = row._replace(attmissingval=value)
    return row
