"""Resolutions: catalog rows → what a relfilenode is, and the descriptor of the table it belongs to.

A descriptor holds the closure of what encoders need: the columns' types, the element, base, attribute,
range types of those, the names of output functions, enum labels; and how the table is published
(``publications``), with its ancestors' descriptors. It is *interned*: equal
content gives the same object and the same id, so that decoding binds changes to an integer and the
transaction log stores each descriptor once.

Built-in types' output functions are pg_proc rows like any other's: pg_proc is mirrored (oid and name),
because an extension's type may come and go while we decode.

Source: RelidByRelfilenumber, src/backend/utils/cache/relfilenumbermap.c; RelationGetIndexList and
RelationGetIdentityKeyBitmap, src/backend/utils/cache/relcache.c; ReorderBufferProcessTXN, reorderbuffer.c
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections import deque
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
from spillway.errors import DecodingError
from spillway.pg.lsn import Lsn
from spillway.pg.versions import Since

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from spillway.catalog.layout import PgClass, PgType, TrackedCatalog
    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.resolution_cache import EntryKey, ResolutionCache
    from spillway.catalog.tuple_store import DependencyKey
    from spillway.wal.record import RelFileLocator

#: Below it are the objects of bootstrap and of the system catalogs (FirstUnpinnedObjectId), which are
#: never decoded; information_schema's tables are above, and are.
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
    #: No visible pg_class row. Right for what a subtransaction created that has aborted, and for mapped
    #: relations that are not mirrored; wrong for a record with logical tuple data.
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
    #: kind TOAST: the table whose values it holds
    owner_oid: int = 0
    #: kind SKIP
    reason: SkipReason = SkipReason.NONE


class _Reference(weakref.ref["RelationDescriptor"]):
    """A reference that knows the id of what it refers to."""

    __slots__ = ("number",)
    number: int


class DescriptorRegistry:
    """Descriptors by id, equal ones once. Ids start at 1.

    An id means its descriptor for as long as anybody holds that object, and then comes to mean another: who keeps an id
    keeps the descriptor with it. Safe for concurrent use.

    Memory: what others hold. A registry that held its descriptors itself would grow by kilobytes with each table
    that is made, changed or dropped, for the life of the process.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._ids: Final[dict[Hashable, int]] = {}
        self._entries: Final[dict[int, tuple[_Reference, Hashable]]] = {}
        self._free: Final[list[int]] = []
        # References to what nobody holds any more. They are put here without the lock, since that can
        # happen at any allocation, also of a thread that has the lock.
        self._gone: Final[deque[_Reference]] = deque()

    def intern(self, descriptor: RelationDescriptor) -> tuple[int, RelationDescriptor]:
        """Return the id of *descriptor* and the one object that stands for its content."""
        key = _content(descriptor)
        with self._lock:
            self._forget_gone()
            number = self._ids.get(key)
            if number is not None:
                reference = self._entries[number][0]
                known = reference()
                if known is not None:
                    return number, known
                self._forget(reference)
            number = self._free.pop() if self._free else len(self._entries) + 1
            reference = _Reference(descriptor, self._gone.append)
            reference.number = number
            self._entries[number] = reference, key
            self._ids[key] = number
            return number, descriptor

    def _forget_gone(self) -> None:
        while self._gone:
            self._forget(self._gone.popleft())

    def _forget(self, reference: _Reference) -> None:
        """Give the id of a descriptor free that nobody holds; safe to repeat."""
        number = reference.number
        entry = self._entries.get(number)
        if entry is not None and entry[0] is reference:
            del self._entries[number]
            del self._ids[entry[1]]
            self._free.append(number)

    def __getitem__(self, relation_id: int) -> RelationDescriptor:
        """Return the descriptor of an id that belongs to a descriptor that the caller, or its part of the program, holds."""
        entry = self._entries.get(relation_id)
        descriptor = None if entry is None else entry[0]()
        if descriptor is None:
            raise KeyError(relation_id)
        return descriptor

    def __len__(self) -> int:
        """How many descriptors anybody holds."""
        with self._lock:
            self._forget_gone()
            return len(self._entries)


