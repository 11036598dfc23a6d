"""Whose a row of the target is: the origin and the time of the transaction that wrote it.

Known where the target has track_commit_timestamp, is of 14 or later, and this session has an origin
of its own (without one its own rows can't be told from local ones). Ours are the session's origin
and those whose names begin with its name and ``_``: the sessions that copied tables or repaired
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.exact.raw import raw

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_MAJOR_OF_ORIGINS: Final = 14
_WRITTEN: Final = (
    b"SELECT timestamp, roident::int8 FROM pg_catalog.pg_xact_commit_timestamp_origin($1::xid)"
)
_NAMES: Final = b"SELECT roident::int8, roname FROM pg_catalog.pg_replication_origin"


@dataclass(frozen=True, slots=True)
class Written:
    """Who committed a row, and when; the name is "" for the target itself, None if it is gone."""

    name: str | None
    committed_at: datetime
    is_ours: bool


class Origins:
    """Origins of the target's rows.

    Attributes:
        are_known: whether any row's is.
    """

    def __init__(self, connection: Connection, major: int, own: str | None) -> None:
        self._connection = connection
        self._own = own
        self._names: dict[int, str] = {}
        row = connection.execute(
            "SELECT pg_catalog.current_setting('track_commit_timestamp')::bool"
        ).fetchone()
        self.keeps_times = bool(row and row[0])
        self.are_known = self.keeps_times and major >= _MAJOR_OF_ORIGINS and own is not None
        self._has_function = major >= _MAJOR_OF_ORIGINS

    def is_ours(self, number: int) -> bool:
        """Whether the origin with that number is ours."""
        if number == 0:
            return False
        name = self._name(number)
        own = self._own
        return own is not None and name is not None and (name == own or name.startswith(f"{own}_"))

    def of(self, xmin: bytes) -> Written | None:
        """Who wrote a row whose xmin that is; None where it isn't known, and for what this very
        transaction wrote.
        """
        if not self.keeps_times:
            return None
        if not self._has_function:
            return self._only_time(xmin)
        timestamp, number = raw(self._connection, _WRITTEN, [xmin]).fetchall()[0]
        if timestamp is None or number is None:
            return None
        if not self.are_known:
            return Written(self._name(number) if number else "", timestamp, is_ours=True)
        return Written(
            self._name(number) if number else "", timestamp, is_ours=self.is_ours(number)
        )

    def _only_time(self, xmin: bytes) -> Written | None:
        query = b"SELECT pg_catalog.pg_xact_commit_timestamp($1::xid)"
        ((timestamp,),) = raw(self._connection, query, [xmin]).fetchall()
        return None if timestamp is None else Written(None, timestamp, is_ours=True)

    def _name(self, number: int) -> str | None:
        if number not in self._names:
            self._names = {row[0]: row[1] for row in raw(self._connection, _NAMES).fetchall()}
        return self._names.get(number)
