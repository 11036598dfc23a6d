"""The table of version differences is whole, and chosen in one place."""

from __future__ import annotations

import re

import pytest

from harness.remedies import remedy
from spillway.errors import UnsupportedWal
from spillway.pg.rmgr import rmgr_name
from spillway.pg.versions import (
    WAL_VERSIONS,
    prints_upper_certainty,
    refuses_empty_proto_version,
    skips_empty_prepared,
    version_of_magic,
    version_of_server,
)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        (skips_empty_prepared, (140024, 150019, 160015, 170011, 180006)),
        (prints_upper_certainty, (140024, 150019, 160015, 170011, 180006)),
        (refuses_empty_proto_version, (140025, 150020, 160016, 170012, 180007)),
    ],
)
def test_a_rule_of_minor_releases_begins_with_one_of_each_major(rule, first):
    assert sorted(version // 10000 for version in first) == sorted(WAL_VERSIONS)
    for version in first:
        assert rule(version)
        assert not rule(version - 1)


def test_every_major_is_found_by_server_and_by_magic():
    assert sorted(WAL_VERSIONS) == [14, 15, 16, 17, 18]
    for major, version in WAL_VERSIONS.items():
        assert version_of_server(major * 10000 + 7) is version
        assert version_of_magic(version.page_magic) is version
    assert len({version.page_magic for version in WAL_VERSIONS.values()}) == len(WAL_VERSIONS)


@pytest.mark.parametrize("server_version_num", [130012, 190000, 90624])
@pytest.mark.follows_hint("unsupported_wal")
def test_unsupported_server(server_version_num):
    with pytest.raises(UnsupportedWal, match="14 to 18") as caught:
        version_of_server(server_version_num)
    first, last = map(int, re.findall(r"\d+", remedy(caught.value, "unsupported_wal")))
    for major in range(first, last + 1):
        version_of_server(major * 10000)


@pytest.mark.parametrize(("magic", "text"), [(0xD10F, "unsupported version"), (0, "no WAL")])
def test_unsupported_magic(magic, text):
    with pytest.raises(UnsupportedWal, match=text):
        version_of_magic(magic)


def test_image_flags_do_not_overlap():
    for version in WAL_VERSIONS.values():
        bits = [
            0x01,
            version.image_apply,
            version.image_pglz,
            version.image_lz4,
            version.image_zstd,
        ]
        used = [bit for bit in bits if bit]
        assert sum(used) == sum({*used})
        assert all(bit.bit_count() == 1 for bit in used)


@pytest.mark.parametrize(
    ("rmid", "name"),
    [(0, "XLOG"), (10, "Heap"), (21, "LogicalMessage"), (128, "custom128"), (22, "unknown022")],
)
def test_rmgr_name(rmid, name):
    assert rmgr_name(rmid) == name
