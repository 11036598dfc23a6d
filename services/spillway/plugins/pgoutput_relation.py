"""How pgoutput publishes one table: by which rules, under which name, with which columns, and how
it is announced.

A slot names publications; a table's descriptor says how each publication of the database publishes
it. Here they are combined. A table may be in several of them: its actions add up, and among
partitions the topmost ancestor that any of them publishes gives changes their name, their columns
and their filters. Column lists do not add up: they must be the same.

PostgreSQL works this out once per table and keeps it until an invalidation; the kernel does the
same. What publications say, which PostgreSQL caches too, comes from ``pgoutput_publications``.

Source: get_rel_sync_entry, check_and_init_gencol, pgoutput_column_list_init,
pgoutput_row_filter_init, send_relation_and_attrs (src/backend/replication/pgoutput/pgoutput.c);
logicalrep_write_rel, logicalrep_write_typ, logicalrep_should_publish_column (logical/proto.c)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spillway.errors import ConflictingPublications, DecodingError
from spillway.pg.versions import Since

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spillway.catalog.descriptor import (
        ColumnDescriptor,
        PublicationDescriptor,
        RelationDescriptor,
    )
    from spillway.plugins.row_filter import RowFilter

#: Types from here on are not the same in every database (FirstGenbkiObjectId): consumers are told
#: their names.
_FIRST_GENBKI_OID: Final = 10000

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Publishing:
    """The rules by which a slot publishes one table."""

    insert: bool = False
    update: bool = False
    delete: bool = False
    truncate: bool = False
    #: oid of the table under whose name changes go out
    publish_as: int = 0
    #: attnums of ``publish_as``'s published columns; None: all but generated ones
    columns: frozenset[int] | None = None
    #: without a column list: stored generated columns, too
    generated: bool = False
    #: row filters of each action (pg_node_tree): a row is published if any of them is true; (): all
    #: rows are
    insert_filters: tuple[str, ...] = ()
    update_filters: tuple[str, ...] = ()
    delete_filters: tuple[str, ...] = ()

    def target(self, descriptor: RelationDescriptor) -> RelationDescriptor:
        """Return the table under whose name changes of *descriptor* go out: itself, or one of its
        ancestors.
        """
        if self.publish_as == descriptor.oid:
            return descriptor
        for ancestor in descriptor.ancestors:
            if ancestor.oid == self.publish_as:
                return ancestor
        raise DecodingError(
            f"table {descriptor.schema}.{descriptor.name} is published as {self.publish_as}, which "
            "is none of its ancestors"
        )

    def publishes(self, column: ColumnDescriptor) -> bool:
        """Say whether *column* is published."""
        if column.dropped:
            return False
        if self.columns is not None:
            return column.attnum in self.columns
        return not column.generated or (self.generated and column.generated == "s")


def publishing_of(
    descriptor: RelationDescriptor,
    publications: Sequence[PublicationDescriptor],
    server_version_num: int,
) -> Publishing:
    """Combine what *publications*, in the order of the slot's option, say of a table that they
    publish.

    Raises:
        ConflictingPublications: they contradict each other; the text is PostgreSQL's own.
    """
    if not publications or not descriptor.publishable:
        return Publishing(publish_as=descriptor.oid)
    levels = {descriptor.oid: 0}
    levels |= {a.oid: level for level, a in enumerate(descriptor.ancestors, 1)}
    top = max(publications, key=lambda p: levels.get(p.publish_as, 0)).publish_as
    # The others publish the table under another name, which is not used.
    counting = [p for p in publications if p.publish_as == top]
    actions = Publishing(
        insert=any(p.insert for p in publications),
        update=any(p.update for p in publications),
        delete=any(p.delete for p in publications),
        truncate=any(p.truncate for p in publications),
        publish_as=top,
    )
    if not (actions.insert or actions.update or actions.delete):
        return actions
    target = actions.target(descriptor)
    if server_version_num >= Since.PGOUTPUT_GENERATED_COLUMNS:
        columns, generated = _columns_since_18(target, counting)
    else:
        columns = _columns_before_18(target, counting, server_version_num)
        generated = False
    return Publishing(
        actions.insert,
        actions.update,
        actions.delete,
        actions.truncate,
        top,
        columns,
        generated,
        _filters([p for p in counting if p.insert]),
        _filters([p for p in counting if p.update]),
        _filters([p for p in counting if p.delete]),
    )


def _filters(publications: Sequence[PublicationDescriptor]) -> tuple[str, ...]:
    filters = tuple(p.row_filter for p in publications if p.row_filter is not None)
    # One without a filter publishes every row.
    return filters if len(filters) == len(publications) else ()


def _columns_before_18(
    target: RelationDescriptor,
    publications: Sequence[PublicationDescriptor],
    server_version_num: int,
) -> frozenset[int] | None:
    whole = len(target.columns)
    if server_version_num >= Since.PGOUTPUT_LISTS_LIVE_COLUMNS:
        whole = sum(1 for c in target.columns if not c.dropped and not c.generated)
    lists = set()
    for publication in publications:
        columns = None if publication.columns is None else frozenset(publication.columns)
        # A list of all columns is as good as none.
        lists.add(None if columns is not None and len(columns) == whole else columns)
    if len(lists) > 1:
        raise _different_lists(target)
    return lists.pop()


def _columns_since_18(
    target: RelationDescriptor, publications: Sequence[PublicationDescriptor]
) -> tuple[frozenset[int] | None, bool]:
    generated = "n"
    if any(c.generated for c in target.columns):
        # A column list says itself which generated columns it wants.
        choices = {p.generated_columns for p in publications if p.columns is None}
        if len(choices) > 1:
            raise ConflictingPublications(
                "cannot use different values of publish_generated_columns for table"
                f' "{target.schema}.{target.name}" in different publications',
                hint="Give the publications of the slot the same publish_generated_columns.",
            )
        generated = choices.pop() if choices else "n"
    if all(p.columns is None for p in publications):
        return None, generated == "s"
    every = Publishing(generated=generated == "s")
    whole = frozenset(c.attnum for c in target.columns if every.publishes(c))
    lists = {whole if p.columns is None else frozenset(p.columns) for p in publications}
    if len(lists) > 1:
        raise _different_lists(target)
    return lists.pop(), generated == "s"


def _different_lists(target: RelationDescriptor) -> ConflictingPublications:
    return ConflictingPublications(
        f'cannot use different column lists for table "{target.schema}.{target.name}"'
        " in different publications",
        hint="Give the table the same column list in all publications of the slot, or none.",
    )


def with_ancestor(descriptor: RelationDescriptor, target: RelationDescriptor) -> RelationDescriptor:
    """Return *descriptor* with *target* among its ancestors, if it is neither that nor there."""
    if target.oid == descriptor.oid or any(a.oid == target.oid for a in descriptor.ancestors):
        return descriptor
    return replace(descriptor, ancestors=(*descriptor.ancestors, target))


def published_attnums(descriptor: RelationDescriptor, publishing: Publishing) -> tuple[int, ...]:
    """Return the attnums of the columns to send, in the order of the table under whose name they go
    out.

    A partition has its root's columns by name, maybe at other places.
    """
    target = publishing.target(descriptor)
    published = [c for c in target.columns if publishing.publishes(c)]
    if target is descriptor:
        return tuple(c.attnum for c in published)
    by_name = {c.name: c.attnum for c in descriptor.columns if not c.dropped}
    try:
        return tuple(by_name[c.name] for c in published)
    except KeyError as error:
        raise DecodingError(
            f"partition {descriptor.schema}.{descriptor.name} lacks column {error} of"
            f" {target.schema}.{target.name}"
        ) from None


def row_filters(
    descriptor: RelationDescriptor, publishing: Publishing, encoding: str
) -> tuple[RowFilter | None, RowFilter | None, RowFilter | None]:
    """Compile the row filters for INSERT, UPDATE and DELETE.

    Raises:
        UnsupportedFeature: one can't be evaluated exactly.
        DecodingError: one can't be understood.
    """
    insert, update, delete = (
        _row_filter(descriptor, publishing, filters, encoding) if filters else None
        for filters in (
            publishing.insert_filters,
            publishing.update_filters,
            publishing.delete_filters,
        )
    )
    return insert, update, delete


def _row_filter(
    descriptor: RelationDescriptor, publishing: Publishing, filters: Sequence[str], encoding: str
) -> RowFilter:
    # Arrow is heavy, and few slots filter rows.
    from spillway.plugins.row_filter import compile_row_filter  # noqa: PLC0415

    return compile_row_filter(descriptor, publishing.target(descriptor), filters, encoding=encoding)


def announcement(descriptor: RelationDescriptor, publishing: Publishing) -> tuple[bytes, ...]:
    """Return the messages that tell a consumer what a table is: TYPE and RELATION, its root's
    first.

    Without the xid after their first byte that they have within a streamed transaction.
    """
    tables = [descriptor]
    if publishing.publish_as != descriptor.oid:
        tables.insert(0, publishing.target(descriptor))
    return tuple(message for table in tables for message in _announce(table, publishing))


def _announce(table: RelationDescriptor, publishing: Publishing) -> Iterator[bytes]:
    # A column list has attnums of the table under whose name changes go out; PostgreSQL applies it
    # to the partition's own announcement as it stands, even where the partition's attnums are
    # others.
    columns = [c for c in table.columns if publishing.publishes(c)]
    for column in columns:
        if column.type_oid >= _FIRST_GENBKI_OID:
            yield _type_message(table, column)
    identity = frozenset(table.identity_columns)
    body = bytearray(b"R")
    body += _U32.pack(table.oid)
    body += _schema(table.schema) + _string(table.name)
    body += table.replica_identity.encode()
    body += _U16.pack(len(columns))
    for column in columns:
        body.append(table.replica_identity == "f" or column.attnum in identity)
        body += _string(column.name) + _U32.pack(column.type_oid) + _I32.pack(column.typmod)
    yield bytes(body)


def _type_message(table: RelationDescriptor, column: ColumnDescriptor) -> bytes:
    """A column's type; a domain by the name of what is under it."""
    descriptor = table.types.get(column.type_oid)
    while descriptor is not None and descriptor.kind == "d":
        descriptor = table.types.get(descriptor.base_oid)
    if descriptor is None:
        raise DecodingError(
            f"type {column.type_oid} of column {table.schema}.{table.name}.{column.name} did not "
            "come with its table"
        )
    return b"Y" + _U32.pack(column.type_oid) + _schema(descriptor.schema) + _string(descriptor.name)


def _schema(name: str) -> bytes:
    """A schema's name; pg_catalog's is left out."""
    return b"\0" if name == "pg_catalog" else _string(name)


def _string(text: str) -> bytes:
    return text.encode(errors="surrogateescape") + b"\0"
