"""The admin UI's parts that need no browser."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import math
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import typer
from starlette.responses import StreamingResponse

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.remedies import remedy
from spillway import amounts
from spillway.admin import formats, live
from spillway.admin.access import SESSION_S, Sessions
from spillway.admin.application import Admin
from spillway.admin.changes import Filter, rows_of
from spillway.admin.conflict_view import DONE, OTHERWISE, conflict_view, remedy_of
from spillway.admin.forms import typed_time
from spillway.admin.rendering import Pages
from spillway.alerts.rules import checked_rule, concerns
from spillway.apply.conflicts.kinds import ALLOWED, DEFAULTS, ConflictKind, Resolution
from spillway.apply.conflicts.rules import ConflictRules
from spillway.caller import GRPC, calling
from spillway.cli import program
from spillway.errors import MetadataError, SourceError
from spillway.pg.lsn import Lsn
from spillway.receiver.table_sizes import TableSize
from spillway.service.model import Change, ColumnInfo, Obstacle, SlotInfo, TableInfo
from spillway.slot_manager.app import create_app
from spillway.subscriber.model import (
    Failure,
    LastBatch,
    SubscriptionSpec,
    SubscriptionState,
    TableResync,
    TableState,
    Verification,
    VerificationState,
    VerifiedTable,
)
from spillway.watch.findings import everything, told
from spillway.watch.history import Ring, Track
from spillway.watch.sampler import Sampler

if TYPE_CHECKING:
    from spillway.watch.findings import Finding
    from spillway.watch.sampler import View

STATIC = Path(formats.__file__).parent / "static"
PROJECT = Path(__file__).resolve().parents[3]
TOKEN = "s3cret"


def test_what_is_taken_from_others_is_as_it_was_published() -> None:
    vendor = STATIC / "vendor"
    listed = re.findall(
        r"^\| `(\S+)` \| \S+ \| \S+ \| \[\S+\]\((\S+)\) \| `([0-9a-f]{64})` \|$",
        (vendor / "README.md").read_text(),
        re.MULTILINE,
    )
    for name, licence, digest in listed:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
        assert (vendor / licence).stat().st_size > 300
    there = {path.name for path in vendor.iterdir()} - {"README.md"}
    assert there == {name for name, _, _ in listed} | {licence for _, licence, _ in listed}


def test_sizes_and_colours_are_tokens() -> None:
    """What is in no token is nowhere: a colour, and a size of type."""
    tokens = (STATIC / "tokens.css").read_text()
    known = set(re.findall(r"(--[a-z0-9-]+):", tokens))
    for sheet in STATIC.glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(), flags=re.DOTALL)
        assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= known, sheet.name
        if sheet.name != "tokens.css":
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", text), sheet.name
            assert not re.search(r"font-size: (?!var\(--t[1-6]\)|0\.93em|inherit)", text), (
                sheet.name
            )
    described = (PROJECT / "docs" / "explanation" / "admin-ui.md").read_text()
    assert known <= set(re.findall(r"`(--[a-z0-9-]+)`", described))


def test_templates_hold_no_script_style_or_other_host() -> None:
    for path in (STATIC.parent / "templates").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|hx-on|js:", text), (
            path
        )
        assert not re.search(r"https?://", text), path
        assert "|safe" not in text, path


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, amounts.DASH), (0, "0 B"), (1023, "1023 B"), (1536, "1.50 kB"), (200 << 20, "200.0 MB"),
     (5 << 50, "5120.0 TB")],
)  # fmt: skip
def test_sizes(value: int | None, text: str) -> None:
    assert amounts.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, amounts.DASH), (0.4, "0 s"), (99, "99 s"), (100, "1 min"), (7200, "2 h"),
     (7300, "2 h 1 min"), (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations(value: float, text: str) -> None:
    assert amounts.duration(value) == text


def test_what_is_sql_is_shown_as_code() -> None:
    assert formats.is_code("ALTER ROLE spillway REPLICATION;")
    assert not formats.is_code("Check host and port in the DSN.")


def test_a_sparkline_needs_two_points() -> None:
    assert formats.sparkline([math.nan, 1.0]) == ""
    assert formats.sparkline([0.0, 0.0]) == "0.0,22.0 96.0,22.0"
    assert formats.sparkline([0.0, 5.0]) == "0.0,22.0 96.0,2.0"


def test_a_ring_keeps_the_newest() -> None:
    ring = Ring(3, 1)
    for number in range(5):
        ring.add(float(number), (number * 10.0,))
    assert list(ring.column(0)) == [2.0, 3.0, 4.0]
    assert list(ring.column(1)) == [20.0, 30.0, 40.0]
    assert len(ring) == 3


def test_a_minute_has_its_peak() -> None:
    track = Track(("lag",))
    for second, value in ((0, 1.0), (2, 9.0), (58, math.nan), (60, 2.0), (125, 3.0)):
        track.add(float(second), (value,))
    times, values = track.series("lag", by_minute=True)
    assert list(times) == [0.0, 60.0], "the minute that goes on is not there yet"
    assert list(values) == [9.0, 2.0]
    assert track.last("lag") == 3.0


def test_sessions() -> None:
    sessions = Sessions(TOKEN)
    cookie = sessions.issue()
    assert sessions.is_valid(cookie)
    assert Sessions(TOKEN).is_valid(cookie), "a session outlives a restart"
    assert not Sessions("another").is_valid(cookie), "a new token ends all"
    assert not sessions.is_valid(cookie[:-1] + ("A" if cookie[-1] != "A" else "B"))
    assert not sessions.is_valid("")
    assert not sessions.is_valid("é.x.y")
    expires, nonce, _ = cookie.split(".")
    assert not sessions.is_valid(f"{int(expires) + 1}.{nonce}.{cookie.split('.')[2]}")
    assert sessions.csrf(cookie) != sessions.csrf(sessions.issue())


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(TOKEN)
    cookie = sessions.issue()
    later = datetime.now(UTC).timestamp() + SESSION_S + 1
    monkeypatch.setattr("spillway.admin.access.time.time", lambda: later)
    assert not sessions.is_valid(cookie)


def _change(**message: object) -> Change:
    return Change(Lsn(0x100), 7, json.dumps(message))


def test_rows_of_changes() -> None:
    changes = [
        _change(action="B"),
        _change(
            action="U",
            schema="s",
            table="t",
            columns=[{"name": "a", "type": "int", "value": 1},
                     {"name": "b", "type": "text", "value": "x" * 500}],
            identity=[{"name": "a", "type": "int", "value": 2}],
            pk=[{"name": "a", "type": "int"}],
        ),
        _change(action="M", prefix="p", content="told"),
        Change(Lsn(0x200), 7, '{"action": "I", "broken'),
        _change(action="C"),
    ]  # fmt: skip
    rows, seen = rows_of(changes, Filter())
    assert seen == 3
    assert [row.operation for row in rows] == ["update", "message", "unreadable"]
    first, second = rows[0].values
    assert (first.text, first.old, first.is_key) == ("1", "2", True)
    assert second.text.endswith("… (500 characters)")
    assert rows[1].values[0].text == "told"
    assert [row.table for row in rows_of(changes, Filter("S.T", "update"))[0]] == ["s.t"]


async def _admin(engine: FakeEngine, token: str | None = None) -> httpx.AsyncClient:
    subscriptions = FakeSubscriptions()
    admin = Admin(engine, subscriptions, token=token, version="1.2.3")
    app = create_app(engine, subscriptions, token=token, version="", admin=admin)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8080")


async def test_without_metadata_the_overview_says_so() -> None:
    engine = FakeEngine()
    engine.next_error = MetadataError("the metadata store is away", hint="Start it.")
    async with await _admin(engine) as client:
        answer = await client.get("/")
        assert answer.status_code == 200
        assert "the metadata store is away" in answer.text


async def test_a_bug_shows_a_page_and_no_internals() -> None:
    engine = FakeEngine()
    engine.next_error = RuntimeError("secret internals")
    async with await _admin(engine) as client:
        answer = await client.get("/")
        assert answer.status_code == 500
        assert "secret internals" not in answer.text
        assert "<h1>" in answer.text


async def test_every_page_has_the_policy_and_the_rest_is_as_it_was() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    async with await _admin(engine) as client:
        for path in (
            "/",
            "/ui/slots/s1",
            "/ui/nowhere",
            "/ui/login",
            "/ui/static/app.css",
            "/ui/static/../door.py",
        ):
            answer = await client.get(path)
            assert "default-src 'none'" in answer.headers["content-security-policy"], path
        assert (await client.get("/v1/nowhere")).json()["code"] == "not_found"
        foreign = await client.get("/", headers={"host": "evil.example"})
        assert foreign.status_code == 403
        oversize = await client.post("/ui/slots", content=b"x" * 300_000)
        assert oversize.status_code == 400
        assert (await client.post("/ui/slots", content=b"\xff\xfe")).status_code == 400  # fmt: skip


@pytest.mark.follows_hint("forged_request")
async def test_a_forged_form_is_refused_and_the_pages_own_is_taken() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")

    def refused(answer: httpx.Response) -> str:
        assert answer.status_code == 403
        assert "forged_request" in answer.text
        said = re.search(r"(?:Reload|Open)[^<]*try again", html.unescape(answer.text))
        assert said is not None
        return remedy({"code": "forged_request", "hint": said[0]}, "forged_request")

    async with await _admin(engine) as client:
        page = "/ui/slots/s1/drop"
        assert "Reload the page" in refused(await client.post(page, data={"name": "s1"}))
        shown = await client.get("/ui/slots/s1")
        csrf = re.search(r'data-csrf="([^"]+)"', shown.text)
        assert csrf is not None
        form = {"csrf": csrf[1], "confirm": "s1"}
        foreign = await client.post(page, data=form, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403
        assert "Open the service's own page" in foreign.json()["hint"]
        own = {"origin": str(client.base_url).rstrip("/")}
        assert (await client.post(page, data=form, headers=own)).status_code != 403


async def test_a_token_is_asked_for_everywhere() -> None:
    async with await _admin(FakeEngine(), TOKEN) as client:
        for path in ("/", "/ui/slots/new", "/ui/slots/x/series", "/ui"):
            answer = await client.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/ui/login")
        assert (await client.post("/ui/slots", data={})).status_code == 303
        assert (await client.get("/v1/slots")).status_code == 401
        assert (await client.get("/docs")).status_code == 401


async def test_streams_are_bounded_and_end() -> None:
    streams = live.Streams()

    async def never() -> live.AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    bodies: list[Any] = []
    for _ in range(live.STREAMS_MAX):
        response = streams.respond(never())
        assert response.status_code == 200
        assert isinstance(response, StreamingResponse)
        bodies.append(aiter(response.body_iterator))
    assert streams.respond(never()).status_code == 503
    assert await anext(bodies[0]) == "retry: 2000\n\n"
    waiting = asyncio.create_task(anext(bodies[0]))
    streams.close()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert streams.respond(never()).status_code == 503


async def _never() -> live.AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


async def test_a_client_that_reads_nothing_keeps_no_seat_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a client shows that it reads. Who comes has the longest one's seat, after a
    while.
    """
    streams = live.Streams()
    bodies: list[Any] = []
    for _ in range(live.STREAMS_MAX):
        response = streams.respond(_never())
        assert isinstance(response, StreamingResponse)
        bodies.append(aiter(response.body_iterator))
        await anext(bodies[-1])
    assert streams.respond(_never()).status_code == 503
    monkeypatch.setattr(live, "SEAT_S", 0.0)
    first, second = (asyncio.create_task(anext(body)) for body in bodies[:2])
    assert streams.respond(_never()).status_code == 200
    with pytest.raises(StopAsyncIteration):
        await first
    assert not second.done()
    monkeypatch.undo()
    assert streams.respond(_never()).status_code == 503
    streams.close()
    with pytest.raises(StopAsyncIteration):
        await second


