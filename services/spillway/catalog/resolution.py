"""Resolutions: catalog rows → what a relfilenode is, and the descriptor of the table it belongs to.

A descriptor holds the closure of what encoders need: the columns' types, the element, base,
attribute, range types of those, the names of output functions, enum labels; and how the table is
published (``publications``), with its ancestors' descriptors. It is *interned*
(``descriptor_registry``).

What everybody sees is kept until a row that it was made from changes (``resolution_cache``). A
transaction that changes the catalog itself is told the same when it has not changed any of these
rows; otherwise it gets a view of its own, made anew.

Built-in types' output functions are pg_proc rows like any other's: pg_proc is mirrored (oid and
name), because an extension's type may come and go while we decode.

Source: RelidByRelfilenumber, src/backend/utils/cache/relfilenumbermap.c; RelationGetIndexList and
RelationGetIdentityKeyBitmap, src/backend/utils/cache/relcache.c; ReorderBufferProcessTXN,
reorderbuffer.c
"""

from __future__ import annotations

import contextlib
import enum
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog import layout as cat
from spillway.catalog.descriptor import (
    AttributeDescriptor,
    ColumnDescriptor,
    RelationDescriptor,
    TypeDescriptor,
    published,
)
from spillway.catalog.missing_value import UnreadableMissing
from spillway.catalog.object_names import NAMING_TYPES, object_names
from spillway.catalog.publications import all_publications, ancestors_of, memberships_of
from spillway.catalog.storage_map import NO_XIDS
from spillway.catalog.visible_rows import VisibleRows
from spillway.errors import DecodingError
from spillway.pg.versions import Since

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.layout import PgAttribute, PgClass, PgType
    from spillway.catalog.resolution_cache import EntryKey, ResolutionCache
    from spillway.wal.record import RelFileLocator

#: Below it are the objects of bootstrap and of the system catalogs (FirstUnpinnedObjectId), which
#: are never decoded; information_schema's tables are above, and are.
_FIRST_UNPINNED_OID: Final = 12000
#: array_subscript_handler: a type with it and a typelem is a true array (IsTrueArrayType)
_ARRAY_SUBSCRIPT_HANDLER: Final = 6179


class ResolutionKind(enum.Enum):
    """What a storage is to decoding."""

    TABLE = "table"
    TOAST = "toast"
    SKIP = "skip"


class SkipReason(enum.Enum):
    """Why changes of a storage are not decoded."""

    NONE = ""
    OTHER_DATABASE = "other database"
    SYSTEM_CATALOG = "system catalog"
    NOT_A_TABLE = "index, sequence or another relation without rows of its own"
    REWRITE = "transient heap of a rewrite"
    #: No visible pg_class row. Right for what a subtransaction created that has aborted, and for
    #: mapped relations that are not mirrored; wrong for a record with logical tuple data.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a storage, or an oid, is at one point in WAL for one transaction."""

    kind: ResolutionKind
    #: pg_class.oid, 0 when unknown
    relation_oid: int = 0
    #: id of :attr:`descriptor` in the registry; 0 without one
    relation_id: int = 0
    #: of the table, or of the TOAST table itself
    descriptor: RelationDescriptor | None = None
    #: kind TOAST: the table whose values it holds; reason REWRITE: the table that is rewritten
    owner_oid: int = 0
    #: kind SKIP
    reason: SkipReason = SkipReason.NONE


