"""What a stream prints by: the settings that the client's session would have on the source.

A walsender's output functions print as the session's ``TimeZone``, ``DateStyle`` and so on say:
what the client has given or set, and otherwise what the database, the role or the server's
configuration has; ``initdb`` writes the machine's own zone there. So a client that has a session on
the source has that one asked as its stream begins; for the others the source is asked what a
session of the database begins with, once in some seconds for all of them.

While a source can't be asked, what it said before holds, which the metadata store remembers over a
restart. If it never was, nobody guesses: a stream begins only if its client, or its slot, says all
of it. A client's own session that does not answer is closed: nothing that comes later may be taken
for an answer to something else.

Source: PostmasterMain's GUCs by context (src/backend/utils/misc/guc.c)
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import InvalidOption, MetadataError, SessionSettingsUnknown, SourceError
from spillway.pg.text_settings import TextSettings
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.store.session_settings import SessionSettingsTable
    from spillway.walsender.databases import ServedDatabase

log = logging.getLogger(__name__)

#: What those of ours print by unless they are told; None of it need be said.
_BUILT_IN: Final = {
    "TimeZone": ("UTC", "Etc/UTC"),
    "DateStyle": ("ISO, MDY",),
    "IntervalStyle": ("postgres",),
    "extra_float_digits": ("1",),
    "bytea_output": ("hex",),
}
#: What output functions print by, but for search_path, by the server's names.
NAMES: Final = tuple(_BUILT_IN)
#: Name, value, and whether the client has given or set it.
QUESTION: Final = (
    "SELECT name, setting, source IN ('client', 'session') FROM pg_catalog.pg_settings "  # noqa: S608
    f"WHERE name IN {(*NAMES, 'search_path')}"
)
#: How long an answer is given again, and how long a source is not asked that could not be.
_ASKED_S: Final = 5.0
#: How long a client waits for an answer, before it gets its stream by the one before.
WAIT_S: Final = 3.0


class Printing(NamedTuple):
    """Settings by their names."""

    #: what the client has given or set: before the slot's own options
    given: Mapping[str, str]
    #: what its session has besides: behind them; None: nobody knows
    defaults: Mapping[str, str] | None

    def options(self, slot_options: Iterable[str]) -> dict[str, str]:
        """Return the options of a stream that has *slot_options* of its own.

        Raises:
            SessionSettingsUnknown: they and what is given leave something open that nobody knows.
        """
        own = {name.lower() for name in slot_options}
        given = {name.lower() for name in self.given}
        if self.defaults is None:
            self._check_complete(own | given)
        defaults = {
            name: value
            for name, value in (self.defaults or {}).items()
            if name.lower() not in own and value not in _BUILT_IN.get(name, ())
        }
        return {
            **{name: value for name, value in defaults.items() if name.lower() not in given},
            **self.given,
        }

    def _check_complete(self, said: Collection[str]) -> None:
        missing = [name for name in NAMES if name.lower() not in said]
        date_style = self.given.get("datestyle")
        if date_style is not None and not has_order(date_style):
            missing.append("DateStyle")
        if missing:
            some = ", ".join(missing)
            raise SessionSettingsUnknown(
                f"the source's {some} are not known, and it can't be asked",
                hint="Start the source, which is asked once; or say what to print by, "
                "for a client of libpq's: PGOPTIONS='-c timezone=UTC -c datestyle=ISO,MDY "
                "-c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex'.",
                settings=missing,
            )


def of_session(rows: Iterable[Sequence[str | None]]) -> Printing:
    """Read what a client's own session has answered to :data:`QUESTION`."""
    found: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for name, value, is_given in rows:
        assert name is not None
        # Of paths, streams know that there is none.
        if name != "search_path" or value in ("", '""'):
            found[is_given == "t"][name] = value or ""
    return Printing(found[True], _known_here(found[False]))


def _known_here(settings: Mapping[str, str]) -> dict[str, str]:
    """Leave out what the client has not asked for and can't be printed by: it shall have its stream
    all the same.
    """
    found = {}
    for name, value in settings.items():
        try:
            TextSettings.from_options({name: value}, 0)
        except InvalidOption as error:
            log.warning("a stream prints by the built-in setting instead: %s", error.message)
        else:
            found[name] = value
    return found


def with_order_of(given: str, default: str) -> str:
    """Return a DateStyle that is given, with the order of the one there is if it says none."""
    order = default.rpartition(",")[2].strip()
    # That one has an order of its own.
    texts = (given,) if "german" in given.lower() else (f"{given}, {order}", given)
    for text in texts:
        try:
            settings, _ = TextSettings.from_options({"DateStyle": text}, 0)
        except InvalidOption:
            continue
        return f"{settings.date_style}, {settings.date_order}"
    return given


def has_order(date_style: str) -> bool:
    """Say whether a DateStyle needs no order of another."""
    return with_order_of(date_style, "ISO, DMY") == with_order_of(date_style, "ISO, MDY")


class Defaults:
    """What sources' databases have for sessions that set nothing; shared by all connections.

    Args:
        engine: knows how sources are connected to.
        kept: remembers it.
    """

    def __init__(self, engine: EngineInterface, kept: SessionSettingsTable) -> None:
        self._engine = engine
        self._kept = kept
        self._known: dict[tuple[str, str], dict[str, str]] = {}
        self._asked_s: dict[tuple[str, str], float] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def of(self, database: ServedDatabase) -> Mapping[str, str] | None:
        """Return a database's; None: it was never asked. A source that does not answer holds up
        nobody but its own clients, and those for :data:`WAIT_S`.

        Raises:
            MetadataError: what it said before can't be read.
        """
        key = database.source, database.name
        if time.monotonic() - self._asked_s.get(key, -_ASKED_S) >= _ASKED_S:
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = asyncio.create_task(self._ask(key))
                asking.add_done_callback(lambda _: self._asking.pop(key))
            await asyncio.wait({asking}, timeout=WAIT_S)
            if asking.done():
                asking.result()
        if key not in self._known and (kept := await self._kept.of(*key)) is not None:
            self._known.setdefault(key, kept)
        return self._known.get(key)

    async def _ask(self, key: tuple[str, str]) -> None:
        dsn = self._engine.conninfo(*key)
        try:
            self._known[key] = await asyncio.to_thread(_ask, dsn)
        except SourceError as error:
            if key not in self._known:
                log.warning(
                    'source "%s", database "%s": its TimeZone, DateStyle and so on can\'t be asked '
                    "for: %s",
                    *key,
                    error.message,
                )
        else:
            try:
                await self._kept.keep(*key, self._known[key])
            except MetadataError as error:
                # It is asked again, and kept then.
                log.warning("what streams print by is not kept: %s", error.message)
        self._asked_s[key] = time.monotonic()


def _ask(dsn: str) -> dict[str, str]:
    """Ask a database what its sessions begin with. Blocking."""
    with source_session(dsn) as connection:
        rows = connection.execute(QUESTION).fetchall()
    return _known_here({name: value for name, value, _ in rows if name in NAMES})
