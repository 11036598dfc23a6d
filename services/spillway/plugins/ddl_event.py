"""DDL as an event: what a SCHEMA_CHANGE (``decoding/schema_changes.py``) says, as JSON.

``docs/reference/ddl-events.md`` is its reference. An event is about one table: how it was defined
before, how it is now, and the changes that lead from the one to the other, in an order in which
they can be made. What only a server prints is left out: a default's expression, a check, a
partition's bounds. Of a default it is known whether there is one, and of a column that was added
what the rows from before have in it.

Types are named as format_type does with an empty search_path, so that they mean the same anywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.values.text.output import datum_text
from spillway.catalog.descriptor import RelationDescriptor
from spillway.decoding.transaction import TransactionKind
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.pg.text_settings import TextSettings
from spillway.pg.timestamps import moment
from spillway.plugins.type_names import format_type_with_typmod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway.catalog.descriptor import ColumnDescriptor, TypeDescriptor
    from spillway.decoding.transaction import TransactionHeader

VERSION: Final = 1
#: of the logical messages that bear events in pgoutput
PREFIX: Final = b"spillway.ddl"

_VISIBLE: Final = frozenset({"pg_catalog"})
_VARHDRSZ: Final = 4
_REPLICA_IDENTITY: Final = {"d": "default", "i": "index", "f": "full", "n": "nothing"}
_GENERATED: Final = {"s": "stored", "v": "virtual"}
_IDENTITY: Final = {"a": "always", "d": "by default"}
_NOT_COMMITTED: Final = (TransactionKind.STREAM, TransactionKind.PREPARE)


class DdlEvents:
    """Makes events for one reader.

    Args:
        server_version_num: of the source.
        encoding: Python's codec of the database's.
    """

    def __init__(self, server_version_num: int, encoding: str) -> None:
        self._version: Final = server_version_num
        self._settings: Final = TextSettings(server_version_num)
        self._encoding: Final = encoding

    def text(self, content: bytes, header: TransactionHeader) -> bytes:
        """Return the event of a SCHEMA_CHANGE with *content* in *header*'s transaction, as JSON in
        UTF-8.
        """
        return as_json(self.event(content, header))

    def event(self, content: bytes, header: TransactionHeader) -> dict[str, Any]:
        """Return the same as plain JSON values."""
        change = json.loads(content)
        # What was logged by a release before says nothing of what is above a partition.
        before, after = (
            None if state is None else self._table(state, above)
            for state, above in zip(
                (change["before"], change["after"]), change.get("above", ((), ())), strict=True
            )
        )
        known = after or before
        assert known is not None
        replaced = set(change["replaced_defaults"])
        is_committed = header.kind not in _NOT_COMMITTED
        return {
            "version": VERSION,
            "kind": "drop_table"
            if after is None
            else "create_table"
            if before is None
            else "alter_table",
            "schema": known["schema"],
            "table": known["table"],
            "oid": change["oid"],
            "changes": []
            if before is None or after is None
            else list(_changes(before, after, replaced)),
            "rewritten": change["rewritten"],
            "before": before,
            "after": after,
            "xid": header.xid,
            "commit_lsn": str(Lsn(header.final_lsn)) if is_committed else None,
            "commit_time": moment(header.commit_time).isoformat() if is_committed else None,
        }

    def _table(
        self, state: Mapping[str, Any], above: Sequence[tuple[int, str, str]]
    ) -> dict[str, Any]:
        table = RelationDescriptor.from_json(state["table"])
        parent = state["parent"]
        collations = {
            attnum: {"schema": readable(schema), "name": readable(name)}
            for attnum, schema, name in state["collations"]
        }
        names = {column.attnum: readable(column.name) for column in table.columns}
        return {
            "schema": readable(table.schema),
            "table": readable(table.name),
            "partitioned": table.kind == "p",
            "parent": None
            if parent is None
            else {"oid": parent[0], "schema": readable(parent[1]), "table": readable(parent[2])},
            "ancestors": [
                {"oid": oid, "schema": readable(schema), "table": readable(name)}
                for oid, schema, name in above
            ],
            "replica_identity": _REPLICA_IDENTITY.get(table.replica_identity),
            "primary_key": [names[attnum] for attnum in table.primary_key],
            "identity_columns": [names[attnum] for attnum in table.identity_columns],
            "columns": [
                self._column(column, table.types, state["defaults"], collations)
                for column in table.columns
                if not column.dropped
            ],
        }

    def _column(
        self,
        column: ColumnDescriptor,
        types: Mapping[int, TypeDescriptor],
        defaults: list[int] | None,
        collations: Mapping[int, dict[str, str]],
    ) -> dict[str, Any]:
        return {
            "attnum": column.attnum,
            "name": readable(column.name),
            "type": readable(
                format_type_with_typmod(
                    column.type_oid, column.typmod, types, self._version, _VISIBLE
                )
            ),
            "type_oid": column.type_oid,
            "typmod": column.typmod,
            "not_null": column.not_null,
            "has_default": None if defaults is None else column.attnum in defaults,
            "missing": None if column.missing is None else self._missing(column, types),
            "generated": _GENERATED.get(column.generated),
            "identity": _IDENTITY.get(column.identity),
            "collation": collations.get(column.attnum),
        }

    def _missing(self, column: ColumnDescriptor, types: Mapping[int, TypeDescriptor]) -> str:
        missing = column.missing
        assert missing is not None
        if column.length == -1:
            # Out of an array: never compressed or out of line. A short header is one byte, with its
            # lowest bit set.
            missing = missing[1:] if missing[:1] and missing[0] & 1 else missing[_VARHDRSZ:]
        text = datum_text(column, types, self._settings, missing)
        return readable(text.decode(self._encoding, "surrogateescape"))


def as_json(event: Mapping[str, Any]) -> bytes:
    """Return an event in the form in which slots send it, in UTF-8."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], replaced: set[int]
) -> Iterator[dict[str, Any]]:
    """Yield what leads from *before* to *after*, in an order in which it can be done."""
    for name, change in (("schema", "set_schema"), ("table", "rename_table")):
        if before[name] != after[name]:
            yield {"change": change, "from": before[name], "to": after[name]}
    old = {column["attnum"]: column for column in before["columns"]}
    new = {column["attnum"]: column for column in after["columns"]}
    if before["parent"] != after["parent"]:
        if before["parent"] is not None:
            yield {"change": "detach_partition", "parent": before["parent"]}
        if after["parent"] is not None:
            yield {"change": "attach_partition", "parent": after["parent"]}
    for attnum, column in old.items():
        if attnum not in new:
            yield {"change": "drop_column", "column": column["name"]}
    for attnum, column in old.items():
        if attnum in new and column["name"] != new[attnum]["name"]:
            yield {"change": "rename_column", "from": column["name"], "to": new[attnum]["name"]}
    for attnum, column in new.items():
        if attnum not in old:
            yield {"change": "add_column", "column": column["name"], "definition": column}
        else:
            yield from _column_changes(old[attnum], column, is_replaced=attnum in replaced)
    if _now(before, after, "primary_key") != after["primary_key"]:
        yield {
            "change": "primary_key",
            "from": before["primary_key"],
            "to": after["primary_key"],
        }
    if before["replica_identity"] != after["replica_identity"]:
        yield {
            "change": "replica_identity",
            "from": before["replica_identity"],
            "to": after["replica_identity"],
        }
    elif (
        after["replica_identity"] == "index"
        and _now(before, after, "identity_columns") != after["identity_columns"]
    ):
        yield {
            "change": "replica_identity",
            "from": before["identity_columns"],
            "to": after["identity_columns"],
        }


def _now(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> list[str]:
    """Return the columns of a key before by their names after; those that were dropped by the old
    ones.
    """
    attnums = {column["name"]: column["attnum"] for column in before["columns"]}
    names = {column["attnum"]: column["name"] for column in after["columns"]}
    return [names.get(attnums[name], name) for name in before[key]]


def _column_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, is_replaced: bool
) -> Iterator[dict[str, Any]]:
    name = after["name"]
    if (before["type_oid"], before["typmod"]) != (after["type_oid"], after["typmod"]):
        yield {"change": "alter_type", "column": name, "from": before["type"], "to": after["type"]}
    if before["collation"] != after["collation"]:
        yield {
            "change": "collation",
            "column": name,
            "from": before["collation"],
            "to": after["collation"],
        }
    if before["not_null"] != after["not_null"]:
        yield {"change": "set_not_null" if after["not_null"] else "drop_not_null", "column": name}
    had, has = before["has_default"], after["has_default"]
    if (had is not None and has is not None and had != has) or is_replaced:
        yield {"change": "set_default" if has else "drop_default", "column": name}
    for of in ("identity", "generated"):
        if before[of] != after[of]:
            yield {"change": of, "column": name, "from": before[of], "to": after[of]}
