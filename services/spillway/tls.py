"""TLS: the service's certificate, loaded anew when its files change, and what clients verify it with.

The service reads a certificate (with the chain up to its CA), its key and, if clients must show certificates too, the CA of
those. Whoever renews certificates (certbot, cert-manager) writes the files one after the other, so a look may find a
certificate that the key doesn't fit, or half a file. :class:`ServerCertificate` takes files over only when all of them
were read twice the same and fit together; until then what was loaded before goes on, and ``failure`` says why.
Connections that are open keep what they began with.

A client verifies against the CA that it is told (``SPILLWAY_TLS_CA``), else against the system's.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest, TlsFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
_HAS_EXPIRED: Final = 10
#: A certificate that ends sooner should have been renewed by now: certbot does so 30 days before.
_EXPIRES_SOON_S: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the service's certificate is; PEM files."""

    certificate: Path
    key: Path
    #: the CA of the certificates that clients must show; None: they need none
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    #: Unix time; None where it can't be said, and 0 for a certificate that has ended already
    expires_at_s: float | None


class ServerCertificate:
    """The certificate that new connections are given."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files.

        Raises:
            InvalidRequest: one of them can't be read, is none, or they don't fit together.
        """
        self._files = files
        self._loaded = _load(files)
        #: why the files as they are now were not taken over; empty when they are what is used
        self.failure = ""
        #: counts what was loaded, so that users see a change
        self.generation = 1
        self._note_expiry()

    @property
    def context(self) -> ssl.SSLContext:
        """What a new connection of HTTP begins with."""
        return self._loaded.context

    @property
    def pem(self) -> tuple[bytes, bytes, bytes | None]:
        """The key, the certificate with its chain, and the clients' CA."""
        return self._loaded.key, self._loaded.certificate, self._loaded.client_ca

    @property
    def asks_clients(self) -> bool:
        """Whether clients must show a certificate."""
        return self._files.client_ca is not None

    @property
    def expires_at_s(self) -> float | None:
        """When the certificate ends, in Unix time; None where that can't be said."""
        return self._loaded.expires_at_s

    def refresh(self) -> None:
        """Take over what the files hold if they changed and fit together. It reads files: not for an event loop."""
        try:
            if _read(self._files) == (
                self._loaded.certificate,
                self._loaded.key,
                self._loaded.client_ca,
            ):
                self.failure = ""
                return
            loaded = _load(self._files)
        except InvalidRequest as error:
            if error.message != self.failure:
                log.error("TLS: what was loaded before stays in use: %s", error.message)  # noqa: TRY400
            self.failure = error.message
            return
        self._loaded = loaded
        self.failure = ""
        self.generation += 1
        log.info("TLS: %s was loaded anew", self._files.certificate)
        self._note_expiry()

    def _note_expiry(self) -> None:
        expires_at_s = self._loaded.expires_at_s
        if expires_at_s is None:
            return
        if expires_at_s <= time.time():
            log.error("TLS: %s has expired; clients will refuse it", self._files.certificate)
        elif expires_at_s - time.time() < _EXPIRES_SOON_S:
            log.warning("TLS: %s expires within 7 days", self._files.certificate)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client verifies the service with, and what it shows of itself; PEM files."""

    #: CAs that are trusted; None: the system's
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    #: the name that the certificate must be for, where it is not the one that was connected to
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Make what Python's own TLS takes.

        Raises:
            InvalidRequest: a file can't be read, or is none.
        """
        self._check()
        with _explained("SPILLWAY_TLS_CA", self.ca):
            context = ssl.create_default_context(cafile=self.ca)
            # A certificate that is trusted by name needs no CA above it; gRPC's TLS sees it so too.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.certificate is not None:
            with _explained("SPILLWAY_TLS_CLIENT_CERT", self.certificate):
                context.load_cert_chain(self.certificate, self.key, _no_password)
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Give the CAs, the key and the certificate as gRPC takes them; None for gRPC's own CAs, or for none.

        Raises:
            InvalidRequest: a file can't be read, or is none.
        """
        context = self.context()
        if self.ca is not None:
            roots = self.ca.read_bytes()
        else:
            found = context.get_ca_certs(binary_form=True)
            roots = "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode()
        key = None if self.key is None else self.key.read_bytes()
        certificate = None if self.certificate is None else self.certificate.read_bytes()
        return roots or None, key, certificate

    def _check(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest(
                "a client's certificate needs its key, and a key its certificate",
                hint="Set both SPILLWAY_TLS_CLIENT_CERT and SPILLWAY_TLS_CLIENT_KEY, or neither.",
            )


def tls_failed(address: str, reason: str) -> TlsFailed:
    """Make the error of a client whose handshake with the service at *address* failed for *reason*, a TLS library's words."""
    said = reason.lower()
    if "expired" in said:
        hint = "The service's certificate must be renewed; it takes the new files over by itself."
    elif "hostname" in said or "ip address mismatch" in said or "peer name" in said:
        hint = (
            "Connect by a name that the certificate is for, or say with SPILLWAY_TLS_SERVER_NAME "
            "which one that is."
        )
    elif "certificate required" in said or "certificate_required" in said:
        hint = "The service asks for a client's certificate: set SPILLWAY_TLS_CLIENT_CERT and SPILLWAY_TLS_CLIENT_KEY."
    elif "alert" in said and ("unknown ca" in said or "unknown_ca" in said):
        hint = "The service does not know the CA of the certificate in SPILLWAY_TLS_CLIENT_CERT."
    elif "wrong version number" in said or "wrong_version_number" in said:
        hint = "What listens there speaks no TLS: write http:// (for gRPC host:port alone), or give the service a certificate."
    else:
        hint = "Set SPILLWAY_TLS_CA to the CA that signed the service's certificate."
    return TlsFailed(
        f"the service at {address} is not trusted, or does not trust this client: {reason}",
        hint=hint,
        address=address,
    )


