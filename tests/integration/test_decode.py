"""``spillway decode`` on copies of real servers' directories, against the server's own slot."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from harness.backup import back_up, copy
from harness.oracle import LogicalSlot, OracleChange, create_slot
from harness.tiers import majors_by_tier
from spillway.cli import main
from spillway.pg.encoding import server_encoding_name
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database

    Run = Callable[..., tuple[int, str, str]]

SETUP = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE TYPE pair AS (x int, y mood);
    CREATE TABLE t (id int PRIMARY KEY, v text, m mood, gone int);
    ALTER TABLE t DROP gone;
    INSERT INTO t SELECT g, 'before ' || g, 'ok' FROM generate_series(1, 50) g;
    ALTER TABLE t ADD late numeric(8, 2) DEFAULT 1.25;
    CREATE TABLE t2 (LIKE t);
"""
WORK = """
    INSERT INTO t VALUES ({0}, 'new', 'sad', {0});
    UPDATE t SET v = 'changed' WHERE id <= 3;
    ALTER TYPE mood ADD VALUE 'm{0}';
    CREATE TABLE more{0} (a int, b mood[], c pair);
    INSERT INTO more{0} SELECT {0}, ARRAY[m], ROW(id, m)::pair FROM t ORDER BY id LIMIT 2;
    ALTER TABLE t ADD c{0} text DEFAULT 'd{0}';
    DELETE FROM t WHERE id = {0};
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["decode", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(params=majors_by_tier([15, 18]), ids=["pg15", "pg18"])
def database(request: pytest.FixtureRequest, fresh_cluster: ClusterFactory) -> Database:
    cluster = fresh_cluster(request.param, wal_segment_size_mb=1, max_wal_size="1GB")
    database = cluster.create_database("shop")
    database.execute(SETUP)
    return database


def changes(out: str) -> list[OracleChange]:
    return [OracleChange(**json.loads(line)) for line in out.splitlines()]


def assert_equal_to_slot(ours: list[OracleChange], slot: LogicalSlot) -> None:
    """Ours are the slot's from some transaction on, to the end."""
    theirs = slot.peek()
    assert ours
    first = theirs.index(ours[0])
    assert theirs[first].data.startswith("BEGIN")
    assert ours == theirs[first:]


def flushed(database: Database) -> None:
    """Have all that was written on disk, and a running-xacts record after it."""
    database.execute("CHECKPOINT")


@pytest.mark.parametrize("catalog_rewritten", [False, True])
def test_a_base_backup(
    database: Database, run: Run, tmp_path: Path, catalog_rewritten: bool
) -> None:
    slot = create_slot(database)
    if catalog_rewritten:
        for name in ("pg_class", "pg_attribute", "pg_namespace", "pg_database"):
            database.execute(f"VACUUM FULL {name}")
    numbers = iter(range(100, 200))
    with database.connect(autocommit=False) as open_transaction:
        # Begun before the backup, ends after it; its DDL too.
        open_transaction.execute("CREATE TABLE early (id int); SAVEPOINT s")
        open_transaction.execute("INSERT INTO early VALUES (1)")
        back_up(database, tmp_path / "copy", lambda: database.execute(WORK.format(next(numbers))))
        open_transaction.commit()
    flushed(database)
    for _ in range(3):
        database.execute(WORK.format(next(numbers)))
    database.execute("INSERT INTO early VALUES (2)")
    flushed(database)
    code, out, err = run(
        "--wal-dir", database.cluster.wal_directory, "--data-directory", tmp_path / "copy",
        "--database", "shop", "--format", "json",
    )  # fmt: skip
    assert code == 0, err
    ours = changes(out)
    assert_equal_to_slot(ours, slot)
    assert any("more102: INSERT" in change.data for change in ours)
    # The text form, between two positions.
    last = [change for change in ours if change.data.startswith("COMMIT")]
    code, out, err = run(
        "--wal-dir", database.cluster.wal_directory, "--data-directory", tmp_path / "copy",
        "--database", "shop", "-I", last[-3].lsn, "-E", last[-2].lsn, "-o", "include-xids=0",
        "-f", tmp_path / "out",
    )  # fmt: skip
    assert (code, out) == (0, ""), err
    lines = (tmp_path / "out").read_text().splitlines()
    start = ours.index(last[-3]) + 1
    expected = [c.data for c in ours[start : ours.index(last[-2]) + 1]]
    assert lines == [
        word if (word := text.split(" ")[0]) in {"BEGIN", "COMMIT"} else text for text in expected
    ]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_was_stopped_or_crashed(
    database: Database, run: Run, tmp_path: Path, mode: str
) -> None:
    flushed(database)
    slot = create_slot(database)
    cluster = database.cluster
    unfinished = database.connect(autocommit=False)
    unfinished.execute("CREATE TABLE lost (id int); ALTER TABLE t ADD lost int")
    # What was committed lately is in WAL and perhaps in files, not behind a checkpoint.
    database.execute(WORK.format(99).replace("INTO t", "INTO t2").replace(" t ", " t2 "))
    cluster.stop(mode)  # type: ignore[arg-type]
    unfinished.close()
    copy(cluster, tmp_path / "copy")
    cluster.start()
    database.execute(WORK.format(100))
    flushed(database)
    database.execute(WORK.format(101))
    flushed(database)
    code, out, err = run(
        "--wal-dir", cluster.wal_directory, "--data-directory", tmp_path / "copy",
        "--database", "shop", "--format", "json",
    )  # fmt: skip
    assert code == 0, err
    ours = changes(out)
    assert_equal_to_slot(ours, slot)
    assert any("more101: INSERT" in change.data for change in ours)


