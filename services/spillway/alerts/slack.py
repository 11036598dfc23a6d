"""Slack's form of a webhook, which others (Mattermost, Rocket.Chat) take, too. Its address is its
secret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spillway.alerts.outbound import post
from spillway.alerts.wording import address, paragraphs, subject

if TYPE_CHECKING:
    from spillway.store.rows import AlertChannelRow, AlertMessageRow

#: of a block's text
_CHARACTERS_MAX = 2900


async def send(channel: AlertChannelRow, message: AlertMessageRow) -> None:
    """Send *message*.

    Raises:
        AlertNotDelivered: it was not taken.
    """
    body = json.dumps(form(message, channel.config.get("ui_url"))).encode()
    await post(channel.secrets["url"], body, {"Content-Type": "application/json"})


def form(message: AlertMessageRow, ui_url: str | None) -> dict[str, Any]:
    """Return what Slack is sent."""
    title = _escaped(subject(message.document))
    page = address(message.document, ui_url)
    shown = f"<{page}|{title}>" if page else title
    texts = [f"*{shown}*", *(_escaped(one) for one in paragraphs(message.document) if one)]
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": text[:_CHARACTERS_MAX]}}
        for text in texts
    ]
    return {"text": title, "blocks": blocks}


def _escaped(text: str) -> str:
    # These three, and no others; <!channel> would call everybody.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
