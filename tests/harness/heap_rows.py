"""Rows as they lie on a real server's heap pages, in the change format, with their descriptor from
SQL.

What an output plugin gets from the decoder, without the decoder: pageinspect shows the tuples of a
table, SQL its catalog rows. TOAST values come from the TOAST table.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spillway.catalog.descriptor import (
    AttributeDescriptor,
    ColumnDescriptor,
    RelationDescriptor,
    TypeDescriptor,
)
from spillway.decoding import change_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg

    from harness.cluster import Database


@dataclass(frozen=True)
class Session:
    """One connection to a database, for tests that ask much."""

    connection: psycopg.Connection[tuple[Any, ...]]

    def execute(self, sql: str, params: Sequence[object] | None = None) -> None:
        self.connection.execute(sql, params)

    def query(self, sql: str, params: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, params).fetchall()

    def value(self, sql: str, params: Sequence[object] | None = None) -> Any:
        ((only,),) = self.query(sql, params)
        return only


@contextmanager
def session(db: Database) -> Iterator[Session]:
    with db.connect() as connection:
        yield Session(connection)


def relation_descriptor(db: Database | Session, table: str) -> RelationDescriptor:
    """Return the descriptor of *table* (a name as in SQL) as of now."""
    ((oid, schema, name, kind, persistence, identity, toast_oid),) = db.query(
        "SELECT c.oid::int8, nspname, relname, relkind::text, relpersistence::text, "
        "relreplident::text, reltoastrelid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = "
        "relnamespace WHERE c.oid = %s::regclass",
        [table],
    )
    columns = tuple(
        ColumnDescriptor(*row)
        for row in db.query(
            "SELECT attnum::int, attname, atttypid::int8, atttypmod, attlen::int, attbyval, "
            "attalign::text, attisdropped, attnotnull, attgenerated::text, attidentity::text FROM "
            "pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY attnum",
            [oid],
        )
    )
    return RelationDescriptor(
        oid, schema, name, kind, persistence, identity, columns,
        types=type_closure(db, (c.type_oid for c in columns if not c.dropped)), toast_oid=toast_oid,
    )  # fmt: skip


def type_closure(db: Database | Session, oids: Iterable[int]) -> dict[int, TypeDescriptor]:
    types: dict[int, TypeDescriptor] = {}
    todo = list(oids)
    while todo:
        oid = todo.pop()
        if oid in types or oid == 0:
            continue
        found = db.query(
            "SELECT t.oid::int8, nspname, typname, typtype::text, typcategory::text, typlen::int, "
            "typbyval, typalign::text, typelem::int8,"
            " typelem <> 0 AND typsubscript = 'array_subscript_handler'::regproc,"
            " typdelim::text, typbasetype::int8, typtypmod, p.proname, coalesce(s.proname, ''), "
            "typrelid::int8 FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace JOIN "
            "pg_proc p ON p.oid = typoutput LEFT JOIN pg_proc s ON s.oid = typsend WHERE t.oid = "
            "%s",
            [oid],
        )
        if not found:
            continue
        (
            oid, schema, name, kind, category, length, by_value, align, element, is_array,
            delimiter, base, typmod,
            output, send, relation,
        ) = found[0]  # fmt: skip
        extra: dict[str, Any] = {}
        todo += [element, base]
        if kind == "e":
            extra["enum_labels"] = tuple(
                db.query(
                    "SELECT oid::int8, enumlabel FROM pg_enum WHERE enumtypid = %s ORDER BY "
                    "enumsortorder",
                    [oid],
                )
            )
        elif output == "aclitemout":
            extra["enum_labels"] = tuple(db.query("SELECT oid::int8, rolname FROM pg_roles"))
        elif kind == "c":
            extra["attributes"] = tuple(
                AttributeDescriptor(*row)
                for row in db.query(
                    "SELECT attname, atttypid::int8, atttypmod, attisdropped, attlen::int, "
                    "attalign::text, attbyval FROM pg_attribute WHERE attrelid = %s AND attnum > 0 "
                    "ORDER BY attnum",
                    [relation],
                )
            )
            todo += [a.type_oid for a in extra["attributes"]]
        elif kind in "rm":
            key, value = (
                ("rngtypid", "rngsubtype") if kind == "r" else ("rngmultitypid", "rngtypid")
            )
            extra["subtype_oid"] = db.value(
                f"SELECT {value}::int8 FROM pg_range WHERE {key} = %s", [oid]
            )
            todo.append(extra["subtype_oid"])
        types[oid] = TypeDescriptor(
            oid, schema, name, kind, category, length, by_value, align, element, is_array,
            delimiter, base,
            typmod, output=output, send=send, **extra,
        )  # fmt: skip
    return types


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def build_change(
    action: int,
    *,
    relation: int = 1,
    new: bytes | None = None,
    old: bytes | None = None,
    toast: dict[int, bytes] | None = None,
    lsn: int = 0x16B3748,
    xid: int = 700,
) -> bytes:
    """Lay one change out; *new* and *old* are whole sections."""
    body = pad(new or b"") + pad(old or b"")
    for value_id, data in (toast or {}).items():
        body += struct.pack("<II", value_id, len(data)) + pad(data)
    flags = (change_format.HAS_NEW if new is not None else 0) | (
        change_format.HAS_OLD if old is not None else 0
    )
    header = struct.pack(
        "<IBBHIIQII",
        change_format.HEADER_SIZE + len(body), action, flags, len(toast or {}), relation, xid, lsn,
        len(new or b""), len(old or b""),
    )  # fmt: skip
    return header + body


def tuple_section(infomask2: int, infomask: int, hoff: int, after_header: bytes) -> bytes:
    """*after_header*: the tuple from its null bitmap on, padding included."""
    return struct.pack("<HHB3x", infomask2, infomask, hoff) + after_header


def toast_values(db: Database | Session, descriptor: RelationDescriptor) -> dict[int, bytes]:
    if not descriptor.toast_oid:
        return {}
    name = db.value("SELECT relname FROM pg_class WHERE oid = %s", [descriptor.toast_oid])
    return dict(
        db.query(
            "SELECT chunk_id::int8, string_agg(chunk_data, '' ORDER BY chunk_seq) FROM "
            f"pg_toast.{name} GROUP BY 1"
        )
    )


def sections(db: Database | Session, table: str) -> list[bytes]:
    """Return the tuple sections of the live rows of *table* in ctid order."""
    db.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
    rows = db.query(
        "SELECT t_infomask2, t_infomask, t_hoff::int, t_bits, t_data FROM"
        " generate_series(0, pg_relation_size(%s) / current_setting('block_size')::int - 1) block,"
        " heap_page_items(get_raw_page(%s, block::int)) WHERE t_data IS NOT NULL AND t_xmax = "
        "'0'::xid ORDER BY block, lp",
        [table, table],
    )
    result = []
    for infomask2, infomask, hoff, bits, data in rows:
        bitmap = b""
        if bits is not None:
            bitmap = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
        result.append(
            tuple_section(infomask2, infomask, hoff, bitmap.ljust(hoff - 23, b"\0") + data)
        )
    return result
