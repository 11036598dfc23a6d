"""A Python package as pip leaves it: modules and a dist-info with entry points, in a directory of
its own.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spillway.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@contextmanager
def installed(
    directory: Path,
    name: str,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
) -> Iterator[None]:
    """Install a package for the time of the block: its *modules* by name, its *entry_points* by
    group.
    """
    directory.mkdir()
    for module, source in modules.items():
        (directory / f"{module}.py").write_text(source)
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    registry._registered.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for module in modules:
            sys.modules.pop(module, None)
        registry._registered.cache_clear()
