"""A batch merged into a small current table of Delta Lake by writing its files anew.

::

    files ──which rows have a changed key?──▶ the other rows of those files, of tiny ones too
        + the rows that are there afterwards ──▶ one data file ──▶ removes and an add

delta-rs' MERGE does the same for tables of any size, and plans a query first: twenty milliseconds,
where the rows of a small table are read, looked through and written in a few. A batch that has a
row of each of some hundred tables is these milliseconds. Equality of keys is that of their bytes,
as :mod:`spillway.lake.tables.plain_changes` has them.

Bound: tables of :data:`SMALL_BYTES`, in the few files that a
:class:`~spillway.lake.tables.delta.log.Head` knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.lake.tables.delta import log
from spillway.lake.tables.delta.data_files import DataFile, file_path, names_of, opened, plain
from spillway.lake.tables.stored_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from spillway.lake.tables.delta.log import Action, Head
    from spillway.lake.tables.plain_changes import LastChanges
    from spillway.storage.place import LakePath

#: Files' bytes, compressed: some ten times as much in memory.
SMALL_BYTES: Final = 4 << 20
#: Files with fewer bytes are written anew with the others, whatever is in them: each batch would
#: leave one more.
_TINY_BYTES: Final = 64 << 10


def is_small(head: Head) -> bool:
    """Say whether a table is merged so."""
    return (
        not head.many
        and not head.metadata["partitionColumns"]
        # delta-rs says why nothing is removed.
        and head.configuration.get("delta.appendOnly", "false") == "false"
        and sum(int(file["size"]) for file in head.files.values()) <= SMALL_BYTES
    )


def rewritten(
    table: LakePath, head: Head, changes: LastChanges, columns: pa.Schema, key: Sequence[str]
) -> list[Action]:
    """Write the rows of a small *table*'s touched files anew, with *changes* in them; return the
    actions of the commit. What they name is durable.

    Raises:
        NotDirect: a file is not stored plainly.
    """
    columns = plain(columns)
    changed = changes.rows.select(list(key))
    # Of rows that are gone there are the keys alone.
    rows = changes.rows.filter(changes.is_set)
    rows = rows.select(columns.names).cast(columns) if len(rows) else columns.empty_table()
    kept: list[pa.Table] = []
    actions: list[Action] = []
    for file in head.files.values():
        with opened(file_path(table, file)) as parquet:
            there = pa.concat_tables(
                [columns.empty_table(), *rows_of(parquet, columns, names_of(parquet, columns))]
            )
        stays = ~_has_key(there.select(list(key)), changed)
        is_touched = not bool(stays.all())
        # A batch without rows writes no file that need not be.
        if is_touched or (int(file["size"]) < _TINY_BYTES and len(rows)):
            kept.append(there.filter(pa.array(stays)))
            actions.append(log.removal(file, data_change=True))
    rows = pa.concat_tables([*kept, rows])
    if len(rows):
        with DataFile(table, columns, key, {}) as new:
            new.write(rows)
            actions.append({"add": new.close()})
    return actions


def _has_key(keys: pa.Table, changed: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which of *keys* are among the *changed* ones."""
    changed = changed.cast(keys.schema)
    if keys.num_columns == 1:
        found = pc.is_in(keys.column(0), value_set=changed.column(0).combine_chunks())
        mask: npt.NDArray[np.bool_] = found.to_numpy()
        return mask
    # By numbers: a table's column may have any name.
    numbers = [str(n) for n in range(keys.num_columns)]
    numbered = keys.rename_columns(numbers).append_column("row", pa.array(np.arange(len(keys))))
    found = numbered.join(changed.rename_columns(numbers), numbers, join_type="left semi")
    mask = np.zeros(len(keys), dtype=bool)
    mask[found.column("row").to_numpy()] = True
    return mask
