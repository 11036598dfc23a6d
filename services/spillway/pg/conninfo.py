"""Connection strings: what a source's DSN means, what may be shown of it, and how it connects.

A DSN is what libpq takes: ``postgresql://…`` or ``key=value …``. It holds a password more often
than not, so whatever leaves this package in a message, a log line or an API answer passes
:func:`redact_dsn`.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spillway.errors import InvalidDsn, SourceUnreachable

APPLICATION_NAME: Final = "spillway"

_SECRETS: Final = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)
_MASK: Final = "****"

#: What a source's DSN may say. None of it names a file.
_ALLOWED: Final = frozenset(
    [
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "connect_timeout",
        "tcp_user_timeout",
        "client_encoding",
        "options",
        "application_name",
        "fallback_application_name",
        "replication",
        "target_session_attrs",
        "load_balance_hosts",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "sslmode",
        "sslnegotiation",
        "sslcompression",
        "sslcertmode",
        "sslpassword",
        "sslsni",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "min_protocol_version",
        "max_protocol_version",
        "channel_binding",
        "require_auth",
        "requirepeer",
        "gssencmode",
        "krbsrvname",
    ]
)
#: What names a file to read.
_FILES: Final = frozenset({"sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir"})


def parse_dsn(dsn: str) -> dict[str, str]:
    """Parse a DSN into libpq's parameters.

    Raises:
        InvalidDsn: libpq does not understand it. The message holds nothing of the DSN, which may be
            a password.
    """
    try:
        parsed = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise InvalidDsn(
            "the DSN can't be parsed as a PostgreSQL connection string",
            hint="Write postgresql://user:password@host:port/database (special characters "
            "%-encoded) or host=… port=… user=… dbname=….",
        ) from None
    return {key: str(value) for key, value in parsed.items() if value is not None}


def check_dsn(dsn: str, files: Path | None) -> None:
    """Refuse what a source's DSN may not say: whoever may make a source must not thereby read or
    write the service's files.

    libpq takes passwords from files (``passfile``, ``service``), writes a log of keys
    (``sslkeylogfile``), and loads what it is told to load. The environment's own PGPASSFILE,
    PGSERVICE, … are the operator's, and apply.

    Args:
        dsn: a new source's.
        files: the operator's directory; certificates, keys and revocation lists below it may be
            named.

    Raises:
        InvalidDsn: it can't be parsed, or names what is not allowed; the message says which.
    """
    parameters = parse_dsn(dsn)
    unknown = sorted(parameters.keys() - _ALLOWED - _FILES)
    if unknown:
        raise InvalidDsn(
            f"a source's DSN may not have {', '.join(unknown)}",
            hint="It may say where the server is, who connects, and how TLS is spoken. Passwords "
            "belong into it, or into the service's own ~/.pgpass.",
            parameters=unknown,
        )
    for name in sorted(_FILES & parameters.keys()):
        if name == "sslrootcert" and parameters[name] == "system":
            continue
        if files is None or not Path(parameters[name]).resolve().is_relative_to(files.resolve()):
            raise InvalidDsn(
                f"{name} of a source's DSN names a file that is not below SPILLWAY_DSN_FILES",
                hint="Put the file into the directory that SPILLWAY_DSN_FILES names to the "
                "service; for sslrootcert, the word system takes the system's CAs.",
                parameters=[name],
            )


def odd_parameters(dsn: str, files: Path | None) -> list[str]:
    """Name what :func:`check_dsn` would refuse in a DSN that was stored before there was such a
    check.
    """
    try:
        check_dsn(dsn, files)
    except InvalidDsn as error:
        named = error.details.get("parameters", [])
        return list(named) if isinstance(named, list) else []
    return []


def redact_dsn(dsn: str) -> str:
    """Return the DSN as ``key=value`` pairs with every secret masked; ``****`` for one that can't
    be parsed.
    """
    try:
        parameters = parse_dsn(dsn)
    except InvalidDsn:
        return _MASK
    return make_conninfo(
        **{key: _MASK if key in _SECRETS else value for key, value in parameters.items()}
    )


def redact(text: str, dsn: str) -> str:
    """Mask the DSN's secrets wherever they stand in *text*, a message of libpq or of the server for
    one.
    """
    try:
        parameters = parse_dsn(dsn)
    except InvalidDsn:
        return text
    for key in _SECRETS:
        if secret := parameters.get(key):
            text = text.replace(secret, _MASK)
    return text


def sql_conninfo(dsn: str, *, connect_timeout_s: int = 10) -> str:
    """Return the connection string for SQL; the DSN's own settings win."""
    parameters = _defaults(connect_timeout_s) | parse_dsn(dsn)
    parameters.pop("replication", None)  # SQL does not run on such a connection
    return make_conninfo(**parameters)


