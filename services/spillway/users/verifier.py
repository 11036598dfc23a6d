"""What is kept of a password: SCRAM-SHA-256's verifier, in the form of ``pg_authid.rolpassword``.

``SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>``, so that one can be taken over from
PostgreSQL as it is. It tells nobody the password, and lets nobody in who has only read it.

Source: RFC 5802 and 7677; src/common/scram-common.c, src/common/saslprep.c
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final, Self

from spillway.errors import InvalidRequest

#: PostgreSQL's default, scram_iterations.
ITERATIONS: Final = 4096
#: What a client is made to compute at each login, and we once for a password: a bound on what a
#: verifier may ask.
_ITERATIONS_MAX: Final = 10_000_000
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_SALT_BYTES_MAX: Final = 1024
_FORM: Final = re.compile(
    r"SCRAM-SHA-256\$([0-9]{1,8}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
#: RFC 4013, 2.3 and 2.5
_PROHIBITED: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9, stringprep.in_table_a1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verifier:
    """A user's, parsed."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of_password(cls, password: str, iterations: int = ITERATIONS) -> Self:
        """Make one with a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac("sha256", normalised(password), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), server_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's form.

        Raises:
            InvalidRequest: it is none. What came is not repeated.
        """
        match = _FORM.fullmatch(text)
        try:
            if match is not None:
                salt, stored_key, server_key = (
                    base64.b64decode(part, validate=True) for part in match.groups()[1:]
                )
                iterations = int(match[1])
                keys_fit = len(stored_key) == len(server_key) == _KEY_BYTES
                if (
                    keys_fit
                    and 1 <= len(salt) <= _SALT_BYTES_MAX
                    and 1 <= iterations <= _ITERATIONS_MAX
                ):
                    return cls(iterations, salt, stored_key, server_key)
        except binascii.Error:
            pass
        raise InvalidRequest(
            "the verifier is none of SCRAM-SHA-256",
            hint="Give what pg_authid.rolpassword has (SCRAM-SHA-256$4096:…), or a password.",
        )

    def __str__(self) -> str:
        """Write PostgreSQL's form."""
        salt, stored, server = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"


def normalised(password: str) -> bytes:
    """Return *password* as SCRAM computes with it: by SASLprep, or as it is where that refuses it,
    as PostgreSQL does.
    """
    as_is = password.encode(errors="surrogateescape")
    if password.isascii():
        return as_is
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared or any(refuses(c) for c in prepared for refuses in _PROHIBITED):
        return as_is
    right = [stringprep.in_table_d1(c) for c in prepared]
    if any(right) and (
        any(stringprep.in_table_d2(c) for c in prepared) or not (right[0] and right[-1])
    ):
        return as_is
    return prepared.encode()
