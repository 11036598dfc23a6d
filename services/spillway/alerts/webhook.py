"""A webhook: the message as JSON, signed.

``Spillway-Signature: t=<seconds>,v1=<hex>`` is the HMAC-SHA256 with the channel's secret of the
seconds, a dot and the body's bytes; a receiver refuses what is old or signed otherwise.
``Spillway-Message-Id`` is the same whenever a message is tried again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING

from spillway.alerts.outbound import post
from spillway.alerts.wording import address

if TYPE_CHECKING:
    from spillway.store.rows import AlertChannelRow, AlertMessageRow


async def send(channel: AlertChannelRow, message: AlertMessageRow) -> None:
    """Send *message*.

    Raises:
        AlertNotDelivered: it was not taken.
    """
    document = {
        "message_id": message.message_id,
        **message.document,
        "url": address(message.document, channel.config.get("ui_url")),
    }
    body = json.dumps(document, ensure_ascii=False).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "spillway-alerts",
        "Spillway-Message-Id": message.message_id,
    }
    if secret := channel.secrets.get("secret"):
        headers["Spillway-Signature"] = signature(secret, int(time.time()), body)
    if authorization := channel.secrets.get("authorization"):
        headers["Authorization"] = authorization
    await post(channel.config["url"], body, headers)


def signature(secret: str, seconds: int, body: bytes) -> str:
    """Sign *body* as of *seconds* since the epoch."""
    signed = f"{seconds}.".encode() + body
    return f"t={seconds},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
