"""Tables that are set aside: where they stopped, and their changes from there on.

::

    _spillway/quarantine/<table>.json    since which LSN, and why: durable before anything is set
                                         aside
    quarantine/<table>                   a lake table of the messages themselves, as the plugin made
                                         them

A table in quarantine has history and current as of that LSN. What comes for it from then on is kept
as it came, whatever its shape, so that nothing is lost and nothing can conflict; the slot is
confirmed. When it comes back (:mod:`spillway.lake.batch.schema_policy` says when) its messages are
put before those of the batch at hand, and go the way that they would have gone.

What the job set aside because it can't write it, a value that no file takes or values that nobody
knows, would fail again with each batch: it comes back when it is asked for (``spillway lake
resume``), or loaded anew.

A table that a person pauses (``spillway lake pause``) is set aside the same way, from the end of
the job's next batch on: until that batch its state has the LSN :data:`NEXT_BATCH`.

Driver, but for :class:`SetAside`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spillway.errors import LakeError
from spillway.lake.shape.payload import (
    CHANGE_COLUMNS,
    ENVELOPE,
    between,
    directory_named,
    parse_message,
)
from spillway.lake.state import versioned
from spillway.lake.state.loads import is_loading, known_tables
from spillway.pg.lsn import Lsn
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from spillway.storage.place import LakePath

#: A kind of lake tables beside history and current.
QUARANTINE: Final = "quarantine"

#: What is told of a table that is paused.
PAUSED: Final = (
    "somebody paused it. What comes for it is kept in the lake as it came, until it is resumed"
)

#: A message each, as it came; ``_commit_lsn`` is that of its last change.
SET_ASIDE: Final = pa.schema(
    [
        pa.field("_commit_lsn", pa.int64()),
        *(
            field
            for field in ENVELOPE
            if not field.name.startswith("range_") and not field.name.endswith("_time")
        ),
    ]
)

#: For people who look at what is set aside: the changes, whose own columns may be any.
AS_JSON: Final = pa.schema(
    [
        *(field for field in CHANGE_COLUMNS if field.name != "_unchanged_toast"),
        pa.field("_row", pa.string()),
    ]
)

#: The LSN of a table that is to be paused, until the job has had a batch.
NEXT_BATCH: Final = str(Lsn(2**64 - 1))

_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One table that is set aside."""

    #: ``schema.table``
    table: str
    #: history and current have everything before it
    lsn: str
    reason: str
    #: ISO 8601, UTC
    since: str
    version: int = _FORMAT_VERSION
    #: it comes back by `spillway lake resume` or a load only
    by_command: bool = False
    #: `spillway lake resume` asked for it
    resumed: bool = False
    #: what is set aside from before the LSN that its current table was loaded as of is given up
    gives_up: bool = False
    #: its current table was as of that LSN when it could not be written; "": it was not tried
    tried: str = ""
    #: somebody asked for it, nothing is the matter with it; not stored when it is false
    paused: bool = False

    @property
    def lsn_value(self) -> int:
        return int(Lsn.parse(self.lsn))

    @property
    def is_asked(self) -> bool:
        """Whether the job has yet to say from where on it is set aside."""
        return self.lsn == NEXT_BATCH

    @property
    def loaded_after(self) -> int:
        """A current table that was loaded as of later leads the table back."""
        return max(self.lsn_value, int(Lsn.parse(self.tried)) if self.tried else 0)

    def __str__(self) -> str:
        if self.is_asked:
            return f"{self.table} is paused from the job's next batch on"
        if self.paused:
            return f"{self.table} is paused since {self.lsn}: {self.reason}"
        return f"{self.table} is in quarantine since {self.lsn}: {self.reason}"


def quarantined(path: LakePath) -> dict[str, Quarantine]:
    """Return the tables of the lake at *path* that are set aside, by their directories.

    Raises:
        LakeTableConflict: a file is not of this release.
    """
    folder = _folder(path)
    found = {}
    names = [file.name for file in folder.glob("*.json")] if folder.is_dir() else []
    for name in sorted(names):
        state = versioned.read(
            folder / name,
            _FORMAT_VERSION,
            lambda value: Quarantine(**value),
            "Removed, the table begins where its history ends; what is set aside is not looked at "
            "then.",
        )
        if state is not None:
            found[name.removesuffix(".json")] = state
    return found


def made(table: str, lsn: int, reason: str, *, by_command: bool = False) -> Quarantine:
    """Return the state of a table that is set aside from *lsn* on, from now."""
    now = datetime.now(UTC).isoformat()
    return Quarantine(table, str(Lsn(lsn)), reason, now, by_command=by_command)


