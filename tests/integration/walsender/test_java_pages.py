"""docs/how-to/use-debezium.md and use-pgjdbc.md, followed: commands, properties and Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.debezium import DebeziumEngine, kept_offsets
from harness.pgjdbc import connect_with
from harness.servers import client
from harness.service import service_in_process
from harness.tiers import on_every_major
from spillway.demo.private_postgres import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.debezium import Event
    from harness.java_clients import Jvm
    from harness.service import Service

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"


class Page:
    """A page whose source and database, both called shop, are *database* here."""

    def __init__(self, name: str, service: Service, database: Database, scratch: Path) -> None:
        self._text = (PAGES / name).read_text()
        self._service = service
        self._database = database
        self._programs = scratch / "bin"
        self._programs.mkdir()
        (self._programs / "psql").symlink_to(client("psql"))
        command = self._programs / "spillway"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spillway.cli "$@"\n')
        command.chmod(0o755)

    def blocks(self, language: str) -> list[str]:
        found = re.findall(rf"```{language}\n(.*?)```", self._text, re.DOTALL)
        return [
            re.sub(r"\bshop\b", self._database.name, block).replace(
                "55432", str(self._service.pg_port)
            )
            for block in found
            if "spillway serve" not in block
        ]

    def properties(self) -> list[dict[str, str]]:
        return [
            dict(line.split("=", 1) for line in block.splitlines())
            for block in self.blocks("properties")
        ]

    def run(self, script: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", script],
            env={
                **os.environ,
                "PATH": f"{self._programs}:{os.environ['PATH']}",
                "SPILLWAY_URL": f"http://127.0.0.1:{self._service.http_port}",
                "SHOP_DSN": self._database.dsn,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (script, done.stderr)


@on_every_major
def test_pgjdbc(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    pg.execute("CREATE TABLE t (i int); CREATE PUBLICATION orders FOR TABLE t")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.cluster.dsn(), pg.name)
        page = Page("use-pgjdbc.md", service, pg, tmp_path)
        (user,) = page.blocks("sh")
        page.run(user)
        (asked,) = page.properties()
        (java,) = page.blocks("java")
        known = {
            "connection": connect_with(jvm, asked.pop("url"), asked),
            "PGConnection": jvm.class_named("org.postgresql.PGConnection"),
            "TimeUnit": jvm.names.java.util.concurrent.TimeUnit,
        }
        for statement in re.sub(r"\n +", "", java).split(";\n"):
            if "stream.read" in statement:
                pg.execute("INSERT INTO t VALUES (5)")
            # But for the types of its variables, what Java is called with is Python.
            called = re.sub(r"^\w+ (?=\w+ = )", "", statement).replace(".class", "")
            exec(called, known)
        message = known["message"]
        assert bytes(message.array())[message.arrayOffset() :][:1] == b"B"
        assert service.call("GET", "/slots")["slots"] == []
        known["connection"].close()


@on_every_major
def test_debezium(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    pg.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    pg.execute("CREATE TABLE u (i int PRIMARY KEY); INSERT INTO u VALUES (1)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.cluster.dsn(), pg.name)
        page = Page("use-debezium.md", service, pg, tmp_path)
        user, create_slot, wait, drop_slot = page.blocks("sh")
        page.run(user)
        four_lines, others = page.properties()
        # A connector that begins here.
        options = {**others, **four_lines, **kept_offsets(tmp_path / "first")}
        with DebeziumEngine(jvm, {**options, "slot.drop.on.stop": "true"}) as engine:
            engine.wait_until(lambda seen: len(seen) == 3)
            pg.execute("INSERT INTO t VALUES (3)")
            engine.wait_until(lambda seen: len(seen) == 4)
            assert _rows(engine.events[:3]) == [("r", "t", 1), ("r", "t", 2), ("r", "u", 1)]
            assert _rows(engine.events[3:]) == [("c", "t", 3)]
            (shown,) = service.call("GET", "/slots")["slots"]
            assert shown["slot_name"] == "orders"
            assert _slots(pg) == []
        assert service.call("GET", "/slots")["slots"] == []
        # One that has read from the primary.
        primary = {
            "database.hostname": "127.0.0.1",
            "database.port": str(pg.cluster.port),
            "database.user": SUPERUSER,
            "database.password": "none",
        }
        assert primary.keys() == four_lines.keys()
        offsets = kept_offsets(tmp_path / "second")
        with DebeziumEngine(jvm, {**others, **primary, **offsets}) as engine:
            engine.wait_until(lambda seen: len(seen) == 4)
            page.run(create_slot)
            with _changing(pg):
                page.run(wait)
            known = int(pg.value("SELECT count(*) FROM t")) + 1
            engine.wait_until(lambda seen: len(seen) == known)
        assert _slots(pg) == [("orders",)]
        pg.execute("INSERT INTO t VALUES (-1)")
        with DebeziumEngine(jvm, {**others, **four_lines, **offsets}) as engine:
            engine.wait_until(bool)
            page.run(drop_slot)
            pg.execute("INSERT INTO t VALUES (-2)")
            engine.wait_until(lambda seen: len(seen) == 2)
            assert _rows(engine.events) == [("c", "t", -2), ("c", "t", -1)]
        assert _slots(pg) == []


@contextmanager
def _changing(database: Database) -> Iterator[None]:
    """Insert now and then."""
    ended = threading.Event()

    def work() -> None:
        number = 100
        while not ended.wait(0.2):
            database.execute(f"INSERT INTO t VALUES ({number})")
            number += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def _rows(events: list[Event]) -> list[tuple[str, str, int]]:
    return sorted(
        (event.value["op"], event.topic.rpartition(".")[2], event.value["after"]["i"])
        for event in events
    )


def _slots(database: Database) -> list[tuple[object, ...]]:
    return database.query("SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'")
