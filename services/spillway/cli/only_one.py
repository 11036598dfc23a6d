"""Which source and database a command means that names none: the only one there is.

Where there are several, the command is refused and says which: what is looked at is never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.cli.connection import asking
from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.cli.rest_client import RestClient


#: What the options say of it.
SOURCE_HELP: Final = "The source; the only one, if there is one."
DATABASE_HELP: Final = "The database; the only one of the source that is decoded, if there is one."


def meant(source: str | None, database: str | None, *, begins: bool = False) -> tuple[str, str]:
    """Return the source and the database that are meant, as :func:`source_and_database` does, of
    the service that counts.
    """
    if source is not None and database is not None:
        return source, database
    with asking() as client:
        return source_and_database(client, source, database, begins=begins)


def source_and_database(
    client: RestClient, source: str | None, database: str | None, *, begins: bool = False
) -> tuple[str, str]:
    """Return the source and the database that are meant; the service is asked if one is not given.

    Args:
        client: of the service.
        source: as it was given.
        database: the same.
        begins: the command has a database decoded that isn't yet.

    Raises:
        InvalidRequest: there is none, or there are several.
        NotFound: there is no source of that name.
    """
    if source is not None and database is not None:
        return source, database
    if source is not None:
        found = client.call("GET", "sources", source)
    else:
        sources = client.call("GET", "sources")["sources"]
        if not sources:
            raise InvalidRequest(
                "there is no source", hint="`spillway source add` adds one, with its DSN."
            )
        fitting = [one for one in sources if database is None or database in _decoded(one)]
        # Of a database that no source decodes, the service says so.
        name = _only("source", [one["name"] for one in fitting or sources], "")
        found = next(one for one in sources if one["name"] == name)
    if database is not None:
        return found["name"], database
    decoded = _decoded(found)
    if not decoded:
        raise InvalidRequest(
            f'no database of source "{found["name"]}" is decoded',
            hint="Name one, as the source has it: --database NAME."
            if begins
            else "Decoding of a database begins with its first slot: `spillway slot create`.",
        )
    return found["name"], _only("database", decoded, f' of source "{found["name"]}"')


def _decoded(source: dict[str, list[dict[str, str]]]) -> list[str]:
    return sorted(session["database"] for session in source["sessions"])


def _only(what: str, names: Sequence[str], where: str) -> str:
    if len(names) > 1:
        raise InvalidRequest(
            f"which {what} is meant is not said, and there are several{where}: {', '.join(names)}",
            hint=f"Name one: --{what} {names[0]}.",
        )
    return names[0]
