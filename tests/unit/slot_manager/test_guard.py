"""Who may talk to the REST service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.remedies import remedy
from spillway.admin.application import Admin
from spillway.slot_manager.app import create_app
from spillway.token_gate import TokenGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = "s3cret-töken"


@pytest.fixture
async def guarded() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(FakeEngine(), FakeSubscriptions(), token=TOKEN, version="")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://spillway.example") as client:
        yield client


@pytest.mark.parametrize(
    "path",
    ["/v1/slots", "/v1/nonsense", "/", "/docs", "/openapi.json", "/metrics", "/problems/conflict"],
)
async def test_everything_needs_the_token(guarded: httpx.AsyncClient, path: str) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic s3cret"},
        {b"authorization": b"Bearer \xff"},
    ):
        response = await guarded.get(path, headers=httpx.Headers(headers))
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="spillway"'
        assert response.json()["code"] == "unauthenticated"
    for scheme in ("Bearer", "bearer"):
        authorization = f"{scheme} {TOKEN}".encode()
        response = await guarded.get(path, headers={b"authorization": authorization})
        assert response.status_code in (200, 404)


@pytest.mark.follows_hint("unauthenticated")
async def test_a_refusal_says_how_to_get_in(guarded: httpx.AsyncClient) -> None:
    hint = remedy((await guarded.get("/v1/slots")).json(), "unauthenticated")
    said = re.search(r"header (\w+): (\w+) …", hint)
    assert said is not None
    headers = {said[1].encode(): f"{said[2]} {TOKEN}".encode()}
    assert (await guarded.get("/v1/slots", headers=headers)).status_code == 200


async def test_probes_need_none(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/healthz")).status_code == 200
    assert (await guarded.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost", "origin": "https://evil.example"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost:8080", "origin": "http://localhost:9999"},
        {"host": "localhost", "sec-fetch-site": "cross-site"},
        {"host": "["},
    ],
)
async def test_web_pages_of_others_are_kept_out(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    response = await client.post("/v1/slots/s1/get", headers=headers)
    assert response.status_code == 403
    assert response.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost"},
        {"host": "127.0.0.1:8080"},
        {"host": "[::1]:8080"},
        {
            "host": "localhost:8080",
            "origin": "http://localhost:8080",
            "sec-fetch-site": "same-origin",
        },
    ],
)
async def test_local_programs_and_own_pages_get_in(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await client.get("/v1/slots", headers=headers)).status_code == 200


async def test_guesses_are_slowed_at_both_doors() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    gate = TokenGate(TOKEN)
    admin = Admin(engine, subscriptions, token=TOKEN, version="0", gate=gate)
    app = create_app(engine, subscriptions, token=TOKEN, version="0", admin=admin, gate=gate)

    def caller(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://spillway.example")

    async with caller("10.0.0.1") as attacker:
        for number in range(2):
            answer = await attacker.get(
                "/v1/slots", headers={"authorization": f"Bearer wrong{number}"}
            )
            assert answer.status_code == 401
        # The two doors count together.
        for number in range(3):
            answer = await attacker.post("/ui/login", data={"token": f"wrong too {number}"})
            assert answer.status_code == 401
        answer = await attacker.get("/v1/slots", headers={"authorization": "Bearer another"})
        assert answer.status_code == 429
        assert answer.json()["code"] == "too_many_attempts"
        assert int(answer.headers["retry-after"]) >= 1
        answer = await attacker.post("/ui/login", data={"token": TOKEN})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "set-cookie" not in answer.headers
        assert "too many different wrong tokens" in answer.text
        assert (await attacker.get("/healthz")).status_code == 200
    async with caller("10.0.0.2") as user:
        answer = await user.post("/ui/login", data={"token": TOKEN})
        assert answer.status_code == 303
        # A session is no token: it goes on, wherever it comes from.
        assert (await user.get("/")).status_code == 200
