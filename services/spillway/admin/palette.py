"""What Ctrl-K finds: sources, databases, slots, subscriptions, tables, pages and actions.

An :class:`Entry` is found by the words of a question, each of which must begin a word of it, or
stand somewhere in it; an entry that begins with them comes first, and a thing before its actions.
Actions of a thing are offered once its name is asked for: ``rewind audit`` finds one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spillway.watch.sampler import View

_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to go to."""

    #: in a word: page, source, database, slot, subscription, table, action
    kind: str
    title: str
    detail: str
    href: str
    #: less comes first among what fits as well
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table that may be asked for."""

    source: str
    database: str
    name: str


PAGES: Final = (
    Entry("page", "Overview", "Is everything well?", "/"),
    Entry("page", "Sources", "PostgreSQL clusters that WAL comes from", "/ui/sources"),
    Entry("page", "Slots", "What consumers read", "/ui/slots"),
    Entry("page", "Subscriptions", "Lakes and databases that are filled", "/ui/subscriptions"),
    Entry("page", "Consumers", "Who reads, and how far they are", "/ui/consumers"),
    Entry("page", "Changes", "What happened to a row", "/ui/changes"),
    Entry("page", "Schema", "What DDL did to tables", "/ui/schema"),
    Entry("page", "Events", "What happened, and who did what", "/ui/events"),
    Entry("page", "Alerts", "Who is told of what", "/ui/alerts"),
    Entry("page", "API", "The REST calls", "/docs"),
    Entry("page", "Metrics", "For Prometheus", "/metrics"),
    Entry("page", "What needs attention: slots", "", "/ui/slots?state=attention", 2),
    Entry("action", "Add source", "Check a cluster, and add it", "/ui/sources/new", 1),
    Entry("action", "Create slot", "For a consumer of your own", "/ui/slots/new", 1),
    Entry("action", "Create subscription", "Fill a lake or a database", "/ui/subscriptions/new", 1),
    Entry("action", "Add alert rule", "Be told", "/ui/alerts/new-rule", 1),
    Entry("action", "Add alert channel", "Be told", "/ui/alerts/new-channel", 1),
    Entry("action", "Switch between light and dark", "", "#theme", 1),
)
#: verb to where it is on a thing's page
_OF_SLOT: Final = {
    "Rewind": "rewind",
    "Advance": "advance",
    "Copy": "copy",
    "Alter": "alter",
    "End session of": "end-session",
    "Drop": "drop",
    "Peek": "changes-title",
}


def entries_of(view: View) -> list[Entry]:
    """Give all there is but tables, actions of things last."""
    found = list(PAGES)
    for source in view.sources:
        name = source.info.name
        found.append(Entry("source", name, source.info.state, f"/ui/sources/{quote(name)}"))
        found += [
            Entry(
                "database",
                session.database,
                f"of source {name}",
                "/ui/changes?" + urlencode({"source": name, "database": session.database}),
            )
            for session in source.info.sessions
        ]
    found += [
        Entry("subscription", one.name, one.state, f"/ui/subscriptions/{quote(one.name)}")
        for one in view.subscriptions
    ]
    for slot in view.slots:
        name, info = slot.info.slot_name, slot.info
        href = f"/ui/slots/{quote(name)}"
        found.append(Entry("slot", name, f"{slot.state}, {info.source} / {info.database}", href))
    found += _actions_of(view)
    return found


def _actions_of(view: View) -> Iterator[Entry]:
    for slot in view.slots:
        name = slot.info.slot_name
        for verb, place in _OF_SLOT.items():
            yield Entry("action", f"{verb} {name}", "slot", f"/ui/slots/{quote(name)}#{place}", 4)
        query = {"source": slot.info.source, "database": slot.info.database}
        yield Entry("action", f"Changes of {name}", "slot", f"/ui/changes?{urlencode(query)}", 5)


def entries_of_tables(tables: Iterable[Table]) -> list[Entry]:
    """Give tables, each leading to what happened to its rows."""
    return [
        Entry(
            "table",
            table.name,
            f"{table.source} / {table.database}",
            "/ui/changes?"
            + urlencode({"source": table.source, "database": table.database, "table": table.name}),
            3,
        )
        for table in tables
    ]


def find(entries: Iterable[Entry], question: str, limit: int) -> list[Entry]:
    """Give the *limit* entries that fit best; of an empty question what is there at all, without
    actions of things.
    """
    words = question.casefold().split()
    if not words:
        return [entry for entry in entries if entry.rank < 3][:limit]
    fitting = []
    for number, entry in enumerate(entries):
        fit = _fit(entry, words, question.strip().casefold())
        if fit is not None:
            fitting.append((fit, entry.rank, len(entry.title), number, entry))
    return [entry for *_, entry in sorted(fitting, key=lambda one: one[:4])[:limit]]


def _fit(entry: Entry, words: Sequence[str], whole: str) -> int | None:
    """Say how well an entry fits, 0 best; None: not at all."""
    title = entry.title.casefold()
    if title == whole:
        return 0
    if title.startswith(whole):
        return 1
    text = f"{title} {entry.kind} {entry.detail.casefold()}"
    begins = [found[0] for found in _WORD.finditer(text)]
    worst = 2
    for word in words:
        if any(one.startswith(word) for one in begins) and word in title:
            continue
        if word in title:
            worst = max(worst, 3)
        elif word in text:
            worst = max(worst, 4)
        else:
            return None
    return worst
