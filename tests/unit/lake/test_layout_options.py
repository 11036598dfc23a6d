"""What is asked for of partitions and clusters: as options say it, and as a lake keeps it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.remedies import remedy
from spillway.errors import InvalidRequest, LakeSchemaConflict, LakeTableConflict
from spillway.lake import layout, partitions
from spillway.lake.layout import Layout
from spillway.lake.partition_spec import Partition

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(10, 2)),
        ("_by_id", pa.string()),
    ]
)


def test_options() -> None:
    given = layout.parse(
        "day", ["shop.orders = day(at), region", "shop.plain="], ["shop.orders=customer id,n"]
    )
    assert given == Layout(
        "day",
        {"shop.orders": (Partition("at", "day"), Partition("region")), "shop.plain": ()},
        {"shop.orders": ("customer id", "n")},
    )
    assert layout.parse("none", (), ()).history == ""
    assert not layout.parse(None, (), ())
    assert given.partitions("history", "shop.orders") == (Partition("_commit_time", "day"),)
    assert given.partitions("ddl", "events") == ()
    assert given.partitions("current", "shop.orders")[1].name == "_by_region"
    assert given.clusters("shop.orders") == ("customer id", "n")
    assert given.clusters("shop.others") == ()


@pytest.mark.parametrize(
    ("history", "partition_by", "cluster_by", "said"),
    [
        ("week", (), (), "'week'"),
        (None, ["orders=a"], (), "of which table"),
        (None, ["shop.orders"], (), "of which table"),
        (None, ["shop.orders=a", "shop.orders=b"], (), "named before"),
        (None, ["shop.orders=hour(at)"], (), "'hour\\(at\\)' says no partition"),
        (None, ["shop.orders=day(at)x"], (), "says no partition"),
        (None, ["shop.orders=day(at),at"], (), "two partitions"),
        (None, (), ["=a"], "--cluster-by"),
    ],
)
def test_what_options_can_not_say(
    history: str | None, partition_by: list[str], cluster_by: list[str], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        layout.parse(history, partition_by, cluster_by)


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ("region", None),
        ("day(at)", None),
        ("at", "can't partition"),
        ("day(region)", "can't partition"),
        ("price", "can't partition"),
        ("id", "'_by_id'"),
        ("gone", "and the table has id, region"),
    ],
)
def test_columns_that_make_partitions(partition: str, said: str | None) -> None:
    given = layout.parse(None, [f"shop.orders={partition}"], ())
    if said is None:
        given.check("shop.orders", ORDERS)
        return
    with pytest.raises(LakeSchemaConflict, match=said):
        given.check("shop.orders", ORDERS)


@pytest.mark.follows_hint("lake_schema_conflict")
def test_what_can_be_done_about_columns_that_make_none() -> None:
    def refused(*arguments: Any) -> str:
        with pytest.raises(LakeSchemaConflict) as caught:
            layout.parse(*arguments).check("shop.orders", ORDERS)
        return remedy(caught.value, "lake_schema_conflict")

    hint = refused(None, ["shop.orders=nope"], ())
    assert hint == "Give --partition-by anew for that table."
    layout.parse(None, ["shop.orders=region"], ()).check("shop.orders", ORDERS)


def test_a_lake_keeps_it(tmp_path: Path) -> None:
    assert layout.load(tmp_path) == Layout()

    class NoTables:
        """There are none to ask."""

    first = layout.parse("month", ["a.b=day(at)"], ["a.b=x", "a.c=y"])
    layout.settle(tmp_path, "delta", first, NoTables())  # type: ignore[arg-type]
    layout.settle(tmp_path, "delta", layout.parse(None, ["a.b="], ["a.c="]), NoTables())  # type: ignore[arg-type]
    layout.settle(tmp_path, "parquet", Layout(), NoTables())  # type: ignore[arg-type]
    assert layout.load(tmp_path) == Layout("month", {"a.b": ()}, {"a.b": ("x",), "a.c": ()})
    file = tmp_path / "_spillway" / "layout.json"
    for text in ("[]", "{", file.read_text().replace('"version": 1', '"version": 9')):
        file.write_text(text)
        with pytest.raises(LakeTableConflict, match=r"layout.json can't be read"):
            layout.load(tmp_path)


def test_values_of_partitions() -> None:
    at = pa.array(
        [datetime(2026, 2, 3, 4, 5, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None],
        pa.timestamp("us", tz="UTC"),
    )
    far = pa.array([-(2**60), 2**60, 0], pa.int64()).cast(pa.timestamp("us"))
    table = pa.table({"at": at, "far": far, "text": ["", "São/Paulo %", None]})
    wanted = [Partition("at", "month"), Partition("far", "day"), Partition("text")]
    derived = partitions.added_to_arrow(table, wanted).select([p.name for p in wanted])
    assert derived.to_pydict() == {
        "_by_at": [date(2026, 2, 1), date(1, 1, 1), None],
        "_by_far": [None, None, date(1970, 1, 1)],
        "_by_text": ["_", "S_o_Paulo__", None],
    }
