"""The overview's rows: each source as what flows from its primary to those who read it.

A row has four steps: received, decoded, read and confirmed; what waits before each is how far it is
behind. Where it is stuck is what the findings say, and no reckoning of its own: a fault has one
cause and one colour, wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.service.model import DatabaseSession
    from spillway.watch.findings import Finding
    from spillway.watch.sampler import View
    from spillway.watch.views import SlotView, SourceView

#: rows of the overview, and lines of readers that all of them have together
SOURCES_SHOWN: Final = 4
_LINES: Final = 14
_LINES_MIN: Final = 3
_LANES: Final = 4

#: which step a finding of a source or a database is about
_STEPS: Final[Mapping[str, str]] = {
    "source_unheard": "received",
    "source_down": "received",
    "primary_keeps_wal": "received",
    "decoding_stopped": "decoded",
    "not_consistent": "decoded",
    "catching_up": "decoded",
    "log_damaged": "decoded",
    "decoding_behind": "decoded",
}
#: the worst first
_ORDER: Final = {"bad": 0, "warn": 1, None: 2}


@dataclass(frozen=True, slots=True)
class Lane:
    """A database of a source."""

    session: DatabaseSession
    #: received and not decoded; None: not known
    behind_bytes: int | None
    rate: float
    severity: str | None


@dataclass(frozen=True, slots=True)
class Reader:
    """A slot, with the subscription that reads it if one does."""

    slot: SlotView
    subscription: str | None
    state: str
    severity: str | None

    @property
    def name(self) -> str:
        return self.subscription or self.slot.info.slot_name

    @property
    def link(self) -> str:
        kind = "slots" if self.subscription is None else "subscriptions"
        return f"/ui/{kind}/{self.name}"

    @property
    def weight(self) -> tuple[int, float, str]:
        """Who is shown where not all can be: the worst, then who lags most."""
        lag = self.slot.lag_bytes
        return _ORDER[self.severity], -1.0 if lag is None else -float(lag), self.name

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands: the worst first, and no row moves because lags do."""
        return _ORDER[self.severity], self.name


@dataclass(frozen=True, slots=True)
class Flow:
    """A source's row."""

    source: SourceView
    lanes: tuple[Lane, ...]
    more_lanes: int
    readers: tuple[Reader, ...]
    more_readers: int
    #: how bad it is at each step that is not well: received, decoded, read
    marks: Mapping[str, str]

    @property
    def stuck(self) -> str | None:
        """The first step at which something stands still, or else is slow; None: it flows."""
        for severity in ("bad", "warn"):
            for step in ("received", "decoded", "read"):
                if self.marks.get(step) == severity:
                    return step
        return None

    @property
    def severity(self) -> str | None:
        return None if self.stuck is None else self.marks[self.stuck]


@dataclass(frozen=True, slots=True)
class Flows:
    """What the overview shows of all sources."""

    shown: tuple[Flow, ...]
    more: int


def flows_of(view: View) -> Flows:
    """Give the overview's rows, those that are not well first."""
    severities: dict[str, str] = {}
    for finding in view.findings:
        if severities.get(finding.link) != "bad":
            severities[finding.link] = finding.severity
    subscriptions = {one.slot: one for one in view.subscriptions}
    readers: dict[str, list[Reader]] = {source.info.name: [] for source in view.sources}
    for slot in view.slots:
        filled = subscriptions.get(slot.info.slot_name)
        links = [f"/ui/slots/{slot.info.slot_name}"]
        if filled is not None:
            links.append(f"/ui/subscriptions/{filled.name}")
        found = {severities[link] for link in links if link in severities}
        reader = Reader(
            slot,
            None if filled is None else filled.name,
            slot.state if filled is None else filled.state,
            "bad" if "bad" in found else "warn" if found else None,
        )
        readers.setdefault(slot.info.source, []).append(reader)
    flows = [_flow(source, readers[source.info.name], view.findings) for source in view.sources]
    flows.sort(key=lambda flow: _ORDER[flow.severity])
    shown = flows[:SOURCES_SHOWN]
    lines = max(_LINES_MIN, _LINES // max(1, len(shown)))
    return Flows(tuple(_cut(flow, lines) for flow in shown), len(flows) - len(shown))


def _flow(source: SourceView, readers: Sequence[Reader], findings: Sequence[Finding]) -> Flow:
    name, info = source.info.name, source.info
    marks: dict[str, str] = {}
    of_database: dict[str, str] = {}
    for finding in findings:
        step = _STEPS.get(finding.code)
        if step is None or finding.source != name:
            continue
        _mark(marks, step, finding.severity)
        if finding.subject.startswith(f"{name}/"):
            _mark(of_database, finding.subject.removeprefix(f"{name}/"), finding.severity)
    for reader in readers:
        if reader.severity is not None:
            _mark(marks, "read", reader.severity)
    lanes = [
        Lane(
            session,
            None
            if session.decoded_lsn is None or info.received_lsn is None
            else max(0, info.received_lsn - session.decoded_lsn),
            source.decoded_rates.get(session.database, float("nan")),
            of_database.get(session.database),
        )
        for session in info.sessions
    ]
    lanes.sort(key=lambda lane: (_ORDER[lane.severity], lane.session.database))
    return Flow(source, tuple(lanes), 0, tuple(readers), 0, marks)


def _mark(marks: dict[str, str], where: str, severity: str) -> None:
    if marks.get(where) != "bad":
        marks[where] = severity


def _cut(flow: Flow, lines: int) -> Flow:
    lanes = flow.lanes[: min(lines, _LANES)]
    heaviest = sorted(flow.readers, key=lambda one: one.weight)[:lines]
    readers = tuple(sorted(heaviest, key=lambda one: one.order))
    return Flow(
        flow.source,
        lanes,
        len(flow.lanes) - len(lanes),
        readers,
        len(flow.readers) - len(readers),
        flow.marks,
    )
