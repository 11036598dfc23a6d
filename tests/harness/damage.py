"""Real bytes made wrong: WAL records whose checksum is right all the same, rows of every type,
chunks of changes.

A seed replays a run: SPILLWAY_FUZZ_SEED. How long each fuzz test looks is SPILLWAY_FUZZ_SECONDS.
"""

from __future__ import annotations

import os
import random
import struct
import time
from typing import TYPE_CHECKING

from harness import heap_rows
from harness.type_values import CASES, SETUP
from harness.wal_writer import LONG, PAGE_SIZE
from spillway._kernels.pg.crc32c import crc32c
from spillway._kernels.wal.walker import Walker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.wal_writer import WalWriter
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.pg.versions import WalVersion

_RECORD_HEADER = struct.Struct("<IIQBBHI")
_HEADER_WITHOUT_CRC = 20


def seeded() -> random.Random:
    """A generator of random damage; the seed is printed."""
    seed = int(os.environ.get("SPILLWAY_FUZZ_SEED", random.randrange(1 << 32)))
    print("SPILLWAY_FUZZ_SEED", seed)
    return random.Random(seed)


def rounds(seconds: float) -> Iterator[int]:
    """Count rounds until the time is over: *seconds*, or what the environment says."""
    until = time.monotonic() + float(os.environ.get("SPILLWAY_FUZZ_SECONDS", seconds))
    count = 0
    while time.monotonic() < until:
        yield count
        count += 1
    print("SPILLWAY_FUZZ_ROUNDS", count)


def damage(data: bytes, rng: random.Random) -> bytes:
    """Cut *data*, or flip, replace or take out some of its bytes."""
    kind = rng.randrange(5)
    if kind == 0 or not data:
        return data[: rng.randrange(len(data))] if data else b"\0"
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(len(damaged))
        if kind == 1:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            damaged[at] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
        elif kind == 3:
            damaged[at : at + 4] = rng.choice(
                [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\0\0\0\0"]
            )
        else:
            del damaged[at : at + rng.randrange(1, 9)]
            damaged += b"\0"
    return bytes(damaged)


def raw_records(
    version: WalVersion, data: bytes, start_lsn: int, segment_size: int
) -> list[tuple[int, bytes]]:
    """Every record of *data* and its LSN, as it lies in WAL, page headers taken out: header and
    body.
    """
    walker = Walker(version, start_lsn, segment_size, end_is_error=False)
    walker.feed(start_lsn, data)
    records = []
    while (batch := walker.next_batch()) is not None:
        for i in range(len(batch)):
            lsn, _, _, total_len, *_ = batch.header(i)
            records.append((lsn, _record_at(data, lsn - start_lsn, total_len)))
    return records


def _record_at(data: bytes, at: int, size: int) -> bytes:
    record = bytearray()
    while len(record) < size:
        if at % PAGE_SIZE == 0:
            flags = int.from_bytes(data[at + 2 : at + 4], "little")
            at += 40 if flags & LONG else 24
        step = min(size - len(record), PAGE_SIZE - at % PAGE_SIZE)
        record += data[at : at + step]
        at += step
    return bytes(record)


def damage_record(record: bytes, rng: random.Random) -> bytes:
    """Damage a record where its header's length and checksum do not tell."""
    body = record[_RECORD_HEADER.size :]
    _, xid, prev, info, rmid, _, _ = _RECORD_HEADER.unpack_from(record)
    if rng.random() < 0.05:
        info ^= 1 << rng.randrange(8)
    elif rng.random() < 0.02:
        xid = rng.choice((0, 1, 2, 3, xid + 1, 0xFFFFFFFF))
    else:
        body = damage(body, rng)
    return sealed(body, xid=xid, prev=prev, info=info, rmid=rmid)


def renamed(record: bytes, old: bytes, new: bytes) -> bytes:
    """The record with *new* for each *old* in it."""
    body = record[_RECORD_HEADER.size :].replace(old, new)
    _, xid, prev, info, rmid, _, _ = _RECORD_HEADER.unpack_from(record)
    return sealed(body, xid=xid, prev=prev, info=info, rmid=rmid)


def sealed(body: bytes, *, xid: int, prev: int, info: int, rmid: int) -> bytes:
    """A record with a right length and checksum."""
    head = struct.pack("<IIQBBH", _RECORD_HEADER.size + len(body), xid, prev, info, rmid, 0)
    return head + crc32c(head, crc32c(body)).to_bytes(4, "little") + body


def lay_out(writer: WalWriter, record: bytes) -> None:
    """Append a record to *writer*, linked to what is before it."""
    _, xid, _, info, rmid, _, _ = _RECORD_HEADER.unpack_from(record)
    writer.append(record[_RECORD_HEADER.size :], xid=xid, info=info, rmid=rmid)


def rows_of_every_type(db: Database) -> tuple[RelationDescriptor, list[bytes], dict[int, bytes]]:
    """One table with a column a type, so that damage anywhere may fall on any."""
    rng = random.Random(1)
    with heap_rows.session(db) as session:
        session.execute(SETUP)
        types = list(CASES)
        columns = ", ".join(f"c{i} {name}" for i, name in enumerate(types))
        session.execute(
            f"CREATE TABLE everything ({columns}); ALTER TABLE everything ALTER c0 SET NOT NULL"
        )
        placeholders = ", ".join(["%s"] * len(types))
        for _ in range(60):
            values = [
                str(rng.choice(CASES[name])) if CASES[name] and rng.random() < 0.8 else None
                for name in types
            ]
            values[0] = "t"
            session.execute(f"INSERT INTO everything VALUES ({placeholders})", values)
        descriptor = heap_rows.relation_descriptor(session, "everything")
        return (
            descriptor,
            heap_rows.sections(session, "everything"),
            heap_rows.toast_values(session, descriptor),
        )
