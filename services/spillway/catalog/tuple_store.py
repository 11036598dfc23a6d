"""The tuples of one catalog's storage, physically: page by page, offset by offset, with live indexes.

A :class:`Storage` is the main fork of one relfilenode. A catalog has one, and for the time of a VACUUM
FULL or CLUSTER a second. Redo changes tuples by (block, offset); lookups go through indexes that hold
every tuple which is not known to be dead, so that a lookup costs what it finds.

What is known of a tuple's transactions is stamped into it, as hint bits do, and needs no status
table afterwards:

- ``xmin_pending``: its xmin has not finished; else, unless ``dead``, it committed.
- ``deleter``: the unfinished xid that deleted or replaced it, 0 for none. A locker is no deleter; a
  multixact's updater is.
- ``dead``: xmin aborted or a deleter committed. Never revoked; kept until the page forgets it, because
  later images hold it again and a compressed update may refer to its bytes.

A version that its own unfinished transaction has replaced or deleted again is in no index either: nobody sees it as
long as both go on. A transaction that changes one row ten thousand times would make every look-up of that row pass ten
thousand versions. When a subtransaction rolls back what it did to such a version, that is indexed again.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.layout import NULL_KEYS, WHOLE_CATALOG

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from spillway.catalog.layout import CatalogLayout
    from spillway.wal.record import RelFileLocator

#: Something that a descriptor was made from: catalog oid, index number, key.
DependencyKey = tuple[int, int, Any]

_NONE: Final[Mapping[int, CatalogTuple]] = {}


class CatalogTuple:
    """A tuple of a catalog; see the module for what its states mean."""

    __slots__ = (
        "data", "dead", "deleter", "hoff", "infomask", "infomask2", "row", "storage", "tid", "xmax",
        "xmin", "xmin_pending",
    )  # fmt: skip

    def __init__(
        self,
        storage: Storage,
        tid: int,
        *,
        xmin: int,
        row: Any,
        xmax: int | None = 0,
        infomask2: int = 0,
        infomask: int = 0,
        hoff: int = 0,
        data: bytes | None = None,
    ) -> None:
        self.storage = storage
        #: block << 16 | offset
        self.tid = tid
        self.xmin = xmin
        #: raw xmax, maybe a multixact id; None: came from SQL, nothing known until the page's image
        self.xmax = xmax
        self.infomask2 = infomask2
        self.infomask = infomask
        self.hoff = hoff
        #: the tuple from byte 23 on; None: came from SQL
        self.data = data
        self.row = row
        self.xmin_pending = False
        self.deleter = 0
        self.dead = False

    @property
    def ctid(self) -> tuple[int, int]:
        """Block and offset."""
        return self.tid >> 16, self.tid & 0xFFFF

    def visible(self, own_xids: Collection[int]) -> bool:
        """Say whether a transaction with *own_xids* sees this tuple now, among what is committed."""
        if self.dead or (self.xmin_pending and self.xmin not in own_xids):
            return False
        return self.deleter == 0 or self.deleter not in own_xids

    def forget_row(self) -> None:
        """Free what nobody asks a dead tuple for; its bytes stay. Stand-ins are found by rows, of dead tuples too."""
        if self.data is not None and not self.storage.unplaced:
            self.row = None

    def __repr__(self) -> str:
        return (
            f"<{self.storage.layout.catalog.name} {self.ctid} xmin={self.xmin} xmax={self.xmax}"
            f"{' pending' if self.xmin_pending else ''}{' dead' if self.dead else ''}"
            f"{f' deleter={self.deleter}' if self.deleter else ''} {self.row}>"
        )


class Page:
    """What is known of one block."""

    __slots__ = ("_tuples", "lsn", "packed", "physical", "unpack")

    def __init__(self, lsn: int = 0, *, physical: bool = True) -> None:
        #: end of the last record that is contained; records at or before it are skipped
        self.lsn = lsn
        #: False: rows that SQL showed, without their bytes and without the dead ones
        self.physical = physical
        #: the page as it was written or read last; None when something has changed since
        self.packed: bytes | None = None
        #: makes the tuples of a page that was read and not asked for yet
        self.unpack: Callable[[], None] | None = None
        self._tuples: dict[int, CatalogTuple] = {}

    @property
    def tuples(self) -> dict[int, CatalogTuple]:
        """The tuples by their offsets."""
        unpack = self.unpack
        if unpack is not None:
            self.unpack = None
            unpack()
        return self._tuples


class Storage:
    """One relfilenode of a catalog."""

    def __init__(self, layout: CatalogLayout, locator: RelFileLocator, *, complete: bool) -> None:
        self.layout: Final = layout
        self.catalog: Final = layout.catalog
        #: changes with ALTER DATABASE SET TABLESPACE only
        self.locator = locator
        #: every tuple that ever was in it came through redo or raw pages; False: SQL showed it
        self.complete = complete
        self.pages: dict[int, Page] = {}
        #: rows whose place is not known, by their first column; see ``shared_catalogs``
        self.stand_ins: dict[int, CatalogTuple] = {}
        #: what was in it at the beginning is known by stand-ins only
        self.unplaced = False
        self.indexes: Final[list[dict[Any, dict[int, CatalogTuple]]]] = [
            {} for _ in self.catalog.indexes
        ]
        #: which keys packed pages have, sorted, an array for each index; see ``packed_pages``
        self.packed_keys: list[array[int]] = []
        columns = self.catalog.columns
        self._indexed: Final = [
            (i, columns.index(name), (self.catalog.oid, i) in NULL_KEYS)
            for i, name in enumerate(self.catalog.indexes)
        ]

    def tuple_at(self, block: int, offset: int) -> CatalogTuple | None:
        """Return the tuple there, dead or alive."""
        page = self.pages.get(block)
        return None if page is None else page.tuples.get(offset)

    def bucket(self, number: int, key: Any) -> Mapping[int, CatalogTuple]:
        """Return the tuples with *key* in an index, which are not dead, by their tids."""
        if self.packed_keys:
            keys = self.packed_keys[number]
            at = bisect_left(keys, key << 32)
            while at < len(keys) and keys[at] >> 32 == key:
                page = self.pages.get(keys[at] & 0xFFFFFFFF)
                if page is not None and page.unpack is not None:
                    page.tuples  # noqa: B018 - asked for, it is unpacked
                at += 1
        return self.indexes[number].get(key, _NONE)

    def keys_after(self, number: int, after: int) -> Iterator[int]:
        """Yield the keys of an index that are larger than *after*, in order, each once; some may have no tuple any more.

        What is packed stays so. The storage must not change meanwhile.
        """
        live = sorted(key for key in self.indexes[number] if key > after)
        packed: Iterator[int] = iter(())
        if self.packed_keys:
            keys = self.packed_keys[number]
            first = bisect_left(keys, (after + 1) << 32)
            packed = (keys[i] >> 32 for i in range(first, len(keys)))
        previous = after
        for key in merge(live, packed):
            if key != previous:
                previous = key
                yield key

    def keys_of_rows(self, rows: Sequence[Any]) -> list[set[int]]:
        """Return the keys that *rows* have in each index."""
        return [
            {row[column] for row in rows if row[column] or not skip_zero}
            for _, column, skip_zero in self._indexed
        ]

    def touch(self, tup: CatalogTuple) -> None:
        """Note that a tuple's state has changed: its page is not as it was written last."""
        page = self.pages.get(tup.tid >> 16)
        if page is not None:
            page.packed = None

    def live_tuples(self) -> Iterator[CatalogTuple]:
        """Yield every tuple but those of packed pages."""
        for page in self.pages.values():
            if page.unpack is None:
                yield from page.tuples.values()
        yield from self.stand_ins.values()

    def tuples(self) -> Iterator[CatalogTuple]:
        """Yield every tuple, dead ones and stand-ins too."""
        for page in self.pages.values():
            yield from page.tuples.values()
        yield from self.stand_ins.values()

    def index(self, tup: CatalogTuple) -> None:
        """Enter *tup*, which must not be dead, into every index, unless nobody can see it; safe to repeat."""
        if tup.deleter and tup.xmin_pending:
            return
        for number, column, skip_zero in self._indexed:
            key = tup.row[column]
            if key or not skip_zero:
                self.indexes[number].setdefault(key, {})[tup.tid] = tup

    def unindex(self, tup: CatalogTuple) -> None:
        """Take *tup* out of every index; harmless when it is in none."""
        for number, column, _ in self._indexed:
            bucket = self.indexes[number].get(tup.row[column])
            if bucket is not None and bucket.get(tup.tid) is tup:
                del bucket[tup.tid]
                if not bucket:
                    del self.indexes[number][tup.row[column]]

    def keys(self, row: Any) -> list[DependencyKey]:
        """List what a descriptor that read *row*, or looked for it in vain, depends on."""
        oid = self.catalog.oid
        keys: list[DependencyKey] = [
            (oid, number, row[column]) for number, column, _ in self._indexed
        ]
        keys.append((oid, WHOLE_CATALOG, None))
        return keys
