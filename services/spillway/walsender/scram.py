"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS.

::

    client-first   gs2 header, n=…,r=nonce
    server-first   r=nonce + ours, s=salt, i=iterations
    client-final   c=the gs2 header again, with the channel's binding under -PLUS; r=, p=proof
    server-final   v=signature

An unknown user, or one without a verifier, gets the same questions, with a salt that is always the
same for the name, and is refused at the end: who guesses does not learn which names there are. Keys
are compared in constant time.

Source: RFC 5802, 7677, 5929; src/backend/libpq/auth-scram.c, whose messages these are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

from spillway.users.verifier import ITERATIONS, Verifier
from spillway.walsender.failures import WireError

PLAIN: Final = "SCRAM-SHA-256"
PLUS: Final = "SCRAM-SHA-256-PLUS"
_BINDING: Final = "tls-server-end-point"
_NONCE_BYTES: Final = 18
_PROOF_BYTES: Final = 32

_FIRST: Final = re.compile(
    rb"(n|y|p=([A-Za-z0-9.-]+)),(a=[^,]*)?,(n=[^,]*,r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)", re.DOTALL
)
_FINAL: Final = re.compile(
    rb"(c=([A-Za-z0-9+/=]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]*)*?),p=([A-Za-z0-9+/=]+)", re.DOTALL
)

#: of this process; what salts of unknown users are made with
_MOCK_SECRET: Final = secrets.token_bytes(32)


def _malformed(detail: str) -> WireError:
    return WireError("08P01", "malformed SCRAM message", detail=detail, fatal=True)


class ScramExchange:
    """One login.

    Args:
        user: who says to come in.
        verifier: that user's; None: there is none, and the exchange will fail.
        mechanism: what the client has chosen, PLAIN or PLUS.
        end_point: the hash of the server's certificate, for tls-server-end-point; None: PLUS was
            not offered.
    """

    def __init__(
        self, user: str, verifier: Verifier | None, mechanism: str, end_point: bytes | None
    ) -> None:
        self._known = verifier is not None
        self._verifier = verifier or _mock(user)
        self._mechanism = mechanism
        self._end_point = end_point
        self._gs2_header = b""
        self._client_first_bare = b""
        self._server_first = b""
        self._nonce = b""

    def first(self, client_first: bytes) -> bytes:
        """Answer the client's first message.

        Raises:
            WireError: it is malformed, or about the channel's binding the sides don't agree.
        """
        match = _FIRST.fullmatch(client_first)
        if match is None:
            raise _malformed("The client's first message can't be read.")
        flag, binding, authzid, bare, client_nonce = match.groups()
        if authzid is not None:
            raise WireError(
                "0A000", "client uses authorization identity, but it is not supported", fatal=True
            )
        self._check_binding(flag[:1], binding)
        if b",m=" in bare:
            raise WireError("0A000", "client requires an unsupported SCRAM extension", fatal=True)
        self._gs2_header = client_first[: len(client_first) - len(bare)]
        self._client_first_bare = bare
        self._nonce = client_nonce + base64.b64encode(secrets.token_bytes(_NONCE_BYTES))
        salt = base64.b64encode(self._verifier.salt)
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._verifier.iterations)
        return self._server_first

    def _check_binding(self, flag: bytes, binding: bytes | None) -> None:
        if flag == b"p":
            if self._mechanism != PLUS:
                raise _malformed(
                    "The client selected SCRAM-SHA-256 without channel binding, but the SCRAM "
                    "message includes channel binding data."
                )
            if binding != _BINDING.encode():
                shown = (binding or b"").decode()
                raise WireError(
                    "08P01", f'unsupported SCRAM channel-binding type "{shown}"', fatal=True
                )
            return
        if self._mechanism == PLUS:
            raise _malformed(
                "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include "
                "channel binding data."
            )
        if flag == b"y" and self._end_point is not None:
            raise WireError(
                "28000",
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not.  "
                "However, this server does support channel binding.",
                fatal=True,
            )

    def final(self, client_final: bytes) -> bytes | None:
        """Verify the client's proof; return the server's signature, None: it is wrong.

        Raises:
            WireError: the message is malformed, or of another exchange.
        """
        match = _FINAL.fullmatch(client_final)
        if match is None:
            raise _malformed("The client's final message can't be read.")
        without_proof, bound, nonce, proof_text = match.groups()
        expected = self._gs2_header
        if self._mechanism == PLUS:
            expected += self._end_point or b""
        if not hmac.compare_digest(base64.b64encode(expected), bound):
            if self._mechanism == PLUS:
                raise WireError("28000", "SCRAM channel binding check failed", fatal=True)
            raise WireError(
                "08P01",
                "unexpected SCRAM channel-binding attribute in client-final-message",
                fatal=True,
            )
        if not hmac.compare_digest(nonce, self._nonce):
            raise WireError(
                "08P01", "invalid SCRAM response", detail="Nonce does not match.", fatal=True
            )
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except binascii.Error:
            proof = b""
        if len(proof) != _PROOF_BYTES:
            raise _malformed("Malformed proof in client-final-message.")
        signed = b",".join((self._client_first_bare, self._server_first, without_proof))
        signature = hmac.digest(self._verifier.stored_key, signed, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        found = hashlib.sha256(client_key).digest()
        is_right = hmac.compare_digest(found, self._verifier.stored_key)
        if not (is_right and self._known):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._verifier.server_key, signed, "sha256"))


def _mock(user: str) -> Verifier:
    """Give what is asked of a user whom nobody knows: always the same, and right for no
    password.
    """
    salt = hmac.digest(_MOCK_SECRET, user.encode(errors="replace"), "sha256")[:16]
    return Verifier(ITERATIONS, salt, secrets.token_bytes(32), secrets.token_bytes(32))