def replication_conninfo(dsn: str, *, connect_timeout_s: int = 10) -> str:
    """Return the connection string for physical streaming.

    TCP keepalives find a peer that vanished without a word, next to the protocol's own timeout.
    """
    tcp = {
        "keepalives": "1",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
    }
    # dbname takes part in nothing but the look-up of a password in ~/.pgpass, as for pg_receivewal.
    return make_conninfo(
        **{
            **_defaults(connect_timeout_s),
            **tcp,
            **parse_dsn(dsn),
            "replication": "true",
            "dbname": "replication",
        }
    )


def resolve_hosts(conninfo: str) -> str:
    """Return *conninfo* with ``hostaddr`` filled in, so that libpq does no name look-ups.

    libpq's look-ups block inside calls that hold the interpreter's lock: an unresponsive name
    server would stop the whole service, not one connection. Here only this thread waits. A host
    with several addresses becomes as many entries. TLS verification and ~/.pgpass go on using the
    name.

    Raises:
        SourceUnreachable: no host name can be resolved.
    """
    parameters = parse_dsn(conninfo)
    if "host" not in parameters or "hostaddr" in parameters:
        return conninfo
    names = parameters["host"].split(",")
    ports = parameters.get("port", "").split(",")
    if len(ports) not in (1, len(names)):
        return conninfo  # libpq explains it better
    hosts: list[str] = []
    addresses: list[str] = []
    host_ports: list[str] = []
    failures: list[str] = []
    for index, name in enumerate(names):
        port = ports[index] if len(ports) > 1 else ports[0]
        found = [""]
        if name and not name.startswith(("/", "@")):
            try:
                infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                failures.append(f"{name}: {error}")
                continue
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        hosts += [name] * len(found)
        addresses += found
        host_ports += [port] * len(found)
    if not hosts:
        raise SourceUnreachable(
            f"the source's host name can't be resolved: {'; '.join(failures)}",
            hint="Check the DSN's host and the name server.",
        )
    if not any(addresses):
        return conninfo
    resolved = {**parameters, "host": ",".join(hosts), "hostaddr": ",".join(addresses)}
    if any(host_ports):
        resolved["port"] = ",".join(host_ports)
    return make_conninfo(**resolved)


def connection_attempts(conninfo: str) -> list[str]:
    """Return one connection string for each address to try, in order, names resolved.

    libpq's own walk through several hosts shares one non-blocking handshake, where a silent first
    host uses up the time of all.

    Raises:
        SourceUnreachable: no host name can be resolved.
    """
    parameters = parse_dsn(resolve_hosts(conninfo))
    lists = {
        key: parameters[key].split(",") for key in ("host", "hostaddr", "port") if key in parameters
    }
    count = max((len(values) for key, values in lists.items() if key != "port"), default=1)
    if any(len(values) not in (1, count) for values in lists.values()):
        return [conninfo]
    attempts: list[str] = []
    for index in range(count):
        own = {key: values[index if len(values) > 1 else 0] for key, values in lists.items()}
        attempts.append(make_conninfo(**(parameters | own)))
    return attempts


def _defaults(connect_timeout_s: int) -> dict[str, str]:
    return {"connect_timeout": str(connect_timeout_s), "application_name": APPLICATION_NAME}
