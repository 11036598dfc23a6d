"""The service's certificate: when it ends, what is not taken over, and what is said of it."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from harness.certificates import Authority
from spillway.tls import ServerCertificate, TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

    from harness.certificates import Pair

DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


class Stage:
    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory, "ca")
        self.clock = Clock()

    def load(self, pair: Pair, client_ca: Path | None = None) -> ServerCertificate:
        return ServerCertificate(TlsFiles(pair.certificate, pair.key, client_ca), self.clock)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def titles(certificate: ServerCertificate) -> list[str]:
    return [trouble.title for trouble in certificate.troubles()]


@pytest.mark.parametrize("days", [-1, 30, 40_000])
def test_when_it_ends_is_read_of_the_certificate(stage: Stage, days: int) -> None:
    """UTCTime before 2050, GeneralizedTime after, and of one that has ended as well."""
    pair = stage.ca.sign("server", days=days)
    theirs = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert stage.load(pair).expires_at_s == theirs.not_valid_after_utc.timestamp()


def test_it_is_said_before_it_ends_and_when_it_has(stage: Stage) -> None:
    pair = stage.ca.sign("server", days=300)
    certificate = stage.load(pair)
    assert certificate.troubles() == []
    stage.clock.now_s += 285 * DAY_S
    assert certificate.troubles() == []
    stage.clock.now_s += 2 * DAY_S
    (soon,) = certificate.troubles()
    assert not soon.is_refused
    assert soon.title == "The service's certificate expires soon"
    stage.clock.now_s += 14 * DAY_S
    (expired,) = certificate.troubles()
    assert expired.is_refused
    assert expired.since == dt.datetime.fromtimestamp(certificate.expires_at_s or 0, dt.UTC)
    # The remedy, followed: it names the two files.
    assert str(pair.certificate) in expired.hint
    assert str(pair.key) in expired.hint
    stage.ca.sign("server", days=600)
    certificate.refresh()
    assert certificate.troubles() == []
    assert certificate.loaded_at_s == stage.clock.now_s


def test_one_that_lives_for_days_is_not_always_about_to_end(stage: Stage) -> None:
    # From five days ago to a day from now, of which a fifth is left.
    certificate = stage.load(stage.ca.sign("server", days=2))
    assert certificate.troubles() == []
    stage.clock.now_s += 0.7 * DAY_S
    assert titles(certificate) == ["The service's certificate expires soon"]


def test_one_that_is_not_valid_yet(stage: Stage) -> None:
    pair = stage.ca.sign("server")
    stage.clock.now_s -= 6 * DAY_S
    certificate = stage.load(pair)
    (trouble,) = certificate.troubles()
    assert trouble.is_refused
    assert trouble.title == "The service's certificate is not valid yet"
    stage.clock.now_s += 2 * DAY_S
    assert certificate.troubles() == []


def test_what_ended_replaces_nothing_that_is_good(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pair = stage.ca.sign("server")
    certificate = stage.load(pair)
    used = certificate.context
    stage.ca.sign("server", days=-1)
    for _ in range(3):
        certificate.refresh()
    assert certificate.context is used
    assert certificate.is_reload_failed
    (trouble,) = certificate.troubles()
    assert not trouble.is_refused
    assert "has expired" in trouble.message
    assert trouble.since is not None
    assert len([r for r in caplog.records if "has expired" in r.message]) == 1, "said once"
    # Nor one that is not valid yet; when it is, it is taken over by itself.
    stage.ca.sign("server", begins_days=3)
    certificate.refresh()
    assert certificate.context is used
    assert "is not valid before" in certificate.troubles()[0].message
    stage.clock.now_s += 4 * DAY_S
    certificate.refresh()
    assert certificate.context is not used
    assert certificate.troubles() == []


@pytest.mark.parametrize(
    "damage", ["key of another", "half a key", "no certificate", "gone", "dir"]
)
def test_files_that_can_not_be_used(stage: Stage, tmp_path: Path, damage: str) -> None:
    pair = stage.ca.sign("server")
    certificate = stage.load(pair)
    if damage == "key of another":
        stage.ca.sign("server").key.write_bytes(stage.ca.sign("other").key.read_bytes())
    elif damage == "half a key":
        pair.key.write_bytes(pair.key.read_bytes()[:60])
    elif damage == "no certificate":
        pair.certificate.write_text("nothing\n")
    else:
        pair.certificate.unlink()
        if damage == "dir":
            pair.certificate.mkdir()
    certificate.refresh()
    (trouble,) = certificate.troubles()
    assert trouble.title == "New TLS files can't be used"
    assert not trouble.is_refused
    assert "server." in trouble.message
    assert trouble.hint
    if damage == "dir":
        pair.certificate.rmdir()
    stage.ca.sign("server")
    certificate.refresh()
    assert certificate.troubles() == []


def test_cas_that_end(stage: Stage, tmp_path: Path) -> None:
    """The chain after the certificate, and the CA of clients: who leans on them is refused, though
    the certificate is good.
    """
    pair = stage.ca.sign("server", days=300)
    pair.certificate.write_bytes(pair.certificate.read_bytes() + stage.ca.file.read_bytes())
    certificate = stage.load(pair, stage.ca.file)
    assert certificate.troubles() == []
    stage.clock.now_s += 27 * DAY_S
    assert titles(certificate) == ["A CA's certificate expires soon"] * 2
    stage.clock.now_s += 4 * DAY_S
    chain, clients = certificate.troubles()
    assert f"certificate 2 of {pair.certificate}" in chain.message
    assert f"certificate 1 of {stage.ca.file}" in clients.message
    assert "is not valid" in clients.title
    assert not clients.is_refused
