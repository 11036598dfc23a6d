"""What is ours in a statement: the rows of our slots and streams, and what its call of a function
does.

Slots are those of the source that is connected to, of databases that the user may use. Rights are
those of replication commands (:mod:`spillway.walsender.commands`): what a call may do, a command
may.

A call is run before its statement goes to the source, and is not undone if that fails, or its
transaction is rolled back: PostgreSQL's functions on slots aren't transactional either. A
transaction that has failed runs none.

Source: pg_get_replication_slots and the functions beside it (src/backend/replication/slotfuncs.c),
pg_logical_slot_get_changes_guts (logicalfuncs.c), pg_stat_get_wal_senders (walsender.c)
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidLsn, InvalidOption, NoConsumer, SpillwayError, UnknownSlot
from spillway.pg.boolean import parse_bool
from spillway.pg.identifier import truncate
from spillway.pg.lsn import Lsn
from spillway.walsender.client_encoding import ClientEncoding
from spillway.walsender.failures import WireError, in_startup, shown_pid, told
from spillway.walsender.grammar import CreateSlot, DropSlot
from spillway.walsender.printing import NAMES, Printing
from spillway.walsender.sql.conditions import Known
from spillway.walsender.sql.slot_columns import FUNCTIONS, SET_FUNCTIONS
from spillway.walsender.sql.statements import CURRENT, Statement, may_speak_of_slots, rewrite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.service.model import SlotInfo
    from spillway.walsender.commands import Commands
    from spillway.walsender.sql.conditions import Value
    from spillway.walsender.sql.places import Places
    from spillway.walsender.sql.statements import Call

_NAME: Final = "pg_catalog.name"
_SEGMENT_BYTES: Final = 16 << 20
#: The argument came with it.
_MAJOR_OF_FAILOVER: Final = 17
#: Before it, errors of an LSN that is none had no SQLSTATE of their own.
_MAJOR_OF_LSN_SQLSTATE: Final = 18
_BINARY_PLUGINS: Final = frozenset({"pgoutput"})

#: what makes a slot, and what is of numbers
_OF_ANY_SLOT: Final = frozenset({"pg_create_logical_replication_slot", "pg_terminate_backend"})

Json = dict[str, object]


class Slots:
    """Slots as one connection's statements see them."""

    def __init__(
        self,
        engine: EngineInterface,
        commands: Commands,
        parameter: Callable[[str], str | None],
    ) -> None:
        self._engine = engine
        self._commands = commands
        #: gives what a parameter is in the client's session
        self._parameter = parameter

    def rewrite(self, query: bytes) -> Statement | None:
        """Replace what speaks of slots in a statement's text; None: nothing does.

        Raises:
            WireError: it does in a form that is not served.
        """
        if not may_speak_of_slots(query):
            return None
        is_conforming = self._parameter("standard_conforming_strings") != "off"
        return rewrite(query.decode("latin-1"), self._commands.major, is_conforming=is_conforming)

    async def end_temporary(self) -> None:
        """Drop temporary slots, after a statement has failed (PostgresMain)."""
        await self._commands.drop_temporary()

    async def simple(
        self, query: bytes, is_reached: Callable[[], Awaitable[bool]] | None = None
    ) -> tuple[bytes, Places | None]:
        """Return the text of a simple Query as the source gets it, after its call was run: unless
        *is_reached*, which waits for what is before it, says that it is none the source will do;
        and where what is in it, None: it is the client's own.

        Raises:
            WireError: it is not served, or the call failed.
        """
        statement = self.rewrite(query)
        if statement is None:
            return query, None
        if statement.call is not None and is_reached is not None and not await is_reached():
            return query, None
        value = await self.value(statement, _no_parameter)
        if value is None:
            return query, None
        # Backslashes as PostgreSQL reads them whatever standard_conforming_strings is.
        literal = value.replace("\\", "\\\\").replace("'", "''")
        expression = f"E'{literal}'"
        changed = statement.with_json(expression).encode("latin-1")
        return changed, statement.places(expression, self.codec)

    @property
    def codec(self) -> str:
        """Python's, of what the client speaks now."""
        server = self._parameter("server_encoding") or "UTF8"
        return ClientEncoding.codec_of(self._parameter("client_encoding"), server)

    async def is_of_source(self, statement: Statement) -> bool:
        """Whether a statement's call names a slot that is none of ours, so that it may go to the
        source as it is.
        """
        call = statement.call
        if call is None or call.function in _OF_ANY_SLOT:
            return False
        named = next(iter(call.arguments), None)
        if named is None or named.text is None:
            return False
        try:
            await self._engine.get_slot(named.text)
        except UnknownSlot:
            return True
        return False

    async def value(
        self, statement: Statement, parameter: Callable[[int, str], str | None]
    ) -> str | None:
        """Run a statement's call; return the JSON value that it is given. It is ASCII.

        None: the call is about a slot of the source's own, and the statement may go there as it is.

        Args:
            statement: rewritten.
            parameter: gives a parameter's text by its number and its type.

        Raises:
            WireError: the call failed.
        """
        slots = [slot for slot in await self._engine.list_slots() if self._commands.may_see(slot)]
        value: Json = {
            "slots": [_row_of_slot(slot) for slot in slots],
            "streams": [_row_of_stream(slot) for slot in slots if slot.consumer is not None],
        }
        if statement.needs_stats:
            value["stats"] = await self._stats(slots)
        if statement.call is not None:
            try:
                result = await self._run(statement.call, slots, parameter)
            except SpillwayError as error:
                raise told(error, self._commands.major) from None
            if result is None:
                return None
            value["result"] = result
        return json.dumps(value)

    async def _stats(self, slots: Sequence[SlotInfo]) -> list[Json]:
        """Return rows of pg_stat_replication_slots."""
        found: list[Json] = []
        for slot in slots:
            # It may have been dropped since.
            with contextlib.suppress(UnknownSlot):
                stats = asdict(await self._engine.slot_stats(slot.slot_name))
                found.append({**stats, "stats_reset": _shown(stats["stats_reset"])})
        return found

    async def _run(
        self,
        call: Call,
        slots: Sequence[SlotInfo],
        parameter: Callable[[int, str], str | None],
    ) -> list[Json] | None:
        given = _Given(call, parameter)
        rows = [_row_of_slot(slot) for slot in slots]
        known = Known(rows, self._commands.database_name, given.of)
        if call.of_rows:
            chosen = [
                slot for slot, row in zip(slots, rows, strict=True) if call.condition(known.at(row))
            ]
            is_run = bool(chosen)
        else:
            chosen = []
            is_run = bool(call.condition(known))
        if call.is_of_column:
            return await self._run_of_rows(call.function, chosen)
        if not is_run:
            return []
        if call.function == "pg_terminate_backend":
            return await self._terminate([slot for slot in slots if given.is_of(slot)])
        names = FUNCTIONS[call.function].names
        slot_name = given[names[0]]
        if call.function in SET_FUNCTIONS:
            if slot_name is None:
                raise WireError("22004", "slot name must not be null")
        elif slot_name is None or given.has_null:
            # Strict: NULL gives NULL, and nothing is done.
            return []
        if call.function == "pg_create_logical_replication_slot":
            return await self._create(slot_name, given)
        try:
            slot = await self._engine.get_slot(slot_name)
        except UnknownSlot:
            if given.has_parameters:
                raise
            return None
        if call.function == "pg_drop_replication_slot":
            await self._commands.run(DropSlot(slot_name, wait=False))
            return []
        slot = await self._commands.usable_slot(slot_name)
        if call.function == "pg_copy_logical_replication_slot":
            return await self._copy(slot, given)
        if call.function == "pg_replication_slot_advance":
            return await self._advance(slot_name, given)
        return await self._changes(call.function, slot, given)

    async def _create(self, slot_name: str, given: _Given) -> list[Json]:
        plugin = given["plugin"]
        if plugin is None:
            return []
        if given["failover"] is not None and self._commands.major < _MAJOR_OF_FAILOVER:
            raise WireError(
                "42883",
                "function pg_create_logical_replication_slot(name, name, boolean, boolean, boolean)"
                " does not exist",
                hint="PostgreSQL has it from 17 on: leave the last argument out.",
            )
        answer = await self._commands.run(
            CreateSlot(
                slot_name,
                plugin,
                temporary=given.flag("temporary"),
                snapshot="nothing",
                two_phase=given.flag("twophase"),
                failover=given.flag("failover"),
            )
        )
        assert answer.row is not None
        return [{"slot_name": slot_name, "lsn": answer.row[1]}]

    async def _advance(self, slot_name: str, given: _Given) -> list[Json]:
        upto = given["upto_lsn"]
        if upto is None:
            return []
        lsn = await self._lsn(upto)
        if lsn == 0 and self._commands.major < _MAJOR_OF_LSN_SQLSTATE:
            raise WireError("XX000", "invalid target WAL LSN")
        end = await self._engine.advance(slot_name, lsn)
        return [{"slot_name": slot_name, "end_lsn": str(end)}]

    async def _copy(self, slot: SlotInfo, given: _Given) -> list[Json]:
        new_name = given["dst_slot_name"]
        if new_name is None:
            return []
        self._commands.check_manages(new_name)
        is_temporary = slot.temporary if given["temporary"] is None else given.flag("temporary")
        # PostgreSQL's copies have neither two_phase nor failover.
        copied = await self._engine.copy_slot(
            slot.slot_name,
            new_name,
            temporary=is_temporary,
            plugin=given["plugin"],
            keeps_properties=False,
        )
        if is_temporary:
            self._commands.own(copied)
        return [{"slot_name": new_name, "lsn": str(copied.confirmed_flush_lsn)}]

    async def _changes(self, function: str, slot: SlotInfo, given: _Given) -> list[Json]:
        is_binary = "_binary_" in function
        if slot.plugin in _BINARY_PLUGINS and not is_binary:
            signature = f"{function}(name,pg_lsn,integer,text[])"
            raise WireError(
                "0A000",
                f'logical decoding output plugin "{slot.plugin}" produces binary output, but '
                f'function "{signature}" expects textual data',
            )
        upto_lsn, upto_nchanges = given["upto_lsn"], given["upto_nchanges"]
        words = given.rest_from(3)
        if any(word is None for word in words):
            raise WireError("0A000", "array must not contain nulls")
        if len(words) % 2:
            raise WireError("0A000", "array must have even number of elements")
        pairs = [word or "" for word in words]
        read = self._engine.get_changes if "_get_" in function else self._engine.peek
        built_in = {plugin.name for plugin in await self._engine.list_plugins() if plugin.built_in}
        prints_by = self._printing().options(slot.options) if slot.plugin in built_in else {}
        until = None if upto_lsn is None else await self._lsn(upto_lsn)
        try:
            changes = await read(
                slot.slot_name,
                until,
                None if upto_nchanges is None else int(upto_nchanges),
                {**prints_by, **dict(zip(pairs[::2], pairs[1::2], strict=True))},
            )
        except InvalidOption as error:
            raise in_startup(error, slot.slot_name, slot.plugin, self._commands.major) from None
        as_hex = is_binary and slot.plugin not in _BINARY_PLUGINS
        return [
            {
                "lsn": str(change.lsn),
                "xid": change.xid,
                "data": f"\\x{change.data.encode().hex()}" if as_hex else change.data,
            }
            for change in changes
        ]

    def _printing(self) -> Printing:
        """Return what the client's session prints by, as far as a server reports that."""
        reported = {name: self._parameter(name) for name in NAMES}
        return Printing({}, {name: value for name, value in reported.items() if value is not None})

    async def _lsn(self, text: str) -> Lsn:
        if text in CURRENT:
            source = await self._engine.get_source(self._commands.source)
            if source.flushed_lsn is None:
                raise WireError("57P03", "the database system is starting up")
            return source.flushed_lsn
        try:
            return Lsn.parse(text)
        except (InvalidLsn, ValueError):
            raise WireError("22P02", f'invalid input syntax for type pg_lsn: "{text}"') from None

    async def _run_of_rows(self, function: str, chosen: Sequence[SlotInfo]) -> list[Json]:
        if function == "pg_terminate_backend":
            return await self._terminate(chosen)
        for slot in chosen:
            await self._commands.run(DropSlot(slot.slot_name, wait=False))
        return []

    async def _terminate(self, slots: Sequence[SlotInfo]) -> list[Json]:
        ended: list[Json] = []
        for slot in slots:
            if not slot.active:
                continue
            self._commands.check_manages(slot.slot_name)
            with contextlib.suppress(NoConsumer):
                await self._engine.end_session(slot.slot_name)
                ended.append({"ended": shown_pid(slot.slot_name)})
        return ended


