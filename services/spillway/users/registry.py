"""The users of a service, and what each may do.

A user may replicate from the databases that it is for, of these all slots or only those that it
names. Making and dropping slots, and SQL on the source, are rights of their own. A login asks the
metadata store, so that who is changed or dropped in one process is so in all; a connection that is
open keeps what it began with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.errors import InvalidRequest
from spillway.store.rows import UserRow
from spillway.users.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.store.metadata import MetadataStore

_NAME_BYTES_MAX: Final = 63
_ALL: Final = "*"


class Users:
    """Makes, changes and finds users. Used on the event loop."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._table = metadata.users

    async def create(
        self,
        name: str,
        *,
        password: str | None = None,
        verifier: str | None = None,
        databases: Sequence[str],
        slots: Sequence[str] | None = None,
        manage_slots: bool = False,
        run_sql: bool = False,
    ) -> UserRow:
        """Make a user.

        Args:
            name: what clients give as ``user``.
            password: of which a verifier is made; or else
            verifier: as ``pg_authid.rolpassword`` has one.
            databases: ``source/database``, ``source/*`` or ``*``, at least one.
            slots: the only ones that the user may read; None: all of these databases.
            manage_slots: whether it may make and drop slots.
            run_sql: whether it may run SQL on the source, with the source's credential.

        Raises:
            InvalidRequest: something of it can't be.
            DuplicateName: the name is taken.
        """
        _check_name(name)
        row = UserRow(
            name=name,
            verifier=_verifier_text(password, verifier),
            databases=_checked_databases(databases),
            slots=None if slots is None else list(slots),
            manage_slots=manage_slots,
            run_sql=run_sql,
        )
        return await self._table.add(row)

    async def list(self) -> list[UserRow]:
        """Give every user, by name."""
        return await self._table.all()

    async def get(self, name: str) -> UserRow:
        """Give one user.

        Raises:
            UnknownUser: there is none of that name.
        """
        return await self._table.get(name)

    async def alter(
        self,
        name: str,
        *,
        password: str | None = None,
        verifier: str | None = None,
        **changes: Any,
    ) -> UserRow:
        """Change a user; *changes* are columns of :class:`UserRow`. Who is connected stays so.

        Raises:
            UnknownUser: there is none of that name.
            InvalidRequest: something of it can't be.
        """
        if password is not None or verifier is not None:
            changes["verifier"] = _verifier_text(password, verifier)
        if "databases" in changes:
            changes["databases"] = _checked_databases(changes["databases"])
        return await self._table.update(name, **changes)

    async def drop(self, name: str) -> None:
        """Forget a user; who is connected stays so.

        Raises:
            UnknownUser: there is none of that name.
        """
        await self._table.remove(name)


def may_use_database(user: UserRow, source: str, database: str) -> bool:
    """Say whether *user* may connect to a database of a source."""
    wanted = {f"{source}/{database}", f"{source}/{_ALL}", _ALL}
    return not wanted.isdisjoint(user.databases)


def may_use_source(user: UserRow, source: str) -> bool:
    """Say whether *user* may connect to some database of a source."""
    return any(
        database == _ALL or database.partition("/")[0] == source for database in user.databases
    )


def may_use_slot(user: UserRow, slot_name: str) -> bool:
    """Say whether *user* may read a slot of a database that it may connect to."""
    return user.slots is None or slot_name in user.slots


def _check_name(name: str) -> None:
    if not name or len(name.encode()) > _NAME_BYTES_MAX or not name.isprintable():
        raise InvalidRequest(
            f"a user's name has from 1 to {_NAME_BYTES_MAX} bytes that can be printed",
            hint="Choose another name.",
        )


def _checked_databases(databases: Sequence[str]) -> list[str]:
    for entry in databases:
        source, slash, database = entry.partition("/")
        if entry != _ALL and not (source and slash and database):
            raise InvalidRequest(
                f'"{entry}" names no databases',
                hint="Write source/database, source/* for all of a source, or * for all there are.",
            )
    if not databases:
        raise InvalidRequest(
            "a user must be for some database", hint="Give databases: source/database for one."
        )
    return list(databases)


def _verifier_text(password: str | None, verifier: str | None) -> str:
    if (password is None) == (verifier is None):
        raise InvalidRequest(
            "a user needs a password or a verifier, and not both",
            hint="Give password, or what pg_authid.rolpassword has as verifier.",
        )
    if verifier is not None:
        return str(Verifier.parse(verifier))
    if not password:
        raise InvalidRequest("the password is empty", hint="Give one that has characters.")
    return str(Verifier.of_password(password))
