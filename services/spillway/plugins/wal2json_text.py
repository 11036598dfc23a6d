"""The text around values in wal2json's messages: what depends on options and descriptors, made
once.

Format 1 is one JSON object a transaction, a change an object in its array; a row's columns are
arrays of names, types and so on beside an array of values (:class:`Section`). Format 2 is one
object a change, a row's columns an array of objects (:class:`Cell`). The kernel
(``_kernels/encoders/wal2json/encoder.pyx``) puts these pieces together with values.

Which columns are shown: in a new row all; as the identity of a row those of the replica identity's
index, or all where there is no such index (the original takes an empty set of columns for no
restriction).

Source: tuple_to_stringinfo, pk_to_stringinfo, pg_decode_write_tuple (eulerto/wal2json, 2.5)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.pg.versions import Since
from spillway.plugins.type_names import format_type_with_typmod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
    from spillway.pg.text_settings import TextSettings
    from spillway.plugins.wal2json_options import Wal2JsonOptions

# How a value is written; the kernel's enum.
QUOTED: Final = 0
NUMBER: Final = 1
BOOLEAN: Final = 2
BYTEA: Final = 3

#: int8, int2, int4, oid, float4, float8, numeric
_NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})
_STYLES: Final = {16: BOOLEAN, 17: BYTEA, **dict.fromkeys(_NUMBERS, NUMBER)}


@dataclass(frozen=True, slots=True)
class Section:
    """One of format 1's arrays beside the values: *pieces* of the columns shown, by column."""

    head: bytes
    pieces: tuple[bytes, ...]
    tail: bytes


@dataclass(frozen=True, slots=True)
class Cell:
    """A column in format 2: before its value, and behind it where it is a new row's."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class RelationText:
    """What a relation's rows are put together from; tuples are by column, b'' for dropped ones."""

    #: filter-tables and add-tables let it pass
    selected: bool
    #: schema and table as members of a change's object
    name: bytes
    #: it has a primary key (rd_pkindex), an index that identifies its rows (rd_replidindex)
    has_pk: bool
    has_identity_index: bool
    live: tuple[bool, ...]
    in_identity: tuple[bool, ...]
    in_pk: tuple[bool, ...]
    styles: tuple[int, ...]
    #: format 1
    row_sections: tuple[Section, ...] = ()
    key_sections: tuple[Section, ...] = ()
    #: the whole "pk" member without what separates it from a next one; b'' when it is not shown
    pk: bytes = b""
    #: format 2
    cells: tuple[Cell, ...] = ()


def json_string(text: str) -> str:
    """Write *text* as escape_json does: DEL and what is not ASCII stay."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Format1Layout:
    """Blanks of format 1 and the members' names with them."""

    #: empty unless pretty-print
    tab: str
    newline: str
    space: str

    @classmethod
    def of(cls, options: Wal2JsonOptions) -> Format1Layout:
        return cls("\t", "\n", " ") if options.pretty_print else cls("", "", "")

    def member(self, depth: int, name: str) -> str:
        return f'{self.tab * depth}"{name}":{self.space}'

    def end(self) -> str:
        """What separates members on lines of their own."""
        return f",{self.newline}"

    def change(self, kind: str) -> str:
        """Return the beginning of a change's object."""
        return f'{{{self.newline}{self.member(3, "kind")}"{kind}"{self.end()}'


def relation_text(
    descriptor: RelationDescriptor, options: Wal2JsonOptions, settings: TextSettings
) -> RelationText:
    """Make a relation's text for the format that *options* name."""
    build = _format1 if options.format_version == 1 else _format2
    return build(_Relation(descriptor, options, settings))


class _Relation:
    """A descriptor under options, with what both formats ask of it."""

    def __init__(
        self, descriptor: RelationDescriptor, options: Wal2JsonOptions, settings: TextSettings
    ) -> None:
        self.descriptor = descriptor
        self.options = options
        self.settings = settings
        version = settings.server_version_num
        self.has_pk = bool(descriptor.primary_key) and (
            version >= Since.DEFERRABLE_PRIMARY_KEY_INDEX or not descriptor.primary_key_deferrable
        )
        self.has_identity_index = descriptor.replica_identity in "di" and bool(
            descriptor.identity_columns
        )
        self.live = tuple(not c.dropped for c in descriptor.columns)
        self.in_identity = self._members(
            descriptor.identity_columns if self.has_identity_index else ()
        )
        self.in_pk = self._members(descriptor.primary_key if self.has_pk else ())

    def _members(self, attnums: tuple[int, ...]) -> tuple[bool, ...]:
        columns = self.descriptor.columns
        return tuple(not c.dropped and (not attnums or c.attnum in attnums) for c in columns)

    def encoded(self, text: str) -> bytes:
        return text.encode(self.settings.encoding, "surrogateescape")

    def by_column(self, piece: Callable[[ColumnDescriptor], str]) -> tuple[bytes, ...]:
        return tuple(b"" if c.dropped else self.encoded(piece(c)) for c in self.descriptor.columns)

    def type_name(self, column: ColumnDescriptor) -> str:
        """Return what a column's type is called under the options."""
        oid, typmod = column.type_oid, column.typmod
        domain = self._shown_base(column)
        if domain is not None:
            oid, typmod = domain
        types = self.descriptor.types
        # Format 2 prints modifiers whatever include-typmod says.
        if self.options.include_typmod or self.options.format_version > 1:
            settings = self.settings
            return format_type_with_typmod(
                oid, typmod, types, settings.server_version_num, settings.visible_schemas
            )
        descriptor = types.get(oid)
        return "???" if descriptor is None else descriptor.name

    def shown_type(self, column: ColumnDescriptor) -> int:
        """Return the type by which format 1 prints a column's value and oid: a domain's base where
        it names that.
        """
        base = self._shown_base(column) if self.options.include_types else None
        return column.type_oid if base is None else base[0]

    def _shown_base(self, column: ColumnDescriptor) -> tuple[int, int] | None:
        descriptor = self.descriptor.types.get(column.type_oid)
        if (
            descriptor is None
            or descriptor.kind != "d"
            or not self.options.include_domain_data_type
        ):
            return None
        return descriptor.base_oid, descriptor.base_typmod


