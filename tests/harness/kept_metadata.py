"""A metadata store of a test's own, on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.store.metadata import MetadataStore

if TYPE_CHECKING:
    from pathlib import Path


async def kept_metadata(directory: Path) -> MetadataStore:
    """Make a metadata store in *directory*."""
    metadata = MetadataStore(f"sqlite:///{directory / 'spillway.db'}")
    await metadata.migrate()
    return metadata
