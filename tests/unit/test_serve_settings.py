"""Where the service may listen without a token, and how it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spillway.errors import InvalidRequest
from spillway.interfaces import _bind
from spillway.serve import ServeSettings, check_settings, tls_files
from spillway.tls import TlsFiles

DATA = Path("data")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    check_settings(ServeSettings(DATA, host=host))
    check_settings(ServeSettings(DATA, host=host, auth_off=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "db.example", "localhost.example"])
def test_another_address_needs_one(host: str) -> None:
    with pytest.raises(InvalidRequest, match="needs a token") as error:
        check_settings(ServeSettings(DATA, host=host))
    assert "SPILLWAY_TOKEN" in error.value.hint
    with pytest.raises(InvalidRequest, match="SPILLWAY_AUTH=off is refused"):
        check_settings(ServeSettings(DATA, host=host, token="t", auth_off=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_another_address_needs_a_certificate(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidRequest, match=r"needs a certificate.*clear text") as error:
        check_settings(ServeSettings(DATA, host=host, token="t"))
    assert "SPILLWAY_TLS_CERT" in error.value.hint
    assert "SPILLWAY_TLS=off" in error.value.hint
    files = TlsFiles(Path("cert.pem"), Path("key.pem"))
    check_settings(ServeSettings(DATA, host=host, token="t", tls=files))
    assert not caplog.records
    check_settings(ServeSettings(DATA, host=host, token="t", tls_off=True))
    assert "clear text" in caplog.text
    with pytest.raises(InvalidRequest, match="contradicts"):
        check_settings(ServeSettings(DATA, host=host, token="t", tls=files, tls_off=True))


def test_a_certificate_needs_its_key() -> None:
    assert tls_files(None, None, None) is None
    for files in ((DATA, None, None), (None, DATA, None), (None, None, DATA)):
        with pytest.raises(InvalidRequest, match="certificate and its key"):
            tls_files(*files)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    # asyncio sets TCP_NODELAY on connections only of a listener that was made with its protocol
    # named.
    listener = _bind("127.0.0.1", 0)
    with listener:
        assert listener.proto == socket.IPPROTO_TCP
