"""Our login at a source: against the server's side of SCRAM, and what is refused."""

from __future__ import annotations

import hashlib

import pytest

from spillway.users.verifier import Verifier
from spillway.walsender.scram import PLAIN, PLUS, ScramExchange
from spillway.walsender.sql.authentication import Login, LoginRefused

SASL = (10).to_bytes(4, "big")


def _code(code: int, data: bytes = b"") -> bytes:
    return code.to_bytes(4, "big") + data


def _scram(login: Login, offered: list[str], end_point: bytes | None, password: str) -> None:
    names = b"".join(name.encode() + b"\0" for name in offered) + b"\0"
    initial = login.answer(SASL + names)
    assert initial is not None
    mechanism, rest = initial[5:].split(b"\0", 1)
    server = ScramExchange("u", Verifier.of_password(password, 4096), mechanism.decode(), end_point)
    final = login.answer(_code(11, server.first(rest[4:])))
    assert final is not None
    signature = server.final(final[5:])
    if signature is None:
        raise PermissionError
    login.answer(_code(12, signature))
    login.answer(_code(0))
    assert login.is_done


def test_scram_with_and_without_binding() -> None:
    _scram(Login({"user": "u"}, "pä", None, is_tls=False), [PLAIN], None, "pä")
    hashed = hashlib.sha256(b"certificate").digest()
    required = {"user": "u", "channel_binding": "require"}
    _scram(Login(required, "p", hashed, is_tls=True), [PLUS, PLAIN], hashed, "p")
    with pytest.raises(PermissionError):
        _scram(Login({"user": "u"}, "wrong", None, is_tls=False), [PLAIN], None, "p")
    with pytest.raises(LoginRefused, match="channel binding is required"):
        _scram(Login(required, "p", hashed, is_tls=True), [PLAIN], hashed, "p")


def test_a_server_that_does_not_know_the_password_is_left() -> None:
    login = Login({"user": "u"}, "p", None, is_tls=False)
    initial = login.answer(SASL + PLAIN.encode() + b"\0\0")
    assert initial is not None
    first = ScramExchange("u", Verifier.of_password("p"), PLAIN, None).first(
        initial[5:].split(b"\0", 1)[1][4:]
    )
    login.answer(_code(11, first))
    with pytest.raises(LoginRefused, match="before it proved who it is"):
        login.answer(_code(0))
    with pytest.raises(LoginRefused, match="incorrect server signature"):
        login.answer(_code(12, b"v=AAAA"))


def test_other_methods() -> None:
    salt = b"salt"
    inner = hashlib.md5(b"pu").hexdigest().encode()
    expected = b"md5" + hashlib.md5(inner + salt).hexdigest().encode() + b"\0"
    login = Login({"user": "u"}, "p", None, is_tls=False)
    assert (login.answer(_code(5, salt)) or b"")[5:] == expected
    assert (login.answer(_code(3)) or b"")[5:] == b"p\0"
    with pytest.raises(LoginRefused, match="gss of the server is not supported"):
        login.answer(_code(7))
    with pytest.raises(LoginRefused, match="no password supplied"):
        Login({"user": "u"}, None, None, is_tls=False).answer(_code(3))
    for required, code in (("scram-sha-256", 3), ("!password", 3), ("!none", 0)):
        login = Login({"user": "u", "require_auth": required}, "p", None, is_tls=False)
        with pytest.raises(LoginRefused, match="authentication method requirement"):
            login.answer(_code(code))