def test_a_running_server_and_a_saved_state(database: Database, run: Run, tmp_path: Path) -> None:
    cluster = database.cluster
    cluster.query("SELECT pg_create_physical_replication_slot('keep', true)")
    slot = create_slot(database)
    code, out, err = run(
        "--wal-dir", cluster.wal_directory, "--dsn", database.dsn, "--save-state",
        tmp_path / "one.snap",
    )  # fmt: skip
    assert code == 0, err
    database.execute(WORK.format(100))
    flushed(database)
    state = ("--state", tmp_path / "one.snap", "--format", "json")
    code, out, err = run("--wal-dir", cluster.wal_directory, *state)
    assert code == 0, err
    ours = changes(out)
    assert_equal_to_slot(ours, slot)
    # A plugin whose messages are bytes.
    code, out, err = run("--wal-dir", cluster.wal_directory, *state, "-P", "arrow")
    assert code == 0, err
    assert all(change.data.startswith("\\x") for change in changes(out))
    end = Lsn.parse(ours[-1].lsn) + 1_000_000_000
    code, out, err = run("--wal-dir", cluster.wal_directory, *state, "-E", Lsn(end))
    assert (code, "code: wal_gap" in err) == (1, True)
    assert changes(out) == ours


def test_what_is_wrong_is_said(fresh_cluster: ClusterFactory, run: Run, tmp_path: Path) -> None:
    cluster = fresh_cluster(18, wal_segment_size_mb=1)
    database = cluster.create_database("shop")
    database.execute(SETUP)
    wal, copied = cluster.wal_directory, tmp_path / "copy"

    def fails(code: str, *arguments: object) -> str:
        status, out, err = run(*arguments)
        assert (status, out) == (1, ""), err
        assert f"code: {code}" in err
        return err

    here: tuple[str | Path, ...] = ("--wal-dir", wal, "--data-directory", copied)
    fails("invalid_request", "--wal-dir", wal)
    fails("invalid_request", "--wal-dir", wal, "--dsn", database.dsn, "--state", tmp_path)
    fails("storage_error", "--wal-dir", tmp_path / "none", "--state", tmp_path)
    fails("storage_error", "--wal-dir", wal, "--state", tmp_path)
    assert "PG_VERSION" in fails("source_error", *here, "--database", "shop")
    assert "a server runs" in fails(
        "source_error", "--wal-dir", wal, "--data-directory", cluster.data_directory, "--database",
        "shop"
    )  # fmt: skip
    # From here on in a backup.
    cluster.query("SELECT pg_create_physical_replication_slot('keep', true)")
    back_up(database, copied, lambda: None)
    assert "template1" in fails("unknown_database", *here, "--database", "nowhere")
    fails("invalid_request", *here)
    for _ in range(3):
        database.execute(
            "INSERT INTO t SELECT g + 1000 FROM generate_series(1, 10) g; DELETE FROM t"
        )
        database.query("SELECT pg_switch_wal()")
    flushed(database)
    here = ("--wal-dir", tmp_path / "wal", "--data-directory", copied, "--database", "shop")
    shutil.copytree(
        wal, tmp_path / "wal", ignore=shutil.ignore_patterns("archive_status", "summaries")
    )
    status, _, err = run(*here)
    assert status == 0, err
    label = (copied / "backup_label").read_text()
    begin = label.split("(file ")[1][:24]
    segments = sorted(
        p for p in (tmp_path / "wal").iterdir() if len(p.name) == 24 and p.name >= begin
    )
    # One in the middle is not there: nothing is read.
    whole = segments[1].read_bytes()
    segments[1].unlink()
    assert segments[1].name in fails("wal_gap", *here)
    # It is damaged, and more follows.
    segments[1].write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    status, _, err = run(*here)
    assert status == 1
    assert "code: corrupt_wal" in err
    segments[1].write_bytes(whole)
    # What ran when the backup began has not ended in the WAL that is given.
    with database.connect(autocommit=False) as unfinished:
        unfinished.execute("INSERT INTO t VALUES (1000)")
        back_up(database, tmp_path / "later", lambda: None)
    later = ("--data-directory", tmp_path / "later", "--database", "shop")
    shutil.copytree(wal, tmp_path / "wal2", ignore=shutil.ignore_patterns("*[a-z]*"))
    with database.connect(autocommit=False) as unfinished:
        unfinished.execute("INSERT INTO t VALUES (1001)")
        back_up(database, tmp_path / "busy", lambda: None)
        shutil.copytree(wal, tmp_path / "wal3", ignore=shutil.ignore_patterns("*[a-z]*"))
    status, _, err = run("--wal-dir", tmp_path / "wal2", *later)
    assert status == 0, err
    fails(
        "not_ready",
        "--wal-dir",
        tmp_path / "wal3",
        "--data-directory",
        tmp_path / "busy",
        "--database",
        "shop",
    )
    # Another cluster's.
    other = fresh_cluster(18)
    fails(
        "system_id_mismatch", "--wal-dir", other.wal_directory, "--data-directory", copied,
        "--database", "shop"
    )  # fmt: skip
    fails("system_id_mismatch", "--wal-dir", other.wal_directory, "--dsn", database.dsn)
    control = bytearray((copied / "global" / "pg_control").read_bytes())
    control[40] ^= 1
    (copied / "global" / "pg_control").write_bytes(control)
    assert "checksum" in fails("source_error", *here)


