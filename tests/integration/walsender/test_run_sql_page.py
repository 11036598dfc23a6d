"""docs/how-to/run-sql-through-the-port.md, followed: its commands, its SQL, and what it says of
slots and of limits.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.page_shell import PageShell
from harness.replication_client import ReplicationClient
from harness.servers import client
from harness.service import service_in_process
from harness.tiers import on_every_major

if TYPE_CHECKING:
    from harness.cluster import Database

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "run-sql-through-the-port.md"


@on_every_major
def test_the_page_is_followed(pg: Database, tmp_path: Path) -> None:
    with service_in_process(tmp_path / "data") as service:
        shell = PageShell(tmp_path, service.http_port)
        (tmp_path / "bin" / "psql").symlink_to(client("psql"))
        # The page's source and database are both called shop, and here both as the database.
        service.create_source(pg.cluster.dsn(), pg.name)
        page = re.sub(r"\bshop\b", pg.name, PAGE.read_text()).replace("55432", str(service.pg_port))
        user, allow, psql = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        made, read = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)

        def typed(statements: str) -> tuple[str, str]:
            words = re.fullmatch(r"PGPASSWORD='(.*)' psql \"(.*)\"\n", psql)
            assert words is not None, psql
            done = subprocess.run(
                [client("psql"), "-XAt", words[2]],
                input=statements,
                env={**os.environ, "PGPASSWORD": words[1]},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            return done.stdout, done.stderr

        shell(user)
        assert "permission denied" in typed(made)[1], "it is off until somebody allows it"
        shell(allow)
        said, errors = typed(made)
        assert not errors
        assert said.startswith("CREATE TABLE\n")
        assert "id|integer||not null|" in said
        assert said.endswith("t\nINSERT 0 1\naudit|test_decoding|f\n")
        service.wait_decoded("audit", pg)
        said, errors = typed(read)
        assert not errors
        assert "table public.orders: INSERT: id[integer]:1 what[text]:'tea'" in said
        assert said.endswith("\nDROP TABLE\n")
        assert service.call("GET", "/slots")["slots"] == []


@on_every_major
def test_what_it_says_of_slots_and_limits(pg: Database, tmp_path: Path) -> None:
    pg.execute("CREATE TABLE t (i int); CREATE PUBLICATION p FOR TABLE t")
    names = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with service_in_process(tmp_path / "data", sql_connections=2) as service:
        service.create_source(pg.cluster.dsn())
        shell = PageShell(tmp_path, service.http_port)
        shell(
            f"echo secret | spillway user create etl --database main/{pg.name} --run-sql "
            "--manage-slots --password-stdin"
        )
        shell(
            f"echo secret | spillway user create reader --database main/{pg.name} --run-sql "
            "--password-stdin"
        )
        at = f"host=127.0.0.1 port={service.pg_port} password=secret dbname={pg.name}"
        pg.query("SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')")
        pg.query("SELECT pg_create_logical_replication_slot('both', 'test_decoding')")
        service.create_slot("ours", pg.name)
        service.create_slot("both", pg.name, plugin="pgoutput")
        with psycopg.connect(f"{at} user=etl", autocommit=True) as session:
            shown = session.execute(f"{names.replace('slot_name', 'slot_name, plugin', 1)}")
            assert sorted(shown.fetchall()) == [
                ("both", "pgoutput"),
                ("ours", "test_decoding"),
                ("theirs", "test_decoding"),
            ]
            everywhere = "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '^spillway_'"
            assert session.execute(everywhere).fetchone() == (0,)
            assert pg.value(everywhere) >= 1
            columns = session.execute("SELECT * FROM pg_replication_slots").description
            with pg.connect() as own:
                theirs = own.execute("SELECT * FROM pg_replication_slots").description
            assert [c.name for c in columns or ()] == [c.name for c in theirs or ()]
            statistics = "SELECT slot_name FROM pg_stat_replication_slots"
            assert {"ours", "both", "theirs"} <= {
                row[0] for row in session.execute(statistics).fetchall()
            }
            # Prepared statements are as fresh as others.
            for wanted in (1, 2):
                found = session.execute(
                    "SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY(%s)",
                    [["ours", "more"]],
                    prepare=True,
                )
                assert found.fetchone() == (wanted,)
                if wanted == 1:
                    service.create_slot("more", pg.name)
            session.execute("SELECT pg_copy_logical_replication_slot('more', 'copied')")
            pg.execute("INSERT INTO t VALUES (1)")
            end = service.wait_decoded("copied", pg)
            session.execute("SELECT pg_replication_slot_advance('copied', pg_current_wal_lsn())")
            assert service.slot("copied")["confirmed_flush_lsn"] == end
            # They are not undone, as in PostgreSQL.
            for statement in ("BEGIN", "SELECT pg_drop_replication_slot('copied')", "ROLLBACK"):
                session.execute(statement.encode())
            # What is not a constant, or stands among others, is refused, and nothing is done.
            for refused in (
                "SELECT pg_drop_replication_slot('mo' || 're')",
                "SELECT pg_drop_replication_slot('more'); SELECT 1",
                "PREPARE drop AS SELECT pg_drop_replication_slot('more')",
                "PREPARE shown AS SELECT * FROM pg_replication_slots",
            ):
                with pytest.raises(psycopg.errors.FeatureNotSupported) as error:
                    session.execute(refused.encode())
                assert error.value.diag.message_hint, refused
            session.execute("CREATE VIEW slots AS SELECT slot_name FROM pg_replication_slots")
            assert ("ours",) not in session.execute("SELECT * FROM slots").fetchall()
            session.execute("DROP VIEW slots")
            # A statement of more than 1 MiB is passed on as it is.
            long = f"{names} AND slot_name <> '{'x' * (1 << 20)}'"
            assert ("ours",) not in session.execute(long.encode()).fetchall()
            session.execute(
                "SELECT pg_drop_replication_slot('more') WHERE EXISTS "
                "(SELECT 1 FROM pg_replication_slots WHERE slot_name = 'more' AND NOT active)"
            )
            with psycopg.connect(f"{at} user=reader", autocommit=True) as reader:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute("SELECT pg_drop_replication_slot('ours')")
                with pytest.raises(psycopg.OperationalError, match=r"53300|too many"):
                    psycopg.connect(f"{at} user=etl")
            with ReplicationClient(f"{at} user=reader") as stream:
                stream.start("ours")
                who = "SELECT pid, application_name FROM pg_stat_replication"
                (pid,) = session.execute(
                    "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'ours'"
                ).fetchone() or (0,)
                assert pid in {row[0] for row in session.execute(who).fetchall()}
                end_it = (
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                    "WHERE slot_name = 'ours'"
                )
                assert session.execute(end_it).fetchone() == (True,)
                stream.read_to_end()
        # Between replication commands, in one transaction with them.
        with ReplicationClient(f"{at} user=etl") as both:
            assert both.run("BEGIN").failure is None
            ((before,),) = both.run("SELECT txid_current()").rows
            assert both.run("IDENTIFY_SYSTEM").failure is None
            assert both.run("SELECT txid_current()").rows == ((before,),)
            assert both.run("COMMIT").tag == "COMMIT"
        assert {slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]} == {
            "ours",
            "both",
        }
    for name in ("theirs", "both"):
        pg.query("SELECT pg_drop_replication_slot(%s)", [name])


def test_while_the_source_is_down(tmp_path: Path, fresh_cluster) -> None:
    cluster = fresh_cluster(18)
    database = cluster.create_database("d")
    database.execute("CREATE TABLE t (i int)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(cluster.dsn())
        shell = PageShell(tmp_path, service.http_port)
        shell(
            "echo secret | spillway user create etl --database main/d --run-sql --manage-slots "
            "--password-stdin"
        )
        at = f"host=127.0.0.1 port={service.pg_port} user=etl password=secret dbname=d"
        service.create_slot("s", "d")
        with ReplicationClient(at):
            pass
        database.execute("INSERT INTO t VALUES (1)")
        end = service.wait_decoded("s", database)
        cluster.stop()
        with pytest.raises(psycopg.OperationalError, match="could not connect to the source"):
            psycopg.connect(at)
        with ReplicationClient(at) as stream:
            failure = stream.run("SELECT 1").failure
            assert failure is not None
            assert failure.sqlstate == "08001"
            stream.start("s")
            assert any(b"INSERT" in frame.data for frame in stream.read_to(end))
