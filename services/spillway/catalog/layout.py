"""Which system catalogs are mirrored, which of their columns are read, and by what keys rows are
found.

The hand-written part names columns only. Where a column lies in a tuple differs between majors and
is taken from pg_attribute at bootstrap (:class:`CatalogLayout`), so that no table of offsets has to
be kept. A row comes out as a named tuple with PostgreSQL's column names.

``Source: src/include/catalog/pg_*.h``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway._kernels.catalog import heap
from spillway.catalog.missing_value import MissingValue, element_of_array, varlena_body
from spillway.catalog.toast_value import TextDatum, text_of_datum
from spillway.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class PgClass(NamedTuple):
    """pg_class."""

    oid: int
    relname: str
    relnamespace: int
    relfilenode: int
    reltablespace: int
    reltoastrelid: int
    relpersistence: str
    relkind: str
    relreplident: str
    relispartition: bool
    relrewrite: int


class PgAttribute(NamedTuple):
    """pg_attribute, system columns (attnum < 0) included."""

    attrelid: int
    attname: str
    atttypid: int
    attlen: int
    attnum: int
    atttypmod: int
    attbyval: bool
    attalign: str
    attnotnull: bool
    #: None: of a row that an earlier release read over SQL, and left this out
    atthasdef: bool
    atthasmissing: bool
    attidentity: str
    attgenerated: str
    attisdropped: bool
    #: None as for atthasdef
    attcollation: int
    #: the element of attmissingval's array, not the array
    attmissingval: MissingValue


class PgType(NamedTuple):
    """pg_type."""

    oid: int
    typname: str
    typnamespace: int
    typlen: int
    typbyval: bool
    typtype: str
    typcategory: str
    typdelim: str
    typrelid: int
    typsubscript: int
    typelem: int
    typoutput: int
    typsend: int
    typalign: str
    typbasetype: int
    typtypmod: int


class PgProc(NamedTuple):
    """pg_proc: names of types' functions, and what regproc and regprocedure show."""

    oid: int
    proname: str
    pronamespace: int
    proargtypes: tuple[int, ...]


class PgOperator(NamedTuple):
    """pg_operator: what regoper and regoperator show."""

    oid: int
    oprname: str
    oprnamespace: int
    oprleft: int
    oprright: int


class PgCollation(NamedTuple):
    """pg_collation: what regcollation shows."""

    oid: int
    collname: str
    collnamespace: int
    collencoding: int


class PgTsConfig(NamedTuple):
    """pg_ts_config: what regconfig shows."""

    oid: int
    cfgname: str
    cfgnamespace: int


class PgTsDict(NamedTuple):
    """pg_ts_dict: what regdictionary shows."""

    oid: int
    dictname: str
    dictnamespace: int


class PgNamespace(NamedTuple):
    """pg_namespace."""

    oid: int
    nspname: str


class PgEnum(NamedTuple):
    """pg_enum."""

    oid: int
    enumtypid: int
    enumsortorder: float
    enumlabel: str


class PgRange(NamedTuple):
    """pg_range."""

    rngtypid: int
    rngsubtype: int
    rngmultitypid: int


class PgIndex(NamedTuple):
    """pg_index."""

    indexrelid: int
    indrelid: int
    indnkeyatts: int
    indisprimary: bool
    indimmediate: bool
    indisvalid: bool
    indisreplident: bool
    indkey: tuple[int, ...]


class PgInherits(NamedTuple):
    """pg_inherits: a partition is published with its ancestors."""

    inhrelid: int
    inhparent: int
    inhdetachpending: bool


class PgPublication(NamedTuple):
    """pg_publication."""

    oid: int
    pubname: str
    puballtables: bool
    pubinsert: bool
    pubupdate: bool
    pubdelete: bool
    pubtruncate: bool
    pubviaroot: bool
    #: 18 and later
    pubgencols: str = "n"


class PgPublicationRel(NamedTuple):
    """pg_publication_rel."""

    oid: int
    prpubid: int
    prrelid: int
    #: 15 and later, as prattrs
    prqual: TextDatum = None
    prattrs: tuple[int, ...] | None = None


