"""With what a lake's job was run last: ``<path>/_spillway/job.json``.

Another command that has to bring the lake up to an LSN (:mod:`spillway.lake.verify.run`) must do
what the job would: the same tables, the same checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spillway.errors import LakeError
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from spillway.storage.place import LakePath


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What two runs of a lake's job must have in common."""

    checkpoint: str
    #: empty: all
    tables: list[str]
    max_bytes_per_batch: int
    on_schema_change: str = "evolve"
    merge: str = "copy"


def store(path: LakePath, record: JobRecord) -> None:
    """Make *record* durable."""
    replace_json(path / "_spillway" / "job.json", asdict(record))


def load(path: LakePath) -> JobRecord:
    """Return the last one.

    Raises:
        LakeError: there is none.
    """
    file = path / "_spillway" / "job.json"
    try:
        return JobRecord(**json.loads(file.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise LakeError(
            f"how the lake at {path} is filled is not known: {error}",
            hint="Run `spillway lake run` with this release once.",
        ) from error
