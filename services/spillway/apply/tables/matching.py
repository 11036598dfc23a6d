"""A Relation message and a table of the target, put together by PostgreSQL's rules.

Where the majors differ, 18's rules hold for every target: a generated column of the target is
refused when the source sends its name (before 18 it was called missing), and an index for whole
rows may be btree or hash (before 17 it had to be btree, before 16 there was none). Of GiST, which
18 takes where its operator class tells its equality, a constraint WITHOUT OVERLAPS is taken; for
whole rows any other is left out, and the table is read instead, which finds the same row.

Source: logicalrep_rel_open, logicalrep_rel_mark_updatable, FindLogicalRepLocalIndex,
IsIndexUsableForReplicaIdentityFull, GetRelationIdentityOrPK
(src/backend/replication/logical/relation.c), CheckSubscriptionRelkind
(src/backend/executor/execReplication.c), RelationGetIndexList (src/backend/utils/cache/relcache.c)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spillway.apply.tables.catalog import ask, type_name
from spillway.apply.tables.matched import Find, KeyColumn, MatchedTable, TargetColumn
from spillway.errors import (
    SpillwayError,
    TargetColumnsMissing,
    TargetTableMissing,
    TargetTableUnusable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.apply.changes import SourceColumn, SourceRelation
    from spillway.apply.tables.catalog import Column, Connection, Index, Name, TableFacts

    #: The name on the target of a (schema, table) of the source.
    Rename = Callable[[str, str], Name]

#: REPLICA_IDENTITY_FULL
_FULL: Final = "f"
#: How PostgreSQL calls what it can't replicate into.
_KINDS: Final = {
    "v": "views",
    "m": "materialized views",
    "f": "foreign tables",
    "S": "sequences",
    "c": "composite types",
    "i": "indexes",
    "I": "partitioned indexes",
    "t": "TOAST tables",
}
#: as :mod:`spillway.apply.target.connection` reads a byte that is not UTF-8
_ESCAPED_BYTE: Final = re.compile(r"\\x[89a-f][0-9a-f]")
#: Types below this OID have the same one on every server.
_FIRST_OF_OWN: Final = 10_000
#: Types of the source and the target that write their values alike: integers, texts.
_WRITTEN_ALIKE: Final = (frozenset({20, 21, 23}), frozenset({25, 1043}))


def same_name(schema: str, table: str) -> Name:
    """Leave a name as it is: without ``rename``."""
    return schema, table


def match(
    connection: Connection, relation: SourceRelation, rename: Rename = same_name
) -> MatchedTable:
    """Match one table.

    Raises:
        TargetTableMissing: the target has no such table.
        TargetColumnsMissing: it has, without columns that the source sends.
        TargetTableUnusable: it has, and rows can't be replicated into it.
        psycopg.Error: the target did not answer.
    """
    found = match_all(connection, [relation], rename)[relation.relation_id]
    if isinstance(found, SpillwayError):
        raise found
    return found


def match_all(
    connection: Connection, relations: Iterable[SourceRelation], rename: Rename = same_name
) -> dict[int, MatchedTable | SpillwayError]:
    """Match many tables in one round trip, by the source's relation id; one's trouble is its value.

    Raises:
        psycopg.Error: the target did not answer.
    """
    wanted = list(relations)
    facts = ask(connection, (rename(one.schema, one.name) for one in wanted))
    found: dict[int, MatchedTable | SpillwayError] = {}
    for relation in wanted:
        name = rename(relation.schema, relation.name)
        try:
            found[relation.relation_id] = _matched(connection, relation, name, facts.get(name))
        except SpillwayError as error:
            found[relation.relation_id] = error
    return found


def _matched(
    connection: Connection, relation: SourceRelation, name: Name, facts: TableFacts | None
) -> MatchedTable:
    where = ".".join(name)
    if facts is None:
        raise TargetTableMissing(
            f'logical replication target relation "{where}" does not exist',
            hint="Create it on the target, from what pg_dump --schema-only --table writes of the "
            "source's, or let the subscription make what is missing (create_tables)."
            + _about_bytes(name),
            relation=where,
        )
    if facts.kind not in "rp":
        what = _KINDS.get(facts.kind, f"relations of kind {facts.kind}")
        raise TargetTableUnusable(
            f'cannot use relation "{where}" as logical replication target: this operation is not '
            f"supported for {what}",
            hint="Have a table of that name there, or map the source's to another by rename.",
            relation=where,
        )
    by_name = {column.name: column for column in facts.columns}
    _check_columns(connection, relation, facts, by_name)
    if facts.row_security:
        raise TargetTableUnusable(
            f'user "{facts.user}" cannot replicate into relation with row-level security enabled: '
            f'"{facts.name}"',
            hint=f"As a superuser of the target: ALTER ROLE {_quoted(facts.user)} BYPASSRLS;",
            relation=where,
        )
    sent = {column.name: i for i, column in enumerate(relation.columns)}
    find, key, index_oid, not_sent = _how_found(relation, facts, sent, by_name)
    unequal = () if find else _without_equality(facts)
    inserts = _not_groupable(facts)
    groupable = inserts or ("" if find == "key" else "its rows have no key that the source sends")
    own = set() if find != "key" else {key.oid for key in _keys_by_member(facts)}
    others = [i for i in facts.indexes if i.constrains and i.oid not in own and i.holds_rows]
    return MatchedTable(
        relation=relation,
        oid=facts.oid,
        schema=facts.schema,
        name=facts.name,
        quoted=facts.quoted,
        only=facts.quoted if facts.kind == "p" else f"ONLY {facts.quoted}",
        kind=facts.kind,
        columns=tuple(_column(by_name[column.name]) for column in relation.columns),
        unsent=tuple(
            _column(column)
            for column in facts.columns
            if column.name not in sent and not column.generated
        ),
        find=find,
        key=key,
        index_oid=index_oid,
        other_unique=len(others),
        groupable=not groupable,
        not_groupable=groupable,
        groupable_inserts=not inserts,
        fires=facts.row_triggers + facts.statement_triggers + facts.rules,
        references=facts.references,
        row_security=facts.row_security,
        lacks=facts.lacks,
        watched=_watched(others, sent),
        key_not_sent=not_sent,
        key_without_equality=unequal,
        keys_by_bytes=_by_bytes(relation, facts, sent, by_name),
    )


def _check_columns(
    connection: Connection,
    relation: SourceRelation,
    facts: TableFacts,
    by_name: dict[str, Column],
) -> None:
    where = f"{facts.schema}.{facts.name}"
    # Escaped on both sides names are equal, and no statement finds such a column.
    escapes = connection.info.parameter_status("server_encoding") == "SQL_ASCII"
    missing = [
        column
        for column in relation.columns
        if column.name not in by_name or (escapes and _ESCAPED_BYTE.search(column.name))
    ]
    if missing:
        added = ", ".join(
            f"ADD COLUMN {_quoted(column.name)} {_type_of(connection, column)}"
            for column in missing
        )
        raise TargetColumnsMissing(
            f'logical replication target relation "{where}" is missing replicated '
            f"{_columns(column.name for column in missing)}",
            hint=f"On the target: ALTER TABLE {facts.quoted} {added};"
            + _about_bytes(column.name for column in missing),
            relation=where,
            columns=[column.name for column in missing],
        )
    generated = [
        by_name[column.name] for column in relation.columns if by_name[column.name].generated
    ]
    if generated:
        # What is computed when it is read has no value to keep.
        changes = ", ".join(
            f"DROP COLUMN {column.quoted}, ADD COLUMN {column.quoted} {column.type_name}"
            if column.generated == "v"
            else f"ALTER COLUMN {column.quoted} DROP EXPRESSION"
            for column in generated
        )
        raise TargetTableUnusable(
            f'logical replication target relation "{where}" has incompatible generated '
            f"{_columns(column.name for column in generated)}",
            hint=f"On the target: ALTER TABLE {facts.quoted} {changes};",
            relation=where,
            columns=[column.name for column in generated],
        )


def _about_bytes(names: Iterable[str]) -> str:
    """What is to be said of names that seem to have a byte which is not UTF-8: it was escaped when
    the name was read, so nothing is found by it.
    """
    if not any(map(_ESCAPED_BYTE.search, names)):
        return ""
    return (
        r" Where the name has \x for a byte that is not UTF-8, that does not help: rename it on "
        "both sides. If rows were written under that name, then leave the table out, empty it on "
        "the target and name it again: it is copied anew."
    )


def _columns(names: Iterable[str]) -> str:
    listed = [f'"{name}"' for name in names]
    return f"column{'s' if len(listed) > 1 else ''}: {', '.join(listed)}"


def _type_of(connection: Connection, column: SourceColumn) -> str:
    if column.type_oid >= _FIRST_OF_OWN:
        return "<its type on the source>"
    return type_name(connection, column.type_oid, column.type_modifier)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(column: Column) -> TargetColumn:
    return TargetColumn(
        column.name, column.quoted, column.attnum, column.type_oid, column.type_name,
        column.is_array, column.identity, column.not_null,
    )  # fmt: skip


def _keys_by_member(facts: TableFacts) -> Iterable[Index]:
    """The index of each table with rows that is its replica identity, or else its primary key."""
    members: dict[int, list[Index]] = {}
    # Of a partitioned table without partitions its own say what theirs will be.
    partitioned_only = facts.kind == "p" and not facts.leaves
    for index in facts.indexes:
        if index.of_leaf or partitioned_only:
            members.setdefault(index.member, []).append(index)
    for indexes in members.values():
        usable = [index for index in indexes if index.is_immediate_unique and index.is_usable]
        for index in usable:
            if index.is_replica_identity and index.replica_identity == "i":
                yield index
                break
        else:
            yield from (index for index in usable if index.is_primary)


def _how_found(
    relation: SourceRelation,
    facts: TableFacts,
    sent: dict[str, int],
    by_name: dict[str, Column],
) -> tuple[Find, tuple[KeyColumn, ...], int, tuple[str, ...]]:
    """How rows are found: how, by which columns, by which index; and the columns of a key that is
    not sent.
    """
    whole_rows = relation.replica_identity == _FULL
    identity = {column.name for column in relation.columns if column.is_key or whole_rows}
    keys = list(_keys_by_member(facts))
    # Partitions whose indexes have other collations or operator classes don't agree, either.
    by_columns = {frozenset(zip(key.columns, key.equals, strict=True)): key for key in keys}
    if len(by_columns) == 1 and len(keys) == max(facts.leaves, 1) and not _without_equality(facts):
        (key,) = by_columns.values()
        if not set(key.columns) <= identity:
            return "", (), 0, tuple(str(name) for name in key.columns)
        oid = 0 if facts.kind == "p" else key.oid
        return "key", _key_columns(key, sent, by_name), oid, ()
    if not whole_rows:
        return "", (), 0, ()
    if facts.kind == "r":
        for index in facts.indexes:
            leading = index.columns[0]
            if (
                index.is_usable
                and None not in index.equals
                and leading is not None
                and leading in sent
            ):
                return "index", _key_columns(index, sent, by_name), index.oid, ()
    return "full", (), 0, ()


def _without_equality(facts: TableFacts) -> tuple[str, ...]:
    """The columns of the key, or of a partition's, that can't be looked for."""
    found = (
        str(name)
        for key in _keys_by_member(facts)
        for name, equals in zip(key.columns, key.equals, strict=True)
        if equals is None
    )
    return tuple(dict.fromkeys(found))


def _key_columns(
    index: Index, sent: dict[str, int], by_name: dict[str, Column]
) -> tuple[KeyColumn, ...]:
    """The columns that an index begins with, as far as they are sent."""
    found: list[KeyColumn] = []
    for name, equals in zip(index.columns, index.equals, strict=True):
        if name is None or equals is None or name not in sent:
            break
        found.append(KeyColumn(sent[name], _column(by_name[name]), equals))
    return tuple(found)


def _watched(indexes: Iterable[Index], sent: dict[str, int]) -> tuple[int, ...]:
    positions = set()
    for index in indexes:
        if None in index.columns or not index.is_usable:
            return tuple(range(len(sent)))
        positions |= {sent[str(name)] for name in index.columns if name in sent}
    return tuple(sorted(positions))


def _by_bytes(
    relation: SourceRelation,
    facts: TableFacts,
    sent: dict[str, int],
    by_name: dict[str, Column],
) -> bool:
    """Say whether all that is unique is told by the bytes of what is sent: also of the source's
    type, which may write in several ways what is one value of the target's (a text that becomes a
    number).
    """
    return all(
        index.by_bytes
        and all(
            name in sent
            and _is_written_alike(relation.columns[sent[name]].type_oid, by_name[name].type_oid)
            for name in index.columns
            if name is not None
        )
        for index in facts.indexes
        if index.constrains
    )


def _is_written_alike(one: int, other: int) -> bool:
    if one == other or min(one, other) >= _FIRST_OF_OWN:
        return True
    return any({one, other} <= types for types in _WRITTEN_ALIKE)


def _not_groupable(facts: TableFacts) -> str:
    """Why rows must be written one by one and in their order; "" if they need not."""
    if facts.row_triggers:
        return f"triggers of rows fire: {', '.join(facts.row_triggers)}"
    if facts.rules:
        return f"rules apply: {', '.join(facts.rules)}"
    if facts.references:
        return "foreign keys are enforced, since session_replication_role can't be replica"
    if facts.foreign_partitions:
        return f"partitions are foreign tables: {', '.join(facts.foreign_partitions)}"
    return ""
