"""Data directories by copy: initdb runs once for each major and its options in a process, and a
server's directory is a copy with a system identifier of its own.

initdb takes most of a second of CPU and a copy a tenth of it, and tests that need a server of their
own are many. But for its identifier a copy is what initdb would have made again. The identifier
stands in pg_control, which has a checksum, and in the long header of each WAL segment's first page,
which has none; the checksum of what stands in WAL begins behind the page's header.

Source: src/include/catalog/pg_control.h (ControlFileData), src/include/access/xlog_internal.h
(XLogLongPageHeaderData)
"""

from __future__ import annotations

import atexit
import secrets
import shutil
import struct
import subprocess
import time
from functools import cache
from typing import TYPE_CHECKING

from spillway._kernels.pg.crc32c import crc32c
from spillway.demo.private_postgres import PrivatePostgres

if TYPE_CHECKING:
    from pathlib import Path

# ControlFileData: the identifier is its first member, the checksum its last, behind these.
_LEAST_SIZE_OF_CONTROL = 128
_CONTROL_END = 512
# XLogLongPageHeaderData
_WAL_SYSTEM_ID_AT = 24


@cache
def template(bin_directory: Path, initdb_options: tuple[str, ...]) -> Path:
    """Return a data directory that initdb has made and that no server has run on; it is deleted
    when the process ends.
    """
    made = PrivatePostgres(bin_directory, initdb_options=initdb_options)
    atexit.register(shutil.rmtree, made.directory, ignore_errors=True)
    made.initialise()
    return made.data_directory


def copy(source: Path, target: Path) -> None:
    """Make *target*, a data directory that no server runs on, of :func:`template`'s *source*."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    # As the server makes one: seconds above, and what tells two of the same second apart.
    system_id = struct.pack("<II", secrets.randbits(32), int(time.time()))
    control = target / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    former = bytes(content[:8])
    checksum_at = next(
        at
        for at in range(_LEAST_SIZE_OF_CONTROL, _CONTROL_END, 4)
        if struct.unpack_from("<I", content, at)[0] == crc32c(bytes(content[:at]))
    )
    content[:8] = system_id
    struct.pack_into("<I", content, checksum_at, crc32c(bytes(content[:checksum_at])))
    with control.open("r+b") as file:
        file.write(content)
    for segment in (target / "pg_wal").iterdir():
        if not segment.is_file():
            continue
        with segment.open("r+b") as file:
            file.seek(_WAL_SYSTEM_ID_AT)
            # A segment made ahead of its use has no header yet.
            if file.read(8) == former:
                file.seek(_WAL_SYSTEM_ID_AT)
                file.write(system_id)
