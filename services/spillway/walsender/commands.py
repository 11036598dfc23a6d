"""Replication commands but START_REPLICATION, each with its answer: rows and a tag, in the form of
the source's own major.

Slots are the engine's; only SHOW asks the source. Its answers are remembered, so that a client can
connect again while the primary is down.

A snapshot that is exported with a slot is one that the service holds on the source
(:mod:`spillway.service.exports`): anybody can import it there, until the connection's next command
or its end. One that is to be used by the client's transaction is imported into that at once: it is
open in the client's own session on the source.

A subscriber's worker that copies a table drops its slot in the transaction that says the table is
done. If that transaction fails, be it because the service ended before it could answer, the worker
comes again for a slot that is gone, and PostgreSQL refuses it for ever. Here such a slot is made
anew where the worker stands (:meth:`Commands.slot_to_read`). Whether the worker goes on with it is
known when it answers: until then the slot is a temporary one, which neither a connection that ends
nor a service that dies leaves behind.

Source: IdentifySystem, CreateReplicationSlot, ReadReplicationSlot
(src/backend/replication/walsender.c), process_syncing_tables_for_sync
(src/backend/replication/logical/tablesync.c)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

import psycopg
from psycopg import sql

from spillway.errors import (
    LsnNotRetained,
    NoConsumer,
    SlotActive,
    SourceError,
    SpillwayError,
    UnknownSlot,
)
from spillway.pg.lsn import Lsn
from spillway.receiver.source_session import source_session
from spillway.service.model import SlotSpec
from spillway.users.registry import may_use_database, may_use_slot
from spillway.walsender.failures import WireError, not_supported, told
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
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from spillway.service.interface import EngineInterface
    from spillway.service.model import SlotInfo
    from spillway.store.rows import UserRow
    from spillway.walsender.databases import ServedDatabase

log = logging.getLogger(__name__)

_MAJOR_OF_INT8_TIMELINE: Final = 16
_MAJOR_OF_OPTION_LISTS: Final = 15
_MAJOR_OF_READ_ONLY_USE: Final = 16
_ACTIVE_SQL_TRANSACTION: Final = "25001"
_WAIT_POLL_S: Final = 0.05
#: The slot of a worker that copies a table: of which subscription, relation and server.
_TABLE_SYNC_SLOT: Final = re.compile(r"pg_[0-9]+_sync_[0-9]+_[0-9]+")
#: How long decoding may take to come to where such a worker stands: a service that was killed
#: decodes again what it had delivered, and had not written down.
_DECODED_TO_WORKER_S: Final = 10.0
_COPY_AGAIN_HINT: Final = (
    "The table must be copied again: ALTER PUBLICATION ... DROP TABLE, ALTER SUBSCRIPTION ... "
    "REFRESH PUBLICATION, TRUNCATE the subscriber's table, then ALTER PUBLICATION ... ADD TABLE, "
    "and REFRESH PUBLICATION again."
)
#: Settings that a user sees who may not run SQL: what clients of slots ask for, and nothing that
#: says more of the server.
_PLAIN_SETTINGS: Final = frozenset(
    {
        "client_encoding", "data_directory_mode", "integer_datetimes", "max_replication_slots",
        "max_wal_senders", "server_encoding", "server_version", "server_version_num", "wal_level",
        "wal_segment_size", "wal_sender_timeout",
    }
)  # fmt: skip
#: What clients ask as they begin, and a server can't change while it runs.
FIXED_SETTINGS: Final = frozenset({"data_directory_mode", "integer_datetimes", "wal_segment_size"})
#: How long the answer to one of those is given again: it may have been another server's start.
_FIXED_S: Final = 60.0
#: What pg_recvlogical can't begin without, where the source was never asked and can't be now: the
#: mode that gives away least.
_UNASKED: Final = {"data_directory_mode": "0700"}


class Setting(NamedTuple):
    """What a source has answered to SHOW."""

    column: str
    value: str
    #: whom it was asked by
    dsn: str
    #: when, by time.monotonic()
    asked_s: float


class TemporarySlot(NamedTuple):
    """A temporary slot; another one may have its name later."""

    slot_name: str
    created_at: datetime


class Answer(NamedTuple):
    """A result: columns with the OIDs of their types, and at most one row; without columns, a tag
    alone.
    """

    columns: Sequence[tuple[str, int]] = ()
    row: Sequence[str | None] | None = None


class ClientSql(Protocol):
    """The client's own session on the source, which has the transaction that is open."""

    @property
    def status(self) -> bytes:
        """Of the transaction, as ReadyForQuery has it: I, none; T, in one; E, one that failed."""
        ...

    async def ask(self, statement: str) -> list[list[str | None]]:
        """Run statements of ours, and return their rows.

        Raises:
            WireError: the source can't be asked, or refuses; the transaction has failed with it.
        """
        ...


