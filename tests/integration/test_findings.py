"""What the overview says is to be done about what it finds itself, done to its end: the finding
goes.

What an error is behind has its error's hint for a remedy, and a test by that
(``harness/remedies.py``).
"""

from __future__ import annotations

import html
import re
import threading
from typing import TYPE_CHECKING

import pytest

from harness.reception import wait_until
from harness.service import Service, service_in_process
from spillway.service.settings import EngineSettings
from spillway.stream.client import open_stream
from spillway.watch import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database

LIMIT = 4 << 20
_FINDING = re.compile(
    r'<article class="finding.*?<a href="[^"]*">(.*?)</a>.*?<p class="remedy">(.*?)</p>', re.DOTALL
)


def found(service: Service) -> dict[str, str]:
    """Read the overview: each finding's title, and what it says is to be done."""
    page = service.http.get("/").text
    return {html.unescape(title): html.unescape(text) for title, text in _FINDING.findall(page)}


def remedy(service: Service, title: str) -> str:
    """Wait until the overview has a finding whose title begins so, and return what it says is to be
    done.
    """

    def remedies() -> list[str]:
        return [text for begins, text in found(service).items() if begins.startswith(title)]

    wait_until(lambda: bool(remedies()), 60, f"no finding {title!r}: {found(service)}")
    (text,) = remedies()
    return text


def gone(service: Service, title: str) -> None:
    """Wait until no finding's title begins so."""

    def is_gone() -> bool:
        return not any(begins.startswith(title) for begins in found(service))

    wait_until(is_gone, 60, f"{title!r} stays: {found(service)}")


def press(service: Service, page: str, action: str) -> None:
    """Press the button of a page that does *action*."""
    form = re.search(
        rf'action="({page}/{action})".*?name="csrf" value="([^"]+)"',
        service.http.get(page).text,
        re.DOTALL,
    )
    assert form, f"no {action} on {page}"
    answer = service.http.post(form[1], data={"csrf": html.unescape(form[2])})
    assert answer.is_success or answer.is_redirect, answer.text


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is found after minutes or megabytes be found after a second."""
    limits = findings.Limits(unread_bytes=0, unread_s=0.5, lag_s=0.5)
    monkeypatch.setattr(findings, "DEFAULT_LIMITS", limits)


@pytest.fixture
def service(
    impatient: None, pg18: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    pg18.execute("CREATE TABLE t (id int, note text)")
    settings = EngineSettings(max_slot_retained_bytes=LIMIT)
    with service_in_process(tmp_path_factory.mktemp("data"), engine=settings) as running:
        running.create_source(pg18.dsn)
        yield running


def written(pg: Database, nbytes: int) -> None:
    """Commit rows of about so many bytes that don't get smaller."""
    pg.execute(
        "INSERT INTO t SELECT n, md5(n::text) || md5((n + 1)::text) FROM generate_series(1, %s) n",
        [nbytes // 100],
    )


def test_slots_that_are_not_read(service: Service, pg18: Database) -> None:
    service.create_slot("unread", pg18.name)
    service.create_slot("needless", pg18.name)
    written(pg18, 10_000)
    both = [f"Nobody reads slot {name}" for name in ("unread", "needless")]
    said = {remedy(service, title) for title in both}
    assert said == {
        "Start its consumer, or use “Drop” on the slot's page if it is not needed any more."
    }
    service.drop_slot("needless")
    gone(service, both[1])
    with open_stream(service.grpc_address, "unread") as stream:
        gone(service, both[0])
        # It is there, and confirms nothing: a program that hangs.
        text = remedy(service, "Slot unread lags")
        assert "“End session” on the slot's page ends a session that hangs." in text
        press(service, "/ui/slots/unread", "end-session")
        wait_until(lambda: not service.slot("unread")["active"], 30, "still active")
        del stream
    with open_stream(service.grpc_address, "unread") as stream:
        for batch in stream:
            stream.confirm(batch.confirm_lsn)
            if batch.confirm_lsn:
                break
        gone(service, "Slot unread lags")
    gone(service, "Nobody reads slot unread")


def test_slots_near_their_bound_and_beyond(service: Service, pg18: Database) -> None:
    for name in ("near", "lost"):
        service.create_slot(name, pg18.name)

    def is_near() -> bool:
        written(pg18, 200_000)
        service.wait_decoded("near", pg18)
        left = service.slot("near")["safe_wal_size"]
        return left is not None and left < LIMIT / 5

    wait_until(is_near, 60, "never near its bound")
    title = "Slot near is about to be invalidated"
    text = remedy(service, title)
    assert text == (
        "Start its consumer, use “Advance” on the slot's page, or raise "
        "SPILLWAY_MAX_SLOT_RETAINED_BYTES."
    )
    decoded = service.slot("near")["decoded_lsn"]
    service.call("POST", "/slots/near/advance", json={"upto_lsn": decoded})
    gone(service, title)

    def is_lost() -> bool:
        written(pg18, 1_000_000)
        return service.slot("lost")["invalidation_reason"] is not None

    wait_until(is_lost, 60, "never invalidated")
    title = "Slot lost was invalidated"
    assert remedy(service, title).startswith("Drop it and create it again;")
    service.drop_slot("lost")
    service.create_slot("lost", pg18.name)
    gone(service, title)
    pg18.execute("INSERT INTO t VALUES (-1, 'again')")
    service.wait_decoded("lost", pg18)
    assert any("again" in line for _, _, line in service.peek("lost"))


def test_transactions_that_a_first_slot_waits_for(service: Service, pg18: Database) -> None:
    with pg18.connect(autocommit=False) as open_one:
        open_one.execute("INSERT INTO t VALUES (1, 'open')")
        made = threading.Thread(target=service.create_slot, args=("first", pg18.name))
        made.start()
        try:
            title = f"main / {pg18.name} is not consistent yet"
            text = remedy(service, title)
            assert "end those that stay open on the primary" in text
        finally:
            open_one.rollback()
            made.join()
    gone(service, title)
    assert service.slot("first")["decoded_lsn"]


def test_lag_is_of_commits(service: Service, pg18: Database) -> None:
    """What is outside of transactions, or prepared for a slot that takes it at its commit, has no
    time of a commit: behind it a slot lagged since the year 2000.
    """
    service.create_slot("s", pg18.name)
    service.create_slot("prepares", pg18.name, two_phase=True)

    def lags(name: str = "s") -> float:
        """As of what the server has written by now."""
        service.wait_decoded(name, pg18)
        # It is not known for a moment whether more was written.
        wait_until(lambda: service.slot(name)["lag_seconds"] is not None, 20, "no lag")
        return float(service.slot(name)["lag_seconds"])

    pg18.execute("SELECT pg_logical_emit_message(false, 'a', 'b')")
    assert lags() == 0
    # Its invalidations are outside of transactions, too.
    pg18.execute("VACUUM t")
    assert lags() == 0
    pg18.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'g'")
    assert lags() == 0
    assert 0 < lags("prepares") < 600
    pg18.execute("SELECT pg_logical_emit_message(false, 'a', 'b')")
    pg18.execute("COMMIT PREPARED 'g'")
    assert 0 < lags() < 600
    service.call("POST", "/slots/s/advance", json={"upto_lsn": service.slot("s")["decoded_lsn"]})
    assert lags() == 0
    pg18.execute("SELECT pg_logical_emit_message(false, 'a', 'b')")
    pg18.execute("INSERT INTO t VALUES (2)")
    assert 0 < lags() < 600
    # Nobody reads them, which is told; not for days.
    assert not [title for title in found(service) if re.search(r"\d d\b", title)]