class Resolver:
    """Resolves for one database; what everybody sees is kept until rows change."""

    def __init__(
        self,
        heaps: CatalogHeaps,
        registry: DescriptorRegistry,
        cache: ResolutionCache | None = None,
    ) -> None:
        """Keep resolutions in *cache*; without one in that of *heaps*, which says what may be
        stale.
        """
        self._heaps: Final = heaps
        self.registry: Final = registry
        self._cache: Final = heaps.resolved if cache is None else cache

    def resolve(self, key: EntryKey, own_xids: Collection[int] = NO_XIDS) -> Resolution:
        """Resolve ("locator", RelFileLocator) or ("oid", int) as a transaction with *own_xids* sees
        it.

        Raises:
            DecodingError: a row is visible twice or missing, or a type can't be described.
        """
        if not own_xids or not self._heaps.fates.has_changes(own_xids):
            return self._for_all(key)
        if not self._heaps.locations.rewrites:
            shared = self._shared(key, own_xids)
            if shared is not None:
                return shared
        self._cache.note_private()
        return _Builder(self._heaps, self.registry, own_xids, None).build(key)

    def describe(
        self, row: PgClass, attributes: Iterable[PgAttribute], own_xids: Collection[int]
    ) -> RelationDescriptor:
        """Describe the table of *row* with the columns that *attributes* are alone, as a
        transaction with *own_xids* sees it, without publications and ancestors, and not interned.

        Raises:
            DecodingError: as :meth:`resolve`.
        """
        is_private = bool(own_xids) and self._heaps.fates.has_changes(own_xids)
        cache = None if is_private else self._cache
        xids = own_xids if is_private else NO_XIDS
        return _Builder(self._heaps, self.registry, xids, cache).describe(row, attributes)

    def _for_all(self, key: EntryKey) -> Resolution:
        entry = self._cache.get(key)
        if entry is not None:
            known: Resolution = entry[0]
            return known
        builder = _Builder(self._heaps, self.registry, NO_XIDS, self._cache)
        resolution = builder.build(key)
        self._cache.put(key, resolution, builder.rows.dependencies)
        return resolution

    def _shared(self, key: EntryKey, own_xids: Collection[int]) -> Resolution | None:
        """Return what all others see if a transaction with changes of its own must see the same;
        None if it may not.

        It must when none of the rows that were looked at, or looked for in vain, is one that it has
        changed.
        """
        heaps = self._heaps
        with contextlib.suppress(DecodingError):
            resolution = self._for_all(key)
            entry = self._cache.get(key)
            if entry is not None and not heaps.plain_redo.concerns(
                entry[1], own_xids, heaps.locations.current
            ):
                return resolution
            if resolution.reason is SkipReason.UNKNOWN:
                # Its own new table: nobody else will ever ask, if it aborts.
                self._cache.drop(key)
        return None


