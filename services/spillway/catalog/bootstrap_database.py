"""Which bootstrap a database gets: SQL wherever it can be exact, else its files.

SQL asks for a login only, and rests on the full-page images that WAL holds after a checkpoint. A
server with full_page_writes = off writes none, and its catalogs are read as files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spillway.catalog.bootstrap import Bootstrap, bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.serialization import deserialize, serialize
from spillway.catalog.source_queries import connected, query_value

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from spillway.catalog.descriptor_registry import DescriptorRegistry


def bootstrap_database(
    conninfo: str,
    *,
    first_lsn: int = 0,
    registry: DescriptorRegistry | None = None,
    progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Bootstrap:
    """Read the catalogs of the database that *conninfo* names; see :func:`bootstrap_sql` for the
    rest.

    Raises:
        SourceError: as bootstrap_sql; with full_page_writes = off also if the role may not read
            files.
        UnsupportedWal: the server is of a major that Spillway does not read.
        CheckpointNotStored: as bootstrap_sql.
        NotReady: cancelled.
    """
    with connected(conninfo, cancel) as connection:
        has_images = query_value(connection, "SHOW full_page_writes") == "on"
    begin = bootstrap_sql if has_images else bootstrap_raw
    bootstrap = begin(
        conninfo, first_lsn=first_lsn, registry=registry, progress=progress, cancel=cancel
    )
    if has_images:
        return bootstrap
    # As after a restart, and as the other way: rows that nobody asks for are bytes, and no objects
    # (``packed_pages``).
    packed = deserialize(serialize(bootstrap.mirror), bootstrap.mirror.registry)
    return replace(bootstrap, mirror=packed)
