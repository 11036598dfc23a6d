"""PostgreSQL's own logical decoding: what ours must equal, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.cluster import Database


class OracleChange(NamedTuple):
    """A row of pg_logical_slot_peek_changes; the LSN as PostgreSQL prints it."""

    lsn: str
    xid: int
    data: str


@dataclass(frozen=True)
class LogicalSlot:
    """A logical slot on the server itself. It goes with its database at the end of the test."""

    database: Database
    name: str
    #: of the sessions that peek and get: logical_decoding_work_mem for one
    settings: Mapping[str, str] = field(default_factory=dict)

    def peek(
        self,
        options: Mapping[str, str] | None = None,
        *,
        upto_lsn: str | None = None,
        upto_nchanges: int | None = None,
    ) -> list[OracleChange]:
        return self._changes("pg_logical_slot_peek_changes", options, upto_lsn, upto_nchanges)

    def get(
        self,
        options: Mapping[str, str] | None = None,
        *,
        upto_lsn: str | None = None,
        upto_nchanges: int | None = None,
    ) -> list[OracleChange]:
        return self._changes("pg_logical_slot_get_changes", options, upto_lsn, upto_nchanges)

    def peek_binary(
        self, options: Mapping[str, str], *, upto_lsn: str | None = None
    ) -> list[OracleChange]:
        """As :meth:`peek`, for a plugin whose messages are bytes; ``data`` is their hexadecimal
        form.
        """
        return self._changes("pg_logical_slot_peek_binary_changes", options, upto_lsn, None)

    def drop(self) -> None:
        self.database.query("SELECT pg_drop_replication_slot(%s)", [self.name])

    def _changes(
        self,
        function: str,
        options: Mapping[str, str] | None,
        upto_lsn: str | None,
        upto_nchanges: int | None,
    ) -> list[OracleChange]:
        pairs = [text for pair in (options or {}).items() for text in pair]
        query = (
            f"SELECT lsn::text, xid::text::bigint, data::text FROM {function}"
            "(%s, %s::pg_lsn, %s::int, VARIADIC %s::text[])"
        )
        with self.database.connect() as connection:
            for name, value in self.settings.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            rows = connection.execute(query, [self.name, upto_lsn, upto_nchanges, pairs]).fetchall()
        return [OracleChange(*row) for row in rows]


def create_slot(
    database: Database,
    name: str = "oracle",
    plugin: str = "test_decoding",
    *,
    two_phase: bool = False,
    settings: Mapping[str, str] | None = None,
) -> LogicalSlot:
    """Create a logical slot on *database*; its name must be free in the whole cluster."""
    database.query(
        "SELECT pg_create_logical_replication_slot(%s, %s, false, %s)", [name, plugin, two_phase]
    )
    return LogicalSlot(database, name, settings or {})
