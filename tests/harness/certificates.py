"""Certificates for tests: CAs and what they sign, made in memory."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate's file and its key's."""

    certificate: Path
    key: Path


class Authority:
    """A CA; its certificate is in ``file``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = dt.datetime.now(dt.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name).issuer_name(self._name)
            .public_key(self._key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY).not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        self.file = directory / f"{name}.ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @classmethod
    def make(cls, directory: Path, name: str = "ca") -> Self:
        return cls(directory, name)

    def sign(
        self,
        name: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        *,
        days: int = 30,
        begins_days: int = -5,
    ) -> Pair:
        """Make NAME.pem and NAME.key; negative *days* make one that has expired, *begins_days* says
        from when it is valid.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        alternatives = [_general_name(host) for host in hosts]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name)).issuer_name(self._name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_days * _DAY).not_valid_after(now + days * _DAY)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
