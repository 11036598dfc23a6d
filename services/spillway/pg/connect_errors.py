"""What a failed connection means: libpq's message to a typed error, for all who connect.

The message of a connection that :mod:`~spillway.pg.connecting` makes has the SQLSTATE of a refusal,
and the function of the server that refused: these decide, whatever the language of the server's
lc_messages. One that was made otherwise is told by the server's English words, which have been
stable over the supported versions. So is what is libpq's own (TLS). What is not recognised stays
``source_unreachable`` with the server's own words in it, which is safe: it is retried.

Source: src/backend/utils/init/{postinit,miscinit}.c, src/backend/libpq/auth.c,
src/backend/tcop/backend_startup.c, src/backend/storage/lmgr/proc.c
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

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
    WalSendersExhausted,
)
from spillway.pg.conninfo import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the server calls a client on a Unix-domain socket.
LOCAL_CLIENT: Final = "[local]"

_PATTERNS: Final[tuple[tuple[type[SourceError], tuple[str, ...]], ...]] = (
    (
        ReplicationNotAllowedByHba,
        (r"no pg_hba\.conf entry for replication", r"pg_hba\.conf rejects replication"),
    ),
    (
        SourceNotPermitted,
        (
            r"no pg_hba\.conf entry",
            r"pg_hba\.conf rejects",
            r"is not permitted to log in",
            r"permission denied for database",
            r"not currently accepting connections",
        ),
    ),
    (
        MissingReplicationPrivilege,
        (
            r"must be superuser or replication role",
            r"permission denied to start WAL sender",
        ),
    ),
    (WalSendersExhausted, (r"exceeds max_wal_senders",)),
    # Those of a role or a database come when the password was accepted: before what a password that
    # was sent may mean.
    (
        SourceConnectionsExhausted,
        (
            r"too many clients already",
            r"remaining connection slots are reserved",
            r"too many connections for (role|database)",
        ),
    ),
    (
        SourceTlsFailed,
        (
            r"does not support SSL, but SSL was required",
            r"certificate verify failed",
            r"root certificate file \".*\" does not exist",
            r"could not read root certificate file",
            r"does not match host name",
        ),
    ),
    (
        SourceAuthFailed,
        (r"authentication failed", r"no password supplied", r"role \".*\" does not exist"),
    ),
    (UnknownDatabase, (r"database \".*\" does not exist",)),
)

#: What a verbose message of libpq's has of a server's error, in whatever language.
_SQLSTATE: Final = re.compile(r"(?<=:  )([0-9A-Z]{5}): ")
_PLACE: Final = re.compile(r"\s*^\S+\s+(\w+), [\w./-]+\.c:\d+$", re.MULTILINE)


class _Refusal(NamedTuple):
    """What a server says of a refusal beside its words; empty where it said nothing."""

    sqlstate: str = ""
    function: str = ""


#: What libpq itself says, in English unless it was built with other languages and is told to use
#: them, of a session that is not as ``target_session_attrs`` asks.
_OF_ANOTHER_KIND: Final = r"session is (not )?read-only|server is (not )?in hot standby mode"
#: 57P03, cannot_connect_now, in words.
_NOT_NOW: Final = (
    r"the database system is (starting up|shutting down|in recovery mode|not (yet )?accepting)"
)


def connect_error(
    message: str, dsn: str, parameters: Mapping[str, str], *, password_rejected: bool = False
) -> SourceError:
    """Make the typed error for libpq's *message*.

    Args:
        message: libpq's text; secrets of *dsn* are masked.
        dsn: the connection string, for the masking.
        parameters: its parameters, for the hints.
        password_rejected: libpq sent a password and no session came of it. Tells a wrong password
            when the server speaks another language.
    """
    message, refusal = _read(message)
    # Its lines end without a full stop.
    text = re.sub(r"(?<=[\w)\"»])\s*\n\s*", ". ", redact(message, dsn).strip())
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"^connection failed: ", "", text)
    host, port = parameters.get("host", "(local socket)"), parameters.get("port", "5432")
    kind = _kind_by_sqlstate(refusal, text, parameters) or _kind_by_words(text)
    if kind is None:
        kind = SourceAuthFailed if password_rejected and not refusal.sqlstate else SourceUnreachable
    return _make(kind, text, refusal, host, port, parameters)


def _read(message: str) -> tuple[str, _Refusal]:
    """Return a message as it is without verbosity, and what it had of the last refusal."""
    states, places = _SQLSTATE.findall(message), _PLACE.findall(message)
    if not states:
        return message, _Refusal()
    plain = _SQLSTATE.sub("", _PLACE.sub("", message))
    return plain, _Refusal(states[-1], places[-1] if places else "")


def _kind_by_sqlstate(
    refusal: _Refusal, text: str, parameters: Mapping[str, str]
) -> type[SourceError] | None:
    """Say what a refusal is; None: its SQLSTATE does not say."""
    by_hba: type[SourceError] = SourceNotPermitted
    if parameters.get("replication", "").lower() in {"true", "on", "yes", "1"}:
        by_hba = ReplicationNotAllowedByHba
    match refusal:
        # Names of settings are the same in all languages.
        case _Refusal("53300"):
            exhausted = "max_wal_senders" in text
            return WalSendersExhausted if exhausted else SourceConnectionsExhausted
        case _Refusal("28P01") | _Refusal("28000", "auth_failed"):
            return SourceAuthFailed
        case _Refusal("28000", "ClientAuthentication"):
            return by_hba
        case _Refusal("28000", "InitializeSessionUserId"):
            # There is no such role, or it may not log in.
            return None if _kind_by_words(text) else SourceNotPermitted
        case _Refusal("42501", "InitPostgres"):
            return MissingReplicationPrivilege
        case _Refusal("42501" | "55000", "CheckMyDatabase"):
            return SourceNotPermitted
        case _Refusal("3D000"):
            return UnknownDatabase
        case _Refusal("57P03"):
            return SourceUnreachable
    return None


def _kind_by_words(text: str) -> type[SourceError] | None:
    for kind, patterns in _PATTERNS:
        if any(re.search(pattern, text) for pattern in patterns):
            return kind
    return None


def _make(
    kind: type[SourceError],
    text: str,
    refusal: _Refusal,
    host: str,
    port: str,
    parameters: Mapping[str, str],
) -> SourceError:
    user = parameters.get("user", "")
    quoted = quote_identifier(user) if user else "…"
    database = parameters.get("dbname", user)
    sslmode = parameters.get("sslmode", "prefer")
    hint = {
        SourceAuthFailed: (
            f"Check user and password in the DSN; ALTER ROLE {quoted} PASSWORD '…'; sets a new one."
        ),
        SourceNotPermitted: _not_permitted_hint(text, refusal, user, quoted, database, sslmode),
        MissingReplicationPrivilege: f"ALTER ROLE {quoted} REPLICATION;",
        ReplicationNotAllowedByHba: (
            hba_hint(user, _client_address(text), text) + _or_with_tls(text, sslmode)
        ),
        WalSendersExhausted: (
            "ALTER SYSTEM SET max_wal_senders = 10; -- more than now; then restart the server"
        ),
        SourceConnectionsExhausted: _exhausted_hint(text, refusal, quoted, database),
        SourceTlsFailed: _tls_hint(text),
        UnknownDatabase: "Name an existing database in the DSN.",
        SourceUnreachable: _unreachable_hint(text, refusal, parameters),
    }[kind]
    return kind(
        f"could not connect to the source at {host}:{port}: {text}",
        hint=hint,
        host=host,
        port=port,
        user=user,
    )


def _exhausted_hint(text: str, refusal: _Refusal, quoted_user: str, database: str) -> str:
    if "connections for role" in text or refusal.function == "InitializeSessionUserId":
        limit = f"ALTER ROLE {quoted_user} CONNECTION LIMIT 20; -- more than now"
    elif "connections for database" in text or refusal.function == "CheckMyDatabase":
        quoted_database = quote_identifier(database) if database else "…"
        limit = f"ALTER DATABASE {quoted_database} CONNECTION LIMIT 100; -- more than now"
    else:
        limit = "ALTER SYSTEM SET max_connections = 200; -- more than now; then restart the server"
    return f"End sessions that nobody needs, pg_stat_activity lists them; or {limit}"


def _tls_hint(text: str) -> str:
    if "does not support SSL" in text:
        return (
            "The DSN's sslmode asks for TLS, and the server has it off. Give the server a "
            "certificate (ssl_cert_file, ssl_key_file) and ALTER SYSTEM SET ssl = on; SELECT "
            "pg_reload_conf(); or, where the network may be trusted, sslmode=prefer in the DSN: "
            "without encryption."
        )
    if "does not match host name" in text:
        return (
            "Name the server in the DSN as its certificate does, by host=, with its address in "
            "hostaddr= if that name leads elsewhere. If the certificate is another server's, the "
            "DSN leads to the wrong one."
        )
    return (
        "Give the DSN, as sslrootcert=FILE, the certificate of the authority that has signed the "
        "server's; the file lies on the service's machine, and the service may read it. A server's "
        "certificate that has expired is to be renewed there."
    )


def is_of_another_kind(error: SourceError) -> bool:
    """Whether a server let a session in that is not as ``target_session_attrs`` asks: what is to
    be told of several addresses, rather than that nothing listens at the others.
    """
    return re.search(_OF_ANOTHER_KIND, error.message) is not None


def _unreachable_hint(text: str, refusal: _Refusal, parameters: Mapping[str, str]) -> str:
    if re.search(_OF_ANOTHER_KIND, text):
        attributes = parameters.get("target_session_attrs", "any")
        asked = f"The DSN asks for target_session_attrs={attributes}, and no server that it names "
        if attributes in {"read-write", "primary"}:
            hint = (
                f"{asked}is one. It is found by itself once there is: start the primary, or "
                "promote a standby, there: SELECT pg_promote();"
            )
            if attributes == "read-write":
                hint += (
                    " A primary whose default_transaction_read_only is on, as for a maintenance, "
                    "is found with target_session_attrs=primary."
                )
            return hint
        return f"{asked}is that: leave it out of the DSN, or name a server that is."
    if "Hot standby mode is disabled" in text:
        return "The server is a standby that takes no sessions: name the primary in the DSN."
    if refusal.sqlstate == "57P03" or re.search(_NOT_NOW, text):
        return (
            "Nothing is wrong with the DSN. A server that starts or recovers takes connections "
            "when it is done, its log says how far it is; one that is shut down stays so: start it."
        )
    return "Check host and port in the DSN, that the server runs, and the firewall between."


def _not_permitted_hint(
    text: str, refusal: _Refusal, user: str, quoted_user: str, database: str, sslmode: str
) -> str:
    quoted_database = quote_identifier(database) if database else "…"
    if "pg_hba.conf" in text:
        line = _hba_line(quoted_database, user, _client_address(text), text)
        return f"{line}{_or_with_tls(text, sslmode)}"
    if "not permitted to log in" in text:
        return f"ALTER ROLE {quoted_user} LOGIN;"
    if refusal.function == "InitializeSessionUserId":
        return (
            f"Check the user in the DSN; if there is such a role: ALTER ROLE {quoted_user} LOGIN;"
        )
    if "permission denied for database" in text or refusal.sqlstate == "42501":
        return f"GRANT CONNECT ON DATABASE {quoted_database} TO {quoted_user};"
    return f"ALTER DATABASE {quoted_database} ALLOW_CONNECTIONS true; if it is meant to be decoded"


def _or_with_tls(text: str, sslmode: str) -> str:
    """What else helps where pg_hba.conf may only lack a line for connections without TLS."""
    if sslmode not in {"disable", "allow"} or not re.search(r"no encryption|SSL off", text):
        return ""
    return " Or, if it has a hostssl line for this role, sslmode=require in the DSN."


def hba_hint(user: str, client_address: str | None, told: str = "") -> str:
    """Return the pg_hba.conf line that lets *user* stream from *client_address* as the server sees
    it, which told the refusal in the words *told*.

    ``[local]`` is a Unix-domain socket; None is unknown.
    """
    return _hba_line("replication", user, client_address, told)


def _hba_line(database: str, user: str, client_address: str | None, told: str) -> str:
    name = quote_identifier(user) if user else "…"
    if client_address == LOCAL_CLIENT:
        line = f"local  {database}  {name}  scram-sha-256"
    elif client_address is None:
        line = f"host  {database}  {name}  samenet  scram-sha-256"
    else:
        bits = 128 if ":" in client_address else 32
        line = f"host  {database}  {name}  {client_address}/{bits}  scram-sha-256"
    # The first line that fits counts: below one that rejects it would do nothing.
    where = ", above the line that rejects" if "pg_hba.conf rejects" in told else ""
    return f"Add to pg_hba.conf{where}:  {line}  and run SELECT pg_reload_conf();"


def _client_address(text: str) -> str | None:
    match = re.search(r'host "([^"]+)"', text)
    return match[1] if match else None


def quote_identifier(name: str) -> str:
    """Quote a name for SQL, always."""
    return '"' + name.replace('"', '""') + '"'
