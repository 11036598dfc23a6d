"""How a lake's tables lie in files: what their partitions are, and what current tables are
clustered by.

::

    --partition-history day                              history: by the day of _commit_time
    --partition-by 'shop.orders=day(created_at),region'  current: by what a row's columns say
    --cluster-by 'shop.orders=customer_id'               current: rows that are near each other in
                                                         it share files

A partition is a *derived* column of the lake table, ``_by_<column>``, which the job fills and which
readers through :mod:`spillway.lake.read` don't see (:mod:`spillway.lake.tables.partitions`). The
source's column stays in the files as it is, so a value that a directory's name can't have, an empty
text or one of a thousand letters, is no special case; and as each file has one partition's rows,
its statistics leave it out for a filter on the source's own column, too. Rows whose column changes
move: a merge matches rows by their key alone and writes them where they belong.

What was asked for is kept below the lake, so that it is said once, and a load or a comparison
beside the job knows it::

    _spillway/layout.json      replaced whole

A table is made as this file says at that moment, and its own columns say how it was made: they are
what counts from then on. Asking for other partitions of a table that is there is refused; loading
it anew makes it so. Clusters may change at any time: the next round of maintenance that finds
enough new rows follows them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import (
    InvalidRequest,
    LakeTableConflict,
    UnsupportedFeature,
)
from spillway.lake.load_anew import load_anew
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.partition import COMMIT_TIME, UNITS, Partition, check_column
from spillway.lake.shape.payload import table_of
from spillway.lake.state.loads import is_loading
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from spillway.lake.tables.contract import LakeTables
    from spillway.storage.place import LakePath

_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What was asked for; tables by ``schema.table``. None, or a table that isn't there: nothing
    was.
    """

    #: one of :data:`UNITS`, or ""
    history: str | None = None
    partition_by: Mapping[str, tuple[Partition, ...]] = field(default_factory=dict)
    cluster_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.history is not None or bool(self.partition_by or self.cluster_by)

    def partitions(self, kind: str, directory: str) -> tuple[Partition, ...]:
        """Return the partitions that a table is to be made with."""
        if kind == HISTORY:
            return (Partition(COMMIT_TIME, self.history),) if self.history else ()
        if kind == CURRENT:
            return self.partition_by.get(_table(directory), ())
        return ()

    def clusters(self, directory: str) -> tuple[str, ...]:
        """Return the columns that a current table is clustered by."""
        return self.cluster_by.get(_table(directory), ())

    def check(self, directory: str, columns: pa.Schema) -> None:
        """Check that what was asked for can be done with a current table of these columns.

        Raises:
            LakeSchemaConflict: it can't.
        """
        for partition in self.partitions(CURRENT, directory):
            partition.check(columns)
        for column in self.clusters(directory):
            check_column(column, columns, "--cluster-by")

    def with_changes(self, given: Layout) -> Layout:
        """Return it with what *given* says instead."""
        return replace(
            self,
            history=self.history if given.history is None else given.history,
            partition_by={**self.partition_by, **given.partition_by},
            cluster_by={**self.cluster_by, **given.cluster_by},
        )


def parse(history: str | None, partition_by: Iterable[str], cluster_by: Iterable[str]) -> Layout:
    """Parse the options of a command; see the module.

    Raises:
        InvalidRequest: one says nothing that could be done.
    """
    if history is not None and history not in (*UNITS, "none"):
        raise InvalidRequest(
            f"history can't be partitioned by {history!r}", hint=f"{', '.join(UNITS)}, or none."
        )
    partitions = {
        table: tuple(Partition.parse(text) for text in texts)
        for table, texts in _by_table("--partition-by", partition_by)
    }
    for table, of_table in partitions.items():
        columns = [partition.column for partition in of_table]
        if len(set(columns)) < len(columns):
            raise InvalidRequest(
                f"a column of {table} makes two partitions",
                hint="Name each column once in --partition-by.",
            )
    clusters = dict(_by_table("--cluster-by", cluster_by))
    return Layout(None if history is None else history.removesuffix("none"), partitions, clusters)


