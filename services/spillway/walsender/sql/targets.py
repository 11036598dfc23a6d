"""Where a source's server is, and how it is to be spoken to: what libpq makes of a DSN, for a
connection that libpq does not open.

libpq keeps what it reads to itself, so bytes can't be relayed through it. Its parameters, with its
defaults and the environment's, mean here what they mean there; names are looked up, password files
and certificates read once for each connection, in a worker thread. GSSAPI, SSPI and OAuth are not
spoken: a server that asks for one of them is told apart by its request.

Source: conninfo_add_defaults, passwordFromFile (src/interfaces/libpq/fe-connect.c),
initialize_SSL (fe-secure-openssl.c)
"""

from __future__ import annotations

import random
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from psycopg import pq
from psycopg.conninfo import make_conninfo

from spillway.errors import InvalidDsn
from spillway.pg.conninfo import connection_attempts, parse_dsn, sql_conninfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALPN: Final = "postgresql"
#: where servers put their sockets when a DSN does not say: Debian's place, and PostgreSQL's own
_SOCKET_DIRECTORIES: Final = ("/var/run/postgresql", "/tmp")  # noqa: S108 - PostgreSQL's default
#: host, port, database, user, password
_PASSWORD_FIELDS: Final = 5
_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True)
class Target:
    """One address to try."""

    #: as the DSN names it: for certificates and password files
    host: str
    #: an IP address, or the path of a Unix socket
    address: str
    port: int
    #: libpq's, merged with its defaults
    parameters: Mapping[str, str]
    password: str | None
    #: None: TLS is not spoken
    context: ssl.SSLContext | None
    #: in turn: whether with TLS
    tls_tries: tuple[bool, ...]

    @property
    def is_local(self) -> bool:
        """Whether it is a Unix socket."""
        return self.address.startswith(("/", "@"))

    @property
    def server_name(self) -> str | None:
        """The name that is said, and verified, in TLS."""
        verifies = self.context is not None and self.context.check_hostname
        return self.host if verifies or self.parameters.get("sslsni", "1") == "1" else None

    @property
    def timeout_s(self) -> float | None:
        """How long it may take to connect."""
        seconds = int(self.parameters.get("connect_timeout", "0"))
        return max(2.0, float(seconds)) if seconds > 0 else None


def targets_of(dsn: str) -> list[Target]:
    """Return what to try for a DSN, in order. Blocking.

    Raises:
        InvalidDsn: it can't be parsed, or names what can't be used.
        SourceUnreachable: no host name can be resolved.
    """
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val
    }
    given = {name: value for name, value in parse_dsn(sql_conninfo(dsn)).items() if value}
    attempts = connection_attempts(make_conninfo(**(defaults | given)))
    found = [_target(parse_dsn(attempt)) for attempt in attempts]
    if found[0].parameters.get("load_balance_hosts") == "random":
        random.shuffle(found)
    return found


def _target(parameters: dict[str, str]) -> Target:
    port = int(parameters.get("port", "5432"))
    host = parameters.get("host") or parameters.get("hostaddr") or _socket_directory(port)
    address = parameters.get("hostaddr") or host
    if address.startswith(("/", "@")):
        address = f"{address}/.s.PGSQL.{port}"
    password = parameters.get("password") or _password_from_file(parameters, host, port)
    mode = parameters.get("sslmode", "prefer")
    tries: tuple[bool, ...]
    if address.startswith(("/", "@")) or mode == "disable":
        tries = (False,)
    else:
        tries = {"allow": (False, True), "prefer": (True, False)}.get(mode, (True,))
    try:
        context = _context(parameters, mode) if True in tries else None
    except (OSError, ssl.SSLError, ValueError, KeyError) as error:
        raise InvalidDsn(
            f"the DSN's certificates can't be used: {error}",
            hint="Check sslrootcert, sslcert, sslkey and sslcrl of the source's DSN.",
        ) from None
    return Target(host, address, port, parameters, password, context, tries)


def _socket_directory(port: int) -> str:
    for directory in _SOCKET_DIRECTORIES:
        if Path(directory, f".s.PGSQL.{port}").exists():
            return directory
    return _SOCKET_DIRECTORIES[-1]


def _context(parameters: Mapping[str, str], mode: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([_ALPN])
    context.minimum_version = _VERSIONS[parameters.get("ssl_min_protocol_version", "TLSv1.2")]
    if newest := parameters.get("ssl_max_protocol_version"):
        context.maximum_version = _VERSIONS[newest]
    home = Path.home() / ".postgresql"
    root = parameters.get("sslrootcert", str(home / "root.crt"))
    if root == "system":
        context.load_default_certs()
        mode = "verify-full"
    elif Path(root).exists():
        context.load_verify_locations(root)
        if mode == "require":
            # As libpq has it, for compatibility with itself.
            mode = "verify-ca"
    context.check_hostname = mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if mode.startswith("verify") else ssl.CERT_NONE
    revoked = parameters.get("sslcrl", str(home / "root.crl"))
    if context.verify_mode == ssl.CERT_REQUIRED and Path(revoked).exists():
        context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
    if revoked_directory := parameters.get("sslcrldir"):
        context.load_verify_locations(capath=revoked_directory)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
    certificate = parameters.get("sslcert", str(home / "postgresql.crt"))
    if parameters.get("sslcertmode") != "disable" and Path(certificate).exists():
        key = parameters.get("sslkey", str(home / "postgresql.key"))
        # An empty one, rather than a question at the terminal.
        context.load_cert_chain(certificate, key, parameters.get("sslpassword", ""))
    return context


def _password_from_file(parameters: Mapping[str, str], host: str, port: int) -> str | None:
    path = Path(parameters.get("passfile") or Path.home() / ".pgpass")
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) or mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    if host in _SOCKET_DIRECTORIES:
        host = "localhost"
    user = parameters.get("user", "")
    wanted = (host, str(port), parameters.get("dbname", user), user)
    for line in lines:
        fields = _fields(line)
        if len(fields) == _PASSWORD_FIELDS and all(
            field in ("*", value) for field, value in zip(fields, wanted, strict=False)
        ):
            return fields[-1]
    return None


def _fields(line: str) -> list[str]:
    """Split a line of a password file, in which a backslash takes the meaning off what follows."""
    if line.startswith("#"):
        return []
    fields, escaped = [""], False
    for character in line:
        if character == ":" and not escaped and len(fields) < _PASSWORD_FIELDS:
            fields.append("")
            continue
        escaped = character == "\\" and not escaped
        if not escaped:
            fields[-1] += character
    return fields