def _read(files: TlsFiles) -> tuple[bytes, bytes, bytes | None]:
    with _explained("SPILLWAY_TLS_CERT", files.certificate):
        certificate = files.certificate.read_bytes()
    with _explained("SPILLWAY_TLS_KEY", files.key):
        key = files.key.read_bytes()
    if files.client_ca is None:
        return certificate, key, None
    with _explained("SPILLWAY_TLS_CLIENT_CA", files.client_ca):
        return certificate, key, files.client_ca.read_bytes()


def _load(files: TlsFiles) -> _Loaded:
    certificate, key, client_ca = read = _read(files)
    context = _server_context(files)
    # OpenSSL reads files of its own, and gRPC is given bytes: they must be the same.
    if _read(files) != read:
        raise InvalidRequest(
            f"{files.certificate} and what belongs to it are being written",
            hint="They are read again soon.",
        )
    if files.client_ca is not None:
        with _explained("SPILLWAY_TLS_CLIENT_CA", files.client_ca):
            context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return _Loaded(context, certificate, key, client_ca, _expiry(files))


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    with _explained("SPILLWAY_TLS_CERT and SPILLWAY_TLS_KEY", files.certificate):
        context.load_cert_chain(files.certificate, files.key, _no_password)
    return context


def _expiry(files: TlsFiles) -> float | None:
    """Say when a certificate ends: by a handshake in memory, the one way that the standard library has."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(files.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = _server_context(files).wrap_bio(to_server, to_client, server_side=True)
    try:
        # Three flights: client, server, client.
        for end in (client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        ends = (client.getpeercert() or {}).get("notAfter")
    except ssl.SSLCertVerificationError as error:
        return 0.0 if error.verify_code == _HAS_EXPIRED else None
    except (ssl.SSLError, ValueError):
        return None
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


def _no_password() -> str:
    # Otherwise OpenSSL would ask whoever sits at the terminal, and wait.
    msg = "the key is encrypted"
    raise ValueError(msg)


@contextlib.contextmanager
def _explained(setting: str, path: Path | None) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise InvalidRequest(
            f"{setting}: {path} can't be used: {reason}",
            hint="It must be PEM: the certificate first and its chain after it; the key must be the certificate's own.",
        ) from None
    except OSError as error:
        raise InvalidRequest(
            f"{setting}: {path} can't be read: {error.strerror}",
            hint="Name a PEM file that this user may read.",
        ) from None
    except ValueError:
        raise InvalidRequest(
            f"{setting}: the key of {path} is encrypted",
            hint="Write it without a password (openssl pkey -in KEY -out KEY2), readable by its owner alone.",
        ) from None
