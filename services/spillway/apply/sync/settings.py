"""What a subscription says of its tables' first copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.apply.tables.matching import same_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.apply.tables.matching import Rename


def _all(schema: str, table: str) -> bool:
    del schema, table
    return True


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """What a subscription says of its tables' first copies."""

    #: on the source; none: every table
    publications: tuple[str, ...] = ()
    #: rows that the source has are copied; else tables are taken as they are on the target
    copy_data: bool = True
    #: to each side
    connections: int = 2
    #: of a heap, about, that one COPY reads
    range_bytes: int = 128 << 20
    #: indexes that are no constraints are dropped for the copy and made again; None: those of a
    #: table that is large enough for it
    defer_indexes: bool | None = None
    #: tables that the target lacks are made from the source's definitions
    create_tables: bool = False
    #: sequences are set again after so many seconds; None: at the first copy and a refresh only
    sequences_every_s: float | None = None
    #: of the subscription, that marks what is written; '' where the role may not
    origin: str = ""
    rename: Rename = same_name
    #: which of the published tables are the subscription's
    selected: Callable[[str, str], bool] = _all
    #: what identifiers of the stream's prepared transactions begin with; '' if it has none
    prepared: str = ""
    #: a table that the stream can't write leaves the others alone
    sets_aside: bool = False
    #: the first look at what is published is a refresh
    refreshes: bool = True
    #: tables, schema.table, that it forgets though they are published: they were not meanwhile
    forgets: frozenset[str] = frozenset()
