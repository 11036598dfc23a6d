"""The original wal2json, as Debian packages it for PostgreSQL 15, for a server of the tests' own.

``apt-get download`` gets the package without being root: with the machine's package lists or, where
there are none, with lists of our own below ``<cache>/wal2json``. Nothing is installed: the library
is unpacked there, copied into a cluster's data directory, and found by ``dynamic_library_path``. A
library for Debian's PostgreSQL 15 loads into any PostgreSQL 15 (the module magic has the major
version) if C library and server have the functions that it uses, which :func:`load_into` tries.

Where it is not to be had (no apt, a release without the package) an error says why; what the
original wrote was recorded in tests/golden/wal2json, and is compared everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

import psycopg

from harness.servers import cache_directory

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

MAJOR = 15
PACKAGE = "postgresql-15-wal2json"
#: What is compared with; another release differs.
VERSION = "2.5"


class NotAvailable(Exception):
    """The original can't be had here; the text says why."""


@cache
def original() -> Path:
    """Return where wal2json.so is; gets it when it is not there yet.

    Raises:
        NotAvailable: it can't be had on this machine.
    """
    home = cache_directory() / "wal2json"
    library = home / VERSION / "wal2json.so"
    if not library.exists():
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise NotAvailable(f"there is no {program}")
        home.mkdir(parents=True, exist_ok=True)
        package = _download(home)
        version = _run("dpkg-deb", "--field", str(package), "Version").strip()
        if not version.startswith(VERSION + "-"):
            raise NotAvailable(f"{PACKAGE} is {version} here, not {VERSION}")
        unpacked = home / f"unpacked.{os.getpid()}"
        _run("dpkg-deb", "--extract", str(package), str(unpacked))
        (found,) = unpacked.rglob("wal2json.so")
        library.parent.mkdir(exist_ok=True)
        found.rename(library)
        shutil.rmtree(unpacked)
    return library


def load_into(database: Database) -> None:
    """Let *database*'s sessions find the original from now on.

    Raises:
        NotAvailable: it can't be had on this machine, or this server can't load it.
    """
    modules = database.cluster.data_directory / "wal2json"
    modules.mkdir(exist_ok=True)
    modules.chmod(0o755)
    copy = modules / "wal2json.so"
    if not copy.exists():
        shutil.copyfile(original(), copy)
        copy.chmod(0o644)
    database.execute(
        f"ALTER DATABASE \"{database.name}\" SET dynamic_library_path = '$libdir:{modules}'"
    )
    try:
        database.execute("LOAD 'wal2json'")
    except psycopg.errors.UndefinedFile as error:
        raise NotAvailable(str(error)) from None


def _download(home: Path) -> Path:
    own = home / "apt"
    (own / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (own / "cache").mkdir(exist_ok=True)
    own_lists = ["-o", f"Dir::State::lists={own / 'lists'}", "-o", f"Dir::Cache={own / 'cache'}"]
    failure = None
    for options in ([], own_lists):
        try:
            if options:
                _run("apt-get", *options, "update", directory=home)
            _run("apt-get", *options, "download", PACKAGE, directory=home)
            break
        except subprocess.CalledProcessError as error:
            failure = error
    else:
        assert failure is not None
        last = (failure.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotAvailable(f"apt-get could not download {PACKAGE}: {last}")
    return max(home.glob(f"{PACKAGE}_*.deb"), key=lambda path: path.stat().st_mtime)


def _run(*command: str, directory: Path | None = None) -> str:
    completed = subprocess.run(
        command,
        check=True,
        cwd=directory,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
        timeout=300,
    )
    return completed.stdout
