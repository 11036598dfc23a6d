"""A load's state, its chunks, and what is shown of the source's DSN."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spillway._kernels.encoders.arrow.copy import CopiedRows
from spillway.catalog.descriptor import ColumnDescriptor
from spillway.errors import DecodingError, InvalidRequest, LakeTableConflict, ValueNotRepresentable
from spillway.lake.commands.app import app
from spillway.lake.job.run import JobSettings
from spillway.lake.load.run import LoadSettings
from spillway.lake.state.loads import (
    LoadState,
    Stage,
    is_loading,
    load_state,
    loading_lock,
    store_state,
    table_lock,
)
from spillway.plugins.arrow_copy import take_columns
from spillway.plugins.arrow_schema import ColumnPlan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = b"PGCOPY\n\xff\r\n\x00" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)


def plan(
    name: str, kind: str, type_: pa.DataType, precision: int = 0, scale: int = 0
) -> ColumnPlan:
    column = ColumnDescriptor(1, name, 0, -1, -1, by_value=False, align="i")
    return ColumnPlan(column, name, kind, type_, precision, scale)


def row(block: int, offset: int, *fields: bytes | None) -> bytes:
    data = struct.pack(">hiIH", len(fields) + 1, 6, block, offset)
    for field in fields:
        data += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return data


COLUMNS = (
    plan("n", "int32", pa.int32()),
    plan("t", "printed", pa.utf8()),
    plan("d", "decimal", pa.decimal128(10, 2), 10, 2),
    plan("b", "bool", pa.bool_()),
    plan("raw", "binary", pa.binary()),
)


def test_messages_become_columns() -> None:
    rows = CopiedRows(COLUMNS)
    numeric = struct.pack(">HhHHHH", 2, 0, 0x4000, 2, 12, 3400)
    rows.put(HEADER + row(0, 1, struct.pack(">i", -7), "é".encode(), numeric, b"\x01", b"\x00\xff"))
    rows.put(memoryview(row(70000, 65535, None, None, None, None, None)))
    assert rows.rows == 2
    places, arrays = take_columns(rows, COLUMNS)
    assert places.to_pylist() == [1, 70000 * 65536 + 65535]
    assert [a[0].as_py() for a in arrays[:2]] == [-7, "é"]
    assert str(arrays[2][0].as_py()) == "-12.34"
    assert [a[0].as_py() for a in arrays[3:]] == [True, b"\x00\xff"]
    assert all(a[1].as_py() is None for a in arrays)
    assert rows.rows == 0
    assert not rows.ended
    rows.put(TRAILER)
    assert rows.ended


GOOD = row(0, 1, struct.pack(">i", 1), b"x", None, b"\x01", b"")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([b"PGCOPX"], "does not begin"),
        ([HEADER[:-4] + struct.pack(">i", 5)], "longer than its message"),
        ([HEADER + GOOD[:-1]], "cut off"),
        ([HEADER, GOOD[:1]], "cut off"),
        ([HEADER, GOOD[:20]], "longer than its row|cut off"),
        ([HEADER, struct.pack(">h", 3) + GOOD[2:]], "number of fields"),
        ([HEADER, struct.pack(">hi", 6, 4) + bytes(100)], "ctid"),
        ([HEADER, row(0, 1, b"abc", None, None, None, None)], "column n: .*another length"),
        ([HEADER, row(0, 1, b"123456789", None, None, None, None)], "column n: .*another length"),
        ([HEADER, row(0, 1, None, None, b"\x00", None, None)], "column d: .*cut off"),
        (
            [HEADER, row(0, 1, None, None, bytes([0, 9] + [0] * 6), None, None)],
            "column d: .*digits",
        ),
        ([HEADER, row(0, 1, None, None, None, b"12", None)], "column b: "),
        ([HEADER, TRAILER, GOOD], "after the end"),
    ],
)
def test_what_is_no_copy_is_an_error(messages: Sequence[bytes], said: str) -> None:
    rows = CopiedRows(COLUMNS)
    for message in messages[:-1]:
        rows.put(message)
    with pytest.raises(DecodingError, match=said):
        rows.put(messages[-1])


def test_any_damage_is_an_error_or_another_value() -> None:
    for at in range(len(HEADER), len(HEADER) + len(GOOD)):
        for value in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(HEADER + GOOD)
            damaged[at] = value
            rows = CopiedRows(COLUMNS)
            with suppress(DecodingError, ValueNotRepresentable):
                rows.put(damaged)
                if rows.rows:
                    for array in take_columns(rows, COLUMNS)[1]:
                        array.validate(full=True)


@pytest.mark.parametrize("blocks", [0, 1, 9, 10, 11, 29, 30, 31, 1000])
def test_chunks_are_the_table_once(blocks: int) -> None:
    state = LoadState("s.t", blocks=blocks, range_blocks=10, chunk_ranges=3)
    ranges = [r for chunk in range(state.chunks) for r in state.ranges(chunk)]
    assert ranges[0][0] == 0
    assert all(end == first for (_, end), (first, _) in pairwise(ranges))
    assert ranges[-1][1] == max(1, blocks)
    assert all(0 < end - first <= 10 for first, end in ranges)


def test_state(tmp_path: Path) -> None:
    assert load_state(tmp_path, "s.t") is None
    assert not is_loading(tmp_path, "s.t")
    state = LoadState("s.t", Stage.COPYING, "0/1000", "name", "1:1:", 7, 2, 3, 1)
    store_state(tmp_path, "s.t", state)
    assert load_state(tmp_path, "s.t") == state
    assert is_loading(tmp_path, "s.t")
    store_state(tmp_path, "s.t", LoadState("s.t", Stage.DONE))
    assert not is_loading(tmp_path, "s.t")
    (tmp_path / "_spillway" / "loads" / "s.t.json").write_text('{"version": 99}')
    with pytest.raises(LakeTableConflict, match="version 99"):
        load_state(tmp_path, "s.t")


def test_locks(tmp_path: Path) -> None:
    again = loading_lock(tmp_path)
    with loading_lock(tmp_path), pytest.raises(LakeTableConflict, match="being loaded"):
        again.__enter__()
    order = []

    def second() -> None:
        with table_lock(tmp_path, "s.t"):
            order.append("second")

    thread = threading.Thread(target=second)
    with table_lock(tmp_path, "s.t"), table_lock(tmp_path, "s.other"):
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    dsn = "postgresql://u:secret@db/shop"
    assert "secret" not in repr(LoadSettings("s", tmp_path, dsn))
    assert "secret" not in repr(JobSettings("s", tmp_path, tmp_path, source_dsn=dsn))
    given = ["load", "--slot", "s", "--path", str(tmp_path)]
    result = CliRunner().invoke(app, [*given, "--source-dsn", dsn])
    assert isinstance(result.exception, InvalidRequest)
    assert "SPILLWAY_LAKE_SOURCE_DSN" in result.exception.hint
    assert "secret" not in str(result.exception)
