"""Types that store oids, xids or privileges and print what those stand for.

The names behind regclass, regproc and their kin are in catalogs, and those that a value was written under
are gone by the time it is delivered. PostgreSQL itself prints the number when there is no such object (any
more), and reads it back as the same value; so it is printed here always.

Source: regprocout and others (src/backend/utils/adt/regproc.c), pg_snapshot_out (xid8funcs.c)
"""

from __future__ import annotations

import struct


def reg_text(data: bytes) -> str:
    """Return the oid in decimal, ``-`` for InvalidOid."""
    (oid,) = struct.unpack("<I", data)
    return str(oid) if oid else "-"


def reg_operator_text(data: bytes) -> str:
    """Return the oid in decimal; regoper and regoperator print InvalidOid as ``0``."""
    (oid,) = struct.unpack("<I", data)
    return str(oid)


def snapshot_text(data: bytes) -> str:
    """Return ``xmin:xmax:xip,xip…`` of a pg_snapshot (txid_snapshot)."""
    count, xmin, xmax = struct.unpack_from("<IQQ", data)
    return f"{xmin}:{xmax}:" + ",".join(map(str, struct.unpack_from(f"<{count}Q", data, 20)))
