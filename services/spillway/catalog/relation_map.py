"""The relation map: pg_filenode.map and the WAL records that replace it.

A few catalogs (pg_class, pg_attribute, pg_type, pg_proc and their indexes) can't say in pg_class
where their own storage is, because it takes them to read pg_class. Their relfilenodes are in a
small file per database. VACUUM FULL and CLUSTER of such a catalog replace the file as a whole, just
before they commit, with an XLOG_RELMAP_UPDATE record that carries its new content.

Source: src/backend/utils/cache/relmapper.c, src/include/utils/relmapper.h
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.pg.crc32c import crc32c

if TYPE_CHECKING:
    from spillway.pg.versions import WalVersion

_MAGIC: Final = 0x592717
_HEADER: Final = struct.Struct("<ii")
_ENTRY: Final = struct.Struct("<II")
_UPDATE: Final = struct.Struct("<IIi")
_CRC: Final = struct.Struct("<I")


class RelationMapUpdate(NamedTuple):
    """What an XLOG_RELMAP_UPDATE record says."""

    database_oid: int
    tablespace_oid: int
    mappings: dict[int, int]


def parse_map_file(content: bytes, version: WalVersion) -> dict[int, int]:
    """Parse pg_filenode.map: catalog oid → relfilenumber.

    Raises:
        ValueError: the size, the magic, the count or the checksum is wrong.
    """
    if len(content) != version.relmap_file_size:
        raise ValueError(
            f"a relation map has {version.relmap_file_size} bytes in PostgreSQL {version.major},"
            f" not {len(content)}"
        )
    magic, count = _HEADER.unpack_from(content)
    if magic != _MAGIC or not 0 <= count <= version.relmap_entries_max:
        raise ValueError(f"a relation map has magic {magic:#x} and {count} entries")
    crc_at = _HEADER.size + _ENTRY.size * version.relmap_entries_max
    if _CRC.unpack_from(content, crc_at)[0] != crc32c(content[:crc_at]):
        raise ValueError("a relation map has a wrong checksum")
    end = _HEADER.size + _ENTRY.size * count
    return dict(_ENTRY.iter_unpack(content[_HEADER.size : end]))


def parse_update(data: bytes, version: WalVersion) -> RelationMapUpdate:
    """Parse the main data of XLOG_RELMAP_UPDATE.

    Raises:
        ValueError: it contradicts itself.
    """
    if len(data) < _UPDATE.size:
        raise ValueError("a relation map update is cut short")
    database_oid, tablespace_oid, size = _UPDATE.unpack_from(data)
    if size != len(data) - _UPDATE.size:
        raise ValueError(f"a relation map update says {size} bytes and has {len(data)}")
    return RelationMapUpdate(
        database_oid, tablespace_oid, parse_map_file(data[_UPDATE.size :], version)
    )
