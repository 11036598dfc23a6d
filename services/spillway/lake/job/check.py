"""``spillway lake check``: whether a lake can be filled, looked at before Spark is started for it:
everything that is in the way is said at once.

Nothing is left behind: no directory is made, and of a bucket an object that is written is removed.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import threading
from contextlib import closing
from importlib import util
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spillway.consumer.connect import connect, identity_of
from spillway.consumer.obstacles import as_one
from spillway.errors import (
    JavaMissing,
    LakeError,
    LakeTableConflict,
    SparkMissing,
    SpillwayError,
    UnknownSlot,
)
from spillway.installation import how_to_install
from spillway.lake import jars
from spillway.lake.catalogs import registration
from spillway.lake.job.run import check_options
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.state import position, source_history
from spillway.lake.tables.iceberg import catalog as iceberg_catalog
from spillway.storage.place import ObjectPath, replace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spillway.lake.job.run import JobSettings

#: Spark 4's.
_JAVA_LEAST: Final = 17
_JAVA_TIMEOUT_S: Final = 15
_CATALOG_TIMEOUT_S: Final = 5
#: below what the service waits for this program
_STORE_TIMEOUT_S: Final = 20
#: Files that are said to lie beside a lake.
_NAMED_MAX: Final = 3


def check_lake(settings: JobSettings) -> list[str]:
    """Look at where a lake is to be, and at what its job needs.

    Returns:
        what is good to know and in nobody's way.

    Raises:
        SpillwayError: of the one thing that is in the way; of several, the first one's kind, with
            what all of them say.
    """
    # Whose options can't be has no place that could be looked at.
    check_options(settings)
    notes: list[str] = []
    problems: list[SpillwayError] = []
    looks: tuple[Callable[[JobSettings], Iterator[str]], ...] = (_programs, _place, _catalog)
    for look in looks:
        try:
            notes += look(settings)
        except SpillwayError as error:
            problems.append(error)
    if problems:
        raise as_one(problems, "of the lake")
    return notes


def _programs(settings: JobSettings) -> Iterator[str]:
    """Look for what Spark is made of."""
    if util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed", hint=how_to_install("spark"))
    java = jars.java_command()
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{java} can't be run: {error}", hint=jars.JAVA_HINT) from error
    version = re.search(r'version "(\d+)', told.stderr)
    if version is None or int(version[1]) < _JAVA_LEAST:
        first = (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[0]
        raise JavaMissing(f"{java} is no Java {_JAVA_LEAST} or later: {first}", hint=jars.JAVA_HINT)
    wanted: tuple[jars.Jar, ...] = jars.DELTA if settings.table_format == "delta" else ()
    if isinstance(settings.path, ObjectPath):
        wanted += jars.OF_STORES[settings.path.scheme]
    if wanted:
        jars.verified(settings.jars or jars.default_folder(), wanted)
    yield from ()


def _place(settings: JobSettings) -> Iterator[str]:
    """Look whether it can be written, and whose it is."""
    path = settings.path
    if isinstance(path, ObjectPath):
        _check_bucket(path)
    else:
        _check_directory(path)
        if not path.is_dir():
            return
    if position.load(path) is not None:
        _check_own(settings)
        return
    names = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in names if name in (CURRENT, HISTORY)]
    if foreign:
        raise LakeTableConflict(
            f"{path} has a directory {foreign[0]!r} that is no lake's of ours",
            hint="Name an empty directory, or one that is not there yet.",
        )
    if others := [name for name in names if name != "_spillway"]:
        more = f" and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else ""
        yield f"{path} has other files, which stay: {', '.join(others[:_NAMED_MAX])}{more}"


def _check_bucket(path: ObjectPath) -> None:
    """Write an object and remove it. A job waits for a store that is away; who asks whether there
    is one does not.
    """
    probe = path / "_spillway" / f"check-{secrets.token_hex(8)}"
    told: list[SpillwayError | None] = []

    def ask() -> None:
        try:
            replace_text(probe, "")
            probe.unlink(missing_ok=True)
        except SpillwayError as error:
            told.append(error)
        else:
            told.append(None)

    # What hangs there ends with this program.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_STORE_TIMEOUT_S)
    if not told:
        raise LakeError(
            f"the object store at {path.store.endpoint() or path.store.name} has not answered for "
            f"{_STORE_TIMEOUT_S} s",
            hint=path.store.hint,
        )
    if told[0] is not None:
        raise told[0]


def _check_directory(path: Path) -> None:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise LakeError(
            f"the directory {path} can't be made: {there} is no directory",
            hint="Name a directory, or one that can be made.",
        )
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise LakeError(
            f"the directory {path} can't be written: {there} is not for user id {os.geteuid()}, "
            "as which the service and its jobs run",
            hint=f"Name another one, or, as root: install -d -o {os.geteuid()} {path}",
        )


def _check_own(settings: JobSettings) -> None:
    """Check that the lake that is there is the slot's."""
    with closing(connect(settings.options())) as client:
        try:
            slot = client.position(settings.slot)
        except UnknownSlot:
            raise LakeTableConflict(
                f"there is a lake at {settings.path} already, of a slot that is gone or another "
                "one's",
                hint="Name a path of its own. What is at this one can be moved away, or read on.",
            ) from None
        source = identity_of(client, slot.source)
    lake = position.check(settings.path, settings.table_format, slot, has_checkpoint=False)
    source_history.check(settings.path, lake, slot, source)


def _catalog(settings: JobSettings) -> Iterator[str]:
    """Ask the catalog that is named, if one is."""
    choice = settings.catalog_choice
    if choice.catalog is not None:
        iceberg_catalog.check_reachable(settings.path, choice)
    address = settings.register_in
    if address == registration.GLUE:
        yield "Glue is not asked before its first table is registered"
    elif address is not None:
        _check_listens(address)


def _check_listens(address: str) -> None:
    """Check that one of a metastore's addresses answers."""
    said = []
    for each in address.split(","):
        at = urlsplit(each)
        try:
            with socket.create_connection((at.hostname or "", at.port or 9083), _CATALOG_TIMEOUT_S):
                return
        except (OSError, ValueError) as error:
            said.append(f"{each}: {error}")
    raise LakeError(
        f"the metastore does not answer: {'; '.join(said)}",
        hint="Is it running, and is that its Thrift address, thrift://host:9083?",
    )
