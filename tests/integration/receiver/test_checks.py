"""check_source against real servers: everything that can be missing, named together, with what
mends it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.reception import SLOT
from harness.remedies import remedy, statements
from harness.tiers import majors_by_tier
from spillway.demo.private_postgres import SUPERUSER
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
    UnsupportedBuild,
    UnsupportedVersion,
    WalLevelNotLogical,
    WalSendersExhausted,
)
from spillway.pg.conninfo import replication_conninfo
from spillway.receiver import checks
from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot
from spillway.receiver.replication_connection import ReplicationConnection, WakeUp
from spillway.receiver.supported_versions import is_supported

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


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
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


def restart_as_told(cluster: Cluster, hint: str) -> None:
    """Set what a hint says to set, and restart the server as it says."""
    assert "restart the server" in hint
    for statement in statements(hint):
        cluster.settings.pop(statement.split()[3], None)
        cluster.execute(statement)
    cluster.restart()


def create_dsn(cluster: Cluster) -> str:
    return f"postgresql://r:{PASSWORD}@127.0.0.1:{cluster.port}/postgres"


def test_superuser(pg15: Database) -> None:
    facts = check_source(pg15.dsn)
    assert facts.is_superuser
    assert facts.has_replication
    assert facts.full_page_writes
    assert facts.database == pg15.name
    assert facts.datoid == pg15.oid


# -- one thing missing ------------------------------------------------------------------------


def test_invalid_dsn() -> None:
    with pytest.raises(InvalidDsn):
        check_source("postgresql://u:s3cr3t%zz@h/d")


@pytest.mark.parametrize(
    "address", ["host=127.0.0.1 port=1", "host=no-such-host.invalid", "host=/no/such/directory"]
)
def test_unreachable(address: str) -> None:
    error = check_fails(f"{address} user=u password={PASSWORD}", SourceUnreachable)
    assert error.code == "source_unreachable"


@pytest.mark.follows_hint("source_auth_failed", "source_not_permitted")
def test_wrong_password(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    dsn = create_role(cluster)
    error = check_fails(dsn.replace(PASSWORD, "s3cr3ts"), SourceAuthFailed)
    assert error.code == "source_auth_failed"
    (sql,) = statements(remedy(error, "source_auth_failed"))
    cluster.execute(sql.replace("…", "s3cr3ts"))
    check_source(dsn.replace(PASSWORD, "s3cr3ts"))
    cluster.execute(sql.replace("…", PASSWORD))
    assert check_fails(dsn.replace(":s3cr3t@", "@"), SourceAuthFailed)
    # No line in pg_hba.conf, for the database and then for replication.
    cluster.execute(f"CREATE ROLE nobody LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    other = dsn.replace("//r:", "//nobody:")
    lines = ["host all,replication r 127.0.0.1/32 scram-sha-256"]
    for kind, code in (
        (SourceNotPermitted, "source_not_permitted"),
        (ReplicationNotAllowedByHba, "replication_not_allowed_by_hba"),
    ):
        hint = remedy(check_fails(other, kind), code)
        line = re.search(r"Add to pg_hba.conf:  (.*)  and run (SELECT pg_reload_conf\(\);)", hint)
        assert line is not None
        lines.append(line[1])
        set_hba(cluster, "\n".join(lines))
    check_source(other)
    # What else the server may refuse.
    for refuse in (
        "ALTER ROLE nobody NOLOGIN",
        "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
    ):
        cluster.execute(refuse)
        for sql in statements(
            remedy(check_fails(other, SourceNotPermitted), "source_not_permitted")
        ):
            cluster.execute(sql)
        check_source(other)


@pytest.mark.follows_hint("unknown_database")
def test_unknown_database(pg15: Database) -> None:
    error = check_fails(pg15.cluster.dsn("no such database"), UnknownDatabase)
    assert "Name an existing database" in remedy(error, "unknown_database")
    (name,) = pg15.query("SELECT datname::text FROM pg_database WHERE datname = %s", [pg15.name])[0]
    check_source(pg15.cluster.dsn(name))


@pytest.mark.parametrize("level", ["replica", "minimal"])
@pytest.mark.follows_hint("wal_level_not_logical")
def test_wal_level(fresh_cluster: ClusterFactory, level: str) -> None:
    cluster = fresh_cluster(15, wal_level=level, max_wal_senders=0 if level == "minimal" else 5)
    error = check_fails(cluster.dsn(), WalLevelNotLogical)
    assert error.code == "wal_level_not_logical"
    assert "max_wal_senders_exhausted" in problems(error) or level == "replica"
    restart_as_told(cluster, remedy(error, "wal_level_not_logical"))
    assert check_source(cluster.dsn()).wal_level == "logical", "mended as the hint says"


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 18]))
@pytest.mark.follows_hint("missing_replication_privilege")
def test_missing_replication_privilege(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major)
    dsn = create_role(cluster, "NOREPLICATION")
    error = check_fails(dsn, MissingReplicationPrivilege)
    assert problems(error) == ["missing_replication_privilege"]
    (sql,) = statements(remedy(error, "missing_replication_privilege"))
    cluster.execute(sql)
    check_source(dsn)


@pytest.mark.parametrize("major", majors_by_tier([14, 18]))
@pytest.mark.follows_hint("replication_not_allowed_by_hba")
def test_hba(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major)
    dsn = create_role(cluster)
    set_hba(cluster, "host all r 127.0.0.1/32 scram-sha-256")
    error = check_fails(dsn, ReplicationNotAllowedByHba)
    assert problems(error) == ["replication_not_allowed_by_hba"]
    line = 'host  replication  "r"  127.0.0.1/32  scram-sha-256'
    assert line in remedy(error, "replication_not_allowed_by_hba")
    set_hba(cluster, f"host all r 127.0.0.1/32 scram-sha-256\n{line}")
    check_source(dsn)


@pytest.mark.follows_hint("max_wal_senders_exhausted")
def test_wal_senders_taken(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, max_wal_senders=1)
    with cluster_replication(cluster):
        error = check_fails(cluster.dsn(), WalSendersExhausted)
    assert problems(error) == ["max_wal_senders_exhausted"]
    check_source(cluster.dsn())
    restart_as_told(cluster, remedy(error, "max_wal_senders_exhausted"))
    with cluster_replication(cluster):
        check_source(cluster.dsn())


def cluster_replication(cluster: Cluster) -> checks.ReplicationConnection:
    return checks.ReplicationConnection.connect(
        checks.replication_conninfo(cluster.dsn()), checks.WakeUp()
    )


@pytest.mark.follows_hint("max_replication_slots_exhausted")
def test_slots_taken(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15, max_replication_slots=1)
    create_physical_slot(cluster.dsn(), SLOT)
    error = check_fails(cluster.dsn(), ReplicationSlotsExhausted)
    assert problems(error) == ["max_replication_slots_exhausted"]
    check_source(cluster.dsn(), slot_name=SLOT)
    check_fails(cluster.dsn(), ReplicationSlotsExhausted, slot_name="another")
    restart_as_told(cluster, remedy(error, "max_replication_slots_exhausted"))
    check_source(cluster.dsn())


@pytest.mark.follows_hint("source_in_recovery")
def test_standby(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(15)
    cluster.stop()
    signal_file = cluster.data_directory / "standby.signal"
    signal_file.touch()
    cluster.start()
    error = check_fails(cluster.dsn(), SourceInRecovery)
    assert problems(error) == ["source_in_recovery"]
    form = re.search(r"host=a,b (target_session_attrs=\S+)", remedy(error, "source_in_recovery"))
    assert form is not None
    primary = fresh_cluster(15)
    found = check_source(
        f"host=127.0.0.1,127.0.0.1 port={cluster.port},{primary.port} user={SUPERUSER}"
        f" dbname=postgres {form[1]}"
    )
    assert found.system_id == check_source(primary.dsn()).system_id


@pytest.mark.follows_hint("source_unreachable")
def test_no_server_that_takes_writes(fresh_cluster: ClusterFactory) -> None:
    """All that answers is a standby, and the primary is down: no DSN and no firewall is wrong."""
    cluster = fresh_cluster(15)
    cluster.stop()
    (cluster.data_directory / "standby.signal").touch()
    cluster.start()
    dsn = (
        f"host=127.0.0.1,127.0.0.1 port={{}} user={SUPERUSER} dbname=postgres "
        "target_session_attrs=read-write"
    )
    for ports in (f"1,{cluster.port}", f"{cluster.port},1"):
        error = check_fails(dsn.format(ports), SourceUnreachable)
        assert "read-only" in error.message
        hint = remedy(error, "source_unreachable")
        with pytest.raises(SourceUnreachable, match="read-only") as streamed:
            ReplicationConnection.connect(replication_conninfo(dsn.format(ports)), WakeUp())
        assert streamed.value.hint == hint
    promote = re.search(r"SELECT pg_promote\(\)", hint)
    assert promote is not None
    cluster.execute(promote[0])
    check_source(dsn.format(f"1,{cluster.port}"))
    # A primary may be asked to take no writes, as for a maintenance.
    cluster.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    cluster.execute("SELECT pg_reload_conf()")
    hint = remedy(
        check_fails(dsn.format(f"1,{cluster.port}"), SourceUnreachable), "source_unreachable"
    )
    form = re.search(r"target_session_attrs=primary", hint)
    assert form is not None
    check_source(
        dsn.format(f"1,{cluster.port}").replace("target_session_attrs=read-write", form[0])
    )


@pytest.mark.follows_hint("source_not_permitted", "replication_not_allowed_by_hba")
def test_a_line_of_pg_hba_that_rejects(fresh_cluster: ClusterFactory) -> None:
    """The first line that fits counts: one below it that lets the role in does nothing."""
    cluster = fresh_cluster(15)
    dsn = create_role(cluster)
    lines = ["host all,replication r 127.0.0.1/32 reject"]
    for kind, code in (
        (SourceNotPermitted, "source_not_permitted"),
        (ReplicationNotAllowedByHba, "replication_not_allowed_by_hba"),
    ):
        set_hba(cluster, "\n".join(lines))
        hint = remedy(check_fails(dsn, kind), code)
        line = re.search(
            r"Add to pg_hba.conf, above the line that rejects:  (.*)  and run SELECT", hint
        )
        assert line is not None, hint
        lines.insert(0, line[1])
    set_hba(cluster, "\n".join(lines))
    check_source(dsn)


@pytest.mark.follows_hint("system_id_mismatch")
def test_system_id(pg15: Database) -> None:
    error = check_fails(pg15.dsn, SystemIdMismatch, expected_system_id="4711")
    assert error.details["expected_system_id"] == "4711"
    assert problems(error) == ["system_id_mismatch"]
    assert "Point the source at the cluster it was created for" in remedy(
        error, "system_id_mismatch"
    )
    check_source(pg15.dsn, expected_system_id=str(error.details["system_id"]))


def test_a_database_without_an_encoding(pg15: Database) -> None:
    name = f"{pg15.name[:50]}_ascii"
    pg15.cluster.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE "
        "template0"
    )
    try:
        facts = check_source(pg15.cluster.dsn(name))
        assert (facts.database, facts.server_encoding) == (name, "SQL_ASCII")
    finally:
        pg15.cluster.drop_database(name)


@pytest.mark.follows_hint("unsupported_version", "unsupported_build")
def test_version(pg15: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_supported", lambda version: False)
    error = check_fails(pg15.dsn, UnsupportedVersion)
    assert error.code == "unsupported_version"
    first, last = map(int, re.findall(r"\d+", remedy(error, "unsupported_version")))
    monkeypatch.undo()
    assert [major for major in range(10, 25) if is_supported(major * 10_000)] == list(
        range(first, last + 1)
    )
    monkeypatch.setattr(checks, "XLOG_BLCKSZ", 4096)
    error = check_fails(pg15.dsn, UnsupportedBuild)
    assert "own block sizes" in remedy(error, "unsupported_build")
    monkeypatch.undo()
    assert pg15.query("SHOW block_size")[0] == pg15.query("SHOW wal_block_size")[0] == ("8192",)
    check_source(pg15.dsn)


# -- several at once --------------------------------------------------------------------------


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
