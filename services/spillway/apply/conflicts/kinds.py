"""Kinds of conflicts by PostgreSQL 18's names, and the resolutions that each may have.

======================== ============================================= =========================
kind                     what was met                                  by default, as PostgreSQL
======================== ============================================= =========================
insert_exists            an insert's key is there already              error
update_exists            an update's new key is another row's          error
multiple_unique_conflicts  either, in several unique indexes           error
update_origin_differs    the row was last written by somebody else     apply_remote
delete_origin_differs    the same, of a delete                         apply_remote
update_deleted           somebody else has deleted an update's row     skip
update_missing           an update's row is not there                  skip
delete_missing           a delete's row is not there                   skip
======================== ============================================= =========================

PostgreSQL 19's update_deleted is told where the subscription has ``retain_dead_tuples``
(:mod:`spillway.apply.exact.dead_rows`); without that it is update_missing, as there.

Source: ConflictType (src/include/replication/conflict.h), apply_handle_update_internal and
apply_handle_delete_internal (src/backend/replication/logical/worker.c), CheckAndReportConflict
(src/backend/executor/execReplication.c)
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConflictKind(StrEnum):
    """What was met; the values are PostgreSQL's names."""

    INSERT_EXISTS = "insert_exists"
    UPDATE_ORIGIN_DIFFERS = "update_origin_differs"
    UPDATE_EXISTS = "update_exists"
    UPDATE_DELETED = "update_deleted"
    UPDATE_MISSING = "update_missing"
    DELETE_ORIGIN_DIFFERS = "delete_origin_differs"
    DELETE_MISSING = "delete_missing"
    MULTIPLE_UNIQUE_CONFLICTS = "multiple_unique_conflicts"


class Resolution(StrEnum):
    """What is done about a conflict.

    Attributes:
        ERROR: the transaction is rolled back and the subscription stops, or the row goes to the
            dead letters.
        APPLY_REMOTE: the source's row is written; rows that are in its way are replaced.
        KEEP_LOCAL: the target's row stays.
        LAST_UPDATE_WINS: of both rows the one that was committed last; of equal times the row
            whose text is greater, so that two databases that follow each other agree.
        SKIP: the change is passed over: there is no row to keep.
        MERGE: columns that the source changed are set, the others keep the target's values.
    """

    ERROR = "error"
    APPLY_REMOTE = "apply_remote"
    KEEP_LOCAL = "keep_local"
    LAST_UPDATE_WINS = "last_update_wins"
    SKIP = "skip"
    MERGE = "merge"


#: As PostgreSQL's worker does.
DEFAULTS: Final[Mapping[ConflictKind, Resolution]] = {
    ConflictKind.INSERT_EXISTS: Resolution.ERROR,
    ConflictKind.UPDATE_EXISTS: Resolution.ERROR,
    ConflictKind.MULTIPLE_UNIQUE_CONFLICTS: Resolution.ERROR,
    ConflictKind.UPDATE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
    ConflictKind.DELETE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
    ConflictKind.UPDATE_DELETED: Resolution.SKIP,
    ConflictKind.UPDATE_MISSING: Resolution.SKIP,
    ConflictKind.DELETE_MISSING: Resolution.SKIP,
}

_ROW_IN_THE_WAY: Final = (
    Resolution.ERROR,
    Resolution.APPLY_REMOTE,
    Resolution.KEEP_LOCAL,
    Resolution.LAST_UPDATE_WINS,
)

#: What each kind may have, the default first.
ALLOWED: Final[Mapping[ConflictKind, tuple[Resolution, ...]]] = {
    ConflictKind.INSERT_EXISTS: _ROW_IN_THE_WAY,
    ConflictKind.UPDATE_EXISTS: _ROW_IN_THE_WAY,
    ConflictKind.MULTIPLE_UNIQUE_CONFLICTS: _ROW_IN_THE_WAY,
    ConflictKind.UPDATE_ORIGIN_DIFFERS: (
        Resolution.APPLY_REMOTE,
        Resolution.ERROR,
        Resolution.KEEP_LOCAL,
        Resolution.LAST_UPDATE_WINS,
        Resolution.MERGE,
    ),
    ConflictKind.DELETE_ORIGIN_DIFFERS: (
        Resolution.APPLY_REMOTE,
        Resolution.ERROR,
        Resolution.KEEP_LOCAL,
        Resolution.LAST_UPDATE_WINS,
    ),
    ConflictKind.UPDATE_DELETED: (
        Resolution.SKIP,
        Resolution.ERROR,
        Resolution.APPLY_REMOTE,
        Resolution.LAST_UPDATE_WINS,
    ),
    ConflictKind.UPDATE_MISSING: (Resolution.SKIP, Resolution.ERROR, Resolution.APPLY_REMOTE),
    ConflictKind.DELETE_MISSING: (Resolution.SKIP, Resolution.ERROR),
}

#: Kinds about a row in a unique index.
EXISTS: Final = frozenset(
    {
        ConflictKind.INSERT_EXISTS,
        ConflictKind.UPDATE_EXISTS,
        ConflictKind.MULTIPLE_UNIQUE_CONFLICTS,
    }
)
#: Kinds that are seen only where the target has track_commit_timestamp and the session an origin.
ORIGIN_DIFFERS: Final = frozenset(
    {ConflictKind.UPDATE_ORIGIN_DIFFERS, ConflictKind.DELETE_ORIGIN_DIFFERS}
)
