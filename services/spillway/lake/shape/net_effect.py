"""From a batch of changes to its net effect on each row: what MERGE needs.

MERGE wants at most one source row for a target row, and changes have an order that a MERGE doesn't
know. So a batch is first reduced: per key, the state after its last change by (``_commit_lsn``,
``_seq``).

Three things make this more than "take the last row per key":

*A change of key* is two effects: the old key's row goes, the new key's appears. Each change is
expanded into its effects first, and then the last effect per key counts.

*Unchanged TOAST values.* An UPDATE that leaves a large value alone doesn't log it. Its value is the
latest one logged in the batch for that row, else the one in the current table (``_keep_…``,
resolved by the merge). An INSERT sets all columns, so the latest logged value under a key never
reaches back across a DELETE.

*Both at once*: a row changes its key and carries an unlogged value with it, so the value stands
under another key. Then rows are followed through their changes of key. Each key's timeline is cut
into lives by arrivals (an INSERT, or a move to this key); a move links the life that it begins to
the life that it ends; pointer jumping over those links (log2 of the longest chain rounds) gives
each change the first life of its row, and "latest logged" is taken per row instead of per key. This
costs a few more jobs and runs only for batches that need it.

A table without a key of its own but with replica identity FULL is a multiset: its current state
holds each distinct row once with the number of its copies, and the net effect of a batch is a count
per distinct row.

*A key that is checked at commit* (a deferrable primary key, which identifies rows with replica
identity FULL): two rows may have it inside a transaction, as when they exchange their keys, and the
last effect on a key may be that the other one left it. But each change tells the whole row that
went and the whole row that came, and what is there after a commit is right. So such a batch is
counted like a multiset's, and what is left of a key after that is one row that is there now, one
that is gone, or both.

**Names.** A table's column may have any name, one of this module's, too. So in the frames that are
made here a table's columns are called by :func:`own`, with a colon and a blank before their names,
and no other column begins so.

*Soft deletes*: a row that is gone stays, with the values that it had last, and with when its
transaction committed. The effect of a deletion is one more change then (:func:`softly`), which
keeps all columns that the batch says nothing of; a TRUNCATE is a deletion of each row
(:mod:`spillway.lake.shape.emptied`).

TRUNCATE empties the table: only what comes after the last one counts, and
:attr:`NetEffect.truncated` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import DoubleType, FloatType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, Row

#: true: the row is there after the batch, with these values; false: it is gone
SET: Final = "_set"
#: prefix of booleans: the column keeps the value that the current table has
KEEP: Final = "_keep_"
#: copies of a distinct row: the change of them in a net effect, and in a multiset's current table,
#: if none of its columns is called so
COPIES: Final = "_copies"
_OWN: Final = ": "
#: of a table with soft deletes: when its row was deleted
DELETED_AT: Final = "_deleted_at"
#: of history's columns, what is looked at here beside the table's
_OF_CHANGES: Final = (
    "_op", "_commit_lsn", "_seq", "_unchanged_toast", "_old_key", "_commit_time"
)  # fmt: skip

#: Rounds of pointer jumping: 2^40 changes of key of one row in one batch are more than a batch
#: holds.
_MAX_JUMPS: Final = 40


@dataclass(frozen=True, slots=True)
class NetEffect:
    """A batch, reduced.

    For a keyed table, *frame* has ``_set``, the table's columns, and ``_keep_<column>`` for each of
    *kept_columns*; a key occurs once. For a multiset it has the columns and ``_copies``. The
    table's columns are called by :func:`own`.
    """

    frame: DataFrame
    truncated: bool
    kept_columns: tuple[str, ...] = ()

    def rows(self, columns: Sequence[str]) -> DataFrame:
        """Return the rows that are there afterwards, of a table that had none, under the names that
        they have in it; what isn't *columns* of a multiset's table are its copies.
        """
        is_copies = COPIES in self.frame.columns
        values = [_new(c).alias(c) for c in columns if own(c) in self.frame.columns]
        if is_copies:
            name = copies_name(columns)
            values = [*values, F.col(COPIES).alias(name)]
        return self.frame.where(F.col(COPIES) > 0 if is_copies else F.col(SET)).select(*values)


def own(name: str) -> str:
    """Return how a column of a table is called in a frame that has other columns, too."""
    return _OWN + name


def copies_name(columns: Iterable[str]) -> str:
    """Return the column that counts the copies in the current table of a multiset of *columns*."""
    taken = {name.lower() for name in columns}
    name = COPIES
    while name in taken:
        name += "_"
    return name


def copies_field(columns: Iterable[str]) -> pa.Field:
    """Return the field of :func:`copies_name`'s column."""
    return pa.field(copies_name(columns), pa.int64())


