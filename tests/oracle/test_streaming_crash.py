"""A crash of the server while transactions are open of which parts were streamed.

They end without a record. The server says that they aborted at the first running-xacts record after
the crash, without an LSN. Its consumer has lost the connection: it gets all since what it confirmed
again, among it a part of each lost transaction, which is cut short once the server notices that the
transaction is gone. Ours goes on where it was.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.decoding_session import DecodingSession
from harness.logical_stream import LogicalStream, StreamedLine
from harness.tiers import deep, majors_by_tier
from oracle.test_streaming import IMMEDIATELY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Database

ROWS = "SELECT g, repeat('x', 100) FROM generate_series({0}, {0} + {1}) g"
SIZE = 64 << 10


def begin_and_crash(session: DecodingSession, rows: int) -> None:
    """Leave two transactions open, one in a subtransaction, beside one that commits, and let the
    server crash.
    """
    database = session.database
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(psycopg.OperationalError))
        one, two = (stack.enter_context(database.connect(autocommit=False)) for _ in range(2))
        one.execute("INSERT INTO t VALUES (1, 'first')")
        two.execute(f"INSERT INTO t {ROWS.format(10000, rows)}")
        one.execute(f"INSERT INTO t {ROWS.format(20000, rows)}")
        one.execute("SAVEPOINT a")
        one.execute(f"INSERT INTO t {ROWS.format(30000, rows)}")
        database.execute("INSERT INTO t VALUES (2, 'beside')")
        database.execute("CHECKPOINT")
        session.decode()
        database.cluster.stop("immediate")
    database.cluster.start()


def begin_session(
    database: Database, directory: Path, options: Mapping[str, str], plugin: str = "test_decoding"
) -> DecodingSession:
    """Begin to stream: each change on both sides where the server can do that, in parts of a size
    elsewhere.
    """
    immediately = database.cluster.major >= 16
    return DecodingSession(
        database,
        directory,
        stream_bytes=0 if immediately else SIZE,
        options=options,
        settings=IMMEDIATELY if immediately else {"logical_decoding_work_mem": "64kB"},
        plugin=plugin,
    )


def after_the_crash(session: DecodingSession) -> None:
    session.database.execute("INSERT INTO t VALUES (3, 'before it is noticed')")
    session.database.execute("CHECKPOINT")
    session.database.execute("INSERT INTO t VALUES (4, 'after')")


@pytest.mark.parametrize(
    "major", majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}"
)
def test_what_a_crash_ended_is_aborted(
    fresh_cluster: ClusterFactory, tmp_path: Path, major: int
) -> None:
    database = fresh_cluster(major).create_database("crashed")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    options = {"stream-changes": "on"}
    session = begin_session(database, tmp_path, options)
    begin_and_crash(session, 2 if major >= 16 else 2000)
    before = len(session.sink.lines)
    after_the_crash(session)
    ours = [StreamedLine(line.lsn, line.data) for line in session.decode()[before:]]
    with LogicalStream(session.slot, options) as stream:
        stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
    first = stream.lines.index(ours[0])
    assert stream.lines[first : first + len(ours)] == ours
    assert [line.lsn for line in ours if line.data.startswith("aborting streamed")] == ["0/0"] * 2
    session.close()


@pytest.mark.parametrize(
    "major", majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}"
)
def test_a_prepared_transaction_puts_off_the_news(
    fresh_cluster: ClusterFactory, tmp_path: Path, major: int
) -> None:
    """One that was lost, is older by its xid but wrote its first record after the prepared one, is
    noticed after that.
    """
    database = fresh_cluster(major).create_database("crashed")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    options = {"stream-changes": "on"}
    session = begin_session(database, tmp_path, options)
    with contextlib.suppress(psycopg.OperationalError), database.connect(autocommit=False) as lost:
        lost.execute("SELECT pg_current_xact_id()")
        database.execute("BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION 'one'")
        lost.execute(f"INSERT INTO t {ROWS.format(10000, 2 if major >= 16 else 2000)}")
        database.execute("CHECKPOINT")
        session.decode()
        database.cluster.stop("immediate")
    database.cluster.start()
    before = len(session.sink.lines)
    after_the_crash(session)
    database.execute("COMMIT PREPARED 'one'")
    database.execute("CHECKPOINT")
    database.execute("INSERT INTO t VALUES (5, 'after the prepared one')")
    ours = [StreamedLine(line.lsn, line.data) for line in session.decode()[before:]]
    with LogicalStream(session.slot, options) as stream:
        stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
    first = stream.lines.index(ours[0])
    assert stream.lines[first : first + len(ours)] == ours
    told = [line.data.split()[0].lower() for line in ours]
    earlier = told[: told.index("aborting")]
    # The rows 3 and 4, and the prepared one.
    assert earlier.count("commit") + earlier.count("committing") == 3
    session.close()


@pytest.mark.parametrize(
    ("major", "streaming"),
    [
        (major, mode) if (major, mode) == (18, "parallel") else deep(major, mode)
        for major in (14, 15, 16, 17, 18)
        for mode in ("on", "parallel")[: 1 + (major >= 16)]
    ],
)
def test_pgoutput_says_the_same(
    fresh_cluster: ClusterFactory, tmp_path: Path, major: int, streaming: str
) -> None:
    database = fresh_cluster(major).create_database("crashed")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    options = {
        "proto_version": "4" if major >= 16 else "2",
        "publication_names": "p",
        "streaming": streaming,
    }
    session = begin_session(database, tmp_path, options, "pgoutput")
    begin_and_crash(session, 2 if major >= 16 else 2000)
    after_the_crash(session)
    ours, theirs = (
        [(lsn, data) for lsn, _, data in lines if data.startswith(r"\x41")]
        for lines in (session.decode(), session.slot.peek_binary(options))
    )
    assert ours == theirs
    assert len(ours) == 2
    session.close()
