"""Connections that a server refuses for a while, or for how they are made: each told by its own
name, with what mends it, and mended by that alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.certificates import Authority
from harness.reception import wait_until
from harness.remedies import remedy, statements
from harness.tiers import majors_by_tier
from harness.translating_relay import TranslatingRelay
from integration.receiver.test_checks import (
    PASSWORD,
    check_fails,
    create_role,
    restart_as_told,
    set_hba,
)
from spillway.catalog.source_queries import connected
from spillway.errors import (
    MissingReplicationPrivilege,
    ReplicationNotAllowedByHba,
    SourceAuthFailed,
    SourceConnectionsExhausted,
    SourceError,
    SourceNotPermitted,
    SourceTlsFailed,
    SourceUnreachable,
    UnknownDatabase,
)
from spillway.pg.conninfo import replication_conninfo
from spillway.receiver.checks import check_source
from spillway.receiver.replication_connection import ReplicationConnection, WakeUp
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster


@pytest.mark.parametrize("major", majors_by_tier([14, 16, 18]))
@pytest.mark.follows_hint("source_connections_exhausted")
def test_connections_are_taken(fresh_cluster: ClusterFactory, major: int) -> None:
    """The role's, the database's, all but those that are reserved, all: no password is to blame."""
    cluster = fresh_cluster(major, max_connections=6, superuser_reserved_connections=2)
    dsn = create_role(cluster)

    def mended() -> None:
        error = check_fails(dsn, SourceConnectionsExhausted)
        for sql in statements(remedy(error, "source_connections_exhausted")):
            cluster.execute(sql)
        check_source(dsn)

    with psycopg.connect(dsn):
        cluster.execute("ALTER ROLE r CONNECTION LIMIT 1")
        mended()
        cluster.execute("ALTER DATABASE postgres CONNECTION LIMIT 1")
        mended()
    for others in (4, 6):
        with ExitStack() as stack:
            for _ in range(others):
                stack.enter_context(cluster.connect())
            error = check_fails(dsn, SourceConnectionsExhausted)
        # That others end is enough.
        check_source(dsn)
    restart_as_told(cluster, remedy(error, "source_connections_exhausted"))
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(cluster.connect())
        check_source(dsn)


@pytest.mark.follows_hint("source_tls_failed")
def test_tls_is_asked_of_a_server_without(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    cluster = fresh_cluster(18)
    dsn = create_role(cluster)
    error = check_fails(f"{dsn}?sslmode=require", SourceTlsFailed)
    hint = remedy(error, "source_tls_failed")
    assert "sslmode=prefer" in hint
    check_source(f"{dsn}?sslmode=prefer")
    authority = Authority.make(tmp_path)
    _certify(cluster, authority, ["another.example"])
    for sql in statements(hint):
        cluster.execute(sql)
    wait_until(lambda: cluster.value("SHOW ssl") == "on")
    check_source(f"{dsn}?sslmode=require")

    # Verified, by a file that is not there, by another CA, and under another name.
    missing = tmp_path / "no-such.pem"
    for root in (missing, Authority.make(tmp_path, "other").file):
        error = check_fails(f"{dsn}?sslmode=verify-ca&sslrootcert={root}", SourceTlsFailed)
        assert "sslrootcert" in remedy(error, "source_tls_failed")
    verified = f"{dsn}?sslrootcert={authority.file}"
    check_source(f"{verified}&sslmode=verify-ca")
    error = check_fails(f"{verified}&sslmode=verify-full", SourceTlsFailed)
    hint = remedy(error, "source_tls_failed")
    assert "host=" in hint
    assert "hostaddr=" in hint
    check_source(
        f"{verified}&sslmode=verify-full&host=another.example&hostaddr=127.0.0.1".replace(
            f"@127.0.0.1:{cluster.port}", "@"
        )
        + f"&port={cluster.port}"
    )

    # The other way round: the server wants TLS.
    set_hba(cluster, "hostssl all,replication r 127.0.0.1/32 scram-sha-256")
    error = check_fails(f"{dsn}?sslmode=disable", SourceNotPermitted)
    assert "hostssl" in error.hint
    form = re.search(r"sslmode=\w+", error.hint)
    assert form is not None
    check_source(f"{dsn}?{form[0]}")


def _certify(cluster: Cluster, authority: Authority, hosts: list[str]) -> None:
    pair = authority.sign("server", hosts)
    for file, name in ((pair.certificate, "server.crt"), (pair.key, "server.key")):
        copied = cluster.data_directory / name
        shutil.copy(file, copied)
        copied.chmod(0o600)
        owner = cluster.data_directory.stat()
        os.chown(copied, owner.st_uid, owner.st_gid)


@pytest.mark.follows_hint("source_unreachable")
def test_it_shuts_down(fresh_cluster: ClusterFactory) -> None:
    """For as long as it waits for a session that is still there."""
    cluster = fresh_cluster(17)
    dsn = create_role(cluster)
    with cluster.connect():
        os.kill(cluster.pid, signal.SIGTERM)  # smart: it waits for the session
        wait_until(lambda: "shutting down" in str(check_fails(dsn, SourceUnreachable)))
        error = check_fails(dsn, SourceUnreachable)
        assert "shutting down" in error.message
        hint = remedy(error, "source_unreachable")
        assert "Nothing is wrong with the DSN" in hint
        assert "start it" in hint
    cluster.stop()
    cluster.start()
    check_source(dsn)


@pytest.mark.parametrize("major", majors_by_tier([14, 16, 18]))
def test_a_server_of_another_language(fresh_cluster: ClusterFactory, major: int) -> None:
    """Whoever connects tells refusals by SQLSTATE, and the same."""
    cluster = fresh_cluster(major, max_connections=6, superuser_reserved_connections=2)
    create_role(cluster)
    cluster.execute("CREATE ROLE nologin PASSWORD 's3cr3t'")
    cluster.execute("CREATE DATABASE closed ALLOW_CONNECTIONS false")
    cluster.execute("CREATE DATABASE revoked")
    cluster.execute("REVOKE CONNECT ON DATABASE revoked FROM PUBLIC")

    def told(
        kind: type[SourceError], hint: str, user: str = "r", database: str = "postgres"
    ) -> None:
        with TranslatingRelay(cluster.port) as relay:
            at = f"@127.0.0.1:{relay.port}/{database}?sslmode=disable"
            dsn = f"postgresql://{user}:{PASSWORD}{at}"
            for refused in (_by_session, _by_bootstrap):
                with pytest.raises(kind) as caught:
                    refused(dsn)
                assert type(caught.value) is kind
                assert hint in (caught.value.hint or "")
                assert PASSWORD not in str(caught.value)
                assert "xx" in caught.value.message  # as the server has said it
                assert not re.search(r":  ?[0-9A-Z]{5}: | \w+\.c:", caught.value.message)

    told(UnknownDatabase, "existing database", database="nowhere")
    told(SourceNotPermitted, 'GRANT CONNECT ON DATABASE "revoked"', database="revoked")
    told(SourceNotPermitted, "ALLOW_CONNECTIONS", database="closed")
    cluster.execute("ALTER ROLE r CONNECTION LIMIT 0")
    told(SourceConnectionsExhausted, 'ALTER ROLE "r" CONNECTION LIMIT')
    cluster.execute("ALTER ROLE r CONNECTION LIMIT -1")
    cluster.execute("ALTER DATABASE postgres CONNECTION LIMIT 0")
    told(SourceConnectionsExhausted, 'ALTER DATABASE "postgres" CONNECTION LIMIT')
    cluster.execute("ALTER DATABASE postgres CONNECTION LIMIT -1")
    for others in (4, 6):
        with ExitStack() as stack:
            for _ in range(others):
                stack.enter_context(cluster.connect())
            told(SourceConnectionsExhausted, "max_connections")
        wait_until(lambda: cluster.value("SELECT count(*) FROM pg_stat_activity") < 10)
    cluster.execute("ALTER ROLE r PASSWORD 'another'")
    told(SourceAuthFailed, "ALTER ROLE")
    set_hba(cluster, f"host all,replication r 127.0.0.1/32 reject\n{_ALL}")
    told(SourceNotPermitted, "pg_hba.conf")
    told(SourceNotPermitted, 'ALTER ROLE "nologin" LOGIN', user="nologin")
    wake_up = WakeUp()
    with TranslatingRelay(cluster.port) as relay:
        dsn = f"postgresql://r:{PASSWORD}@127.0.0.1:{relay.port}/postgres?sslmode=disable"
        with pytest.raises(ReplicationNotAllowedByHba):
            ReplicationConnection.connect(replication_conninfo(dsn), wake_up)
        set_hba(cluster, "host all,replication all 127.0.0.1/32 trust")
        cluster.execute("ALTER ROLE r NOREPLICATION")
        wait_until(lambda: _kind(dsn, wake_up) is MissingReplicationPrivilege)


_ALL = "host all all 127.0.0.1/32 trust"


def _kind(dsn: str, wake_up: WakeUp) -> type[SourceError]:
    with pytest.raises(SourceError) as caught:
        ReplicationConnection.connect(replication_conninfo(dsn), wake_up)
    return type(caught.value)


def _by_session(dsn: str) -> None:
    with source_session(dsn):
        pass


def _by_bootstrap(dsn: str) -> None:
    with connected(dsn):
        pass