class _Given:
    """A call's arguments as texts."""

    def __init__(self, call: Call, parameter: Callable[[int, str], str | None]) -> None:
        self._call = call
        self._parameter = parameter
        self._function = FUNCTIONS[call.function]
        self.has_parameters = any(
            value.parameter for value in (*call.arguments, *call.named.values())
        )

    def is_of(self, slot: SlotInfo) -> bool:
        """Whether it names the consumer that a slot has."""
        return self["pid"] == str(shown_pid(slot.slot_name))

    def of(self, value: Value, kind: str) -> str | None:
        text = self._parameter(value.parameter, kind) if value.parameter else value.text
        if text is not None and kind == _NAME:
            return truncate(text)
        return text

    def __getitem__(self, name: str) -> str | None:
        number = self._function.names.index(name)
        types = self._function.types
        kind = types[min(number, len(types) - 1)]
        if name in self._call.named:
            return self.of(self._call.named[name], kind)
        if number < len(self._call.arguments):
            return self.of(self._call.arguments[number], kind)
        return None

    @property
    def has_null(self) -> bool:
        """Whether NULL is given for an argument."""
        names, types = self._function.names, self._function.types
        given = [*zip(names, self._call.arguments, strict=False), *self._call.named.items()]
        kinds = {name: types[min(at, len(types) - 1)] for at, name in enumerate(names)}
        return any(self.of(value, kinds.get(name, types[-1])) is None for name, value in given)

    def rest_from(self, number: int) -> list[str | None]:
        """Return the arguments of an argument list without an end."""
        kind = self._function.types[-1]
        return [self.of(value, kind) for value in self._call.arguments[number:]]

    def flag(self, name: str) -> bool:
        text = self[name]
        if text is None:
            return False
        flag = parse_bool(text)
        if flag is None:
            raise WireError("22P02", f'invalid input syntax for type boolean: "{text}"')
        return flag


