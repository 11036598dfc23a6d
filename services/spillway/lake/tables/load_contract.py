"""What an initial load asks of a table format, beside
:class:`spillway.lake.tables.contract.LakeTables`.

Loaded rows go to history in chunks. A chunk is one commit, marked with the snapshot's LSN and the
chunk's number in the commit itself, so that repeating it does nothing.

A history that the load makes begins at the snapshot's LSN: what was changed before is in the rows.
One that is there already keeps every change that the slot delivered, and the loaded rows are among
them where they belong.

The current table is written in one commit from all loaded rows, and is as of the snapshot's LSN
then.

Rows go there in one of two ways. Where format and table allow it, whoever copies a range writes the
data files of both tables at once (:class:`LoadFiles`), and commits only name them: no row passes
Spark, and none is read back. Else Spark writes what is copied to history, and makes the current
table of what it reads there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.net_effect import copies_field, quoted
from spillway.lake.tables.contract import MULTISET, Batch, LakeTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: The batch id of a commit that no batch made.
NO_BATCH: Final = -1


class RowWriter(Protocol):
    """Files that are being written, by one thread of an executor or of the driver. Memory: a row
    group.
    """

    def write(self, rows: pa.Table) -> None:
        """Take rows with :attr:`RowFiles.columns`."""
        ...

    def close(self) -> list[str]:
        """Make the files durable; return what the commit is told of each."""
        ...

    def remove(self) -> None:
        """Remove what is being written, as far as that can be done: nothing names it."""
        ...


class RowFiles(Protocol):
    """New data files of one table, which no commit names yet. Pickled to executors."""

    @property
    def columns(self) -> pa.Schema:
        """What rows have, types and order."""
        ...

    def writer(self) -> RowWriter: ...


@dataclass(frozen=True, slots=True)
class LoadFiles:
    """Where whoever copies a table's rows writes them. Pickled to executors."""

    history: RowFiles
    #: None: there is no current table, or Spark makes it of what is in history
    current: RowFiles | None


class FileLoads(Protocol):
    """What of a load is done with files that who copies the rows has written."""

    def load_files(
        self, name: str, current: pa.Schema | None, key: tuple[str, ...], taken_at_us: int
    ) -> LoadFiles | None:
        """Return where the rows of a load are to be written by who copies them; None: this table's
        are written by Spark.

        Args:
            name: the table; its history is prepared.
            current: the columns of its current table, without copies; None: it has none.
            key: what tells its rows.
            taken_at_us: the rows' ``_commit_time``.
        """
        ...

    def append_files(self, name: str, files: Sequence[str], lsn: int, chunk: int) -> None:
        """Commit chunk *chunk* of the load as of *lsn*, unless it was committed before: *files* of
        history, as their writers told of them.
        """
        ...

    def replace_current_files(
        self,
        name: str,
        files: Sequence[str],
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
    ) -> bool:
        """Do what :meth:`replace_current` does with *files*, in which all rows are; return whether
        it is done: if not, nothing is.
        """
        ...


class LoadTables(LakeTables, Protocol):
    """The lake tables of one path, for a load. Driver only; calls for different tables may come
    from different threads.
    """

    @property
    def by_files(self) -> FileLoads | None:
        """What writes files where rows are copied; None: Spark writes all."""
        ...

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        """Make the history table, which then has nothing before *lsn*, or give it *schema*'s
        columns that it lacks.
        """
        ...

    def loaded_chunks(self, name: str, lsn: int) -> int:
        """Return how many chunks of the load as of *lsn* are durable; they come in order."""
        ...

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        """Commit chunk *chunk* of the load as of *lsn*, unless it was committed before."""
        ...

    def seal_loaded(self, name: str, lsn: int) -> None:
        """All chunks of the load as of *lsn* are durable: let history show their rows, if it
        doesn't yet.
        """
        ...

    def drop_loaded(self, name: str, lsn: int) -> None:
        """Take the rows of the load as of *lsn* out of history, as if they had never been there."""
        ...

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        """Make *rows* the current table, whatever it was, as of the batch's end; *columns* without
        copies.
        """
        ...


def loaded_rows(tables: LoadTables, name: str, lsn: int) -> DataFrame:
    """Return the history's rows that the load as of *lsn* read."""
    return tables.history(name, lsn - 1, lsn).where(F.col("_op") == "R")


def in_shape(rows: DataFrame, columns: pa.Schema, key: tuple[str, ...]) -> DataFrame:
    """Return *rows* with the current table's columns, attribute numbers included."""
    counted = columns.append(copies_field(columns.names)) if key == MULTISET else columns
    wanted = spark_schema(counted)
    return rows.select(
        *(F.col(quoted(f.name)).alias(f.name, metadata=f.metadata) for f in wanted.fields)
    )
