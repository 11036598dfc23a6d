"""Types that store oids, xids or privileges and print what those stand for.

The names behind regclass, regproc and their kin are in catalogs; descriptors hold those that count
(``catalog/object_names``), and the kernel ``values/text/container`` prints them. What is here
prints values whose descriptor has none, from tools that have no catalog at hand: the number, which
PostgreSQL reads as the same value.

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