def _no_parameter(number: int, _: str) -> str | None:
    raise WireError("42P02", f"there is no parameter ${number}")


def _row_of_slot(slot: SlotInfo) -> Json:
    return {
        "slot_name": slot.slot_name,
        "plugin": slot.plugin,
        "slot_type": slot.slot_type,
        "datoid": slot.datoid,
        "database": slot.database,
        "temporary": slot.temporary,
        "active": slot.active,
        "active_pid": shown_pid(slot.slot_name) if slot.active else None,
        "restart_lsn": _shown(_before(slot.restart_lsn)),
        "confirmed_flush_lsn": _shown(slot.confirmed_flush_lsn),
        "wal_status": slot.wal_status,
        "safe_wal_size": slot.safe_wal_size,
        "two_phase": slot.two_phase,
        "two_phase_at": _shown(slot.two_phase_at),
        "inactive_since": _shown(slot.inactive_since),
        "conflicting": slot.conflicting,
        "invalidation_reason": slot.invalidation_reason,
        # A standby that follows the source would make such slots its own, and they would pin.
        "failover": False,
        "synced": False,
    }


def _before(lsn: Lsn | None) -> Lsn | None:
    """Return where the 16 MiB of WAL begin that have the byte before *lsn*.

    Of a slot here no WAL is needed that is before what is confirmed. A server's restart_lsn always
    is before that, and clients rely on it: to Debezium, whose stored position may be just the
    confirmed one, an equal restart_lsn says that its position is no longer available.
    """
    return None if lsn is None else Lsn((int(lsn) - 1) // _SEGMENT_BYTES * _SEGMENT_BYTES)


def _row_of_stream(slot: SlotInfo) -> Json:
    consumer = slot.consumer
    assert consumer is not None
    host, _, port = (consumer.address or "").rpartition(":")
    return {
        "pid": shown_pid(slot.slot_name),
        "application_name": consumer.client or "",
        "client_addr": host.strip("[]") or None,
        "client_port": int(port) if port.isdigit() else None,
        "backend_start": consumer.since.isoformat(),
        "state": "streaming",
        "sent_lsn": _shown(consumer.sent_lsn),
        "flush_lsn": _shown(slot.confirmed_flush_lsn),
        "sync_priority": 0,
        "sync_state": "async",
        "reply_time": None
        if consumer.last_feedback_at is None
        else consumer.last_feedback_at.isoformat(),
    }


def _shown(value: object) -> str | None:
    return None if value is None else str(value)
