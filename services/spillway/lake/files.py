"""Small files and directories that are there whole or not at all, and stay after a power failure."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from spillway.lake.storage import LakePath, ObjectPath

if TYPE_CHECKING:
    from pathlib import Path


def replace_json(path: LakePath, value: Any) -> None:
    """Put *value* at *path* in one step: readers see the old text or the new one."""
    replace_text(path, json.dumps(value))


def replace_text(path: LakePath, text: str) -> None:
    """Put *text* at *path* in one step, as :func:`replace_json` does."""
    if isinstance(path, ObjectPath):
        path.replace(text)
        return
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make the files directly in a directory durable, and their names."""
    for entry in path.iterdir():
        if entry.is_file():
            with entry.open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(path)
