"""What becomes of a rule's alerts at a look: a state machine without I/O.

::

                     found                    lasts hold_s                absent for clear_s
     (nothing) ─────────────▶ pending ─────────────────────▶ firing ─────────────────────▶ resolved
                                 │ absent                     │   ▲ told again each repeat_s
                                 ▼                            └───┘
                             (nothing)

What was told, and what is owed, is stored with the alert, so whoever looks next goes on from there:

- an alert that fires is told at once, or when the quiet hours end;
- who was told that it fires is told that it is over; an alert that came and went in quiet hours was
  never told, and nobody is told that it is over;
- what is not known is not over: an alert stays as it is meanwhile;
- what another finding takes the place of is not over either, a slot's lag when nobody reads it any
  more: it stays as it is, and only the other one is told;
- what is wrong may be so for another cause than before: who looks at an alert sees the present one,
  with what mends it, and so does who is told again or that it is over; nobody is told for that;
- a moment that is stored and lies ahead was taken by a clock that has been set back since (or
  another service's, which is ahead): it counts as now, or what waits would wait as much longer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from spillway.store.alerts import Changes
from spillway.store.rows import AlertMessageRow, AlertRow, EventRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spillway.store.rows import AlertRuleRow
    from spillway.watch.findings import Finding


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, for one rule."""

    now: datetime
    #: those that the rule tells
    findings: Sequence[Finding]
    #: (code, subject) of what is not known
    unknown: frozenset[tuple[str, str]]
    #: says of an alert whether this process sees what it is about
    is_mine: Callable[[AlertRow], bool]
    #: whether nobody is to be told just now
    quiet: bool
    #: this process
    process: str
    #: the service's own rule: it makes events
    makes_events: bool = False
    #: (code, subject) of what holds, and is not told since another finding is
    superseded: frozenset[tuple[str, str]] = frozenset()


def decide(
    rule: AlertRuleRow, look: Look, rows: Sequence[AlertRow], channels: frozenset[str]
) -> Changes:
    """Return what becomes of *rows*, the unsettled alerts of *rule*, and what is to be told to
    those of its channels that are among *channels*.
    """
    step = _Step(rule, look, [name for name in rule.channels if name in channels])
    # One of a kind: a key is an alert's while it is open.
    found = {_key(rule, finding, look.process): finding for finding in look.findings}
    for row in rows:
        finding = None if row.open_key is None else found.pop(row.open_key, None)
        if row.resolved_at is not None:
            step.pay(row)
        elif finding is not None:
            step.goes_on(step.by_this_clock(row), finding)
        elif (row.code, row.subject) in look.superseded:
            step.holds(row)
        elif look.is_mine(row) and (row.code, row.subject) not in look.unknown:
            step.is_absent(step.by_this_clock(row))
    for key, finding in found.items():
        step.begins(key, finding)
    return step.changes


