"""An archive decoded in stretches, each by a decoder of its own, against one decoder of all of it.

That decoder is the one of all other comparisons with PostgreSQL, so what is equal to it is equal to
the server. Cuts are put everywhere: after each record, between the chunks of a TOAST value, before
a confirmation, inside of DDL.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.backup import back_up
from harness.replayed import Archive, Replayed, decoded, replayed, without_messages
from harness.tiers import majors_by_tier
from harness.xid_jump import jump_to_xid
from spillway.catalog.bootstrap_database import bootstrap_database
from spillway.certify.workload.driver import Workload
from spillway.decoding.offline import offline_decoder, read_on
from spillway.decoding.sink import TransactionSink
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.errors import (
    CorruptWal,
    InvalidRequest,
    NotReady,
    StorageError,
    WalGap,
)
from spillway.replay import pieces
from spillway.replay.parse import parse_stretch
from spillway.replay.plan import Beginning, make_plan
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database
    from spillway.decoding.transaction import Transaction
    from spillway.replay.plan import Plan

NOISE = "(SELECT string_agg(md5({0}::text || g), '') FROM generate_series(1, {1}) g)"


class _Nothing(TransactionSink):
    def consistent(self, lsn: int) -> None: ...

    def progress(self, decoded_lsn: int) -> None: ...

    def transaction(self, transaction: Transaction) -> None: ...


@dataclass
class Source:
    """A database, and where its archive's decoding begins."""

    cluster: Cluster
    database: Database
    directory: Path
    begin_with: Beginning | None = None

    @property
    def archive(self) -> Archive:
        saved = Beginning(self.directory / "begin.snap", None, self.database.name)
        return Archive(self.directory / "wal", self.begin_with or saved)

    def begin(self) -> None:
        """Save a decoder's state as of now."""
        bootstrap = bootstrap_database(self.database.dsn)
        spill = self.directory / "spill"
        self.database.execute("CHECKPOINT")
        wal = WalDirectory(self.cluster.wal_directory)
        with offline_decoder(wal, bootstrap, _Nothing(), spill_dir=spill) as decoder:
            read_on(wal, decoder)
            assert decoder.snapshot_state is SnapshotState.CONSISTENT
            (self.directory / "begin.snap").write_bytes(decoder.serialize())

    def end(self) -> None:
        """Copy what was written into the archive."""
        self.database.execute("CHECKPOINT")
        target = self.directory / "wal"
        shutil.copytree(
            self.cluster.wal_directory, target, ignore=shutil.ignore_patterns("*[a-z]*")
        )


@pytest.fixture(params=majors_by_tier([14, 15, 18]), ids=lambda major: f"pg{major}")
def source(request: pytest.FixtureRequest, fresh_cluster: ClusterFactory, tmp_path: Path) -> Source:
    cluster = fresh_cluster(
        request.param,
        wal_segment_size_mb=1,
        max_wal_size="1GB",
        wal_keep_size="1GB",
        max_prepared_transactions=5,
        autovacuum="off",
    )
    return Source(cluster, cluster.create_database("shop"), tmp_path)


def assert_equal(
    source: Source,
    stretch_bytes: int,
    *,
    plugins: Sequence[str] = ("arrow", "test_decoding"),
    from_lsn: int | None = None,
    to_lsn: int | None = None,
) -> Replayed:
    """Hold a replay to one decoder, in text and in the columns that a lake gets; return the last
    plugin's.
    """
    for plugin in plugins:
        scratch = source.directory / f"scratch {plugin} {stretch_bytes}"
        found = replayed(
            source.archive, scratch, plugin=plugin, stretch_bytes=stretch_bytes, from_lsn=from_lsn,
            to_lsn=to_lsn,
        )  # fmt: skip
        expected = decoded(source.archive, scratch, found.plan, plugin=plugin)
        shutil.rmtree(scratch)
        if plugin == "arrow":
            assert rows_of(found.messages) == rows_of(expected)
        else:
            assert without_messages(found.messages) == without_messages(expected)
    return found