def _by_table(option: str, values: Iterable[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    seen: set[str] = set()
    for value in values:
        table, equals, columns = (part.strip() for part in value.partition("="))
        if not equals or "." not in table or table in seen:
            raise InvalidRequest(
                f"{option} {value!r} does not say of which table, or of one that was named before",
                hint=f"{option} 'schema.table=column,column'; once for each table; nothing behind "
                "= for none.",
            )
        seen.add(table)
        yield table, tuple(name.strip() for name in columns.split(",") if name.strip())


def load(path: LakePath) -> Layout:
    """Return what was asked for of the lake at *path*.

    Raises:
        LakeTableConflict: the file is not of this release.
    """
    file = _file(path)
    try:
        value: dict[str, Any] = json.loads(file.read_text())
        if value["version"] != _FORMAT_VERSION:
            raise ValueError(f"version {value['version']}")  # noqa: TRY301 - one message for all that is wrong with it
        return Layout(
            value["history"],
            {t: tuple(map(Partition.parse, texts)) for t, texts in value["partition_by"].items()},
            {t: tuple(columns) for t, columns in value["cluster_by"].items()},
        )
    except FileNotFoundError:
        return Layout()
    except (AttributeError, InvalidRequest, KeyError, TypeError, ValueError) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error}",
            hint="It was written by another release, or is damaged. Removed, tables are made "
            "without partitions unless the options are given again.",
        ) from error


def settle(
    path: LakePath,
    table_format: str,
    given: Layout,
    tables: LakeTables,
    *,
    loaded_anew: Callable[[str], bool] = lambda _: False,
) -> None:
    """Keep what a command was given of the lake at *path*, after checking it against the tables
    that are there.

    Args:
        path: the lake.
        table_format: its format.
        given: the options.
        tables: the lake's.
        loaded_anew: whether a table, by its name, is being made anew by the same command.

    Raises:
        UnsupportedFeature: the format has no partitions.
        LakeTableConflict: a table has other ones.
        LakeSchemaConflict: a table has no such column.
    """
    if not given:
        return
    if table_format != "delta":
        raise UnsupportedFeature(
            f"partitions and clusters are of lakes in Delta, and the one at {path} is of "
            f"{table_format}",
            hint="Leave --partition-history, --partition-by and --cluster-by out, or use --format "
            "delta.",
        )
    for kind in (HISTORY, CURRENT):
        folder = path / kind
        for directory in (
            sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
        ):
            table = _table(directory)
            if kind == CURRENT and (loaded_anew(table) or is_loading(path, directory)):
                continue
            columns = tables.schema(kind, directory)
            asked = given.history is not None if kind == HISTORY else table in given.partition_by
            there, wanted = tables.partitions(kind, directory), given.partitions(kind, directory)
            if asked and there is not None and there != wanted:
                raise LakeTableConflict(
                    f"{kind} of {table} is partitioned by {_listed(there)}, not by "
                    f"{_listed(wanted)}",
                    hint=_way_on(kind, table, wanted),
                    relation=table,
                )
            if kind == CURRENT and columns is not None:
                given.check(directory, columns)
    stored = load(path)
    changed = stored.with_changes(given)
    if changed != stored:
        _store(path, changed)


def _way_on(kind: str, table: str, wanted: Iterable[Partition]) -> str:
    if kind == CURRENT:
        option = shlex.quote(f"{table}={','.join(map(str, wanted))}")
        return f"Load it anew: {load_anew(table, '--partition-by', option)}."
    return (
        "History is never rewritten: leave --partition-history out, or fill another lake. Tables "
        "that are new to a lake are made as its others."
    )


def _store(path: LakePath, layout: Layout) -> None:
    (path / "_spillway").mkdir(parents=True, exist_ok=True)
    value = {
        "version": _FORMAT_VERSION,
        "history": layout.history,
        "partition_by": {t: list(map(str, p)) for t, p in layout.partition_by.items()},
        "cluster_by": {t: list(columns) for t, columns in layout.cluster_by.items()},
    }
    replace_json(_file(path), value)


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"


def _table(directory: str) -> str:
    return ".".join(table_of(directory))


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "layout.json"
