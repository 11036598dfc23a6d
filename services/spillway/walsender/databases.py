"""Which database of which source a client means by ``dbname``.

``source/database``, or the database alone where one source has it. What is decoded already is known
here; for anything else a source's server is asked, and then only when somebody connects.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError, UnknownDatabase, UnknownSource
from spillway.receiver.primary import find_database
from spillway.walsender.failures import WireError

if TYPE_CHECKING:
    from spillway.service.interface import EngineInterface
    from spillway.service.model import SourceInfo

_HINT: Final = "Write dbname=source/database."


@dataclass(frozen=True, slots=True)
class ServedDatabase:
    """A database of a source."""

    source: str
    #: empty on a connection for physical replication, which has none
    name: str
    server_version_num: int
    #: by PostgreSQL's name
    encoding: str

    @property
    def major(self) -> int:
        """The server's major version."""
        return self.server_version_num // 10_000


async def find(engine: EngineInterface, dbname: str) -> ServedDatabase:
    """Return what *dbname* means.

    Raises:
        WireError: nothing, or more than one thing; or the source can't be asked.
    """
    source_name, slash, database = dbname.partition("/")
    if slash:
        try:
            source = await engine.get_source(source_name)
        except UnknownSource:
            raise _unknown(dbname, f'There is no source "{source_name}".') from None
        found = await _in_source(engine, source, database)
        if found is None:
            raise _unknown(dbname, f'Source "{source_name}" has no such database.')
        return found
    sources = await engine.list_sources()
    decoded = [source for source in sources if _decoded(source, dbname) is not None]
    candidates = decoded or sources
    having, failure = [], None
    for source in candidates:
        try:
            found = await _in_source(engine, source, dbname)
        except WireError as error:
            failure = error
        else:
            having += [] if found is None else [found]
    if len(having) == 1:
        return having[0]
    if having:
        names = ", ".join(sorted(one.source for one in having))
        raise _unknown(dbname, f"Several sources have a database of that name: {names}.")
    if failure is not None:
        raise failure
    raise _unknown(dbname, "No source has a database of that name.")


async def find_source(engine: EngineInterface, dbname: str) -> ServedDatabase:
    """Return the source that a connection without a database is about: the one that *dbname*
    begins with or is, or the only one there is. Clients of physical replication say anything there.

    Raises:
        WireError: there is none, or more than one.
    """
    sources = await engine.list_sources()
    wanted = dbname.partition("/")[0]
    found = [source for source in sources if source.name == wanted] or sources
    if len(found) != 1:
        raise _unknown(dbname, "There is no such source." if found else "There is no source.")
    return ServedDatabase(found[0].name, "", found[0].server_version_num, "SQL_ASCII")


def _unknown(dbname: str, detail: str) -> WireError:
    return WireError(
        "3D000", f'database "{dbname}" does not exist', detail=detail, hint=_HINT, fatal=True
    )


def _decoded(source: SourceInfo, database: str) -> str | None:
    """Return the encoding of a database that is decoded; None: it isn't."""
    for session in source.sessions:
        if session.database == database:
            return session.encoding
    return None


async def _in_source(
    engine: EngineInterface, source: SourceInfo, database: str
) -> ServedDatabase | None:
    encoding = _decoded(source, database)
    if encoding is None:
        try:
            dsn = engine.conninfo(source.name, database)
            asked = await asyncio.to_thread(find_database, dsn, database)
        except UnknownDatabase:
            return None
        except SpillwayError as error:
            raise WireError("57P03", error.message, fatal=True) from None
        encoding = asked.encoding
    return ServedDatabase(source.name, database, source.server_version_num, encoding)
