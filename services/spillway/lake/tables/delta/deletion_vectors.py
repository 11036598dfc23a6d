"""Deletion vectors of Delta tables: which rows of a file are gone, as the protocol stores it.

A vector is a bitmap of row positions in its data file, counted from 0
(:mod:`spillway.lake.tables.row_sets`).

A vector lies in a file beside the data, which has the vectors of all files that one commit
touched::

    deletion_vector_<uuid>.bin     1 byte: version 1
                                   each vector in its frame

The protocol has small ones in the log itself, too, as text. Such are read, and none is written:
VACUUM of Delta 4 for Spark stops at a table that has one (``scala.MatchError``).

What names it is the vector's *descriptor*, which the file's entry in the log carries. A file of
vectors is written once and never changed: the next commit that takes rows of a data file away
writes a new vector with all of them.

Memory: the vectors at hand.

Source: the Delta protocol, "Deletion Vectors".
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError
from spillway.lake.tables.row_sets import FRAME_BYTES, decode, encode, framed, unframed
from spillway.storage.durable_files import replace_file
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyroaring import BitMap

    from spillway.storage.place import LakePath

#: An action's ``deletionVector``.
Descriptor = dict[str, Any]
_FILE_VERSION: Final = b"\x01"
_UUID_LETTERS: Final = 20
#: RFC 1924's letters, which Python has, and Z85's, which the protocol wants.
_RFC_1924: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_TO_Z85: Final = bytes.maketrans(_RFC_1924, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _RFC_1924)


def to_z85(data: bytes) -> str:
    """Return *data* as letters, five for each four bytes; what lacks of the last four is zero."""
    padded = data + bytes(-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode()


def from_z85(text: str) -> bytes:
    """Return the bytes of *text*.

    Raises:
        ValueError: it is no such text.
    """
    return base64.b85decode(text.encode().translate(_FROM_Z85))


def write(table: LakePath, vectors: Mapping[str, BitMap]) -> dict[str, Descriptor]:
    """Make *vectors*, by their data files, durable; return what names each.

    They are in one new file of *table*, which nobody knows before a commit names it.

    Raises:
        OSError: the file can't be written; LakeError: the same, on object storage.
    """
    descriptors: dict[str, Descriptor] = {}
    content = bytearray(_FILE_VERSION)
    identity = uuid.uuid4()
    for file, bitmap in vectors.items():
        bitmap.run_optimize()
        data = encode(bitmap)
        descriptors[file] = {
            "storageType": "u",
            "pathOrInlineDv": to_z85(identity.bytes),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(bitmap),
        }
        content += framed(data)
    if len(content) > len(_FILE_VERSION):
        path = table / _file_name(identity)
        if isinstance(path, ObjectPath):
            with path.open_writer() as writer:
                writer.write(bytes(content))
        else:
            replace_file(path, bytes(content))
    return descriptors


def read(table: LakePath, descriptor: Descriptor) -> BitMap:
    """Return the vector that a descriptor names.

    Raises:
        LakeError: it is damaged, of a kind that nobody writes into our tables, or can't be read.
    """
    kind, name = descriptor["storageType"], descriptor["pathOrInlineDv"]
    where = "in the log"
    try:
        if kind == "i":
            return _checked(decode(from_z85(name)), descriptor)
        if kind != "u":
            raise ValueError(f"storage type {kind!r}")  # noqa: TRY301 - as below
        prefix, identity = name[:-_UUID_LETTERS], name[-_UUID_LETTERS:]
        folder = table / prefix if prefix else table
        path = folder / _file_name(uuid.UUID(bytes=from_z85(identity)))
        where = str(path)
        size, start = int(descriptor["sizeInBytes"]), int(descriptor.get("offset") or 1)
        stored = _range(path, start, size + FRAME_BYTES)
        return _checked(decode(unframed(stored, size)), descriptor)
    except (ValueError, KeyError, OSError) as damage:
        raise LakeError(
            f"a deletion vector of {table} ({where}) can't be read: {damage}",
            hint="Which rows of its file are gone is not known without it. Load the table anew: "
            "spillway lake load --resync --table TABLE, with the job's --slot and --lake.",
            relation=table.name,
        ) from damage


def _checked(bitmap: BitMap, descriptor: Descriptor) -> BitMap:
    if len(bitmap) != descriptor["cardinality"]:
        raise ValueError(f"it has {len(bitmap)} rows, and {descriptor['cardinality']} in the log")
    return bitmap


def _file_name(identity: uuid.UUID) -> str:
    return f"deletion_vector_{identity}.bin"


def _range(path: LakePath, start: int, length: int) -> bytes:
    if isinstance(path, ObjectPath):
        return path.read_range(start, length)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)
