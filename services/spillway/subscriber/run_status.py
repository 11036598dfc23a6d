"""What a subscription's program tells of itself: ``status.json``, which it replaces as a whole,
atomically.

A file and not a port or a pipe: it needs no connection, can't block the program, and what was last
known is still known when either side has died. ::

    {"run": the run's token (SPILLWAY_SUBSCRIPTION_RUN), "begun": true once it follows its slot,
     "changes": durable in the target, of this run and those before it,
     "tables": {"schema.table": {
         "state": "waiting" | "copying" | "ready" | "quarantined" | "paused",
         "changes": n, "bytes_copied": n | null, "bytes_total": n | null, "reason": text | null,
         "sync_state": text | null, "written_alone": text | null,
         "rows", "files", "bytes", "deleted_rows", "bytes_rewritten": n | null,
         "figures_at", "newest_change_at", "waiting_since": time | null,
         "resync": {
             "state": "waiting" | "loading" | "done" | "failed" | "cancelled", "asked_at": time,
             "ended_at": time | null, "lsn": LSN | null, "reason": text | null} | null}},
     "last_batch": {
         "ended_at": time, "seconds": x, "changes": n, "tables": n,
         "from_lsn": LSN, "to_lsn": LSN} | null,
     "stats": what its kind has beside that, by name,
     "error": {"code", "message", "hint"} | null}

Whatever can't be read counts as nothing said: the program may be of another release.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.pg.lsn import Lsn
from spillway.storage.durable_files import replace_cache
from spillway.subscriber.model import Failure, LastBatch, TableResync, TableState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "status.json"
#: A file that is larger was not written by a program of ours.
_BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What the file says."""

    run: str = ""
    begun: bool = False
    changes: int = 0
    tables: tuple[TableState, ...] = ()
    last_batch: LastBatch | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    error: Failure | None = None
    #: when it was written
    told_at: datetime | None = field(default=None, compare=False)

    @property
    def is_copying(self) -> bool:
        """Whether tables are still to be copied."""
        return any(table.state in ("waiting", "copying") for table in self.tables)

    @property
    def has_first_copies(self) -> bool:
        """Whether tables are still to be copied that nobody asked for: what was asked for anew is
        kept by its wish, whatever the program is started with.
        """
        return any(
            table.state in ("waiting", "copying")
            and (table.resync is None or table.resync.state in ("done", "cancelled"))
            for table in self.tables
        )

    @property
    def has_copies_under_way(self) -> bool:
        """Whether a copy would be lost if the program ended: one that is only waited for, since
        something is the matter with its table, is not.
        """
        return any(
            table.state == "copying" or (table.state == "waiting" and not table.reason)
            for table in self.tables
        )

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Read it; None when it says nothing. Blocks."""
        try:
            with (directory / FILE).open("rb") as file:
                told_at = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
                value = json.loads(file.read(_BYTES_MAX))
            return cls(
                run=str(value["run"]),
                begun=bool(value["begun"]),
                changes=int(value["changes"]),
                tables=tuple(_table(name, told) for name, told in sorted(value["tables"].items())),
                last_batch=_batch(value.get("last_batch")),
                stats=dict(value.get("stats") or {}),
                error=_failure(value["error"]),
                told_at=told_at,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def tell_resync(directory: Path, table: str, resync: TableResync) -> None:
    """Tell how a wish to load *table* anew is, in place of a program, while there is none. Blocks;
    what can't be written is not told.
    """
    file = directory / FILE
    told = {
        "state": resync.state,
        "asked_at": resync.asked_at.isoformat(),
        "ended_at": None if resync.ended_at is None else resync.ended_at.isoformat(),
        "lsn": None if resync.lsn is None else str(resync.lsn),
        "reason": resync.reason,
    }
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        value = json.loads(file.read_text())
        value["tables"][table]["resync"] = told
        replace_cache(file, json.dumps(value), mode=0o600)


def _table(name: str, told: dict[str, Any]) -> TableState:
    return TableState(
        table=name,
        state=str(told["state"]),
        changes=int(told["changes"]),
        bytes_copied=_number(told["bytes_copied"]),
        bytes_total=_number(told["bytes_total"]),
        reason=_text(told["reason"]),
        sync_state=_text(told.get("sync_state")),
        written_alone=_text(told.get("written_alone")),
        rows=_number(told.get("rows")),
        files=_number(told.get("files")),
        bytes=_number(told.get("bytes")),
        deleted_rows=_number(told.get("deleted_rows")),
        bytes_rewritten=_number(told.get("bytes_rewritten")),
        figures_at=_time(told.get("figures_at")),
        newest_change_at=_time(told.get("newest_change_at")),
        waiting_since=_time(told.get("waiting_since")),
        resync=_resync(told.get("resync")),
    )


def _resync(told: dict[str, Any] | None) -> TableResync | None:
    if told is None:
        return None
    return TableResync(
        state=str(told["state"]),
        asked_at=datetime.fromisoformat(str(told["asked_at"])),
        ended_at=_time(told["ended_at"]),
        lsn=None if told["lsn"] is None else Lsn.parse(str(told["lsn"])),
        reason=_text(told["reason"]),
    )


def _batch(told: dict[str, Any] | None) -> LastBatch | None:
    if told is None:
        return None
    return LastBatch(
        ended_at=datetime.fromisoformat(str(told["ended_at"])),
        seconds=float(told["seconds"]),
        changes=int(told["changes"]),
        tables=int(told["tables"]),
        from_lsn=Lsn.parse(str(told["from_lsn"])),
        to_lsn=Lsn.parse(str(told["to_lsn"])),
    )


def _time(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(str(value))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _failure(told: dict[str, Any] | None) -> Failure | None:
    if told is None:
        return None
    return Failure(str(told["code"]), str(told["message"]), str(told["hint"]))