async def test_findings_come_worst_first() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    for name in ("idle", "lost", "near", "fine"):
        engine.add_slot(name)
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    engine.change_slot("idle", retained_bytes=100 << 20, inactive_since=long_ago)
    engine.change_slot("lost", invalidation_reason="wal_removed")
    engine.change_slot("near", retained_bytes=90, safe_wal_size=10)
    view = await Sampler(engine, FakeSubscriptions()).look()
    assert [f.title for f in view.findings] == [
        "Slot lost was invalidated",
        "Slot near is about to be invalidated",
        "Nobody reads slot idle",
    ]
    assert all(finding.remedy for finding in view.findings)
    assert not everything([], [], [])


async def test_what_is_not_asked_for_takes_the_place_of_nothing() -> None:
    """A rule about slots that lag is told of one also while nobody reads it, or it is nearly lost:
    else it would be told that this is over.
    """
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s")
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    engine.change_slot("s", retained_bytes=90, safe_wal_size=10, inactive_since=long_ago)
    view = await Sampler(engine, FakeSubscriptions()).look()
    view = replace(view, slots=tuple(replace(one, lag_seconds=900.0) for one in view.slots))

    def codes(*asked: str) -> tuple[list[str], list[str]]:
        heard = told(view.everything(), lambda finding: not asked or finding.code in asked)
        superseded = sorted(code for code, subject in heard.superseded if subject == "s")
        return [finding.code for finding in heard.findings], superseded

    assert codes() == (["slot_near_limit"], ["slot_lagging", "slot_unread"])
    assert codes("slot_unread", "slot_lagging") == (["slot_unread"], ["slot_lagging"])
    assert codes("slot_lagging") == (["slot_lagging"], [])
    assert codes("source_down") == ([], [])