@pytest.mark.long
def test_backups_under_load(fresh_cluster: ClusterFactory, run: Run, tmp_path: Path) -> None:
    cluster = fresh_cluster(18, wal_segment_size_mb=1, max_wal_size="1GB")
    database = cluster.create_database("shop")
    database.execute(SETUP)
    slot = create_slot(database)
    stop = threading.Event()

    def work(first: int) -> None:
        number = first
        with database.connect() as connection:
            while not stop.is_set():
                connection.execute(f"CREATE TABLE w{number} (id int PRIMARY KEY, v text, u uuid)")
                connection.execute(f"INSERT INTO w{number} VALUES (1, 'x'), (2, 'y')")
                connection.execute(f"ALTER TABLE w{number} DROP v, ADD n int DEFAULT 7")
                connection.execute(f"UPDATE w{number} SET id = id + 10; DROP TABLE w{number}")
                number += 2

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        back_up(database, tmp_path / "copy", lambda: database.execute("VACUUM pg_class"))
        flushed(database)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    flushed(database)
    code, out, err = run(
        "--wal-dir", cluster.wal_directory, "--data-directory", tmp_path / "copy",
        "--database", "shop", "--format", "json",
    )  # fmt: skip
    assert code == 0, err
    assert_equal_to_slot(changes(out), slot)


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_what_stands_in_the_version_table_is_the_servers(
    session_cluster: Callable[[int], Cluster], major: int, run: Run, tmp_path: Path
) -> None:
    from spillway.catalog.bootstrap import bootstrap_sql
    from spillway.catalog.bootstrap_files import _DirectoryFiles, bootstrap_files
    from spillway.catalog.control_file import read_control_file
    from spillway.wal.reader import WalDirectory

    cluster = session_cluster(major)
    cluster.execute("CHECKPOINT")
    database = cluster.create_database(f"facts_{major}")
    database.execute(SETUP)
    with cluster.connect() as connection:
        names = connection.execute(
            "SELECT i, pg_encoding_to_char(i) FROM generate_series(0, 34) i"
        ).fetchall()
    assert [server_encoding_name(i) for i, _ in names] == [name for _, name in names]
    copied = tmp_path / "copy"
    back_up(database, copied, lambda: None)
    files = _DirectoryFiles(copied)
    control = read_control_file(files)
    wal = WalDirectory(cluster.wal_directory)
    assert control.system_id == wal.system_id
    ours = bootstrap_files(copied, database.name, wal)
    theirs = bootstrap_sql(database.dsn)
    assert ours.mirror.heaps.layouts.keys() == theirs.mirror.heaps.layouts.keys()
    for oid, layout in theirs.mirror.heaps.layouts.items():
        assert ours.mirror.heaps.layouts[oid].columns == layout.columns
    assert ours.mirror.heaps.locations.relation_map == theirs.mirror.heaps.locations.relation_map
    assert ours.mirror.facts == theirs.mirror.facts
    cluster.drop_database(database.name)