class _Builder:
    """Builds one resolution; what it looks up is noted in :attr:`rows`."""

    def __init__(
        self,
        heaps: CatalogHeaps,
        registry: DescriptorRegistry,
        own_xids: Collection[int],
        cache: ResolutionCache | None,
    ) -> None:
        """With *cache*, the view is the one of those without catalog changes of their own."""
        self._heaps: Final = heaps
        self._registry: Final = registry
        self._cache: Final = cache
        self.rows: Final = VisibleRows(heaps, own_xids)

    def build(self, key: EntryKey) -> Resolution:
        return self._by_locator(key[1]) if key[0] == "locator" else self._by_oid(key[1])

    # Relations.

    def _by_locator(self, locator: RelFileLocator) -> Resolution:
        locations = self._heaps.locations
        if locator.db != self._heaps.facts.database_oid:
            return _skip(SkipReason.OTHER_DATABASE)
        if locator in locations.tracked or (
            locator.rel in locations.relation_map.values()
            and locator.spc == locations.default_tablespace
        ):
            return _skip(SkipReason.SYSTEM_CATALOG)
        # Temporary relations have numbers of their own, which may equal a permanent one's.
        rows = [
            row
            for row in self.rows.rows(cat.PG_CLASS, cat.CLASS_BY_RELFILENODE, locator.rel)
            if (row.reltablespace or locations.default_tablespace) == locator.spc
            and row.relpersistence != "t"
        ]
        if len(rows) > 1:
            tuples = self.rows.tuples(cat.PG_CLASS, cat.CLASS_BY_RELFILENODE, locator.rel)
            raise self.rows.contradiction(cat.PG_CLASS, tuples, f"relfilenode {locator.rel}")
        return self._relation(rows[0]) if rows else _skip(SkipReason.UNKNOWN)

    def _by_oid(self, oid: int) -> Resolution:
        row = self.rows.row(cat.PG_CLASS, cat.CLASS_BY_OID, oid)
        return _skip(SkipReason.UNKNOWN) if row is None else self._relation(row)

    def _relation(self, row: PgClass) -> Resolution:
        if row.relrewrite:
            return _skip(SkipReason.REWRITE, row.oid, row.relrewrite)
        if row.oid < _FIRST_UNPINNED_OID:
            return _skip(SkipReason.SYSTEM_CATALOG, row.oid)
        if row.relkind not in "rpmt":
            return _skip(SkipReason.NOT_A_TABLE, row.oid)
        owner_oid = 0
        if row.relkind == "t":
            owner = self.rows.row(cat.PG_CLASS, cat.CLASS_BY_TOAST, row.oid)
            if owner is None:
                return _skip(SkipReason.UNKNOWN, row.oid)
            if owner.relrewrite:
                return _skip(SkipReason.REWRITE, row.oid, owner.relrewrite)
            owner_oid = owner.oid
        ancestors = ancestors_of(self.rows, row)
        publications = all_publications(self.rows)
        memberships = memberships_of(self.rows, row, ancestors)
        descriptor = replace(
            self.describe(row),
            publications=published(row.relkind, memberships, publications),
            database_publications=publications,
            memberships=memberships,
            ancestors=tuple(self.describe(ancestor) for ancestor in ancestors),
        )
        number, descriptor = self._registry.intern(descriptor)
        kind = ResolutionKind.TOAST if owner_oid else ResolutionKind.TABLE
        return Resolution(kind, row.oid, number, descriptor, owner_oid)

    def describe(
        self, row: PgClass, attributes: Iterable[PgAttribute] | None = None
    ) -> RelationDescriptor:
        """Describe a table but for how it is published: with *attributes*, or all its columns."""
        name = f"{self._schema(row.relnamespace)}.{row.relname}"
        if attributes is None:
            attributes = self._attributes(row.oid, name)
        columns = self._columns(attributes, name)
        types: dict[int, TypeDescriptor] = {}
        for column in columns:
            if not column.dropped:
                self._add_type(column.type_oid, types)
        primary_key, deferrable, identity = self._keys(row, columns)
        return RelationDescriptor(
            oid=row.oid,
            schema=self._schema(row.relnamespace),
            name=row.relname,
            kind=row.relkind,
            persistence=row.relpersistence,
            replica_identity=row.relreplident,
            columns=columns,
            types=types,
            toast_oid=row.reltoastrelid,
            primary_key=primary_key,
            primary_key_deferrable=deferrable,
            identity_columns=identity,
        )

    def _schema(self, oid: int) -> str:
        row = self.rows.row(cat.PG_NAMESPACE, cat.NAMESPACE_BY_OID, oid)
        if row is None:
            raise self.rows.missing_row(f"schema {oid}", "pg_namespace")
        name: str = row.nspname
        return name

    def _attributes(self, relation_oid: int, name: str) -> list[Any]:
        """The rows of pg_attribute with attnum > 0, in order, without a gap."""
        rows = self.rows.rows(cat.PG_ATTRIBUTE, cat.ATTRIBUTE_BY_RELATION, relation_oid)
        rows = sorted((row for row in rows if row.attnum > 0), key=_attnum)
        if [row.attnum for row in rows] != list(range(1, len(rows) + 1)):
            tuples = self.rows.tuples(cat.PG_ATTRIBUTE, cat.ATTRIBUTE_BY_RELATION, relation_oid)
            raise self.rows.error(
                f"the columns of {name} have the numbers {[row.attnum for row in rows]}",
                "The catalog mirror went wrong: bootstrap this database again, and report it as a "
                "bug.",
                relation=name,
                ctids=[list(tup.ctid) for tup in tuples],
            )
        return rows

    def _columns(
        self, attributes: Iterable[PgAttribute], name: str
    ) -> tuple[ColumnDescriptor, ...]:
        columns = []
        for row in attributes:
            missing = row.attmissingval if row.atthasmissing else None
            if isinstance(missing, UnreadableMissing):
                raise self.rows.error(
                    f"the value that rows from before column {row.attname} of {name} have for it is"
                    f" not known: type {missing.type_name} can't be read over SQL",
                    "Bootstrap with a superuser's DSN (raw bootstrap), or rewrite the table:"
                    " VACUUM FULL.",
                    relation=name,
                    column=row.attname,
                )
            columns.append(
                _column(
                    row.attnum, row.attname, row.atttypid, row.atttypmod, row.attlen,
                    row.attbyval, row.attalign, row.attisdropped, row.attnotnull,
                    row.attgenerated, row.attidentity, missing,
                )
            )  # fmt: skip
        return tuple(columns)

    def _keys(
        self, row: PgClass, columns: tuple[ColumnDescriptor, ...]
    ) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """The primary key's attnums, whether it is deferrable, and the replica identity's
        attnums.
        """
        primary: tuple[int, ...] = ()
        deferrable = False
        of_default: tuple[int, ...] = ()
        of_index: tuple[int, ...] = ()
        takes_invalid = (
            row.relkind == "p"
            and self._heaps.facts.major * 10_000 >= Since.PARTITIONED_PRIMARY_KEY_NOT_VALID_YET
        )
        for index in self.rows.rows(cat.PG_INDEX, cat.INDEX_BY_RELATION, row.oid):
            key = tuple(n for n in index.indkey[: index.indnkeyatts] if n > 0)
            if index.indisprimary and (index.indisvalid or takes_invalid):
                primary = key
                deferrable = not index.indimmediate
                # A deferrable primary key is no identity.
                of_default = key if index.indimmediate else ()
            if index.indisreplident and index.indisvalid and index.indimmediate:
                of_index = key
        if row.relreplident == "f":
            return primary, deferrable, tuple(c.attnum for c in columns if not c.dropped)
        if row.relreplident == "i":
            return primary, deferrable, of_index
        return primary, deferrable, of_default if row.relreplident == "d" else ()

    # Types.

    def _add_type(self, oid: int, types: dict[int, TypeDescriptor]) -> None:
        """Add a type to *types*, and every type that its values contain."""
        if oid in types:
            return
        if self._cache is None:
            self._build_type(oid, types)
            return
        entry = self._cache.get(("type", oid))
        if entry is None:
            builder = _Builder(self._heaps, self._registry, self.rows.own_xids, self._cache)
            closure: dict[int, TypeDescriptor] = {}
            builder._build_type(oid, closure)
            self._cache.put(("type", oid), closure, builder.rows.dependencies)
            self.rows.dependencies.update(builder.rows.dependencies)
            types.update(closure)
            return
        types.update(entry[0])
        self.rows.dependencies.update(entry[1])

    def _build_type(self, oid: int, types: dict[int, TypeDescriptor]) -> None:
        row: PgType | None = self.rows.row(cat.PG_TYPE, cat.TYPE_BY_OID, oid)
        if row is None:
            # No lock keeps a type: one that was dropped while another session made a table of it
            # leaves the table behind. The server goes on as long as it need not print such a value;
            # plugins print it raw.
            return
        is_array = row.typelem != 0 and row.typsubscript == _ARRAY_SUBSCRIPT_HANDLER
        output = self.rows.row(cat.PG_PROC, cat.PROC_BY_OID, row.typoutput)
        send = self.rows.row(cat.PG_PROC, cat.PROC_BY_OID, row.typsend) if row.typsend else None
        labels: tuple[tuple[int, str], ...] = ()
        attributes: tuple[AttributeDescriptor, ...] = ()
        inner: list[int] = []
        subtype = 0
        if oid in NAMING_TYPES:
            labels = object_names(oid, self._heaps.facts, self.rows.whole)
        if row.typelem:
            inner.append(row.typelem)
        if row.typtype == "d":
            inner.append(row.typbasetype)
        elif row.typtype == "e":
            rows = self.rows.rows(cat.PG_ENUM, cat.ENUM_BY_TYPE, oid)
            rows.sort(key=_enum_order)
            labels = tuple((r.oid, r.enumlabel) for r in rows)
        elif row.typtype == "c" and row.typrelid:
            attributes = tuple(
                AttributeDescriptor(
                    r.attname, r.atttypid, r.atttypmod, r.attisdropped,
                    r.attlen, r.attalign, r.attbyval,
                )
                for r in self._attributes(row.typrelid, row.typname)
            )  # fmt: skip
            inner.extend(a.type_oid for a in attributes if not a.dropped)
        elif row.typtype in "rm":
            subtype = self._range_subtype(row)
            inner.append(subtype)
        types[oid] = TypeDescriptor(
            oid=oid,
            schema=self._schema(row.typnamespace),
            name=row.typname,
            kind=row.typtype,
            category=row.typcategory,
            length=row.typlen,
            by_value=row.typbyval,
            align=row.typalign,
            element_oid=row.typelem,
            is_array=is_array,
            delimiter=row.typdelim,
            base_oid=row.typbasetype,
            base_typmod=row.typtypmod,
            enum_labels=labels,
            attributes=attributes,
            subtype_oid=subtype,
            output="" if output is None else output.proname,
            send="" if send is None else send.proname,
        )
        for other in inner:
            if other not in types:
                self._build_type(other, types)

    def _range_subtype(self, row: PgType) -> int:
        """A range's element type; a multirange's range type."""
        if row.typtype == "r":
            of_range = self.rows.row(cat.PG_RANGE, cat.RANGE_BY_TYPE, row.oid)
            if of_range is None:
                raise self.rows.missing_row(f"range type {row.typname}", "pg_range")
            subtype: int = of_range.rngsubtype
            return subtype
        of_multirange = self.rows.row(cat.PG_RANGE, cat.RANGE_BY_MULTIRANGE, row.oid)
        if of_multirange is None:
            raise self.rows.missing_row(f"multirange type {row.typname}", "pg_range")
        range_oid: int = of_multirange.rngtypid
        return range_oid


@functools.lru_cache(maxsize=1 << 14)
def _column(*values: Any) -> ColumnDescriptor:
    """Describe a column; equal ones are mostly one object, of the descriptors before and after
    DDL.
    """
    return ColumnDescriptor(*values)


def _skip(reason: SkipReason, oid: int = 0, owner_oid: int = 0) -> Resolution:
    return Resolution(ResolutionKind.SKIP, oid, owner_oid=owner_oid, reason=reason)


def _attnum(row: Any) -> int:
    number: int = row.attnum
    return number


def _enum_order(row: Any) -> float:
    order: float = row.enumsortorder
    return order
