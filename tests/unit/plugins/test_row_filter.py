"""Row filters without a server: what becomes of changes, numbers as bytes that sort, refusals,
damage.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.heap_rows import build_change, tuple_section
from spillway._kernels.encoders.row_filter import interval_key, numeric_key
from spillway.catalog.descriptor import (
    ColumnDescriptor,
    PublicationDescriptor,
    RelationDescriptor,
)
from spillway.catalog.numeric_datum import numeric_body_of_text
from spillway.decoding import change_format
from spillway.errors import DecodingError, UnsupportedFeature
from spillway.plugins.row_filter import AS_DELETE, AS_INSERT, DROP, KEEP, compile_row_filter
from spillway.plugins.row_filter_nodes import Node, parse_node_tree

TABLE = RelationDescriptor(
    16400, "public", "t", "r", "p", "f",
    (
        ColumnDescriptor(1, "id", 23, -1, 4, True, "i"),
        ColumnDescriptor(2, "gone", 0, -1, 4, True, "i", dropped=True),
        ColumnDescriptor(3, "v", 23, -1, 4, True, "i"),
    ),
)  # fmt: skip


def var(attnum: int, type_oid: int = 23) -> str:
    return (
        f"{{VAR :varno 1 :varattno {attnum} :vartype {type_oid} :vartypmod -1 :varcollid 0"
        f" :varlevelsup 0 :varnosyn 1 :varattnosyn {attnum} :location 7}}"
    )


def const(value: int) -> str:
    datum = " ".join(str(b) for b in struct.pack("<q", value))
    return (
        "{CONST :consttype 23 :consttypmod -1 :constcollid 0 :constlen 4 :constbyval true"
        f" :constisnull false :location 11 :constvalue 4 [ {datum} ]}}"
    )


def greater(left: str, right: str, function: int = 147) -> str:
    return (
        f"{{OPEXPR :opno 521 :opfuncid {function} :opresulttype 16 :opretset false :opcollid 0"
        f" :inputcollid 0 :args ({left} {right}) :location 9}}"
    )


V_ABOVE_5 = greater(var(3), const(5))


def row(v: int | None, identifier: int = 1) -> bytes:
    """A tuple of the table; column 2 is null since it was dropped."""
    bitmap = bytes([0b101 if v is not None else 0b001])
    data = struct.pack("<i", identifier) + (struct.pack("<i", v) if v is not None else b"")
    return tuple_section(3, 1, 24, bitmap + data)


def update(old: int | None, new: int | None) -> bytes:
    return build_change(change_format.UPDATE, new=row(new), old=row(old), relation=1)


def verdicts(changes: list[bytes], action: int, *, only_local: bool = False) -> list[int]:
    row_filter = compile_row_filter(TABLE, TABLE, [V_ABOVE_5])
    return list(row_filter.verdicts(b"".join(changes), 1, action, only_local=only_local))


def test_an_update_may_become_an_insert_or_a_delete() -> None:
    changes = [update(6, 7), update(1, 7), update(7, 1), update(1, 2), update(None, 9)]
    expected = [KEEP, AS_INSERT, AS_DELETE, DROP, AS_INSERT]
    assert verdicts(changes, change_format.UPDATE) == expected


def test_changes_of_other_actions_relations_and_origins_are_not_asked_about() -> None:
    changes = [
        build_change(change_format.INSERT, new=row(6), relation=1),
        build_change(change_format.INSERT, new=row(6), relation=2),
        update(6, 6),
        build_change(change_format.INSERT, new=row(1), relation=1),
        build_change(change_format.DELETE, old=row(6), relation=1),
        build_change(change_format.DELETE, relation=1),
        build_change(change_format.INSERT, new=row(None), relation=1),
    ]
    assert verdicts(changes, change_format.INSERT) == [KEEP, DROP, DROP]
    assert verdicts(changes, change_format.DELETE) == [KEEP]
    foreign = bytearray(changes[0])
    foreign[5] |= change_format.FROM_ORIGIN
    changes.append(bytes(foreign))
    assert verdicts(changes, change_format.INSERT) == [KEEP, DROP, DROP, KEEP]
    assert verdicts(changes, change_format.INSERT, only_local=True) == [KEEP, DROP, DROP]


def test_any_of_several_filters_is_enough() -> None:
    filters = [V_ABOVE_5, greater(const(0), var(3))]
    row_filter = compile_row_filter(TABLE, TABLE, filters)
    changes = b"".join(
        build_change(change_format.INSERT, new=row(v), relation=1) for v in (6, 3, -1, None)
    )
    result = row_filter.verdicts(changes, 1, change_format.INSERT, only_local=False)
    assert list(result) == [KEEP, DROP, KEEP, DROP]


def test_a_partition_is_asked_with_its_roots_columns() -> None:
    root = RelationDescriptor(
        16500, "public", "root", "p", "p", "f",
        (TABLE.columns[2].__class__(1, "v", 23, -1, 4, True, "i"),),
    )  # fmt: skip
    row_filter = compile_row_filter(TABLE, root, [greater(var(1), const(5))])
    change = build_change(change_format.INSERT, new=row(6, identifier=0), relation=1)
    result = row_filter.verdicts(change, 1, change_format.INSERT, only_local=False)
    assert list(result) == [KEEP]


def test_a_refusal_names_publication_table_and_part() -> None:
    tree = greater(var(3), const(5), function=999999)
    table = replace(TABLE, publications=(PublicationDescriptor("p", row_filter=tree),))
    with pytest.raises(UnsupportedFeature, match=r"public\.t in publication p .* oid 999999"):
        compile_row_filter(table, table, [tree])
    with pytest.raises(UnsupportedFeature, match="SUBLINK"):
        compile_row_filter(TABLE, TABLE, ["{SUBLINK :x <>}"])
    virtual = replace(TABLE, columns=(*TABLE.columns[:2], replace(TABLE.columns[2], generated="v")))
    with pytest.raises(UnsupportedFeature, match="virtual"):
        compile_row_filter(virtual, virtual, [V_ABOVE_5])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{OPEXPR",
        "(",
        "x",
        "{A :b}",
        "{A b}",
        "{A :b [ 1",
        "{A :b 1 [ x ]}",
        "{A} {B}",
        "{" * 500,
    ],
)
def test_a_damaged_node_tree_is_a_typed_error(text: str) -> None:
    with pytest.raises(DecodingError):
        parse_node_tree(text)


@given(st.data())
def test_a_cut_node_tree_is_a_typed_error(data: st.DataObject) -> None:
    text = V_ABOVE_5
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.sampled_from(["", "}", "(", "<>", "9", " "])) + text[at + 1 :]
    with contextlib.suppress(DecodingError, UnsupportedFeature):
        compile_row_filter(TABLE, TABLE, [broken])


def test_words_with_escaped_characters() -> None:
    node = parse_node_tree(r"{A :name a\ b\}\\ :list (1 <> {B}) :none <>}")
    assert node.text("name") == "a b}\\"
    assert node.fields["none"] is None
    assert node.fields["list"] == ("1", None, Node("B", {}))


_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=9) | st.integers().map(Decimal)


@given(_NUMBERS, _NUMBERS)
def test_numeric_keys_sort_as_numbers(a: Decimal, b: Decimal) -> None:
    keys = [numeric_key(numeric_body_of_text(format(n, "f"))) for n in (a, b)]
    assert (keys[0] < keys[1]) == (a < b)
    assert (keys[0] == keys[1]) == (a == b)
    infinity, minus_infinity, nan = (
        numeric_key(struct.pack("<H", word)) for word in (0xD000, 0xF000, 0xC000)
    )
    assert minus_infinity < keys[0] < infinity < nan


@given(
    *[st.tuples(*[st.integers(-(1 << 40), 1 << 40), st.integers(-999, 999), st.integers(-99, 99)])]
    * 2
)
def test_interval_keys_sort_as_intervals(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    def microseconds(time: int, days: int, months: int) -> int:
        return time + (days + 30 * months) * 86_400_000_000

    keys = [interval_key(struct.pack("<qii", *value)) for value in (a, b)]
    assert (keys[0] < keys[1]) == (microseconds(*a) < microseconds(*b))
    assert (keys[0] == keys[1]) == (microseconds(*a) == microseconds(*b))


@pytest.mark.parametrize("datum", [b"", b"\0", b"\0\0", b"\0\x80\xff\xff"])
def test_damaged_numerics_are_typed_errors(datum: bytes) -> None:
    with pytest.raises(DecodingError):
        numeric_key(datum)
    with pytest.raises(DecodingError):
        interval_key(datum)