async def lagging(engine: FakeEngine, subscriptions: FakeSubscriptions) -> View:
    """What is seen of the slot ``a_slot``, which lags as ``a`` does, the subscription that reads
    it.
    """
    view = await Sampler(engine, subscriptions).look()
    return replace(view, slots=tuple(replace(one, lag_seconds=900.0) for one in view.slots))


async def test_a_stale_subscription_hides_its_slots_lag_only_from_who_hears_of_both() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    engine.add_slot("a_slot")
    engine.change_slot("a_slot", active=True, inactive_since=None)
    await subscriptions.create(
        SubscriptionSpec("a", "shop", "shop", {"kind": "lake", "path": "/"}, slot="a_slot")
    )
    subscriptions.change("a", lag_seconds=900.0)
    view = await lagging(engine, subscriptions)

    def heard(**rule: Any) -> tuple[list[str], frozenset[tuple[str, str]]]:
        found = told(view.everything(), partial(concerns, checked_rule("r", rule, [])))
        return [one.code for one in found.findings], found.superseded

    both = (["subscription_stale"], frozenset({("slot_lagging", "a_slot")}))
    assert heard() == both
    assert heard(codes=["subscription_stale", "slot_lagging"]) == both
    alone = (["slot_lagging"], frozenset[tuple[str, str]]())
    assert heard(codes=["slot_lagging"]) == alone
    # Who names the slot hears of its lag, whatever its subscription's name.
    assert heard(subjects=["a_slot"]) == alone
    assert heard(subjects=["a"]) == (["subscription_stale"], frozenset())
    # That it fails, or starts again, does not end its lag.
    for state, said in (("failed", ["subscription_failed", "slot_lagging"]),
                        ("initializing", ["subscription_stale"])):  # fmt: skip
        subscriptions.change("a", state=SubscriptionState(state))
        view = await lagging(engine, subscriptions)
        codes, superseded = heard()
        assert codes == said
        assert (("subscription_stale", "a") in superseded) == (state == "failed")