class _Step:
    def __init__(self, rule: AlertRuleRow, look: Look, channels: list[str]) -> None:
        self._rule = rule
        self._look = look
        self._channels = channels
        self.changes = Changes()

    def begins(self, key: str, finding: Finding) -> None:
        now = self._look.now
        fires = self._rule.hold_s == 0
        tells = fires and self._may_tell()
        row = AlertRow(
            open_key=key,
            rule=self._rule.name,
            code=finding.code,
            subject=finding.subject,
            source=finding.source,
            process="" if finding.source else self._look.process,
            seen_at=now,
            fired_at=now if fires else None,
            told_at=now if tells else None,
            told=int(tells),
            **_texts(finding),
        )
        self.changes.opened.append((row, self._messages(row, "firing") if tells else []))
        if fires:
            self._event(row, "problem")

    def by_this_clock(self, row: AlertRow) -> AlertRow:
        """Have what is measured from be now where it lies ahead, and return the alert as it is
        then.
        """
        now = self._look.now
        held_from = row.seen_at if row.fired_at is None else None
        counted = {"seen_at": held_from, "told_at": row.told_at, "absent_at": row.absent_at}
        ahead = {name: now for name, at in counted.items() if at is not None and at > now}
        self._change(row, ahead)
        return _changed(row, ahead) if ahead else row

    def goes_on(self, row: AlertRow, finding: Finding) -> None:
        now, columns = self._look.now, dict[str, Any]()
        if row.absent_at is not None:
            columns["absent_at"] = None
        if row.fired_at is None:
            if now - row.seen_at < timedelta(seconds=self._rule.hold_s):
                self._change(row, columns)
                return
            columns |= {"fired_at": now, **_texts(finding)}
            self._event(row, "problem")
        elif finding.severity != row.severity or finding.cause != _as_stored(finding, row).cause:
            columns |= _texts(finding)
        if self._may_tell() and (row.told_at is None or self._is_due_again(row, now)):
            reason = "firing" if row.told_at is None else "reminder"
            columns |= {"told_at": now, "told": row.told + 1, **_texts(finding)}
            self.changes.messages += self._messages(_changed(row, columns), reason)
        self._change(row, columns)

    def holds(self, row: AlertRow) -> None:
        """Keep it as it is, whoever is told of something else."""
        if row.absent_at is not None:
            self._change(row, {"absent_at": None})

    def is_absent(self, row: AlertRow) -> None:
        now = self._look.now
        if row.fired_at is None:
            self.changes.dropped.append(row.id)
            return
        since = row.absent_at or now
        columns: dict[str, Any] = {} if row.absent_at is not None else {"absent_at": now}
        if now - since >= timedelta(seconds=self._rule.clear_s):
            columns |= {"resolved_at": now, "open_key": None, "owes_resolved": row.told > 0}
            over = _changed(row, columns)
            self._event(over, "resolved")
            if over.owes_resolved:
                columns |= self._paid(over)
        self._change(row, columns)

    def pay(self, row: AlertRow) -> None:
        if row.owes_resolved:
            self._change(row, self._paid(row))

    def _paid(self, row: AlertRow) -> dict[str, Any]:
        if self._look.quiet:
            return {}
        self.changes.messages += self._messages(row, "resolved")
        return {"owes_resolved": False}

    def _may_tell(self) -> bool:
        return bool(self._channels) and not self._look.quiet

    def _is_due_again(self, row: AlertRow, now: datetime) -> bool:
        return (
            self._rule.repeat_s > 0
            and row.told_at is not None
            and now - row.told_at >= timedelta(seconds=self._rule.repeat_s)
        )

    def _change(self, row: AlertRow, columns: dict[str, Any]) -> None:
        if columns:
            self.changes.changed.setdefault(row.id, {}).update(columns)

    def _messages(self, row: AlertRow, reason: str) -> list[AlertMessageRow]:
        return [
            AlertMessageRow(
                message_id=str(uuid.uuid4()),
                alert_id=row.id,
                rule=row.rule,
                channel=channel,
                reason=reason,
                document={"reason": reason, "rule": row.rule, "alert": document_of(row)},
            )
            for channel in self._channels
        ]

    def _event(self, row: AlertRow, kind: str) -> None:
        if not self._look.makes_events:
            return
        event = EventRow(
            at=self._look.now,
            kind=kind,
            severity=row.severity if kind == "problem" else "ok",
            source=row.source or None,
            slot=row.subject if row.code.startswith("slot_") else None,
            subscription=(
                row.link.rpartition("/")[2] if row.link.startswith("/ui/subscriptions/") else None
            ),
            title=row.title if kind == "problem" else f"Over: {row.title}",
            detail=row.detail if kind == "problem" else "",
            document={"code": row.code, "subject": row.subject},
        )
        self.changes.events.append(event)


def document_of(row: AlertRow) -> dict[str, Any]:
    """Return an alert as messages have it."""
    return {
        "id": row.id,
        "code": row.code,
        "subject": row.subject,
        "source": row.source or None,
        "severity": row.severity,
        "title": row.title,
        "detail": row.detail,
        "remedy": row.remedy,
        "link": row.link,
        "fired_at": _iso(row.fired_at),
        "resolved_at": _iso(row.resolved_at),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _texts(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "title": finding.title,
        "detail": finding.detail,
        "remedy": finding.remedy,
        "link": finding.link,
    }


def _as_stored(finding: Finding, row: AlertRow) -> Finding:
    """Return a finding as it was when it was stored."""
    return replace(finding, **{name: getattr(row, name) for name in _texts(finding)})


def _key(rule: AlertRuleRow, finding: Finding, process: str) -> str:
    owner = finding.source or process
    return f"{rule.name}\n{owner}\n{finding.code}\n{finding.subject}"


def _changed(row: AlertRow, columns: Mapping[str, Any]) -> AlertRow:
    values = {name: getattr(row, name) for name in AlertRow.__dataclass_fields__}
    return AlertRow(**{**values, **columns})
