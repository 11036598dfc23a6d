"""Groups of a pgoutput stream: what is taken, where it stops, what is refused."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from harness.pgoutput_messages import (
    arrays,
    begin,
    change,
    commit,
    relation,
    truncate,
    word,
)
from spillway._kernels.apply.change_group import ChangeGroup
from spillway._kernels.apply.netting import steps
from spillway.apply.changes import (
    UNCHANGED,
    BinaryValue,
    Change,
    SourceColumn,
    SourceRelation,
    StepPlan,
    Touched,
    TransactionHead,
)
from spillway.errors import MalformedMessage

TABLE = relation(7, "public", "t", "d", ("a", 23, True), ("b", 25, False))
KNOWN = SourceRelation(
    7, "public", "t", "d", (SourceColumn("a", 23, -1, True), SourceColumn("b", 25, -1, False))
)
STREAM = [
    begin(5, 100),
    b"O" + word(90, 8) + b"far\0",
    TABLE,
    b"Y" + word(70000) + b"public\0mood\0",
    change("I", 7, new=(b"1", b"x")),
    change("U", 7, new=(b"1", UNCHANGED)),
    change("U", 7, old=(b"1", None), tag="K", new=(b"2", BinaryValue(b"\0"))),
    change("D", 7, old=(b"2", b""), tag="O"),
    truncate(7, flags=3),
    b"M\1" + word(1, 8) + b"p\0" + word(3) + b"abc",
    commit(100),
    begin(6, 200),
    commit(200),
]


def _fed(group: ChangeGroup, messages: list[bytes]) -> int:
    return group.feed(*arrays(messages))


def test_messages_become_values() -> None:
    group = ChangeGroup(1 << 20)
    assert _fed(group, STREAM) == len(STREAM)
    assert (group.transactions, group.is_full, group.is_within, group.is_plain) == (
        2,
        False,
        False,
        True,
    )
    assert group.heads() == [
        TransactionHead("B", 5, 100, 101, 55, ("far", 90)),
        TransactionHead("B", 6, 200, 201, 55),
    ]
    assert group.last == group.heads()[1]
    assert list(group.changes(0)) == [
        Change("I", KNOWN, new=(b"1", b"x")),
        Change("U", KNOWN, new=(b"1", UNCHANGED)),
        Change("U", KNOWN, old=(b"1", None), old_is_key=True, new=(b"2", BinaryValue(b"\0"))),
        Change("D", KNOWN, old=(b"2", b"")),
        Change("T", None, truncated=(KNOWN,), cascade=True, restart_identity=True),
        Change("M", None, message=("p", b"abc")),
    ]
    assert list(group.changes(1)) == []
    assert group.touched() == [Touched(KNOWN, 1, 2, 1, 1)]
    assert group.types == {70000: ("public", "mood")}
    group.clear()
    assert (group.transactions, group.last, group.count) == (0, None, 0)
    # Tables stay known.
    assert _fed(group, [begin(9, 300), change("I", 7, new=(b"1", None)), commit(300)]) == 3
    assert group.touched() == [Touched(KNOWN, 1, 0, 0, 0)]


def test_what_has_not_ended_counts_for_nothing_and_stays() -> None:
    group = ChangeGroup(1 << 20)
    first = [begin(1, 10), TABLE, change("I", 7, new=(b"1", b"x")), commit(10)]
    _fed(group, [*first, begin(2, 20), change("I", 7, new=(b"2", b"y"))])
    assert (group.transactions, group.is_within, group.count) == (1, True, 1)
    assert group.touched() == [Touched(KNOWN, 1, 0, 0, 0)]
    group.clear()
    assert (group.transactions, group.is_within) == (0, True)
    _fed(group, [change("D", 7, old=(b"3", None), tag="K"), commit(20)])
    assert [one.kind for one in group.changes(0)] == ["I", "D"]
    assert [one.new for one in group.changes(0)] == [(b"2", b"y"), None]
    assert [head.xid for head in group.heads()] == [2]


def test_a_transaction_larger_than_a_group_comes_in_pieces() -> None:
    group = ChangeGroup(2000)
    rows = [change("I", 7, new=(b"%d" % n, b"x" * 50)) for n in range(100)]
    messages = [begin(1, 10), TABLE, *rows, commit(10), begin(2, 20), commit(20)]
    first, got, heads = 0, [], []
    while first < len(messages):
        first = group.feed(*arrays(messages), first)
        assert group.nbytes < 2000 + 500
        heads += group.heads()
        for i in range(len(group.heads())):
            got += [one.new[0] for one in group.changes(i) if one.new]
        group.clear()
    assert got == [b"%d" % n for n in range(100)]
    assert [head.end_lsn for head in heads[:-2]] == [0] * (len(heads) - 2)
    assert [head.is_continued for head in heads] == [False, *[True] * (len(heads) - 2), False]
    assert [head.end_lsn for head in heads[-2:]] == [11, 21]


def test_a_group_of_any_size_ends() -> None:
    messages = [begin(1, 10), TABLE, change("I", 7, new=(b"1", b"x")), commit(10)] * 3
    for size in (1, 50, 100, 150, 200, 1000):
        group, first, rounds = ChangeGroup(size), 0, 0
        while first < len(messages):
            first = group.feed(*arrays(messages), first)
            group.clear()
            rounds += 1
            assert rounds < 20


def test_other_units_stand_alone() -> None:
    prepare = word(30, 8) + word(31, 8) + word(55, 8) + word(3)
    streamed = [b"S" + word(8) + b"\1", change("I", 7, new=(b"1", b""), xid=9), b"E"]
    messages = [
        begin(1, 10), TABLE, commit(10),
        b"b" + prepare + b"gid\0", change("I", 7, new=(b"1", b"")), b"P\0" + prepare + b"gid\0",
        b"K\0" + prepare + b"gid\0",
        b"r\0" + word(30, 8) + word(31, 8) + word(54, 8) + word(55, 8) + word(3) + b"gid\0",
        *streamed,
        b"A" + word(8) + word(9),
        b"c" + word(8) + b"\0" + word(40, 8) + word(41, 8) + word(55, 8),
        begin(2, 50), commit(50),
    ]  # fmt: skip
    group, first, units = ChangeGroup(1 << 20), 0, []
    while first < len(messages):
        first = group.feed(*arrays(messages), first)
        units.append([(h.kind, h.xid, h.gid) for h in group.heads()])
        assert group.is_plain == (units[-1][0][0] == "B")
        if units[-1][0][0] == "S":
            payload, lengths = group.raw(0)
            again = ChangeGroup(1 << 20, group)
            again.feed(payload, lengths)
            assert payload == b"".join(streamed)
            assert list(again.changes(0)) == list(group.changes(0))
            assert [one.xid for one in again.changes(0)] == [9]
        group.clear()
    assert units == [
        [("B", 1, "")], [("b", 3, "gid")], [("K", 3, "gid")], [("r", 3, "gid")], [("S", 8, "")],
        [("A", 8, "")], [("c", 8, "")], [("B", 2, "")],
    ]  # fmt: skip


def test_tables_that_are_announced_anew() -> None:
    wider = relation(7, "public", "t", "d", ("a", 23, True), ("b", 25, False), ("c", 25, False))
    group = ChangeGroup(1 << 20)
    _fed(group, [begin(1, 10), TABLE, change("I", 7, new=(b"1", b"")), wider])
    _fed(group, [change("I", 7, new=(b"1", b"", None)), TABLE, change("I", 7, new=(b"2", b""))])
    _fed(group, [commit(10)])
    widths = [len(one.relation.columns) for one in group.changes(0) if one.relation]
    assert widths == [2, 3, 2]
    assert [one.inserts for one in group.touched()] == [2, 1]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "it is cut short"),
        (b"?", "nothing like it may come here"),
        (change("I", 8, new=(b"1", b"")), "its table was not announced"),
        (change("I", 7, new=(b"1",)), "its row is not one of its table"),
        (change("I", 7, new=(b"1", b"")) + b"\0", "there is more in it"),
        (change("I", 7, new=(b"1", b""))[:-1], "it is cut short"),
        (b"D" + word(7) + b"N", "its row is not one of its table"),
        (b"T" + word(0xFFFFFFFF) + b"\0", "it is cut short"),
        (truncate(8), "its table was not announced"),
        (TABLE[:-3], "it is cut short"),
        (begin(2, 20), "nothing like it may come here"),
        (b"E", "nothing like it may come here"),
        (b"K\0" + bytes(28) + b"g\0", "nothing like it may come here"),
    ],
)
def test_what_cannot_be_is_refused(message: bytes, reason: str) -> None:
    group = ChangeGroup(1 << 20)
    _fed(group, [begin(1, 10), TABLE, change("I", 7, new=(b"1", b"x"))])
    with pytest.raises(MalformedMessage, match=reason):
        _fed(group, [message])
    assert group.is_within
    _fed(group, [commit(10)])
    assert [one.new for one in group.changes(0)] == [(b"1", b"x")]


def test_a_letter_that_pgoutput_does_not_have() -> None:
    with pytest.raises(MalformedMessage, match=r"message '\?' of 1 bytes, number 1 .* no such"):
        ChangeGroup(1 << 20).feed(b"M" + b"?", b"\1\0\0\0" * 2)


def test_arrays_that_do_not_fit() -> None:
    group = ChangeGroup(1 << 20)
    for payload, lengths, first in ((b"B", b"\5\0\0\0", 0), (b"", b"\0", 0), (b"", b"", 1)):
        with pytest.raises(ValueError, match="don't fit"):
            group.feed(payload, lengths, first)


def test_damage_never_does_more_than_raise() -> None:
    """Bytes changed, cut out and put in; what is taken all the same can be asked for everything."""
    draw = random.Random(11)
    plan = StepPlan(KNOWN, 1, (0,), (), (0,), bytes([3, 1]), (23, 25), 1, copy_binary=True)
    refused = 0
    for _ in range(800):
        messages = list(STREAM)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(messages))
            damaged = bytearray(messages[at])
            place = draw.randrange(len(damaged) + 1)
            kind = draw.randrange(4)
            if kind == 0 and place < len(damaged):
                damaged[place] = draw.choice([0, 1, 0xFF, draw.randrange(256)])
            elif kind == 1:
                del damaged[place : place + draw.randrange(1, 9)]
            elif kind == 2:
                damaged[place:place] = draw.randbytes(draw.randrange(1, 9))
            else:
                messages[at], damaged = (
                    messages[draw.randrange(len(messages))],
                    bytearray(messages[at]),
                )
                messages[draw.randrange(len(messages))] = bytes(damaged)
                continue
            messages[at] = bytes(damaged)
        group = ChangeGroup(draw.choice([64, 1 << 20]))
        first, rounds = 0, 0
        try:
            while first < len(messages) and rounds < 50:
                first = group.feed(*arrays(messages), first)
                rounds += 1
                for i, _ in enumerate(group.heads()):
                    list(group.changes(i))
                    group.raw(i)
                group.touched()
                with suppress(ValueError):
                    steps(group, {KNOWN: plan})
                group.clear()
        except MalformedMessage:
            refused += 1
    assert 100 < refused < 800