async def test_what_a_comparison_and_a_load_found() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    engine.add_slot("a")
    await subscriptions.create(SubscriptionSpec("a", "shop", "shop", {"kind": "lake", "path": "/"}))
    at = datetime(2026, 11, 26, 10, tzinfo=UTC)
    wrong = [VerifiedTable(f"public.t{n}", equal=False, source_rows=2, target_rows=1,
                           differences=n, more=n == 2) for n in (1, 2)]  # fmt: skip
    fine = VerifiedTable("public.u", equal=True, source_rows=1, target_rows=1, differences=0,
                         more=False)  # fmt: skip

    async def seen(state: str, **found: Any) -> tuple[list[Finding], set[str]]:
        verification = Verification(VerificationState(state), at, at, Lsn(0x30), **found)
        subscriptions.change("a", verification=verification)
        view = await Sampler(engine, subscriptions).look()
        unknown = {code for code, subject in view.unknown() if subject == "a"}
        return list(view.findings), unknown & {"lake_differs", "comparison_failed"}

    (differs,), unknown = await seen("different", tables=(wrong[0], fine))
    assert (differs.severity, differs.code, differs.subject) == ("bad", "lake_differs", "a")
    assert differs.detail == "As of 0/30: public.t1 (1 key)."
    assert (differs.since, unknown) == (at, set())
    assert differs.remedy == (
        "POST /v1/subscriptions/a/tables/public.t1/resync loads a table that differs anew; when "
        "that is done, POST /v1/subscriptions/a/verify compares again."
    )
    (differs,), _ = await seen("different", tables=tuple(wrong))
    assert differs.detail == "As of 0/30: public.t1 (1 key), public.t2 (at least 2 keys)."
    # What was found is not known to be over before another comparison says so.
    assert await seen("running") == ([], {"lake_differs", "comparison_failed"})
    why = Failure("not_ready", "no snapshot", "Wait.")
    (failed,), unknown = await seen("failed", error=why)
    assert (failed.severity, failed.code, failed.detail) == (
        "warn", "comparison_failed", "no snapshot"
    )  # fmt: skip
    assert failed.remedy == "Wait. POST /v1/subscriptions/a/verify compares again."
    assert unknown == {"lake_differs"}
    assert await seen("equal", tables=(fine,)) == ([], set())
    # A table that was wanted anew.
    for state, reason in (("failed", "It is too large."), ("loading", None), ("done", None)):
        resync = TableResync(state, at, reason=reason)
        table = TableState("public.t1", "ready", resync=resync)
        subscriptions.change("a", table_states=(table,))
        view = await Sampler(engine, subscriptions).look()
        found = [(one.code, one.subject, one.detail) for one in view.findings]
        told_of = [("resync_failed", "a/public.t1", "It is too large.")]
        assert found == (told_of if state == "failed" else [])
        assert (("resync_failed", "a/public.t1") in view.unknown()) == (state == "loading")


