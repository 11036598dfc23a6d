"""The rows of the mirrored catalogs as one transaction sees them at this very point.

What is made of rows must be made anew when they change, so look-ups are noted: catalog, index, key,
whether they found something or not. See ``resolution_cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.layout import WHOLE_CATALOG
from spillway.catalog.storage_map import NO_XIDS
from spillway.errors import DecodingError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.layout import TrackedCatalog
    from spillway.catalog.tuple_store import CatalogTuple, DependencyKey


class VisibleRows:
    """Look-ups for a transaction with the *own_xids* given; without any, for everybody who changes
    no catalog.
    """

    def __init__(self, heaps: CatalogHeaps, own_xids: Collection[int] = NO_XIDS) -> None:
        self.heaps: Final = heaps
        self.own_xids: Final = own_xids
        #: what :meth:`rows`, :meth:`row` and :meth:`whole` were asked for
        self.dependencies: Final[set[DependencyKey]] = set()

    def tuples(self, catalog: TrackedCatalog, index: int, key: Any) -> list[CatalogTuple]:
        """Find the tuples with *key*; not noted."""
        found = self.heaps.locations.of(catalog.oid, self.own_xids).with_key(index, key)
        return [tup for tup in found if tup.visible(self.own_xids)]

    def rows(self, catalog: TrackedCatalog, index: int, key: Any) -> list[Any]:
        """List the rows with *key*."""
        self.dependencies.add((catalog.oid, index, key))
        return [tup.row for tup in self.tuples(catalog, index, key)]

    def row(self, catalog: TrackedCatalog, index: int, key: Any) -> Any | None:
        """Return the row with a unique key, None without one.

        Raises:
            DecodingError: there are several.
        """
        rows = self.rows(catalog, index, key)
        if len(rows) > 1:
            tuples = self.tuples(catalog, index, key)
            raise self.contradiction(catalog, tuples, f"{catalog.indexes[index]} {key}")
        return rows[0] if rows else None

    def whole(self, catalog: TrackedCatalog) -> list[Any]:
        """List every row of *catalog*."""
        self.dependencies.add((catalog.oid, WHOLE_CATALOG, None))
        storage = self.heaps.locations.of(catalog.oid, self.own_xids)
        return [tup.row for tup in storage.tuples() if tup.visible(self.own_xids)]

    # Errors.

    def error(self, message: str, hint: str, **details: object) -> DecodingError:
        """Make the error for a catalog that can't be understood."""
        lsn = Lsn(self.heaps.last_lsn)
        return DecodingError(f"{message}, at {lsn}", hint=hint, lsn=str(lsn), **details)

    def missing_row(self, what: str, relation: str) -> DecodingError:
        """Make the error for a row that must be there and is not."""
        return self.error(
            f"{what} is not in the catalog mirror",
            "The catalog mirror went wrong: bootstrap this database again, and report it as a bug.",
            relation=relation,
        )

    def contradiction(
        self, catalog: TrackedCatalog, tuples: Sequence[CatalogTuple], key: str
    ) -> DecodingError:
        """Make the error for a row that must be there exactly once and is not."""
        lsn = Lsn(self.heaps.last_lsn)
        return DecodingError(
            f"{catalog.name} has {len(tuples)} visible rows with {key} at {lsn}",
            hint="The catalog mirror went wrong: bootstrap this database again, and report it as a "
            "bug.",
            lsn=str(lsn),
            relation=catalog.name,
            ctids=[list(tup.ctid) for tup in tuples],
        )
