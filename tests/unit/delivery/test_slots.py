"""A slot of the running service: since when nobody has it, who has it, and how that ends."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spillway.caller import POSTGRESQL, calling
from spillway.delivery.active_consumer import ActiveConsumer
from spillway.delivery.slots import Slot, consumer_of
from spillway.errors import NoConsumer, SessionEnded, SlotActive
from spillway.pg.lsn import Lsn
from spillway.store.rows import SlotRow

AN_HOUR = timedelta(hours=1)


def slot(**columns: Any) -> Slot:
    return Slot(SlotRow(slot_name="s", source="m", database="d", datoid=1, plugin="p", **columns))


async def test_a_restart_does_not_make_a_slot_fresh() -> None:
    left, confirmed = datetime.now(UTC) - 3 * AN_HOUR, datetime.now(UTC) - AN_HOUR
    assert slot(inactive_since=left).inactive_since == left
    # A crash left no word of when the consumer left; it was there when it confirmed.
    assert slot(inactive_since=left, confirmed_at=confirmed).inactive_since == confirmed
    assert slot().inactive_since is None, "not known is not now"


async def test_who_has_a_slot_is_named_and_can_be_ended() -> None:
    one = slot(confirmed_flush_lsn=Lsn(5))
    with pytest.raises(NoConsumer):
        await one.end_session()
    with (
        calling(
            "192.0.2.7:4711",
            "loader/1.2 spillway-subscription/orders",
            protocol=POSTGRESQL,
            user="ada",
        ),
        one.acquired("get"),
        pytest.raises(SlotActive) as caught,
        one.acquired("peek"),
    ):
        pass
    for named in ("192.0.2.7:4711", "loader/1.2", "subscription orders", "user ada"):
        assert named in caught.value.message
    assert str(os.getpid()) not in caught.value.message
    consumer: Any = caught.value.details["consumer"]
    assert (consumer["kind"], consumer["subscription"]) == ("get", "orders")
    # As another service reads it; one of a release before did not store all.
    read = consumer_of({**consumer, "as_of": consumer["since"]})
    assert (read.protocol, read.user) == (POSTGRESQL, "ada")
    del consumer["protocol"], consumer["user"]
    read = consumer_of({**consumer, "as_of": consumer["since"]})
    assert (read.protocol, read.user, read.address) == (None, None, "192.0.2.7:4711")
    assert "end-session" in caught.value.hint

    async def consume() -> None:
        with one.acquired("stream") as active:
            await active.unless_ended(asyncio.sleep(60))

    consuming = asyncio.create_task(consume())
    await asyncio.sleep(0)
    assert (await one.end_session()).kind == "stream"
    assert one.active_consumer is None
    with pytest.raises(SessionEnded):
        await consuming


async def test_a_programs_name_for_itself_is_cut_and_made_printable() -> None:
    with calling(None, "evil\x1b[2J\udc80" + "x" * 1000):
        client = ActiveConsumer("s", "stream").consumer().client
    assert client is not None
    assert (len(client), "\x1b" in client) == (200, False)
    client.encode()