async def test_a_hole_in_a_log_is_found() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    source = engine.sources["shop"]
    sessions = tuple(replace(one, log_damaged=True) for one in source.sessions)
    engine.sources["shop"] = replace(source, sessions=sessions)
    (found,) = (await Sampler(engine, FakeSubscriptions()).look()).findings
    assert found.title == "The transaction log of shop / shop is damaged"
    assert "decoded again by itself" in found.remedy


async def page(engine: FakeEngine, path: str) -> str:
    subscriptions = FakeSubscriptions()
    admin = Admin(engine, subscriptions, token=None, version="0")
    app = create_app(engine, subscriptions, token=None, version="0", admin=admin)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get(path)).text


async def test_a_green_sign_needs_to_know() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    assert "Everything is as it should be" in await page(engine, "/")
    # Nobody knows yet: no zero, no green.
    engine.lag_s = None
    engine.change_slot("s1", retained_bytes=None, wal_status=None, inactive_since=None)
    text = await page(engine, "/")
    assert "not known of 1 of 1 slot" in text
    assert "Everything is as it should be" not in text
    assert "0 s" not in text
    assert f"<dt>Retained here</dt><dd>{amounts.DASH}</dd>" in text
    # What lies long is said at once, also of a slot that somebody has and that retains little.
    engine.lag_s = 42 * 60.0
    engine.change_slot("s1", retained_bytes=100, inactive_since=None, active=True)
    text = await page(engine, "/")
    assert "Slot s1 lags 42 min" in text
    assert "Everything is as it should be" not in text


async def test_what_is_in_the_way_is_on_the_pages() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    engine.commit("shop", "a")
    engine.in_the_way = [
        Obstacle(
            "disk", "/data", "disk_full", "no space is left", "Free some.", datetime.now(UTC),
            "The disk is full",
        ),
        Obstacle(
            "metadata", "metadata", "metadata_unavailable", "it is locked", "h", None,
            "Metadata can't be written",
        ),
    ]  # fmt: skip
    engine.warned_of = [
        Obstacle("certificate", "tls", "tls_failed", "it ends", "Renew it.", None, "TLS is worn")
    ]
    # With sources and, before there is one, without.
    for shown in (engine, empty := FakeEngine()):
        shown.in_the_way, shown.warned_of = engine.in_the_way, engine.warned_of
        text = await page(shown, "/")
        assert re.search(r"The disk is full \(for \d+ s\)", text)
        assert "Metadata can&#39;t be written" in text
        assert "TLS is worn" in text
        assert "Renew it." in text
    empty.in_the_way = empty.warned_of = []
    text = await page(empty, "/")
    assert "TLS is worn" not in text
    assert "as it should be" not in text
    engine.in_the_way = engine.warned_of = []
    engine.stop_decoding("shop")
    assert "Decoding of shop / shop has stopped" in await page(engine, "/")
    slot = await page(engine, "/ui/slots/s1")
    assert "Decoding has stopped" in slot
    assert "Decoding has stopped" in await page(engine, "/ui/slots/s1/changes")
    engine.sources["shop"] = replace(engine.sources["shop"], state="connecting", heard_at=None)
    assert "Nothing is known of source shop yet" in await page(engine, "/")


async def test_the_consumer_is_on_the_slots_page_with_a_way_to_end_it() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    with calling("192.0.2.7:4711", "loader/1.2 grpc-c/9", protocol=GRPC):
        async with engine.stream("s1"):
            text = await page(engine, "/ui/slots/s1")
            overview = await page(engine, "/")
    consumer = re.search(r'<dl class="pairs consumer">.*?</dl>', text, re.DOTALL)
    assert consumer is not None
    said = " ".join(re.sub(r"<[^>]+>", " ", consumer[0]).split())
    assert said.startswith("Name loader/1.2 grpc-c/9 Protocol gRPC a stream Address 192.0.2.7:4711")
    assert said.endswith("Acknowledged not yet")
    assert "loader/1.2, 192.0.2.7:4711<" in overview
    assert "/ui/slots/s1/end-session" in text


