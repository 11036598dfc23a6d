"""Golden WAL: what ``tests/golden/record_wal.py`` recorded on a server of each major."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from spillway.pg.lsn import Lsn
from spillway.pg.versions import WAL_VERSIONS, WalVersion

_DIRECTORY = Path(__file__).resolve().parents[1] / "golden" / "wal"


class GoldenRecord(NamedTuple):
    """A record as pg_walinspect shows it."""

    lsn: Lsn
    end_lsn: Lsn
    prev_lsn: Lsn
    xid: int
    rmgr: str
    total_len: int
    main_len: int
    fpi_len: int


@dataclass(frozen=True)
class GoldenWal:
    """Whole segments from ``start_lsn`` on; records are known up to ``end_lsn`` (15 and later)."""

    version: WalVersion
    start_lsn: Lsn
    end_lsn: Lsn
    segment_size: int
    system_id: int
    timeline: int
    data: bytes
    records: tuple[GoldenRecord, ...] | None


@cache
def golden_wal(major: int) -> GoldenWal:
    """Load the golden WAL of *major*."""
    facts = json.loads((_DIRECTORY / f"pg{major}.json").read_text())
    records = facts["records"]
    if records is not None:
        records = tuple(
            GoldenRecord(Lsn.parse(lsn), Lsn.parse(end), Lsn.parse(prev), *rest)
            for lsn, end, prev, *rest in records
        )
    return GoldenWal(
        version=WAL_VERSIONS[major],
        start_lsn=Lsn.parse(facts["start_lsn"]),
        end_lsn=Lsn.parse(facts["end_lsn"]),
        segment_size=facts["segment_size"],
        system_id=facts["system_id"],
        timeline=facts["timeline"],
        data=lzma.decompress((_DIRECTORY / f"pg{major}.wal.xz").read_bytes()),
        records=records,
    )
