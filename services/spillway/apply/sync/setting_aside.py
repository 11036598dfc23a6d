"""Which table an error of applying is the trouble of, so that it alone is set aside.

An error names the table, in ``details``: as the target calls it, or, of the source's DDL, as the
source does. Where that could be two of the subscription's, nobody is set aside: it would be the
wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.errors import (
    HINT,
    ApplyConflict,
    TargetColumnsMissing,
    TargetNotPermitted,
    TargetRefused,
    TargetSchemaChange,
    TargetSerialization,
    TargetTableMissing,
    TargetTableUnusable,
)
from spillway.pg.connect_errors import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.apply.sync.states import TableName
    from spillway.errors import SpillwayError

_KINDS: Final = (
    ApplyConflict,
    TargetColumnsMissing,
    TargetNotPermitted,
    TargetRefused,
    TargetSchemaChange,
    TargetTableMissing,
    TargetTableUnusable,
)


def table_of(
    error: SpillwayError,
    tables: Iterable[TableName],
    rename: Callable[[str, str], tuple[str, str]],
) -> TableName | None:
    """Return the one table that *error* is about, by its name on the source; None: it is no single
    table's, or not known to be.

    Args:
        error: of applying.
        tables: of the subscription, by their names on the source.
        rename: what the target calls one.
    """
    if not isinstance(error, _KINDS) or isinstance(error, TargetSerialization):
        return None
    name = error.details.get("relation") or error.details.get("table")
    if not name:
        return None
    is_the_sources = isinstance(error, TargetSchemaChange)
    called = {key: ".".join(key if is_the_sources else rename(*key)) for key in tables}
    # A partition's DDL is the trouble of the table that is published in its place.
    above = error.details.get("partition_of")
    for one in (name, *(above if isinstance(above, list) else ())):
        if found := [key for key in called if called[key] == one]:
            return found[0] if len(found) == 1 else None
    return None


def why_aside(error: SpillwayError, target: tuple[str, str]) -> str:
    """Return what is said of a table that *error* has set aside: why, and what brings it back.

    Args:
        error: see :func:`table_of`.
        target: what the target calls the table.
    """
    quoted = ".".join(map(quote_identifier, target))
    return (
        f"{error.message}{HINT}the table is set aside, and the others go on. {error.hint} Then "
        f"have it copied anew, on the target: TRUNCATE {quoted};"
    )