async def test_the_command_that_reads_a_slot_is_one() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    text = await page(engine, "/ui/slots/s1")
    printed = re.findall(r"<code>(spillway recv .*?)</code>", text)
    assert len(printed) == 1, printed
    _, name, *arguments = shlex.split(html.unescape(printed[0]))
    recv = typer.main.get_command(program.app).commands[name]  # type: ignore[attr-defined]
    assert recv.make_context(name, arguments).params["slot"] == "s1"


async def test_every_attribute_is_explained() -> None:
    from dataclasses import fields

    from spillway.admin.explanations import SLOT

    assert {field.name for field in fields(SlotInfo)} <= set(SLOT)


async def test_what_is_dropped_is_forgotten() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    sampler = Sampler(engine, FakeSubscriptions())
    await sampler.look()
    assert sampler.track("slot", "s1") is not None
    await engine.drop_slot("s1")
    await sampler.look()
    assert sampler.track("slot", "s1") is None


async def test_who_asks_once_leaves_no_trace() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    engine.add_slot("s1")
    sampler = Sampler(engine, FakeSubscriptions())
    before = await sampler.look()
    engine.change_slot("s1", invalidation_reason="wal_removed")
    (found,) = (await sampler.see()).findings
    assert found.code == "slot_invalidated"
    assert sampler.view is before
    track = sampler.track("slot", "s1")
    assert track is not None
    times, _ = track.series("lag_bytes")
    await sampler.see()
    assert track.series("lag_bytes")[0] == times
    assert (await sampler.look()).findings == (found,)


def test_a_hint_speaks_of_pages() -> None:
    error = {"message": "m", "code": "c", "hint": "GET /v1/sources shows the state of each source."}
    shown = Pages("0").text("parts/error.html", error=error)
    assert "The overview shows the state of each source." in shown
    assert "/v1" not in shown


async def test_a_forms_fields_are_the_target() -> None:
    """What the format has of the declared options, the others' lines, and nothing that is empty."""
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    admin = Admin(engine, subscriptions, token=None, version="0")
    app = create_app(engine, subscriptions, token=None, version="0", admin=admin)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        shown = (await client.get("/ui/subscriptions/new")).text
        csrf = re.search(r'name="csrf" value="([^"]+)"', shown)
        assert csrf is not None
        form = {
            "csrf": csrf[1], "name": "a", "source": "shop", "database": "shop", "path": "/l",
            "format": "delta", "partition_history": "day", "partition_by": "s.t = day(at), b",
            "conf": "spark.local.dir = /a=b",
            "cluster_by": "", "iceberg_prefix": "x", "job": "retention = 30d\ninterval_s = 2.5",
        }  # fmt: skip
        answer = await client.post("/ui/subscriptions", data=form)
        assert answer.status_code in (204, 303), answer.text
        altered = html.unescape((await client.get("/ui/subscriptions/a")).text)
    # In the form that alters it: what is of tables has fields of its own, the rest a line each.
    assert re.search(r'name="partition_by"[^>]*>s\.t = day\(at\), b</textarea>', altered)
    assert re.search(r'name="cluster_by"[^>]*></textarea>', altered)
    assert re.search(r'name="conf"[^>]*>spark\.local\.dir = /a=b</textarea>', altered)
    lines = re.search(r'name="job"[^>]*>([^<]*)</textarea>', altered)
    assert lines is not None
    assert set(lines[1].splitlines()) == {
        "partition_history = day", "retention = 30d", "interval_s = 2.5"
    }  # fmt: skip
    made = await subscriptions.get("a")
    assert made.target == {
        "kind": "lake", "format": "delta", "path": "/l", "partition_history": "day",
        "retention": "30d", "interval_s": 2.5, "partition_by": {"s.t": ["day(at)", "b"]},
        "conf": {"spark.local.dir": "/a=b"},
    }  # fmt: skip


