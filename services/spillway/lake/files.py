"""Small files of a lake, in a directory or a bucket, that are there whole or not at all, and stay after a power failure."""

from __future__ import annotations

import json
from typing import Any

from spillway.lake.storage import LakePath, ObjectPath
from spillway.storage.durable_files import replace_file


def replace_json(path: LakePath, value: Any) -> None:
    """Put *value* at *path* in one step: readers see the old text or the new one."""
    replace_text(path, json.dumps(value))


def replace_text(path: LakePath, text: str) -> None:
    """Put *text* at *path* in one step, as :func:`replace_json` does."""
    if isinstance(path, ObjectPath):
        path.replace_text(text)
        return
    replace_file(path, text)
