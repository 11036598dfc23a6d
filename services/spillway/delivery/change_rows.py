"""Changes of the transaction log as rows that a person reads, those of one key picked out.

In come chunks of changes that a sieve has let through (``_kernels/reorder/change_search.pyx``); the
``arrow`` plugin's encoder takes them apart, every column as PostgreSQL prints it. Out go
:class:`FoundChange`. Whether a row has the key is asked of whole columns in Arrow; Python sees the
rows that do.

A column is in a row's old values when WAL has it: the replica identity's columns, when one of them
changed, or with REPLICA IDENTITY FULL all of them. An UPDATE whose WAL has no old row did not
change its replica identity, which is known thereby. What is not known is said to be unknown.
"""

from __future__ import annotations

import operator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spillway._kernels.encoders.arrow.encoder import Encoder
from spillway._kernels.reorder.change_search import NO_RELATION, messages_of, ordinals
from spillway.decoding.transaction import TransactionKind
from spillway.delivery.change_query import (
    MESSAGE,
    ColumnValue,
    FoundChange,
    LogicalMessage,
    Position,
)
from spillway.delivery.key_values import KeyValue, key_value
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.pg.text_settings import TextSettings
from spillway.pg.timestamps import UNIX_EPOCH_US, moment
from spillway.plugins.arrow import record_batch
from spillway.plugins.arrow_schema import (
    CHANGE_FIELDS,
    SchemaOptions,
    base_type,
    plan_table,
)
from spillway.plugins.type_names import format_type_with_typmod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spillway._kernels.encoders.arrow.encoder import Table
    from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.delivery.change_query import ChangeQuery
    from spillway.plugins.arrow_schema import ColumnPlan, TablePlan

_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1 << 16
_OUTSIDE: Final = TransactionKind.MESSAGE
_OPERATIONS: Final = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}


class _Batch(NamedTuple):
    """A table's rows of one stretch, and what they mean."""

    plan: TablePlan
    rows: pa.RecordBatch

    def new(self, at: int) -> pa.Array:
        """Return the values of column *at* of the plan, after the change."""
        return self.rows.column(len(CHANGE_FIELDS) + bool(self.plan.key_columns) + at)

    def has_old(self) -> pa.Array | None:
        """Say which rows have an old one; None where the table's WAL never has."""
        return self.rows.column(len(CHANGE_FIELDS)).is_valid() if self.plan.key_columns else None

    def old(self, at: int) -> pa.Array:
        """Return the values of identity column *at*, before the change."""
        # field() would leave out that the struct itself may be null.
        return pc.struct_field(self.rows.column(len(CHANGE_FIELDS)), at)