def _quoted_type(name: str, *, arrays: bool) -> str:
    """Write a type's name as a string of JSON. One that SQL quotes is taken to be quoted already,
    as in the original, which makes an exception for arrays, but (*arrays* false) not among the
    primary key's types.
    """
    if name.startswith('"') and not (arrays and name.endswith("]")):
        return name
    return json_string(name)


def _format1(relation: _Relation) -> RelationText:
    options, descriptor = relation.options, relation.descriptor
    layout = Format1Layout.of(options)
    name = f"{layout.member(3, 'table')}{json_string(descriptor.name)}{layout.end()}"
    if options.include_schemas:
        schema = f"{layout.member(3, 'schema')}{json_string(descriptor.schema)}{layout.end()}"
        name = schema + name
    # 2.5 shows it only where it is the replica identity.
    shows_pk = relation.has_pk and (
        options.version != "2.5"
        or (relation.has_identity_index and descriptor.replica_identity == "d")
    )
    return RelationText(
        selected=options.selects(descriptor.schema, descriptor.name),
        name=relation.encoded(name),
        has_pk=relation.has_pk,
        has_identity_index=relation.has_identity_index,
        live=relation.live,
        in_identity=relation.in_identity,
        in_pk=relation.in_pk,
        styles=tuple(
            _STYLES.get(relation.shown_type(c), QUOTED) for c in descriptor.columns
        ),
        row_sections=tuple(_sections(relation, layout, depth=3, prefix="column", of_row=True)),
        key_sections=tuple(_sections(relation, layout, depth=4, prefix="key", of_row=False)),
        pk=_format1_pk(relation, layout) if options.include_pk and shows_pk else b"",
    )  # fmt: skip


def _sections(
    relation: _Relation, layout: Format1Layout, *, depth: int, prefix: str, of_row: bool
) -> Iterable[Section]:
    """Make the arrays beside the values, in the order in which the original prints them."""
    options = relation.options

    def section(name: str, piece: Callable[[ColumnDescriptor], str]) -> Section:
        head = f"{layout.member(depth, prefix + name)}["
        return Section(
            head.encode(), relation.by_column(piece), f"]{layout.end()}".encode()
        )  # fmt: skip

    yield section("names", lambda c: json_string(c.name))
    if options.include_types:
        yield section("types", lambda c: _quoted_type(relation.type_name(c), arrays=True))
    if options.include_type_oids:
        yield section("typeoids", lambda c: str(relation.shown_type(c)))
    if of_row and options.include_column_positions:
        yield section("positions", lambda c: str(c.attnum))
    if of_row and options.include_not_null:
        optionals = section("optionals", lambda c: "false" if c.not_null else "true")
        # Without types the original prints the array, but nothing in it.
        yield (
            optionals
            if options.include_types
            else Section(optionals.head + optionals.tail, (), b"")
        )


def _format1_pk(relation: _Relation, layout: Format1Layout) -> bytes:
    columns = [
        c for c, shown in zip(relation.descriptor.columns, relation.in_pk, strict=True) if shown
    ]
    comma = f",{layout.space}"
    names = comma.join(json_string(c.name) for c in columns)
    types = ""
    if relation.options.include_types:
        types = comma.join(_quoted_type(relation.type_name(c), arrays=False) for c in columns)
    return relation.encoded(
        f"{layout.member(3, 'pk')}{{{layout.newline}"
        f"{layout.member(4, 'pknames')}[{names}]{layout.end()}"
        f"{layout.member(4, 'pktypes')}[{types}]{layout.newline}"
        f"{layout.tab * 3}}}"
    )


def _format2(relation: _Relation) -> RelationText:
    options, descriptor = relation.options, relation.descriptor
    name = f',"table":{json_string(descriptor.name)}'
    if options.include_schemas:
        name = f',"schema":{json_string(descriptor.schema)}{name}'
    return RelationText(
        selected=options.selects(descriptor.schema, descriptor.name),
        name=relation.encoded(name),
        has_pk=relation.has_pk,
        has_identity_index=relation.has_identity_index,
        live=relation.live,
        in_identity=relation.in_identity,
        in_pk=relation.in_pk,
        styles=tuple(_STYLES.get(c.type_oid, QUOTED) for c in descriptor.columns),
        cells=tuple(
            Cell(b"", b"") if c.dropped else _cell(relation, c) for c in descriptor.columns
        ),
    )  # fmt: skip


def _cell(relation: _Relation, column: ColumnDescriptor) -> Cell:
    options = relation.options
    head = f'{{"name":{json_string(column.name)}'
    tail = ""
    if options.include_types:
        head += f',"type":{_quoted_type(relation.type_name(column), arrays=True)}'
    if options.include_type_oids:
        # Printed as a signed number.
        oid = column.type_oid
        head += f',"typeoid":{oid - (1 << 32) if oid >= 1 << 31 else oid}'
    if options.include_not_null:
        tail += f',"optional":{"false" if column.not_null else "true"}'
    if options.include_column_positions:
        tail += f',"position":{column.attnum}'
    return Cell(relation.encoded(head), (tail + "}").encode())
