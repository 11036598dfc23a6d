"""Position deletes of Iceberg tables: which rows of which data files are gone.

A file of them is Parquet, of the columns ``file_path`` and ``pos``, in their order; it may have
rows of any of the table's data files. What it says stays true: a data file's rows never move, and
its path never comes again. So all files of deletes that a snapshot has are one set of rows of each
data file.

Other engines' are read like ours. Memory: the sets (:mod:`spillway.lake.tables.row_sets`).

Source: the Iceberg specification, "Position Delete Files".
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from spillway.errors import LakeError, LakeTableConflict
from spillway.lake.tables import row_sets
from spillway.lake.tables.iceberg.files import sync_new_directory
from spillway.storage.durable_files import sync_open_file
from spillway.storage.place import ObjectPath, stored_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyroaring import BitMap

    from spillway.storage.place import LakePath

_PATH_ID: Final = 2147483546
_POS_ID: Final = 2147483545
_SCHEMA: Final = pa.schema(
    [
        pa.field(name, type_, nullable=False, metadata={b"PARQUET:field_id": str(own).encode()})
        for name, type_, own in (
            ("file_path", pa.string(), _PATH_ID),
            ("pos", pa.int64(), _POS_ID),
        )
    ]
)
_ROWS_AT_ONCE: Final = 1 << 17
_WHOLE_BYTES: Final = 8 << 20


def write(directory: LakePath, files: Sequence[Mapping[str, BitMap]]) -> list[DataFile]:
    """Make what is gone durable below *directory*: a file for each of *files*, which say it by the
    data files' paths and are not empty; describe them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = [_written(directory, gone) for gone in files]
    if written and isinstance(directory, Path):
        sync_new_directory(directory)
    return written


def _written(directory: LakePath, gone: Mapping[str, BitMap]) -> DataFile:
    path = directory / f"{uuid.uuid4()}-deletes.parquet"
    sink: Any = path.open_writer() if isinstance(path, ObjectPath) else path.open("xb")
    names, count = sorted(gone), sum(map(len, gone.values()))
    try:
        _write_rows(sink, names, gone)
        size = sink.tell()
        if isinstance(path, Path):
            sync_open_file(sink)
        sink.close()
    except BaseException:
        # An object that is not closed never is one.
        if isinstance(path, Path):
            sink.close()
            path.unlink(missing_ok=True)
        raise
    first, last = StringType(), LongType()
    lows = {_PATH_ID: to_bytes(first, names[0])}
    highs = {_PATH_ID: to_bytes(first, names[-1])}
    lows[_POS_ID] = to_bytes(last, min(rows.min() for rows in gone.values()))
    highs[_POS_ID] = to_bytes(last, max(rows.max() for rows in gone.values()))
    described = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=count,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={_PATH_ID: count, _POS_ID: count},
        null_value_counts={},
        nan_value_counts={},
        # Whole, so that readers see which data files it is not about.
        lower_bounds=lows,
        upper_bounds=highs,
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    described.spec_id = 0
    return described


def _write_rows(sink: Any, names: Sequence[str], gone: Mapping[str, BitMap]) -> None:
    with pq.ParquetWriter(
        sink, _SCHEMA, compression="zstd", use_dictionary=["file_path"], store_schema=False,
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
    ) as writer:  # fmt: skip
        held: list[pa.Table] = []
        for name in names:
            rows = row_sets.as_array(gone[name])
            paths = pa.array([name]).take(pa.array(np.zeros(len(rows), dtype=np.int32)))
            held.append(pa.table([paths, pa.array(rows.astype(np.int64))], schema=_SCHEMA))
            if sum(map(len, held)) >= _ROWS_AT_ONCE:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))


def read(file: DataFile, relation: str) -> dict[str, BitMap]:
    """Return the rows that a file of deletes says are gone, by the data files' paths.

    Raises:
        LakeTableConflict: it is of a kind that is not read here.
        LakeError: it can't be read.
    """
    check(file, relation)
    path = stored_path(file.file_path)
    found: defaultdict[str, list[Any]] = defaultdict(list)
    try:
        source: Any = path.open_reader(_WHOLE_BYTES) if isinstance(path, ObjectPath) else path
        with pq.ParquetFile(source, read_dictionary=["file_path"]) as parquet:
            for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=["file_path", "pos"]):
                paths = batch.column("file_path")
                if not pa.types.is_dictionary(paths.type):
                    paths = paths.dictionary_encode()
                which = paths.indices.to_numpy()
                rows = batch.column("pos").to_numpy()
                order = np.argsort(which, kind="stable")
                which, rows = which[order], rows[order]
                names = paths.dictionary.to_pylist()
                for number in np.unique(which):
                    a, b = np.searchsorted(which, [number, number + 1])
                    found[names[number]].append(rows[a:b])
    except (OSError, pa.ArrowException, KeyError) as damage:
        raise LakeError(
            f"position deletes of {relation} ({file.file_path}) can't be read: {damage}",
            hint="Which rows are gone is not known without them. Load the table anew: spillway "
            "lake load --resync --table TABLE, with the job's --slot and --lake.",
            relation=relation,
        ) from damage
    return {name: row_sets.positions(np.concatenate(parts)) for name, parts in found.items()}


def check(file: DataFile, relation: str) -> None:
    """See to it that a delete file is of a kind that is read here.

    Raises:
        LakeTableConflict: it isn't.
    """
    if file.content == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PARQUET:
        return
    raise LakeTableConflict(
        f"{relation} has delete files by equality, or in a format other than Parquet, which this "
        "lake does not read",
        hint="Another engine deleted rows so. Let it rewrite the data files, and delete by "
        "copy-on-write, or by position in Parquet, from now on.",
        relation=relation,
    )
