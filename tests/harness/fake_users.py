"""Users in memory: the real registry on a table that is a dictionary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from spillway.errors import DuplicateName, UnknownUser
from spillway.users.registry import Users

if TYPE_CHECKING:
    from spillway.store.metadata import MetadataStore
    from spillway.store.rows import UserRow


class _Table:
    """What :class:`spillway.store.users.UserTable` does."""

    def __init__(self) -> None:
        self._rows: dict[str, UserRow] = {}

    async def add(self, row: UserRow) -> UserRow:
        if row.name in self._rows:
            raise DuplicateName(f'user "{row.name}" already exists')
        self._rows[row.name] = row
        return row

    async def all(self) -> list[UserRow]:
        return [self._rows[name] for name in sorted(self._rows)]

    async def get(self, name: str) -> UserRow:
        if name not in self._rows:
            raise UnknownUser(name)
        return self._rows[name]

    async def update(self, name: str, **changes: Any) -> UserRow:
        self._rows[name] = replace(await self.get(name), **changes)
        return self._rows[name]

    async def remove(self, name: str) -> None:
        await self.get(name)
        del self._rows[name]


def fake_users() -> Users:
    return Users(cast("MetadataStore", SimpleNamespace(users=_Table())))
