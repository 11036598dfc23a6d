"""``spillway certify`` against servers of the oldest and the newest common majors, and how it
fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psycopg
import pytest


def run(dsn: str, *arguments: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spillway.cli", "certify", "--dsn", dsn, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "SPILLWAY_FAILPOINTS": failpoints},
    )


def leftovers(pg) -> list[str]:
    slots = pg.query(
        "SELECT slot_name FROM pg_replication_slots WHERE slot_name ^@ 'spillway_certify'"
    )
    databases = pg.query("SELECT datname FROM pg_database WHERE datname ^@ 'spillway_certify'")
    return [name for (name,) in slots + databases]


def assert_nothing_left(pg) -> None:
    deadline = time.monotonic() + 10
    while (left := leftovers(pg)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def test_the_built_in_workload_is_equal(pg):
    done = run(pg.dsn, "--workload", "--seed", "5", "--steps", "400", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["equal"]
    assert report["workload"]["seed"] == 5
    assert report["workload"]["steps"] >= 400
    (subject,) = report["subjects"]
    assert subject["plugin"] == "test_decoding"
    assert subject["lines"] > 100
    assert subject["transactions"] == report["transactions"]
    assert report["tables"]
    assert "text" in report["types"]
    assert_nothing_left(pg)


def test_live_traffic_is_equal_with_pgoutput_too(pg):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "spillway.cli", "certify", "--dsn", pg.dsn),
            *("--duration", "4", "--publication", "p"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pg.connect() as connection:
        number = 0
        while process.poll() is None:
            number += 1
            connection.execute("INSERT INTO t VALUES (%s, repeat('x', 100))", [number])
            connection.execute("UPDATE t SET v = 'y' WHERE mod(id, 10) = %s", [number % 10])
            time.sleep(0.02)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "test_decoding: compared" in out
    assert "pgoutput: compared" in out
    assert out.count(": equal") == 2
    assert "public.t" in out
    assert_nothing_left(pg)


def test_a_difference_is_reported(pg):
    done = run(pg.dsn, "--workload", "--steps", "200", failpoints="certify.compare=error:EIO@30-")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIFFERENT" in done.stdout, done.stderr
    assert "line 30, before it" in done.stdout
    assert "(corrupted)" in done.stdout
    assert_nothing_left(pg)


def test_a_lost_oracle_is_an_error_and_leaves_nothing(pg):
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway.cli", "certify", "--dsn", pg.dsn, "--workload"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not pg.query(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE slot_name ^@ 'spillway_certify' AND slot_type = 'logical' AND active"
    ):
        assert process.poll() is None
        time.sleep(0.02)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "code: source_" in err, err
    assert_nothing_left(pg)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_a_report(pg18, number):
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway.cli", "certify", "--dsn", pg18.dsn, "--duration", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("comparing"):
            break
    pg18.execute("CREATE TABLE seen (); DROP TABLE seen")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "interrupted" in out
    assert_nothing_left(pg18)


def test_what_a_server_lacks_is_said(fresh_cluster):
    cluster = fresh_cluster(15, wal_level="replica")
    done = run(cluster.dsn())
    assert done.returncode == 1
    assert "code: wal_level_not_logical" in done.stderr
    cluster.restart(wal_level="logical", max_replication_slots=1)
    done = run(cluster.dsn())
    assert "code: max_replication_slots_exhausted" in done.stderr
    cluster.execute("CREATE ROLE plain LOGIN REPLICATION")
    cluster.restart(max_replication_slots=5)
    done = run(psycopg.conninfo.make_conninfo(cluster.dsn(), user="plain"), "--workload")
    assert "code: source_not_permitted" in done.stderr, done.stderr
