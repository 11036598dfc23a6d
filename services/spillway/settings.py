"""Every environment variable that the service and its commands read, with its default and its
meaning.

One table: the commands' options take their defaults from it, and ``docs/reference/settings.md`` is
compared with it by a test. A value that can't be read stops the program with the variable's name,
rather than be passed over. (Spark jobs, failpoints and tests have a few variables of their own,
documented there too.)
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.errors import InvalidRequest
from spillway.tls import ClientTls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_UNITS: Final = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+)\s*([kMGTB]{0,2})", re.IGNORECASE)

_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|min|)")


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        msg = "a size is a number of bytes, or one with kB, MB, GB or TB after it"
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2].upper()]


def _limit(text: str) -> int | None:
    return None if text.strip() == "-1" else _size(text)


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        msg = "a duration is a number of seconds, or one with ms, s or min after it"
        raise ValueError(msg)
    return int(match[1]) * {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0}[match[2]]


def _longer_than_nothing(text: str) -> float:
    duration_s = _duration(text)
    if not duration_s:
        msg = "it is longer than 0"
        raise ValueError(msg)
    return duration_s


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        msg = "a port is a number up to 65535"
        raise ValueError(msg)
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        msg = "it is a number, 0 or more"
        raise ValueError(msg)
    return int(text)


def _auth(text: str) -> bool:
    if text != "off":
        msg = 'the one value that means anything is "off"'
        raise ValueError(msg)
    return True


def _switch(text: str) -> bool:
    if text.lower() not in ("on", "off"):
        msg = "it is on or off"
        raise ValueError(msg)
    return text.lower() == "on"


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        msg = "a level is debug, info, warning or error"
        raise ValueError(msg)
    return text.lower()


@dataclass(frozen=True, slots=True)
class Variable:
    """What is known of one environment variable."""

    name: str
    parse: Callable[[str], Any]
    #: the default as a person would write it
    default: str
    meaning: str


def _variable(
    name: str, parse: Callable[[str], Any], value: Any, meaning: str, default: str | None = None
) -> Any:
    shown = f"`{value}`" if default is None else default
    return field(default=value, metadata={"variable": Variable(name, parse, shown, meaning)})


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment's settings, typed."""

    data_dir: Path = _variable(
        "SPILLWAY_DATA_DIR",
        Path,
        Path(".spillway"),
        "where WAL, transactions and SQLite's file are kept",
    )
    metadata_url: str | None = _variable(
        "SPILLWAY_METADATA_URL",
        str,
        None,
        "where sources, slots and leases are kept: `sqlite:///FILE` or `postgresql://…`, with "
        "libpq's parameters",
        "SQLite in the data directory",
    )
    pg_dump: str | None = _variable(
        "SPILLWAY_PG_DUMP",
        str,
        None,
        "`pg_dump` of sources' majors, with `:` between several, for `create_tables`; `off`: "
        "definitions are taken from the catalog",
        "PATH's and those of Debian's and Red Hat's packages",
    )
    host: str = _variable(
        "SPILLWAY_HOST",
        str,
        "127.0.0.1",
        "the address to listen on; any but loopback needs a token and a certificate",
    )
    http_port: int = _variable("SPILLWAY_HTTP_PORT", _port, 8080, "REST's port; 0 for a free one")
    grpc_port: int = _variable("SPILLWAY_GRPC_PORT", _port, 50051, "gRPC's port; 0 for a free one")
    pg_port: int | None = _variable(
        "SPILLWAY_PG_PORT",
        _port,
        None,
        "the port of PostgreSQL's own replication protocol, for users made with `spillway user`; 0 "
        "for a free one",
        "none: it is not served",
    )
    token: str | None = _variable(
        "SPILLWAY_TOKEN",
        str,
        None,
        "the bearer token that REST and gRPC ask for; needed on any address but loopback; commands "
        "send it",
        "none",
    )
    auth_off: bool = _variable(
        "SPILLWAY_AUTH",
        _auth,
        value=False,
        meaning="`off` asks for no token although one is set; refused on any address but loopback",
        default="",
    )
    tls_off: bool = _variable(
        "SPILLWAY_TLS",
        _auth,
        value=False,
        meaning="`off` listens on any address without a certificate, for a proxy in front that has "
        "one: tokens and data then cross the network as clear text up to there",
        default="",
    )
    tls_cert: Path | None = _variable(
        "SPILLWAY_TLS_CERT",
        Path,
        None,
        "the service's certificate for REST and gRPC with its chain after it, a PEM file; loaded "
        "anew when it changes; needed on any address but loopback",
        "none",
    )
    tls_key: Path | None = _variable(
        "SPILLWAY_TLS_KEY",
        Path,
        None,
        "the certificate's key, a PEM file without a password",
        "none",
    )
    tls_client_ca: Path | None = _variable(
        "SPILLWAY_TLS_CLIENT_CA",
        Path,
        None,
        "the CA of clients' certificates, a PEM file; with it every client must show one",
        "none",
    )
    client_timeout: float = _variable(
        "SPILLWAY_CLIENT_TIMEOUT",
        _duration,
        60.0,
        "a client over gRPC or PostgreSQL's protocol, or a subscription's program, that does not "
        "answer the service for so long, because it is stopped or gone, loses its connection and "
        "its slot; `0`: never. So does a service that says nothing to a subscription's program, "
        "which leaves the target then. PostgreSQL's `wal_sender_timeout` and "
        "`wal_receiver_timeout`",
        "`60s`",
    )
    connections_per_address: int | None = _variable(
        "SPILLWAY_CONNECTIONS_PER_ADDRESS",
        _count,
        None,
        "how many connections one address (of IPv6: one /64) may have to REST, as many to gRPC, "
        "and as many to PostgreSQL's protocol; `0`: as many as there may be, for a proxy in front, "
        "behind which all clients are one address",
        "a quarter of all there may be, loopback excepted",
    )
    sql_connections: int = _variable(
        "SPILLWAY_SQL_CONNECTIONS",
        _count,
        50,
        "how many connections to one source the clients of PostgreSQL's protocol may have for SQL, "
        "all together; the source's `max_connections` must have room for them",
        "`50`",
    )
    stream_bytes: int | None = _variable(
        "SPILLWAY_STREAM_BYTES",
        _size,
        None,
        "a transaction in progress is streamed in parts of about this many bytes of its changes, "
        "to slots that want that; 0: after every change",
        "that of `SPILLWAY_LOGICAL_DECODING_WORK_MEM`",
    )
    logical_decoding_work_mem: int = _variable(
        "SPILLWAY_LOGICAL_DECODING_WORK_MEM",
        _size,
        64 << 20,
        "memory for transactions in progress, per database; above it the largest goes to disk",
        "`64MB`",
    )
    audit: bool = _variable(
        "SPILLWAY_AUDIT",
        _switch,
        value=False,
        meaning="`on` checks the catalog mirror against every NEW_CID record of the WAL; a "
        "mismatch stops decoding with `catalog_audit_failed`",
        default="`off`",
    )
    max_slot_retained_bytes: int | None = _variable(
        "SPILLWAY_MAX_SLOT_RETAINED_BYTES",
        _limit,
        None,
        "a slot that holds back more of the transaction log than this is invalidated; `-1`: never",
        "`-1`",
    )
    log_keep_bytes: int = _variable(
        "SPILLWAY_LOG_KEEP_BYTES",
        _size,
        256 << 20,
        "how much of the transaction log is kept although no slot needs it, to rewind to",
        "`256MB`",
    )
    wal_store_max_bytes: int | None = _variable(
        "SPILLWAY_WAL_STORE_MAX_BYTES",
        _limit,
        None,
        "a source's stored WAL may take so much; then receiving pauses, and the primary "
        "keeps the rest; `-1`: no bound. At least two segments are allowed. A WAL record that is "
        "longer than that, of a large row or logical message, stops receiving: `wal_store_full` "
        "says how much it needs",
        "`-1`",
    )
    wal_archives: Path | None = _variable(
        "SPILLWAY_WAL_ARCHIVES",
        Path,
        None,
        "a directory with a directory for each source, by its name, of archived WAL segments: what "
        "the primary has removed is taken from there",
        "none",
    )
    snapshot_hold: float = _variable(
        "SPILLWAY_SNAPSHOT_HOLD",
        _longer_than_nothing,
        900.0,
        "a snapshot of a source that was taken for a slot is held for so long at most, for its "
        "consumer to copy the tables by; meanwhile VACUUM on the source keeps the rows that it "
        "sees",
        "`15min`",
    )
    dsn_files: Path | None = _variable(
        "SPILLWAY_DSN_FILES",
        Path,
        None,
        "a directory; a source's DSN may name files below it, and no others, as sslrootcert, "
        "sslcert, sslkey and sslcrl",
        "none",
    )
    log_level: str = _variable(
        "SPILLWAY_LOG_LEVEL",
        _level,
        "info",
        "what the service logs: `debug`, `info`, `warning`, `error`",
    )
    url: str = _variable(
        "SPILLWAY_URL",
        str,
        "http://127.0.0.1:8080",
        "where REST is, for commands; `https://…` of a service with a certificate",
    )
    grpc: str = _variable(
        "SPILLWAY_GRPC",
        str,
        "127.0.0.1:50051",
        "where gRPC is, as host:port, for commands and Spark; `https://host:port` of a service "
        "with a certificate",
    )

    context: str | None = _variable(
        "SPILLWAY_CONTEXT",
        str,
        None,
        "for commands: the service to talk to, by the name that `spillway context` gave it; "
        "`SPILLWAY_URL` and `SPILLWAY_GRPC` count more, `--context` counts most",
        "that of `spillway context use`",
    )
    tls_ca: Path | None = _variable(
        "SPILLWAY_TLS_CA",
        Path,
        None,
        "for commands and Spark: the CAs that a service's certificate is verified with, a PEM file",
        "the system's",
    )
    tls_client_cert: Path | None = _variable(
        "SPILLWAY_TLS_CLIENT_CERT",
        Path,
        None,
        "for commands and Spark: the certificate to show to a service that asks for one, a PEM "
        "file",
        "none",
    )
    tls_client_key: Path | None = _variable(
        "SPILLWAY_TLS_CLIENT_KEY", Path, None, "the key of that certificate, a PEM file", "none"
    )
    tls_server_name: str | None = _variable(
        "SPILLWAY_TLS_SERVER_NAME",
        str,
        None,
        "for commands and Spark: the name that the service's certificate must be for",
        "the host that is connected to",
    )

    @property
    def client_tls(self) -> ClientTls:
        """What a client verifies the service with."""
        return ClientTls(
            self.tls_ca, self.tls_client_cert, self.tls_client_key, self.tls_server_name
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the variables that are set; an empty one counts as not set.

        Raises:
            InvalidRequest: a value can't be read.
        """
        values: dict[str, Any] = {}
        for known in dataclasses.fields(cls):
            variable: Variable = known.metadata["variable"]
            text = environment.get(variable.name, "")
            if not text:
                continue
            try:
                values[known.name] = variable.parse(text)
            except ValueError as error:
                # The value is not repeated: of some variables it is a secret.
                raise InvalidRequest(
                    f"{variable.name} can't be read: {error}",
                    hint=f"It means: {variable.meaning}.",
                    variable=variable.name,
                ) from None
        return cls(**values)

    @classmethod
    def variables(cls) -> list[Variable]:
        """Give every variable, in the order of the documentation."""
        return [known.metadata["variable"] for known in dataclasses.fields(cls)]