class Commands:
    """What one connection's user may have done in its database.

    Args:
        engine: whose slots these are.
        user: whose rights count.
        database: where the connection is.
        settings: what sources have answered to SHOW, by source and name; shared by all connections.
        temporary_slots: those that belong to a connection, of all connections.
    """

    def __init__(
        self,
        engine: EngineInterface,
        user: UserRow,
        database: ServedDatabase,
        settings: dict[tuple[str, str], Setting],
        temporary_slots: set[TemporarySlot],
    ) -> None:
        self._engine = engine
        self._user = user
        self._database = database
        self._settings = settings
        self._temporary_slots = temporary_slots
        #: slots that were made here and end with the connection
        self._temporary: set[TemporarySlot] = set()
        #: the one of them that is made anew, until it is kept
        self._made_anew: SlotInfo | None = None
        #: None: this connection has no SQL
        self.sql: ClientSql | None = None
        #: the slot whose snapshot is exported, and the snapshot's name
        self._export: tuple[str, str] | None = None

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
                return await self._alter(command)
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
    def source(self) -> str:
        """The source's name."""
        return self._database.source

    @property
    def database_name(self) -> str:
        """The database that is connected to; empty: none."""
        return self._database.name

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

    def may_see(self, slot: SlotInfo) -> bool:
        """Whether a slot is one of this source, in a database that the user may use."""
        return slot.source == self._database.source and may_use_database(
            self._user, slot.source, slot.database
        )

    def check_manages(self, slot_name: str) -> None:
        """Insist that the user may make slots of that name, drop them and end their sessions.

        Raises:
            WireError: it may not.
        """
        if not (self._user.manage_slots and may_use_slot(self._user, slot_name)):
            self._refuse("manage", slot_name)

    async def usable_slot(self, slot_name: str) -> SlotInfo:
        """Return a slot of this database that the user may read.

        Raises:
            UnknownSlot: there is none.
            WireError: it is of another database, or not for this user.
        """
        slot = await self._engine.get_slot(slot_name)
        self.check_database()
        self._check_rights(slot)
        if (slot.source, slot.database) != (self._database.source, self._database.name):
            raise WireError(
                "55000", f'replication slot "{slot_name}" was not created in this database'
            )
        return slot

    async def slot_to_read(self, slot_name: str, start_lsn: Lsn) -> SlotInfo:
        """Return a slot of this database that the user may read; the slot of a table's
        synchronisation that is gone is made anew at *start_lsn*, where its worker stands.

        It is the connection's until the worker shows that it lives (:meth:`keep`): one that was
        ended by REFRESH or DROP SUBSCRIPTION, which drop its slot, shall leave none behind.

        Raises:
            UnknownSlot: there is none, and it is no such slot, or the user may make none.
            WireError: it is of another database, or not for this user, or the log does not hold
                *start_lsn* any more.
        """
        try:
            return await self.usable_slot(slot_name)
        except UnknownSlot:
            may_manage = self._user.manage_slots and may_use_slot(self._user, slot_name)
            if not (start_lsn and may_manage and _TABLE_SYNC_SLOT.fullmatch(slot_name)):
                raise
        slot = await self._make_anew(
            SlotSpec(
                slot_name=slot_name,
                source=self._database.source,
                database=self._database.name,
                plugin="pgoutput",
                temporary=True,
                start_lsn=start_lsn,
            )
        )
        self.own(slot)
        self._made_anew = slot
        log.warning(
            'slot "%s" is made anew at %s: it was dropped, and its subscriber, which does not '
            "know that, goes on with the synchronisation of a table",
            slot_name,
            start_lsn,
        )
        return slot

    async def _make_anew(self, spec: SlotSpec) -> SlotInfo:
        deadline = time.monotonic() + _DECODED_TO_WORKER_S
        while True:
            try:
                return await self._engine.create_slot(spec)
            except LsnNotRetained as error:
                last = Lsn.parse(str(error.details["last_lsn"]))
                if not last < (spec.start_lsn or 0) or time.monotonic() > deadline:
                    failure = told(error, self.major)
                    failure.hint = _COPY_AGAIN_HINT
                    raise failure from None
            await asyncio.sleep(_WAIT_POLL_S)

    async def keep(self) -> None:
        """Have a slot that was made anew outlive the connection: its worker has taken it."""
        if self._made_anew is not None:
            slot, self._made_anew = self._made_anew, None
            await self._engine.make_permanent(slot.slot_name)
            self._disown(TemporarySlot(slot.slot_name, slot.created_at))

    def own(self, slot: SlotInfo) -> None:
        """Have a temporary slot end with the connection."""
        owned = TemporarySlot(slot.slot_name, slot.created_at)
        self._temporary.add(owned)
        self._temporary_slots.add(owned)

    def _disown(self, slot: TemporarySlot) -> None:
        self._temporary.discard(slot)
        self._temporary_slots.discard(slot)

    def is_owned(self, slot: SlotInfo) -> bool:
        """Whether a slot ends with a connection of the port's, this one or another."""
        return TemporarySlot(slot.slot_name, slot.created_at) in self._temporary_slots

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
        # A standby says how far it has WAL, too. What is decoded may be ahead of what is synced,
        # and clients that read up to here shall have it.
        decoded = [one.decoded_lsn for one in source.sessions if one.decoded_lsn is not None]
        position = str(max([source.flushed_lsn, *decoded]))
        return Answer(
            columns, (source.system_id, str(source.timeline), position, self._database.name or None)
        )

    async def _show(self, name: str) -> Answer:
        if name not in _PLAIN_SETTINGS and not self._user.run_sql:
            raise WireError("42501", f'permission denied to examine "{name}"')
        key = self._database.source, name
        # Every server has that one.
        database = self._database.name or "postgres"
        dsn = self._engine.conninfo(self._database.source, database)
        known = self._settings.get(key)
        if not (
            name in FIXED_SETTINGS
            and known is not None
            and known.dsn == dsn
            and time.monotonic() - known.asked_s < _FIXED_S
        ):
            asked_s = time.monotonic()
            try:
                column, value = await asyncio.to_thread(_ask_setting, dsn, name)
            except SourceError:
                if known is None:
                    if name not in _UNASKED:
                        raise
                    return Answer(((name, TEXT),), (_UNASKED[name],))
            else:
                known = self._settings[key] = Setting(column, value, dsn, asked_s)
        return Answer(((known.column, TEXT),), (known.value,))

    async def end_export(self) -> None:
        """Give up the snapshot that the command before has exported, if any: each command begins
        with that, as in PostgreSQL.
        """
        if self._export is not None:
            slot_name, snapshot_name = self._export
            self._export = None
            # It went with its slot.
            with contextlib.suppress(UnknownSlot):
                await self._engine.release_snapshot(slot_name, snapshot_name)

    async def clean_up(self) -> None:
        """End what ends with the connection."""
        await self.end_export()
        await self.drop_temporary()

    async def drop_temporary(self) -> None:
        """Drop the temporary slots that were made here, which end with the connection, and with a
        command that fails in it.
        """
        for owned in tuple(self._temporary):
            try:
                await self._drop_owned(owned)
            except UnknownSlot:
                self._disown(owned)
            except SpillwayError as error:
                log.warning('temporary slot "%s" was not dropped: %s', owned.slot_name, error)
            else:
                self._disown(owned)

    async def _drop_owned(self, owned: TemporarySlot) -> None:
        """Drop a temporary slot of this connection's, whoever reads it: nobody would drop it later.
        One that has its name now, since somebody else has dropped it, is not this connection's.
        """
        while True:
            slot = await self._engine.get_slot(owned.slot_name)
            if slot.created_at != owned.created_at:
                return
            try:
                await self._engine.drop_slot(owned.slot_name)
            except SlotActive:
                with contextlib.suppress(NoConsumer):
                    await self._engine.end_session(owned.slot_name)
            else:
                return
            await asyncio.sleep(0)

    def check_database(self) -> None:
        """Insist on a connection with a database.

        Raises:
            WireError: it is one for physical replication.
        """
        if not self._database.name:
            raise WireError("55000", "logical decoding requires a database connection")

    async def _create(self, command: CreateSlot) -> Answer:
        self.check_database()
        if not (self._user.manage_slots and may_use_slot(self._user, command.slot_name)):
            self._refuse("create", command.slot_name)
        await self._check_name(command.slot_name)
        await self._check_transaction(command.snapshot)
        exports = command.snapshot != "nothing"
        slot = await self._engine.create_slot(
            SlotSpec(
                slot_name=command.slot_name,
                source=self._database.source,
                database=self._database.name,
                plugin=command.plugin,
                temporary=command.temporary,
                two_phase=command.two_phase,
                failover=command.failover,
                exports_snapshot=exports,
                keeps_snapshot=exports,
            )
        )
        snapshot_name = None
        if exports:
            exported = await self._hand_over(command)
            snapshot_name = exported if command.snapshot == "export" else None
        if command.temporary:
            self.own(slot)
        columns = (
            ("slot_name", TEXT),
            ("consistent_point", TEXT),
            ("snapshot_name", TEXT),
            ("output_plugin", TEXT),
        )
        position = str(slot.confirmed_flush_lsn)
        return Answer(columns, (slot.slot_name, position, snapshot_name, slot.plugin))

    async def _check_name(self, slot_name: str) -> None:
        """Look whether there can be a slot of that name, before anything else is looked at."""
        with contextlib.suppress(UnknownSlot):
            await self._engine.get_slot(slot_name)
            raise WireError("42710", f'replication slot "{slot_name}" already exists')

    async def _check_transaction(self, snapshot: str) -> None:
        """Insist on the transaction, or on none, that a slot's snapshot is given to.

        Raises:
            WireError: it is another one.
        """
        is_old = self.major < _MAJOR_OF_OPTION_LISTS
        option = f"{snapshot.upper()}_SNAPSHOT" if is_old else f"(SNAPSHOT '{snapshot}')"
        command = f"CREATE_REPLICATION_SLOT ... {option}"
        status = b"I" if self.sql is None else self.sql.status
        if snapshot == "export" and status != b"I":
            raise WireError("XX000", f"{command} must not be called inside a transaction")
        if snapshot != "use":
            return
        if self.sql is None or status == b"I":
            raise WireError("XX000", f"{command} must be called inside a transaction")
        (isolation,), (read_only,) = await self.sql.ask(
            "SHOW transaction_isolation; SHOW transaction_read_only"
        )
        if isolation != "repeatable read":
            raise WireError(
                "XX000", f"{command} must be called in REPEATABLE READ isolation mode transaction"
            )
        if read_only != "on" and self.major >= _MAJOR_OF_READ_ONLY_USE:
            raise WireError("XX000", f"{command} must be called in a read-only transaction")
        try:
            # The server tells both of our rules by refusing what they forbid it, too.
            await self.sql.ask(
                "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
            )
        except WireError as error:
            if error.sqlstate != _ACTIVE_SQL_TRANSACTION:
                raise
            within = "subtransaction" in error.message
            rule = "not be called in a subtransaction" if within else "be called before any query"
            raise WireError("XX000", f"{command} must {rule}") from None

    async def _hand_over(self, command: CreateSlot) -> str:
        """Give the client the snapshot that a slot was made with, and return its name; without one,
        there is to be no slot either.
        """
        slot_name = command.slot_name
        try:
            snapshot_name = (await self._engine.get_snapshot(slot_name)).snapshot_name
            if command.snapshot == "export":
                self._export = slot_name, snapshot_name
                return snapshot_name
            assert self.sql is not None
            await self.sql.ask(f"SET TRANSACTION SNAPSHOT '{snapshot_name}'")
            # Who has imported it has one of his own.
            await self._engine.release_snapshot(slot_name, snapshot_name)
        except BaseException:
            with contextlib.suppress(SpillwayError):
                await self._engine.drop_slot(slot_name)
            raise
        return snapshot_name

    async def _alter(self, command: AlterSlot) -> Answer:
        slot = await self._engine.get_slot(command.slot_name)
        if not self._user.manage_slots:
            self._refuse("alter", command.slot_name)
        self._check_rights(slot)
        if command.failover and slot.temporary:
            raise WireError("0A000", "cannot enable failover for a temporary replication slot")
        await self._when_free(
            lambda: self._engine.alter_slot(
                command.slot_name, failover=command.failover, two_phase=command.two_phase
            )
        )
        return Answer()

    async def _when_free(self, change: Callable[[], Awaitable[object]]) -> None:
        """Make a change to a slot that nobody has, once that is so."""
        while True:
            try:
                await change()
            except SlotActive:
                await asyncio.sleep(_WAIT_POLL_S)
            else:
                return

    async def _drop(self, command: DropSlot) -> Answer:
        slot = await self._engine.get_slot(command.slot_name)
        if not self._user.manage_slots:
            self._refuse("drop", command.slot_name)
        self._check_rights(slot)
        if command.wait:
            await self._when_free(lambda: self._engine.drop_slot(command.slot_name))
        else:
            await self._engine.drop_slot(command.slot_name)
        self._disown(TemporarySlot(slot.slot_name, slot.created_at))
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