class RowFinder:
    """Makes rows of changes, for one question. For one thread."""

    def __init__(
        self,
        query: ChangeQuery,
        server_version_num: int,
        encoding: str,
        wants: Callable[[int], bool],
    ) -> None:
        """*wants* says whether the table of an oid is asked for."""
        settings, _ = TextSettings.from_options({}, server_version_num, encoding)
        options = SchemaOptions(
            server_version_num, not_utf8_escaped=True, all_as_text=True, settings=settings
        )
        self._encoder = Encoder(
            settings, partial(plan_table, options=options), _BATCH_BYTES, _BATCH_ROWS
        )
        self._query = query
        self._version = server_version_num
        self._encoding = encoding
        self._wants = wants
        self._keep = query.limit + 1
        self._prefix = _encoded(query.prefix or "", encoding)
        self._messages: list[FoundChange] = []
        self._last: dict[int, tuple[int, int, int]] = {}
        self._origins: dict[int, str] = {}
        #: DELETEs of which WAL does not say whether they are of the row
        self.undecided = 0
        #: whether some table had every column of the key; its columns, if not
        self.has_columns: bool | None = None
        self.other_columns: tuple[str, ...] = ()

    # -- the sieve ----------------------------------------------------------------------------

    def needle(self, relations: Mapping[int, RelationDescriptor], relation_id: int) -> bytes | None:
        """Say what a change of this relation must hold; None: it is not asked for.

        Raises:
            InvalidRequest: a value of the key can't be one of its column's type.
        """
        if relation_id == NO_RELATION:
            return None if self._query.table else self._prefix
        relation = relations.get(relation_id)
        if relation is None or not self._wants(relation.oid):
            return None
        if not self._query.key:
            return b""
        columns = _columns(relation)
        if not self._query.key.keys() <= columns.keys():
            if self.has_columns is None:
                self.has_columns = False
                self.other_columns = tuple(columns)
            return None
        self.has_columns = True
        identity = {relation.columns[n - 1].name for n in relation.identity_columns}
        needles = []
        for name, value in self._query.key.items():
            column = columns[name]
            found = self._value(relation, column, value).needle
            if column.missing is not None or column.name not in identity:
                # It may be a row's without lying in its tuple; or a DELETE has not got it.
                found = b""
            needles.append(found)
        return max(needles, key=len)

    def _value(
        self, relation: RelationDescriptor, column: ColumnDescriptor, value: str
    ) -> KeyValue:
        oid, typmod = base_type(column.type_oid, column.typmod, relation.types)
        return key_value(value, oid, typmod, column.name, self._encoding)

    # -- rows ---------------------------------------------------------------------------------

    def gather(
        self,
        header: TransactionHeader,
        changes: bytes,
        relations: Mapping[int, RelationDescriptor],
    ) -> list[FoundChange]:
        """Take in changes of one transaction; return rows when there are many already."""
        found: list[FoundChange] = []
        if header.origin_name:
            self._origins[header.final_lsn] = header.origin_name
        if not self._query.table:
            self._gather_messages(header, changes)
        encoder = self._encoder
        encoder.begin(header.xid, header.final_lsn, header.end_lsn, header.commit_time)
        offset, size = 0, len(changes)
        while offset < size:
            offset = encoder.gather(changes, offset, relations)
            if encoder.full:
                found += self.take()
        encoder.commit()
        return found

    def _gather_messages(self, header: TransactionHeader, changes: bytes) -> None:
        """Take in the logical messages among *changes*; of very many, what a page may show."""
        query, after = self._query, self._query.after
        for lsn, transactional, prefix, content in messages_of(changes):
            if query.prefix is not None and prefix != self._prefix:
                continue
            position = Position(header.final_lsn, lsn)
            if after is not None and (
                position >= after if query.newest_first else position <= after
            ):
                continue
            if len(self._messages) >= 2 * self._keep:
                if not query.newest_first:
                    return
                del self._messages[: -self._keep]
            self._messages.append(
                FoundChange(
                    MESSAGE,
                    "",
                    "",
                    0,
                    Lsn(lsn),
                    Lsn(header.final_lsn),
                    Lsn(header.end_lsn),
                    header.xid,
                    moment(header.commit_time) if header.kind is not _OUTSIDE else None,
                    readable(header.origin_name) if header.origin_name else None,
                    (),
                    position,
                    LogicalMessage(transactional, _text(prefix, self._encoding), content),
                )
            )

    def take(self) -> list[FoundChange]:
        """Return the rows that were gathered and are asked for, in their order; of very many, those
        that come first, or last if that is asked for.
        """
        found: list[FoundChange] = []
        for table in self._encoder.take():
            if self._wants(table.plan.descriptor.oid):
                found += self._rows(table)
        self._encoder.taken()
        self._origins.clear()
        found += self._messages
        self._messages = []
        found.sort(key=operator.attrgetter("position"))
        return found

    def _rows(self, table: Table) -> list[FoundChange]:
        batch = _Batch(table.plan, record_batch(table))
        rows = batch.rows
        oid = table.plan.descriptor.oid
        commits, lsns = rows.column("_commit_lsn"), rows.column("_lsn")
        numbers, self._last[oid] = ordinals(
            _numbers(commits), _numbers(lsns), self._last.get(oid, (0, 0, 0))
        )
        number = pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(numbers)])
        mask = self._mask(batch)
        after = self._query.after
        if after is not None:
            place = _beyond(
                (commits, lsns, None, number), after, oid, newest_first=self._query.newest_first
            )
            mask = place if mask is None else pc.and_(mask, place)
        if mask is None:
            indices = pa.array(range(len(rows)), pa.uint64())
        else:
            indices = pc.indices_nonzero(pc.fill_null(mask, False))
        keep = self._keep
        indices = indices[-keep:] if self._query.newest_first else indices[:keep]
        if not len(indices):
            return []
        taken = _Batch(batch.plan, rows.take(indices))
        return self._found(taken, number.take(indices).to_pylist())

    def _mask(self, batch: _Batch) -> pa.Array | None:
        """Say which rows have the key; None: all are wanted."""
        key = self._query.key
        if not key:
            return None
        plan = batch.plan
        relation = plan.descriptor
        ops = batch.rows.column("_op")
        new, old = [], []
        is_known = True
        identity = {p.column.attnum: at for at, p in enumerate(plan.key_columns)}
        for name, value in key.items():
            at = _index(plan, name)
            if at is None:
                return pa.array([False] * len(batch.rows))
            column = plan.columns[at].column
            looked_for = self._value(relation, column, value)
            new.append(looked_for.is_in(batch.new(at)))
            if column.attnum in identity:
                old.append(looked_for.is_in(batch.old(identity[column.attnum])))
            else:
                is_known = False
        mask = reduce(pc.and_, new)
        if is_known and old:
            return pc.or_kleene(
                pc.fill_null(mask, False), pc.fill_null(reduce(pc.and_, old), False)
            )
        deletes = pc.equal(ops, "D")
        if old:
            deletes = pc.and_(deletes, pc.fill_null(reduce(pc.and_, old), True))
        self.undecided += pc.sum(pc.cast(deletes, pa.int64())).as_py() or 0
        return mask

    def _found(self, batch: _Batch, numbers: Sequence[int]) -> list[FoundChange]:
        plan = batch.plan
        relation = plan.descriptor
        rows = batch.rows
        columns = [batch.new(at).to_pylist() for at in range(len(plan.columns))]
        has_old = batch.has_old()
        known = has_old.to_pylist() if has_old is not None else [False] * len(rows)
        old = {
            key.column.attnum: batch.old(at).to_pylist() for at, key in enumerate(plan.key_columns)
        }
        keys = frozenset(relation.primary_key or relation.identity_columns)
        own = [
            rows.column(field.name).to_pylist()
            for field in CHANGE_FIELDS
            if field.name != "_commit_time"
        ]
        times = rows.column("_commit_time").cast(pa.int64()).to_pylist()
        types = [self._type(relation, column) for column in plan.columns]
        found = []
        for at, (op, lsn, commit_lsn, end_lsn, xid, _, unchanged) in enumerate(
            zip(*own, strict=True)
        ):
            values = tuple(
                _column(
                    column,
                    type_,
                    op,
                    columns[c][at],
                    # A row of the old identity, or that it did not change.
                    (True, old[column.column.attnum][at])
                    if known[at] and column.column.attnum in old
                    else (False, None),
                    is_key=column.column.attnum in keys,
                    stays=op == "U" and not known[at] and column.column.attnum in old,
                    is_unchanged=column.name in (unchanged or ()),
                )
                for c, (column, type_) in enumerate(zip(plan.columns, types, strict=True))
            )  # fmt: skip
            found.append(
                FoundChange(
                    _OPERATIONS[op],
                    readable(relation.schema),
                    readable(relation.name),
                    relation.oid,
                    Lsn(lsn),
                    Lsn(commit_lsn),
                    Lsn(end_lsn),
                    xid,
                    moment(times[at] - UNIX_EPOCH_US),
                    readable(self._origins[commit_lsn]) if commit_lsn in self._origins else None,
                    () if op == "T" else values,
                    Position(commit_lsn, lsn, relation.oid, numbers[at]),
                )
            )
        return found

    def _type(self, relation: RelationDescriptor, plan: ColumnPlan) -> str:
        column = plan.column
        return readable(
            format_type_with_typmod(column.type_oid, column.typmod, relation.types, self._version)
        )


