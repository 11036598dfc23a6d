"""Pages whose service is frozen, is cut off from them, or sees nothing: they say so, and of when
they are, and come back by themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from harness.fake_service import FakeService
from harness.serve_process import ServeProcess
from spillway.admin import live
from spillway.admin.live import BEAT_S, SILENCE_S
from spillway.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page, Route

    from harness.cluster import Database
    from harness.service import Service

    from .conftest import Visit

PLOTS = ".charts .plot .uplot"
#: the silence that a page waits for, the second between two judgements, and a busy machine
BOUND_S = SILENCE_S + 6.0
NOTED = (
    "window.said = []; new MutationObserver(() => window.said.push("
    "document.getElementById('live').textContent)).observe("
    "document.getElementById('live'), {subtree: true, childList: true, characterData: true})"
)
UNHEARD = "no answer; as of"
UNANSWERED = "The service does not answer"
#: XMLHttpRequests that are given up on are given up on soon
IMPATIENT = (
    "{ const given = Object.getOwnPropertyDescriptor(XMLHttpRequest.prototype, 'timeout');"
    "Object.defineProperty(XMLHttpRequest.prototype, 'timeout', {...given, set(ms) {"
    "given.set.call(this, ms && 1500); }}); }"
)


@pytest.fixture
def serve(tmp_path: Path, shop: Database) -> Iterator[ServeProcess]:
    """A service in a process of its own, with a source and a slot."""
    serve = ServeProcess(tmp_path / "data")
    service = serve.service()
    try:
        service.create_source(shop.dsn, "frozen")
        service.create_slot("audit", "shop", "test_decoding", source="frozen")
        yield serve
        service.drop_slot("audit")
        service.call("DELETE", "/sources/frozen")
    finally:
        serve.stop()


@contextlib.contextmanager
def frozen(serve: ServeProcess) -> Iterator[None]:
    assert serve.process is not None
    os.kill(serve.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(serve.process.pid, signal.SIGCONT)


def is_live(page: Page) -> None:
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    expect(page.locator("body")).not_to_have_class("stale")


def is_stale(page: Page, said: str = UNHEARD) -> None:
    expect(page.locator("#live")).to_contain_text(said)
    expect(page.locator("#live")).to_have_attribute("data-state", "lost")
    expect(page.locator("body")).to_have_class("stale")


def test_a_frozen_service(serve: ServeProcess, shop: Database, visit: Callable[..., Visit]) -> None:
    page = visit(f"http://127.0.0.1:{serve.http_port}").page
    page.add_init_script(IMPATIENT)
    page.goto("/ui/slots/audit")
    is_live(page)
    expect(page.locator(PLOTS)).to_have_count(3)
    page.evaluate("window.isSamePage = true")
    shop.execute("INSERT INTO visits VALUES (now(), '/before')")
    page.get_by_role("button", name="Peek").click()
    changes = page.locator("#changes")
    expect(changes.get_by_text("/before")).to_be_visible()
    page.get_by_role("button", name="Live tail").click()
    expect(changes.get_by_text("Waiting for the next transaction")).to_be_visible()
    shown = page.locator("[data-live=position]").inner_text()
    assert shown
    with frozen(serve):
        began = time.monotonic()
        is_stale(page)
        took_s = time.monotonic() - began
        assert took_s < BOUND_S
        # What was there is there, and does not look as if it were of now.
        assert page.locator("[data-live=position]").inner_text() == shown
        assert "grayscale" in page.locator("[data-live=position]").evaluate(
            "(one) => getComputedStyle(one).filter"
        )
        expect(page.locator(PLOTS)).to_have_count(3)
        expect(changes.get_by_role("alert")).to_contain_text("The live tail broke off at")
        expect(page.get_by_role("button", name="Live tail")).to_be_visible()
        page.get_by_role("button", name="Peek").click()
        expect(changes.locator(".unanswered")).to_contain_text(UNANSWERED)
        expect(changes).to_have_class(re.compile("of-before"))
    is_live(page)
    assert page.evaluate("window.isSamePage")
    page.get_by_role("button", name="Peek").click()
    expect(changes.get_by_text("/before")).to_be_visible()
    expect(changes.locator(".unanswered")).to_have_count(0)
    expect(changes).not_to_have_class(re.compile("of-before"))


class Relay:
    """What stands between browser and service, and keeps connections open whose service is gone."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: those of them that a page's stream is on
        self._streams: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                service = socket.create_connection(("127.0.0.1", self._upstream))
                self._pairs.append((client, service))
                for pair in ((client, service), (service, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if b"GET /ui/live/" in piece:
                    self._streams.append((source, target))
                target.sendall(piece)
            # The browser's own end; that the service is gone nobody tells it.
            if (source, target) in self._pairs:
                target.close()

    def lose_service(self) -> None:
        """Have every stream that is open now go on without a service."""
        for _, service in self._streams:
            with contextlib.suppress(OSError):
                service.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        for pair in self._pairs:
            for one in pair:
                one.close()


@pytest.mark.long
def test_a_connection_whose_service_is_gone(
    slot: str, service: Service, visit: Callable[..., Visit]
) -> None:
    """The browser would wait on it for ever."""
    relay = Relay(service.http_port)
    try:
        page = visit(f"http://127.0.0.1:{relay.port}").page
        page.goto(f"/ui/slots/{slot}")
        is_live(page)
        # The next connection may be better, and the page live again within a blink.
        page.evaluate(NOTED)
        relay.lose_service()
        began = time.monotonic()
        while not any(UNHEARD in said for said in page.evaluate("window.said")):
            assert time.monotonic() - began < BOUND_S
            page.wait_for_timeout(200)
        is_live(page)
        page.goto("about:blank")
    finally:
        relay.close()


@pytest.mark.long
def test_a_service_that_sees_nothing(visit: Callable[..., Visit]) -> None:
    """It answers, and what it answers with is old."""

    async def away() -> list[object]:
        raise MetadataError("the metadata store does not answer", hint="Try again.")

    with FakeService(pages=True) as service:
        service.engine.add_source("shop")
        page = visit(f"http://127.0.0.1:{service.http_port}").page
        page.goto("/")
        is_live(page)
        seen = service.engine.list_sources
        service.engine.list_sources = away  # type: ignore[method-assign, assignment]
        began = time.monotonic()
        is_stale(page, "nothing new; as of")
        assert time.monotonic() - began < BOUND_S
        service.engine.list_sources = seen  # type: ignore[method-assign]
        is_live(page)
        # Who comes now is told as of when that is, by the service's clock.
        assert page.locator("body").get_attribute("data-seen-at")
        # Of 24 hours, as all times are, wherever the reader is.
        evening = page.evaluate("Spillway.moment(new Date(new Date().setHours(23, 5, 9)))")
        assert evening == "23:05:09"
        before = page.evaluate("Spillway.moment(new Date(2026, 0, 31, 23, 59))")
        assert before == "2026-01-31 23:59:00"


@pytest.mark.long
def test_a_service_that_refuses_to_be_followed(
    visit: Callable[..., Visit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers: the page says what, and not that it does not."""
    with FakeService("s3cret", pages=True) as service:
        service.engine.add_source("shop")
        here = visit(f"http://127.0.0.1:{service.http_port}")
        page = here.page
        page.goto("/")
        page.get_by_label("Token").fill("s3cret")
        page.get_by_role("button", name="Log in").click()
        is_live(page)
        monkeypatch.setattr(live, "STREAMS_MAX", 0)
        page.reload()
        is_stale(page, "not followed")
        monkeypatch.undo()
        is_live(page)
        monkeypatch.setattr(live, "STREAMS_MAX", 0)
        page.reload()
        is_stale(page, "not followed")
        # Somebody logs out, in another tab.
        here.context.clear_cookies()
        is_stale(page, "signed out")


@pytest.mark.long
def test_charts_that_do_not_come(slot: str, page: Page) -> None:
    page.goto(f"/ui/slots/{slot}")
    expect(page.locator(PLOTS)).to_have_count(3)
    sign = page.locator(".charts-unanswered")
    expect(sign).to_be_hidden()

    def refuse(route: Route) -> None:
        route.abort()

    page.route("**/ui/past/**", refuse)
    expect(sign).to_contain_text("The charts are as of")
    expect(page.locator(".plot.of-before")).to_have_count(3)
    # The page itself is of now, and says so.
    is_live(page)
    page.unroute("**/ui/past/**", refuse)
    expect(sign).to_be_hidden()
    expect(page.locator(".plot.of-before")).to_have_count(0)

    def hang(route: Route) -> None:
        """Never answer."""

    page.route("**/ui/past/**", hang)
    page.get_by_role("radio", name="The last 7 days").check(force=True)
    expect(sign).to_contain_text("What the charts would show is not known")
    expect(page.locator(".plot-empty").first).to_have_text("Not known.")
    page.unroute("**/ui/past/**", hang)
    expect(sign).to_be_hidden()
    expect(page.locator(PLOTS)).to_have_count(3)


def test_there_are_beats_enough() -> None:
    assert 3 * BEAT_S <= SILENCE_S