def _content(descriptor: RelationDescriptor) -> Hashable:
    """Everything that tells a descriptor from another, as something that has a hash."""
    return (
        descriptor.oid, descriptor.schema, descriptor.name, descriptor.kind,
        descriptor.persistence, descriptor.replica_identity, descriptor.columns,
        tuple(descriptor.types[oid] for oid in sorted(descriptor.types)),
        descriptor.toast_oid, descriptor.primary_key, descriptor.primary_key_deferrable, descriptor.identity_columns,
        # Its publications are what the kind and these two make together.
        descriptor.database_publications, descriptor.memberships,
        tuple(map(_content, descriptor.ancestors)),
    )  # fmt: skip


#: The registry of this process; ids from different databases do not collide in it.
REGISTRY: Final = DescriptorRegistry()


def resolve(
    mirror: CatalogMirror,
    key: EntryKey,
    own_xids: Collection[int],
    cache: ResolutionCache | None = None,
) -> Resolution:
    """Resolve ("locator", RelFileLocator) or ("oid", int); called by the mirror.

    With *cache*, the view is the one of those without catalog changes of their own.
    """
    if cache is not None:
        entry = cache.get(key)
        if entry is not None:
            resolution: Resolution = entry[0]
            return resolution
    builder = _Builder(mirror, own_xids, cache)
    resolution = builder.by_locator(key[1]) if key[0] == "locator" else builder.by_oid(key[1])
    if cache is not None:
        cache.put(key, resolution, builder.dependencies)
    return resolution


