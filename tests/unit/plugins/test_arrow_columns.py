"""The arrow plugin on rows made by hand: decimals of any size, damage of any kind, names
and types.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

from harness.heap_rows import build_change, tuple_section
from spillway._kernels.messages.buffer import MessageBuffer
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionHeader
from spillway.errors import DecodingError, ValueNotRepresentable
from spillway.plugins.arrow import ArrowPlugin
from spillway.plugins.arrow_schema import SchemaOptions, escape_name, plan_table
from spillway.plugins.interface import PluginContext

OPTIONS = SchemaOptions(180000)
HEADER = TransactionHeader(7, 1, 2, 3, 0)


def column(number: int, name: str, oid: int, length: int, align: str, typmod: int = -1):
    return ColumnDescriptor(number, name, oid, typmod, length, 0 < length <= 8, align)


def relation(*columns: ColumnDescriptor, **more) -> RelationDescriptor:
    return RelationDescriptor(1, "public", "t", "r", "p", "d", columns, **more)


def encode(descriptor: RelationDescriptor, changes: list[bytes]) -> list[pa.RecordBatch]:
    plugin = ArrowPlugin({}, PluginContext("s", "d", 180000))
    out = MessageBuffer()
    plugin.begin(HEADER, out)
    plugin.changes(HEADER, memoryview(b"".join(changes)), {1: descriptor}, out)
    plugin.commit(HEADER, out)
    plugin.flush(out)
    taken = out.take()
    batches, at = [], 0
    for (length,) in struct.iter_unpack("<I", taken.lengths):
        with pa.ipc.open_stream(taken.payload[at : at + length]) as stream:
            batches += list(stream)
        at += length
    for batch in batches:
        batch.validate(full=True)
    return batches


def numeric_typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def numeric_datum(value: Decimal, *, long: bool) -> bytes:
    """Lay *value* out as numeric.c does: a varlena of base-10000 digits without leading or trailing
    zeros.
    """
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    text = text.zfill(scale)
    whole, fraction = (text[:-scale], text[-scale:]) if scale else (text, "")
    whole = whole.lstrip("0")
    fraction += "0" * (-len(fraction) % 4)
    whole = "0" * (-len(whole) % 4) + whole
    weight = len(whole) // 4 - 1
    groups = [int((whole + fraction)[i : i + 4]) for i in range(0, len(whole + fraction), 4)]
    while groups and groups[0] == 0:
        del groups[0]
        weight -= 1
    while groups and groups[-1] == 0:
        del groups[-1]
    if not groups:
        weight = 0
    if long:
        head = struct.pack("<Hh", (0x4000 if sign else 0) | scale, weight)
    else:
        head = struct.pack("<H", 0x8000 | (0x2000 if sign else 0) | scale << 7 | weight & 0x7F)
    payload = head + struct.pack(f"<{len(groups)}H", *groups)
    return bytes([(len(payload) + 1) << 1 | 1]) + payload


def test_decimals_of_every_precision_and_scale() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        precision = rng.randint(1, 38)
        scale = rng.randint(0, precision)
        values = []
        with localcontext(prec=60):
            for digits in [0, 1, precision, *(rng.randint(0, precision) for _ in range(6))]:
                number = rng.choice(
                    (10**digits - 1, rng.randrange(10**digits), 10 ** max(0, digits - 1))
                )
                values.append(Decimal(rng.choice((1, -1)) * number).scaleb(-scale))
        descriptor = relation(column(1, "n", 1700, -1, "i", numeric_typmod(precision, scale)))
        changes = [
            build_change(
                change_format.INSERT,
                # The long form starts at a 4-byte header's alignment; a short varlena has none.
                new=tuple_section(
                    1, 0, 24, b"\x00" + numeric_datum(value, long=rng.random() < 0.5)
                ),
            )
            for value in values
        ]
        (batch,) = encode(descriptor, changes)
        assert batch.schema.field("n").type == pa.decimal128(precision, scale)
        assert batch["n"].to_pylist() == values, (precision, scale)


@pytest.mark.parametrize(
    ("precision", "scale", "value"),
    [
        (5, 2, "1000"),
        (5, 2, "0.001"),
        (38, 0, "1e38"),
        (3, 0, "1000"),
        (1, 1, "1"),
        (38, 38, "1"),
        (4, 0, "1e60"),
    ],
)
def test_decimals_beyond_their_type(precision: int, scale: int, value: str) -> None:
    descriptor = relation(column(1, "n", 1700, -1, "i", numeric_typmod(precision, scale)))
    datum = numeric_datum(Decimal(value), long=True)
    change = build_change(change_format.INSERT, new=tuple_section(1, 0, 24, b"\x00" + datum))
    with pytest.raises(ValueNotRepresentable, match="does not fit"):
        encode(descriptor, [change])


ALL = relation(
    column(1, "id", 23, 4, "i"),
    column(2, "flag", 16, 1, "c"),
    column(3, "at", 1184, 8, "d"),
    column(4, "t", 25, -1, "i"),
    column(5, "n", 1700, -1, "i", numeric_typmod(12, 2)),
    column(6, "b", 17, -1, "i"),
    column(7, "d", 1082, 4, "i"),
    column(8, "u", 2950, 16, "c"),
    primary_key=(1,),
    identity_columns=(1, 4),
)


def all_types(number: int) -> bytes:
    text = f"täxt {number}".encode()
    data = struct.pack("<i?3xq", number, number % 2, number * 10**9)
    data += bytes([(len(text) + 1) << 1 | 1]) + text
    data += numeric_datum(Decimal(number) / 4, long=False)
    data += b"\x07ab"
    data += bytes(-len(data) % 4) + struct.pack("<i", number) + bytes(range(16))
    return tuple_section(8, 0, 24, b"\x00" + data)


def test_damage_gives_an_error_or_a_sound_batch() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    changes = []
    for i in range(6):
        new, old = all_types(i), all_types(i + 1)
        changes += [
            build_change(change_format.INSERT, new=new),
            build_change(change_format.UPDATE, new=new, old=old),
            build_change(change_format.DELETE, old=old),
        ]
    changes.append(
        build_change(change_format.TRUNCATE, relation=0, new=struct.pack("<III", 0, 1, 1))
    )
    (sound,) = encode(ALL, changes)
    assert sound.num_rows == 19
    assert sound["t"].to_pylist()[:2] == ["täxt 0", "täxt 0"]
    assert sound["_old_key"].to_pylist()[1] == {"id": 1, "t": "täxt 1"}
    outcomes = {"error": 0, "batch": 0}
    for _ in range(4000):
        damaged = bytearray(b"".join(changes))
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                (0, 1, 0x7F, 0xFF, rng.randrange(256))
            )
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        error: DecodingError | None = None
        try:
            encode(ALL, [bytes(damaged)])
        except DecodingError as caught:
            error = caught
            outcomes["error"] += 1
        else:
            outcomes["batch"] += 1
        assert error is None or "lsn" in error.details
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("id", "id"), ("op", "op"), ("_op", "__op"), ("__op", "___op"), ("_old_key", "__old_key"),
        ("_ops", "_ops"), ("_OP", "__OP"), ("_Old_Key", "__Old_Key"),
        ("_commit_time", "__commit_time"), ("_", "_"),
    ],
)  # fmt: skip
def test_names_that_look_like_the_changes_own(name: str, escaped: str) -> None:
    assert escape_name(name) == escaped


def test_a_key_that_two_rows_may_have_until_their_commit_is_told() -> None:
    table = replace(relation(column(1, "id", 23, 4, "i")), primary_key=(1,))
    described = {
        deferrable: json.loads(
            plan_table(replace(table, primary_key_deferrable=deferrable), OPTIONS).schema.metadata[
                b"spillway.relation"
            ]
        )
        for deferrable in (False, True)
    }
    assert described[True].pop("primary_key_deferrable") is True
    assert described[True] == described[False]


def test_safe_names_are_told_apart() -> None:
    names = [
        "first name",
        "First_Name",
        "a.b",
        "a;b",
        "A=B",
        "größe",
        "_op",
        "[op",
        "-lsn",
        "a_b_4",
    ]
    columns = (column(n, name, 23, 4, "i") for n, name in enumerate(names, 1))
    plan = plan_table(relation(*columns), replace(OPTIONS, safe_names=True))
    assert [planned.name for planned in plan.columns] == [
        "first_name_1", "First_Name", "a_b", "a_b_4_4", "A_B_5", "größe", "__op", "_op_8", "__lsn",
        "a_b_4",
    ]  # fmt: skip
    assert len({name.lower() for name in plan.schema.names}) == len(plan.schema.names)
    described = json.loads(plan.schema.field("a_b").metadata[b"spillway.column"])
    assert described["name"] == "a.b"


def test_virtual_columns_are_left_out() -> None:
    virtual = ColumnDescriptor(2, "v", 23, -1, 4, True, "i", generated="v")
    plan = plan_table(relation(column(1, "id", 23, 4, "i"), virtual), OPTIONS)
    assert plan.schema.names[-1] == "id"


def test_a_domain_over_itself() -> None:
    domain = TypeDescriptor(99999, "public", "d", "d", "N", 4, True, "i", base_oid=99999)
    with pytest.raises(DecodingError, match="over itself"):
        plan_table(relation(column(1, "v", 99999, 4, "i"), types={99999: domain}), OPTIONS)


def test_labels_are_told_of_what_is_printed_with_them() -> None:
    mood = TypeDescriptor(
        90000, "public", "mood", "e", "E", 4, True, "i", enum_labels=((7, "sad"), (5, "glad"))
    )
    array = TypeDescriptor(
        90001, "public", "_mood", "b", "A", -1, False, "i", element_oid=90000, is_array=True
    )
    domain = TypeDescriptor(90002, "public", "d", "d", "A", -1, False, "i", base_oid=90001)
    columns = [column(n, f"c{n}", 90000 + n, -1, "i") for n in range(3)]
    types = {type_.oid: type_ for type_ in (mood, array, domain)}
    plan = plan_table(relation(*columns, column(3, "id", 23, 4, "i"), types=types), OPTIONS)
    told = [
        json.loads(plan.schema.field(name).metadata[b"spillway.column"]).get("labels")
        for name in ("c0", "c1", "c2", "id")
    ]
    assert told == [{"5": "glad", "7": "sad"}] * 3 + [None]


@pytest.mark.parametrize(
    ("of", "datum", "text"),
    [
        (column(1, "c", 23, 4, "i"), struct.pack("<i", -7), "-7"),
        (column(1, "c", 16, 1, "c"), b"\x01", "t"),
        (column(1, "c", 25, -1, "i"), struct.pack("<I", 9 << 2) + b"caf\xc3\xa9", "café"),
        (column(1, "c", 25, -1, "i"), bytes([4 << 1 | 1]) + b"abc", "abc"),
        (column(1, "c", 17, -1, "i"), struct.pack("<I", 6 << 2) + b"\x00\xff", "\\x00ff"),
    ],
)
def test_the_default_of_rows_before_the_column(of: ColumnDescriptor, datum: bytes, text: str):
    plan = plan_table(relation(replace(of, missing=datum)), OPTIONS)
    metadata = json.loads(plan.schema.field("c").metadata[b"spillway.column"])
    assert metadata["missing"] == text
    plan = plan_table(relation(of), OPTIONS)
    assert b"missing" not in plan.schema.field("c").metadata[b"spillway.column"]
