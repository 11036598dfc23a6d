"""The service's disk is full while a client streams: it is told in PostgreSQL's form, and loses
nothing.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.pg_port import serving
from harness.replication_client import ReplicationClient

if TYPE_CHECKING:
    from harness.cluster import Database

_ROWS = 500
_IN_TIME_S = 60.0


def test_a_full_disk_under_a_stream(
    pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def no_space(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".txlog":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    pg18.execute("CREATE TABLE t (n int)")
    with serving(pg18, tmp_path) as (_, dsn):
        with ReplicationClient(dsn) as client:
            client.run("CREATE_REPLICATION_SLOT s LOGICAL test_decoding NOEXPORT_SNAPSHOT")
            client.start("s", "\"skip-empty-xacts\" 'on'")
            pg18.execute("INSERT INTO t VALUES (0)")
            client.read_to(str(pg18.value("SELECT pg_current_wal_flush_lsn()::text")))
            assert _rows(client) == [0]
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", no_space)
                pg18.execute(f"INSERT INTO t SELECT generate_series(1, {_ROWS})")
                end = str(pg18.value("SELECT pg_current_wal_flush_lsn()::text"))
                with pytest.raises(EOFError) as told:
                    client.read_to(end)
                assert "No space left on device" in str(told.value)
                assert "HINT" in str(told.value)
                # So is who connects while it is full.
                with ReplicationClient(dsn) as other:
                    failure = other.run("START_REPLICATION SLOT s LOGICAL 0/0").failure
                    assert failure is None or failure.sqlstate == "53100"
        # There is space again: all that was not confirmed comes, and nothing twice in a stream.
        deadline = time.monotonic() + _IN_TIME_S
        while True:
            with ReplicationClient(dsn) as again:
                try:
                    again.start("s", "\"skip-empty-xacts\" 'on'")
                    again.read_to(end)
                except (AssertionError, EOFError):
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
                else:
                    found = _rows(again)
                    break
        assert found == list(range(_ROWS + 1))


def _rows(client: ReplicationClient) -> list[int]:
    return [
        int(frame.data.rpartition(b":")[2])
        for frame in client.frames
        if frame.data.startswith(b"table public.t: INSERT")
    ]
