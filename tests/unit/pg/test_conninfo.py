"""DSNs: parsed as libpq does, shown without secrets, resolved without libpq."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from spillway.errors import InvalidDsn, SourceUnreachable
from spillway.pg.conninfo import (
    _ALLOWED,
    _FILES,
    check_dsn,
    connection_attempts,
    odd_parameters,
    parse_dsn,
    redact,
    redact_dsn,
    replication_conninfo,
    resolve_hosts,
    sql_conninfo,
)

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t/p w'd"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:s3cr3t%2Fp%20w%27d@db.example:5433/shop",
        r"host=db.example port=5433 user=u dbname=shop password='s3cr3t/p w\'d'",
        "postgresql://u@db.example:5433/shop?password=s3cr3t%2Fp%20w%27d&sslpassword=s3cr3t%2Fp%20w%27d",
    ],
)
def test_password_is_never_shown(dsn: str) -> None:
    assert parse_dsn(dsn)["password"] == SECRET
    shown = redact_dsn(dsn)
    assert "s3cr3t" not in shown
    assert "host=db.example" in shown
    assert conninfo_to_dict(shown)["password"] == "****"
    assert redact(f"FATAL: what about {SECRET}?", dsn) == "FATAL: what about ****?"


@pytest.mark.parametrize("dsn", ["postgresql://u:s3cr3t%zz@h/d", "no such=thing s3cr3t", "host"])
def test_unparsable_dsn(dsn: str) -> None:
    with pytest.raises(InvalidDsn) as caught:
        parse_dsn(dsn)
    assert caught.value.code == "invalid_dsn"
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert redact_dsn(dsn) == "****"


def test_replication_conninfo() -> None:
    parsed = conninfo_to_dict(replication_conninfo("postgresql://u@h/shop?application_name=mine"))
    assert parsed["replication"] == "true"
    assert parsed["application_name"] == "mine"
    assert parsed["keepalives_idle"] == "30"
    assert conninfo_to_dict(sql_conninfo("host=h connect_timeout=3"))["connect_timeout"] == "3"
    assert conninfo_to_dict(sql_conninfo("host=h"))["application_name"] == "spillway"


def _resolver(table: dict[str, list[str]]) -> object:
    def getaddrinfo(name: str, port: object, **options: object) -> list[tuple[object, ...]]:
        if name not in table:
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in table[name]
        ]

    return getaddrinfo


def test_names_become_addresses_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        socket, "getaddrinfo", _resolver({"a": ["10.0.0.1", "10.0.0.2"], "b": ["10.0.0.3"]})
    )
    parsed = conninfo_to_dict(resolve_hosts("host=a,b,missing port=1,2,3"))
    assert parsed["host"] == "a,a,b"
    assert parsed["hostaddr"] == "10.0.0.1,10.0.0.2,10.0.0.3"
    assert parsed["port"] == "1,1,2"

    attempts = [
        conninfo_to_dict(attempt) for attempt in connection_attempts("host=a,b port=1,2 user=u")
    ]
    assert [(a["host"], a["hostaddr"], a["port"], a["user"]) for a in attempts] == [
        ("a", "10.0.0.1", "1", "u"),
        ("a", "10.0.0.2", "1", "u"),
        ("b", "10.0.0.3", "2", "u"),
    ]
    assert [conninfo_to_dict(a).get("port") for a in connection_attempts("host=a,b port=7")] == [
        "7"
    ] * 3


@pytest.mark.parametrize(
    "dsn", ["host=/run/postgresql user=u", "user=u", "hostaddr=127.0.0.1", "host=a,b port=1,2,3"]
)
def test_nothing_to_resolve(dsn: str) -> None:
    assert resolve_hosts(dsn) == dsn
    assert connection_attempts(dsn)


def test_socket_directory_beside_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _resolver({"a": ["10.0.0.1"]}))
    attempts = [conninfo_to_dict(attempt) for attempt in connection_attempts("host=/run/pg,a")]
    assert [(a["host"], a.get("hostaddr")) for a in attempts] == [
        ("/run/pg", ""),
        ("a", "10.0.0.1"),
    ]


def test_no_name_resolves() -> None:
    with pytest.raises(SourceUnreachable) as caught:
        resolve_hosts("host=no-such-host.invalid password=s3cr3t")
    assert "no-such-host.invalid" in caught.value.message
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("passfile", "/etc/passwd"),
        ("service", "x"),
        ("sslkeylogfile", "/tmp/keys"),
        ("sslcert", "/etc/ssl/cert.pem"),
        ("sslkey", "/etc/ssl/key.pem"),
        ("sslrootcert", "/etc/ssl/ca.pem"),
        ("sslcrl", "/etc/crl"),
        ("sslcrldir", "/etc/crls"),
        ("gssdelegation", "1"),
        ("krbsrvname", None),
    ],
)
def test_a_source_names_no_file_of_the_service(
    tmp_path: Path, parameter: str, value: str | None
) -> None:
    if value is None:
        check_dsn(f"host=h {parameter}=x", None)
        return
    for files in (None, tmp_path):
        with pytest.raises(InvalidDsn, match=parameter) as caught:
            check_dsn(f"host=h password='{SECRET[:6]}' {parameter}={value}", files)
        assert caught.value.details["parameters"] == [parameter]
        assert SECRET[:6] not in str(caught.value)


def test_every_parameter_of_libpq_is_decided_on() -> None:
    """A new libpq's parameters are refused until somebody looked at what they do."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    # What reads, writes or loads what is the service's own, or hands on who it is.
    refused = {
        "passfile", "service", "servicefile", "sslkeylogfile", "requiressl", "gssdelegation",
        "gsslib", "oauth_issuer", "oauth_client_id", "oauth_client_secret", "oauth_scope",
        "oauth_ca_file", "scram_client_key", "scram_server_key", "authtype", "tty",
    }  # fmt: skip
    assert known - _ALLOWED - _FILES <= refused


def test_files_of_the_operators_directory_may_be_named(tmp_path: Path) -> None:
    inside = tmp_path / "files" / "shop"
    inside.mkdir(parents=True)
    files = tmp_path / "files"
    for name in ("sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir"):
        check_dsn(f"host=h {name}={inside / 'x.pem'}", files)
        with pytest.raises(InvalidDsn, match="SPILLWAY_DSN_FILES"):
            check_dsn(f"host=h {name}={files}/../x.pem", files)
    (inside / "link.pem").symlink_to("/etc/hostname")
    with pytest.raises(InvalidDsn):
        check_dsn(f"host=h sslrootcert={inside / 'link.pem'}", files)
    check_dsn("host=h sslmode=verify-full sslrootcert=system", None)
    check_dsn("postgresql://u:p@h,h2:5433/d?target_session_attrs=read-write&keepalives=0", None)


def test_what_was_stored_before_is_named() -> None:
    assert odd_parameters("host=h passfile=/x service=y", None) == ["passfile", "service"]
    assert odd_parameters("host=h sslrootcert=/x", None) == ["sslrootcert"]
    assert odd_parameters("host=h", None) == []
