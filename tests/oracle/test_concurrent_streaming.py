"""What streams one transaction in parts leaves another one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.decoding_session import DecodingSession
from oracle.test_streaming import IMMEDIATELY

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database


def test_a_transaction_of_ddl_only_is_not_streamed(pg18: Database, tmp_path: Path) -> None:
    """The catalog change of another transaction reaches it, and makes nothing to stream of it."""
    session = DecodingSession(
        pg18,
        tmp_path,
        stream_bytes=0,
        options={"stream-changes": "on", "skip-empty-xacts": "on"},
        settings=IMMEDIATELY,
    )
    with pg18.connect(autocommit=False) as ddl:
        row = ddl.execute("CREATE TABLE made (i int)").connection.execute(
            "SELECT pg_current_xact_id()::text::bigint"
        )
        ((xid,),) = row.fetchall()
        pg18.execute("CREATE TABLE t (v text)")
        pg18.execute("INSERT INTO t SELECT repeat('x', 5000) FROM generate_series(1, 50)")
        lines = session.assert_equal_to_server()
        assert any(line.data.startswith("opening a streamed block") for line in lines)
        assert xid not in {line.xid for line in lines}
    session.close()
