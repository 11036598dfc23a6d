"""The PostgreSQL versions that a source may have."""

from __future__ import annotations

from spillway.errors import UnsupportedVersion
from spillway.pg.versions import WAL_VERSIONS


def is_supported(server_version_num: int) -> bool:
    """Say whether a server of this ``server_version_num`` can be a source."""
    return server_version_num // 10000 in WAL_VERSIONS


def unsupported_version(server_version_num: int) -> UnsupportedVersion:
    """Make the error for a server that can't."""
    return UnsupportedVersion(
        f"the source is PostgreSQL {server_version_num // 10000} (server_version_num "
        f"{server_version_num})",
        hint=f"Spillway decodes PostgreSQL {min(WAL_VERSIONS)} to {max(WAL_VERSIONS)}.",
        server_version_num=server_version_num,
    )
