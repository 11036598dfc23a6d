"""The PostgreSQL versions that a source may have."""

from __future__ import annotations

from typing import Final

from spillway.errors import UnsupportedVersion

MAJOR_MIN: Final = 14
MAJOR_MAX: Final = 18


def is_supported(server_version_num: int) -> bool:
    """Say whether a server of this ``server_version_num`` can be a source."""
    return MAJOR_MIN <= server_version_num // 10000 <= MAJOR_MAX


def unsupported_version(server_version_num: int) -> UnsupportedVersion:
    """Make the error for a server that can't."""
    return UnsupportedVersion(
        f"the source is PostgreSQL {server_version_num // 10000} (server_version_num {server_version_num})",
        hint=f"Spillway decodes PostgreSQL {MAJOR_MIN} to {MAJOR_MAX}.",
        server_version_num=server_version_num,
    )