def test_a_conflict_is_laid_side_by_side() -> None:
    document = {
        "kind": "update_origin_differs", "resolution": "apply_remote", "schema": "public",
        "table": "t'x", "identity": {"id": "1"}, "remote": {"id": "1", "a": "new", "b": None},
        "local": [{"row": {"id": "1", "a": "old", "b": None, "own": "x"}}],
    }  # fmt: skip
    view = conflict_view(document)
    assert view.heads == ("looked for", "on the target", "from the source")
    assert [(line.column, line.differs) for line in view.lines] == [
        ("id", False),
        ("a", True),
        ("b", False),
        ("own", False),
    ]
    texts = [[cell.text if cell.is_there else "-" for cell in line.cells] for line in view.lines]
    assert texts == [["1", "1", "1"], ["-", "old", "new"], ["-", None, None], ["-", "x", "-"]]
    # A row that is missing, or too long to be kept.
    assert conflict_view({**document, "local": [], "remote": None, "identity": None}).lines == ()


async def test_what_a_conflict_may_become_is_what_its_kind_may() -> None:
    assert set(OTHERWISE) == set(ALLOWED)
    for kind, others in OTHERWISE.items():
        assert {*others} <= {str(one) for one in ALLOWED[ConflictKind(kind)]}
        assert DEFAULTS[ConflictKind(kind)] in others
    assert set(DONE) == set(Resolution)
    subscriptions = FakeSubscriptions()
    rules = {"insert_exists": "keep_local", "tables": {"s.u": {"delete_missing": "error"}}}
    target = {"kind": "postgres", "dsn": "host=x", "conflicts": rules}
    one = await subscriptions.create(SubscriptionSpec("a", "shop", "shop", target))
    met = {"kind": "update_missing", "resolution": "skip", "schema": "s", "table": "t'x"}
    words = shlex.split(remedy_of(one, met))
    assert words[:5] == ["spillway", "subscription", "alter", "a", "-t"]
    # What it has already is in it, for what is given replaces that.
    given = json.loads(words[5].removeprefix("conflicts="))
    assert given.pop("tables") == {
        "s.u": {"delete_missing": "error"},
        "s.t'x": {"update_missing": "apply_remote"},
    }
    assert given == {"insert_exists": "keep_local"}
    ConflictRules.parse({**given})
    assert remedy_of(one, {**met, "kind": "of another release"}) == ""


def test_times_in_sentences_and_fields() -> None:
    text = "WAL <came> last 2026-11-22 10:00:05 UTC, not 2026-11-22 10:00."
    assert formats.timed(text) == (
        'WAL &lt;came&gt; last <time class="when" datetime="2026-11-22T10:00:05+00:00" '
        'title="2026-11-22 10:00:05 UTC">2026-11-22 10:00:05 UTC</time>, not 2026-11-22 10:00.'
    )
    # A field of that type takes no zone; what is none stays out of it, and the page says so.
    assert typed_time("2026-11-22T10:00:05.5+05:30") == "2026-11-22T04:30:05"
    assert typed_time("2026-11-22 10:00") == "2026-11-22T10:00:00"
    assert typed_time("yesterdayish") == ""
    assert typed_time("") == ""


async def test_what_a_lakes_tables_are_like() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    await subscriptions.create(SubscriptionSpec("a", "s", "shop", {"kind": "lake", "path": "/l"}))
    known = TableState(
        "public.known", "paused", reason="somebody paused it", rows=3000, files=17, bytes=5 << 20,
        deleted_rows=1000, newest_change_at=datetime.now(UTC) - timedelta(minutes=5),
    )  # fmt: skip
    subscriptions.change("a", table_states=(known, TableState("public.new", "ready")))
    admin = Admin(engine, subscriptions, token=None, version="1.2.3")
    app = create_app(engine, subscriptions, token=None, version="", admin=admin)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        text = (await client.get("/ui/subscriptions/a")).text
        one = replace(known, rows=1, files=1, deleted_rows=0)
        subscriptions.change("a", table_states=(one,))
        assert "1 row; 1 file, 5" in (await client.get("/ui/subscriptions/a")).text
    first, second = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", text, re.DOTALL)
    for words in (
        "public.known",
        "3,000 rows, 25.0 % of what is stored marked as gone; 17 files, 5",
        "newest change",
        "somebody paused",
    ):
        assert words in first, first
    assert "bad-text" not in first
    assert "public.new" in second
    # Nobody knows, and nothing is said.
    assert "gone" not in second
    assert "files" not in second
    assert "newest" not in second
    assert "1 paused" in text
    assert "Pause or resume a table" in text
    assert "none with changes yet" in text


