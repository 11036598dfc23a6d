"""Whatever is sent, to whatever route: an answer below 500, and no traceback in the log.

The routes are those of the OpenAPI document and of the admin UI; the requests are sent as bytes
over a real connection where it matters that they are no HTTP, and to the application else.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.fake_users import fake_users
from harness.kept_metadata import kept_metadata
from spillway.admin.application import Admin
from spillway.alerts.registry import Alerts
from spillway.slot_manager.app import create_app, openapi_document
from spillway.watch.past import Past
from spillway.watch.recorder import Recorder
from spillway.watch.sampler import Sampler
from spillway.watch.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = [
    "",
    "s1",
    "shop",
    "\0",
    "\ud800",
    "a\udfffb",
    "\udc80",
    "�",
    "\U0001d4b3" * 40,
    "x" * 5000,
    "../../etc/passwd",
    "%",
    "'\"; DROP TABLE x; --",
    "0/0",
    "FFFFFFFF/FFFFFFFF",
    "{}",
    "[",
    "\r\nX: y",
]
NUMBERS = [-1, 0, 2**31, 2**63, 2**64, 10**40, 1.5, float("1e308")]
ORIGINS = [
    "http://[",
    "http://[::1",
    "null",
    "http://a:99999999",
    "//",
    "\xff",
    "http://localhost:8080",
]
HOSTS = ["[", "[::1", "a:b", "localhost:99999999", "localhost:", "\xff", "", "localhost"]

_text = st.sampled_from(TEXTS) | st.text(max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


_STORED = tempfile.TemporaryDirectory()
#: Made before there is a loop, for that of every test.
METADATA = asyncio.run(kept_metadata(Path(_STORED.name)))


@functools.cache
def _app(token: str | None) -> Any:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    engine.add_slot("s1")
    admin = Admin(engine, subscriptions, token=token, version="0")
    sampler = Sampler(engine, subscriptions)
    return create_app(
        engine,
        subscriptions,
        token=token,
        version="0",
        admin=admin,
        users=fake_users(),
        alerts=Alerts(METADATA),
        sampler=sampler,
        past=Past(METADATA.metrics, Recorder(METADATA.metrics, engine, sampler)),
        timeline=Timeline(METADATA.schema_changes),
    )


def _operations() -> Iterator[tuple[str, str, list[str]]]:
    """Give each operation, and the names that its bodies know."""
    document = openapi_document(_app(None))
    schemas = document["components"]["schemas"]
    fields = sorted({name for schema in schemas.values() for name in schema.get("properties", {})})
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
            yield method.upper(), path, [*names, *fields]
    for path in ("/", "/ui/slots/{name}", "/ui/sources/{name}", "/ui/login", "/problems/{name}"):
        yield "GET", path, ["next", "q"]
    yield "POST", "/ui/login", ["token", "next"]


OPERATIONS = list(_operations())


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_hostile_requests(data: st.DataObject, quiet: pytest.LogCaptureFixture) -> None:
    method, path, names = data.draw(st.sampled_from(OPERATIONS))
    token = data.draw(st.sampled_from([None, "t"]))
    while "{" in path:
        before, _, rest = path.partition("{")
        text = data.draw(_text).encode(errors="surrogatepass")
        path = before + quote(text, safe="") + rest.partition("}")[2]
    query = {
        name: data.draw(_text).encode(errors="surrogatepass")
        for name in data.draw(st.lists(st.sampled_from(names), max_size=2))
    }
    headers = [(b"host", data.draw(st.sampled_from(HOSTS)).encode("latin-1"))]
    if data.draw(st.booleans()):
        headers = [(b"host", b"localhost:8080")]
    if data.draw(st.booleans()):
        headers.append((b"origin", data.draw(st.sampled_from(ORIGINS)).encode("latin-1")))
    credentials = data.draw(st.sampled_from([b"Bearer t", b"Bearer \xff", b"Bearer", b"\xff"]))
    headers += [(b"authorization", credentials), (b"cookie", b"spillway_session_8080=\xff.\xff.x")]
    body = b""
    if method not in ("GET", "DELETE"):
        kind = data.draw(st.sampled_from(["fields", "any", "bytes", "deep"]))
        known = st.dictionaries(st.sampled_from(names), _json, max_size=4)
        match kind:
            case "fields":
                body = json.dumps(data.draw(known)).encode()
            case "any":
                body = json.dumps(data.draw(_json)).encode()
            case "bytes":
                body = data.draw(st.binary(max_size=40))
            case _:
                body = b'{"options":' + b"[" * 50_000
        form = path.startswith("/ui")
        headers.append(
            (b"content-type", b"application/x-www-form-urlencoded" if form else b"application/json")
        )
    transport = httpx.ASGITransport(_app(token))  # it raises what the application raises
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        request = httpx.Request(
            method,
            httpx.URL("http://x" + path).copy_merge_params(
                {name: value.decode("latin-1") for name, value in query.items()}
            ),
            headers=headers,
            content=body,
        )
        response = await client.send(request)
    assert response.status_code < 500, (method, path, response.text)
    _assert_quiet(quiet)


@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (
            "/v1/slots",
            {},
            {"slot_name": "\ud800", "source": "shop", "database": "d", "plugin": "p"},
        ),
        (
            "/v1/slots",
            {},
            {"slot_name": "a", "source": "shop", "database": "\udfff", "plugin": "p"},
        ),
        ("/v1/sources", {}, {"name": "x", "dsn": "host=\ud800"}),
        ("/v1/sources", {}, {"name": "x", "dsn": "host=h\0"}),
        ("/v1/slots/s1/get", {}, {"options": {"\ud800": "1"}}),
        ("/v1/slots/s1/get", {}, {"options": {"a": "\ud800"}}),
        ("/v1/slots/s1/copy", {}, {"slot_name": "\udc00"}),
        ("/v1/slots/s1/get", {"origin": "http://["}, {}),
        ("/v1/slots/%00/get", {}, {}),
        ("/v1/nothing", {"origin": "http://[", "host": "["}, {}),
    ],
)
async def test_what_was_once_an_internal_error(
    token: str | None,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any],
    quiet: pytest.LogCaptureFixture,
) -> None:
    transport = httpx.ASGITransport(_app(token))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        response = await client.post(
            path,
            content=json.dumps(body),
            headers={
                "content-type": "application/json",
                "authorization": "Bearer t",
                **headers,
            },
        )
    # With the token, an origin that is none is no matter.
    assert response.status_code < 500
    if response.is_error:
        assert response.json()["code"] != "internal_error"
    _assert_quiet(quiet)


def _assert_quiet(log: pytest.LogCaptureFixture) -> None:
    for record in log.records:
        assert record.levelno < logging.ERROR, record.getMessage()
        assert record.exc_info is None, record.getMessage()
