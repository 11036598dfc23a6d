"""Alerts over a metadata store of their own: the real registry, on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.alerts.registry import Alerts
from spillway.store.metadata import MetadataStore

if TYPE_CHECKING:
    from pathlib import Path


async def kept_metadata(directory: Path) -> MetadataStore:
    """Make a metadata store in *directory*."""
    metadata = MetadataStore(f"sqlite:///{directory / 'spillway.db'}")
    await metadata.migrate()
    return metadata


async def kept_alerts(directory: Path) -> Alerts:
    """Make them; what is stored is in *directory*."""
    return Alerts(await kept_metadata(directory))
