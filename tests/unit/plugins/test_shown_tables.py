"""The plugin's plans of partitions as their root, and of masked columns."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.errors import InvalidOption
from spillway.plugins.arrow_schema import SchemaOptions, plan_table
from spillway.plugins.masks import hashed, with_secret
from spillway.plugins.partition_roots import partition_change
from spillway.plugins.shown_tables import shown_tables

KEY = "a secret of sixteen or more"


def column(number: int, name: str, oid: int = 25, **more: Any) -> ColumnDescriptor:
    length = 4 if oid == 23 else -1
    return ColumnDescriptor(number, name, oid, -1, length, length == 4, "i", **more)


def root(**more: Any) -> RelationDescriptor:
    columns = (column(1, "id", 23), column(2, "name"), column(3, "_Partition"))
    found = RelationDescriptor(
        10, "s", "root", "p", "p", "d", columns, primary_key=(1,), identity_columns=(1,)
    )
    return replace(found, **more)


def leaf(of: RelationDescriptor, **more: Any) -> RelationDescriptor:
    """A partition whose columns stand otherwise, and some were dropped."""
    columns = (
        column(1, "gone", dropped=True),
        column(2, "_Partition"),
        column(3, "name"),
        column(4, "id", 23),
    )
    found = RelationDescriptor(
        20, "s", "leaf", "r", "p", "d", columns,
        primary_key=(4,), identity_columns=(4,), ancestors=(of,),
    )  # fmt: skip
    return replace(found, **more)


def options(**given: str) -> SchemaOptions:
    return SchemaOptions(180000, **shown_tables(given))


def relation_of(table: RelationDescriptor, how: SchemaOptions) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(plan_table(table, how).schema.metadata[b"spillway.relation"])
    return told


@pytest.mark.parametrize("named", ['["s.root"]', '["all"]'])
def test_a_partition_is_its_root(named: str) -> None:
    how = options(partition_root=named)
    whole, full = root(), {"replica_identity": "f", "identity_columns": (2, 3, 4)}
    plans = [plan_table(leaf(whole, **more), how) for more in ({}, full, {"oid": 30})]
    # The same to readers, whatever partition it is, and however that is identified.
    assert all(p.schema.equals(plans[0].schema, check_metadata=True) for p in plans)
    assert plans[0].schema.equals(plan_table(whole, how).schema, check_metadata=True)
    told = relation_of(leaf(whole), how)
    assert (told["schema"], told["table"], told["oid"]) == ("s", "root", 10)
    assert (told["primary_key"], told["identity_columns"]) == (["id"], ["id"])
    names = plans[0].schema.names[-4:]
    # A column of the table's own that is called like ours has an underscore more.
    assert names == ["id", "name", "__Partition", "_partition"]
    numbers = [
        json.loads(plans[0].schema.field(name).metadata[b"spillway.column"])["attnum"]
        for name in names
    ]
    assert numbers == [1, 2, 3, -6]
    assert [c.column.attnum for c in plans[0].columns] == [4, 3, 2]
    assert [made.value for p in plans for made in p.made] == [20, 20, 30]
    assert plan_table(replace(leaf(whole), ancestors=()), how).root is None
    assert plan_table(leaf(root(name="other")), options(partition_root='["s.root"]')).root is None


def test_what_tells_the_rows_of_a_root() -> None:
    how = options(partition_root='["all"]')
    whole = root()
    lost = relation_of(leaf(whole, replica_identity="n", identity_columns=()), how)
    assert lost["partition_without_key"] == "s.leaf"
    assert not lost["identity_columns"]
    keyless = root(primary_key=(), identity_columns=())
    full = leaf(keyless, replica_identity="f", identity_columns=(2, 3, 4))
    told = relation_of(full, how)
    # Equal rows of two partitions are two.
    assert told["identity_columns"] == ["id", "name", "__Partition", "_partition"]
    assert (told["primary_key"], told["replica_identity"]) == ([], "f")
    # A key of one partition's own tells no rows of the root.
    assert relation_of(leaf(keyless), how)["identity_columns"] == []
    assert relation_of(keyless, how)["without_rows"] is True
    later = root(primary_key_deferrable=True, identity_columns=())
    whole_rows = leaf(later, replica_identity="f", identity_columns=(2, 3, 4))
    told = relation_of(whole_rows, how)
    assert (told["primary_key"], told["primary_key_deferrable"]) == (["id"], True)
    assert told["replica_identity"] == "f"


def change(
    table: RelationDescriptor, *, left: bool = False, joined: bool = False, both: bool = True
) -> bytes:
    """What decoding says of a partition that came or went."""
    state = {"table": replace(table, ancestors=()).to_json(), "parent": None}
    above = [root().to_json()]
    return json.dumps(
        {
            "oid": table.oid,
            "before": state if left or both else None,
            "after": state if joined or both else None,
            "left": above if left else [],
            "joined": above if joined else [],
        }
    ).encode()


def test_partitions_that_come_and_go() -> None:
    how, table = options(partition_root='["s.root"]'), leaf(root())
    (gone,) = partition_change(change(table, left=True), how)
    assert (gone.op, gone.partition) == ("P", 20)
    assert gone.schema.equals(plan_table(table, how).schema, check_metadata=True)
    (dropped,) = partition_change(change(table, left=True, both=False), how)
    assert dropped.op == "P"
    (come,) = partition_change(change(table, joined=True), how)
    assert (come.op, come.partition, come.name) == ("A", 20, "s.leaf")
    # One that stays within its root, one of a root that nobody asked for, an event of before.
    assert not partition_change(change(table, left=True, joined=True), how)
    assert not partition_change(change(table, left=True), options(partition_root='["s.x"]'))
    assert not partition_change(change(table, left=True), options())
    assert not partition_change(b'{"oid": 1, "before": null, "after": null}', how)
    # A table that is partitioned itself: which rows those are nobody says.
    (several,) = partition_change(change(leaf(root(), kind="p"), left=True), how)
    assert (several.op, several.partition) == ("A", None)


MASKS = json.dumps(
    {"s.t": ["hash(name)", "out(photo)", "null(phone)", "constant(n:x y)", "hash(none)"]}
)


def masked() -> RelationDescriptor:
    columns = (
        column(1, "id", 23),
        column(2, "name", missing=b"\x09abc"),
        column(3, "photo", missing=b"\x09abc"),
        column(4, "phone", missing=b"\x09abc"),
        column(5, "n", 23, missing=b"\x01\x00\x00\x00"),
    )
    return RelationDescriptor(
        10, "s", "t", "r", "p", "f", columns, primary_key=(1,), identity_columns=(1, 2, 3, 4, 5)
    )


def test_masks_are_in_the_plan() -> None:
    plan = plan_table(masked(), options(masks=MASKS, mask_secret=KEY))
    assert plan.schema.names[-4:] == ["id", "name", "phone", "n"]
    types = [plan.schema.field(name).type for name in plan.schema.names[-4:]]
    assert types == [pa.int32(), pa.utf8(), pa.utf8(), pa.utf8()]
    # Nothing of a value: not in the old key, not in a default, not in a type that casts.
    assert [f.name for f in plan.schema.field("_old_key").type] == ["id", "name"]
    told = {
        name: json.loads(plan.schema.field(name).metadata[b"spillway.column"])
        for name in plan.schema.names[-4:]
    }
    hash_of_abc = hmac.new(KEY.encode(), b"abc", hashlib.sha256).hexdigest()
    assert told["name"]["missing"] == hash_of_abc
    assert "missing" not in told["phone"]
    assert told["n"]["missing"] == "x y"
    assert {told[n]["type_oid"] for n in ("name", "phone", "n")} == {0}
    assert "abc" not in str(plan.schema.metadata) + str(told)
    assert KEY not in repr(plan)
    assert "masked_key" not in relation_of(masked(), options(masks=MASKS, mask_secret=KEY))


@pytest.mark.parametrize("mask", ["out(id)", "null(id)", "constant(id:1)"])
def test_a_key_that_is_masked_is_told(mask: str) -> None:
    how = options(masks=json.dumps({"s.t": [mask]}))
    assert relation_of(masked(), how)["masked_key"] == ["id"]


def test_hashes_are_what_anybody_can_reckon() -> None:
    values = pa.array(["a", None, "é", "a", ""])
    wanted = [
        None if v is None else hmac.new(b"k", v.encode(), hashlib.sha256).hexdigest()
        for v in values.to_pylist()
    ]
    assert hashed(values, b"k").to_pylist() == wanted
    assert hashed(values.slice(2, 2), b"k").to_pylist() == wanted[2:4]
    assert hashed(values.slice(0, 0), b"k").to_pylist() == []


@pytest.mark.parametrize(
    "given",
    [
        {"masks": "[]"},
        {"masks": '{"s.t": ["hidden-value"]}', "mask_secret": KEY},
        {"masks": '{"s.t": ["out(a)", "null(a)"]}'},
        {"masks": '{"s.t": 7}'},
        {"masks": '{"s.t": ["hash(a)"]}'},
        {"partition_root": "s.t"},
        {"partition_root": '{"s.t": 1}'},
    ],
)
def test_options_that_are_none(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption) as told:
        shown_tables(given)
    assert "hidden-value" not in str(told.value)
    assert KEY not in str(told.value)


def test_the_secret_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"masks": '{"s.t": ["hash(a)"]}'}
    monkeypatch.delenv("SPILLWAY_LAKE_MASK_SECRET", raising=False)
    assert with_secret(asked) == asked
    monkeypatch.setenv("SPILLWAY_LAKE_MASK_SECRET", KEY)
    assert with_secret(asked) == {**asked, "mask_secret": KEY}
    assert with_secret({**asked, "mask_secret": "mine"})["mask_secret"] == "mine"
    plain = {"masks": '{"s.t": ["out(a)"]}'}
    assert with_secret(plain) == plain