class _Builder:
    """Builds one resolution, and notes every look-up that it makes."""

    def __init__(
        self, mirror: CatalogMirror, own_xids: Collection[int], cache: ResolutionCache | None
    ) -> None:
        self.mirror: Final = mirror
        self._own_xids = own_xids
        self._cache = cache
        self.dependencies: set[DependencyKey] = set()

    # Rows.

    def rows(self, catalog: TrackedCatalog, index: int, key: Any) -> list[Any]:
        """List the visible rows with *key*."""
        self.dependencies.add((catalog.oid, index, key))
        return [tup.row for tup in self.mirror.visible_tuples(catalog, index, key, self._own_xids)]

    def _row(self, catalog: TrackedCatalog, index: int, key: Any) -> Any | None:
        """Return the visible row with a unique key, None without one."""
        rows = self.rows(catalog, index, key)
        if len(rows) > 1:
            tuples = self.mirror.visible_tuples(catalog, index, key, self._own_xids)
            raise self.mirror.contradiction(catalog, tuples, f"{catalog.indexes[index]} {key}")
        return rows[0] if rows else None

    def error(self, message: str, hint: str, **details: object) -> DecodingError:
        """Make the error for a catalog that can't be understood."""
        return DecodingError(
            f"{message}, at {Lsn(self.mirror.last_lsn)}",
            hint=hint,
            lsn=str(Lsn(self.mirror.last_lsn)),
            **details,
        )

    def _missing_row(self, what: str, relation: str) -> DecodingError:
        return self.error(
            f"{what} is not in the catalog mirror",
            "The catalog mirror went wrong: bootstrap this database again, and report it as a bug.",
            relation=relation,
        )

    # Relations.

    def by_locator(self, locator: RelFileLocator) -> Resolution:
        locations = self.mirror.locations
        if locator.db != self.mirror.facts.database_oid:
            return _skip(SkipReason.OTHER_DATABASE)
        if locator in self.mirror.tracked or (
            locator.rel in locations.relation_map.values()
            and locator.spc == locations.default_tablespace
        ):
            return _skip(SkipReason.SYSTEM_CATALOG)
        # Temporary relations have numbers of their own, which may equal a permanent one's.
        rows = [
            row
            for row in self.rows(cat.PG_CLASS, cat.CLASS_BY_RELFILENODE, locator.rel)
            if (row.reltablespace or locations.default_tablespace) == locator.spc
            and row.relpersistence != "t"
        ]
        if len(rows) > 1:
            tuples = self.mirror.visible_tuples(
                cat.PG_CLASS, cat.CLASS_BY_RELFILENODE, locator.rel, self._own_xids
            )
            raise self.mirror.contradiction(cat.PG_CLASS, tuples, f"relfilenode {locator.rel}")
        return self._relation(rows[0]) if rows else _skip(SkipReason.UNKNOWN)

    def by_oid(self, oid: int) -> Resolution:
        row = self._row(cat.PG_CLASS, cat.CLASS_BY_OID, oid)
        return _skip(SkipReason.UNKNOWN) if row is None else self._relation(row)

    def _relation(self, row: PgClass) -> Resolution:
        if row.relrewrite:
            return _skip(SkipReason.REWRITE, row.oid)
        if row.oid < _FIRST_UNPINNED_OID:
            return _skip(SkipReason.SYSTEM_CATALOG, row.oid)
        if row.relkind not in "rpmt":
            return _skip(SkipReason.NOT_A_TABLE, row.oid)
        owner_oid = 0
        if row.relkind == "t":
            owner = self._row(cat.PG_CLASS, cat.CLASS_BY_TOAST, row.oid)
            if owner is None:
                return _skip(SkipReason.UNKNOWN, row.oid)
            if owner.relrewrite:
                return _skip(SkipReason.REWRITE, row.oid)
            owner_oid = owner.oid
        ancestors = ancestors_of(self, row)
        publications = all_publications(self)
        memberships = memberships_of(self, row, ancestors)
        descriptor = replace(
            self._descriptor(row),
            publications=published(row.relkind, memberships, publications),
            database_publications=publications,
            memberships=memberships,
            ancestors=tuple(self._descriptor(ancestor) for ancestor in ancestors),
        )
        number, descriptor = self.mirror.registry.intern(descriptor)
        kind = ResolutionKind.TOAST if owner_oid else ResolutionKind.TABLE
        return Resolution(kind, row.oid, number, descriptor, owner_oid)

    def _descriptor(self, row: PgClass) -> RelationDescriptor:
        """Describe a table but for how it is published."""
        name = f"{self._schema(row.relnamespace)}.{row.relname}"
        columns = self._columns(row.oid, name)
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
        row = self._row(cat.PG_NAMESPACE, cat.NAMESPACE_BY_OID, oid)
        if row is None:
            raise self._missing_row(f"schema {oid}", "pg_namespace")
        name: str = row.nspname
        return name

    def _attributes(self, relation_oid: int, name: str) -> list[Any]:
        """The rows of pg_attribute with attnum > 0, in order, without a gap."""
        rows = self.rows(cat.PG_ATTRIBUTE, cat.ATTRIBUTE_BY_RELATION, relation_oid)
        rows = sorted((row for row in rows if row.attnum > 0), key=_attnum)
        if [row.attnum for row in rows] != list(range(1, len(rows) + 1)):
            tuples = self.mirror.visible_tuples(
                cat.PG_ATTRIBUTE, cat.ATTRIBUTE_BY_RELATION, relation_oid, self._own_xids
            )
            raise self.error(
                f"the columns of {name} have the numbers {[row.attnum for row in rows]}",
                "The catalog mirror went wrong: bootstrap this database again, and report it as a bug.",
                relation=name,
                ctids=[list(tup.ctid) for tup in tuples],
            )
        return rows

    def _columns(self, relation_oid: int, name: str) -> tuple[ColumnDescriptor, ...]:
        columns = []
        for row in self._attributes(relation_oid, name):
            missing = row.attmissingval if row.atthasmissing else None
            if isinstance(missing, UnreadableMissing):
                raise self.error(
                    f"the value that rows from before column {row.attname} of {name} have for it is"
                    f" not known: type {missing.type_name} can't be read over SQL",
                    "Bootstrap with a superuser's DSN (raw bootstrap), or rewrite the table:"
                    " VACUUM FULL.",
                    relation=name,
                    column=row.attname,
                )
            columns.append(
                ColumnDescriptor(
                    row.attnum, row.attname, row.atttypid, row.atttypmod, row.attlen,
                    row.attbyval, row.attalign, row.attisdropped, row.attnotnull,
                    row.attgenerated, row.attidentity, missing,
                )
            )  # fmt: skip
        return tuple(columns)

    def _keys(
        self, row: PgClass, columns: tuple[ColumnDescriptor, ...]
    ) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """The primary key's attnums, whether it is deferrable, and the replica identity's attnums."""
        primary: tuple[int, ...] = ()
        deferrable = False
        of_default: tuple[int, ...] = ()
        of_index: tuple[int, ...] = ()
        takes_invalid = (
            row.relkind == "p"
            and self.mirror.facts.major * 10_000 >= Since.PARTITIONED_PRIMARY_KEY_NOT_VALID_YET
        )
        for index in self.rows(cat.PG_INDEX, cat.INDEX_BY_RELATION, row.oid):
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
            builder = _Builder(self.mirror, self._own_xids, self._cache)
            closure: dict[int, TypeDescriptor] = {}
            builder._build_type(oid, closure)
            self._cache.put(("type", oid), closure, builder.dependencies)
            self.dependencies |= builder.dependencies
            types.update(closure)
            return
        types.update(entry[0])
        self.dependencies |= entry[1]

    def whole(self, catalog: TrackedCatalog) -> list[Any]:
        """Every visible row of *catalog*."""
        self.dependencies.add((catalog.oid, cat.WHOLE_CATALOG, None))
        return self.mirror.all_visible(catalog, self._own_xids)

    def _build_type(self, oid: int, types: dict[int, TypeDescriptor]) -> None:
        row: PgType | None = self._row(cat.PG_TYPE, cat.TYPE_BY_OID, oid)
        if row is None:
            # No lock keeps a type: one that was dropped while another session made a table of it leaves the table
            # behind. The server goes on as long as it need not print such a value; plugins print it raw.
            return
        is_array = row.typelem != 0 and row.typsubscript == _ARRAY_SUBSCRIPT_HANDLER
        output = self._row(cat.PG_PROC, cat.PROC_BY_OID, row.typoutput)
        send = self._row(cat.PG_PROC, cat.PROC_BY_OID, row.typsend) if row.typsend else None
        labels: tuple[tuple[int, str], ...] = ()
        attributes: tuple[AttributeDescriptor, ...] = ()
        inner: list[int] = []
        subtype = 0
        if oid in NAMING_TYPES:
            labels = object_names(oid, self.mirror.facts, self.whole)
        if row.typelem:
            inner.append(row.typelem)
        if row.typtype == "d":
            inner.append(row.typbasetype)
        elif row.typtype == "e":
            rows = self.rows(cat.PG_ENUM, cat.ENUM_BY_TYPE, oid)
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
            of_range = self._row(cat.PG_RANGE, cat.RANGE_BY_TYPE, row.oid)
            if of_range is None:
                raise self._missing_row(f"range type {row.typname}", "pg_range")
            subtype: int = of_range.rngsubtype
            return subtype
        of_multirange = self._row(cat.PG_RANGE, cat.RANGE_BY_MULTIRANGE, row.oid)
        if of_multirange is None:
            raise self._missing_row(f"multirange type {row.typname}", "pg_range")
        range_oid: int = of_multirange.rngtypid
        return range_oid


def _skip(reason: SkipReason, oid: int = 0) -> Resolution:
    return Resolution(ResolutionKind.SKIP, oid, reason=reason)


def _attnum(row: Any) -> int:
    number: int = row.attnum
    return number


def _enum_order(row: Any) -> float:
    order: float = row.enumsortorder
    return order
