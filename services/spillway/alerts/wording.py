"""What a message says, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.wording import for_commands

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What a message begins with: how it is told, by reason and severity.
_BEGINS: Final = {"firing": "", "reminder": "Still: ", "resolved": "Over: ", "test": "Test: "}
_LEVELS: Final = {"bad": "problem", "warn": "attention", "ok": "test"}


def subject(document: Mapping[str, Any]) -> str:
    """Return one line: ``[problem] Source shop receives no WAL``."""
    alert = document["alert"]
    level = "over" if document["reason"] == "resolved" else _LEVELS[alert["severity"]]
    begin = _BEGINS[document["reason"]] if document["reason"] != "resolved" else ""
    line = f"[{level}] {begin}{alert['title']}"
    return " ".join(line.split())


def paragraphs(document: Mapping[str, Any]) -> list[str]:
    """Return what follows: what is known of it, and what to do."""
    alert = document["alert"]
    if document["reason"] == "resolved":
        began, over = _moment(alert["fired_at"]), _moment(alert["resolved_at"])
        return [f"It began at {began} and was over at {over}."]
    since = f" Since {_moment(alert['fired_at'])}." if alert["fired_at"] else ""
    return [
        f"{alert['detail']}{since}".strip(),
        f"What to do: {for_commands(alert['remedy'])}" if alert["remedy"] else "",
    ]


def address(document: Mapping[str, Any], ui_url: str | None) -> str | None:
    """Return where its page is; None where nobody said how the UI is reached."""
    link = document["alert"]["link"]
    return None if not ui_url or not link else ui_url.rstrip("/") + link


def _moment(text: str | None) -> str:
    return "?" if text is None else f"{text[:19].replace('T', ' ')} UTC"
