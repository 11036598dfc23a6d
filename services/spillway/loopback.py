"""Which names and addresses can only mean this machine: where no token is needed."""

from __future__ import annotations

import ipaddress
from typing import Final

_LOOPBACK_NAME: Final = "localhost"


def is_loopback(hostname: str) -> bool:
    """Say whether *hostname*, a name or an address, can only mean this machine."""
    if hostname == _LOOPBACK_NAME:
        return True
    try:
        return ipaddress.ip_address(hostname).is_loopback
    except ValueError:
        return False
