"""E-mail, by SMTP: one message to all addresses of a channel.

Messages of one alert are a thread. ``security`` says how the connection is protected: ``starttls``
(587), ``tls`` from the first byte (465), or ``none``, by which no password is ever sent.
"""

from __future__ import annotations

import asyncio
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING

from spillway.alerts.outbound import TIMEOUT_S, addresses
from spillway.alerts.wording import address, paragraphs, subject
from spillway.errors import AlertNotDelivered

if TYPE_CHECKING:
    from spillway.store.rows import AlertChannelRow, AlertMessageRow


async def send(channel: AlertChannelRow, message: AlertMessageRow) -> None:
    """Send *message*.

    Raises:
        AlertNotDelivered: the server did not take it, for one of its addresses or for all.
    """
    # As in ``outbound``: for those who have such a channel.
    import aiosmtplib  # noqa: PLC0415

    config = channel.config
    host, port, security = config["host"], config["port"], config["security"]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await addresses(host, port)
            refused, _ = await aiosmtplib.send(
                letter(channel, message),
                hostname=host,
                port=port,
                use_tls=security == "tls",
                start_tls=security == "starttls",
                username=config.get("user"),
                password=channel.secrets.get("password"),
                timeout=TIMEOUT_S,
            )
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        raise AlertNotDelivered(
            f"the mail server {host}:{port} did not take it: {_first_line(error)}",
            hint="Check the channel's host, port, security, user and password, and its addresses.",
        ) from error
    if refused:
        raise AlertNotDelivered(
            f"the mail server {host}:{port} refused {', '.join(sorted(refused))}",
            hint="Check the channel's addresses; the others have it.",
        )


def letter(channel: AlertChannelRow, message: AlertMessageRow) -> EmailMessage:
    """Return what is sent."""
    sender = channel.config["from"]
    domain = sender.rpartition("@")[2].strip("> ") or "localhost"
    made = EmailMessage()
    made["From"] = sender
    made["To"] = ", ".join(channel.config["to"])
    made["Subject"] = subject(message.document)
    made["Date"] = formatdate(message.created_at.timestamp())
    made["Message-ID"] = f"<{message.message_id}@{domain}>"
    if message.alert_id is not None:
        made["References"] = f"<alert-{message.alert_id}@{domain}>"
    made["Auto-Submitted"] = "auto-generated"
    texts = [one for one in paragraphs(message.document) if one]
    if page := address(message.document, channel.config.get("ui_url")):
        texts.append(page)
    texts.append(f"Rule {message.rule}, channel {channel.name}." if message.rule else "")
    made.set_content("\n\n".join(one for one in texts if one) + "\n")
    return made


def _first_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:300]
