"""check_source against real servers: everything that can be missing, named together, with what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.reception import SLOT
from spillway.errors import (
    InvalidDsn,
    MissingReplicationPrivilege,
    ReplicationNotAllowedByHba,
    ReplicationSlotsExhausted,
    SourceAuthFailed,
    SourceError,
    SourceInRecovery,
    SourceNotPermitted,
    SourceUnreachable,
    SystemIdMismatch,
    UnknownDatabase,
    UnsupportedVersion,
    WalLevelNotLogical,
    WalSendersExhausted,
)
from spillway.receiver import checks
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot

if TYPE_CHECKING:
    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database

PASSWORD = "s3cr3t"


def problems(error: SourceError) -> list[str]:
    listed = error.details["problems"]
    assert isinstance(listed, list)
    assert all(problem["message"] and problem["hint"] for problem in listed)
    return [problem["code"] for problem in listed]


def check_fails(dsn: str, kind: type[SourceError], **options: str) -> SourceError:
    with pytest.raises(kind) as caught:
        check_source(dsn, **options)
    error = caught.value
    assert PASSWORD not in str(error)
    assert PASSWORD not in str(error.details)
    assert error.hint
    return error


def create_role(cluster: Cluster, options: str = "REPLICATION") -> str:
    """Create role r, let it in by password only, and return its DSN."""
    cluster.execute(f"CREATE ROLE r LOGIN PASSWORD '{PASSWORD}' {options}")
    set_hba(cluster, "host all,replication r 127.0.0.1/32 scram-sha-256")
    return f"postgresql://r:{PASSWORD}@127.0.0.1:{cluster.port}/postgres"


def set_hba(cluster: Cluster, lines: str) -> None:
    hba = cluster.data_directory / "pg_hba.conf"
    hba.write_text(f"{lines}\nhost all,replication postgres 127.0.0.1/32 trust\n")
    cluster.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_facts_without_superuser(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major, wal_segment_size_mb=2, full_page_writes=False)
    facts = check_source(create_role(cluster))
    assert facts.server_version_num // 10000 == major
    assert facts.system_id == str(
        cluster.value("SELECT system_identifier FROM pg_control_system()")
    )
    assert facts.wal_segment_size == 2 << 20
    assert facts.timeline == 1
    assert facts.database == "postgres"
    assert facts.datoid == cluster.value(
        "SELECT oid::int FROM pg_database WHERE datname = 'postgres'"
    )
    assert facts.server_encoding == "UTF8"
    assert facts.user_name == "r"
    assert facts.wal_level == "logical"
    assert facts.full_page_writes is False
    assert facts.is_superuser is False
    assert facts.has_replication is True
    assert PASSWORD not in facts.dsn
    assert facts == check_source(create_dsn(cluster), expected_system_id=facts.system_id)


def create_dsn(cluster: Cluster) -> str:
    return f"postgresql://r:{PASSWORD}@127.0.0.1:{cluster.port}/postgres"


def test_superuser(pg15: Database) -> None:
    facts = check_source(pg15.dsn)
    assert facts.is_superuser
    assert facts.has_replication
    assert facts.full_page_writes
    assert facts.database == pg15.name
    assert facts.datoid == pg15.oid


# -- one thing missing ------------------------------------------------------------------------------


def test_invalid_dsn() -> None:
    with pytest.raises(InvalidDsn):
        check_source("postgresql://u:s3cr3t%zz@h/d")


@pytest.mark.parametrize(
    "address", ["host=127.0.0.1 port=1", "host=no-such-host.invalid", "host=/no/such/directory"]
)
def test_unreachable(address: str) -> None:
    error = check_fails(f"{address} user=u password={PASSWORD}", SourceUnreachable)
    assert error.code == "source_unreachable"


def test_wrong_password(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    dsn = create_role(cluster)
    error = check_fails(dsn.replace(PASSWORD, "s3cr3ts"), SourceAuthFailed)
    assert error.code == "source_auth_failed"
    assert 'ALTER ROLE "r" PASSWORD' in error.hint
    assert check_fails(dsn.replace(":s3cr3t@", "@"), SourceAuthFailed)
    assert check_fails(dsn.replace("r:s3cr3t", "nobody:x"), SourceNotPermitted), (
        "no pg_hba.conf line"
    )


def test_unknown_database(pg15: Database) -> None:
    error = check_fails(pg15.cluster.dsn("no such database"), UnknownDatabase)
    assert error.code == "unknown_database"


@pytest.mark.parametrize("level", ["replica", "minimal"])
def test_wal_level(fresh_cluster: ClusterFactory, level: str) -> None:
    cluster = fresh_cluster(15, wal_level=level, max_wal_senders=0 if level == "minimal" else 5)
    error = check_fails(cluster.dsn(), WalLevelNotLogical)
    assert error.code == "wal_level_not_logical"
    assert "ALTER SYSTEM SET wal_level = 'logical';" in error.hint
    assert "max_wal_senders_exhausted" in problems(error) or level == "replica"
    for statement in ("wal_level = 'logical'", "max_wal_senders = 5"):
        cluster.settings.pop(statement.split(" = ", maxsplit=1)[0], None)
        cluster.execute(f"ALTER SYSTEM SET {statement}")
    cluster.restart()
    assert check_source(cluster.dsn()).wal_level == "logical", "mended as the hint says"


@pytest.mark.parametrize("major", [14, 15, 16, 18])
def test_missing_replication_privilege(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major)
    dsn = create_role(cluster, "NOREPLICATION")
    error = check_fails(dsn, MissingReplicationPrivilege)
    assert problems(error) == ["missing_replication_privilege"]
    assert error.hint == 'ALTER ROLE "r" REPLICATION;'
    cluster.execute(error.hint)
    check_source(dsn)


@pytest.mark.parametrize("major", [14, 18])
def test_hba(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major)
    dsn = create_role(cluster)
    set_hba(cluster, "host all r 127.0.0.1/32 scram-sha-256")
    error = check_fails(dsn, ReplicationNotAllowedByHba)
    assert problems(error) == ["replication_not_allowed_by_hba"]
    line = 'host  replication  "r"  127.0.0.1/32  scram-sha-256'
    assert line in error.hint
    set_hba(cluster, f"host all r 127.0.0.1/32 scram-sha-256\n{line}")
    check_source(dsn)


def test_wal_senders_taken(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, max_wal_senders=1)
    with cluster_replication(cluster):
        error = check_fails(cluster.dsn(), WalSendersExhausted)
    assert problems(error) == ["max_wal_senders_exhausted"]
    assert "max_wal_senders = 6" in error.hint
    check_source(cluster.dsn())


def cluster_replication(cluster: Cluster) -> checks.ReplicationConnection:
    return checks.ReplicationConnection.connect(
        checks.replication_conninfo(cluster.dsn()), checks.WakeUp()
    )


def test_slots_taken(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, max_replication_slots=1)
    create_physical_slot(cluster.dsn(), SLOT)
    error = check_fails(cluster.dsn(), ReplicationSlotsExhausted)
    assert problems(error) == ["max_replication_slots_exhausted"]
    check_source(cluster.dsn(), slot_name=SLOT)
    check_fails(cluster.dsn(), ReplicationSlotsExhausted, slot_name="another")


def test_standby(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    cluster.stop()
    signal_file = cluster.data_directory / "standby.signal"
    signal_file.touch()
    cluster.start()
    error = check_fails(cluster.dsn(), SourceInRecovery)
    assert problems(error) == ["source_in_recovery"]


def test_system_id(pg15: Database) -> None:
    error = check_fails(pg15.dsn, SystemIdMismatch, expected_system_id="4711")
    assert error.details["expected_system_id"] == "4711"
    assert problems(error) == ["system_id_mismatch"]


def test_a_database_without_an_encoding(pg15: Database) -> None:
    name = f"{pg15.name[:50]}_ascii"
    pg15.cluster.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    try:
        facts = check_source(pg15.cluster.dsn(name))
        assert (facts.database, facts.server_encoding) == (name, "SQL_ASCII")
    finally:
        pg15.cluster.drop_database(name)


def test_version(pg15: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_supported", lambda version: False)
    error = check_fails(pg15.dsn, UnsupportedVersion)
    assert error.code == "unsupported_version"
    assert "14 to 18" in error.hint


# -- several at once --------------------------------------------------------------------------------


def test_all_problems_are_told_at_once(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, wal_level="replica", max_replication_slots=1)
    dsn = create_role(cluster, "NOREPLICATION")
    create_physical_slot(cluster.dsn(), "another")
    set_hba(cluster, "host all r 127.0.0.1/32 scram-sha-256")
    error = check_fails(dsn, WalLevelNotLogical)
    assert problems(error) == [
        "wal_level_not_logical",
        "missing_replication_privilege",
        "max_replication_slots_exhausted",
        "replication_not_allowed_by_hba",
    ]
    for part in ("wal_level", "REPLICATION;", "max_replication_slots = 6", "pg_hba.conf"):
        assert part in error.hint
