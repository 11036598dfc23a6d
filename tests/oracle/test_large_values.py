"""Values of 200 MB, text and bytea, out of line and not compressed: the server's bytes, in bounded
memory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from conftest import ClusterFactory
    from harness.oracle import OracleChange

SIZE = 200 * 1024 * 1024
WORK_MEM = 1 << 20
#: A row is assembled whole, as the interface of output plugins has it, and grows to it by doubling;
#: then it is printed, bytea in twice its size; and this test holds what was printed as a string.
PEAK_MAX = 10 * SIZE


@pytest.mark.long
def test_values_of_200_mb(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(17, max_wal_size="4GB")
    database = cluster.create_database("large")
    session = DecodingSession(database, tmp_path, work_mem_bytes=WORK_MEM)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, b bytea);"
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL"
    )
    _forget_peak()
    before = _peak_kb()
    compared = 0
    for statement in (
        f"INSERT INTO t VALUES (1, repeat('0123456789abcdef', {SIZE // 16}), NULL)",
        f"INSERT INTO t VALUES (2, NULL, decode(repeat('00ff10ab', {SIZE // 4}), 'hex'))",
        "UPDATE t SET id = -id",
        "DELETE FROM t",
    ):
        database.execute(statement)
        ours = [_digest(line) for line in session.decode()]
        session.sink.lines.clear()
        theirs = database.query(
            "SELECT lsn::text, xid::text::bigint, md5(data) FROM pg_logical_slot_get_changes(%s, "
            "%s, NULL)",
            [session.slot.name, str(Lsn(session.decoder.position))],
        )
        assert ours == theirs
        compared += len(ours)
        assert session.decoder.memory_bytes <= WORK_MEM
    assert compared
    assert session.decoder.stats.spill_bytes > 2 * SIZE
    assert (_peak_kb() - before) * 1024 < PEAK_MAX
    session.close()


def _digest(line: OracleChange) -> tuple[str, int, str]:
    return line.lsn, line.xid, hashlib.md5(line.data.encode(), usedforsecurity=False).hexdigest()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_kb() -> int:
    (line,) = (
        s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM")
    )
    return int(line.split()[1])
