"""What streams print by, of sources that answer and of one that does not."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, cast

import pytest

from spillway.errors import MetadataError, SessionSettingsUnknown, SourceUnreachable
from spillway.walsender import printing
from spillway.walsender.databases import ServedDatabase
from spillway.walsender.printing import NAMES, Defaults, Printing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.service.interface import EngineInterface
    from spillway.store.session_settings import SessionSettingsTable

HANGS = ServedDatabase("hangs", "shop", 180000, "UTF8")
ANSWERS = ServedDatabase("answers", "shop", 180000, "UTF8")


class Sources:
    """Two of them; one answers when it is let."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.answers = threading.Event()
        self.asked: list[str] = []

    def conninfo(self, source: str, database: str) -> str:
        return f"{source}/{database}"

    def ask(self, dsn: str) -> dict[str, str]:
        self.asked.append(dsn)
        if dsn == "hangs/shop":
            self.is_asked.set()
            assert self.answers.wait(60)
        return {"TimeZone": dsn}


class Kept:
    """What is kept of them; it can be written when it is let."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str], Mapping[str, str]] = {}
        self.is_full = False

    async def of(self, source: str, database: str) -> Mapping[str, str] | None:
        return self.settings.get((source, database))

    async def keep(self, source: str, database: str, settings: Mapping[str, str]) -> None:
        if self.is_full:
            raise MetadataError("the disk is full")
        self.settings[source, database] = settings


def defaults_of(sources: Sources, kept: Kept | None = None) -> Defaults:
    return Defaults(cast("EngineInterface", sources), cast("SessionSettingsTable", kept or Kept()))


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    made = Sources()
    monkeypatch.setattr(printing, "_ask", made.ask)
    yield made
    made.answers.set()


async def test_a_source_that_does_not_answer_holds_up_nobody_else(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = defaults_of(sources)
    waits = asyncio.create_task(defaults.of(HANGS))
    assert await asyncio.to_thread(sources.is_asked.wait, 60)
    assert await defaults.of(ANSWERS) == {"TimeZone": "answers/shop"}
    assert not waits.done()
    # Nor are its own clients held up for longer than a while.
    monkeypatch.setattr(printing, "WAIT_S", 0.01)
    assert await defaults.of(HANGS) is None
    assert sources.asked == ["hangs/shop", "answers/shop"], "nobody asks beside one that asks"
    sources.answers.set()
    assert await waits == {"TimeZone": "hangs/shop"}
    assert await defaults.of(HANGS) == {"TimeZone": "hangs/shop"}
    assert len(sources.asked) == 2


async def test_what_a_source_said_before_holds_while_it_can_not_be_asked(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = defaults_of(sources)
    monkeypatch.setattr(printing, "_ASKED_S", 0.0)
    assert await defaults.of(ANSWERS) == {"TimeZone": "answers/shop"}

    def refuse(dsn: str) -> dict[str, str]:
        raise SourceUnreachable(f"{dsn} is gone")

    monkeypatch.setattr(printing, "_ask", refuse)
    assert await defaults.of(ANSWERS) == {"TimeZone": "answers/shop"}
    assert await defaults.of(HANGS) is None


async def test_what_was_said_is_kept_over_a_restart(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    assert await defaults_of(sources, kept).of(ANSWERS) == {"TimeZone": "answers/shop"}
    answers = printing._ask

    def refuse(dsn: str) -> dict[str, str]:
        raise SourceUnreachable(f"{dsn} is gone")

    monkeypatch.setattr(printing, "_ask", refuse)
    again = defaults_of(sources, kept)
    assert await again.of(ANSWERS) == {"TimeZone": "answers/shop"}
    assert await again.of(HANGS) is None
    # What can't be kept holds in this process all the same, and is kept as soon as it can be.
    monkeypatch.setattr(printing, "_ASKED_S", 0.0)
    monkeypatch.setattr(printing, "_ask", answers)
    kept.settings.clear()
    kept.is_full = True
    assert await again.of(ANSWERS) == {"TimeZone": "answers/shop"}
    assert kept.settings == {}
    kept.is_full = False
    await again.of(ANSWERS)
    assert kept.settings == {("answers", "shop"): {"TimeZone": "answers/shop"}}


ALL = {
    "timezone": "UTC",
    "datestyle": "ISO, DMY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}


def test_what_nobody_knows_is_not_guessed() -> None:
    with pytest.raises(SessionSettingsUnknown) as unknown:
        Printing({}, None).options({})
    assert unknown.value.details["settings"] == list(NAMES)
    assert Printing(ALL, None).options({}) == ALL
    assert Printing({}, None).options(ALL) == {}
    assert Printing({"timezone": "UTC"}, None).options(
        {name: value for name, value in ALL.items() if name != "timezone"}
    ) == {"timezone": "UTC"}
    for style in ("SQL", "Postgres", "ISO"):
        # The order is the source's.
        with pytest.raises(SessionSettingsUnknown) as unknown:
            Printing({**ALL, "datestyle": style}, None).options({})
        assert unknown.value.details["settings"] == ["DateStyle"]
    for style in ("German", "SQL, DMY", "YMD, ISO"):
        Printing({**ALL, "datestyle": style}, None).options({})
