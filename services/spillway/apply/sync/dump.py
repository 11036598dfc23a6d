"""Definitions of tables as the ``pg_dump`` of the source's version writes them: with their
sequences, constraints, indexes, triggers, rules, policies, statistics objects and comments.

A ``pg_dump`` is taken only if it is of the source's major: it knows all that there is, and nothing
that isn't. It writes text with a heading over each object, so that each can be tried by itself, and
what a target refuses is told by its name. Of tables that are chosen it leaves out schemas, types
and functions: the first two are made before from the catalog (:mod:`definitions`).

The password goes by the environment: every user of a machine reads command lines.

Source: _printTocEntry (src/bin/pg_dump/pg_backup_archiver.c)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import conninfo, sql

from spillway.errors import SourceError
from spillway.pg.conninfo import redact

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from spillway.apply.sync.states import TableName

#: Where packages put them, beside PATH.
_PLACES: Final = ("/usr/lib/postgresql/{}/bin/pg_dump", "/usr/pgsql-{}/bin/pg_dump")
_TIMEOUT_S: Final = 300.0
#: Of names on a command line; the system has room for 2 MiB.
_NAMES_BYTES_MAX: Final = 1 << 20
_HEADING: Final = re.compile(
    r"^--\n-- Name: (?P<name>.*?); Type: (?P<type>[A-Z ]+); Schema: (?P<schema>.*?); Owner:.*\n"
    r"--\n",
    re.MULTILINE,
)
#: psql's, around all of it.
_RESTRICT: Final = re.compile(r"^\\(?:un)?restrict .*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PgDump:
    """A program, and its version as it says it."""

    path: str
    version: str


def find(major: int, wanted: str | None) -> PgDump | None:
    """Return a pg_dump of *major*, if there is one.

    Args:
        major: the source's.
        wanted: programs, with ``:`` between them, that are looked at in place of PATH's and those
            of packages; ``off``: none is taken.
    """
    if wanted is None:
        places = [shutil.which("pg_dump") or "", *(place.format(major) for place in _PLACES)]
    else:
        places = [] if wanted == "off" else wanted.split(os.pathsep)
    for path in places:
        if not path or not os.access(path, os.X_OK):
            continue
        try:
            said = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=10.0, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        version = re.search(r"\b([0-9]+)[.0-9a-z]*", said)
        if version is not None and int(version[1]) == major:
            return PgDump(path, version[0])
    return None


def definitions(
    program: PgDump, source: str, tables: Collection[TableName]
) -> Iterator[tuple[str, str]]:
    """Yield what makes *tables*: what each object is, ``table public.orders`` for one, and its
    statements, in an order in which each finds what it needs. search_path has to be empty.

    Args:
        program: of the source's major.
        source: a libpq connection string.
        tables: by their names on the source.

    Raises:
        SourceError: it failed, or would have too much to read on its command line.
    """
    given: dict[str, Any] = conninfo.conninfo_to_dict(source)
    password = given.pop("password", None)
    secret = {"PGPASSWORD": str(password)} if password else {}
    # A name in quotes is no pattern.
    names = [f"--table={sql.Identifier(*key).as_string()}" for key in sorted(tables)]
    if sum(map(len, names)) > _NAMES_BYTES_MAX:
        raise SourceError(
            f"{len(names)} tables are too many for one pg_dump",
            hint="Their definitions are taken from the catalog.",
        )
    command = [
        program.path, "--schema-only", "--no-owner", "--no-privileges", "--no-tablespaces",
        "--no-security-labels", "--no-publications", "--lock-wait-timeout=30s", "--no-password",
        *names, f"--dbname={conninfo.make_conninfo(**given)}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **secret},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(
            f"pg_dump can't be run: {type(error).__name__}",
            hint="Definitions are taken from the catalog.",
        ) from None
    if done.returncode:
        said = " ".join(redact(done.stderr, source).split())
        raise SourceError(
            f"pg_dump failed: {said[-500:]}", hint="Definitions are taken from the catalog."
        )
    return _parts(_RESTRICT.sub("", done.stdout))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        schema = "" if heading["schema"] == "-" else f"{heading['schema']}."
        end = len(text) if following is None else following.start()
        yield f"{heading['type'].lower()} {schema}{heading['name']}", text[heading.end() : end]
