"""Which failures are a table's own, and the way back of a table that is set aside."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spillway.errors import LakeError, LakeSchemaConflict, LakeTableConflict, NotReady
from spillway.lake.batch.poison import is_tables_own, reason
from spillway.lake.commands.app import app
from spillway.lake.state import position, quarantine
from spillway.lake.state.position import LakePosition

if TYPE_CHECKING:
    from pathlib import Path


class PanicException(BaseException):
    """As pyo3's, which no name leads to."""


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (LakeSchemaConflict("no", relation="s.t"), True),
        (LakeTableConflict("another key", relation="s.t"), True),
        (LakeTableConflict("the lease is another one's"), False),
        (NotReady("no service", relation="s.t"), False),
        (LakeError("the store failed"), False),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (pa.ArrowInvalid("would lose data"), True),
        (PanicException("`NaiveDate + TimeDelta` overflowed"), True),
        (KeyboardInterrupt(), False),
        (MemoryError(), False),
        (RuntimeError("Job aborted: java.io.IOException: No space left on device"), False),
        (RuntimeError("Python worker failed to connect back"), False),
        (RuntimeError("spillway.errors.NotReady: the slot is not there"), False),
        (RuntimeError("spillway.errors.LakeError: a value of column 'a' of s.t"), True),
        (RuntimeError("[TASK_WRITE_FAILED]\n\tat o.a.s.SparkContext was shut down(X:1)"), True),
        (RuntimeError("Job 5 cancelled because SparkContext was shut down"), False),
        (RuntimeError("Job aborted: java.io.IOException: Disk quota exceeded"), True),
    ],
)
def test_whose_trouble_it_is(error: BaseException, own: bool) -> None:
    assert is_tables_own(error) is own


def test_what_is_told_names_the_way_back(tmp_path: Path) -> None:
    worker = RuntimeError("…\nspillway.errors.LakeError: a value of column 'a' of s.t is none\n…")
    told = reason(worker, "s.t", tmp_path)
    assert told.startswith("a value of column 'a' of s.t is none. When that is mended: ")
    assert f"spillway lake resume --lake {tmp_path} --table s.t." in told


def test_tables_are_asked_back_by_a_command(tmp_path: Path) -> None:
    where = LakePosition("s", "main", "db", "delta", "0/10")
    position.store(tmp_path, where)

    def resume(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["resume", "--lake", str(tmp_path), *arguments])
        return done.exit_code, str(done.exception or done.output)

    assert "no table is in quarantine" in resume()[1]
    for name in ("s.a", "s.b"):
        quarantine.put(tmp_path, name, quarantine.made(name, 16, "why", by_command=True))
    assert "s.c of the lake" in resume("--table", "s.c")[1]
    assert resume("--table", "s.a", "--give-up")[0] == 0
    found = quarantine.quarantined(tmp_path)
    assert [(s.resumed, s.gives_up) for s in found.values()] == [(True, True), (False, False)]
    assert resume()[0] == 0
    assert all(state.resumed for state in quarantine.quarantined(tmp_path).values())


def test_a_state_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    file = tmp_path / "_spillway" / "quarantine" / "s.t.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"table":"s.t","lsn":"0/10","reason":"r","since":"2026-11-01","version":1}')
    state = quarantine.quarantined(tmp_path)["s.t"]
    assert (state.by_command, state.resumed, state.loaded_after) == (False, False, 16)
