"""What comes out of a pgoutput stream, as values: relations, transactions' heads, changes, and the
steps that a group's changes come to.

:class:`~spillway._kernels.apply.change_group.ChangeGroup` makes all of them. The exact writer takes
a transaction change by change (:class:`Change`), the grouped writer takes what all transactions of
a group come to (:class:`Step`): a step is one statement for many rows.

Values are what pgoutput sent: a type's text form as bytes, in the stream's encoding; None for NULL;
``UNCHANGED`` for a TOAST value that was left out as it did not change; :class:`BinaryValue` for the
binary form, which comes only when it was asked for.

Source: src/include/replication/logicalproto.h and src/backend/replication/logical/proto.c; "Logical
Replication Message Formats" in PostgreSQL's documentation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias


class Unchanged(enum.Enum):
    """Has one member, so that a type checker can tell it from a value."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


#: A value that pgoutput left out: an unchanged TOAST value.
UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class BinaryValue:
    """A value as the type's send function makes it."""

    data: bytes


Value: TypeAlias = bytes | BinaryValue | Unchanged | None


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as a Relation message tells it."""

    name: str
    type_oid: int
    type_modifier: int
    #: part of the replica identity; with REPLICA IDENTITY FULL every column is
    is_key: bool


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """A Relation message. Two that say the same are equal, and of one group the same object."""

    relation_id: int
    schema: str
    name: str
    #: pg_class.relreplident: d, n, f or i
    replica_identity: str
    columns: tuple[SourceColumn, ...]

    def __hash__(self) -> int:
        # Of what is looked up many times a second; two announcements of a table are rare.
        return self.relation_id


@dataclass(frozen=True, slots=True)
class TransactionHead:
    """How a unit of the stream began and ended.

    ``kind`` is pgoutput's letter:

    - ``B``: an ordinary transaction.
    - ``b``: a prepared one, with its changes; ``K`` and ``r`` commit it or roll it back, without
      any.
    - ``S``: a stretch of a large transaction that is in progress, with its changes; ``c``, ``p``
      and ``A`` commit it, prepare it, or abort it or a subtransaction of it, without any.

    LSNs are plain integers, 0 where the message has none; times are microseconds since 2000-01-01.
    """

    kind: str
    #: the transaction; of S, c, p and A the streamed one
    xid: int
    #: of b and p the LSN of the prepare, of r of the end of the prepare, of A of the abort (from
    #: protocol 4 with streaming=parallel on)
    commit_lsn: int = 0
    #: where the commit record (prepare, rollback) ends: the position that is confirmed; 0 while a
    #: transaction is given in pieces and this is not its last
    end_lsn: int = 0
    commit_time: int = 0
    #: name, and the LSN of the commit there
    origin: tuple[str, int] | None = None
    #: of b, K, r and p
    gid: str = ""
    #: of r: when it was prepared
    prepare_time: int = 0
    #: of A: the subtransaction, or the transaction itself
    sub_xid: int = 0
    #: of S: the first stretch of its transaction
    is_first_stretch: bool = False
    #: of a transaction in pieces: an earlier one was given before
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row; or TRUNCATE, of several tables; or a logical decoding message."""

    #: I, U, D, T or M
    kind: str
    #: the table as it was when this happened; None of T and M
    relation: SourceRelation | None
    #: the subtransaction, within a streamed transaction; 0 elsewhere
    xid: int = 0
    #: the row before, a value for each of the relation's columns; None when it was not sent. Of one
    #: that *old_is_key* only columns of the key have values, others are None.
    old: tuple[Value, ...] | None = None
    old_is_key: bool = False
    new: tuple[Value, ...] | None = None
    #: of T
    truncated: tuple[SourceRelation, ...] = ()
    cascade: bool = False
    restart_identity: bool = False
    #: of M: prefix and content
    message: tuple[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Touched:
    """What a group does to one table."""

    relation: SourceRelation
    inserts: int
    updates: int
    deletes: int
    truncates: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How changes of one announced table become steps."""

    relation: SourceRelation
    #: tells the target's tables apart: changes of one table keep their order
    target: int
    #: positions of the columns that one row of the target is found by; () for inserts only
    key: tuple[int, ...]
    #: positions of columns that other unique indexes and exclusion constraints of the target look
    #: at; their values never change unseen
    watched: tuple[int, ...]
    #: positions of columns of the key whose value an update need not set, as what is equal there is
    #: the same
    unset: tuple[int, ...]
    #: how each column's values are written: a value of FORMS
    forms: bytes
    #: type of the elements of each column's array, where its form is a binary one
    type_oids: tuple[int, ...]
    #: rows from which inserts are given as COPY's data, 0 for never
    copy_from: int
    #: whether COPY may take the forms' binary values for the columns' own types
    copy_binary: bool = False
    #: transactions that commit before this don't count for this table
    since: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One statement for many rows of one table.

    ``kind`` is

    - ``delete``, ``absent``: *rows* keys; each is to be deleted, or must not be there.
    - ``update``: keys and new values. ``rekey``: likewise, where the key changes.
    - ``insert``, ``copy``: new rows.
    - ``truncate``: of *truncated*.

    Parameters are one array a column: those of the key first (of delete, absent, update, rekey),
    then those of *columns*; of ``copy`` one, COPY's data.
    """

    kind: str
    relation: SourceRelation | None
    rows: int = 0
    #: positions of the columns that have new values
    columns: tuple[int, ...] = ()
    params: tuple[bytes, ...] = ()
    #: 1 for each parameter that is binary
    formats: tuple[int, ...] = ()
    truncated: tuple[SourceRelation, ...] = ()
    cascade: bool = False
    restart_identity: bool = False
