"""Partitioned tables that a reader of the plugin ``arrow`` sees as one: the option
``partition_root``, a JSON list of their names (``schema.table``), or of ``"all"``.

What rows of partitions look like then, :mod:`spillway.plugins.arrow_schema` says. Two things change
the rows of a root without a change of a row, and come as a row of the root's own, all of whose
columns are null but ``_partition``, the partition's oid:

=======  ===========================================================================================
``_op``  what it says
=======  ===========================================================================================
``P``    the partition's rows are gone: it was truncated, detached or dropped
``A``    a table was attached that was there before: its rows, if it has any, are not in WAL as the
         root's. ``_partition`` is null for one of a table that is partitioned itself, and where
         such a table was detached
=======  ===========================================================================================

A partition that is made as one (``CREATE TABLE … PARTITION OF``, or attached in the transaction
that made it, before that wrote any row) begins empty, and nothing is told of it. ``TRUNCATE`` of
the root is a ``T`` of the root, with a ``P`` of each partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.descriptor import RelationDescriptor
from spillway.errors import InvalidOption
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.plugins.arrow_schema import plan_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spillway.plugins.arrow_schema import SchemaOptions

OPTION: Final = "partition_root"
#: of a message with :data:`ATTACHED`: a JSON object that says where it is, and of which table
METADATA_KEY: Final = b"spillway.attached"
#: the operations
EMPTIED: Final = "P"
ATTACHED: Final = "A"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition of a root that has come or gone."""

    op: str
    #: its oid; None: it is not one partition
    partition: int | None
    #: as people call it
    name: str
    #: of the root's messages
    schema: pa.Schema

    def marked_schema(self, commit_lsn: int) -> pa.Schema:
        """Return the schema of its message, in the transaction that commits at *commit_lsn*."""
        if self.op != ATTACHED:
            return self.schema
        told = {"commit_lsn": str(Lsn(commit_lsn)), "table": self.name}
        metadata = {**(self.schema.metadata or {}), METADATA_KEY: json.dumps(told).encode()}
        return self.schema.with_metadata(metadata)


@dataclass(frozen=True, slots=True)
class Attached:
    """What a message tells of a table that was attached."""

    commit_lsn: int
    table: str


def attached_of(schema: pa.Schema) -> Attached | None:
    """Return what a message with that schema tells of a table that was attached; None: nothing."""
    told = (schema.metadata or {}).get(METADATA_KEY)
    if told is None:
        return None
    value = json.loads(told)
    return Attached(int(Lsn.parse(value["commit_lsn"])), value["table"])


def parse_roots(text: str | None) -> frozenset[str]:
    """Parse the option's value.

    Raises:
        InvalidOption: it is none.
    """
    if not text:
        return frozenset()
    try:
        names = json.loads(text)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(names)  # noqa: TRY301 - one message for all that is wrong with it
    except (TypeError, ValueError) as error:
        raise InvalidOption(
            f'could not parse value "{text}" for parameter "{OPTION}"',
            hint='Give a JSON list of partitioned tables, ["schema.table"], or ["all"].',
            option=OPTION,
        ) from error
    return frozenset(names)


def partition_change(content: bytes, options: SchemaOptions) -> list[PartitionChange]:
    """Return what a SCHEMA_CHANGE with *content* says of the roots that *options* name."""
    if not options.partition_roots:
        return []
    change = json.loads(content)
    # What was logged by a release before says nothing of it.
    if not change.get("left") and not change.get("joined"):
        return []
    return list(_changes(change, options))


def _changes(change: dict[str, Any], options: SchemaOptions) -> Iterator[PartitionChange]:
    left, joined = (
        _root(change["before"] if key == "left" else change["after"], change.get(key), options)
        for key in ("left", "joined")
    )
    if left is not None and joined is not None and left[1].oid == joined[1].oid:
        return
    for found, op in ((left, EMPTIED), (joined, ATTACHED)):
        if found is None:
            continue
        table, root = found
        schema = plan_partition(root, root, options).schema
        name = readable(f"{table.schema}.{table.name}")
        if table.kind == "p":
            # Which partitions it has is not said.
            yield PartitionChange(ATTACHED, None, name, schema)
        else:
            yield PartitionChange(op, table.oid, name, schema)


def _root(
    state: dict[str, Any] | None, above: list[dict[str, Any]] | None, options: SchemaOptions
) -> tuple[RelationDescriptor, RelationDescriptor] | None:
    """Return a partition and its root; None: it has none that is asked for."""
    if state is None or not above:
        return None
    table = RelationDescriptor.from_json(state["table"])
    chain = [RelationDescriptor.from_json(each) for each in above]
    root = options.root_of(chain[0], chain[1:])
    return None if root is None else (table, root)
