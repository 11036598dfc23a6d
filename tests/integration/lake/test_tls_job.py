"""The real job against a service with a certificate of a private CA, which asks its clients for
theirs, too.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from harness.certificates import Authority
from harness.service import service_in_process
from spillway.errors import SpillwayError
from spillway.lake.job.run import JobSettings, run_job
from spillway.tls import TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database


def test_what_the_driver_knows_of_tls_reaches_the_workers(
    tmp_path: Path, pg15: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's JVM, and so its Python workers, began long before the variables were set: as
    executors elsewhere do.
    """
    ca = Authority(tmp_path, "ca")
    server, client = ca.sign("server"), ca.sign("client")
    asking = ssl.create_default_context(cafile=ca.file)
    asking.load_cert_chain(client.certificate, client.key)
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    files = TlsFiles(server.certificate, server.key, client_ca=ca.file)
    with service_in_process(tmp_path / "data", tls=files, asked_with=asking) as service:
        service.create_source(pg15.dsn)
        service.create_slot("lake", pg15.name, "arrow")
        pg15.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i")
        end = service.wait_decoded("lake", pg15)
        settings = JobSettings(
            slot="lake",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            table_format="parquet",
            grpc=f"https://127.0.0.1:{service.grpc_port}",
        )
        # What is missing is said before Spark has anything to do.
        with pytest.raises(SpillwayError) as caught:
            run_job(settings, spark=spark)
        assert "SPILLWAY_TLS_CA" in caught.value.hint
        for name, path in (
            ("SPILLWAY_TLS_CA", ca.file),
            ("SPILLWAY_TLS_CLIENT_CERT", client.certificate),
            ("SPILLWAY_TLS_CLIENT_KEY", client.key),
        ):
            monkeypatch.setenv(name, str(path))
        run_job(settings, spark=spark)
        assert service.slot("lake")["confirmed_flush_lsn"] >= end
    rows = spark.read.parquet(str(tmp_path / "lake" / "history" / "public.t"))
    assert rows.count() == 100