def rows_of(messages: list[bytes]) -> dict[bytes, list[dict[str, Any]]]:
    """Return all rows by table, as of what its columns were."""
    rows: dict[bytes, list[dict[str, Any]]] = {}
    for message in messages:
        with pa.ipc.open_stream(message) as reader:
            rows.setdefault(reader.schema.serialize().to_pybytes(), []).extend(
                reader.read_all().to_pylist()
            )
    return rows


def test_a_cut_after_each_record(source: Source) -> None:
    source.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text);"
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL; ALTER TABLE t REPLICA IDENTITY FULL;"
        "CREATE TABLE u (id int PRIMARY KEY, big text); ALTER TABLE u ALTER big SET STORAGE "
        "EXTERNAL"
    )
    source.begin()
    with (
        source.database.connect(autocommit=False) as one,
        source.database.connect(autocommit=False) as two,
    ):
        # Subtransactions, some of which abort long after they were written; TOAST values of several
        # chunks.
        one.execute(f"INSERT INTO t VALUES (1, 'top', {NOISE.format(1, 200)})")
        one.execute("SAVEPOINT a; INSERT INTO t VALUES (2, 'kept'); SAVEPOINT b")
        two.execute("INSERT INTO u VALUES (1, 'two')")
        one.execute(f"INSERT INTO t VALUES (3, 'lost', {NOISE.format(2, 150)})")
        two.execute(f"SAVEPOINT x; UPDATE u SET big = {NOISE.format(3, 150)}; RELEASE x")
        one.execute("ROLLBACK TO b; INSERT INTO t VALUES (4, 'after')")
        two.execute("INSERT INTO u VALUES (2, 'conflict') ON CONFLICT DO NOTHING")
        two.execute("INSERT INTO u VALUES (2, 'conflict') ON CONFLICT (id) DO UPDATE SET big = 'x'")
        # The value of before, pointed to, is not among this change's.
        one.execute("UPDATE t SET v = 'pointer' WHERE id = 1; ROLLBACK TO a")
        two.commit()
        one.execute("INSERT INTO t VALUES (5); TRUNCATE u; INSERT INTO u VALUES (9)")
        one.commit()
        two.execute("INSERT INTO u VALUES (10)")
        two.rollback()
        # Prepared: it ends behind others.
        two.execute("DELETE FROM t WHERE id = 1; PREPARE TRANSACTION 'p'")
        one.execute("INSERT INTO t SELECT g, 'multi' FROM generate_series(20, 25) g")
        one.commit()
    with source.database.connect() as connection:
        with connection.cursor().copy("COPY u FROM STDIN") as copy:
            copy.write("".join(f"{n}\tcopied\n" for n in range(100, 120)))
        connection.execute("COMMIT PREPARED 'p'")
        connection.execute("SELECT pg_logical_emit_message(true, 'a', 'b')")
    source.end()
    found = assert_equal(source, 1)
    assert len(found.plan.stretches) > 100
    assert found.rows[pieces.PIECE] > 30
    found = assert_equal(source, 3000)
    assert found.rows[pieces.PIECE] > 5


def test_cuts_within_ddl(source: Source) -> None:
    source.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.begin()
    with (
        source.database.connect(autocommit=False) as one,
        source.database.connect(autocommit=False) as two,
    ):
        one.execute("CREATE TABLE mine (id int PRIMARY KEY, v text)")
        one.execute("INSERT INTO mine VALUES (1, 'a'); SAVEPOINT s")
        two.execute("INSERT INTO t VALUES (1, 'before')")
        two.commit()
        one.execute("ALTER TABLE mine ADD w int DEFAULT 7; INSERT INTO mine VALUES (2, 'b')")
        one.execute("ALTER TABLE t ADD lost int DEFAULT 5; INSERT INTO t VALUES (2, 'lost')")
        one.execute("ROLLBACK TO s; INSERT INTO mine VALUES (3, 'c')")
        two.execute("ALTER TABLE t ADD n numeric DEFAULT 1.5, ALTER v TYPE varchar(10)")
        two.execute("INSERT INTO t VALUES (3, 'wide', 2.25); TRUNCATE t; INSERT INTO t VALUES (4)")
        one.execute("ALTER TABLE mine RENAME TO ours; INSERT INTO ours VALUES (4, 'd')")
        two.commit()
        one.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); ALTER TABLE ours ADD m mood")
        one.execute("INSERT INTO ours VALUES (5, 'e', 'ok')")
        one.commit()
    source.database.execute("VACUUM FULL pg_class")
    source.database.execute("INSERT INTO ours VALUES (6, 'f', 'sad'); INSERT INTO t VALUES (6)")
    source.end()
    found = assert_equal(source, 2000)
    assert len(found.plan.stretches) > 30
    assert_equal(source, 50_000)


