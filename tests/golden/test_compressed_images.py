"""Page images that a real server compressed with each method, decompressed to the pages that it
had.
"""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest

from spillway._kernels.wal.walker import Walker
from spillway.pg.lsn import Lsn
from spillway.pg.versions import WAL_VERSIONS

WAL = Path(__file__).parent / "wal"
FACTS = json.loads((WAL / "images.json").read_text())
#: pd_lsn and pd_checksum: the record sets the former after the image was taken, a checkpoint the
#: latter
VOLATILE = 10


@pytest.mark.parametrize("expected", FACTS["images"], ids=lambda image: image["method"])
def test_image_is_the_servers_page(expected: dict[str, str]) -> None:
    walker = Walker(
        WAL_VERSIONS[15],
        Lsn.parse(FACTS["start_lsn"]),
        FACTS["segment_size"],
        system_id=FACTS["system_id"],
    )
    walker.feed(
        Lsn.parse(FACTS["start_lsn"]), lzma.decompress((WAL / "images.wal.xz").read_bytes())
    )
    start = Lsn.parse(expected["from_lsn"])
    while (batch := walker.next_batch()) is not None:
        for i in range(len(batch)):
            record = batch.record(i)
            if record.lsn < start:
                continue
            for ref in record.blocks:
                if ref.locator.rel == FACTS["relfilenode"] and ref.block == 0 and ref.image:
                    assert ref.image[VOLATILE:] == base64.b64decode(expected["page"])[VOLATILE:]
                    return
    pytest.fail("the record is not there")


def test_every_method_occurs() -> None:
    assert [image["method"] for image in FACTS["images"]] == ["off", "pglz", "lz4", "zstd"]
    wal = lzma.decompress((WAL / "images.wal.xz").read_bytes())
    assert b"\x28\xb5\x2f\xfd" in wal, "a zstd frame"