def quoted(name: str) -> str:
    """Return *name* as Spark SQL quotes it: names with dots or spaces are one name."""
    return "`" + name.replace("`", "``") + "`"


def numbered(rows: DataFrame) -> DataFrame:
    """Return *rows* with columns named 0, 1, …: ``mapInArrow`` looks its frame's columns up by
    unquoted names.

    A name with a dot is then a field of a column, and not found.
    """
    return rows.toDF(*map(str, range(len(rows.columns))))


def keyed(
    events: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    current: DataFrame | None,
    *,
    plain: bool = False,
) -> NetEffect:
    """Reduce *events* by *key*.

    Args:
        events: rows of the history table.
        columns: the table's columns among them.
        key: the columns that identify a row, all of them identity columns.
        current: the current table before these events, None if there is none yet.
        plain: neither a TRUNCATE nor an unchanged TOAST value is among them; saves looking, which
            is a job.
    """
    events = _named(events, columns)
    old_fields = _old_key_fields(events)
    moved = F.lit(False)
    if old_fields:
        same_key = _all(_old(k).eqNullSafe(_new(k)) for k in key)
        # A key large enough to be in TOAST is logged in the old key when it didn't change.
        carried = _all(_old(k).eqNullSafe(_new(k)) | F.array_contains(_unchanged(), k) for k in key)
        moved = (F.col("_op") == "U") & F.col("_old_key").isNotNull() & ~(same_key | carried)
    if plain:
        effects = _effects(events, columns, key, moved, with_old_key=bool(old_fields))
        return _by_key(effects, columns, key, (), truncated=False)
    facts = events.agg(
        F.max(F.when(F.col("_op") == "T", _at())).alias("truncated_at"),
        F.array_distinct(F.flatten(F.collect_set(_unchanged()))).alias("unchanged"),
        F.coalesce(F.max(moved & (F.size(_unchanged()) > 0)), F.lit(False)).alias(
            "moved_unchanged"
        ),
    ).first()
    assert facts is not None  # an aggregate without grouping has one row
    events = _after_truncate(events, facts["truncated_at"])
    unchanged = [name for name in columns if name in set(facts["unchanged"])]
    # The old row's values fill what the new one leaves out, wherever the old one was logged.
    for name in unchanged:
        if name in old_fields:
            known = F.array_contains(_unchanged(), name) & _old(name).isNotNull()
            events = events.withColumn(own(name), F.when(known, _old(name)).otherwise(_new(name)))
            remaining = F.when(known, F.array_remove(_unchanged(), name)).otherwise(_unchanged())
            events = events.withColumn("_unchanged_toast", remaining)
    kept = tuple(name for name in unchanged if name not in key)
    effects = _effects(events, columns, key, moved, with_old_key=bool(old_fields))
    truncated = facts["truncated_at"] is not None
    if facts["moved_unchanged"] and kept:
        return _by_row(
            effects, columns, key, kept, None if truncated else current, truncated=truncated
        )
    return _by_key(effects, columns, key, kept, truncated=truncated)


