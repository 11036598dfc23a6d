"""The tuples of one catalog's storage, physically: page by page, offset by offset, with live
indexes.

A :class:`Storage` is the main fork of one relfilenode. A catalog has one, and for the time of a
VACUUM FULL or CLUSTER a second. Redo changes tuples by (block, offset); lookups go through indexes
that hold every tuple which is not known to be dead, so that a lookup costs what it finds.

Tuples, pages and indexes are the kernel's (``_kernels/catalog/tuples``), which says what the states
of a tuple mean.

A version that its own unfinished transaction has replaced or deleted again is in no index either:
nobody sees it as long as both go on. A transaction that changes one row ten thousand times would
make every look-up of that row pass ten thousand versions. When a subtransaction rolls back what it
did to such a version, that is indexed again.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.catalog.tuples import CatalogTuple, Page, TupleStorage
from spillway.catalog.layout import NULL_KEYS, WHOLE_CATALOG

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from spillway.catalog.layout import CatalogLayout
    from spillway.wal.record import RelFileLocator

#: Where stand-ins are, rows whose place is not known (``shared_catalogs``): InvalidBlockNumber.
NO_BLOCK: Final = 0xFFFFFFFF
#: Something that a descriptor was made from: catalog oid, index number, key.
DependencyKey = tuple[int, int, Any]

__all__ = ["NO_BLOCK", "CatalogTuple", "CountingStorage", "DependencyKey", "Page", "Storage"]


class Storage(TupleStorage):
    """One relfilenode of a catalog."""

    def __init__(self, layout: CatalogLayout, locator: RelFileLocator, *, complete: bool) -> None:
        catalog = layout.catalog
        self._indexed: Final = [
            (i, catalog.columns.index(name), (catalog.oid, i) in NULL_KEYS)
            for i, name in enumerate(catalog.indexes)
        ]
        super().__init__(
            catalog.oid,
            [column for _, column, _ in self._indexed],
            [skip_zero for _, _, skip_zero in self._indexed],
            [layout.place(name) for name in catalog.indexes],
            layout.place("relrewrite"),
        )
        self.layout: Final = layout
        self.catalog: Final = catalog
        #: changes with ALTER DATABASE SET TABLESPACE only
        self.locator = locator
        #: every tuple that ever was in it came through redo or raw pages; False: SQL showed it
        self.complete = complete
        #: which keys packed pages have, sorted, an array for each index; see ``packed_pages``
        self.packed_keys: list[array[int]] = []

    def tuple_at(self, block: int, offset: int) -> CatalogTuple | None:
        """Return the tuple there, dead or alive."""
        page = self.pages.get(block)
        return None if page is None else page.tuples.get(offset)

    def with_key(self, number: int, key: Any) -> Sequence[CatalogTuple]:
        """Return the tuples with *key* in an index, which are not dead."""
        if self.packed_keys:
            keys = self.packed_keys[number]
            at = bisect_left(keys, key << 32)
            while at < len(keys) and keys[at] >> 32 == key:
                page = self.pages.get(keys[at] & 0xFFFFFFFF)
                if page is not None and page.unpack is not None:
                    page.tuples  # noqa: B018 - asked for, it is unpacked
                at += 1
        return self.indexed(number, key)

    def keys_after(self, number: int, after: int) -> Iterator[int]:
        """Yield the keys of an index that are larger than *after*, in order, each once; some may
        have no tuple any more.

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

    def keys(self, row: Any) -> list[DependencyKey]:
        """List what a descriptor that read *row*, or looked for it in vain, depends on."""
        oid = self.catalog.oid
        keys: list[DependencyKey] = [
            (oid, number, row[column]) for number, column, _ in self._indexed
        ]
        keys.append((oid, WHOLE_CATALOG, None))
        return keys


class CountingStorage(Storage):
    """One relfilenode of a catalog, which counts: who has looked through its new rows need not do
    so again before there are others.
    """

    #: how often a version of a row came, or came back
    entered = 0

    def index(self, tup: CatalogTuple) -> None:
        """As TupleStorage's."""
        self.entered += 1
        super().index(tup)
