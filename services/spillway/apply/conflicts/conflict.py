"""One conflict: what was met, and what became of it.

:meth:`Conflict.message` and :meth:`Conflict.detail` are PostgreSQL 18's word for word (19's for
update_deleted), so that whoever knows its log can read ours. In rows and keys a value is the text
that the type's output function makes; None is NULL.

Source: ReportApplyConflict, errdetail_apply_conflict, build_tuple_value_details
(src/backend/replication/logical/conflict.c), ExecBuildSlotValueDescription
(src/backend/executor/execMain.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.conflicts.kinds import EXISTS, ConflictKind, Resolution
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = dict[str, bytes | None]

#: Longer values are cut in the detail's rows, in bytes, as PostgreSQL's are.
_SHOWN_BYTES: Final = 64
_MISSING: Final = "Could not find the row to be updated"


@dataclass(frozen=True, slots=True)
class LocalRow:
    """A row of the target that a change met.

    Attributes:
        row: all of its columns.
        xid: the transaction that wrote it last; 0 if that is not known.
        origin: whose: the origin's name, "" for a transaction of the target itself, None for an
            origin that was dropped since, and for all rows if the target does not keep it.
        committed_at: when; None if the target does not keep it, or no longer.
        unique_index: the index that has its key already; "" if it is not about one.
        key_columns: of that index, as PostgreSQL names them.
        key: their values.
    """

    row: Row
    xid: int = 0
    origin: str | None = None
    committed_at: datetime | None = None
    unique_index: str = ""
    key_columns: tuple[str, ...] = ()
    key: tuple[bytes | None, ...] = ()

    def _by(self, verb: str, *, another: str = "") -> str:
        transaction = f"in transaction {self.xid}"
        if self.committed_at is None:
            return f"{verb} {transaction}"
        at = f"{transaction} at {_shown_time(self.committed_at)}"
        if self.origin == "":
            return f"{verb} locally {at}"
        if self.origin is None:
            return f"{verb} by a non-existent origin {at}"
        return f'{verb} by {another}origin "{self.origin}" {at}'

    def as_json(self) -> dict[str, Any]:
        """What JSON can say."""
        found: dict[str, Any] = {"row": row_as_json(self.row), "xid": self.xid}
        if self.committed_at is not None:
            found |= {"origin": self.origin, "committed_at": self.committed_at.isoformat()}
        if self.unique_index:
            found["unique_index"] = self.unique_index
        return found


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict and its resolution.

    Attributes:
        kind: what was met.
        resolution: what was done about it, which may be less than was wished: ``why``.
        schema, table: on the target; of a partitioned table the partition, where it is known.
        local: the rows that were met, one but for multiple_unique_conflicts; none if it is missing.
            Of update_deleted as it was, with who deleted it and when.
        remote: the source's new row, all of the target's columns; None for a delete.
        identity: by what the row was looked for; None for an insert.
        identity_columns: the columns of the replica identity index or primary key; empty if whole
            rows are compared.
        origin: of the change, as the source says; "" if it was made there.
        committed_at: on the source.
        lsn: of the commit on the source.
        xid: of the transaction on the source.
        number: of the change in its transaction, from 1.
        why: why the resolution is another than was wished; "" if it is not.
    """

    kind: ConflictKind
    resolution: Resolution
    schema: str
    table: str
    local: tuple[LocalRow, ...]
    remote: Row | None
    identity: Row | None
    identity_columns: tuple[str, ...]
    origin: str
    committed_at: datetime
    lsn: int
    xid: int
    number: int
    why: str = ""

    @property
    def conflict_id(self) -> str:
        """The same whenever the same transaction is tried again."""
        return f"{Lsn(self.lsn)}/{self.number}/{self.kind.value}"

    @property
    def sqlstate(self) -> str:
        """As PostgreSQL has it: unique_violation, or serialization_failure."""
        return "23505" if self.kind in EXISTS else "40001"

    def message(self) -> str:
        """PostgreSQL's errmsg."""
        return (
            f'conflict detected on relation "{self.schema}.{self.table}": '
            f"conflict={self.kind.value}"
        )

    def detail(self) -> str:
        """PostgreSQL's errdetail: a line that says what, a line with the rows, for each row met."""
        return "\n".join(self._lines(one) for one in self.local or (None,))

    def _lines(self, local: LocalRow | None) -> str:
        values: list[str] = []
        if self.kind in EXISTS and local is not None:
            columns = ", ".join(local.key_columns)
            values.append(f"Key ({columns})=({_listed(local.key)})")
        is_gone = self.kind == ConflictKind.UPDATE_DELETED
        if local is not None and not is_gone:
            values.append(f"existing local row {_shown(local.row)}")
        if self.remote is not None:
            values.append(f"remote row {_shown(self.remote)}")
        if self.identity is not None:
            values.append(self._identity())
        if is_gone:
            return f"{_MISSING}: {', '.join(values)}.\n{self._said(local)}"
        line = "; ".join(values)
        return f"{self._said(local)}\n{line[:1].upper()}{line[1:]}."

    def _identity(self) -> str:
        assert self.identity is not None
        if not self.identity_columns:
            return f"replica identity full {_shown(self.identity)}"
        # As in a message about an index: names as SQL has them, values whole.
        values = _listed(tuple(self.identity[name] for name in self.identity_columns))
        names = ", ".join(map(_quoted, self.identity_columns))
        return f"replica identity ({names})=({values})"

    def _said(self, local: LocalRow | None) -> str:
        if local is not None and self.kind in EXISTS:
            by = local._by("modified")  # noqa: SLF001 - of this module
            return f'Key already exists in unique index "{local.unique_index}", {by}.'
        different = "a different "
        if local is not None and self.kind == ConflictKind.UPDATE_ORIGIN_DIFFERS:
            by = local._by("modified", another=different)  # noqa: SLF001
            return f"Updating the row that was {by}."
        if local is not None and self.kind == ConflictKind.DELETE_ORIGIN_DIFFERS:
            by = local._by("modified", another=different)  # noqa: SLF001
            return f"Deleting the row that was {by}."
        if local is not None and self.kind == ConflictKind.UPDATE_DELETED:
            if local.committed_at is None:
                return "The row to be updated was deleted."
            by = local._by("deleted", another=different)  # noqa: SLF001
            return f"The row to be updated was {by}."
        if self.kind == ConflictKind.DELETE_MISSING:
            return "Could not find the row to be deleted."
        return f"{_MISSING}."

    def as_json(self) -> dict[str, Any]:
        """What is written down of it: JSON's types only."""
        return {
            "id": self.conflict_id,
            "kind": self.kind.value,
            "resolution": self.resolution.value,
            "why": self.why,
            "schema": self.schema,
            "table": self.table,
            "local": [one.as_json() for one in self.local],
            "remote": None if self.remote is None else row_as_json(self.remote),
            "identity": self._identity_as_json(),
            "origin": self.origin,
            "committed_at": self.committed_at.isoformat(),
            "lsn": str(Lsn(self.lsn)),
            "xid": self.xid,
            "number": self.number,
            "detail": self.detail(),
        }

    def _identity_as_json(self) -> dict[str, str | None] | None:
        if self.identity is None:
            return None
        names = self.identity_columns or tuple(self.identity)
        return row_as_json({name: self.identity[name] for name in names})


def row_as_json(row: Mapping[str, bytes | None]) -> dict[str, str | None]:
    """A row with its values as texts; a byte that is not UTF-8 is escaped."""
    return {
        name: None if value is None else value.decode(errors="backslashreplace")
        for name, value in row.items()
    }


def _shown(row: Mapping[str, bytes | None]) -> str:
    return f"({', '.join(_cut(value) for value in row.values())})"


def _listed(values: tuple[bytes | None, ...]) -> str:
    return ", ".join("null" if one is None else one.decode(errors="replace") for one in values)


def _cut(value: bytes | None) -> str:
    if value is None:
        return "null"
    if len(value) <= _SHOWN_BYTES:
        return value.decode(errors="replace")
    # Never within a character.
    return value[:_SHOWN_BYTES].decode(errors="ignore") + "..."


def _quoted(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower()
    if plain and not name[:1].isdigit():
        return name
    return '"' + name.replace('"', '""') + '"'


def _shown_time(at: datetime) -> str:
    """As PostgreSQL's log in UTC; no more digits of a second than it has."""
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f"{at.microsecond:06}".rstrip("0")
    return f"{text}{'.' + fraction if fraction else ''}+00"
