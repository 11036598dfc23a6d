"""What somebody asks of the changes that are retained, and what is found, as values.

A :class:`ChangeQuery` is answered by pages. A page goes on where the one before ended: at a
:class:`Position`, which is a change's own place in the log and so means the same for the same
question, however much came or went meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from spillway.errors import InvalidRequest
from spillway.pg.timestamps import microseconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn

MESSAGE: Final = "message"
OPERATIONS: Final = ("insert", "update", "delete", "truncate", MESSAGE)
#: changes of one page
LIMIT_MAX: Final = 1000

_POSITION: Final = re.compile(r"([0-9A-F]{1,16})\.([0-9A-F]{1,16})\.([0-9]{1,10})\.([0-9]{1,10})")
_LSN_MAX: Final = (1 << 64) - 1


class Position(NamedTuple):
    """A change's place: changes are in this order, as they were committed and made."""

    commit_lsn: int
    lsn: int = 0
    #: the table's: one TRUNCATE may be of several
    table_oid: int = 0
    #: of those with one lsn, as the rows of a COPY
    number: int = 0

    def __str__(self) -> str:
        return f"{self.commit_lsn:X}.{self.lsn:X}.{self.table_oid}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reverse str().

        Raises:
            InvalidRequest: *text* is none.
        """
        found = _POSITION.fullmatch(text)
        if found is None:
            raise InvalidRequest(
                f"{text!r} is no place in the changes",
                hint="Give the answer's `next` as it is, with the same question.",
            )
        return cls(int(found[1], 16), int(found[2], 16), int(found[3]), int(found[4]))

    @classmethod
    def before(cls, commit_lsn: int) -> Self:
        """Return the place behind everything that commits before *commit_lsn*."""
        return cls(max(0, commit_lsn - 1), _LSN_MAX, 0, 0)


@dataclass(frozen=True, slots=True)
class ChangeQuery:
    """Which changes; what is not given does not matter."""

    #: ``schema.table`` or ``table``: under a name that it has or had, or of a partitioned table
    table: str = ""
    #: columns with the values that the row has or had, as PostgreSQL prints them
    key: Mapping[str, str] = field(default_factory=dict)
    #: of :data:`OPERATIONS`; empty: all, of a table those that tables have
    operations: frozenset[str] = frozenset()
    #: of logical messages, no others then
    prefix: str | None = None
    xid: int | None = None
    #: when it was committed, the latter not included; a message outside of transactions never was
    since: datetime | None = None
    until: datetime | None = None
    #: where its transaction's commit record starts, the latter not included
    from_lsn: Lsn | None = None
    upto_lsn: Lsn | None = None
    newest_first: bool = False
    limit: int = 100
    #: go on behind this one
    after: Position | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the log.

        Raises:
            InvalidRequest: something is none.
        """
        if not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidRequest(
                f"limit is {self.limit}",
                hint=f"Give a number from 1 to {LIMIT_MAX}; `next` of an answer goes on.",
            )
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise InvalidRequest(
                    f"{operation!r} is no operation", hint=f"Give one of {', '.join(OPERATIONS)}."
                )
        if self.key and not self.table:
            raise InvalidRequest(
                "a key is given, and no table that it belongs to",
                hint="Give the table, too: schema.table.",
            )
        if self.prefix is not None and self.operations - {MESSAGE}:
            raise InvalidRequest(
                "a prefix is given, and an operation that has none",
                hint="Leave out the prefix, or ask for the operation message alone.",
            )
        if self.table and (self.prefix is not None or self.operations == {MESSAGE}):
            raise InvalidRequest(
                "logical messages are asked for, and a table: they are of none",
                hint="Leave out the table, or the operation message and the prefix.",
            )
        if self.xid is not None and not 0 <= self.xid < 1 << 32:
            raise InvalidRequest(
                f"xid is {self.xid}", hint="A transaction's xid is a number below 4294967296."
            )

    @property
    def has_times(self) -> bool:
        """Say whether it is asked when something was committed."""
        return self.since is not None or self.until is not None

    @property
    def from_time(self) -> int:
        """``since`` in microseconds since 2000-01-01."""
        return -(1 << 63) if self.since is None else microseconds(self.since)

    @property
    def upto_time(self) -> int:
        return (1 << 63) - 1 if self.until is None else microseconds(self.until)


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A column of a changed row, before and after. A text is what PostgreSQL prints."""

    name: str
    type: str
    is_key: bool
    #: value: the text; null; unknown: WAL does not say; none: there was no row
    old_is: str
    new_is: str
    old: str | None = None
    new: str | None = None
    #: None: that can't be told
    changed: bool | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What pg_logical_emit_message wrote."""

    transactional: bool
    prefix: str
    content: bytes

    @property
    def text(self) -> str | None:
        """The content, where it is UTF-8."""
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None

    @property
    def hex(self) -> str:
        """The content as PostgreSQL prints bytes."""
        return f"\\x{self.content.hex()}"


@dataclass(frozen=True, slots=True)
class FoundChange:
    """One change of one row, a TRUNCATE of one table, or a logical message."""

    operation: str
    #: as they were then; empty, and oid 0, for a message
    schema: str
    table: str
    table_oid: int
    #: where its record starts; of a message, where it ends, as PostgreSQL tells it
    lsn: Lsn
    #: of a message outside of transactions its own record's, from its start to its end
    commit_lsn: Lsn
    commit_end_lsn: Lsn
    xid: int
    #: None: a message outside of transactions
    committed_at: datetime | None
    #: replication origin that the transaction came through
    origin: str | None
    columns: tuple[ColumnValue, ...]
    position: Position
    #: None unless it is one
    message: LogicalMessage | None = None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """What was found, and where that was looked for."""

    changes: tuple[FoundChange, ...]
    #: where the next page goes on; None: this is all
    following: Position | None
    #: the tables that the question means, under the names that they have in what is retained
    tables: tuple[str, ...]
    #: every change that commits in [from, upto) was looked at by this page
    looked_from_lsn: Lsn
    looked_upto_lsn: Lsn
    #: what commits before this is not retained; and when its first transaction was committed, if
    #: that is known
    retained_from_lsn: Lsn
    retained_from: datetime | None
    #: how far WAL is decoded
    decoded_lsn: Lsn
    #: the question is about what is not retained, too: removed, or from before decoding began
    began_earlier: bool
    #: this page ended because its time was over
    timed_out: bool = False
    #: DELETEs that may be of that row: WAL has not got the columns that were asked for
    undecided: int = 0
    #: [from, upto) that can't be read: the log is damaged there
    unreadable: tuple[tuple[Lsn, Lsn], ...] = ()
    #: bytes of changes that were read for it, and that needed not be
    read_bytes: int = 0
    passed_over_bytes: int = 0