class PgAuthid(NamedTuple):
    """pg_authid: what regrole and aclitem show; never the password."""

    oid: int
    rolname: str


class PgReplicationOrigin(NamedTuple):
    """pg_replication_origin."""

    roident: int
    roname: TextDatum


class ToastChunk(NamedTuple):
    """A TOAST table of a catalog."""

    chunk_id: int
    chunk_seq: int
    #: without its varlena header
    chunk_data: bytes


class PgPublicationNamespace(NamedTuple):
    """pg_publication_namespace."""

    oid: int
    pnpubid: int
    pnnspid: int


@dataclass(frozen=True, eq=False)
class TrackedCatalog:
    """A system catalog that the mirror holds."""

    oid: int
    name: str
    row_type: type[tuple[Any, ...]]
    #: column names that a row is looked up by; the position in this tuple is the index's number
    indexes: tuple[str, ...]
    #: first major that has it
    since_major: int = 14
    #: a TOAST table: a login may not read it, and nobody can lock it
    is_toast: bool = False
    #: one for all databases of the cluster; its first column is then a key
    is_shared: bool = False
    #: a view of its columns for roles that may not read the catalog itself
    view: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read, in the physical order of every major.

        Those for which the row type has a default are not in every major.
        """
        return self.row_type._fields  # type: ignore[attr-defined, no-any-return]

    def __repr__(self) -> str:
        return f"TrackedCatalog({self.name})"


#: pg_global, where the shared catalogs are.
GLOBAL_TABLESPACE: Final = 1664
#: In place of an index's number: whatever changes in the catalog.
WHOLE_CATALOG: Final = -1

# Index numbers, named for those that use them.
CLASS_BY_OID: Final = 0
CLASS_BY_RELFILENODE: Final = 1
CLASS_BY_TOAST: Final = 2
ATTRIBUTE_BY_RELATION: Final = 0
TYPE_BY_OID: Final = 0
PROC_BY_OID: Final = 0
NAMESPACE_BY_OID: Final = 0
COLLATION_BY_OID: Final = 0
ENUM_BY_TYPE: Final = 0
RANGE_BY_TYPE: Final = 0
RANGE_BY_MULTIRANGE: Final = 1
INDEX_BY_RELATION: Final = 0
INHERITS_BY_CHILD: Final = 0
PUBLICATION_BY_OID: Final = 0
PUBLICATION_BY_ALL_TABLES: Final = 1
PUBLICATION_REL_BY_RELATION: Final = 0
PUBLICATION_NAMESPACE_BY_SCHEMA: Final = 0
TOAST_BY_VALUE: Final = 0
ORIGIN_BY_ID: Final = 0

PG_CLASS: Final = TrackedCatalog(1259, "pg_class", PgClass, ("oid", "relfilenode", "reltoastrelid"))
PG_ATTRIBUTE: Final = TrackedCatalog(1249, "pg_attribute", PgAttribute, ("attrelid",))
PG_TYPE: Final = TrackedCatalog(1247, "pg_type", PgType, ("oid",))
PG_PROC: Final = TrackedCatalog(1255, "pg_proc", PgProc, ("oid",))
PG_OPERATOR: Final = TrackedCatalog(2617, "pg_operator", PgOperator, ("oid",))
PG_COLLATION: Final = TrackedCatalog(3456, "pg_collation", PgCollation, ("oid",))
PG_TS_CONFIG: Final = TrackedCatalog(3602, "pg_ts_config", PgTsConfig, ("oid",))
PG_TS_DICT: Final = TrackedCatalog(3600, "pg_ts_dict", PgTsDict, ("oid",))
PG_NAMESPACE: Final = TrackedCatalog(2615, "pg_namespace", PgNamespace, ("oid",))
PG_ENUM: Final = TrackedCatalog(3501, "pg_enum", PgEnum, ("enumtypid",))
PG_RANGE: Final = TrackedCatalog(3541, "pg_range", PgRange, ("rngtypid", "rngmultitypid"))
PG_INDEX: Final = TrackedCatalog(2610, "pg_index", PgIndex, ("indrelid",))
PG_INHERITS: Final = TrackedCatalog(2611, "pg_inherits", PgInherits, ("inhrelid",))
PG_PUBLICATION: Final = TrackedCatalog(
    6104, "pg_publication", PgPublication, ("oid", "puballtables")
)
PG_PUBLICATION_REL: Final = TrackedCatalog(
    6106, "pg_publication_rel", PgPublicationRel, ("prrelid",)
)
PG_PUBLICATION_NAMESPACE: Final = TrackedCatalog(
    6237, "pg_publication_namespace", PgPublicationNamespace, ("pnnspid",), since_major=15
)
#: of row filters
PG_PUBLICATION_REL_TOAST: Final = TrackedCatalog(
    6228, "pg_toast_6106", ToastChunk, ("chunk_id",), since_major=15, is_toast=True
)
PG_REPLICATION_ORIGIN: Final = TrackedCatalog(
    6000, "pg_replication_origin", PgReplicationOrigin, ("roident",), is_shared=True
)
PG_AUTHID: Final = TrackedCatalog(
    1260, "pg_authid", PgAuthid, ("oid",), is_shared=True, view="pg_roles"
)

#: Every mirrored catalog by oid.
TRACKED_CATALOGS: Final = {
    catalog.oid: catalog
    for catalog in (
        PG_CLASS, PG_ATTRIBUTE, PG_TYPE, PG_PROC, PG_OPERATOR, PG_COLLATION, PG_TS_CONFIG,
        PG_TS_DICT, PG_NAMESPACE, PG_ENUM, PG_RANGE, PG_INDEX,
        PG_INHERITS, PG_PUBLICATION, PG_PUBLICATION_REL, PG_PUBLICATION_NAMESPACE,
        PG_PUBLICATION_REL_TOAST, PG_REPLICATION_ORIGIN, PG_AUTHID,
    )
}  # fmt: skip

#: The columns that may be NULL, of those that are read; in their row types they come last. The
#: server counts on all others.
_NULLABLE: Final = frozenset({"attmissingval", "prqual", "prattrs"})

#: Index keys that say "nothing there": rows with them are not indexed. A mapped relation has
#: relfilenode 0, most relations have no TOAST table.
NULL_KEYS: Final = frozenset({(PG_CLASS.oid, CLASS_BY_RELFILENODE), (PG_CLASS.oid, CLASS_BY_TOAST)})


def catalogs_of(major: int) -> tuple[TrackedCatalog, ...]:
    """Return the mirrored catalogs that *major* has."""
    return tuple(c for c in TRACKED_CATALOGS.values() if c.since_major <= major)


# How the types of catalog columns are read, by pg_type.oid.
_KINDS: Final = {
    26: heap.OID,
    24: heap.OID,  # regproc
    21: heap.INT2,
    23: heap.INT4,
    16: heap.BOOL,
    18: heap.CHAR,
    19: heap.NAME,
    700: heap.FLOAT4,
    22: heap.INT2VECTOR,
    30: heap.OIDVECTOR,
    2277: heap.RAW,  # anyarray
    194: heap.RAW,  # pg_node_tree
    17: heap.RAW,  # bytea
    25: heap.RAW,  # text
}


_ALIGN_BYTES: Final = {"c": 1, "s": 2, "i": 4, "d": 8}


class PhysicalColumn(NamedTuple):
    """A column of a catalog's tuples, as pg_attribute has it."""

    name: str
    type_oid: int
    length: int
    align: str


