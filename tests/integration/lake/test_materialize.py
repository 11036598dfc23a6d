"""What each kind of change does to history and current, in all formats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from typer.testing import CliRunner

from harness.arrow_slot import Change, Table, delete, insert, refusing, truncate, update
from harness.lake_names import KEY, internal_names
from spillway.errors import LakeError, LakeTableConflict
from spillway.failpoints import armed
from spillway.lake.commands.app import app as lake_commands
from spillway.lake.read import Lake as Reader
from spillway.lake.shape.columns import columns_of, current_schema
from spillway.lake.shape.kinds import CURRENT
from spillway.lake.state import quarantine
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta.log import begin
from spillway.lake.tables.formats import load_tables
from spillway.lake.tables.load_contract import NO_BATCH
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.lake import Lake
    from spillway.lake.tables.delta.log import Action
    from spillway.storage.place import LakePath

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string(), "body": pa.string()})
MOVED, CUT = (Table(name, dict(ITEMS.columns)) for name in ("moved", "cut"))
SEATS = Table(
    "seats",
    {"id": pa.int64(), "who": pa.string(), "x": pa.float64()},
    replica_identity="f",
    primary_key_deferrable=True,
)
ORDERS = Table("orders", {"id": pa.int32(), "total": pa.decimal128(12, 2)})


def item(id_: int, name: str | None, body: str | None) -> dict[str, object]:
    return {"id": id_, "name": name, "body": body}


def seat(id_: int, who: str, x: float = 0.0) -> dict[str, object]:
    return {"id": id_, "who": who, "x": x}


def sit(who: str, at: int, to: int) -> Change:
    return update(SEATS, seat(to, who), seat(at, who))


def test_changes_of_rows(any_lake: Lake) -> None:
    lake = any_lake
    lake.slot.commit(*(insert(SEATS, **seat(n, who)) for n, who in enumerate("abcd", 1)))
    # Two rows have one key until the commit.
    lake.slot.commit(sit("a", 1, 2), sit("b", 2, 1))
    lake.slot.commit(
        *(insert(ITEMS, **item(i, f"n{i}", "b")) for i in range(1, 6)),
        insert(ORDERS, id=1, total=None),
    )
    lake.slot.commit(update(ITEMS, item(1, "first", "b")), update(ITEMS, item(1, "second", "b")))
    lake.slot.commit(delete(ITEMS, id=2))
    # A new key, and back into the old one's place with another row.
    lake.slot.commit(
        update(ITEMS, item(30, "n3", "b"), old={"id": 3}), insert(ITEMS, **item(3, "new", "b"))
    )
    lake.slot.commit(delete(ITEMS, id=4), insert(ITEMS, **item(4, "again", "b")))
    lake.slot.commit(insert(ITEMS, **item(9, "gone", "b")), delete(ITEMS, id=9))
    summary = lake.run()
    assert summary.changes == {"public.items": 14, "public.orders": 1, "public.seats": 6}
    assert lake.current("public.seats") == [seat(1, "b"), seat(2, "a"), seat(3, "c"), seat(4, "d")]
    assert lake.current("public.items") == [
        item(1, "second", "b"),
        item(3, "new", "b"),
        item(30, "n3", "b"),
        item(4, "again", "b"),
        item(5, "n5", "b"),
    ]
    assert lake.current("public.orders") == [{"id": 1, "total": None}]
    history = lake.history("public.items")
    assert "".join(row["_op"] for row in history) == "IIIIIUUDUIDIID"
    assert history[8]["_old_key"] == {"id": 3}
    assert history[0]["_lsn"] < history[0]["_commit_lsn"] < history[0]["_commit_end_lsn"]
    assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"] == summary.lsn

    # The second batch meets what the first left.
    lake.slot.commit(sit("b", 1, 2), sit("a", 2, 3), sit("c", 3, 1))
    lake.slot.commit(
        insert(SEATS, **seat(4, "e")),
        delete(SEATS, **seat(4, "d")),
        insert(SEATS, **seat(5, "gone")),
        insert(SEATS, **seat(5, "too")),
        delete(SEATS, **seat(5, "gone")),
        delete(SEATS, **seat(5, "too")),
        update(SEATS, seat(1, "c", -0.0), seat(1, "c")),
    )
    lake.slot.commit(
        update(ITEMS, item(1, "third", "b")),
        delete(ITEMS, id=5),
        update(ITEMS, item(31, "moved", "b"), old={"id": 30}),
    )
    assert lake.run().changes == {"public.items": 3, "public.seats": 10}
    seats = [seat(1, "c", -0.0), seat(2, "b"), seat(3, "a"), seat(4, "e")]
    assert str(lake.current("public.seats")) == str(seats)
    assert [row["id"] for row in lake.current("public.items")] == [1, 3, 31, 4]
    assert lake.current("public.items")[0]["name"] == "third"


@pytest.mark.long
def test_unchanged_toast_values_and_truncate(any_lake: Lake) -> None:
    """Three tables in the same batches: what is kept of a row, of one that moves, and nothing."""
    lake = any_lake
    lake.slot.commit(
        *(insert(ITEMS, **item(i, "n", f"body {i}")) for i in range(1, 7)),
        *(insert(MOVED, **item(i, "n", f"body {i}")) for i in range(1, 6)),
        *(insert(CUT, **item(i, "a", "b")) for i in (1, 2)),
    )
    lake.run()

    keep = ("body",)
    lake.slot.commit(
        # from the current table
        update(ITEMS, item(1, "n1", None), unchanged=keep),
        # from an earlier change of the batch
        update(ITEMS, item(2, "n", "new 2")),
        update(ITEMS, item(2, "n2", None), unchanged=keep),
        # set to null is a value, too
        update(ITEMS, item(3, "n", None)),
        update(ITEMS, item(3, "n3", None), unchanged=keep),
        # never across a deletion
        delete(ITEMS, id=4),
        insert(ITEMS, **item(4, "n", None)),
        update(ITEMS, item(4, "n4", None), unchanged=keep),
        insert(ITEMS, **item(7, "n", "body 7")),
        update(ITEMS, item(7, "n7", None), unchanged=keep),
    )

    def move(old: int, new: int) -> Change:
        return update(MOVED, item(new, "moved", None), old={"id": old}, unchanged=keep)

    lake.slot.commit(
        # two rows change places by way of a third key
        move(1, 99), move(2, 1), move(99, 2),
        # a long chain
        *(move(3 if i == 0 else 100 + i, 101 + i) for i in range(9)),
        # a value logged under the old key
        update(MOVED, item(4, "n", "new 4")), move(4, 40),
        # a row that moves away from a key which another one takes
        move(5, 50), insert(MOVED, **item(5, "fresh", "fresh body")), delete(MOVED, id=50),
    )  # fmt: skip
    lake.slot.commit(
        insert(CUT, **item(3, "a", "b")), truncate(CUT), insert(CUT, **item(2, "after", "b"))
    )
    lake.run()
    assert lake.current("public.items") == [
        item(1, "n1", "body 1"),
        item(2, "n2", "new 2"),
        item(3, "n3", None),
        item(4, "n4", None),
        item(5, "n", "body 5"),
        item(6, "n", "body 6"),
        item(7, "n7", "body 7"),
    ]
    assert {row["id"]: row["body"] for row in lake.current("public.moved")} == {
        1: "body 2",
        2: "body 1",
        109: "body 3",
        40: "new 4",
        5: "fresh body",
    }
    assert lake.current("public.cut") == [item(2, "after", "b")]

    lake.slot.commit(truncate(CUT))
    lake.run()
    assert lake.current("public.cut") == []
    assert [row["_op"] for row in lake.history("public.cut")] == ["I", "I", "I", "T", "I", "T"]
    assert len(lake.current("public.items")) == 7


@pytest.mark.long
def test_no_name_of_a_column_is_one_of_the_lakes_own(any_lake: Lake) -> None:
    lake, names = any_lake, internal_names()
    strings = dict.fromkeys(names, pa.string())
    keyed = Table("keyed", {KEY: pa.int64(), **strings}, primary_key=(KEY, "_k", "_set"))
    bag = Table("bag", strings, primary_key=(), replica_identity="f")
    late = Table("late", {KEY: pa.int64(), "x": pa.int64()}, primary_key=(), replica_identity="f")
    large = ("_last", "_unchanged", "value", "_known_id", "_stored_id", "_keep_id")

    def row(id_: int, value: str, *without: str) -> dict[str, object]:
        one = {n: None if n in without else value + n for n in names}
        return {KEY: id_, **one, "_k": "k", "_set": "s"}

    def key(id_: int) -> dict[str, object]:
        return {KEY: id_, "_k": "k", "_set": "s"}

    def of_bag(value: str) -> dict[str, object]:
        return {n: value + n for n in names}

    lake.slot.commit(
        *(Change(keyed, "I", row(n, "a")) for n in range(5)),
        *(Change(bag, "I", of_bag(value)) for value in "aab"),
        *(insert(late, id=n, x=0) for n in (1, 1)),
    )
    lake.run()
    more = late.with_columns(_copies=pa.int64())
    lake.slot.commit(
        # Plain changes, which are merged without Spark where the format can.
        update(keyed, row(0, "b")),
        delete(keyed, **key(1)),
        Change(bag, "D", {}, of_bag("a")),
        update(bag, of_bag("c"), of_bag("b")),
        insert(more, id=2, x=0, _copies=40),
    )
    lake.run()
    lake.slot.commit(
        # Values that stay, under the same key and with a row that moves.
        update(keyed, row(2, "d", *large), unchanged=large),
        update(keyed, row(9, "e", *large), key(3), unchanged=large),
        delete(more, id=1, x=0, _copies=None),
    )
    lake.run()
    kept = {name: "a" + name for name in large}
    reader = Reader(lake.spark, lake.path).at()

    def rows(table: str) -> list[dict[str, object]]:
        found = [each.asDict() for each in reader.current(table).collect()]
        return sorted(found, key=lambda each: str(each.get(KEY)) + str(each.get("_k")))

    assert rows("public.keyed") == [
        row(0, "b"), row(2, "d") | kept, row(4, "a"), row(9, "e") | kept,
    ]  # fmt: skip
    assert rows("public.bag") == [of_bag("a"), of_bag("c")]
    assert rows("public.late") == [
        {KEY: 1, "x": 0, "_copies": None}, {KEY: 2, "x": 0, "_copies": 40},
    ]  # fmt: skip


def told_by(words: str, lake: Lake, table: str) -> str:
    """Run a command of the lake about one table, and return what it printed."""
    ran = CliRunner().invoke(
        lake_commands, [words, "--lake", str(lake.path), "--table", table], catch_exceptions=True
    )
    assert ran.exit_code == 0, ran.exception or ran.output
    return ran.stdout


@pytest.mark.long
def test_a_paused_table_waits_and_loses_nothing(any_lake: Lake) -> None:
    lake = any_lake
    lake.slot.commit(insert(ITEMS, **item(1, "a", "b")), insert(ORDERS, id=1, total=None))
    lake.run()
    with pytest.raises(LakeError, match=r"no table public\.none"):
        quarantine.pause(lake.path, ["public.none"])
    assert "from the job's next batch on" in told_by("pause", lake, "public.items")

    # The batch that hears of it is whole for all of its tables, however often it comes.
    lake.slot.commit(insert(ITEMS, **item(2, "a", "b")), insert(ORDERS, id=2, total=None))
    with armed("lake.before_position=error:EIO"), pytest.raises((LakeError, OSError)):
        lake.run()
    (told,) = lake.run().quarantined
    assert "somebody paused it" in told
    assert [row["id"] for row in lake.current("public.items")] == [1, 2]

    # From there on it stays as it is; the others go on, and the slot keeps nothing for it.
    lake.slot.commit(
        insert(ITEMS, **item(3, "c", "d")),
        update(ITEMS, item(1, "changed", "b")),
        insert(ORDERS, id=3, total=None),
    )
    end = lake.slot.commit(delete(ITEMS, id=2))
    lake.run()
    assert [(row["id"], row["name"]) for row in lake.current("public.items")] == [
        (1, "a"),
        (2, "a"),
    ]
    assert [row["id"] for row in lake.history("public.items")] == [1, 2]
    assert [row["id"] for row in lake.current("public.orders")] == [1, 2, 3]
    assert lake.slot.state["confirmed_flush_lsn"] >= end

    assert "comes back" in told_by("resume", lake, "public.items")
    lake.slot.commit(insert(ORDERS, id=4, total=None))
    assert lake.run().quarantined == ()
    assert [(row["id"], row["name"]) for row in lake.current("public.items")] == [
        (1, "changed"),
        (3, "c"),
    ]
    assert sorted(row["_op"] for row in lake.history("public.items")) == list("DIIIU")

    # Taken back before the job heard of it, nothing happens.
    told_by("pause", lake, "public.items")
    told_by("resume", lake, "public.items")
    lake.slot.commit(insert(ITEMS, **item(4, "e", "f")))
    assert lake.run().quarantined == ()
    assert [row["id"] for row in lake.current("public.items")] == [1, 3, 4]


@pytest.mark.long
def test_a_value_that_the_plugin_refuses_stops_its_table_alone(any_lake: Lake) -> None:
    lake = any_lake
    odd = Table("odd", {"id": pa.int64(), "at": pa.timestamp("us")})
    lake.slot.commit(insert(odd, id=1, at=None), insert(ORDERS, id=1))
    bad = refusing(insert(odd, id=3, at=None), at="infinity")
    lake.slot.commit(insert(odd, id=2, at=None), insert(ORDERS, id=2))
    poisoned = lake.slot.commit(bad, insert(odd, id=4, at=None), insert(ORDERS, id=3))
    lake.slot.commit(insert(odd, id=5, at=None))
    (told,) = lake.run().quarantined
    # Whole up to that transaction, and not a row of it.
    assert [row["id"] for row in lake.current("public.odd")] == [1, 2]
    assert [row["id"] for row in lake.history("public.odd")] == [1, 2]
    assert [row["id"] for row in lake.current("public.orders")] == [1, 2, 3]
    assert lake.slot.state["confirmed_flush_lsn"] > poisoned
    for words in ("public.odd", "column 'at'", "infinity is none in Arrow (infinity)"):
        assert words in told
    commit = re.search(r"commits at (\S+),", told)
    assert commit is not None
    assert int(Lsn.parse(commit[1])) == poisoned - 48

    # Asked for too early it stays aside, and says why again.
    resume = re.search(r"spillway lake (resume --lake \S+ --table \S+?) --give-up", told)
    assert resume is not None
    assert CliRunner().invoke(lake_commands, resume[1].split()).exit_code == 0
    lake.slot.commit(insert(ORDERS, id=4), insert(odd, id=6, at=None))
    assert "infinity is none in Arrow" in lake.run().quarantined[0]
    assert [row["id"] for row in lake.history("public.odd")] == [1, 2]

    # Loaded anew, as it says, it goes on from there.
    at = lake.slot.state["decoded_lsn"]
    tables = load_tables(lake.table_format, lake.spark, lake.path, lake.slot.slot_name)
    columns = tables.schema(CURRENT, "public.odd")
    assert columns is not None
    loaded = lake.spark.createDataFrame(
        [(n, None) for n in range(1, 7)], from_arrow_schema(columns, prefer_timestamp_ntz=True)
    )
    made = current_schema(columns_of(odd.arrow_schema()))
    batch = Batch(lake.slot.slot_name, at, at, NO_BATCH)
    tables.replace_current("public.odd", loaded, made, ("id",), batch)
    lake.slot.commit(insert(odd, id=7, at=None))
    assert len(lake.run().quarantined) == 1, "a load alone leaves it in the history's way"
    back = CliRunner().invoke(lake_commands, [*resume[1].split(), "--give-up"])
    assert back.exit_code == 0
    lake.slot.commit(delete(odd, id=1))
    assert lake.run().quarantined == ()
    assert [row["id"] for row in lake.current("public.odd")] == [2, 3, 4, 5, 6, 7]
    assert [row["id"] for row in lake.history("public.odd")] == [1, 2, 7, None]
    # The same batch again, as after a crash, sets nothing aside.
    assert lake.run().quarantined == ()


@pytest.mark.long
def test_one_tables_poison_stops_no_other(delta_lake: Lake) -> None:
    lake = delta_lake
    nano = Table("nano", {"id": pa.int64(), "at": pa.timestamp("ns")})
    full = Table("full", {"id": pa.int64()})
    far = Table("far", {"id": pa.int64(), "day": pa.date32()})
    twice = Table("twice", {"id": pa.int64(), "Name": pa.string(), "name": pa.string()})
    lake.slot.commit(insert(full, id=1), insert(nano, id=1, at=1_000), insert(ORDERS, id=1))
    lake.run()

    # A quota: what fails twice is set aside, as it can be written elsewhere.
    lake.slot.commit(insert(full, id=2))
    with armed("lake.before_history=error:EDQUOT"):
        (aside,) = lake.run().quarantined
    assert "public.full is in quarantine since" in aside
    assert "Disk quota exceeded" in aside
    # A disk is not: the job ends, nothing is confirmed.
    lake.slot.commit(insert(ORDERS, id=2))
    before = lake.slot.state["confirmed_flush_lsn"]
    with armed("lake.before_history=error:ENOSPC"), pytest.raises(LakeError, match="No space left"):
        lake.run()
    assert lake.slot.state["confirmed_flush_lsn"] == before

    # A value that no lake type has, columns that no lake keeps apart, and a date that some of the
    # libraries have not.
    days = 96_000_000
    poisoned = lake.slot.commit(
        insert(ORDERS, id=3), insert(nano, id=2, at=1_001), insert(full, id=3),
        insert(far, id=1, day=days), Change(twice, "I", {"id": 1, "Name": "a", "name": "b"}),
    )  # fmt: skip
    lake.run()
    lake.slot.commit(
        insert(ORDERS, id=4), insert(nano, id=3, at=2_000), insert(far, id=2, day=-days),
        update(far, {"id": 1, "day": days + 1}),
    )  # fmt: skip
    aside_by_table = {line.split(" is ")[0]: line for line in lake.run().quarantined}
    assert sorted(aside_by_table) == ["public.full", "public.nano", "public.twice"]
    assert [row["id"] for row in lake.current("public.orders")] == [1, 2, 3, 4]
    assert [row["id"] for row in lake.current("public.nano")] == [1]
    far_days = Reader(lake.spark, lake.path).at().current("public.far")
    rows = far_days.selectExpr("id", "unix_date(day) AS days").collect()
    assert sorted(tuple(row) for row in rows) == [(1, days + 1), (2, -days)]
    told = aside_by_table["public.nano"]
    assert "column 'at' of public.nano" in told
    assert lake.slot.state["confirmed_flush_lsn"] > poisoned
    commit = re.search(r"commits at (\S+),", told)
    assert commit is not None
    assert Lsn.parse(commit[1]) < poisoned
    assert "differ in case only" in aside_by_table["public.twice"]

    # The way back that it says; what is mended comes back whole, what isn't stays, and says why.
    for line in aside_by_table.values():
        way = re.search(r"spillway lake (resume --lake \S+ --table \S+?)\. ", line)
        if "public.twice" not in line:
            assert way is not None
            assert CliRunner().invoke(lake_commands, way[1].split()).exit_code == 0
    lake.slot.commit(insert(ORDERS, id=5))
    again = {line.split(" is ")[0]: line for line in lake.run().quarantined}
    assert sorted(again) == ["public.nano", "public.twice"]
    assert "column 'at' of public.nano" in again["public.nano"]
    assert [row["id"] for row in lake.current("public.full")] == [1, 2, 3]
    assert [row["id"] for row in lake.history("public.full")] == [1, 2, 3]
    assert len(lake.current("public.orders")) == 5

    # The value stays where it is: a load, and what is aside from before it is given up.
    at = lake.slot.state["decoded_lsn"]
    tables = load_tables(lake.table_format, lake.spark, lake.path, lake.slot.slot_name)
    columns = tables.schema(CURRENT, "public.nano")
    assert columns is not None
    loaded = lake.spark.createDataFrame(
        [(1, None), (2, None)], from_arrow_schema(columns, prefer_timestamp_ntz=True)
    )
    made = current_schema(columns_of(nano.arrow_schema()))
    batch = Batch(lake.slot.slot_name, at, at, NO_BATCH)
    tables.replace_current("public.nano", loaded, made, ("id",), batch)
    lake.slot.commit(insert(nano, id=4, at=4_000))
    assert len(lake.run().quarantined) == 2, "a load alone leaves it in the history's way"
    resume = ["resume", "--lake", str(lake.path), "--table", "public.nano", "--give-up"]
    assert CliRunner().invoke(lake_commands, resume).exit_code == 0
    lake.slot.commit(insert(nano, id=5, at=5_000))
    assert [line.split(" is ")[0] for line in lake.run().quarantined] == ["public.twice"]
    assert [row["id"] for row in lake.current("public.nano")] == [1, 2, 4, 5]
    assert [row["id"] for row in lake.history("public.nano")] == [1, 4, 5]


ODD = Table("odd", {"id": pa.int64(), "the name": pa.string()})


@pytest.mark.long
def test_a_table_that_a_killed_job_had_begun(
    delta_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Spark makes tables with column mapping, and it takes a directory that has anything for a
    table: here a log without a commit, and a file that a load left.
    """
    lake = delta_lake
    left = lake.path / "current" / "public.odd" / "part-of-a-load.parquet"
    for kind in ("history", "current"):
        (lake.path / kind / "public.odd" / "_delta_log").mkdir(parents=True)
    left.write_bytes(b"PAR1")
    lake.slot.commit(insert(ODD, **{"id": 1, "the name": "a"}))
    lake.run()
    assert lake.current("public.odd") == [{"id": 1, "the name": "a"}]
    assert [row["_op"] for row in lake.history("public.odd")] == ["I"]
    tables = load_tables("delta", lake.spark, lake.path, lake.slot.slot_name)
    schema = from_arrow_schema(pa.schema({"id": pa.int64(), "other name": pa.string()}))

    # Of two processes that make a table one does.
    def made_by_another(table: LakePath, actions: Sequence[Action]) -> None:
        begin(table, actions)
        begin(table, actions)

    monkeypatch.setattr("spillway.lake.tables.delta.tables.begin", made_by_another)
    with pytest.raises(LakeTableConflict, match=r"public\.third was made by another process"):
        tables.prepare_history("public.third", schema, 5)
    monkeypatch.undo()
    tables.prepare_history("public.third", schema, 5)
    assert tables.durable_lsn("history", "public.third") == 5
