"""What a subscription wishes of conflicts, how one is worded, and where it is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from spillway.apply.conflicts import log
from spillway.apply.conflicts.conflict import Conflict, LocalRow
from spillway.apply.conflicts.kinds import ALLOWED, DEFAULTS, ConflictKind, Resolution
from spillway.apply.conflicts.log import ConflictFile
from spillway.apply.conflicts.rules import ConflictRules
from spillway.errors import InvalidOption
from spillway.subscriber.conflict_file import ConflictReader, Reading

if TYPE_CHECKING:
    from pathlib import Path

AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
CONFLICT = Conflict(
    kind=ConflictKind.INSERT_EXISTS,
    resolution=Resolution.KEEP_LOCAL,
    schema="public",
    table="t",
    local=(
        LocalRow({"id": b"1", "v": None}, 77, "", AT, "t_pkey", ("id",), (b"1",)),
    ),
    remote={"id": b"1", "v": "ü".encode() * 40},
    identity=None,
    identity_columns=(),
    origin="",
    committed_at=AT,
    lsn=0x1_0000_0010,
    xid=5,
    number=2,
)  # fmt: skip


def test_without_a_file_nothing_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ConflictFile(None).record([CONFLICT])
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_named_is_as_postgresqls() -> None:
    rules = ConflictRules.parse(None)
    assert {kind: rules.of("public.t", kind) for kind in ConflictKind} == dict(DEFAULTS)
    assert set(ALLOWED) == set(DEFAULTS) == set(ConflictKind)
    assert all(DEFAULTS[kind] in allowed for kind, allowed in ALLOWED.items())


def test_a_tables_own_rule_comes_first() -> None:
    form: dict[str, Any] = {
        "insert_exists": "apply_remote",
        "tables": {"s.t": {"insert_exists": "keep_local", "update_origin_differs": "merge"}},
    }
    rules = ConflictRules.parse(form)
    assert rules.as_json() == form
    assert rules.of("s.t", ConflictKind.INSERT_EXISTS) == Resolution.KEEP_LOCAL
    assert rules.of("s.u", ConflictKind.INSERT_EXISTS) == Resolution.APPLY_REMOTE
    assert rules.merging("s.t")
    assert not rules.merging("s.u")
    assert rules.needing_commit_times() == ["s.t update_origin_differs: merge"]
    wins = ConflictRules.parse({"insert_exists": "last_update_wins"})
    assert wins.needing_commit_times() == ["insert_exists: last_update_wins"]


@pytest.mark.parametrize(
    ("wished", "said"),
    [
        ([], "not an object"),
        ({"insert_exist": "error"}, '"insert_exist"'),
        ({"insert_exists": "skip"}, 'wishes "skip" for insert_exists'),
        ({"insert_exists": ["error"]}, "wishes"),
        ({"tables": []}, "not an object of tables"),
        ({"tables": {"t": {}}}, "no table with its schema"),
        ({"tables": {"s.t": "error"}}, '"s.t"'),
        ({"tables": {"s.t": {"delete_missing": "apply_remote"}}}, "delete_missing"),
    ],
)
def test_what_can_not_be_is_named(wished: Any, said: str) -> None:
    with pytest.raises(InvalidOption) as error:
        ConflictRules.parse(wished)
    assert said in error.value.message


def test_values_are_cut_as_postgresql_cuts_them() -> None:
    """64 bytes, and never within a character; NULL is a word; a time has the digits it has."""
    assert CONFLICT.detail() == (
        'Key already exists in unique index "t_pkey", modified locally in transaction 77 at '
        "2026-01-02 03:04:05.6+00.\n"
        f"Key (id)=(1); existing local row (1, null); remote row (1, {'ü' * 32}...)."
    )


def numbers(reading: Reading) -> list[tuple[int, int]]:
    """Positions in the log, and numbers of the conflicts."""
    return [(one.position, one.document["number"]) for one in reading.met]


def test_a_reader_gets_each_line_once_whoever_began_anew(tmp_path: Path) -> None:
    path = tmp_path / "conflicts.jsonl"
    reader = ConflictReader(path)
    assert reader.read().met == ()
    ConflictFile(path).record([CONFLICT])
    # What is not taken is read again.
    for _ in range(2):
        reading = reader.read()
        assert numbers(reading) == [(1, 2)]
    assert reading.met[0].document["id"] == "1/10/2/insert_exists"
    assert json.loads(json.dumps(CONFLICT.as_json()))["local"][0]["row"] == {"id": "1", "v": None}
    reader.taken(reading)
    assert reader.read().met == ()
    # A program that was killed while it wrote left half a line; the next one goes on counting.
    with path.open("ab") as file:
        file.write(b'{"log": "x", "position": 2, "id"')
    ConflictFile(path).record([replace(CONFLICT, number=3), replace(CONFLICT, number=4)])
    reading = reader.read()
    assert numbers(reading) == [(2, 3), (3, 4)]
    reader.taken(reading)
    # A reader that knows nothing finds everything, of one log.
    again = ConflictReader(path).read()
    assert numbers(again) == [(1, 2), (2, 3), (3, 4)]
    assert len({one.log for one in again.met}) == 1


def test_what_an_earlier_release_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "conflicts.jsonl"
    path.write_text(json.dumps(CONFLICT.as_json()) + "\nno JSON\n[]\n")
    ConflictFile(path).record([replace(CONFLICT, number=3)])
    found = ConflictReader(path).read()
    assert [(bool(one.log), one.position) for one in found.met] == [(False, 0), (True, 1)]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FILE_BYTES_MAX", 10_000)
    path = tmp_path / "conflicts.jsonl"
    file, reader = ConflictFile(path), ConflictReader(path)
    found = []
    for number in range(100):
        file.record([replace(CONFLICT, number=number)])
        if number % 7 == 0:
            # The one that was written becomes the older one in between.
            reading = reader.read()
            found += numbers(reading)
            reader.taken(reading)
    found += numbers(reader.read())
    assert found == [(number + 1, number) for number in range(100)]
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 21_000
    # Who comes late sees by the numbers how much is gone.
    late = numbers(ConflictReader(path).read())
    assert late[-1] == (100, 99)
    assert late[0][0] > 50
    assert late == found[-len(late) :]
    # A value that is long is cut, and a line that is still too long has no rows.
    long = replace(CONFLICT, remote={f"c{n}": b"x" * 5000 for n in range(100)}, number=100)
    file.record([long])
    last = ConflictReader(path).read().met[-1].document
    assert last["number"] == 100
    assert last["is_cut"]


def test_a_file_that_can_not_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "made" / "conflicts.jsonl"
    file = ConflictFile(path)
    file.record([CONFLICT])
    assert "can't be written" in caplog.text
    path.parent.mkdir()
    file.record([CONFLICT])
    # One is missing, and that is told.
    assert numbers(ConflictReader(path).read()) == [(2, 2)]