class CatalogLayout:
    """One catalog's tuples in one major: reads the tracked columns out of a tuple."""

    def __init__(
        self, catalog: TrackedCatalog, columns: Sequence[PhysicalColumn], encoding: str, errors: str
    ) -> None:
        """Take *columns*: every column of the catalog in attnum order, as pg_attribute has them.

        Raises:
            SourceError: a column that is read is not there, or of a type that catalogs don't use.
        """
        self.catalog: Final = catalog
        self.columns: Final = tuple(columns)
        self._encoding: Final = encoding
        #: a role that was named from a database in another encoding keeps the bytes that it had
        #: there
        self.errors: Final = "surrogateescape" if catalog.is_shared else errors
        wanted = [column for column in columns if column.name in catalog.columns]
        #: names of the columns that are read and that this major has
        self.names: Final = tuple(column.name for column in wanted)
        defaults = catalog.row_type._field_defaults  # type: ignore[attr-defined]
        expected = tuple(n for n in catalog.columns if n in self.names or n not in defaults)
        if self.names != expected:
            raise SourceError(
                f"{catalog.name} has not the columns that Spillway reads",
                hint="Is this a server of another make or an unreleased version?",
                expected=list(catalog.columns),
                found=[column.name for column in columns],
            )
        for column in wanted:
            if column.type_oid not in _KINDS:
                raise SourceError(
                    f"{catalog.name}.{column.name} has the unexpected type {column.type_oid}"
                )
        #: how each wanted column is read, for COPY's output
        self.kinds: Final = tuple(_KINDS[column.type_oid] for column in wanted)
        last = max(i for i, column in enumerate(columns) if column.name in catalog.columns)
        self._deformer: Final = heap.Deformer(
            [
                (c.length, c.align, _KINDS[c.type_oid] if c.name in catalog.columns else heap.SKIP)
                for c in columns[: last + 1]
            ],
            encoding,
            self.errors,
        )
        self._places: Final = dict(_places(columns))
        self._row_type: Final[Any] = catalog.row_type
        self._never_null: Final = len(set(catalog.columns) - _NULLABLE)

    def place(self, name: str) -> tuple[int, int] | None:
        """Return where an oid column is in each tuple: its offset among the attributes and its
        place; None without a fixed one.
        """
        return self._places.get(name)

    def row(self, infomask2: int, infomask: int, hoff: int, data: bytes) -> Any:
        """Deform one tuple into the catalog's row type; *data* begins at byte 23 of the tuple.

        Raises:
            ValueError: the tuple contradicts itself.
        """
        row = self._row_type(*self._deformer.deform(infomask2, infomask, hoff, data))
        if None in row[: self._never_null]:
            raise ValueError(f"{self.catalog.name}.{self.names[row.index(None)]} is NULL")
        if self.catalog is PG_ATTRIBUTE:
            if row.attmissingval is not None:
                element = element_of_array(
                    row.attmissingval, row.attlen, row.attalign, by_value=row.attbyval
                )
                row = row._replace(attmissingval=element)
        elif self.catalog is PG_PUBLICATION_REL:
            if row.prqual is not None:
                text = text_of_datum(row.prqual, self._encoding, self.errors)
                row = row._replace(prqual=text)
        elif self.catalog is PG_REPLICATION_ORIGIN:
            row = row._replace(roname=text_of_datum(row.roname, self._encoding, self.errors))
        elif self.catalog.is_toast:
            row = row._replace(chunk_data=varlena_body(row.chunk_data))
        return row

    def sent_row(self, values: Sequence[Any]) -> Any:
        """Make a row of values that came from COPY; attmissingval is still in its send format."""
        row = self._row_type(*values)
        if self.catalog is PG_PUBLICATION_REL and isinstance(row.prqual, bytes):
            row = row._replace(prqual=row.prqual.decode(self._encoding, self.errors))
        elif self.catalog is PG_REPLICATION_ORIGIN and isinstance(row.roname, bytes):
            row = row._replace(roname=row.roname.decode(self._encoding, self.errors))
        return row


def _places(columns: Sequence[PhysicalColumn]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the oid columns before the first of variable length, with the offset and the place of
    each.

    None of those before it is ever null in a system catalog.
    """
    offset = 0
    for place, column in enumerate(columns):
        if column.length < 0:
            return
        align = _ALIGN_BYTES[column.align]
        offset = -(-offset // align) * align
        if _KINDS.get(column.type_oid) == heap.OID:
            yield column.name, (offset, place)
        offset += column.length
