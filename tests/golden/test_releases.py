"""Minor releases that print or write otherwise than those of their major that the other tests run:
their WAL, decoded.
"""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest

from harness.decoding_session import RenderingSink
from spillway.decoding.decoder import Decoder
from spillway.pg.lsn import Lsn
from spillway.pg.rmgr import (
    RM_HEAP2_ID,
    RM_HEAP_ID,
    XLOG_HEAP2_MULTI_INSERT,
    XLOG_HEAP_DELETE,
    XLOG_HEAP_INSERT,
    XLOG_HEAP_LOCK,
    XLOG_HEAP_UPDATE,
)
from spillway.pg.versions import version_of_server
from spillway.pg.wal_segment import segment_name, segment_number
from spillway.plugins.interface import PluginContext
from spillway.wal.reader import WalDirectory

RELEASES = Path(__file__).resolve().parent / "releases"
SEGMENT_SIZE = 1 << 20
VISIBILITY_MAP = 2
#: As the server of its major that the other tests run says it.
OLDER = {150020: 150018, 180006: 180004}


def recorded(version: int) -> dict:
    return json.loads(lzma.decompress((RELEASES / f"{version}.json.xz").read_bytes()))


def stored(facts: dict, directory: Path) -> WalDirectory:
    first = segment_number(Lsn.parse(facts["position"]), SEGMENT_SIZE)
    wal = base64.b64decode(facts["wal"])
    directory.mkdir()
    for number in range(len(wal) // SEGMENT_SIZE):
        data = wal[number * SEGMENT_SIZE : (number + 1) * SEGMENT_SIZE]
        (directory / segment_name(1, first + number, SEGMENT_SIZE)).write_bytes(data)
    return WalDirectory(directory)


def decoded(facts: dict, version: int, directory: Path) -> list:
    position = Lsn.parse(facts["position"])
    context = PluginContext("golden", "golden", version, two_phase=True)
    sink = RenderingSink("test_decoding", {}, context)
    decoder = Decoder.restore(
        base64.b64decode(facts["state"]),
        version_of_server(version),
        sink,
        work_mem_bytes=1 << 20,
        spill_dir=directory / "spill",
        start_decoding_at=position,
    )
    for batch in stored(facts, directory / "wal").batches(position):
        decoder.process(batch)
    decoder.close()
    return [list(line) for line in sink.lines]


@pytest.mark.parametrize("version", OLDER)
def test_equals_what_the_server_gave(version, tmp_path):
    facts = recorded(version)
    assert facts["server_version_num"] == version
    ours = decoded(facts, version, tmp_path)
    # A table is made before the first line and behind the last, by which the recording told where
    # it was.
    begin = ours.index(facts["lines"][0])
    assert begin <= 2
    assert ours[begin : begin + len(facts["lines"])] == facts["lines"]
    assert len(ours) - begin - len(facts["lines"]) <= 4
    said = "\n".join(data for _, _, data in facts["lines"])
    assert "COMMIT PREPARED 'one'" in said
    assert "ROLLBACK PREPARED 'two'" in said
    assert "a lock" not in said
    assert "a row lock" not in said
    for bounds in ("1 .. ~2", "~1 .. 2", "<2 .. ~3"):
        assert f"s[seg]:'{bounds}'" in said


@pytest.mark.parametrize(("version", "older"), OLDER.items())
def test_an_older_release_says_the_end_of_what_it_did_not_begin_and_bounds_otherwise(
    version, older, tmp_path
):
    said = [data for _, _, data in decoded(recorded(version), older, tmp_path)]
    assert "table public.bounds: INSERT: s[seg]:'<2 .. 3'" in said
    ends = [line.partition(",")[0] for line in said if "lock'" in line]
    begun = ["PREPARE TRANSACTION 'a lock'", "PREPARE TRANSACTION 'a row lock'"]
    expected = ["COMMIT PREPARED 'a lock'", "ROLLBACK PREPARED 'a row lock'"]
    if older >= 180000:
        expected = [line for pair in zip(begun, expected, strict=True) for line in pair]
    assert ends == expected


def test_the_visibility_maps_pages_are_blocks_of_heap_records(tmp_path):
    """In WAL of 18.6; else the comparison above would not show that nothing minds them."""
    facts = recorded(180006)
    wal = stored(facts, tmp_path / "wal")
    seen = {
        (record.rmid, record.info & 0x70, block.id)
        for record in wal.records(Lsn.parse(facts["position"]))
        if record.rmid in (RM_HEAP_ID, RM_HEAP2_ID)
        for block in record.blocks
        if block.fork == VISIBILITY_MAP
    }
    print(sorted(seen))
    assert seen >= {
        (RM_HEAP_ID, XLOG_HEAP_INSERT, 1),
        (RM_HEAP_ID, XLOG_HEAP_DELETE, 1),
        (RM_HEAP_ID, XLOG_HEAP_UPDATE, 2),
        (RM_HEAP_ID, XLOG_HEAP_UPDATE, 3),
        (RM_HEAP_ID, XLOG_HEAP_LOCK, 1),
        (RM_HEAP2_ID, XLOG_HEAP2_MULTI_INSERT, 1),
    }