async def test_tables_are_offered_with_their_sizes() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    await engine.create_source("main", "host=db dbname=shop")
    names = ("orders", "new", "unknown")
    engine.tables[("main", "shop")] = [
        TableInfo("public", name, "table", (), "default", ("id",), ("id",), (), (), True, ())
        for name in names
    ]
    columns = (
        ColumnInfo("total price", "numeric(10,2)", not_null=False, generated=False),
        *(
            ColumnInfo(f"c{n}", "jsonb", not_null=False, generated=False, as_text=True)
            for n in range(5)
        ),
    )
    orders = engine.tables[("main", "shop")][0]
    engine.tables[("main", "shop")][0] = replace(orders, columns=columns, kind="partitioned table")
    engine.sizes = {
        "public.orders": TableSize(5 << 30, 1_200_000), "public.new": TableSize(8192, None),
    }  # fmt: skip
    admin = Admin(engine, subscriptions, token=None, version="1.2.3")
    app = create_app(engine, subscriptions, token=None, version="", admin=admin)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    of = "source=main&database=shop"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        form = (await client.get(f"/ui/subscriptions/tables?{of}")).text
        (asks,) = re.findall(r'hx-get="(/ui/subscriptions/tables/sizes[^"]*)"', form)
        answer = (await client.get(html.unescape(asks))).text
        engine.sizes_error = SourceError("connection refused", hint="Start it.")
        without = (await client.get(html.unescape(asks))).text
        bad = await client.get(f"/ui/subscriptions/tables/sizes?{of}&after=x")
    places = dict(re.findall(r'value="(public\.\w+)".*?id="(size-[^"]+)"', form))
    assert {*places} == {f"public.{name}" for name in names}
    for note in (
        "its partitions are a lake&#39;s tables, unless partition_root names it",
        "Delta needs column mapping, or safe column names, for total price",
        "text in a lake: c0 (jsonb), c1 (jsonb), c2 (jsonb), c3 (jsonb) and 1 more",
    ):
        assert form.count(f'lake-note">{note}<') == 1
    said = dict(re.findall(r'id="(size-[^"]+)" hx-swap-oob="true">([^<]*)<', answer))
    assert said == {
        places["public.orders"]: "5.00 GB, about 1,200,000 rows",
        places["public.new"]: "8.00 kB",
    }
    assert "is not known: connection refused." in without
    assert "hx-swap-oob" not in without
    assert bad.status_code == 400


async def test_a_lakes_last_batch() -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    await subscriptions.create(SubscriptionSpec("a", "s", "shop", {"kind": "lake", "path": "/l"}))
    ended = datetime.now(UTC) - timedelta(minutes=5)
    batch = LastBatch(ended, 1.5, 1200, 2, Lsn(0x10), Lsn(0x20))
    subscriptions.change("a", table_states=(TableState("s.t", "ready"),), last_batch=batch)
    admin = Admin(engine, subscriptions, token=None, version="1.2.3")
    app = create_app(engine, subscriptions, token=None, version="", admin=admin)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        text = (await client.get("/ui/subscriptions/a")).text
        for words in ("1,200 changes of 2 tables in 1.5 s", "0/10 to 0/20"):
            assert words in text


_DDL = Failure("target_schema_change", "public.t changed", "Alter it there.")


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("subscription_failed", {"state": SubscriptionState.FAILED}),
        ("schema_change_paused", {"state": SubscriptionState.FAILED, "error": _DDL}),
        ("subscription_stale", {"lag_seconds": 86_400.0}),
        ("table_quarantined", {"table_states": (TableState("s.t", "quarantined", reason="no"),)}),
        ("table_not_copied", {"table_states": (TableState("s.t", "waiting", reason="no"),)}),
    ],
)
async def test_signs_of_subscriptions_come_and_go(code: str, change: dict[str, Any]) -> None:
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    await subscriptions.create(
        SubscriptionSpec("a", "shop", "shop", {"kind": "lake", "path": "/l"})
    )
    well = subscriptions.change("a", state=SubscriptionState.STREAMING, lag_seconds=0.0)
    sampler = Sampler(engine, subscriptions)

    async def signs() -> list[str]:
        found = (await sampler.look()).findings
        return [one.code for one in found if one.link == "/ui/subscriptions/a"]

    assert await signs() == []
    subscriptions.change("a", **change)
    assert await signs() == [code]
    subscriptions.subscriptions["a"] = well
    assert await signs() == []
    # What somebody paused is no trouble.
    subscriptions.change("a", table_states=(TableState("s.t", "paused", reason="asked"),))
    assert await signs() == []
