"""Generate the gRPC modules of proto/ into services/spillway/v1 (``make proto``).

protoc names Python modules by the path of the .proto file, ``spillway.v1.…``, and that is where they live: stubs that a
user generates have the same name, and either does for both.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from grpc_tools import protoc

ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT: Final = ROOT / "services" / "spillway" / "v1"


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
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for path in generate(OUTPUT):
        print(path.relative_to(ROOT))