def softly(
    effect: NetEffect, events: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> NetEffect:
    """Return *effect*, a keyed one of *events*, with rows that are gone staying; no TRUNCATE is
    among the events.

    What such a row had last is the latest that the batch has logged under its key, else what the
    current table has.
    """
    effects = effects_on_keys(events, columns, key)
    order = F.struct("_at", SET)
    rest = [c for c in columns if c not in key]
    known = (
        F.max_by(
            F.struct(_new(c).alias("value")),
            F.when(F.col(SET) & ~F.array_contains("_unchanged", c), order),
        ).alias(f"_known_{n}")
        for n, c in enumerate(rest)
    )
    last = effects.groupBy("_k").agg(F.max_by("_time", order).alias("_gone_at"), *known)
    same = _all(F.col("_k")[k].eqNullSafe(_new(k)) for k in key)
    joined = effect.frame.join(last, same, "left")
    stays = F.col(SET)
    values, keeps = [], []
    for n, c in enumerate(rest):
        found = F.col(f"_known_{n}")
        values.append(F.when(stays, _new(c)).otherwise(found["value"]).alias(own(c)))
        kept = F.col(quoted(KEEP + c)) if c in effect.kept_columns else F.lit(False)
        keeps.append(F.when(stays, kept).otherwise(found.isNull()).alias(KEEP + c))
    frame = joined.select(
        F.lit(True).alias(SET),
        *(_new(k).alias(own(k)) for k in key),
        *values,
        *keeps,
        F.when(~stays, F.col("_gone_at")).alias(own(DELETED_AT)),
    )
    return NetEffect(frame, effect.truncated, tuple(rest))


def effects_on_keys(events: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return what each of history's changes does to the rows under its keys.

    Columns: ``_at``, ``_time``, ``_set``, ``_k`` (the key), ``_unchanged``, the table's called by
    :func:`own`, and others.
    """
    events = _named(events, columns)
    with_old_key = bool(_old_key_fields(events))
    moved = F.lit(False)
    if with_old_key:
        same_key = _all(_old(k).eqNullSafe(_new(k)) for k in key)
        # A key large enough to be in TOAST is logged in the old key when it didn't change.
        carried = _all(_old(k).eqNullSafe(_new(k)) | F.array_contains(_unchanged(), k) for k in key)
        moved = (F.col("_op") == "U") & F.col("_old_key").isNotNull() & ~(same_key | carried)
    return _effects(events, columns, key, moved, with_old_key=with_old_key)


def multiset(events: DataFrame, columns: Sequence[str]) -> NetEffect:
    """Reduce *events* of a table with replica identity FULL to a change of copies per distinct
    row.
    """
    signed, truncated = _counted(events, columns)
    net = (
        signed.groupBy(*(quoted(own(c)) for c in columns))
        .agg(F.sum(COPIES).alias(COPIES))
        .where(F.col(COPIES) != 0)
    )
    return NetEffect(net, truncated)


def keyed_at_commit(events: DataFrame, columns: Sequence[str], key: Sequence[str]) -> NetEffect:
    """Reduce *events* of a table with replica identity FULL by *key*, which several rows may have
    until their transaction commits.
    """
    signed, truncated = _counted(events, columns)
    # Grouped by their numbers, 0 and -0 were one value, and an update of one to the other nothing.
    exactly = [
        _new(c).cast("string")
        if isinstance(signed.schema[own(c)].dataType, FloatType | DoubleType)
        else _new(c)
        for c in columns
    ]
    rows = signed.select(
        F.struct(*(_new(c) for c in columns)).alias("_row"),
        COPIES,
        *(value.alias(f"_{n}") for n, value in enumerate(exactly)),
    )
    net = (
        rows.groupBy(*(f"_{n}" for n in range(len(exactly))))
        .agg(F.sum(COPIES).alias(COPIES), F.first("_row").alias("_row"))
        .where(F.col(COPIES) != 0)
    )
    row = F.col("_row")
    last = net.groupBy(F.struct(*(row[own(k)].alias(k) for k in key)).alias("_k")).agg(
        (F.max(COPIES) > 0).alias(SET), F.max_by("_row", COPIES).alias("_row")
    )
    return NetEffect(last.select(SET, *(row[own(c)].alias(own(c)) for c in columns)), truncated)


def _counted(events: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, bool]:
    """Return the rows that came and went after the last TRUNCATE, with 1 and -1 as their copies,
    and whether there was one.
    """
    facts = events.agg(F.max(F.when(F.col("_op") == "T", _at())).alias("truncated_at")).first()
    assert facts is not None  # an aggregate without grouping has one row
    events = _named(_after_truncate(events, facts["truncated_at"]), columns)
    old_fields = _old_key_fields(events)

    def new(name: str) -> Column:
        if name not in old_fields:
            return _new(name)
        return F.when(F.array_contains(_unchanged(), name), _old(name)).otherwise(_new(name))

    def old(name: str) -> Column:
        return (
            _old(name)
            if name in old_fields
            else F.lit(None).cast(events.schema[own(name)].dataType)
        )

    came = F.struct(F.lit(1).cast("bigint").alias(COPIES), *(new(c).alias(own(c)) for c in columns))
    went = F.struct(
        F.lit(-1).cast("bigint").alias(COPIES), *(old(c).alias(own(c)) for c in columns)
    )
    op = F.col("_op")
    signed = events.where(op != "T").select(
        F.inline(
            F.when(op == "I", F.array(came))
            .when(op == "D", F.array(went))
            .otherwise(F.array(went, came))
        )
    )
    return signed, facts["truncated_at"] is not None


# Columns of the history table, as functions: a Column can't be made before there is a session.


def _at() -> Column:
    """A change's place in the order of changes."""
    return F.struct("_commit_lsn", "_seq")


def _unchanged() -> Column:
    return F.coalesce(F.col("_unchanged_toast"), F.array().cast("array<string>"))


def _new(name: str) -> Column:
    return F.col(quoted(own(name)))


def _named(events: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return history's rows with the table's columns called by :func:`own`."""
    others = [F.col(name) for name in _OF_CHANGES if name in events.columns]
    return events.select(*others, *(F.col(quoted(c)).alias(own(c)) for c in columns))


def _old(name: str) -> Column:
    return F.col("_old_key")[name]


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(lambda a, b: a & b, conditions)


def _old_key_fields(events: DataFrame) -> set[str]:
    if "_old_key" not in events.columns:
        return set()
    type_ = events.schema["_old_key"].dataType
    assert isinstance(type_, StructType)  # lake.payload made it
    return set(type_.names)


def _after_truncate(events: DataFrame, at: Row | None) -> DataFrame:
    """Return the events after *at*, all of them when there was no TRUNCATE."""
    if at is None:
        return events
    commit_lsn, seq = F.lit(at["_commit_lsn"]).cast("bigint"), F.lit(at["_seq"]).cast("bigint")
    return events.where(_at() > F.struct(commit_lsn.alias("_commit_lsn"), seq.alias("_seq")))


def _effects(
    events: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    moved: Column,
    *,
    with_old_key: bool,
) -> DataFrame:
    """Expand changes into effects on keys.

    Columns: ``_at``, ``_set``, ``_arrives`` (a row that wasn't under this key before), ``_leaves``
    (the first half of a move), ``_k`` (the key), ``_unchanged``, and the table's.
    """

    def effect(keys: Column, *, is_set: bool, arrives: bool, leaves: bool) -> Column:
        flags = {SET: is_set, "_arrives": arrives, "_leaves": leaves}
        return F.struct(
            *(F.lit(value).alias(name) for name, value in flags.items()), keys.alias("_k")
        )

    op = F.col("_op")
    new = F.struct(*(_new(k).alias(k) for k in key))
    effects = F.when(op == "I", F.array(effect(new, is_set=True, arrives=True, leaves=False)))
    if with_old_key:
        old = F.struct(*(_old(k).alias(k) for k in key))
        leave = effect(old, is_set=False, arrives=False, leaves=True)
        arrive = effect(new, is_set=True, arrives=True, leaves=False)
        gone = F.col("_old_key").isNotNull()
        effects = effects.when(
            (op == "D") & gone, F.array(effect(old, is_set=False, arrives=False, leaves=False))
        )
        effects = effects.when((op == "U") & moved, F.array(leave, arrive))
    effects = effects.when(
        op == "U", F.array(effect(new, is_set=True, arrives=False, leaves=False))
    )
    return events.select(
        _at().alias("_at"),
        F.col("_commit_time").alias("_time"),
        _unchanged().alias("_unchanged"),
        *(_new(c) for c in columns),
        F.inline(effects),
    )


def _states(
    effects: DataFrame, group: str, columns: Sequence[str], kept: Sequence[str]
) -> DataFrame:
    """Return per *group* its ``_last`` effect and, for each of *kept*, the latest logged value in
    ``_known_…``.
    """
    order = F.struct("_at", SET)
    last = F.max_by(F.struct(SET, "_k", "_unchanged", *(_new(c) for c in columns)), order).alias(
        "_last"
    )
    known = (
        F.max_by(
            F.struct(_new(c).alias("value")),
            F.when(F.col(SET) & ~F.array_contains("_unchanged", c), order),
        ).alias(f"_known_{c}")
        for c in kept
    )
    return effects.groupBy(group).agg(last, *known)


def _by_key(
    effects: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    kept: tuple[str, ...],
    *,
    truncated: bool,
) -> NetEffect:
    states = _states(effects, "_k", [c for c in columns if c not in key], kept)
    last = F.col("_last")

    def latest(c: str) -> Column:
        return last[own(c)]

    outside = {c: F.array_contains(last["_unchanged"], c) for c in kept}
    values = []
    for c in columns:
        if c in key:
            values.append(F.col("_k")[c].alias(own(c)))
        elif c in outside:
            known = F.col(quoted(f"_known_{c}"))["value"]
            values.append(F.when(outside[c], known).otherwise(latest(c)).alias(own(c)))
        else:
            values.append(latest(c).alias(own(c)))
    keeps = ((outside[c] & F.col(quoted(f"_known_{c}")).isNull()).alias(KEEP + c) for c in kept)
    return NetEffect(states.select(last[SET].alias(SET), *values, *keeps), truncated, kept)


def _by_row(
    effects: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    kept: tuple[str, ...],
    current: DataFrame | None,
    *,
    truncated: bool,
) -> NetEffect:
    """Reduce with rows followed through their changes of key; see the module's docstring."""
    timeline = Window.partitionBy("_k").orderBy("_at", SET)
    so_far = timeline.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    birth = F.last(F.when(F.col("_arrives"), F.col("_at")), ignorenulls=True).over(so_far)
    # A life of a key: the key and the arrival that began it; no arrival: it was there before the
    # batch.
    effects = effects.withColumn("_life", F.struct(F.col("_k"), birth.alias("_birth")))
    effects = effects.localCheckpoint()

    left = effects.where("_leaves").select("_at", F.col("_life").alias("earlier"))
    links = (
        effects.where("_arrives")
        .select("_at", F.col("_life").alias("later"))
        .join(left, "_at")
        .drop("_at")
    )
    for _ in range(_MAX_JUMPS):
        links = links.localCheckpoint()
        up = links.select(F.col("later").alias("up_later"), F.col("earlier").alias("up_earlier"))
        joined = links.join(up, F.col("earlier").eqNullSafe(F.col("up_later")), "left")
        if joined.where(F.col("up_later").isNotNull()).isEmpty():
            break
        links = joined.select("later", F.coalesce("up_earlier", "earlier").alias("earlier"))
    rooted = effects.join(links, F.col("_life").eqNullSafe(F.col("later")), "left").withColumn(
        "_row", F.coalesce("earlier", "_life")
    )

    # Per row, where it ended and what is known of it; the first half of a move ends nothing.
    states = _states(rooted.where(~F.col("_leaves")), "_row", columns, kept)
    last = F.col("_last")
    living = states.where(last[SET]).select(
        last["_k"].alias("_k"),
        F.when(F.col("_row")["_birth"].isNull(), F.col("_row")["_k"]).alias("_before"),
        last["_unchanged"].alias("_unchanged"),
        *(last[own(c)].alias(own(c)) for c in columns if c not in key),
        *(F.col(quoted(f"_known_{c}")) for c in kept),
    )
    stored = {}
    if current is not None:
        names = {c: f"_stored_{c}" for c in kept if c in current.columns}
        there = current.select(
            F.struct(*(F.col(quoted(k)).alias(k) for k in key)).alias("_there"),
            *(F.col(quoted(c)).alias(name) for c, name in names.items()),
        )
        living = living.join(there, F.col("_before") == F.col("_there"), "left")
        stored = {c: F.col(quoted(name)) for c, name in names.items()}

    def value(c: str) -> Column:
        if c not in kept:
            return _new(c)
        known = F.col(quoted(f"_known_{c}"))
        elsewhere = stored.get(c, F.lit(None))
        return (
            F.when(~F.array_contains("_unchanged", c), _new(c))
            .when(known.isNotNull(), known["value"])
            .otherwise(elsewhere)
            .alias(own(c))
        )

    living = living.select(
        F.lit(True).alias("_lives"),
        F.col("_k").alias("_end"),
        *(value(c) for c in columns if c not in key),
    )
    touched = effects.select("_k").distinct()
    frame = touched.join(living, F.col("_k") == F.col("_end"), "left").select(
        F.col("_lives").isNotNull().alias(SET),
        *((F.col("_k")[c] if c in key else _new(c)).alias(own(c)) for c in columns),
    )
    return NetEffect(frame, truncated)
