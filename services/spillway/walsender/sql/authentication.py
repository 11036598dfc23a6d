"""The client's side of a login: what a server asks for, and the answers.

A state machine without I/O: it is given each Authentication message, and gives what to send. A
password goes to a server as clear text only where it asks for that, as libpq sends it; what
``require_auth`` and ``channel_binding`` of the DSN forbid is refused before anything is sent.

Source: pg_fe_sendauth, pg_SASL_init (src/interfaces/libpq/fe-auth.c), fe-auth-scram.c; RFC 5802,
7677, 5929
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

from spillway.users.verifier import normalised
from spillway.walsender.messages import message

if TYPE_CHECKING:
    from collections.abc import Mapping

_OK: Final = 0
_CLEAR_TEXT: Final = 3
_MD5: Final = 5
_SASL: Final = 10
_SASL_CONTINUE: Final = 11
_SASL_FINAL: Final = 12
_NAMES: Final = {_CLEAR_TEXT: "password", _MD5: "md5", 7: "gss", 9: "sspi", _SASL: "scram-sha-256"}
_PLAIN: Final = "SCRAM-SHA-256"
_PLUS: Final = "SCRAM-SHA-256-PLUS"
_NONCE_BYTES: Final = 18
#: a bound on what a server may make us compute
_ITERATIONS_MAX: Final = 10_000_000
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,8})(?:,.*)?"
)


class LoginRefused(Exception):
    """We can't, or won't, do what the server asks for; nothing of the password is in the
    message.
    """


class Login:
    """One login.

    Args:
        parameters: libpq's: ``user``, ``require_auth``, ``channel_binding``.
        password: None: there is none.
        end_point: the hash of the server's certificate; None: no TLS, or no such hash.
        is_tls: whether the connection is encrypted.
    """

    def __init__(
        self,
        parameters: Mapping[str, str],
        password: str | None,
        end_point: bytes | None,
        *,
        is_tls: bool,
    ) -> None:
        self._user = parameters.get("user", "")
        self._password = password
        self._end_point = end_point
        self._is_tls = is_tls
        self._binding = parameters.get("channel_binding", "prefer")
        self._required = [
            name.strip() for name in parameters.get("require_auth", "").split(",") if name.strip()
        ]
        #: a password was sent, in whatever form
        self.used_password = False
        self._is_bound = False
        self._was_asked = False
        self._exchange: _Scram | None = None
        self._is_verified = False

    def answer(self, body: bytes) -> bytes | None:
        """Take an Authentication message; return what to send, None: nothing.

        Raises:
            LoginRefused: it can't be answered, or may not be.
        """
        code, data = int.from_bytes(body[:4], "big"), body[4:]
        if code == _OK:
            self._check_end()
            return None
        if code not in (_SASL_CONTINUE, _SASL_FINAL):
            self._was_asked = True
            self._check_method(_NAMES.get(code, ""))
        match code:
            case 3:
                return self._password_message(self._secret().encode(errors="surrogateescape"))
            case 5:
                return self._password_message(self._md5(data[:4]))
            case 10:
                return self._begin(data)
            case 11 if self._exchange is not None:
                return message(b"p", self._exchange.final(data))
            case 12 if self._exchange is not None:
                self._exchange.verify(data)
                self._is_verified = True
                return None
        raise LoginRefused(
            f"authentication method {_NAMES.get(code, code)} of the server is not supported for "
            "SQL through this service"
        )

    @property
    def is_done(self) -> bool:
        """Whether the server proved to know the password, where SCRAM was asked for."""
        return self._exchange is None or self._is_verified

    def _check_method(self, method: str) -> None:
        refused = [name[1:] for name in self._required if name.startswith("!")]
        allowed = [name for name in self._required if not name.startswith("!")]
        if method in refused or (allowed and method not in allowed):
            raise LoginRefused(
                f'authentication method requirement "{",".join(self._required)}" failed: server '
                f"requested {method or 'another method'}"
            )
        if self._binding == "require" and method != "scram-sha-256":
            raise LoginRefused(
                "channel binding required but not supported by server's authentication request"
            )

    def _check_end(self) -> None:
        if not self.is_done:
            raise LoginRefused("the server ended authentication before it proved who it is")
        if not self._was_asked:
            self._check_method("none")
        if self._binding == "require" and not self._is_bound:
            raise LoginRefused(
                "channel binding required, but server authenticated client without channel binding"
            )

    def _secret(self) -> str:
        if not self._password:
            raise LoginRefused("fe_sendauth: no password supplied")
        self.used_password = True
        return self._password

    def _password_message(self, secret: bytes) -> bytes:
        return message(b"p", secret + b"\0")

    def _md5(self, salt: bytes) -> bytes:
        secret = self._secret().encode(errors="surrogateescape")
        inner = hashlib.md5(secret + self._user.encode()).hexdigest()  # noqa: S324 - the server's
        return b"md5" + hashlib.md5(inner.encode() + salt).hexdigest().encode()  # noqa: S324

    def _begin(self, offered: bytes) -> bytes:
        names = [name.decode("latin-1") for name in offered.split(b"\0") if name]
        may_bind = self._is_tls and self._end_point is not None and self._binding != "disable"
        if _PLUS in names and may_bind:
            mechanism, header, bound = _PLUS, b"p=tls-server-end-point,,", self._end_point or b""
            self._is_bound = True
        elif _PLAIN in names and self._binding != "require":
            # y: we could have bound the channel and were not offered it.
            header = b"y,," if may_bind and _PLUS not in names else b"n,,"
            mechanism, bound = _PLAIN, b""
        else:
            raise LoginRefused(
                "none of the server's SASL authentication mechanisms are supported"
                if self._binding != "require"
                else "channel binding is required, but the server did not offer an authentication "
                "method that supports channel binding"
            )
        self._exchange = _Scram(normalised(self._secret()), header, bound)
        first = header + self._exchange.client_first_bare
        return message(b"p", mechanism.encode() + b"\0" + len(first).to_bytes(4, "big") + first)


class _Scram:
    """The client's side of SCRAM-SHA-256."""

    def __init__(self, password: bytes, header: bytes, bound: bytes) -> None:
        self._password = password
        self._bound = base64.b64encode(header + bound).decode()
        self._nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        self.client_first_bare = f"n=,r={self._nonce}".encode()
        self._server_signature = b""

    def final(self, server_first: bytes) -> bytes:
        """Answer the server's first message with the proof."""
        match = _SERVER_FIRST.fullmatch(server_first.decode("latin-1"))
        if match is None or not match[1].startswith(self._nonce) or match[1] == self._nonce:
            raise LoginRefused("malformed SCRAM message")
        iterations = int(match[3])
        try:
            salt = base64.b64decode(match[2], validate=True)
        except binascii.Error:
            salt = b""
        if not salt or not 1 <= iterations <= _ITERATIONS_MAX:
            raise LoginRefused("malformed SCRAM message")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c={self._bound},r={match[1]}".encode()
        signed = b",".join((self.client_first_bare, server_first, without_proof))
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self._server_signature = hmac.digest(server_key, signed, "sha256")
        return without_proof + b",p=" + base64.b64encode(proof)

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password's verifier."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not self._server_signature or not hmac.compare_digest(server_final, expected):
            raise LoginRefused("incorrect server signature")
