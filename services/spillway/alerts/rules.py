"""What a rule may say, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from spillway.alerts.quiet import checked_quiet
from spillway.errors import InvalidRequest
from spillway.store.rows import AlertRuleRow
from spillway.watch.findings import CODES, Limits

if TYPE_CHECKING:
    from spillway.watch.findings import Finding

RULES_MAX: Final = 100
LIST_MAX: Final = 100
_WEEK_S: Final = 7 * 86_400
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SEVERITIES: Final = ("warn", "bad")
LIMIT_NAMES: Final = tuple(field.name for field in fields(Limits))


def checked_name(name: str, what: str) -> str:
    """Return the name of a rule or a channel.

    Raises:
        InvalidRequest: it can't be one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{what} can't have the name {name!r}",
            hint="A name has 1 to 63 lower case letters, digits, - and _, and begins with a letter "
            "or a digit.",
        )
    return name


def checked_rule(name: str, given: Mapping[str, Any], channels: Sequence[str]) -> AlertRuleRow:
    """Return a rule as it is stored.

    Args:
        name: the rule's.
        given: fields of :class:`~spillway.store.rows.AlertRuleRow`; what is left out is as there.
        channels: those that there are.

    Raises:
        InvalidRequest: something of it can't be.
    """
    codes = _texts(given.get("codes"), "codes")
    if codes is not None and (unknown := [code for code in codes if code not in CODES]):
        raise InvalidRequest(
            f"codes has {unknown[0]!r}, which is no finding's",
            hint=f"There are {', '.join(CODES)}.",
        )
    severity = given.get("severity", "warn")
    if severity not in SEVERITIES:
        raise InvalidRequest(
            f"severity is {severity!r}",
            hint="warn: all findings; bad: those by which something stands still.",
        )
    told = _texts(given.get("channels"), "channels") or []
    if missing := [channel for channel in told if channel not in channels]:
        raise InvalidRequest(
            f'alert channel "{missing[0]}" does not exist',
            hint=f"PUT /v1/alerts/channels/{missing[0]} makes it; GET /v1/alerts/channels lists "
            "what exists.",
        )
    return AlertRuleRow(
        name=checked_name(name, "an alert rule"),
        enabled=bool(given.get("enabled", True)),
        codes=codes,
        sources=_texts(given.get("sources"), "sources"),
        subjects=_texts(given.get("subjects"), "subjects"),
        severity=severity,
        limits=_limits(given.get("limits") or {}),
        hold_s=_seconds(given, "hold_s", 0),
        clear_s=_seconds(given, "clear_s", 60),
        repeat_s=_seconds(given, "repeat_s", 14_400),
        quiet=checked_quiet(given.get("quiet")),
        channels=told,
    )


def new_rule() -> AlertRuleRow:
    """Return a rule of which nothing is said, for a form to begin with."""
    return AlertRuleRow(name="")


def limits_of(rule: AlertRuleRow) -> Limits:
    """Return from where on amounts are findings to *rule*."""
    values = dict(rule.limits)
    for name in ("lag_bytes", "unread_bytes"):
        if name in values:
            values[name] = int(values[name])
    return Limits(**values)  # type: ignore[arg-type]


def concerns(rule: AlertRuleRow, finding: Finding) -> bool:
    """Say whether *finding* is one of those that *rule* tells."""
    return (
        (rule.severity == "warn" or finding.severity == "bad")
        and (rule.codes is None or finding.code in rule.codes)
        and (rule.sources is None or finding.source in rule.sources)
        and (
            rule.subjects is None
            or any(fnmatchcase(finding.subject, pattern) for pattern in rule.subjects)
        )
    )


def _texts(given: object, name: str) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidRequest(f"{name} is no list", hint="Write a list of texts.")
    if len(given) > LIST_MAX or not all(isinstance(one, str) and one for one in given):
        raise InvalidRequest(
            f"{name} has something that is no text, or more than {LIST_MAX} of them",
            hint="Write a list of texts.",
        )
    return list(given)


def _limits(given: Mapping[str, Any]) -> dict[str, float]:
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            raise InvalidRequest(
                f"limits has no {name!r}", hint=f"There are {', '.join(LIMIT_NAMES)}."
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"limits.{name} is {value!r}", hint="Write a number.")
        if not 0 <= value < 2**62 or math.isnan(value) or (name == "near_limit" and value > 1):
            raise InvalidRequest(
                f"limits.{name} is {value!r}",
                hint="Write a number from 0 on; near_limit is a part, 0.2 for a fifth.",
            )
    return dict(given)


def _seconds(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _WEEK_S:
        raise InvalidRequest(
            f"{name} is {value!r}", hint=f"Write whole seconds, from 0 to {_WEEK_S} (a week)."
        )
    return value
