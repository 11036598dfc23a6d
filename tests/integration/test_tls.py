"""TLS on REST and gRPC: real certificates, the service and its commands as processes."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography import x509

import spillway_client
from harness.certificates import Authority
from harness.remedies import remedy
from harness.serve_process import ServeProcess
from spillway.cli.rest_client import RestClient
from spillway.consumer.connect import connect
from spillway.errors import NotReady, TlsFailed, UnknownSlot
from spillway.settings import Settings
from spillway.stream.client import get_slot, open_stream
from spillway.tls import ClientTls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.certificates import Pair

TOKEN = "a long random text"


class Stage:
    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory, "ca")
        self.other_ca = Authority(directory, "other")
        self.pair = self.ca.sign("server")
        self.serve = ServeProcess(
            directory / "data",
            environment={
                "SPILLWAY_TOKEN": TOKEN,
                "SPILLWAY_TLS_CERT": str(self.pair.certificate),
                "SPILLWAY_TLS_KEY": str(self.pair.key),
            },
            tls=ssl.create_default_context(cafile=self.ca.file),
        )

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.serve.http_port}"

    @property
    def grpc(self) -> str:
        return f"https://127.0.0.1:{self.serve.grpc_port}"

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spillway.cli", *arguments],
            env={
                **os.environ,
                "SPILLWAY_URL": self.url,
                "SPILLWAY_GRPC": self.grpc,
                "SPILLWAY_TOKEN": TOKEN,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def get(self, path: str) -> httpx.Response:
        context = ssl.create_default_context(cafile=self.ca.file)
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.get(f"{self.url}{path}", verify=context, headers=headers, timeout=60)

    def metrics(self) -> str:
        return self.get("/metrics").text

    def overview(self) -> str:
        """The overview, as a browser has it that has signed in."""
        context = ssl.create_default_context(cafile=self.ca.file)
        with httpx.Client(
            base_url=self.url, verify=context, follow_redirects=True, timeout=60
        ) as browser:
            return browser.post("/ui/login", data={"token": TOKEN}).text

    def serial(self, port: int) -> str:
        """The serial number of the certificate that a new connection is shown."""
        serial = _serial(self.ca, port)
        assert serial is not None
        return serial


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("tls"))
    yield stage
    stage.serve.stop()


def test_commands_and_clients_speak_it(stage: Stage) -> None:
    ca = str(stage.ca.file)
    listed = stage.command("slot", "list", SPILLWAY_TLS_CA=ca)
    assert listed.returncode == 0, listed.stderr
    received = stage.command("recv", "--slot", "none", "--no-loop", SPILLWAY_TLS_CA=ca)
    assert "code: unknown_slot" in received.stderr
    with pytest.raises(UnknownSlot):
        get_slot(stage.grpc, "none", token=TOKEN, tls=ClientTls(stage.ca.file))
    with pytest.raises(spillway_client.UnknownSlot):
        spillway_client.Slot(
            stage.grpc, "none", token=TOKEN, tls=spillway_client.Tls(stage.ca.file)
        ).open()
    with pytest.raises(spillway_client.TlsFailed) as refused:
        spillway_client.Slot(stage.grpc, "none", token=TOKEN).open()
    assert "Tls(ca=" in refused.value.hint
    # The certificate itself is as good as a CA.
    with pytest.raises(UnknownSlot):
        open_stream(stage.grpc, "none", token=TOKEN, tls=ClientTls(stage.pair.certificate))
    client = connect({"grpc": stage.grpc, "token": TOKEN, "tls_ca": ca})
    with pytest.raises(UnknownSlot):
        client.position("none")


def test_a_wrong_ca_is_said(stage: Stage) -> None:
    other = str(stage.other_ca.file)
    for arguments in (("slot", "list"), ("recv", "--slot", "none", "--no-loop")):
        ended = stage.command(*arguments, SPILLWAY_TLS_CA=other)
        assert ended.returncode == 1
        assert "code: tls_failed" in ended.stderr, ended.stderr
        assert "SPILLWAY_TLS_CA" in ended.stderr
        assert "Traceback" not in ended.stderr
    # A name that the certificate is not for, and how it is said which one it is for.
    by_other_name = stage.command(
        "slot", "list", SPILLWAY_TLS_CA=str(stage.ca.file), SPILLWAY_TLS_SERVER_NAME="db.example"
    )
    assert "SPILLWAY_TLS_SERVER_NAME" in by_other_name.stderr
    assert "code: tls_failed" in by_other_name.stderr
    with pytest.raises(TlsFailed):
        get_slot(
            stage.grpc,
            "none",
            token=TOKEN,
            tls=ClientTls(stage.ca.file, server_name="db.example"),
        )
    with pytest.raises(UnknownSlot):
        get_slot(
            stage.grpc, "none", token=TOKEN, tls=ClientTls(stage.ca.file, server_name="localhost")
        )


def test_plain_text_finds_nothing(stage: Stage) -> None:
    ended = stage.command("slot", "list", SPILLWAY_URL=stage.url.replace("https", "http"))
    assert ended.returncode == 1
    assert "https://" in ended.stderr
    assert "Traceback" not in ended.stderr
    with pytest.raises(NotReady) as caught:
        get_slot(f"127.0.0.1:{stage.serve.grpc_port}", "none", token=TOKEN)
    assert "https://" in caught.value.hint


def test_a_cookie_is_for_tls_alone(stage: Stage) -> None:
    context = ssl.create_default_context(cafile=stage.ca.file)
    answer = httpx.post(f"{stage.url}/ui/login", data={"token": TOKEN}, verify=context, timeout=60)
    assert answer.status_code == 303
    assert "secure" in answer.headers["set-cookie"].lower()
    assert "strict-transport-security" not in answer.headers


def test_what_is_renewed_is_shown_without_a_restart(stage: Stage) -> None:
    before = stage.serial(stage.serve.http_port)
    assert stage.serial(stage.serve.grpc_port) == before
    key_before = stage.pair.key.read_bytes()
    # Half of a renewal: a certificate, and not yet its key.
    renewed = stage.ca.sign("server")
    key = renewed.key.read_bytes()
    renewed.key.write_bytes(key_before)
    _wait(lambda: "spillway_tls_reload_failed 1.0" in stage.metrics())
    ready = stage.get("/readyz")
    assert ready.status_code == 200, "what was loaded is good"
    assert [one["kind"] for one in ready.json()["warnings"]] == ["certificate"]
    assert "stays in use" in ready.json()["warnings"][0]["message"]
    overview = stage.overview()
    assert "New TLS files can&#39;t be used" in overview
    assert "the key must be the certificate&#39;s own" in overview
    assert (
        'spillway_warning{code="tls_failed",kind="certificate",name="tls"} 1.0' in stage.metrics()
    )
    assert stage.serial(stage.serve.http_port) == before
    assert stage.serial(stage.serve.grpc_port) == before
    assert "what was loaded before stays in use" in stage.serve.log()
    # Half a file.
    renewed.key.write_bytes(key[: len(key) // 2])
    time.sleep(2.5)
    assert "spillway_tls_reload_failed 1.0" in stage.metrics()
    renewed.key.write_bytes(key)
    _wait(lambda: stage.serial(stage.serve.http_port) != before)
    assert stage.serial(stage.serve.grpc_port) == stage.serial(stage.serve.http_port)
    assert "spillway_tls_reload_failed 0.0" in stage.metrics()
    end = x509.load_pem_x509_certificate(renewed.certificate.read_bytes()).not_valid_after_utc
    samples = dict(
        line.rsplit(" ", 1)
        for line in stage.metrics().splitlines()
        if line.startswith("spillway_tls")
    )
    ends_s = float(samples["spillway_tls_certificate_expires_timestamp_seconds"])
    assert ends_s == end.timestamp()
    assert float(samples["spillway_tls_loaded_timestamp_seconds"]) > renewed.key.stat().st_mtime
    assert stage.get("/readyz").json() == {"status": "ready"}
    assert "New TLS files" not in stage.overview()


def test_clients_must_show_a_certificate(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    pair, client = ca.sign("server"), ca.sign("client")
    stranger = Authority(tmp_path, "other").sign("stranger")
    with _serving(tmp_path, pair, client, SPILLWAY_TLS_CLIENT_CA=str(ca.file)) as serve:
        url = f"https://127.0.0.1:{serve.http_port}"
        grpc = f"https://127.0.0.1:{serve.grpc_port}"

        def command(*arguments: str, pair: Pair | None) -> str:
            shown = {}
            if pair is not None:
                shown = {
                    "SPILLWAY_TLS_CLIENT_CERT": str(pair.certificate),
                    "SPILLWAY_TLS_CLIENT_KEY": str(pair.key),
                }
            ended = subprocess.run(
                [sys.executable, "-m", "spillway.cli", *arguments],
                env={
                    **os.environ,
                    "SPILLWAY_URL": url,
                    "SPILLWAY_GRPC": grpc,
                    "SPILLWAY_TLS_CA": str(ca.file),
                    **shown,
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert "Traceback" not in ended.stderr
            return f"{ended.returncode} {ended.stderr}"

        assert command("slot", "list", pair=client).startswith("0")
        missing = command("slot", "list", pair=None)
        # TLS 1.3: the client has ended its handshake by the time that it is refused, and may see
        # the connection's end only.
        assert "code: tls_failed" in missing or "code: not_ready" in missing
        assert "SPILLWAY_TLS_CLIENT_CERT" in missing
        assert "SPILLWAY_TLS_CLIENT_CERT" in command("slot", "list", pair=stranger)
        received = ("recv", "--slot", "none", "--no-loop")
        assert "code: unknown_slot" in command(*received, pair=client)
        assert "SPILLWAY_TLS_CLIENT_CERT" in command(*received, pair=None)


@pytest.mark.long
@pytest.mark.follows_hint("tls_failed")
def test_an_expired_certificate_is_said(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    pair = ca.sign("server", days=-1)
    with _serving(tmp_path, pair, pair) as serve:
        with pytest.raises(TlsFailed) as caught:
            get_slot(f"https://127.0.0.1:{serve.grpc_port}", "s", tls=ClientTls(ca.file))
        assert "SPILLWAY_TLS_CA" in caught.value.hint or "renewed" in caught.value.hint
        settings = Settings(url=f"https://127.0.0.1:{serve.http_port}", tls_ca=ca.file)
        with RestClient(settings) as client, pytest.raises(TlsFailed) as caught:
            client.call("GET", "slots")
        assert "renewed" in remedy(caught.value, "tls_failed")
        assert "has expired" in serve.log()
        # Who probes verifies nothing, and must be told; the remedy, followed, mends it.
        with _probing(serve) as probe:
            problem = probe.get("/readyz")
            assert problem.status_code == 503
            (expired,) = problem.json()["details"]["not_ready"]
            assert (expired["kind"], expired["code"]) == ("certificate", "tls_failed")
            assert str(pair.certificate) in expired["hint"]
            assert "The service&#39;s certificate has expired" in probe.get("/").text
        ca.sign("server")
        _wait(lambda: _serial(ca, serve.http_port) is not None)
        with _probing(serve) as probe:
            assert probe.get("/readyz").json() == {"status": "ready"}
            assert "certificate has expired" not in probe.get("/").text
        with RestClient(settings) as client:
            client.call("GET", "slots")
        with pytest.raises(UnknownSlot):
            get_slot(f"https://127.0.0.1:{serve.grpc_port}", "s", tls=ClientTls(ca.file))


@contextlib.contextmanager
def _serving(
    directory: Path, pair: Pair, client: Pair, **environment: str
) -> Iterator[ServeProcess]:
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    asking.load_cert_chain(client.certificate, client.key)
    serve = ServeProcess(
        directory / "data",
        environment={
            "SPILLWAY_TLS_CERT": str(pair.certificate),
            "SPILLWAY_TLS_KEY": str(pair.key),
            **environment,
        },
        tls=asking,
    )
    try:
        yield serve
    finally:
        serve.stop()


def _serial(ca: Authority, port: int) -> str | None:
    """The serial number of the certificate that a new connection is shown; None for one that is
    refused.
    """
    context = ssl.create_default_context(cafile=ca.file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                certificate = connection.getpeercert()
        except ssl.SSLCertVerificationError:
            return None
    assert certificate is not None
    return str(certificate["serialNumber"])


def _probing(serve: ServeProcess) -> httpx.Client:
    """As Kubernetes probes: the certificate is not verified."""
    return httpx.Client(base_url=f"https://127.0.0.1:{serve.http_port}", verify=False, timeout=60)


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)
