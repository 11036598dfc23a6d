"""Generate the gRPC modules of proto/ into services/spillway/v1 (``make proto``).

The message Slot in slots.proto is written first, from the table of a slot's columns: each has its number there.

protoc names Python modules by the path of the .proto file, ``spillway.v1.…``, and that is where they live: stubs that a
user generates have the same name, and either does for both.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from importlib import resources
from pathlib import Path
from typing import Final

from grpc_tools import protoc

from spillway.declarations.slot_columns import SLOT_COLUMNS, SlotColumn

ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT: Final = ROOT / "services" / "spillway" / "v1"
SLOTS: Final = ROOT / "proto" / "spillway" / "v1" / "slots.proto"

#: What a column's type is in a message. 0 is no position, so positions are never optional; nor is what is a message itself.
_SCALARS: Final = {
    "name": "string", "text": "string", "bool": "bool", "int4": "int32", "int8": "int64", "oid": "uint32",
    "xid": "uint64", "float8": "double",
}  # fmt: skip
_OTHERS: Final = {
    "pg_lsn": "fixed64",
    "timestamptz": "google.protobuf.Timestamp",
    "jsonb": "map<string, string>",
}
_COMMENT_WIDTH: Final = 116


def slots_contract(text: str) -> str:
    """Return slots.proto with the message Slot as the columns say."""
    message = "message Slot {\n" + "\n".join(_fields()) + "\n}\n"
    return re.sub(
        r"^message Slot \{\n.*?^\}\n", lambda _: message, text, flags=re.DOTALL | re.MULTILINE
    )


def _fields() -> list[str]:
    # The line that is empty keeps protoc from taking that for what is said of the first field.
    lines = [
        "  // Written by scripts/generate_proto.py from spillway/declarations/slot_columns.py.",
        "",
    ]
    for column in SLOT_COLUMNS:
        if column.number is not None:
            said = textwrap.wrap(_description(column), _COMMENT_WIDTH)
            lines += [f"  // {line}" for line in said]
            lines.append(f"  {_type(column)} {column.name} = {column.number};")
    return lines


def _description(column: SlotColumn) -> str:
    """Say what it is, and what stands for null, in the words of messages."""
    if not column.null:
        return column.meaning
    zero = column.zero_is_null or column.type == "pg_lsn"
    empty = "0" if column.type == "pg_lsn" else "Empty"
    return f"{column.meaning} {empty if zero else 'Not set'}: {column.null}"


def _type(column: SlotColumn) -> str:
    if column.type == "record":
        return column.name.capitalize()
    if column.type in _OTHERS:
        return _OTHERS[column.type]
    is_optional = column.null is not None and not column.zero_is_null
    return ("optional " if is_optional else "") + _SCALARS[column.type]


def generate(output: Path) -> list[Path]:
    """Write the modules into *output* and return them."""
    sources = sorted((ROOT / "proto" / "spillway" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        well_known = resources.files("grpc_tools") / "_proto"
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"-I{well_known}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                f"--grpc_python_out={scratch}",
                *(str(source) for source in sources),
            ]
        )
        if status != 0:
            sys.exit(status)
        written = []
        for made in sorted(Path(scratch).rglob("*_pb2*.py*")):
            target = output / made.name
            target.write_text(made.read_text())
            written.append(target)
    return written


if __name__ == "__main__":
    SLOTS.write_text(slots_contract(SLOTS.read_text()))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for path in generate(OUTPUT):
        print(path.relative_to(ROOT))
