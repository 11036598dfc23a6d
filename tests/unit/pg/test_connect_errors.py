"""libpq's messages become typed errors."""

from __future__ import annotations

import pytest

from spillway.pg.connect_errors import connect_error, hba_hint

PREFIX = 'connection to server at "10.0.0.1", port 5432 failed: FATAL:  '
PARAMETERS = {"host": "db", "port": "5432", "user": 'o"hara', "dbname": "shop"}


@pytest.mark.parametrize(
    ("message", "code", "hint"),
    [
        ('password authentication failed for user "x"', "source_auth_failed", "PASSWORD"),
        ('role "x" does not exist', "source_auth_failed", "ALTER ROLE"),
        ('database "x" does not exist', "unknown_database", "database"),
        (
            (
                'no pg_hba.conf entry for replication connection from host "10.1.2.3", user "x", '
                "no encryption"
            ),
            "replication_not_allowed_by_hba",
            'host  replication  "o""hara"  10.1.2.3/32  scram-sha-256',
        ),
        (
            (
                'pg_hba.conf rejects replication connection for host "fe80::1", user "x", SSL '
                "encryption"
            ),
            "replication_not_allowed_by_hba",
            "Add to pg_hba.conf, above the line that rejects:  host  replication",
        ),
        (
            'no pg_hba.conf entry for host "10.1.2.3", user "x", database "y"',
            "source_not_permitted",
            'host  "shop"  "o""hara"  10.1.2.3/32  scram-sha-256',
        ),
        ('role "x" is not permitted to log in', "source_not_permitted", "LOGIN;"),
        (
            'permission denied for database "x"',
            "source_not_permitted",
            'GRANT CONNECT ON DATABASE "shop"',
        ),
        (
            'database "x" is not currently accepting connections',
            "source_not_permitted",
            "ALLOW_CONNECTIONS",
        ),
        (
            "must be superuser or replication role to start walsender",
            "missing_replication_privilege",
            "REPLICATION;",
        ),
        (
            (
                "permission denied to start WAL sender DETAIL:  Only roles with the REPLICATION "
                "attribute may"
            ),
            "missing_replication_privilege",
            'ALTER ROLE "o""hara" REPLICATION;',
        ),
        (
            "number of requested standby connections exceeds max_wal_senders (currently 0)",
            "max_wal_senders_exhausted",
            "max_wal_senders",
        ),
        ("the database system is starting up", "source_unreachable", "its log says how far"),
        (
            (
                "the database system is not accepting connections DETAIL:  Hot standby mode is "
                "disabled."
            ),
            "source_unreachable",
            "name the primary",
        ),
        ("sorry, too many clients already", "source_connections_exhausted", "max_connections"),
        (
            'too many connections for role "x"',
            "source_connections_exhausted",
            'ALTER ROLE "o""hara" CONNECTION LIMIT',
        ),
        (
            'too many connections for database "x"',
            "source_connections_exhausted",
            'ALTER DATABASE "shop" CONNECTION LIMIT',
        ),
        (
            "remaining connection slots are reserved for roles with the SUPERUSER attribute",
            "source_connections_exhausted",
            "max_connections",
        ),
        (
            "server does not support SSL, but SSL was required",
            "source_tls_failed",
            "sslmode=prefer",
        ),
        ("SSL error: certificate verify failed", "source_tls_failed", "sslrootcert"),
        (
            "Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen",
            "source_unreachable",
            "runs",
        ),
    ],
)
def test_typed(message: str, code: str, hint: str) -> None:
    error = connect_error(PREFIX + message, "host=db password=s3cr3t", PARAMETERS)
    assert error.code == code
    assert hint in error.hint
    assert "db:5432" in error.message


def test_rejected_password_in_any_language() -> None:
    error = connect_error("FATAL: fehlgeschlagen", "host=db", PARAMETERS, password_rejected=True)
    assert error.code == "source_auth_failed"


def test_secrets_in_the_servers_words_are_masked() -> None:
    error = connect_error("FATAL: s3cr3t is no good\n", "host=db password=s3cr3t", PARAMETERS)
    assert "s3cr3t" not in str(error)


@pytest.mark.parametrize(
    ("attributes", "text", "hint"),
    [
        ("read-write", "session is read-only", "SELECT pg_promote();"),
        ("read-write", "session is read-only", "target_session_attrs=primary"),
        ("primary", "server is in hot standby mode", "SELECT pg_promote();"),
        ("standby", "server is not in hot standby mode", "leave it out of the DSN"),
        ("read-only", "session is not read-only", "leave it out of the DSN"),
    ],
)
def test_a_server_of_another_kind(attributes: str, text: str, hint: str) -> None:
    prefix = PREFIX.removesuffix("FATAL:  ")
    parameters = PARAMETERS | {"target_session_attrs": attributes}
    error = connect_error(prefix + text, "host=db", parameters)
    assert error.code == "source_unreachable"
    assert hint in error.hint
    assert f"target_session_attrs={attributes}" in error.hint


def test_hba_lines() -> None:
    assert 'local  replication  "u"  scram' in hba_hint("u", "[local]")
    assert 'host  replication  "u"  samenet' in hba_hint("u", None)
