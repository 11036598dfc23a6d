"""What becomes of alerts, step by step, on a real metadata store; and what is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import BigInteger, literal_column

from harness.receivers import mailbox, webhook
from spillway.alerts.channels import checked_channel
from spillway.alerts.quiet import is_quiet
from spillway.alerts.registry import Alerts
from spillway.alerts.rules import checked_rule, concerns
from spillway.alerts.states import Look, decide
from spillway.alerts.watchman import Watchman
from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import AlertNotDelivered, InvalidRequest
from spillway.store import alerts as alert_store
from spillway.store.metadata import MetadataStore
from spillway.store.rows import EventRow
from spillway.watch.findings import Finding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from spillway.store.alerts import Changes
    from spillway.store.rows import AlertRow

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DOWN = Finding("bad", "Source m receives no WAL", "gone", "Start it.", "/ui/sources/m",
               code="source_down", subject="m", source="m")  # fmt: skip


@pytest.fixture(params=["sqlite", "postgresql"])
async def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    url = f"sqlite:///{tmp_path / 'spillway.db'}"
    if request.param == "postgresql":
        pg15 = request.getfixturevalue("pg15")
        url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{pg15.name}"
    store = MetadataStore(url)
    await store.migrate()
    yield store
    await store.close()


class Steps:
    """Steps one rule with a channel, at seconds after :data:`NOW`."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata

    async def declare(self, url: str = "http://127.0.0.1:9/", **rule: Any) -> None:
        registry = Alerts(self.metadata)
        await registry.put_channel("c", {"kind": "webhook", "url": url})
        await registry.put_rule("r", {"channels": ["c"], "clear_s": 10, **rule})

    async def at(
        self,
        seconds: float,
        *findings: Finding,
        unknown: Sequence[tuple[str, str]] = (),
        mine: bool = True,
        superseded: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """Give the reasons of the messages that the step made."""
        now = NOW + timedelta(seconds=seconds)
        (rule,), _, _ = await self.metadata.alerts.state()
        found = [one for one in findings if concerns(rule, one)]
        look = Look(
            now, found, frozenset(unknown), lambda _: mine, is_quiet(rule.quiet, now), "p",
            superseded=frozenset(superseded),
        )  # fmt: skip

        def again(rows: Sequence[AlertRow], channels: frozenset[str]) -> Changes:
            return decide(rule, look, rows, channels)

        before = {one.id for one in await self.metadata.alerts.messages(1000)}
        await self.metadata.alerts.step("r", again)
        after = await self.metadata.alerts.messages(1000)
        return [one.reason for one in after if one.id not in before]


async def test_an_alert_is_told_once_again_and_over(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    await steps.declare(hold_s=5, repeat_s=100)
    assert await steps.at(0, DOWN) == []
    assert await steps.at(4, DOWN) == []
    assert await steps.at(5, DOWN) == ["firing"]
    assert await steps.at(50, DOWN) == []
    assert await steps.at(105, DOWN) == ["reminder"]
    assert await steps.at(110) == []
    # It comes back before it was over for long enough: nothing is told.
    assert await steps.at(115, DOWN) == []
    assert await steps.at(120) == []
    assert await steps.at(129) == []
    assert await steps.at(130) == ["resolved"]
    assert await steps.at(300) == []
    assert await steps.at(301, DOWN) == []
    # What goes before it has lasted is nothing.
    assert await steps.at(302) == []
    assert [row.state for row in await metadata.alerts.alerts(10)] == ["resolved"]


async def test_an_alert_says_what_is_so_now(metadata: MetadataStore) -> None:
    """The source is down all the time: first its server was, now the WAL is gone."""
    steps = Steps(metadata)
    await steps.declare(repeat_s=100)
    assert await steps.at(0, DOWN) == ["firing"]
    lost = replace(DOWN, detail="WAL was removed", remedy="Begin anew.")
    # Nobody is told again for that; who looks sees it.
    assert await steps.at(10, lost) == []
    (row,) = await metadata.alerts.alerts(10)
    assert (row.detail, row.remedy) == (lost.detail, lost.remedy)
    # Where the remedy is the same, what is said of the cause is not.
    other = replace(lost, detail="WAL was removed by hand")
    assert await steps.at(20, other) == []
    (row,) = await metadata.alerts.alerts(10)
    assert row.detail == other.detail
    assert await steps.at(30) == []
    assert await steps.at(40) == ["resolved"]
    told = {one.reason: one.document["alert"] for one in await metadata.alerts.messages(10)}
    assert (told["firing"]["detail"], told["resolved"]["detail"]) == ("gone", other.detail)


async def test_amounts_that_grow_are_not_stored_at_each_look(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    await steps.declare()
    lags = Finding("warn", "Slot s lags 5 min", "A minute.", "See.", "/ui/slots/s",
                   code="slot_lagging", subject="s", source="m")  # fmt: skip
    assert await steps.at(0, lags) == ["firing"]
    assert await steps.at(60, replace(lags, title="Slot s lags 6 min", detail="Two.")) == []
    (row,) = await metadata.alerts.alerts(10)
    assert (row.title, row.detail) == (lags.title, lags.detail)


async def test_a_clock_that_is_set_back_has_nothing_wait_longer(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    await steps.declare(hold_s=5, repeat_s=100)
    assert await steps.at(7200, DOWN) == []
    assert await steps.at(3600, DOWN) == []
    assert await steps.at(3604, DOWN) == []
    assert await steps.at(3605, DOWN) == ["firing"]
    # … and again, when it is to be told once more
    assert await steps.at(0, DOWN) == []
    assert await steps.at(99, DOWN) == []
    assert await steps.at(100, DOWN) == ["reminder"]
    # … and when it is gone
    assert await steps.at(110) == []
    assert await steps.at(-3600) == []
    assert await steps.at(-3591) == []
    assert await steps.at(-3590) == ["resolved"]


async def test_a_message_that_was_put_off_before_a_clock_was_set_back_is_due(
    metadata: MetadataStore,
) -> None:
    steps = Steps(metadata)
    await steps.declare()
    await steps.at(0, DOWN)
    ((number, channel),) = await metadata.alerts.due()
    assert await metadata.alerts.claim(number) is not None
    await metadata.alerts.put_off(number, 3600, "refused")
    assert await metadata.alerts.due() == []
    assert await metadata.alerts.claim(number) is None
    # The server's own can't be set here.
    database = metadata.alerts._database
    database.clock = literal_column(f"({database.clock} - 3600000)", BigInteger)
    assert await metadata.alerts.due() == [(number, channel)]
    assert await metadata.alerts.claim(number) is not None


async def test_what_is_not_known_or_not_ours_is_not_over(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    await steps.declare()
    assert await steps.at(0, DOWN) == ["firing"]
    assert await steps.at(100, unknown=[("source_down", "m")]) == []
    assert await steps.at(200, mine=False) == []
    assert await steps.at(201) == []
    assert await steps.at(211) == ["resolved"]


async def test_what_another_takes_the_place_of_is_not_over(metadata: MetadataStore) -> None:
    """A slot that lags, then loses its consumer, lags on."""
    steps = Steps(metadata)
    await steps.declare(repeat_s=100)
    lagging, unread = (
        Finding("warn", code, "", "", "/ui/slots/s", code=code, subject="s", source="m")
        for code in ("slot_lagging", "slot_unread")
    )
    behind = [("slot_lagging", "s")]
    assert await steps.at(0, lagging) == ["firing"]
    assert await steps.at(5) == []
    assert await steps.at(10, unread, superseded=behind) == ["firing"]
    assert await steps.at(90, unread, superseded=behind) == []
    # Only the one that is told reminds.
    assert await steps.at(110, unread, superseded=behind) == ["reminder"]
    # Read again: that is over, and the lag is what it was.
    assert await steps.at(120, lagging) == ["reminder"]
    assert await steps.at(131, lagging) == ["resolved"]
    assert await steps.at(140) == []
    assert await steps.at(151) == ["resolved"]
    told = [(one.reason, one.document["alert"]["code"]) for one in
            await metadata.alerts.messages(10)]  # fmt: skip
    assert sorted(told) == [
        ("firing", "slot_lagging"), ("firing", "slot_unread"), ("reminder", "slot_lagging"),
        ("reminder", "slot_unread"), ("resolved", "slot_lagging"), ("resolved", "slot_unread"),
    ]  # fmt: skip


async def test_quiet_hours(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    await steps.declare(quiet={"from": "12:00", "to": "13:00", "timezone": "UTC"})
    other = Finding("warn", "b", "", "", "/", code="slot_lagging", subject="s", source="m")
    assert await steps.at(0, DOWN, other) == []
    assert await steps.at(100, DOWN) == []
    # This one came and went while it was quiet.
    assert await steps.at(200, DOWN) == []
    assert await steps.at(3600, DOWN) == ["firing"]
    night = {"from": "22:00", "to": "06:00", "timezone": "Europe/Vienna", "days": ["fri"]}
    saturday = datetime(2026, 11, 28, 3, tzinfo=UTC)
    assert is_quiet(night, saturday)
    assert not is_quiet(night, saturday + timedelta(hours=3))
    assert not is_quiet(night, saturday + timedelta(days=1))


async def test_what_was_told_before_quiet_hours_is_told_to_be_over_after_them(
    metadata: MetadataStore,
) -> None:
    steps = Steps(metadata)
    await steps.declare(quiet={"from": "13:00", "to": "14:00", "timezone": "UTC"})
    assert await steps.at(0, DOWN) == ["firing"]
    assert await steps.at(3700) == []
    assert await steps.at(3720) == []
    assert await steps.at(7200) == ["resolved"]
    assert await steps.at(7300) == []


async def test_a_rule_that_is_disabled_or_dropped_ends_what_it_found(
    metadata: MetadataStore,
) -> None:
    steps = Steps(metadata)
    await steps.declare()
    await steps.at(0, DOWN)
    await Alerts(metadata).put_rule("r", {"enabled": False, "channels": ["c"]})
    assert [row.state for row in await metadata.alerts.alerts(10)] == ["resolved"]
    await Alerts(metadata).put_rule("r", {"channels": ["c"]})
    assert await steps.at(10, DOWN) == ["firing"]
    await Alerts(metadata).drop_rule("r")
    assert await metadata.alerts.alerts(10, state="firing") == []


async def test_a_message_is_claimed_by_one_and_due_again_when_that_one_dies(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(metadata)
    await steps.declare()
    await steps.at(0, DOWN)
    ((number, channel),) = await metadata.alerts.due()
    assert channel == "c"
    claimed = await asyncio.gather(*(metadata.alerts.claim(number) for _ in range(5)))
    assert sum(one is not None for one in claimed) == 1
    # Its firing waits: what tells that it is over comes behind it.
    await steps.at(1)
    assert await steps.at(20) == ["resolved"]
    assert await metadata.alerts.due() == []
    assert await metadata.alerts.claim(number) is None
    # One that dies at once, and whose claim lasts no time: it is the next one's.
    await metadata.alerts.put_off(number, 0, "died")
    monkeypatch.setattr(alert_store, "CLAIM_S", 0.0)
    assert await metadata.alerts.claim(number) is not None
    assert await metadata.alerts.due() == [(number, "c")]
    again = await metadata.alerts.claim(number)
    assert again is not None
    assert again.attempts == 3
    await metadata.alerts.finish(number, "sent")
    assert len(await metadata.alerts.due()) == 1


async def test_letters_come_by_smtp(metadata: MetadataStore) -> None:
    steps = Steps(metadata)
    with mailbox() as box:
        await steps.declare()
        mail = {"kind": "email", "host": "127.0.0.1", "port": box.port, "security": "none"}
        mail |= {"from": "spillway@example.org", "to": ["dba@example.org", "b@example.org"]}
        mail["ui_url"] = "https://spillway.example/"
        registry = Alerts(metadata)
        await registry.put_channel("c", mail)
        await steps.at(0, DOWN)
        watchman = Watchman(metadata, None, None, "p")  # type: ignore[arg-type]
        await watchman._send_due()
        await asyncio.gather(*watchman._sending.values())
        (letter,) = box.letters
        assert letter["Subject"] == "[problem] Source m receives no WAL"
        assert letter["To"] == "dba@example.org, b@example.org"
        text = letter.get_content()
        assert "What to do: Start it." in text
        assert "https://spillway.example/ui/sources/m" in text
        assert [one.state for one in await metadata.alerts.messages(9)] == ["sent"]
        box.refuse = {"b@example.org"}
        with pytest.raises(AlertNotDelivered, match=r"refused b@example\.org"):
            await registry.test_channel("c")


async def test_slack_gets_its_form(metadata: MetadataStore) -> None:
    with webhook() as receiver:
        registry = Alerts(metadata)
        await registry.put_channel("s", {"kind": "slack", "url": receiver.url})
        await registry.test_channel("s")
        ((_, body),) = receiver.got
        assert b'"text": "[test] Test: Spillway can reach channel s"' in body
        assert b'"type": "mrkdwn"' in body


async def test_events_are_searched_by_what_they_say_and_by_who_did_it(
    metadata: MetadataStore,
) -> None:
    who = {"address": "192.0.2.7", "client": "psql_18", "protocol": "REST", "user": "Jürgen"}
    await metadata.events.add(
        [
            EventRow(kind="action", title="Slot A was dropped", caller=who),
            EventRow(kind="problem", title="Source m receives no WAL", detail="it is 100% full"),
            EventRow(kind="problem", title="Source m is slow", detail="1000 of them"),
        ]
    )

    async def found(search: str, **where: Any) -> list[str]:
        return [one.title for one in await Alerts(metadata).events(9, search=search, **where)]

    assert await found("SLOT a") == ["Slot A was dropped"]
    assert await found("source M") == ["Source m is slow", "Source m receives no WAL"]
    assert await found("source m", kind="action") == []
    # What the database has a meaning for is looked for as it is.
    assert await found("100%") == ["Source m receives no WAL"]
    assert await found("psql_1") == ["Slot A was dropped"]
    assert await found("psqlx1") == []
    for said in ("jürgen", "192.0.2.7", "psql"):
        assert await found(said) == ["Slot A was dropped"]
    # Not what it is written with.
    assert await found("address") == []


def test_secrets_stay_and_are_not_sent_elsewhere() -> None:
    first = {"kind": "webhook", "url": "https://a.example/", "secret": "s3cret"}
    before = checked_channel("c", first, None)
    same = checked_channel("c", {"kind": "webhook", "url": "https://a.example/"}, before)
    assert same.secrets == {"secret": "s3cret"}
    with pytest.raises(InvalidRequest, match="changes, and not its secret"):
        checked_channel("c", {"kind": "webhook", "url": "https://b.example/"}, before)
    again = {"kind": "webhook", "url": "https://b.example/", "secret": ""}
    assert checked_channel("c", again, before).secrets == {}
    assert "s3cret" not in repr(before)


def test_rules_choose_findings() -> None:
    warn = Finding("warn", "", "", "", "", code="slot_lagging", subject="shop_1", source="m")
    for given, chosen in (
        ({}, True),
        ({"severity": "bad"}, False),
        ({"codes": ["source_down"]}, False),
        ({"sources": ["other"]}, False),
        ({"subjects": ["shop_*"]}, True),
        ({"subjects": ["audit"]}, False),
    ):
        assert concerns(checked_rule("r", given, []), warn) is chosen, given
