"""Whose trouble it is that a table's part of a batch can't be written: the table's own, or that of
all.

What is a table's own comes again with each batch that has its changes: a value that no file takes,
a key that was changed at the source, a full quota. It must not stop the others, so the job sets
that table aside (:mod:`spillway.lake.state.quarantine`). The trouble of all (a full disk, a store
or a cluster that doesn't answer, a lease that another one holds) ends the batch: to set tables
aside, one after the other, would be no help.

An error alone does not say for sure which of the two it is. So the part is tried twice, and what is
set aside is written to the same lake by the same workers: if that fails, too, it was the trouble of
all.
"""

from __future__ import annotations

import errno
import shlex
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeError, SpillwayError
from spillway.lake.load_anew import load_anew
from spillway.lake.worker_failures.errors import typed_error
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.plugins.partition_roots import Attached
    from spillway.plugins.refused_values import RefusedValue

#: What Spark and Java say where a machine, a disk or a network is the reason.
_OF_ALL: Final = (
    "Python worker failed to connect back", "SparkContext was shut down", "stopped SparkContext",
    "ExecutorLost", "OutOfMemoryError",
    "No space left on device", "Input/output error", "Connection refused", "Connection reset",
    "timed out", "cancelled",
)  # fmt: skip

#: How a message begins that no worker of ours made.
_NOBODY_SAID: Final = "\0"


def is_tables_own(error: BaseException) -> bool:
    """Say whether *error*, of writing one table's part of a batch, is that table's own trouble."""
    if not isinstance(error, Exception):
        # A library's in Rust, which gave up on a value.
        return type(error).__name__ == "PanicException"
    if isinstance(error, SpillwayError):
        return isinstance(error, LakeError) and "relation" in error.details
    if isinstance(error, OSError):
        return error.errno == errno.EDQUOT
    if isinstance(error, MemoryError):
        return False
    typed = typed_error(error, what=_NOBODY_SAID, hint="")
    if not typed.message.startswith(_NOBODY_SAID):
        # A worker's own words; what the service or the source said is none of the table's.
        return isinstance(typed, LakeError)
    # Not the stack traces, which pass through much that is not the reason.
    told = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    return not any(words in line for words in _OF_ALL for line in told)


def refused_reason(value: RefusedValue, table: str, lake: object) -> str:
    """Return what is told of a table that is set aside over a value that the plugin has no form
    for, and the way back.
    """
    shown = "" if value.value is None else f" ({value.value})"
    hint = f" Or: {value.hint[0].lower()}{value.hint[1:].rstrip('.')}." if value.hint else ""
    return (
        f"a value of column {value.column!r} of {table}, changed at {value.lsn} in the transaction "
        f"that commits at {value.commit_lsn}, can't be in the lake: {value.reason}{shown}. Mend it "
        f"at the source, load the table anew ({load_anew(table)}), then: spillway lake "
        f"resume --lake {shlex.quote(str(lake))} --table {shlex.quote(table)} --give-up.{hint}"
    )


def attached_reason(attached: Attached, table: str) -> str:
    """Return what is told of a table that is set aside over a partition with rows of before, and
    the way back.
    """
    return (
        f"{attached.table} became or ceased to be a part of {table} in the transaction that "
        f"commits at {Lsn(attached.commit_lsn)}, and what rows it had then is not in WAL. Load the "
        f"table anew: {load_anew(table)}"
    )


def reason(error: BaseException, table: str, lake: object) -> str:
    """Return what is told of a table that is set aside, and the way back."""
    typed = typed_error(error, what=f"{table} can't be written", hint="")
    told = f"{typed.message.rstrip('.')}. {typed.hint}".strip()
    return (
        f"{told.rstrip('.')}. When that is mended: spillway lake resume --lake "
        f"{shlex.quote(str(lake))} --table {shlex.quote(table)}. A value that no file takes stays "
        f"in what is set aside: load the table anew ({load_anew(table)}), then resume it with "
        "--give-up"
    )