def _encoded(text: str, encoding: str) -> bytes | None:
    """Return *text* as the database has it; None when it can't have it."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return None


def _text(data: bytes, encoding: str) -> str:
    return readable(data.decode(encoding, "surrogateescape"))


def _columns(relation: RelationDescriptor) -> dict[str, ColumnDescriptor]:
    return {
        readable(column.name): column
        for column in relation.columns
        if not column.dropped and column.generated != "v"
    }


def _index(plan: TablePlan, name: str) -> int | None:
    for at, column in enumerate(plan.columns):
        if readable(column.column.name) == name:
            return at
    return None


def _numbers(values: pa.Array) -> memoryview:
    """Return the memory of uint64 values without nulls."""
    return memoryview(values.buffers()[1])[: 8 * len(values)].cast("Q")


def _beyond(place: tuple[Any, ...], after: Position, oid: int, *, newest_first: bool) -> pa.Array:
    """Say which rows come after *after*, in the order that is asked for."""
    commits, lsns, _, numbers = place
    more = pc.less if newest_first else pc.greater
    within = more(numbers, pa.scalar(after.number, pa.uint32()))
    if oid != after.table_oid:
        comes = oid < after.table_oid if newest_first else oid > after.table_oid
        within = pa.array([comes] * len(commits))
    for values, bound in ((lsns, after.lsn), (commits, after.commit_lsn)):
        scalar = pa.scalar(bound, pa.uint64())
        within = pc.or_(more(values, scalar), pc.and_(pc.equal(values, scalar), within))
    return within


def _column(
    plan: ColumnPlan,
    type_: str,
    op: str,
    new: str | None,
    old: tuple[bool, str | None],
    *,
    is_key: bool,
    stays: bool,
    is_unchanged: bool,
) -> ColumnValue:
    """Say what of a column is known; *stays*: no old row, since its replica identity stayed."""
    old_known, before = old
    name = readable(plan.column.name)
    if op == "I":
        return ColumnValue(name, type_, is_key, "none", _is(new), None, new)
    if op == "D":
        old_is = _is(before) if old_known else "unknown"
        return ColumnValue(name, type_, is_key, old_is, "none", before)
    if is_unchanged:
        # Not in WAL, since it is what it was.
        value_is = _is(before) if old_known else "unknown"
        return ColumnValue(name, type_, is_key, value_is, value_is, before, before, changed=False)
    if stays:
        return ColumnValue(name, type_, is_key, _is(new), _is(new), new, new, changed=False)
    if not old_known:
        return ColumnValue(name, type_, is_key, "unknown", _is(new), None, new)
    return ColumnValue(
        name, type_, is_key, _is(before), _is(new), before, new, changed=before != new
    )


def _is(text: str | None) -> str:
    return "null" if text is None else "value"
