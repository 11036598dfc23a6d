"""What a program that applies is told: the options of a target of kind ``postgres``.

They are declared in :mod:`spillway.declarations.postgres_target`; here they are one value, read
from the JSON in which the subscriber hands them on (``SPILLWAY_APPLY_OPTIONS``: a DSN has a
password, and every user of a machine reads command lines).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Rename:
    """Where a source's tables are on the target: by schema, or ``schema.table`` for one table."""

    names: Mapping[str, str] = field(default_factory=dict)

    def target_of(self, schema: str, table: str) -> tuple[str, str]:
        """Return the target's schema and table for one of the source's."""
        one = self.names.get(f"{schema}.{table}")
        if one is not None:
            to_schema, _, to_table = one.partition(".")
            return to_schema, to_table
        return self.names.get(schema, schema), table


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """See the module."""

    dsn: str = field(repr=False)
    rename: Rename = field(default_factory=Rename)
    create_tables: bool = False
    #: kinds to resolutions, and ``tables`` to such of one table's; see ``conflicts.rules``
    conflicts: Mapping[str, Any] = field(default_factory=dict)
    #: conflicts are written to spillway.conflicts of the target, too
    conflicts_table: bool = False
    #: rows that can't be applied are set aside in spillway.dead_letter
    dead_letter: bool = False
    #: an error of a transaction disables the subscription, in place of trying again
    disable_on_error: bool = False
    #: ``set_aside``: a table that can't be written to leaves the others alone; ``stop``: none does
    table_errors: str = "stop"
    synchronous_commit: str = "off"
    #: that write groups at the same time; 1: the only one that there is
    connections: int = 2
    #: ``source``: commits in the source's order; ``relaxed``: as groups are ready
    commit_order: str = "source"
    #: that the first copy uses at once
    copy_connections: int = 2
    #: bytes of changes that one transaction of the target takes at most, but for a larger one
    group_bytes: int = 16 << 20
    #: indexes that aren't constraints are made after a table's first copy; None: a large one's
    defer_indexes: bool | None = None
    #: seconds between two settings of sequences; 0: at the first copy and a refresh only
    sync_sequences: int = 0
    #: seconds that rows which somebody else deletes are kept to be told; 0: not at all
    retain_dead_tuples: int = 0
    #: ``always``: every transaction change by change, one for one, as PostgreSQL's worker
    exact: str = "auto"
    #: ``pause`` or ``apply`` for what DDL does to the source's tables; ``ignore``: as PostgreSQL
    on_schema_change: str = "ignore"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read them from JSON.

        Raises:
            InvalidRequest: it is none, or has no dsn.
        """
        try:
            given = json.loads(text)
            rename = Rename(dict(given.pop("rename", None) or {}))
            return cls(rename=rename, **given)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"the target's options can't be read: {type(error).__name__}",
                hint="They are a JSON object with a dsn, as the target of a subscription has them.",
            ) from None
