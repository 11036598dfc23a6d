"""A browser, a service and a PostgreSQL for the pages' tests, and what no page may ever do."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from harness.browser import browser as running_browser
from harness.cluster import Cluster
from harness.service import service_in_process
from harness.tiers import deep
from spillway.subscriber import targets

from .hands import Hand, Keyboard, Mouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from harness.cluster import Database
    from harness.service import Service

#: generous: the machine may be busy with everything else
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
IMAGES = "docs/images"
_ON_PURPOSE = ("Failed to load resource", "htmx:timeout", "htmx:afterRequest", "htmx:sendError")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    with Cluster(18, max_prepared_transactions=4) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def shop(cluster: Cluster) -> Database:
    database = cluster.create_database("shop")
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, city text);"
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int, "
        "total numeric(10,2), status text);ALTER TABLE orders REPLICA IDENTITY FULL;"
        "CREATE TABLE visits (at timestamptz, page text);"
    )
    return database


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        # Beside the lake, whose job takes long to start, a target whose program does at once.
        kinds = {**targets._BUILT_IN, "fake": ("harness.fake_target", "FakeTarget")}
        patch.setattr(targets, "_BUILT_IN", kinds)
        with service_in_process(tmp_path_factory.mktemp("service")) as service:
            yield service


@pytest.fixture
def lake(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    jar_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Where a lake may be filled: for pictures a directory such as readers have."""
    monkeypatch.setenv("SPILLWAY_JARS", str(jar_folder))
    if not request.config.getoption("--screenshots"):
        yield tmp_path / "lake"
        return
    made = Path("/srv/lake/shop")
    made.mkdir(parents=True)
    yield made
    shutil.rmtree(made)
    with contextlib.suppress(OSError):
        # Others have something there, too.
        made.parent.rmdir()


def _drop_subscriptions(service: Service) -> None:
    for one in service.call("GET", "/subscriptions")["subscriptions"]:
        service.call("DELETE", f"/subscriptions/{one['name']}")


@pytest.fixture
def nothing(service: Service) -> None:
    """No source, no slot and no subscription."""
    _drop_subscriptions(service)
    for slot in service.call("GET", "/slots")["slots"]:
        service.drop_slot(slot["slot_name"])
    for source in service.call("GET", "/sources")["sources"]:
        service.call("DELETE", f"/sources/{source['name']}")


@pytest.fixture
def source(service: Service, shop: Database) -> str:
    """The source ``main`` on the shop, without slots and subscriptions."""
    _drop_subscriptions(service)
    for slot in service.call("GET", "/slots")["slots"]:
        service.drop_slot(slot["slot_name"])
    names = [source["name"] for source in service.call("GET", "/sources")["sources"]]
    for name in names:
        if name != "main":
            service.call("DELETE", f"/sources/{name}")
    if "main" not in names:
        service.create_source(shop.dsn)
    return "main"


@pytest.fixture
def slot(service: Service, source: str) -> str:
    service.create_slot(
        "audit", "shop", "pgoutput", options={"proto_version": "2", "publication_names": "p"}
    )
    return "audit"


@pytest.fixture
def subscription(service: Service, source: str) -> str:
    """A subscription whose program runs."""
    service.call(
        "POST",
        "/subscriptions",
        json={
            "name": "filled",
            "source": source,
            "database": "shop",
            "target": {"kind": "fake", "mode": "run"},
        },
    )
    return "filled"


class Visit:
    """A browser context that notes what a page must never do: ask elsewhere, break its policy, fail
    in a script.
    """

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = base
        self.context = context
        self.wrong: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.on("request", self._request)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.wrong.append(f"script error: {error.error}"))
        self.page: Page = context.new_page()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.wrong.append(f"asked {request.url}")

    def _console(self, message: Any) -> None:
        # What a test asks for on purpose (a refused form, a service that is away) the browser notes
        # as well, and htmx does.
        if message.type == "error" and not message.text.startswith(_ON_PURPOSE):
            self.wrong.append(f"console: {message.text}")

    def check(self) -> None:
        assert not self.wrong


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Callable[..., Visit]]:
    visits: list[Visit] = []

    def begin(base: str = "", **options: Any) -> Visit:
        base = base or f"http://127.0.0.1:{service.http_port}"
        options = {"viewport": {"width": 1280, "height": 860}, "locale": "en-US", **options}
        context = browser.new_context(base_url=base, **options)
        visits.append(Visit(context, base))
        return visits[-1]

    yield begin
    for one in visits:
        one.context.close()
    for one in visits:
        one.check()


@pytest.fixture
def page(visit: Callable[..., Visit]) -> Page:
    return visit().page


@pytest.fixture(params=[Mouse, deep(Keyboard)])
def hand(request: pytest.FixtureRequest) -> Hand:
    """Who does a task: what can be clicked can be done by keyboard alone."""
    made: Hand = request.param()
    return made


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Take a picture for the documentation; only with ``--screenshots``."""
    directory: Path = request.config.rootpath / IMAGES

    def take(page: Page, name: str, **options: Any) -> None:
        assert re.fullmatch("[a-z-]+", name)
        if request.config.getoption("--screenshots"):
            directory.mkdir(exist_ok=True)
            page.screenshot(path=directory / f"{name}.png", **options)

    return take
