"""Relation descriptors: what an encoder must know to read a table's tuples, as of one point in WAL.

A descriptor is an immutable value. The catalog mirror makes it, the transaction log stores it as
JSON beside the transactions that need it, output plugins compile it. It holds the closure of the
types that its columns use, so that delivery never asks the catalog anything.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


#: Below it are initdb's objects (FirstNormalObjectId), which publications leave out.
FIRST_NORMAL_OID: Final = 16384


@dataclass(frozen=True, slots=True)
class AttributeDescriptor:
    """One attribute of a composite type."""

    name: str
    type_oid: int
    typmod: int
    dropped: bool = False
    #: attlen, attalign, attbyval: needed to step over a dropped attribute, whose type is gone
    length: int = 0
    align: str = "i"
    by_value: bool = False


@dataclass(frozen=True, slots=True)
class TypeDescriptor:
    """A row of pg_type with what hangs on it."""

    oid: int
    schema: str
    name: str
    #: pg_type.typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo
    kind: str
    category: str
    length: int
    by_value: bool
    align: str
    #: typelem; with ``is_array`` true it is the element of a true array type
    element_oid: int = 0
    is_array: bool = False
    delimiter: str = ","
    #: domains
    base_oid: int = 0
    base_typmod: int = -1
    #: enums: (pg_enum.oid, label), in enumsortorder; regclass and its kin, aclitem: (oid, text),
    #: see ``object_names``
    enum_labels: tuple[tuple[int, str], ...] = ()
    #: composites
    attributes: tuple[AttributeDescriptor, ...] = ()
    #: ranges: rngsubtype; multiranges: the range type
    subtype_oid: int = 0
    #: name of the extension-independent output function (typoutput's proname), '' if not known
    output: str = ""
    #: typsend's proname; '' for a type without a send function
    send: str = ""


@dataclass(frozen=True, slots=True)
class ColumnDescriptor:
    """A row of pg_attribute with attnum > 0; dropped ones stay, tuples still hold them."""

    attnum: int
    name: str
    type_oid: int
    typmod: int
    length: int
    by_value: bool
    align: str
    dropped: bool = False
    not_null: bool = False
    #: attgenerated: '' or 's' stored, 'v' virtual
    generated: str = ""
    #: attidentity: '' or 'a' always, 'd' by default
    identity: str = ""
    #: The value of rows written before ADD COLUMN … DEFAULT (attmissingval), as the raw datum:
    #: by-value types as ``length`` little-endian bytes, varlena with its header, cstring without
    #: the final zero.
    missing: bytes | None = None
    #: once it was asked for: a table's columns are hashed whenever one of them has changed
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        known = self._hash
        if known is None:
            known = hash(
                (self.attnum, self.name, self.type_oid, self.typmod, self.length, self.by_value,
                 self.align, self.dropped, self.not_null, self.generated, self.identity,
                 self.missing)
            )  # fmt: skip
            object.__setattr__(self, "_hash", known)
        return known


@dataclass(frozen=True, slots=True)
class PublicationDescriptor:
    """How one publication publishes a table: pg_publication with the pg_publication_rel row that
    counts.

    Which row counts, and under which table's name changes go out, follows get_rel_sync_entry
    (src/backend/replication/pgoutput/pgoutput.c): with publish_via_partition_root the topmost
    ancestor that the publication names.
    """

    name: str
    insert: bool = True
    update: bool = True
    delete: bool = True
    truncate: bool = True
    #: pubviaroot
    via_root: bool = False
    #: oid of the table under whose name changes are published: this table's, or an ancestor's
    publish_as: int = 0
    #: column list: attnums of ``publish_as``'s columns; None without a list
    columns: tuple[int, ...] | None = None
    #: row filter: pg_publication_rel.prqual, a pg_node_tree over ``publish_as``'s attnums; None
    #: without
    row_filter: str | None = None
    #: pubgencols: 'n' none, 's' stored (18 and later)
    generated_columns: str = "n"


@dataclass(frozen=True, slots=True)
class PublicationOptions:
    """A row of pg_publication: what a publication says whatever the table."""

    oid: int
    name: str
    all_tables: bool = False
    insert: bool = True
    update: bool = True
    delete: bool = True
    truncate: bool = True
    via_root: bool = False
    generated_columns: str = "n"


@dataclass(frozen=True, slots=True)
class TableMembership:
    """A row of pg_publication_rel; its fields are as in :class:`PublicationDescriptor`."""

    publication_oid: int
    columns: tuple[int, ...] | None = None
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Memberships:
    """The publications that name a table, and those that name its schema."""

    relation_oid: int
    schema_oid: int
    tables: tuple[TableMembership, ...] = ()
    schemas: frozenset[int] = frozenset()


def published(
    kind: str, memberships: Sequence[Memberships], publications: Iterable[PublicationOptions]
) -> tuple[PublicationDescriptor, ...]:
    """Say how each of *publications* publishes a table of relkind *kind*; those that don't are left
    out.

    *memberships* are the table's and then its ancestors'; () for a table that can't be published.
    """
    if not memberships:
        return ()
    tables = [{table.publication_oid: table for table in m.tables} for m in memberships]
    described = []
    for publication in publications:
        oid = publication.oid
        top = -1
        if publication.all_tables:
            top = len(memberships) - 1
        else:
            for level, member in enumerate(memberships):
                if oid in tables[level] or oid in member.schemas:
                    top = level
        # Changes of partitions are sent, or of the root; never of a partitioned table as such.
        if top < 0 or (kind == "p" and not publication.via_root):
            continue
        level = top if publication.via_root else 0
        table = tables[level].get(oid)
        described.append(
            PublicationDescriptor(
                publication.name, publication.insert, publication.update, publication.delete,
                publication.truncate,
                publication.via_root,
                publish_as=memberships[level].relation_oid,
                columns=None if table is None else table.columns,
                # The whole schema is published, filter or not.
                row_filter=None if table is None or oid in memberships[level].schemas
                else table.row_filter,
                generated_columns=publication.generated_columns,
            )
        )  # fmt: skip
    return tuple(described)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RelationDescriptor:
    """A table as of one point in WAL. ``columns[i].attnum == i + 1``."""

    oid: int
    schema: str
    name: str
    #: pg_class.relkind: r table, p partitioned, t TOAST, m matview, S sequence, …
    kind: str
    #: pg_class.relpersistence: p permanent, u unlogged, t temporary
    persistence: str
    #: pg_class.relreplident: d default, i index, f full, n nothing
    replica_identity: str
    columns: tuple[ColumnDescriptor, ...]
    types: Mapping[int, TypeDescriptor] = field(default_factory=dict)
    #: pg_class.reltoastrelid
    toast_oid: int = 0
    #: attnums of the primary key in index order; () without one
    primary_key: tuple[int, ...] = ()
    #: its constraint is DEFERRABLE: it identifies no rows, and before 17 PostgreSQL took it for no
    #: primary key there
    primary_key_deferrable: bool = False
    #: attnums of the replica identity in index order: the key's for 'd', the index's for 'i',
    #: () for 'n', every live column for 'f'
    identity_columns: tuple[int, ...] = ()
    #: the publications that publish this table, by name: what the next two make together
    publications: tuple[PublicationDescriptor, ...] = ()
    #: Every publication of the database at this point, whether it publishes this table or not, by
    #: name: a plugin that keeps publications as the server's caches do may load them when it meets
    #: a table that none of them publishes.
    database_publications: tuple[PublicationOptions, ...] = ()
    #: of this table and then of its ancestors; () for one that is not :attr:`publishable`
    memberships: tuple[Memberships, ...] = ()
    #: pg_inherits of a partition: its parent first, the root last; without publications and
    #: ancestors of their own
    ancestors: tuple[RelationDescriptor, ...] = ()

    @property
    def publishable(self) -> bool:
        """Whether publications may publish this table (is_publishable_class): a permanent table of
        a user.
        """
        return self.kind in "rp" and self.persistence == "p" and self.oid >= FIRST_NORMAL_OID

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` reverses it exactly."""
        return {
            "oid": self.oid, "schema": self.schema, "name": self.name, "kind": self.kind,
            "persistence": self.persistence, "replica_identity": self.replica_identity,
            "toast_oid": self.toast_oid, "primary_key": list(self.primary_key),
            "primary_key_deferrable": self.primary_key_deferrable,
            "identity_columns": list(self.identity_columns),
            "database_publications": [
                [p.oid, p.name, p.all_tables, p.insert, p.update, p.delete, p.truncate, p.via_root,
                 p.generated_columns]
                for p in self.database_publications
            ],
            "memberships": [
                [m.relation_oid, m.schema_oid,
                 [[t.publication_oid, None if t.columns is None else list(t.columns), t.row_filter]
                  for t in m.tables],
                 sorted(m.schemas)]
                for m in self.memberships
            ],
            "ancestors": [a.to_json() for a in self.ancestors],
            "columns": [
                [c.attnum, c.name, c.type_oid, c.typmod, c.length, c.by_value, c.align, c.dropped,
                 c.not_null,
                 c.generated, c.identity,
                 None if c.missing is None else base64.b64encode(c.missing).decode()]
                for c in self.columns
            ],
            "types": [
                [t.oid, t.schema, t.name, t.kind, t.category, t.length, t.by_value, t.align,
                 t.element_oid, t.is_array,
                 t.delimiter, t.base_oid, t.base_typmod, [list(e) for e in t.enum_labels],
                 [[a.name, a.type_oid, a.typmod, a.dropped, a.length, a.align, a.by_value]
                  for a in t.attributes],
                 t.subtype_oid, t.output, t.send]
                for _, t in sorted(self.types.items())
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild a descriptor from :meth:`to_json`'s result."""
        columns = tuple(
            ColumnDescriptor(*[*c[:-1], None if c[-1] is None else base64.b64decode(c[-1])])
            for c in value["columns"]
        )
        types = {
            t[0]: TypeDescriptor(
                *[
                    *t[:13],
                    tuple((e[0], e[1]) for e in t[13]),
                    tuple(AttributeDescriptor(*a) for a in t[14]),
                    *t[15:],
                ]
            )
            for t in value["types"]
        }
        database_publications = tuple(
            PublicationOptions(*p) for p in value["database_publications"]
        )
        memberships = tuple(
            Memberships(
                relation,
                schema,
                tuple(
                    TableMembership(t[0], None if t[1] is None else tuple(t[1]), t[2])
                    for t in tables
                ),
                frozenset(schemas),
            )
            for relation, schema, tables, schemas in value["memberships"]
        )
        return cls(
            oid=value["oid"], schema=value["schema"], name=value["name"], kind=value["kind"],
            persistence=value["persistence"], replica_identity=value["replica_identity"],
            columns=columns, types=types, toast_oid=value["toast_oid"],
            primary_key=tuple(value["primary_key"]),
            primary_key_deferrable=value["primary_key_deferrable"],
            identity_columns=tuple(value["identity_columns"]),
            publications=published(value["kind"], memberships, database_publications),
            database_publications=database_publications, memberships=memberships,
            ancestors=tuple(cls.from_json(a) for a in value["ancestors"]),
        )  # fmt: skip
