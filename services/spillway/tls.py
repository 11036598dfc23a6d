"""TLS: the service's certificate, loaded anew when its files change, and what clients verify it
with.

The service reads a certificate (with the chain up to its CA), its key and, if clients must show
certificates too, the CA of those. Whoever renews certificates (certbot, cert-manager) writes the
files one after the other, so a look may find a certificate that the key doesn't fit, or half a
file. :class:`ServerCertificate` takes files over only when all of them were read twice the same,
fit together, and are not worse than what is loaded (a certificate that has ended never replaces one
that is good); until then what was loaded before goes on. Connections that are open keep what they
began with.

What is wrong is told by :meth:`ServerCertificate.troubles`, afresh at each question: it is a sign,
and must go when its cause does.

A client verifies against the CA that it is told (``SPILLWAY_TLS_CA``), else against the system's.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import logging
import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest, TlsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

#: Digests by the OID of a signature's algorithm; MD5 and SHA-1 count as SHA-256 here. RSA-PSS,
#: which has it in its parameters, and Ed25519, which has none, are not among them.
_SIGNATURE_DIGESTS: Final = {
    bytes.fromhex("2a864886f70d010104"): "sha256",  # md5WithRSAEncryption
    bytes.fromhex("2a864886f70d010105"): "sha256",  # sha1WithRSAEncryption
    bytes.fromhex("2a864886f70d01010b"): "sha256",
    bytes.fromhex("2a864886f70d01010c"): "sha384",
    bytes.fromhex("2a864886f70d01010d"): "sha512",
    bytes.fromhex("2a8648ce3d0401"): "sha256",  # ecdsa-with-SHA1
    bytes.fromhex("2a8648ce3d040302"): "sha256",
    bytes.fromhex("2a8648ce3d040303"): "sha384",
    bytes.fromhex("2a8648ce3d040304"): "sha512",
}

#: A certificate that ends sooner should have been renewed by now: certbot, cert-manager and step-ca
#: do so when a third of its time is left.
_EXPIRES_SOON_S: Final = 14 * 86_400
#: Of one that is made for days or hours, it is this share of its time.
_EXPIRES_SOON_SHARE: Final = 5
_PEM: Final = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END ", re.DOTALL
)
_UTC_TIME: Final = 0x17


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the service's certificate is; PEM files."""

    certificate: Path
    key: Path
    #: the CA of the certificates that clients must show; None: they need none
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong with the certificate, or with the files that should replace it."""

    #: clients refuse the certificate; otherwise they soon may, or some do
    is_refused: bool
    title: str
    message: str
    hint: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class _Validity:
    """From when to when a certificate is valid, in Unix time."""

    begins_s: float
    ends_s: float

    def holds(self, now_s: float) -> bool:
        return self.begins_s <= now_s < self.ends_s

    def ends_soon(self, now_s: float) -> bool:
        lifetime_s = self.ends_s - self.begins_s
        return self.ends_s - now_s < min(_EXPIRES_SOON_S, lifetime_s / _EXPIRES_SOON_SHARE)


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    pg_context: ssl.SSLContext
    #: see :attr:`ServerCertificate.pg`
    end_point: bytes | None
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    #: the certificate's own; None where it can't be read
    validity: _Validity | None
    #: what its clients or it lean on, by where it is
    others: tuple[tuple[str, _Validity], ...]

    def holds(self, now_s: float) -> bool:
        return self.validity is None or self.validity.holds(now_s)


class ServerCertificate:
    """The certificate that new connections are given."""

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        """Load the files; *clock* gives Unix time.

        Raises:
            InvalidRequest: one of them can't be read, is none, or they don't fit together.
        """
        self._files = files
        self._clock = clock
        self._loaded = _load(files)
        #: when what is in use was loaded, in Unix time
        self.loaded_at_s = clock()
        self._failure: InvalidRequest | None = None
        self._failed_at: datetime | None = None
        self._said: set[str] = set()
        #: counts what was loaded, so that users see a change
        self.generation = 1
        self._say()

    @property
    def context(self) -> ssl.SSLContext:
        """What a new connection of HTTP begins with."""
        return self._loaded.context

    @property
    def pg(self) -> tuple[ssl.SSLContext, bytes | None]:
        """What a new connection of PostgreSQL's protocol begins with, and its certificate's hash
        for tls-server-end-point.

        None for the hash: the certificate's signature has no digest that RFC 5929 knows, and
        channels can't be bound to it.
        """
        return self._loaded.pg_context, self._loaded.end_point

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
        """When the certificate ends or has ended, in Unix time; None where that can't be said."""
        return None if self._loaded.validity is None else self._loaded.validity.ends_s

    @property
    def is_reload_failed(self) -> bool:
        """Whether the files as they are now were not taken over."""
        return self._failure is not None

    def troubles(self) -> list[Trouble]:
        """Say what is wrong now, worst first."""
        found = [*self._of_certificate(), *self._of_reload(), *self._of_others()]
        return sorted(found, key=lambda trouble: not trouble.is_refused)

    def refresh(self) -> None:
        """Take over what the files hold if they changed and fit together. It reads files: not for
        an event loop.
        """
        try:
            loaded = self._renewed()
        except InvalidRequest as error:
            if self._failure is None:
                self._failed_at = self._now()
            self._failure = error
        else:
            self._failure = self._failed_at = None
            if loaded is not None:
                self._loaded = loaded
                self.loaded_at_s = self._clock()
                self.generation += 1
                log.info("TLS: %s was loaded anew", self._files.certificate)
        self._say()

    def _renewed(self) -> _Loaded | None:
        """Load the files; None where they hold what is in use.

        Raises:
            InvalidRequest: they can't be used, or what is in use is better.
        """
        used = self._loaded
        if _read(self._files) == (used.certificate, used.key, used.client_ca):
            return None
        loaded, now_s = _load(self._files), self._clock()
        if loaded.validity is None or loaded.holds(now_s) or not used.holds(now_s):
            return loaded
        validity = loaded.validity
        raise InvalidRequest(
            f"the certificate in {self._files.certificate} has expired ({_date(validity.ends_s)})"
            if validity.ends_s <= now_s
            else (
                f"the certificate in {self._files.certificate} is not valid before "
                f"{_date(validity.begins_s)}"
            ),
            hint=self._remedy(),
        )

    def _of_certificate(self) -> Iterator[Trouble]:
        validity, now_s = self._loaded.validity, self._clock()
        path = self._files.certificate
        if validity is None:
            return
        if validity.ends_s <= now_s:
            yield Trouble(
                True,
                "The service's certificate has expired",
                f"the certificate that was loaded from {path} has expired "
                f"({_date(validity.ends_s)}): clients refuse it",
                self._remedy(),
                datetime.fromtimestamp(validity.ends_s, UTC),
            )
        elif now_s < validity.begins_s:
            yield Trouble(
                True,
                "The service's certificate is not valid yet",
                f"the certificate that was loaded from {path} is not valid before "
                f"{_date(validity.begins_s)}: clients refuse it",
                f"Set this machine's clock, if it is wrong. {self._remedy()}",
                None,
            )
        elif validity.ends_soon(now_s):
            yield Trouble(
                False,
                "The service's certificate expires soon",
                f"the certificate that was loaded from {path} expires at {_date(validity.ends_s)}",
                self._remedy(),
                None,
            )

    def _of_reload(self) -> Iterator[Trouble]:
        failure = self._failure
        if failure is not None:
            yield Trouble(
                False,
                "New TLS files can't be used",
                f"what was loaded before stays in use: {failure.message}",
                failure.hint,
                self._failed_at,
            )

    def _of_others(self) -> Iterator[Trouble]:
        now_s = self._clock()
        for where, validity in self._loaded.others:
            if validity.holds(now_s) and not validity.ends_soon(now_s):
                continue
            ended = not validity.holds(now_s)
            yield Trouble(
                False,
                f"A CA's certificate {'is not valid' if ended else 'expires soon'}",
                (
                    f"{where} is valid from {_date(validity.begins_s)} to "
                    f"{_date(validity.ends_s)}; who leans on it is refused"
                )
                + ("" if ended else " then"),
                "Put its renewed one in its place, or take it out of the file if nothing needs it; "
                "the file is read again by itself.",
                datetime.fromtimestamp(validity.ends_s, UTC) if validity.ends_s <= now_s else None,
            )

    def _remedy(self) -> str:
        return (
            f"Put a renewed certificate in {self._files.certificate} and its key in "
            f"{self._files.key}: they are taken over by themselves within seconds."
        )

    def _say(self) -> None:
        """Log what is wrong, once as long as it is."""
        found = self.troubles()
        for trouble in found:
            if trouble.message not in self._said:
                level = logging.ERROR if trouble.is_refused else logging.WARNING
                log.log(level, "TLS: %s", trouble.message)
        self._said = {trouble.message for trouble in found}

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


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
        """Give the CAs, the key and the certificate as gRPC takes them; None for gRPC's own CAs, or
        for none.

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
    """Make the error of a client whose handshake with the service at *address* failed for *reason*,
    a TLS library's words.
    """
    said = reason.lower()
    if "expired" in said:
        hint = "The service's certificate must be renewed; it takes the new files over by itself."
    elif "hostname" in said or "ip address mismatch" in said or "peer name" in said:
        hint = (
            "Connect by a name that the certificate is for, or say with SPILLWAY_TLS_SERVER_NAME "
            "which one that is."
        )
    elif "certificate required" in said or "certificate_required" in said:
        hint = (
            "The service asks for a client's certificate: set SPILLWAY_TLS_CLIENT_CERT and "
            "SPILLWAY_TLS_CLIENT_KEY."
        )
    elif "alert" in said and ("unknown ca" in said or "unknown_ca" in said):
        hint = "The service does not know the CA of the certificate in SPILLWAY_TLS_CLIENT_CERT."
    elif "wrong version number" in said or "wrong_version_number" in said:
        hint = (
            "What listens there speaks no TLS: write http:// (for gRPC host:port alone), or give "
            "the service a certificate."
        )
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
    context, pg_context = (_server_context(files, name) for name in ("http/1.1", "postgresql"))
    # OpenSSL reads files of its own, and gRPC is given bytes: they must be the same.
    if _read(files) != read:
        raise InvalidRequest(
            f"{files.certificate} and what belongs to it are being written",
            hint="They are read again soon.",
        )
    for one in (context, pg_context) if files.client_ca is not None else ():
        with _explained("SPILLWAY_TLS_CLIENT_CA", files.client_ca):
            one.load_verify_locations(files.client_ca)
        one.verify_mode = ssl.CERT_REQUIRED
    validity, *chain = _validities(certificate) or [None]
    others = [
        *((f"certificate {n} of {files.certificate}", one) for n, one in enumerate(chain, 2)),
        *(
            (f"certificate {n} of {files.client_ca}", one)
            for n, one in enumerate(_validities(client_ca or b""), 1)
        ),
    ]
    known = tuple((where, one) for where, one in others if one is not None)
    end_point = _end_point(certificate)
    return _Loaded(context, pg_context, end_point, certificate, key, client_ca, validity, known)


def _server_context(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    with _explained("SPILLWAY_TLS_CERT and SPILLWAY_TLS_KEY", files.certificate):
        context.load_cert_chain(files.certificate, files.key, _no_password)
    return context


def _validities(pem: bytes) -> list[_Validity | None]:
    """Read when each certificate of a file is valid; None for one that can't be read.

    The standard library says it of a peer's certificate alone, and only of one that it trusts.
    """
    found: list[_Validity | None] = []
    for text in _PEM.findall(pem):
        try:
            found.append(_validity(binascii.a2b_base64(text)))
        except (ValueError, IndexError):
            found.append(None)
    return found


def _validity(der: bytes) -> _Validity:
    """Find the Validity of a Certificate, RFC 5280, 4.1: behind version (if it is there), serial
    number, algorithm and issuer.
    """
    to_be_signed = _elements(_elements(der)[0][1])[0][1]
    fields = _elements(to_be_signed)
    has_version = fields[0][0] == 0xA0
    begins, ends = _elements(fields[4 if has_version else 3][1])
    return _Validity(_seconds(*begins), _seconds(*ends))


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Cut DER into its elements: tag and content of each."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size]), at + size
        found.append((tag, der[at : at + length]))
        at += length
    return found


def _end_point(pem: bytes) -> bytes | None:
    """Hash a file's first certificate, see :func:`end_point_of`."""
    match = _PEM.search(pem)
    try:
        return None if match is None else end_point_of(binascii.a2b_base64(match[1]))
    except binascii.Error:
        return None


def end_point_of(der: bytes) -> bytes | None:
    """Hash a certificate with the digest of its signature, for tls-server-end-point (RFC 5929,
    4.1); None where that is not known.
    """
    try:
        # Certificate: what is signed, the signature's algorithm, the signature.
        algorithm = _elements(_elements(_elements(der)[0][1])[1][1])[0][1]
    except (ValueError, IndexError):
        return None
    digest = _SIGNATURE_DIGESTS.get(algorithm)
    return None if digest is None else hashlib.new(digest, der).digest()


def _seconds(tag: int, content: bytes) -> float:
    """Read a UTCTime or a GeneralizedTime, which RFC 5280 has in UTC and with seconds."""
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year: 50 and above are of the last century.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _date(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
            hint="It must be PEM: the certificate first and its chain after it; the key must be "
            "the certificate's own.",
        ) from None
    except OSError as error:
        raise InvalidRequest(
            f"{setting}: {path} can't be read: {error.strerror}",
            hint="Name a PEM file that this user may read.",
        ) from None
    except ValueError:
        raise InvalidRequest(
            f"{setting}: the key of {path} is encrypted",
            hint="Write it without a password (openssl pkey -in KEY -out KEY2), readable by its "
            "owner alone.",
        ) from None
