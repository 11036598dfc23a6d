"""What commands print as tables: at a terminal no wider than that, behind a pipe whole and
plain.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from harness.terminal import at_a_terminal
from spillway.cli import main
from spillway.cli.answer import Columns
from spillway.cli.tables import for_terminal, row_lines
from spillway.service.model import ColumnInfo, PublicationInfo, PublishedTable, TableInfo

if TYPE_CHECKING:
    from harness.fake_service import FakeService

ROW = {
    "name": "orders_to_lake",
    "state": "streaming",
    "lag_bytes": 5 << 20,
    "lag_seconds": 12.34,
    "note": "x" * 40,
    "lsn": "16/B3748000",
}
COLUMNS = Columns(
    names=("name", "note", "state", "lag_bytes", "lag_seconds", "lsn"),
    ranked=("name", "state", "lag_bytes", "lag_seconds", "lsn", "note"),
)


@pytest.mark.parametrize("width", range(16, 130))
def test_what_does_not_fit_is_left_out_by_rank(width: int) -> None:
    lines = for_terminal([ROW, ROW | {"name": "a"}], COLUMNS, width)
    assert all(len(_bare(line)) <= max(width, 20) for line in lines)
    heads = _bare(lines[0]).split()
    ranked = list(COLUMNS.ranked)
    assert set(heads) == set(ranked[: len(heads)]), "the most important ones"
    assert _bare(lines[1]).split()[0] == "orders_to_lake", "never cut"
    left_out = set(ranked[len(heads) :])
    said = " ".join(_bare(line) for line in lines[3:])
    assert all(name in said for name in left_out)


def test_lag_is_shown_with_its_unit_and_unknown_as_such() -> None:
    lines = for_terminal([ROW, ROW | {"lag_bytes": None, "lag_seconds": None}], COLUMNS, 200)
    assert "5.0 MB" in lines[1]
    assert "12.3 s" in lines[1]
    assert lines[2].split()[3:5] == ["-", "-"]


def test_what_may_stand_below_the_table_is_one_column_behind_a_pipe() -> None:
    either = Columns(names=("name", "note"), ranked=("name", "note"), sentences=("note", "lsn"))
    heading, line = row_lines([ROW], either, None)
    assert heading.split("\t") == ["name", "note", "lsn"]
    assert line.split("\t") == [ROW["name"], ROW["note"], ROW["lsn"]]


def test_sentences_stand_below_and_break_between_words() -> None:
    columns = Columns(("name", "state"), ("name", "state"), ("error",))
    error = "the source can't be reached: connection refused, is the server running on that host"
    lines = for_terminal([{"name": "a", "state": "failed", "error": error}], columns, 40)
    assert " ".join(lines[2:]) == f"a: {error}"
    assert all(len(line) <= 40 for line in lines)


def test_a_sentence_is_said_once() -> None:
    columns = Columns(("at", "title"), ("at", "title"), ("title", "detail"))
    row = {"at": "a", "title": "Slot s lags", "detail": ""}
    said = for_terminal([row], columns, 40)
    assert len(said) == 2, "it stands in the table, and nothing is no sentence"
    # It has no room in the table, so it stands below, and is not said to be left out.
    narrow = for_terminal([row | {"title": "Slot s lags " * 4, "detail": "Why."}], columns, 20)
    assert [line.split(":")[0] for line in narrow[1:3]] == ["a", "a"]
    assert "Why." in " ".join(narrow)
    assert "wider" not in " ".join(narrow)


def test_times_are_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        columns = Columns(("at", "was"), ("at", "was"))
        row = {"at": "2026-11-25T12:00:05.123456Z", "was": "2026-11-25"}
        assert for_terminal([row], columns, 80)[1].split() == [
            "2026-11-25",
            "17:30:05",
            "2026-11-25",
        ]
        assert row_lines([row], columns, None)[1] == "2026-11-25T12:00:05.123456Z\t2026-11-25"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_wide_characters_count_twice() -> None:
    columns = Columns(("name", "state"), ("name", "state"))
    lines = for_terminal(
        [{"name": "注文", "state": "b"}, {"name": "abcd", "state": "b"}], columns, 40
    )
    assert [line.rindex("b") for line in lines[1:]] == [4, 6]


def test_every_list_fits_80_columns(service: FakeService) -> None:
    _fill(service)
    for words in (
        ("slot", "list"),
        ("source", "list"),
        ("subscription", "list"),
        ("slot", "show", "orders_to_the_lake"),
        ("source", "show", "shop"),
        ("subscription", "show", "a"),
        ("event", "list"),
        ("alert", "rule", "codes"),
        ("--help",),
        ("slot", "--help"),
        ("subscription", "create", "--help"),
    ):
        text = at_a_terminal("-m", "spillway.cli", *words, columns=80)
        lines = [_bare(line) for line in text.splitlines()]
        assert lines
        assert all(len(line) <= 80 for line in lines), (words, lines)
        assert not re.search("[\u2500-\u257f]", text), "no boxes"
    slots = at_a_terminal("-m", "spillway.cli", "slot", "list", columns=80)
    for head in ("slot_name", "wal_status", "lag_bytes", "lag_seconds"):
        assert head in slots
    assert "decoded_lsn" not in _bare(slots.splitlines()[0])
    assert "decoded_lsn" in _bare(slots.split("(")[-1])
    wide = at_a_terminal("-m", "spillway.cli", "slot", "list", columns=200)
    assert "decoded_lsn" in _bare(wide.splitlines()[0])


def test_behind_a_pipe_it_is_plain(service: FakeService) -> None:
    _fill(service)
    for words in (("slot", "list"), ("source", "list"), ("subscription", "list")):
        done = subprocess.run(
            [sys.executable, "-m", "spillway.cli", *words],
            capture_output=True,
            text=True,
            check=True,
            env=_narrow(),
        )
        lines = done.stdout.splitlines()
        fields = {len(line.split("\t")) for line in lines}
        assert len(fields) == 1
        assert fields.pop() > 5
        assert "\x1b" not in done.stdout
        assert all(field and "…" not in field for line in lines for field in line.split("\t"))
    command = f"{sys.executable} -m spillway.cli slot list | awk 'NR > 1 {{ print $1, $4 }}'"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "s1 1048576\norders_to_the_lake 1048576\n"


def test_what_a_source_has(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.engine.tables["shop", "shop"] = [
        TableInfo(
            schema="public",
            name="orders",
            kind="table",
            partition_of=(),
            replica_identity="nothing",
            primary_key=(),
            identity_columns=(),
            columns=(ColumnInfo("id", "bigint", not_null=True, generated=False),),
            publications=("p",),
            captured=True,
            warnings=("it has no replica identity",),
        )
    ]
    service.engine.publications["shop", "shop"] = [
        PublicationInfo(
            name="p",
            all_tables=False,
            insert=True,
            update=False,
            delete=True,
            truncate=False,
            via_root=False,
            schemas=(),
            tables=(
                PublishedTable(
                    "public",
                    "orders",
                    columns=None,
                    has_row_filter=False,
                    row_filter=None,
                ),
            ),
        )
    ]
    assert main(["source", "tables", "shop", "--database", "shop"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row == "public.orders\t-\tnothing\tyes\t1\tp\tit has no replica identity"
    assert main(["source", "publications", "shop", "--database", "shop"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row == "p\tpublic.orders\tinsert; delete\tno"
    for what in ("tables", "publications"):
        assert main(["source", what, "shop", "--database", "shop", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)
        assert main(["source", what, "shop", "--database", "nonsense"]) == 1


def _fill(service: FakeService) -> None:
    service.engine.add_slot("orders_to_the_lake")
    service.engine.move_wal(1 << 20)
    command = (
        "subscription create a --source shop --database shop --lake /srv/a/lake/in/a/directory "
        "--disabled"
    )
    assert main(command.split()) == 0


def _narrow() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "40"}


def _bare(line: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", line).rstrip()
