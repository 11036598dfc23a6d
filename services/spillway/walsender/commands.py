"""Replication commands but START_REPLICATION, each with its answer: rows and a tag, in the form of
the source's own major.

Slots are the engine's; only SHOW asks the source. Its answers are remembered, so that a client can
connect again while the primary is down.

Source: IdentifySystem, CreateReplicationSlot, ReadReplicationSlot
(src/backend/replication/walsender.c)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import psycopg
from psycopg import sql

from spillway.errors import SlotActive, SourceError, UnknownSlot
from spillway.receiver.source_session import source_session
from spillway.service.model import SlotSpec
from spillway.users.registry import may_use_database, may_use_slot
from spillway.walsender.failures import WireError, not_supported
from spillway.walsender.grammar import (
    AlterSlot,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    NotServed,
    ReadSlot,
    Show,
)
from spillway.walsender.messages import INT4, INT8, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.service.model import SlotInfo
    from spillway.store.rows import UserRow
    from spillway.walsender.databases import ServedDatabase

_MAJOR_OF_INT8_TIMELINE: Final = 16
_MAJOR_OF_OPTION_LISTS: Final = 15
_WAIT_POLL_S: Final = 0.05
#: Settings that a user sees who may not run SQL: what clients of slots ask for, and nothing that
#: says more of the server.
_PLAIN_SETTINGS: Final = frozenset(
    {
        "client_encoding", "data_directory_mode", "integer_datetimes", "max_replication_slots", (
            "max_wal_senders"
        ),
        "server_encoding", "server_version", "server_version_num", "wal_level", (
            "wal_segment_size"
        ), (
            "wal_sender_timeout"
        ),
    }
)  # fmt: skip
#: What pg_recvlogical can't begin without, where the source was never asked and can't be now: the
#: mode that gives away least.
_UNASKED: Final = {"data_directory_mode": "0700"}


class Answer(NamedTuple):
    """A result: columns with the OIDs of their types, and at most one row; without columns, a tag
    alone.
    """

    columns: Sequence[tuple[str, int]] = ()
    row: Sequence[str | None] | None = None


class Commands:
    """What one connection's user may have done in its database.

    Args:
        engine: whose slots these are.
        user: whose rights count.
        database: where the connection is.
        settings: what sources have answered to SHOW, by source and name; shared by all connections.
        is_client_there: asked while something is waited for.
    """

    def __init__(
        self,
        engine: EngineInterface,
        user: UserRow,
        database: ServedDatabase,
        settings: dict[tuple[str, str], tuple[str, str]],
        is_client_there: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._user = user
        self._database = database
        self._settings = settings
        self._is_client_there = is_client_there
        #: temporary slots that were made here: they end with the connection
        self.temporary: set[str] = set()

    async def run(
        self,
        command: IdentifySystem | Show | CreateSlot | DropSlot | AlterSlot | ReadSlot | NotServed,
    ) -> Answer:
        """Do it.

        Raises:
            WireError: it can't be done, or is not served.
            SpillwayError: the engine can't.
        """
        match command:
            case IdentifySystem():
                return await self._identify_system()
            case Show():
                return await self._show(command.name)
            case CreateSlot():
                return await self._create(command)
            case DropSlot():
                return await self._drop(command)
            case ReadSlot():
                return await self._read(command.slot_name)
            case AlterSlot():
                raise not_supported(
                    "ALTER_REPLICATION_SLOT is not supported by this server",
                    "Drop the slot and create it with the properties that it shall have.",
                )
            case NotServed():
                raise not_supported(
                    f"{command.what} is not supported by this server: it serves logical "
                    "replication only",
                    "Connect to the source for physical replication.",
                )

    @property
    def major(self) -> int:
        """The source's, which answers are as of."""
        return self._database.major

    @property
    def may_run_sql(self) -> bool:
        """Whether the user may run SQL."""
        return self._user.run_sql

    def check_sql(self) -> None:
        """Insist that the user may run SQL.

        Raises:
            WireError: it may not.
        """
        if not self._user.run_sql:
            raise WireError(
                "42501",
                "permission denied to run SQL commands",
                hint="An administrator of the service gives the right: spillway user alter "
                "--run-sql.",
            )

    async def usable_slot(self, slot_name: str) -> SlotInfo:
        """Return a slot of this database that the user may read.

        Raises:
            UnknownSlot: there is none.
            WireError: it is of another database, or not for this user.
        """
        slot = await self._engine.get_slot(slot_name)
        self._check_rights(slot)
        if (slot.source, slot.database) != (self._database.source, self._database.name):
            raise WireError(
                "55000", f'replication slot "{slot_name}" was not created in this database'
            )
        return slot

    def _check_rights(self, slot: SlotInfo) -> None:
        if not (
            may_use_database(self._user, slot.source, slot.database)
            and may_use_slot(self._user, slot.slot_name)
        ):
            self._refuse("use", slot.slot_name)

    def _refuse(self, verb: str, slot_name: str) -> NoReturn:
        raise WireError(
            "42501",
            f'permission denied to {verb} replication slot "{slot_name}"',
            hint="An administrator of the service gives rights: spillway user alter.",
        )

    async def _identify_system(self) -> Answer:
        source = await self._engine.get_source(self._database.source)
        if source.flushed_lsn is None:
            raise WireError("57P03", "the database system is starting up")
        is_old = self._database.major < _MAJOR_OF_INT8_TIMELINE
        columns = (
            ("systemid", TEXT),
            ("timeline", INT4 if is_old else INT8),
            ("xlogpos", TEXT),
            ("dbname", TEXT),
        )
        # A standby says how far it has WAL, too.
        position = str(source.flushed_lsn)
        return Answer(
            columns, (source.system_id, str(source.timeline), position, self._database.name)
        )

    async def _show(self, name: str) -> Answer:
        if name not in _PLAIN_SETTINGS and not self._user.run_sql:
            raise WireError("42501", f'permission denied to examine "{name}"')
        key = self._database.source, name
        dsn = self._engine.conninfo(self._database.source, self._database.name)
        try:
            self._settings[key] = await asyncio.to_thread(_ask_setting, dsn, name)
        except SourceError:
            if key not in self._settings:
                if name not in _UNASKED:
                    raise
                return Answer(((name, TEXT),), (_UNASKED[name],))
        column, value = self._settings[key]
        return Answer(((column, TEXT),), (value,))

    async def _create(self, command: CreateSlot) -> Answer:
        if not (self._user.manage_slots and may_use_slot(self._user, command.slot_name)):
            self._refuse("create", command.slot_name)
        if command.snapshot == "use":
            # There are no transactions on this connection.
            spelling = (
                "(SNAPSHOT 'use')" if self.major >= _MAJOR_OF_OPTION_LISTS else "USE_SNAPSHOT"
            )
            raise WireError(
                "XX000",
                f"CREATE_REPLICATION_SLOT ... {spelling} must be called inside a transaction",
            )
        if command.snapshot == "export":
            raise not_supported(
                "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'export') is not supported by this server",
                "Say (SNAPSHOT 'nothing'), or NOEXPORT_SNAPSHOT; or create the slot with spillway "
                "slot create.",
            )
        slot = await self._engine.create_slot(
            SlotSpec(
                slot_name=command.slot_name,
                source=self._database.source,
                database=self._database.name,
                plugin=command.plugin,
                temporary=command.temporary,
                two_phase=command.two_phase,
                failover=command.failover,
            )
        )
        if command.temporary:
            self.temporary.add(command.slot_name)
        columns = (
            ("slot_name", TEXT),
            ("consistent_point", TEXT),
            ("snapshot_name", TEXT),
            ("output_plugin", TEXT),
        )
        position = str(slot.confirmed_flush_lsn)
        return Answer(columns, (slot.slot_name, position, None, slot.plugin))

    async def _drop(self, command: DropSlot) -> Answer:
        slot = await self._engine.get_slot(command.slot_name)
        if not self._user.manage_slots:
            self._refuse("drop", command.slot_name)
        self._check_rights(slot)
        while True:
            try:
                await self._engine.drop_slot(command.slot_name)
                break
            except SlotActive:
                if not command.wait or not self._is_client_there():
                    raise
            await asyncio.sleep(_WAIT_POLL_S)
        self.temporary.discard(command.slot_name)
        return Answer()

    async def _read(self, slot_name: str) -> Answer:
        try:
            await self._engine.get_slot(slot_name)
        except UnknownSlot:
            columns = (("slot_type", TEXT), ("restart_lsn", TEXT), ("restart_tli", INT8))
            return Answer(columns, (None, None, None))
        raise not_supported("cannot use READ_REPLICATION_SLOT with a logical replication slot")


def _ask_setting(dsn: str, name: str) -> tuple[str, str]:
    """Return the column's name and the value of a SHOW on the source. Blocking."""
    with source_session(dsn) as connection:
        # The session's own settings are not the server's.
        connection.execute("RESET ALL")
        query = sql.SQL("SHOW {}").format(sql.Identifier(*name.split(".")))
        try:
            cursor = connection.execute(query)
        except psycopg.Error as error:
            raise WireError(
                error.sqlstate or "XX000", error.diag.message_primary or str(error)
            ) from None
        assert cursor.description is not None
        row = cursor.fetchone()
        assert row is not None
        return cursor.description[0].name, str(row[0])
