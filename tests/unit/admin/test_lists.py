"""Lists, what Ctrl-K finds, the overview's rows and a slot's bar, without a browser."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from spillway.admin.flow import SOURCES_SHOWN, flows_of
from spillway.admin.listing import PAGE_ROWS, Asked, Column, Kind, listed
from spillway.admin.palette import Table, entries_of, entries_of_tables, find
from spillway.admin.position_bar import WIDTH, position_bar
from spillway.pg.lsn import Lsn
from spillway.subscriber.model import SubscriptionSpec
from spillway.watch.sampler import Sampler

KIND = Kind(
    "slots",
    (
        Column("name", "Name", lambda row: row.name),
        Column("lag", "Lag", lambda row: row.lag, is_number=True),
        Column("note", "Note"),
    ),
)


@dataclass(frozen=True)
class Thing:
    name: str
    state: str = "idle"
    severity: str | None = None
    lag: float | None = 0.0

    @property
    def text(self) -> str:
        return f"{self.name} {self.state}"


THINGS = [
    Thing("b", "active", lag=5),
    Thing("a", "idle", "warn", lag=None),
    Thing("c", "idle", lag=math.nan),
    Thing("d", "invalidated", "bad", lag=70),
]


def names(**query: str) -> list[str]:
    return [row.name for row in listed(KIND, THINGS, Asked.of(query)).rows]


def test_what_is_not_known_comes_last_whichever_way() -> None:
    assert names() == ["a", "b", "c", "d"]
    assert names(sort="-name") == ["d", "c", "b", "a"]
    assert names(sort="lag") == ["b", "d", "a", "c"]
    assert names(sort="-lag") == ["d", "b", "a", "c"]
    assert names(sort="note") == names(sort="nothing") == names(), "those can't be sorted by"


def test_states_are_counted_whichever_is_asked_for() -> None:
    listing = listed(KIND, THINGS, Asked.of({"state": "idle"}))
    assert [row.name for row in listing.rows] == ["a", "c"]
    assert listing.states == (("attention", 2), ("active", 1), ("idle", 2), ("invalidated", 1))
    assert (listing.all, listing.found) == (4, 2)
    assert names(state="attention") == ["a", "d"]
    assert names(q="IDLE a") == ["a"]
    assert names(q="nothing") == []


def test_an_address_says_what_is_asked_and_nothing_else() -> None:
    listing = listed(KIND, THINGS, Asked.of({"q": "x y", "sort": "-lag", "page": "7"}))
    assert listing.asked.page == 1, "there is but one"
    assert listing.address() == "/ui/slots?q=x+y&sort=-lag"
    assert listing.address(state="idle", q="") == "/ui/slots?state=idle&sort=-lag"
    lag, name = KIND.columns[1], KIND.columns[0]
    assert listing.sort_address(lag).endswith("sort=lag"), "the second time the other way"
    assert listing.sort_address(name).endswith("sort=name")
    assert listed(KIND, THINGS, Asked.of({})).sort_address(lag) == "/ui/slots?sort=-lag"


@pytest.mark.parametrize("page", ["-1", "0", "x", "99999999", "²"])
def test_a_page_that_is_none_is_one_that_is(page: str) -> None:
    many = [Thing(f"n{number:04}") for number in range(PAGE_ROWS + 1)]
    listing = listed(KIND, many, Asked.of({"page": page}))
    assert listing.pages == 2
    assert len(listing.rows) in (1, PAGE_ROWS)
    assert [r.name for r in listed(KIND, many, Asked.of({"page": "2"})).rows] == ["n0100"]


async def _view(engine: FakeEngine, subscriptions: FakeSubscriptions | None = None) -> Any:
    return await Sampler(engine, subscriptions or FakeSubscriptions()).look()


async def test_ctrl_k_finds_the_thing_itself_first() -> None:
    engine = FakeEngine()
    engine.add_source("shop")
    for name in ("audit", "audit_copy", "search"):
        engine.add_slot(name)
    entries = entries_of(await _view(engine))
    entries += entries_of_tables([Table("shop", "shop", "public.audit_log")])

    def titles(question: str) -> list[tuple[str, str]]:
        return [(one.kind, one.title) for one in find(entries, question, 5)]

    assert titles("audit")[:2] == [("slot", "audit"), ("slot", "audit_copy")]
    assert titles("rewind audit")[0] == ("action", "Rewind audit")
    assert titles("audit_l") == [("table", "public.audit_log")]
    assert titles("shop")[0] == ("source", "shop")
    assert ("page", "Slots") in titles("slo")
    assert titles("no such thing") == []
    assert {kind for kind, _ in titles("")} == {"page"}
    rewind = find(entries, "rewind audit", 1)[0]
    assert rewind.href == "/ui/slots/audit#rewind"


async def test_a_row_is_stuck_where_a_finding_is() -> None:
    engine = FakeEngine()
    subscriptions = FakeSubscriptions()
    for name in ("fine", "down", "slow", "unread"):
        engine.add_source(name)
        engine.add_slot(f"of_{name}", name)
    engine.sources["down"] = replace(engine.sources["down"], state="failed", error="refused")
    received = Lsn(int(engine.decoded_lsn) + (1 << 30))
    engine.sources["slow"] = replace(engine.sources["slow"], received_lsn=received)
    engine.change_slot("of_unread", invalidation_reason="wal_removed")
    spec = SubscriptionSpec(
        name="filled", source="fine", database="shop", slot="of_fine",
        target={"kind": "lake", "format": "delta", "path": "/lake"},
    )  # fmt: skip
    await subscriptions.create(spec)
    flows = flows_of(await _view(engine, subscriptions))
    assert [(f.source.info.name, f.stuck, f.severity) for f in flows.shown] == [
        ("down", "received", "bad"),
        ("unread", "read", "bad"),
        ("slow", "decoded", "warn"),
        ("fine", None, None),
    ]
    (lane,) = flows.shown[2].lanes
    assert (lane.behind_bytes, lane.severity) == (1 << 30, None)
    (reader,) = flows.shown[3].readers
    assert (reader.name, reader.link) == ("filled", "/ui/subscriptions/filled")


async def test_the_overview_has_a_bound() -> None:
    engine = FakeEngine()
    for number in range(SOURCES_SHOWN + 3):
        engine.add_source(f"s{number}")
    for number in range(40):
        engine.add_slot(f"slot{number}", "s0")
    engine.change_slot("slot39", invalidation_reason="wal_removed")
    flows = flows_of(await _view(engine))
    assert (len(flows.shown), flows.more) == (SOURCES_SHOWN, 3)
    first = flows.shown[0]
    assert first.readers[0].name == "slot39", "the worst first"
    assert len(first.readers) + first.more_readers == 40
    assert len(first.readers) < 10


def test_a_small_lag_is_seen_on_a_long_bar() -> None:
    at = Lsn(1 << 40)
    bar = position_bar(Lsn(at - (10 << 30)), at, Lsn(at + 100), Lsn(at + 300))
    assert [(part.kind, part.bytes) for part in bar.parts] == [
        ("kept", 10 << 30),
        ("sent", 100),
        ("waits", 200),
    ]
    assert all(part.width >= 10 for part in bar.parts)
    assert sum(part.width for part in bar.parts) == pytest.approx(WIDTH, abs=0.5)
    # Without a stream nothing is sent; without a lag nothing waits.
    idle = position_bar(Lsn(at - 100), at, None, at)
    assert [(part.kind, part.width > 0) for part in idle.parts] == [
        ("kept", True),
        ("waits", False),
    ]
    assert idle.bytes_of("sent") is None
    assert position_bar(None, at, None, None).parts == ()
    # What was sent in a session before is confirmed by now.
    assert position_bar(None, at, Lsn(at - 50), Lsn(at + 10)).bytes_of("sent") == 0