def put(path: LakePath, directory: str, state: Quarantine) -> Quarantine:
    """Make it durable that a table is set aside."""
    file = _folder(path) / f"{directory}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    value = asdict(state)
    if not state.paused:
        # A release that knows no pauses reads the others.
        del value["paused"]
    replace_json(file, value)
    return state


def pause(path: LakePath, tables: Collection[str]) -> list[Quarantine]:
    """Ask for tables, by ``schema.table``, to be set aside from the end of the job's next batch on;
    return what they are.

    One that is set aside stays so where it was, and comes back when it is asked for.

    Raises:
        LakeError: the lake has no such table, or loads it: what is loaded comes back by itself.
    """
    found = quarantined(path)
    known = known_tables(path) | found.keys()
    directories = {table: directory_named(table) for table in tables}
    for table, directory in directories.items():
        if directory not in known:
            raise LakeError(
                f"the lake at {path} has no table {table}",
                hint="Name it as schema.table; nothing of it has come yet, if it is to be there.",
                relation=table,
            )
        if is_loading(path, directory):
            raise LakeError(
                f"{table} of the lake at {path} is being loaded",
                hint="Pause it when its load is done.",
                relation=table,
            )
    states = []
    for table, directory in directories.items():
        before = found.get(directory)
        now = datetime.now(UTC).isoformat()
        state = Quarantine(table, NEXT_BATCH, PAUSED, now, by_command=True, paused=True)
        if before is not None and not before.is_asked:
            state = replace(before, resumed=False, by_command=True)
        states.append(put(path, directory, state))
    return states


def resume(path: LakePath, tables: Collection[str], *, gives_up: bool = False) -> list[Quarantine]:
    """Ask for tables, by ``schema.table``, all without any, to come back with the job's next batch;
    return what they are.

    Args:
        path: the lake's.
        tables: see above.
        gives_up: see :class:`Quarantine`: their histories lack that.

    Raises:
        LakeError: one of them is not set aside.
    """
    found = quarantined(path)
    missing = sorted(set(tables) - {state.table for state in found.values()})
    if missing:
        raise LakeError(
            f"{missing[0]} of the lake at {path} is not in quarantine",
            hint=f"In it are {', '.join(s.table for s in found.values()) or 'no tables'}.",
            relation=missing[0],
        )
    states = []
    for directory, state in found.items():
        if tables and state.table not in tables:
            continue
        if state.is_asked:
            # Nothing of it is set aside.
            release(path, directory)
            states.append(state)
        else:
            states.append(put(path, directory, replace(state, resumed=True, gives_up=gives_up)))
    return states


def release(path: LakePath, directory: str) -> None:
    """Make it a table like any other; what was set aside is in its history by now."""
    (_folder(path) / f"{directory}.json").unlink(missing_ok=True)


class SetAside:
    """The function given to mapInArrow: envelopes in, those of changes from an LSN on out. Pickled
    to executors.
    """

    def __init__(self, from_lsn: int, upto_lsn: int) -> None:
        self._from_lsn = from_lsn
        self._upto_lsn = upto_lsn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [kept for row in batch.to_pylist() if (kept := self._kept(row)) is not None]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=SET_ASIDE)

    def _kept(self, row: dict[str, Any]) -> dict[str, Any] | None:
        first, last = row["first_commit_lsn"], row["last_commit_lsn"]
        if last < self._from_lsn or first >= self._upto_lsn:
            return None
        row["_commit_lsn"] = last
        if first >= self._from_lsn and last < self._upto_lsn:
            return row
        changes = between(parse_message(row["payload"]).batch, self._from_lsn, self._upto_lsn)
        if not changes.num_rows:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, changes.schema) as writer:
            writer.write_batch(changes)
        lsns, seqs = changes.column("_commit_lsn"), changes.column("_seq")
        return row | {
            "payload": sink.getvalue().to_pybytes(),
            "changes": changes.num_rows,
            "_commit_lsn": lsns[-1].as_py(),
            "first_commit_lsn": lsns[0].as_py(),
            "first_seq": seqs[0].as_py(),
            "last_commit_lsn": lsns[-1].as_py(),
            "last_seq": seqs[-1].as_py(),
        }


class AsJson:
    """The function given to mapInArrow: payloads in, their changes as :data:`AS_JSON` out. Pickled
    to executors.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = set(AS_JSON.names)
        for batch in batches:
            for body in batch.column("payload"):
                changes = parse_message(body.as_buffer()).batch
                rows = [
                    {name: row[name] for name in own if name in row}
                    | {
                        "_row": json.dumps(
                            {n: v for n, v in row.items() if n not in own}, default=str
                        )
                    }
                    for row in changes.to_pylist()
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=AS_JSON)


def _folder(path: LakePath) -> LakePath:
    return path / "_spillway" / "quarantine"
