"""Users in the metadata store: rows of the table ``users``, read afresh at each login.

They belong to the service and not to a source, so no lease guards them: each write is one
statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, delete, insert, select, update

from spillway.errors import DuplicateName, UnknownUser
from spillway.store.database import ConstraintViolation
from spillway.store.rows import UserRow
from spillway.store.schema import USERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Executable
    from sqlalchemy.engine import Connection, RowMapping

    from spillway.store.database import Database

#: What an update may name.
_CHANGEABLE: Final = frozenset({"verifier", "databases", "slots", "manage_slots", "run_sql"})

#: Built once: each login runs it.
_GET: Final = select(USERS).where(USERS.c.name == bindparam("of_name", type_=USERS.c.name.type))


class UserTable:
    """The users. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: UserRow) -> UserRow:
        """Remember a user.

        Raises:
            DuplicateName: the name is taken.
        """
        values = {column.name: getattr(row, column.name) for column in USERS.c}
        try:
            await self._database.write(
                lambda connection: connection.execute(insert(USERS).values(values))
            )
        except ConstraintViolation as error:
            raise DuplicateName(
                f'user "{row.name}" already exists',
                hint="Choose another name, or change that user.",
                user=row.name,
            ) from error
        return row

    async def all(self) -> list[UserRow]:
        """Give every user, by name."""
        found = await self._rows(select(USERS).order_by(USERS.c.name))
        return [UserRow(**columns) for columns in found]

    async def get(self, name: str) -> UserRow:
        """Give one user.

        Raises:
            UnknownUser: there is none of that name.
        """
        found = await self._rows(_GET, {"of_name": name})
        if not found:
            raise UnknownUser(name)
        return UserRow(**found[0])

    async def update(self, name: str, **changes: Any) -> UserRow:
        """Change columns of a user, named as in :class:`UserRow`, and give it as it is then.

        Raises:
            UnknownUser: there is none of that name.
        """
        if not _CHANGEABLE.issuperset(changes):
            msg = f"a user has no columns {sorted(set(changes) - _CHANGEABLE)} that may change"
            raise TypeError(msg)
        if not changes:
            return await self.get(name)
        statement = update(USERS).where(USERS.c.name == name).values(changes).returning(*USERS.c)

        def change(connection: Connection) -> RowMapping | None:
            return connection.execute(statement).mappings().one_or_none()

        found = await self._database.write(change)
        if found is None:
            raise UnknownUser(name)
        return UserRow(**found)

    async def remove(self, name: str) -> None:
        """Forget a user.

        Raises:
            UnknownUser: there is none of that name.
        """
        statement = delete(USERS).where(USERS.c.name == name)
        removed = await self._database.write(
            lambda connection: connection.execute(statement).rowcount
        )
        if not removed:
            raise UnknownUser(name)

    async def _rows(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> list[RowMapping]:
        return await self._database.read(
            lambda connection: list(connection.execute(statement, parameters).mappings())
        )
