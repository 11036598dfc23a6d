"""PostgreSQL's logical replication messages, as the plugin ``pgoutput`` writes them, in protocol
versions 1 to 4.

The client asks for values as text and for transactions as a whole, so the messages of streamed
parts (S, E, c, A, p) don't come; without them the versions are the same but for prepared
transactions, which version 3 brought.

A message is a kind byte and big-endian fields; a text ends with a zero byte. :func:`read_control`
reads what frames a transaction, :func:`read_relation` and :func:`read_type` what describes its
rows, :func:`read_change` a change.

Source: src/backend/replication/logical/proto.c; "Logical Replication Message Formats" in
PostgreSQL's documentation
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from spillway_client.errors import ConversionFailed, MalformedMessage
from spillway_client.lsn import Lsn
from spillway_client.values import Converter, built_in_name, built_in_oid, converter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_LSN_LSN_TIME_XID: Final = struct.Struct(">QQqI")
_BEGIN: Final = struct.Struct(">QqI")
_COMMIT: Final = struct.Struct(">BQQq")
_PREPARE: Final = struct.Struct(">BQQqI")
_ROLLBACK_PREPARED: Final = struct.Struct(">BQQqqI")
_UINT16: Final = struct.Struct(">H")
_UINT32: Final = struct.Struct(">I")
_UINT64: Final = struct.Struct(">Q")
_COLUMN_TYPE: Final = struct.Struct(">Ii")
_TRUNCATE: Final = struct.Struct(">IB")
_MESSAGE: Final = struct.Struct(">BQ")
_CASCADE, _RESTART_IDENTITY = 1, 2
_KEY_FLAG: Final = 1

ChangeKind = Literal["insert", "update", "delete", "truncate", "message"]


class Unchanged:
    """The type of :data:`UNCHANGED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __bool__(self) -> bool:
        raise TypeError(
            "UNCHANGED is neither true nor false: compare with `is UNCHANGED`, and leave the "
            "column as it is"
        )

    def __reduce__(self) -> str:
        return "UNCHANGED"


#: In ``new``: a large value, kept out of line (TOAST), that the update did not change, and that WAL
#: therefore does not have.
UNCHANGED: Final = Unchanged()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as of a change."""

    name: str
    type_oid: int
    #: pg_attribute.atttypmod; -1 for none
    type_modifier: int
    #: pg_type.typname; of a domain its base type's; with its schema, if that is not pg_catalog; ''
    #: if it was not said
    type_name: str
    #: it belongs to the replica identity
    is_key: bool
    convert: Converter = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as of a change."""

    oid: int
    schema: str
    name: str
    #: pg_class.relreplident: d default, n nothing, f full, i index
    replica_identity: str
    columns: tuple[Column, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the replica identity's columns."""
        return tuple(column.name for column in self.columns if column.is_key)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a transaction. Rows are dicts by column name, in the order of the columns."""

    kind: ChangeKind
    #: the table; None of a message
    relation: Relation | None = None
    #: the row that an insert or update made; None otherwise
    new: dict[str, Any] | None = None
    #: of an update or delete what WAL has of the row before: the whole row with REPLICA IDENTITY
    #: FULL; else the key's columns of a delete, and of an update that changed one of them. None
    #: where there is nothing
    old: dict[str, Any] | None = None
    #: of a truncate
    cascade: bool = False
    restart_identity: bool = False
    #: of a message (pg_logical_emit_message)
    prefix: str = ""
    content: bytes = b""
    is_transactional: bool = True

    @property
    def schema(self) -> str:
        """The table's schema; '' of a message."""
        return "" if self.relation is None else self.relation.schema

    @property
    def table(self) -> str:
        """The table's name; '' of a message."""
        return "" if self.relation is None else self.relation.name


@dataclass(frozen=True, slots=True)
class Begin:
    """BEGIN, or BEGIN PREPARE."""

    xid: int
    #: where the commit record, or that of PREPARE TRANSACTION, starts
    commit_lsn: Lsn
    commit_time: datetime
    gid: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """COMMIT; or PREPARE, COMMIT PREPARED, ROLLBACK PREPARED, which name the transaction."""

    kind: Literal["commit", "prepare", "commit_prepared", "rollback_prepared"]
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: datetime
    xid: int = 0
    gid: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The replication origin that a transaction came in through."""

    name: str
    #: where its commit is there
    lsn: Lsn


def read_control(data: bytes) -> Begin | End | Origin:
    """Read a message that frames a transaction: B, C, O, b, P, K or r.

    Raises:
        MalformedMessage: it is none, or is cut off.
    """
    try:
        return _read_control(data)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise malformed(data, error) from None


def _read_control(data: bytes) -> Begin | End | Origin:
    kind = data[:1]
    if kind == b"B":
        lsn, time, xid = _BEGIN.unpack_from(data, 1)
        return Begin(xid, Lsn(lsn), _time(time))
    if kind == b"C":
        _, lsn, end_lsn, time = _COMMIT.unpack_from(data, 1)
        return End("commit", Lsn(lsn), Lsn(end_lsn), _time(time))
    if kind == b"O":
        name, _ = _text(data, 1 + _UINT64.size)
        return Origin(name, Lsn(_UINT64.unpack_from(data, 1)[0]))
    if kind == b"b":
        lsn, _, time, xid = _LSN_LSN_TIME_XID.unpack_from(data, 1)
        gid, _ = _text(data, 1 + _LSN_LSN_TIME_XID.size)
        return Begin(xid, Lsn(lsn), _time(time), gid)
    if kind in (b"P", b"K"):
        _, lsn, end_lsn, time, xid = _PREPARE.unpack_from(data, 1)
        gid, _ = _text(data, 1 + _PREPARE.size)
        ended: Literal["prepare", "commit_prepared"] = (
            "prepare" if kind == b"P" else "commit_prepared"
        )
        return End(ended, Lsn(lsn), Lsn(end_lsn), _time(time), xid, gid)
    if kind == b"r":
        _, _, end_lsn, _, time, xid = _ROLLBACK_PREPARED.unpack_from(data, 1)
        gid, _ = _text(data, 1 + _ROLLBACK_PREPARED.size)
        return End("rollback_prepared", Lsn(end_lsn), Lsn(end_lsn), _time(time), xid, gid)
    raise ValueError(f"kind {kind!r}")


def read_type(data: bytes) -> tuple[int, str, str]:
    """Read a Y: (OID, schema, name) of a type that is not built in; of a domain its base type's
    name.

    The schema is '' for pg_catalog.

    Raises:
        MalformedMessage: it is cut off.
    """
    try:
        (oid,) = _UINT32.unpack_from(data, 1)
        schema, position = _text(data, 5)
        name, _ = _text(data, position)
    except (struct.error, ValueError) as error:
        raise malformed(data, error) from None
    return oid, schema, name


def read_relation(
    data: bytes,
    types: Mapping[int, tuple[str, str]],
    converters: Mapping[str | int, Converter],
) -> Relation:
    """Read an R.

    Args:
        data: the message.
        types: (schema, name) by OID of the types that Y messages told of.
        converters: the user's own, by the type's OID or by its name (``jsonb``, ``public.mood``).

    Raises:
        MalformedMessage: it is cut off.
    """
    try:
        (oid,) = _UINT32.unpack_from(data, 1)
        schema, position = _text(data, 5)
        name, position = _text(data, position)
        identity = chr(data[position])
        (count,) = _UINT16.unpack_from(data, position + 1)
        position += 3
        columns = []
        for _ in range(count):
            flags = data[position]
            column, position = _text(data, position + 1)
            type_oid, modifier = _COLUMN_TYPE.unpack_from(data, position)
            position += _COLUMN_TYPE.size
            type_name, convert = _type_of(type_oid, types, converters)
            columns.append(
                Column(column, type_oid, modifier, type_name, bool(flags & _KEY_FLAG), convert)
            )
    except (struct.error, ValueError, IndexError) as error:
        raise malformed(data, error) from None
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _type_of(
    oid: int, types: Mapping[int, tuple[str, str]], converters: Mapping[str | int, Converter]
) -> tuple[str, Converter]:
    schema, name = types.get(oid, ("", built_in_name(oid) or ""))
    # Of a domain over a built-in type the name is that type's, and its values are read as
    # that type's.
    read_as = oid if oid not in types else built_in_oid(name) if not schema else None
    type_name = f"{schema}.{name}" if schema else name
    own = converters.get(oid) or converters.get(type_name)
    return type_name, own or (str if read_as is None else converter_of(read_as))


def relations_of(data: bytes) -> tuple[int, ...]:
    """Return the OIDs of the tables that an I, U, D or T is of.

    Raises:
        MalformedMessage: it is cut off.
    """
    try:
        if data[:1] != b"T":
            return _UINT32.unpack_from(data, 1)
        count, _ = _TRUNCATE.unpack_from(data, 1)
        return struct.unpack_from(f">{count}I", data, 1 + _TRUNCATE.size)
    except struct.error as error:
        raise malformed(data, error) from None


def truncate_of(data: bytes, oid: int) -> bytes:
    """Return a T of one of the tables of *data*, a T of several."""
    _, flags = _TRUNCATE.unpack_from(data, 1)
    return b"T" + _TRUNCATE.pack(1, flags) + _UINT32.pack(oid)


def message_position(data: bytes) -> tuple[bool, Lsn]:
    """Return whether an M belongs to a transaction, and where it is.

    Raises:
        MalformedMessage: it is cut off.
    """
    try:
        flags, lsn = _MESSAGE.unpack_from(data, 1)
    except struct.error as error:
        raise malformed(data, error) from None
    return bool(flags & 1), Lsn(lsn)


def read_change(data: bytes, relation_of: Callable[[int], Relation]) -> Change:
    """Read an I, U, D, M, or a T of one table.

    Args:
        data: the message.
        relation_of: returns the table of an OID as of this change.

    Raises:
        MalformedMessage: it is none, or is cut off.
        ConversionFailed: a converter of the user's own refused a value.
    """
    try:
        return _read_change(data, relation_of)
    except (struct.error, IndexError) as error:
        raise malformed(data, error) from None


def _read_change(data: bytes, relation_of: Callable[[int], Relation]) -> Change:
    kind = data[:1]
    if kind == b"M":
        flags, _ = _MESSAGE.unpack_from(data, 1)
        prefix, position = _text(data, 1 + _MESSAGE.size)
        (length,) = _UINT32.unpack_from(data, position)
        content = data[position + 4 : position + 4 + length]
        return Change("message", prefix=prefix, content=content, is_transactional=bool(flags & 1))
    if kind == b"T":
        _, flags, oid = struct.unpack_from(">IBI", data, 1)
        return Change(
            "truncate",
            relation_of(oid),
            cascade=bool(flags & _CASCADE),
            restart_identity=bool(flags & _RESTART_IDENTITY),
        )
    relation = relation_of(_UINT32.unpack_from(data, 1)[0])
    position = 5
    old = new = None
    if data[position] in b"KO":
        only_key = data[position] == ord("K")
        old, position = _row(data, position + 1, relation, only_key=only_key)
    if kind in (b"I", b"U"):
        if data[position] != ord("N"):
            raise malformed(data, "the new row is missing")
        new, position = _row(data, position + 1, relation, only_key=False)
    elif kind != b"D":
        raise malformed(data, "no change is of this kind")
    if position != len(data):
        raise malformed(data, "it is too long")
    names: dict[bytes, ChangeKind] = {b"I": "insert", b"U": "update", b"D": "delete"}
    return Change(names[kind], relation, new, old)


def _row(
    data: bytes, position: int, relation: Relation, *, only_key: bool
) -> tuple[dict[str, Any], int]:
    """Read a TupleData; return the row and where it ends."""
    (count,) = _UINT16.unpack_from(data, position)
    if count != len(relation.columns):
        raise malformed(data, f"{relation} has {len(relation.columns)} columns, the row {count}")
    position += 2
    row: dict[str, Any] = {}
    for column in relation.columns:
        what = data[position]
        position += 1
        value: Any
        if what == 0x74:  # t
            (length,) = _UINT32.unpack_from(data, position)
            position += 4
            end = position + length
            if end > len(data):
                raise malformed(data, "a value is cut off")
            value = _value(data[position:end].decode("utf-8", "surrogateescape"), column, relation)
            position = end
        elif what == 0x6E:  # n
            value = None
        elif what == 0x75:  # u
            value = UNCHANGED
        else:
            raise malformed(data, f"a value is of kind {bytes([what])!r}")
        if column.is_key or not only_key:
            row[column.name] = value
    return row, position


def _value(text: str, column: Column, relation: Relation) -> Any:
    try:
        return column.convert(text)
    except Exception as error:
        # Those of the client don't raise.
        raise ConversionFailed(
            f"the converter of {relation}.{column.name} ({column.type_name or column.type_oid}) "
            f"failed: {error!r}",
            hint="Mend the converter that the slot was given for this type; the change comes "
            "again.",
            relation=str(relation),
            column=column.name,
            value=text,
        ) from error


def _time(microseconds: int) -> datetime:
    return POSTGRES_EPOCH + timedelta(microseconds=microseconds)


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(0, position)
    return data[position:end].decode("utf-8", "surrogateescape"), end + 1


def malformed(data: bytes, why: object) -> MalformedMessage:
    """Make the error of a message that can't be read."""
    return MalformedMessage(
        f"a message of pgoutput can't be read: {why}: "
        f"{data[:40].hex()}{'…' if len(data) > 40 else ''}",
        hint="The service is of a release that this client doesn't know; install the client of "
        "that release.",
    )
