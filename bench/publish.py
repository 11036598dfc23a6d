"""A run's results into the documentation: ``docs/benchmarks/DATE``, with a line in the index."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from bench.machine import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

    from bench.results import Results

_DOCS: Final = PROJECT / "docs"
_INDEX_HEADING: Final = "**Benchmarks**"


def publish(output: Path, results: Results) -> Path:
    """Copy what is in *output*; return the page's path in the project."""
    date = results.environment["date"].partition(" ")[0]
    directory: Path = _DOCS / "benchmarks" / date
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for file in output.iterdir():
        if file.suffix in {".json", ".png"}:
            shutil.copy(file, directory)
    shutil.copy(output / "report.md", directory / "README.md")
    _index(date)
    return (directory / "README.md").relative_to(PROJECT)


def _index(date: str) -> None:
    index = _DOCS / "README.md"
    text = index.read_text()
    link = f"[{date}](benchmarks/{date}/README.md)"
    if link in text:
        return
    if _INDEX_HEADING not in text:
        text = f"{text.rstrip()}\n\n{_INDEX_HEADING}\n"
    index.write_text(f"{text.rstrip()}\n- {link}\n")
