"""PostgreSQL's side: slots on the server, read inside it or through a walsender by pg_recvlogical.

A peek confirms nothing and can be repeated. pg_recvlogical confirms what it has got, so that each
run has copies of a slot that nobody reads. Peeks count inside the server: nothing is sent to the
client, the least that decoding there can cost. pg_recvlogical is PostgreSQL's own program, of the
newest major (:func:`harness.servers.client`); it writes to /dev/null.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from bench.machine import backend_cpu_seconds, memory_bytes, tree_cpu_seconds
from bench.results import BenchFailed, Run
from bench.source import wait_until
from harness.servers import client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.cluster import Cluster, Database

#: plugin → the function that peeks with it, and options
PLUGINS: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "pgoutput": (
        "pg_logical_slot_peek_binary_changes",
        {"proto_version": "1", "publication_names": "bench"},
    ),
    "test_decoding": ("pg_logical_slot_peek_changes", {"skip-empty-xacts": "1"}),
}


def base_slot(plugin: str) -> str:
    """Return the name of the slot that is copied and never read."""
    return f"base_{plugin}"


def create_base_slots(database: Database, plugins: Sequence[str]) -> None:
    """Create a slot of each plugin where WAL is now; those of a part that failed go."""
    drop_slots(database)
    for plugin in plugins:
        database.query(
            "SELECT pg_create_logical_replication_slot(%s, %s)", [base_slot(plugin), plugin]
        )


def drop_slots(database: Database) -> None:
    """Drop every logical slot, for which its walsender must have ended."""
    wait_until(
        lambda: (
            not database.value(
                "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_type = 'logical'"
            )
        ),
        "walsenders have ended",
    )
    database.query(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = "
        "'logical'"
    )


def peek(database: Database, plugin: str, end_lsn: object, timeout_s: float) -> Run:
    """Peek at the base slot in a session of its own, up to *end_lsn*."""
    function, options = PLUGINS[plugin]
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    query = (
        "SELECT count(*), coalesce(sum(octet_length(data)), 0)"
        f" FROM {function}('{base_slot(plugin)}', '{end_lsn}', NULL, {pairs})"
    )
    with database.connect() as connection:
        connection.execute(f"SET statement_timeout = '{timeout_s} s'")
        pid = connection.info.backend_pid
        cpu_s, started_s = backend_cpu_seconds(pid), time.perf_counter()
        row, timed_out = None, False
        try:
            row = connection.execute(query).fetchone()
        except psycopg.errors.QueryCanceled:
            timed_out = True
        wall_s, cpu_s = time.perf_counter() - started_s, backend_cpu_seconds(pid) - cpu_s
        # Pages of shared buffers that it has touched are everybody's.
        peak = memory_bytes(pid, "VmHWM") - memory_bytes(pid, "RssShmem")
        messages, payload_bytes = (None, None) if row is None else (row[0], int(row[1]))
        return Run(wall_s, {"server": cpu_s}, messages, payload_bytes, {"server": peak}, timed_out)


def recvlogical_command(dsn: str, slot: str, plugin: str, *more: str) -> list[str]:
    """Return the command line that streams from *slot*."""
    options = [f"--option={key}={value}" for key, value in PLUGINS[plugin][1].items()]
    return [
        str(client("pg_recvlogical")), f"--dbname={dsn}", f"--slot={slot}", "--start",
        "--no-loop", "--fsync-interval=0", *options, *more,
    ]  # fmt: skip


@contextmanager
def slot_copies(database: Database, plugin: str, number: int) -> Iterator[list[str]]:
    """Have *number* copies of the base slot for the length of a ``with``."""
    names = [f"copy_{plugin}_{i}" for i in range(number)]
    # One session throughout: to begin others costs the server CPU that nobody should be charged
    # with.
    with database.connect() as connection:
        for name in names:
            connection.execute(
                "SELECT pg_copy_logical_replication_slot(%s, %s)", [base_slot(plugin), name]
            )
        try:
            yield names
        finally:
            wait_until(
                lambda: (
                    not connection.execute(
                        "SELECT FROM pg_replication_slots WHERE active AND slot_name = ANY (%s)",
                        [names],
                    ).fetchone()
                ),
                "walsenders have ended",
            )
            for name in names:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def recvlogical(
    cluster: Cluster,
    database: Database,
    plugin: str,
    end_lsn: object,
    slots: int,
    timeout_s: float,
) -> Run:
    """Let a pg_recvlogical a slot take everything up to *end_lsn*.

    The Run's ``payload_bytes`` are of all clients, newlines between messages included.
    """
    with slot_copies(database, plugin, slots) as names:
        server_cpu_s, started_s = tree_cpu_seconds(cluster.pid), time.perf_counter()
        clients = [
            subprocess.Popen(
                recvlogical_command(
                    database.dsn, name, plugin, f"--endpos={end_lsn}", "--file=/dev/null"
                ),
                stdin=subprocess.DEVNULL,
            )
            for name in names
        ]
        ended = [await_client(process, started_s + timeout_s) for process in clients]
        wall_s = time.perf_counter() - started_s
    # A walsender is in its postmaster's figure once it has ended, which dropping the slots waited
    # for.
    server_cpu_s = tree_cpu_seconds(cluster.pid) - server_cpu_s
    written, client_cpu_s, timed_out = zip(*ended, strict=True)
    return Run(
        wall_s,
        {"server": server_cpu_s, "client": sum(client_cpu_s)},
        payload_bytes=sum(written),
        timed_out=any(timed_out),
    )


def await_client(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[int, float, bool]:
    """Return the bytes that it has written, its CPU seconds, and whether it was stopped."""
    timed_out = False
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if not timed_out and time.perf_counter() > deadline_s:
            timed_out = True
            process.terminate()
        time.sleep(0.002)
    # It has ended but is still there to be asked.
    counters = dict(
        line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines()
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not timed_out:
        raise BenchFailed(f"pg_recvlogical ended with {process.returncode}; what it said is above")
    return int(counters["wchar"]), usage.ru_utime + usage.ru_stime, timed_out
