"""A real Hive metastore in a JVM of its own, on loopback: Hive's server is among PySpark's jars,
and keeps its tables in Derby, in memory.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from spillway.demo.private_postgres import free_port
from spillway.lake import jars

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = 120.0


@contextmanager
def metastore(directory: Path) -> Iterator[str]:
    """Run one that has nothing yet, with its files in *directory*; yield its address."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        # Its logger wants a library that Spark doesn't bring.
        "hive.async.log.enabled": "false",
        "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(directory / "warehouse"),
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    (directory / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    of_spark = Path(spec.origin).parent / "jars" / "*"
    port = free_port()
    command = [
        jars.java_command(), "-Xmx512m", f"-Dderby.stream.error.file={directory}/derby.log",
        "-cp", f"{directory}{os.pathsep}{of_spark}",
        "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port),
    ]  # fmt: skip
    said = directory / "metastore.log"
    with said.open("wb") as log:
        server = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
