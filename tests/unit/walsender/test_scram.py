"""SCRAM: the RFC's example, what libpq's exchange must not be talked into, and verifiers."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from spillway.errors import InvalidRequest
from spillway.users.verifier import Verifier, normalised
from spillway.walsender.failures import WireError
from spillway.walsender.scram import PLAIN, PLUS, ScramExchange

END_POINT = b"\1" * 32
#: RFC 7677, 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def _client_final(
    exchange: ScramExchange, password: str, gs2: bytes = b"n,,", binding: bytes = b""
) -> tuple[bytes, bytes]:
    """Do as a client does; return its last message and the signature that it expects."""
    bare = b"n=,r=rOprNGfwEbeRWgbNEkqO"
    first = exchange.first(gs2 + bare)
    nonce, salt, iterations = (field[2:] for field in first.split(b","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", normalised(password), base64.b64decode(salt), int(iterations)
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = b"c=%b,r=%b" % (base64.b64encode(gs2 + binding), nonce)
    signed = b",".join((bare, first, without_proof))
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha256"))
    return b"%b,p=%b" % (without_proof, base64.b64encode(proof)), expected


def test_the_password_is_right_or_wrong() -> None:
    verifier = Verifier.parse(str(Verifier.of_password("pencil")))
    for password, is_right in (("pencil", True), ("pen", False)):
        exchange = ScramExchange("user", verifier, PLAIN, None)
        message, expected = _client_final(exchange, password)
        assert exchange.final(message) == (expected if is_right else None)
    nobody = ScramExchange("nobody", None, PLAIN, None)
    message, _ = _client_final(nobody, "pencil")
    assert nobody.final(message) is None


def test_unknown_users_get_the_same_salt_each_time() -> None:
    salts = {
        ScramExchange("x", None, PLAIN, None).first(b"n,,n=,r=abc").split(b",")[1] for _ in range(3)
    }
    assert len(salts) == 1


def test_the_channel_is_bound() -> None:
    verifier = Verifier.of_password("pencil")
    gs2 = b"p=tls-server-end-point,,"
    exchange = ScramExchange("user", verifier, PLUS, END_POINT)
    message, expected = _client_final(exchange, "pencil", gs2, END_POINT)
    assert exchange.final(message) == expected
    # Who has another certificate before him is in the middle of something.
    exchange = ScramExchange("user", verifier, PLUS, END_POINT)
    message, _ = _client_final(exchange, "pencil", gs2, b"\2" * 32)
    with pytest.raises(WireError, match="channel binding check failed"):
        exchange.final(message)


@pytest.mark.parametrize(
    ("mechanism", "end_point", "first", "sqlstate"),
    [
        # A client that could bind was told that the server can't.
        (PLAIN, END_POINT, b"y,,n=,r=abc", "28000"),
        (PLUS, END_POINT, b"n,,n=,r=abc", "08P01"),
        (PLAIN, None, b"p=tls-server-end-point,,n=,r=abc", "08P01"),
        (PLUS, END_POINT, b"p=tls-unique,,n=,r=abc", "08P01"),
        (PLAIN, None, b"n,a=admin,n=,r=abc", "0A000"),
        (PLAIN, None, b"n,,m=ext,n=,r=abc", "08P01"),
        (PLAIN, None, b"n,,n=,r=", "08P01"),
        (PLAIN, None, b"", "08P01"),
        (PLAIN, None, b"\xff" * 100, "08P01"),
    ],
)
def test_first_messages_that_are_refused(
    mechanism: str, end_point: bytes | None, first: bytes, sqlstate: str
) -> None:
    exchange = ScramExchange("user", Verifier.of_password("x", 1), mechanism, end_point)
    with pytest.raises(WireError) as refused:
        exchange.first(first)
    assert refused.value.sqlstate == sqlstate
    assert refused.value.fatal


def test_last_messages_that_are_refused() -> None:
    for change in (
        lambda m: m.replace(b"r=", b"r=x", 1),
        lambda m: m.replace(b"biws", b"eSws"),
        lambda m: m[:-4],
        lambda m: m.partition(b",p=")[0],
        lambda _: b"",
    ):
        exchange = ScramExchange("user", Verifier.of_password("pencil", 1), PLAIN, None)
        message, _ = _client_final(exchange, "pencil")
        with pytest.raises(WireError):
            exchange.final(change(message))


def test_verifiers() -> None:
    made = Verifier.of_password("pencil")
    assert Verifier.parse(str(made)) == made
    for text in (
        "",
        "md5abc",
        "SCRAM-SHA-256$4096:AA==$AA==:AA==",
        str(made)[:-4],
        str(made) + "\n",
    ):
        with pytest.raises(InvalidRequest):
            Verifier.parse(text)
    # RFC 4013, 3; what SASLprep refuses is taken as it is.
    assert normalised("I\u00adX") == b"IX"
    assert normalised("\u00aa") == b"a"
    assert normalised("\u2168") == b"IX"
    assert normalised("ä\u0007") == "ä\u0007".encode()
    assert normalised("\u0627" + "1") == "\u06271".encode()