def test_values_and_transactions_larger_than_a_row(source: Source) -> None:
    source.database.execute(
        "CREATE TABLE t (id int, v bytea); ALTER TABLE t ALTER v SET STORAGE EXTERNAL"
    )
    source.begin()
    big = "decode(repeat('0123456789abcdef', 1200000), 'hex')"
    source.database.execute(f"INSERT INTO t VALUES (1, {big})")
    source.database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 60000) g")
    source.end()
    found = assert_equal(source, 4 << 20)
    assert found.rows[pieces.PIECE] > 3
    # Whole in its stretch.
    found = assert_equal(source, 1 << 30)
    assert pieces.PIECE not in found.rows
    assert found.rows[pieces.CHUNK] > 5


def test_ranges(source: Source) -> None:
    database = source.database
    database.execute("CREATE TABLE t (id int)")
    source.begin()
    lsns = []
    with database.connect(autocommit=False) as long:
        long.execute("INSERT INTO t VALUES (0)")
        for number in range(8):
            database.execute(f"INSERT INTO t SELECT {number} FROM generate_series(1, 50)")
            lsns.append(int(database.value("SELECT pg_current_wal_insert_lsn() - '0/0'")))
            long.execute(f"INSERT INTO t VALUES ({number})")
        long.commit()
    source.end()
    for stretch_bytes in (500, 10_000):
        for first, last in ((0, 3), (3, 5), (5, 7)):
            found = assert_equal(source, stretch_bytes, from_lsn=lsns[first], to_lsn=lsns[last])
            lines = without_messages(found.messages)
            assert (found.plan.from_lsn, found.plan.to_lsn) == (lsns[first], lsns[last])
        # The long transaction's beginning is before the range, its stretches are needed all the
        # same.
        whole = replayed(
            source.archive, source.directory / "s", stretch_bytes=stretch_bytes, from_lsn=lsns[7]
        )
        lines = [line for line in whole.messages if line.startswith(b"table")]
        assert len(lines) == 9
    found = assert_equal(source, 10_000, from_lsn=lsns[3], to_lsn=lsns[3])
    assert (found.messages, found.plan.stretches) == ([], ())


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_random_seeds(major: int, fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(
        major,
        wal_segment_size_mb=1,
        max_wal_size="1GB",
        wal_keep_size="1GB",
        max_prepared_transactions=30,
    )
    for seed in (100 + major, 200 + major):
        source = Source(cluster, cluster.create_database(f"seed_{seed}"), tmp_path / str(seed))
        source.directory.mkdir()
        source.begin()
        workload = Workload(
            source.database.dsn,
            seed,
            major=major,
            superuser=True,
            cluster_prefix=source.database.name,
            unlogged=True,
            log=lambda *_: None,
        )
        workload.setup()
        while workload.steps < 400:
            workload.step()
        workload.finish()
        source.end()
        found = assert_equal(source, 20_000, plugins=("test_decoding",))
        assert found.rows[pieces.PIECE] > 20
        assert_equal(source, 300_000, plugins=("test_decoding",))


@pytest.mark.long
def test_xids_wrap_around(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    """Transactions go over cuts before xid 2**32 and commit behind it."""
    cluster = fresh_cluster(
        18,
        wal_segment_size_mb=1,
        autovacuum_freeze_max_age=2_000_000_000,
        max_prepared_transactions=5,
    )
    jump_to_xid(cluster, 2**32 - 100)
    source = Source(cluster, cluster.create_database("shop"), tmp_path)
    source.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.begin()
    with source.database.connect(autocommit=False) as long:
        long.execute("INSERT INTO t VALUES (-1, 'from before'); SAVEPOINT a")
        long.execute("CREATE TABLE made (i int); INSERT INTO made VALUES (1)")
        for _ in range(3):
            source.database.execute(
                "DO $$ BEGIN FOR i IN 1..100 LOOP INSERT INTO t SELECT count(*) FROM t; COMMIT; "
                "END LOOP; END $$"
            )
        long.execute("SAVEPOINT b; INSERT INTO t VALUES (-2, 'after'); ROLLBACK TO b")
        long.execute("ALTER TABLE made ADD v text; INSERT INTO made VALUES (2, 'x')")
        long.commit()
    source.end()
    found = assert_equal(source, 3000)
    assert len(found.plan.stretches) > 10
    xids = {int(line.split()[1]) for line in found.messages if line.startswith(b"BEGIN")}
    assert min(xids) < 1000 < 2**31 < max(xids)


def test_a_base_backup(source: Source) -> None:
    """Decoding is not consistent where the first stretch begins, and transactions go over that
    place.
    """
    database = source.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with database.connect(autocommit=False) as early, database.connect(autocommit=False) as late:
        early.execute("INSERT INTO t VALUES (1, 'began before the backup')")
        back_up(
            database,
            source.directory / "copy",
            lambda: database.execute("INSERT INTO t SELECT count(*) + 10000 FROM t"),
        )
        late.execute("CREATE TABLE u (id int); INSERT INTO u VALUES (1)")
        database.execute("CHECKPOINT")
        early.commit()
        database.execute("INSERT INTO t VALUES (3)")
        database.execute("CHECKPOINT")
        late.execute("INSERT INTO u VALUES (2)")
        database.execute("INSERT INTO t SELECT g FROM generate_series(10, 500) g")
        late.commit()
    source.end()
    source.begin_with = Beginning(None, source.directory / "copy", "shop")
    for stretch_bytes in (3000, 100_000):
        found = assert_equal(source, stretch_bytes)
        assert any(b"u: INSERT: id[integer]:1" in line for line in found.messages)


def test_what_is_wrong_is_said(source: Source) -> None:
    database = source.database
    database.execute("CREATE TABLE t (id int, v text)")
    source.begin()
    for number in range(3):
        database.execute("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g")
        database.query("SELECT pg_switch_wal()")
        if not number:
            lsn = int(database.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))
    source.end()
    archive, scratch = source.archive, source.directory / "scratch"
    scratch.mkdir()

    def plan(begin: Beginning | None = None, **more: int) -> Plan:
        return make_plan(
            archive.wal, begin or archive.begin, scratch, stretch_bytes=100_000, **more
        )

    with pytest.raises(InvalidRequest, match="given once"):
        plan(Beginning())
    with pytest.raises(StorageError, match="can't be read"):
        plan(Beginning(source.directory / "none"))
    with pytest.raises(StorageError, match="is no directory"):
        make_plan(source.directory / "none", archive.begin, scratch)
    with pytest.raises(WalGap, match="the archive ends at"):
        plan(to_lsn=lsn + (1 << 30))
    with pytest.raises(NotReady, match="decoding is consistent from"):
        plan(from_lsn=1)
    found = plan(from_lsn=lsn)
    # Not of this archive any more.
    stretch = next(s for s in found.stretches if s.has_commits)
    stretch.state.unlink()
    with pytest.raises(StorageError, match="where a stretch of WAL begins"):
        list(parse_stretch(archive.wal, stretch, lambda _: 0))
    found = plan()
    segments = sorted(archive.wal.iterdir())
    first = next(p for p in segments if p.name[16:] >= f"{found.from_lsn >> 20:08X}")
    victim = segments[segments.index(first) + 1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    with pytest.raises(CorruptWal, match="can't be read on"):
        plan()
    damaged = (int(victim.name[16:], 16) << 20) + 8192
    stretch = next(s for s in found.stretches if s.end_lsn > damaged)
    with pytest.raises(CorruptWal, match="as it could before"):
        list(parse_stretch(archive.wal, stretch, lambda _: 0))
    victim.unlink()
    with pytest.raises(WalGap, match=victim.name):
        plan()
    # Another cluster's segment.
    strange = bytearray(whole)
    strange[24] ^= 1
    victim.write_bytes(strange)
    with pytest.raises(CorruptWal, match="from database system"):
        plan()
    victim.write_bytes(whole)
    assert plan().stretches
