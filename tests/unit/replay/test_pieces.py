"""Rows between the halves of a replay, and what the second half makes of rows that are not
whole.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spillway.decoding.transaction import TransactionHeader
from spillway.errors import DecodingError
from spillway.replay import pieces
from spillway.replay.assemble import Encoding, messages

HEADER = TransactionHeader(700, 100, 200, 248, 0, 3, 5, origin_name="elsewhere")
ENCODING = Encoding("s", "db", 5, 18, "utf-8", "test_decoding")


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    blank = {"part": 0, "final_lsn": 200, "kind": 0, "stretch": 0, "place": 0, "more": False}
    return pa.RecordBatch.from_pylist([blank | row for row in rows], schema=pieces.SCHEMA)


@pytest.mark.parametrize("survivors", [(), (700,), (700, 701), tuple(range(700, 800))])
def test_a_header(survivors: tuple[int, ...]) -> None:
    payload = pieces.header_payload(HEADER, survivors)
    assert len(payload) % 8 == 0
    assert pieces.parse_header(memoryview(payload)) == (HEADER, frozenset(survivors))


def test_a_payload_over_several_rows() -> None:
    found = list(
        pieces.rows(
            [
                batch({"payload": b"x"}, {"payload": b"abcdefgh", "more": True, "place": 1}),
                batch({"payload": b"ijklmnop", "more": True}),
                batch({"payload": b"q"}, {"payload": b"yyyyyyyy", "place": 3}),
            ]
        )
    )
    assert [bytes(row.payload) for row in found] == [b"x", b"abcdefghijklmnopq", b"y" * 8]


def read(*rows: dict[str, Any]) -> list[bytes]:
    return list(messages(pieces.rows([batch(*rows)]), ENCODING, 100, 300))


def test_what_is_not_whole_is_refused() -> None:
    end = {"kind": pieces.END, "payload": b"", "final_lsn": pieces.LAST}
    header = {"kind": pieces.HEADER, "payload": pieces.header_payload(HEADER, (700,))}
    assert [line.split()[0] for line in read(header, end)] == [b"BEGIN", b"COMMIT"]
    with pytest.raises(DecodingError, match="not read to its end"):
        read(header)
    with pytest.raises(DecodingError, match="the end is missing"):
        read({"kind": pieces.PIECE, "payload": bytes(32)}, end)
    with pytest.raises(DecodingError, match="the end is missing"):
        read(header, {"kind": pieces.CHUNK, "payload": bytes(32), "final_lsn": 208}, end)
    for damaged in (b"\1", bytes(31), bytes(32), b"\xff" * 32):
        with pytest.raises(DecodingError, match="is damaged"):
            read(header, {"kind": pieces.PIECE, "payload": damaged}, end)
