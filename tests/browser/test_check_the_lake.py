"""*Check the lake* on the form of a subscription: what it says, and what mends it, done as it says.

In buckets it needs the jars for S3, a quarter of a gigabyte, which the long tier alone brings.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from moto.server import ThreadedMotoServer
from playwright.sync_api import expect

from harness.object_store import BUCKET
from harness.serve_process import ServeProcess
from spillway.demo.private_postgres import free_port
from spillway.lake import jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from harness.cluster import Database

    from .conftest import Visit

UID = os.geteuid()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory of the service's user."""
    with tempfile.TemporaryDirectory(prefix="spillway-lake-check-") as made:
        place = Path(made)
        yield place


@pytest.fixture(scope="module")
def store_port() -> int:
    """Where an object store is, or isn't yet."""
    return free_port()


@pytest.fixture
def jars_with_s3(jar_folder: Path) -> None:
    jars.resolve(jar_folder, (*jars.DELTA, *jars.S3))


@pytest.fixture(scope="module")
def serve(place: Path, shop: Database, store_port: int, jar_folder: Path) -> Iterator[ServeProcess]:
    environment = {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{store_port}",
        "AWS_ACCESS_KEY_ID": "lake",
        "AWS_SECRET_ACCESS_KEY": "not a secret",
        "AWS_REGION": "us-east-1",
        "SPILLWAY_JARS": str(jar_folder),
    }
    serve = ServeProcess(place / "data", environment=environment, is_bound_by_permissions=True)
    try:
        serve.service().create_source(shop.dsn, "checked")
        yield serve
        serve.service().call("DELETE", "/sources/checked")
    finally:
        serve.stop()


@pytest.fixture
def form(serve: ServeProcess, visit: Callable[..., Visit]) -> Page:
    page = visit(f"http://127.0.0.1:{serve.http_port}").page
    page.goto("/ui/subscriptions/new")
    page.get_by_label("Name", exact=True).fill("lake")
    return page


def check(page: Page, path: Path | str) -> None:
    page.get_by_label("Where the lake is").fill(str(path))
    button = page.get_by_role("button", name="Check the lake")
    with page.expect_response("**/ui/subscriptions/check") as asked:
        button.click()
    asked.value.finished()
    expect(button).to_be_enabled()


def is_ready(page: Page) -> None:
    told = page.locator("#lake-check")
    expect(told.get_by_role("heading", name="Ready")).to_be_visible()
    expect(told.get_by_role("alert")).to_have_count(0)


def remedy(page: Page, message: str, code: str = "lake_error") -> str:
    """Return the remedy that stands under *message*."""
    told = page.locator("#lake-check").get_by_role("alert")
    expect(told).to_contain_text(message)
    expect(told.locator("code").last).to_have_text(code)
    return told.locator(".remedy, pre code").first.inner_text()


def test_a_good_lake(form: Page, serve: ServeProcess, place: Path) -> None:
    check(form, place / "a" / "good")
    is_ready(form)
    expect(form.locator("#lake-check")).to_contain_text("Nothing was made.")
    assert not (place / "a").exists()
    assert serve.service().call("GET", "/subscriptions")["subscriptions"] == []
    assert serve.service().call("GET", "/slots")["slots"] == []
    # What lies there of others is good to know.
    (place / "shared").mkdir()
    (place / "shared" / "notes.txt").write_text("")
    check(form, place / "shared")
    is_ready(form)
    expect(form.locator("#lake-check")).to_contain_text("other files, which stay: notes.txt")


@pytest.mark.long
def test_a_path_that_can_not_be_written(form: Page, place: Path) -> None:
    closed = place / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    lake = closed / "lake"
    check(form, lake)
    hint = remedy(form, f"{closed} is not for user id {UID}")
    # Followed to its end, as root, whom permissions don't bind.
    if UID != 0:
        closed.chmod(0o755)
    command = shlex.split(hint.partition("as root: ")[2])
    assert command[0] == "install"
    subprocess.run(command, check=True)
    check(form, lake)
    is_ready(form)
    # The other way that the hint names.
    (place / "file").write_text("")
    check(form, place / "file" / "lake")
    assert remedy(form, "file is no directory").startswith("Name a directory")
    check(form, place / "another")
    is_ready(form)


@pytest.mark.long
def test_a_path_that_is_relative(form: Page, place: Path) -> None:
    check(form, "lakes/shop")
    hint = remedy(form, "is relative, and to what is not said", "invalid_request")
    assert hint == (
        "Give an absolute path of the service's machine, s3://bucket/prefix or "
        "az://container/prefix."
    )
    check(form, place / "lakes" / "shop")
    is_ready(form)


@contextmanager
def store(port: int) -> Iterator[None]:
    """Run an object store at *port*, without a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        yield
    finally:
        # What it keeps is the process's: another one would have it, too.
        httpx.post(f"http://127.0.0.1:{port}/moto-api/reset", timeout=60)
        server.stop()


@pytest.mark.long
@pytest.mark.usefixtures("jars_with_s3")
def test_a_bucket_that_can_not_be_reached(form: Page, store_port: int) -> None:
    """The hint has three questions: the address, the bucket, and the keys, of which a store that
    takes any has nothing to say.
    """
    path = f"s3://{BUCKET}/shop"
    address = f"http://127.0.0.1:{store_port}"
    check(form, path)
    hint = remedy(form, f"error sending request to {address}")
    assert hint.startswith("Is AWS_ENDPOINT_URL_S3 its address, does the bucket exist, and may")
    with store(store_port):
        check(form, path)
        assert remedy(form, "NoSuchBucket") == hint
        httpx.put(f"{address}/{BUCKET}", timeout=60).raise_for_status()
        check(form, path)
        is_ready(form)
        # What was written to see whether that can be is gone.
        listed = httpx.get(f"{address}/{BUCKET}", timeout=60).text
        assert "<Name>lakes</Name>" in listed
        assert "_spillway" not in listed


@pytest.mark.long
@pytest.mark.usefixtures("jars_with_s3")
def test_a_bucket_that_hangs(form: Page, store_port: int) -> None:
    """Somebody listens there and says nothing."""
    with socket.create_server(("127.0.0.1", store_port)):
        check(form, f"s3://{BUCKET}/shop")
        hint = remedy(form, "has not answered for 20 s")
    assert hint.startswith("Is AWS_ENDPOINT_URL_S3 its address")
