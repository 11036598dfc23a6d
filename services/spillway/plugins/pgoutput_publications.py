"""The publications of one pgoutput session, as PostgreSQL's caches hold them.

In come tables' descriptors, as of the change at hand, and what the server threw out of its caches;
out comes how the slot's publications publish a table. That would be the descriptor's to say, if
PostgreSQL looked publications up for each change. It does when nothing is cached, with the snapshot
of the change at hand; what it has found it keeps until it is invalidated, for transactions with
older snapshots too. So a transaction that began before ALTER PUBLICATION may be published by newer
rules, because another has had them loaded. There are three layers:

- how one table is published (RelationSyncEntry): the kernel keeps it, and asks here when it has to
  be found anew;
- the slot's publications (``data->publications``): until any row of pg_publication changes;
- below them the system caches: pg_publication by oid, one by one (PUBLICATIONOID, PUBLICATIONNAME),
  so that another publication's change has the list put together again, but of the same rows; the
  memberships of each table and each schema, all of which go with any change of pg_publication_rel
  or pg_publication_namespace (a CatCList).

Memory: the slot's publications, and the memberships of :data:`_TABLES_MAX` tables met since one of
them changed last.

Source: get_rel_sync_entry, LoadPublications, publication_invalidation_cb,
src/backend/replication/pgoutput/pgoutput.c; GetRelationPublications, GetSchemaPublications,
src/backend/catalog/pg_publication.c; CatCacheInvalidate, CatalogCacheComputeHashValue,
src/backend/utils/cache/catcache.c; murmurhash32, src/include/common/hashfn.h
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.descriptor import Memberships, PublicationOptions, published
from spillway.decoding.invalidations import CATALOG_SHIFT, WHOLE_CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spillway.catalog.descriptor import (
        PublicationDescriptor,
        RelationDescriptor,
        TableMembership,
    )

_PG_PUBLICATION: Final = 6104
_PG_PUBLICATION_REL: Final = 6106
#: Tables whose memberships are kept, some 100 bytes each.
_TABLES_MAX: Final = 1 << 16
_U32: Final = 0xFFFFFFFF
#: What every table is published by where no publication is asked for; no row has this oid.
_ALL_TABLES: Final = PublicationOptions(oid=0, name="", all_tables=True)


class PublicationCache:
    """What a session has loaded of publications; it begins with nothing."""

    def __init__(
        self, names: Iterable[str], missing: Callable[[str], None], *, all_tables: bool = False
    ) -> None:
        """Look for publications by *names*; *missing* is called for one that does not exist, and
        may raise. With *all_tables* every table is published, whatever publications there are.
        """
        self._always: Final = (_ALL_TABLES,) if all_tables else ()
        self._names: Final = tuple(dict.fromkeys(names))
        self._missing: Final = missing
        #: None: to be loaded before the next use
        self._publications: tuple[PublicationOptions, ...] | None = None
        self._rows: Final[dict[str, PublicationOptions]] = {}
        self._tables: Final[dict[int, tuple[TableMembership, ...]]] = {}
        self._schemas: Final[dict[int, frozenset[int]]] = {}

    def invalidate(self, item: int) -> None:
        """Take an item of an INVALIDATION that is no relation."""
        catalog = (item & ~WHOLE_CATALOG) >> CATALOG_SHIFT
        if catalog == _PG_PUBLICATION:
            self._publications = None
            for name, row in list(self._rows.items()):
                if item & WHOLE_CATALOG or hash_of_oid(row.oid) == item & _U32:
                    del self._rows[name]
        elif catalog == _PG_PUBLICATION_REL:
            self._tables.clear()
        else:
            self._schemas.clear()

    def published(self, descriptor: RelationDescriptor) -> tuple[PublicationDescriptor, ...]:
        """Say how the session's publications, in its order, publish a table; those that don't are
        left out.

        Raises:
            UnknownPublication: if that is what ``missing`` raises.
        """
        if not descriptor.publishable:
            return ()
        if self._publications is None:
            self._publications = tuple(self._load(descriptor.database_publications))
        table, *ancestors = descriptor.memberships
        memberships = [self._cached(table)]
        if all(p.all_tables for p in self._publications):
            # Ancestors' memberships are not asked for, and so not cached.
            memberships += ancestors
        else:
            memberships += map(self._cached, ancestors)
        return published(descriptor.kind, memberships, self._publications)

    def save(self) -> tuple[object, ...]:
        """Return what is loaded, in a form that compares."""
        loaded = (self._rows, self._tables, self._schemas)
        return self._publications, *(tuple(sorted(part.items(), key=_key)) for part in loaded)

    def load(self, saved: tuple[Any, ...]) -> None:
        """Go on from what another cache of the same names saved."""
        self._publications, *parts = saved
        for part, items in zip((self._rows, self._tables, self._schemas), parts, strict=True):
            part.clear()  # type: ignore[attr-defined]
            part.update(items)  # type: ignore[attr-defined]

    def _load(self, publications: Iterable[PublicationOptions]) -> Iterator[PublicationOptions]:
        yield from self._always
        by_name = {p.name: p for p in publications}
        for name in self._names:
            row = self._rows.get(name) or by_name.get(name)
            if row is None:
                self._missing(name)
                continue
            self._rows[name] = row
            yield row

    def _cached(self, fresh: Memberships) -> Memberships:
        if len(self._tables) >= _TABLES_MAX:
            # Tables that were dropped are among them, and nothing says which.
            self._tables.clear()
        return Memberships(
            fresh.relation_oid,
            fresh.schema_oid,
            self._tables.setdefault(fresh.relation_oid, fresh.tables),
            self._schemas.setdefault(fresh.schema_oid, fresh.schemas),
        )


def _key(item: tuple[Any, object]) -> Any:
    return item[0]


def hash_of_oid(oid: int) -> int:
    """Return the hash value by which a message names a row whose key is one oid."""
    value = oid ^ oid >> 16
    value = value * 0x85EBCA6B & _U32
    value ^= value >> 13
    value = value * 0xC2B2AE35 & _U32
    return value ^ value >> 16
