"""A client's connection after it has been opened: login, commands, and the stream that one of them
begins.

On a replication connection commands come one by one as simple queries. A replication command is
answered here; anything else is SQL, which the source answers (:mod:`spillway.walsender.sql`), but
for the one statement that every libpq client begins with, where no SQL may be run. The extended
protocol is refused as a walsender does. A connection without ``replication`` is the source's from
its login on; one with ``replication=true`` has no database, and knows commands alone.

Source: PostgresMain, exec_replication_command (src/backend/tcop/postgres.c,
src/backend/replication/walsender.c)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

from spillway.caller import POSTGRESQL, calling
from spillway.errors import (
    InvalidOption,
    MetadataError,
    SpillwayError,
    ValueNotRepresentable,
)
from spillway.pg.boolean import parse_bool
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.text_settings import TextSettings
from spillway.pg.timezone import canonical_name
from spillway.pg.versions import release_text
from spillway.service.leaving import opened
from spillway.users.registry import may_use_database, may_use_source
from spillway.walsender import databases, handshake, messages, printing
from spillway.walsender.client_encoding import ClientEncoding
from spillway.walsender.commands import FIXED_SETTINGS, Answer, Commands
from spillway.walsender.copy_stream import (
    BATCH_BYTES,
    ClientGone,
    ConvertedText,
    CopyStream,
    open_writes_of,
)
from spillway.walsender.failures import WireError, in_callback, in_startup, protocol_violation, told
from spillway.walsender.grammar import (
    AlterSlot,
    CreateSlot,
    DropSlot,
    Show,
    StartLogical,
    is_command,
    parse_command,
    syntax_error,
)
from spillway.walsender.messages import LongQuery
from spillway.walsender.printing import Printing
from spillway.walsender.sql.relay import Relay
from spillway.walsender.sql.replication_sql import ReplicationSql, UpstreamEnded
from spillway.walsender.sql.slots import Slots
from spillway.walsender.sql.statements import may_speak_of_slots
from spillway.walsender.sql.upstream import UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from contextlib import AbstractContextManager

    from spillway.pg.lsn import Lsn
    from spillway.service.interface import EngineInterface
    from spillway.service.model import SlotInfo
    from spillway.store.rows import UserRow
    from spillway.users.registry import Users
    from spillway.walsender.commands import Setting, TemporarySlot
    from spillway.walsender.databases import ServedDatabase
    from spillway.walsender.handshake import Connection
    from spillway.walsender.printing import Defaults
    from spillway.walsender.sql.places import Places
    from spillway.walsender.sql.upstream import Upstreams

#: Session settings that change what output plugins print; those of ours take them as options.
_TEXT_SETTINGS: Final = frozenset(map(str.lower, (*printing.NAMES, "search_path")))
_WANTED_SETTINGS: Final = _TEXT_SETTINGS | {
    "wal_sender_timeout", "client_encoding", "client_min_messages",
}  # fmt: skip
#: What libpq clients of walsenders send first (CVE-2018-1058): no names are looked up here.
_SEARCH_PATH_STATEMENT: Final = b"SELECT pg_catalog.set_config('search_path', '', false)"
#: Values of client_min_messages that leave warnings out.
#: Which callback of pgoutput writes a message, by its first byte, where it has text that a client's
#: encoding may lack.
_CALLBACKS: Final = {
    **dict.fromkeys((b"R", b"Y", b"I", b"U", b"D"), "change"),
    b"M": "message",
}
_OWN_XID: Final = "SELECT pg_catalog.pg_current_xact_id_if_assigned()"
_SILENT: Final = frozenset({"error", "fatal", "panic"})
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(us|ms|s|min|h|d)?\s*")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SMALLER_UNITS: Final = {"ms": "us", "s": "ms", "min": "s", "h": "min", "d": "h"}
#: A word of ``options``, and what a backslash makes of a character in it.
_OPTION_WORD: Final = re.compile(r"(?:\\.|[^\\ \t\n\r\f\v]|\\\Z)+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.|\Z)", re.DOTALL)
_NAME_BYTES_MAX: Final = 63
#: Before it, bytes that aren't ASCII's were shown as question marks.
_MAJOR_OF_ESCAPED_NAMES: Final = 16
_MAJOR_OF_SCRAM_ITERATIONS: Final = 16
_MAJOR_OF_ORIGIN: Final = 16
_MAJOR_OF_SEARCH_PATH: Final = 18
#: What belongs to the extended protocol: refused, and then passed over until Sync.
_EXTENDED: Final = frozenset(b"PBEDC")

_HEAD_BYTES: Final = 5
#: Startup parameters that are ours; a source gets the others as they are.
_OURS: Final = frozenset({"user", "database", "replication"})


#: A walsender with a database, one without, a backend.
Kind = Literal["logical", "physical", "sql"]


class Session:
    """One client.

    Args:
        connection: its streams.
        address: where it is, host:port.
        engine: whose slots it reads.
        users: who may come in.
        settings: see :class:`~spillway.walsender.commands.Commands`.
        temporary_slots: see there, too.
        upstreams: connects to sources.
        defaults: what sources' sessions print by.
        needs_tls: refuse it if it came without.
        timeout_s: wal_sender_timeout, unless the client sets its own.
        cancel_key: the number and the secret that it may be cancelled with, of the length for the
            protocol's version.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        engine: EngineInterface,
        users: Users,
        settings: dict[tuple[str, str], Setting],
        temporary_slots: set[TemporarySlot],
        upstreams: Upstreams,
        defaults: Defaults,
        *,
        needs_tls: bool,
        timeout_s: float,
        pid: int,
        key: bytes,
    ) -> None:
        self._connection = connection
        self._address = address
        self._engine = engine
        self._users = users
        self._settings = settings
        self._temporary_slots = temporary_slots
        self._upstreams = upstreams
        self._all_defaults = defaults
        #: those of the database that the client has connected to; None: nobody knows
        self._defaults: Mapping[str, str] | None = None
        #: that database, of a client that may stream
        self._streams_of: ServedDatabase | None = None
        self._needs_tls = needs_tls
        self._timeout_s = timeout_s
        self.pid = pid
        #: what a CancelRequest must bring; a client of 3.0 gets its first four bytes
        self.key = key
        self._parameters: Mapping[str, str] = {}
        self._is_streaming = False
        #: a client has ended a stream of this connection by CopyDone
        self._has_streamed = False
        #: as asked for at the start
        self._encoding = ClientEncoding("UTF8", "UTF8")
        #: as given at the start, or set since, that matter here; names in lower case
        self._session_settings: dict[str, str] = {}
        self._command: asyncio.Task[None] | None = None
        self._cancelled = False
        self._kind: Kind = "sql"
        #: SQL of a replication connection; None: the connection is no such
        self._sql: ReplicationSql | None = None
        #: a normal connection; None: it is none, or has no source yet
        self._relay: Relay | None = None
        self._cancels: set[asyncio.Task[None]] = set()
        #: sessions of the port by what they do: this one is counted in it
        self.counts: Counter[str] = Counter()
        self._doing = ""

    @property
    def kind(self) -> Kind:
        """What the client has connected for, once it has logged in."""
        return self._kind

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Count the session as one that does *what*, meanwhile."""
        before, self._doing = self._doing, what
        if before:
            self.counts[before] -= 1
        self.counts[what] += 1
        try:
            yield
        finally:
            self._doing = before
            self.counts[what] -= 1
            if before:
                self.counts[before] += 1

    def cancel(self) -> None:
        """End the command that is at work, as a CancelRequest asks."""
        at_work = self._relay or (self._sql if self._sql and self._sql.is_busy else None)
        if at_work is not None:
            request = asyncio.create_task(at_work.cancel())
            self._cancels.add(request)
            request.add_done_callback(self._cancels.discard)
        elif self._command is not None and not self._command.done():
            self._cancelled = True
            self._command.cancel()

    def say_goodbye(self) -> None:
        """Tell the client that the service ends; a stream is told so by its end, which a subscriber
        doesn't log as an error.
        """
        if self._is_streaming:
            self._connection.writer.write(messages.command_complete("COPY 0"))
        elif self._relay is None or self._relay.is_between_messages:
            fatal = WireError(
                "57P01", "terminating connection due to administrator command", fatal=True
            )
            self._connection.writer.write(messages.error_response(fatal))

    async def log_in(self, packet: bytes) -> Commands:
        """Let the client in that sent the startup *packet*.

        Raises:
            WireError: it may not come in.
            OSError, asyncio.IncompleteReadError: it is gone.
        """
        startup = messages.parse_startup(packet)
        self._parameters = startup.parameters
        self._session_settings = _settings_of(startup.parameters)
        if startup.minor > messages.NEWEST_MINOR or startup.unknown:
            minor = min(startup.minor, messages.NEWEST_MINOR)
            await self._connection.send(messages.negotiate_protocol_version(minor, startup.unknown))
        name = startup.parameters.get("user", "")
        if not name:
            raise WireError(
                "28000", "no PostgreSQL user name specified in startup packet", fatal=True
            )
        if self._needs_tls and not self._connection.is_tls:
            raise WireError(
                "28000",
                f'connection of user "{name}" is without encryption, which this server asks for',
                hint="Connect with sslmode=require, or better verify-full.",
                fatal=True,
            )
        user = await handshake.authenticate(self._connection, name, self._users)
        self._kind = self._kind_asked_for()
        database = await self._database(user)
        if startup.minor < messages.NEWEST_MINOR:
            self.key = self.key[:4]
        commands = Commands(self._engine, user, database, self._settings, self._temporary_slots)
        if self._kind != "sql":
            given = self._session_settings.get("client_encoding")
            self._encoding = ClientEncoding.of(given, database.encoding)
            if self._kind == "logical":
                self._streams_of = database
                self._defaults = await self._all_defaults.of(database)
            statuses = self._statuses(database)
            is_judged = (
                self._kind == "logical"
                and commands.may_run_sql
                and not _is_known(startup.parameters)
            )
            self._sql = ReplicationSql(
                self._connection,
                lambda settings: self._upstreams.open(database, {**self._given(), **settings}),
                {} if is_judged else statuses,
            )
            commands.sql = self._sql
            reported = [messages.parameter_status(*pair) for pair in statuses.items()]
            if is_judged and await self._begin_sql():
                reported = []
        else:
            reported = await self._open_relay(commands, database)
        await self._connection.send(
            *reported,
            messages.backend_key_data(self.pid, self.key),
            messages.ready_for_query(),
        )
        return commands

    def _given(self) -> dict[str, str]:
        """Return the client's parameters for a session of its own."""
        return {name: value for name, value in self._parameters.items() if name not in _OURS}

    async def _begin_sql(self) -> bool:
        """Have the source judge what the client sets, and report it; False: it can't be reached.

        Raises:
            WireError: the source does not take it.
        """
        try:
            await self._session_sql.open()
        except WireError as error:
            if error.sqlstate == UNREACHABLE:
                return False
            error.fatal = True
            raise
        return True

    async def _open_relay(self, commands: Commands, database: ServedDatabase) -> list[bytes]:
        """Connect to the source; return what it reports of its parameters."""
        try:
            commands.check_sql()
            upstream = await self._upstreams.open(database, self._given())
        except WireError as error:
            error.fatal = True
            raise
        # What clients compare with pg_backend_pid(), and with who notifies them.
        self.pid = upstream.pid
        self._relay = Relay(
            self._connection, upstream, Slots(self._engine, commands, upstream.parameters.get)
        )
        return upstream.statuses

    def _kind_asked_for(self) -> Kind:
        wanted = self._parameters.get("replication", "false")
        if wanted == "database":
            return "logical"
        asked = parse_bool(wanted)
        if asked is None:
            raise WireError(
                "22023",
                f'invalid value for parameter "replication": "{wanted}"',
                hint='Valid values are: "false", 0, "true", 1, "database".',
                fatal=True,
            )
        return "physical" if asked else "sql"

    async def _database(self, user: UserRow) -> ServedDatabase:
        dbname = self._parameters.get("database") or user.name
        if self._kind == "physical":
            source = await databases.find_source(self._engine, dbname)
            if not may_use_source(user, source.source):
                raise WireError(
                    "42501",
                    f'permission denied for source "{source.source}"',
                    detail=f'User "{user.name}" is for no database of it.',
                    fatal=True,
                )
            return source
        database = await databases.find(self._engine, dbname)
        if not may_use_database(user, database.source, database.name):
            raise WireError(
                "42501",
                f'permission denied for database "{dbname}"',
                detail=f'User "{user.name}" is not for database {database.source}/{database.name}.',
                fatal=True,
            )
        return database

    def _statuses(self, database: ServedDatabase) -> dict[str, str]:
        """Give what a server of the source's major reports."""
        set_to = self._session_settings
        defaults = self._defaults or {}
        date_style = defaults.get("DateStyle", "ISO, MDY")
        if "datestyle" in set_to:
            date_style = printing.with_order_of(set_to["datestyle"], date_style)
        statuses = {
            "application_name": _clean_ascii(self._application_name, database.major),
            "client_encoding": self._encoding.client,
            "DateStyle": date_style,
            "default_transaction_read_only": "off",
            "in_hot_standby": "off",
            "integer_datetimes": "on",
            "IntervalStyle": (
                set_to["intervalstyle"].lower()
                if "intervalstyle" in set_to
                else defaults.get("IntervalStyle", "postgres")
            ),
            "is_superuser": "off",
            "server_encoding": database.encoding,
            "server_version": release_text(database.server_version_num),
            "session_authorization": self._parameters["user"],
            "standard_conforming_strings": "on",
            "TimeZone": (
                canonical_name(set_to["timezone"])
                if "timezone" in set_to
                else defaults.get("TimeZone", "GMT")
            ),
        }
        if database.major >= _MAJOR_OF_SCRAM_ITERATIONS:
            statuses["scram_iterations"] = "4096"
        if database.major >= _MAJOR_OF_SEARCH_PATH:
            statuses["search_path"] = '"$user", public'
        return statuses

    async def serve(self, commands: Commands) -> None:
        """Answer commands until the client ends.

        Raises:
            ClientGone: it did.
            WireError: it did what ends a connection.
            OSError, asyncio.IncompleteReadError: it is gone.
        """
        skipping = False
        with self._calling():
            if self._relay is not None:
                await self._relay.run()
                return
            while True:
                read = await messages.read_message_or_long_query(self._connection.reader)
                if isinstance(read, LongQuery):
                    await self._command_of(commands, self._run_sql(commands, *read))
                    continue
                kind, body = read
                letter = chr(kind)
                if letter == "X":
                    return
                if letter == "S":
                    skipping = False
                    await self._ready()
                elif letter == "p":
                    raise protocol_violation(f"invalid frontend message type {kind}")
                elif skipping or letter in "dcfH":
                    # The rest of a stream that has ended, and what waits for Sync.
                    continue
                elif kind in _EXTENDED:
                    skipping = True
                    await self._refuse(
                        "extended query protocol not supported in a replication connection"
                    )
                elif letter == "F":
                    await self._refuse(
                        "fastpath function calls not supported in a replication connection"
                    )
                    await self._ready()
                else:
                    await self._command_of(commands, self._run(commands, body))

    async def _refuse(self, text: str) -> None:
        await self._connection.send(messages.error_response(WireError("08P01", text), self._codec))
        await self._session_sql.fail_block()

    async def _ready(self) -> None:
        await self._connection.send(messages.ready_for_query(self._session_sql.status))

    @property
    def _session_sql(self) -> ReplicationSql:
        assert self._sql is not None
        return self._sql

    async def _command_of(self, commands: Commands, work: Coroutine[None, None, None]) -> None:
        """Do what a Query asks for, and say how it went."""
        await commands.end_export()
        try:
            # A task of its own, for it can be cancelled; it inherits who the client is.
            self._command = asyncio.create_task(work)
            try:
                await self._command
            finally:
                self._command = None
        except WireError as error:
            if error.fatal:
                raise
            await self._fail(commands, error)
        except SpillwayError as error:
            failure = told(error, commands.major)
            if failure.fatal:
                raise failure from None
            await self._fail(commands, failure)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            await self._fail(
                commands, WireError("57014", "canceling statement due to user request")
            )
        self._cancelled = False
        await self._ready()

    async def _fail(self, commands: Commands, error: WireError) -> None:
        """Tell of a failure, which is that of the transaction too, and the end of temporary
        slots.
        """
        await commands.drop_temporary()
        await self._connection.send(messages.error_response(error, self._codec))
        await self._session_sql.fail_block()

    async def _run(self, commands: Commands, body: bytes) -> None:
        if not is_command(body, commands.major):
            await self._run_plain(commands, body)
            return
        cut: list[tuple[str, str]] = []
        command = parse_command(self._text(body), commands.major, lambda *names: cut.append(names))
        assert command is not None
        if cut and self._client_min_messages not in _SILENT | {"warning"}:
            # As the server's scanner says, before anything is done (truncate_identifier).
            text = 'identifier "{}" will be truncated to "{}"'
            await self._connection.send(
                *(messages.notice("42622", text.format(*names), self._codec) for names in cut)
            )
        status = self._session_sql.status
        if status == b"E":
            raise WireError(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            )
        if isinstance(command, StartLogical):
            commands.check_database()
            if status != b"I":
                raise WireError("25001", f"{command.tag} cannot run inside a transaction block")
            await self._stream(commands, command)
            return
        if isinstance(command, Show) and await self._show(commands, command):
            return
        if isinstance(command, CreateSlot) and command.snapshot != "use" and status == b"T":
            # A slot's snapshot has no place for what this transaction has written.
            ((xid,),) = await self._session_sql.ask(_OWN_XID)
            if xid is not None:
                raise WireError(
                    "25001",
                    "cannot create logical replication slot in transaction that has performed "
                    "writes",
                )
        work = commands.run(command)
        # PostgreSQL looks after the client while it waits for a consistent point.
        waits = isinstance(command, CreateSlot | DropSlot | AlterSlot)
        answer = await (self._while_there(work) if waits else work)
        await self._answer(answer, command.tag)

    async def _while_there(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for *work*, which may take its time, and end it if the client goes away meanwhile:
        then it shall leave nothing behind.
        """
        working = asyncio.create_task(work)
        reader = self._connection.reader
        reader.when_ended(working.cancel)
        try:
            await asyncio.wait((working,))
        finally:
            reader.when_ended(None)
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
        if working.cancelled():
            raise ClientGone
        return working.result()

    def _text(self, body: bytes) -> str:
        return messages.parse_query(body, self._client_encoding())

    def _client_encoding(self) -> ClientEncoding:
        """Return what the client speaks now: it may have set it in its session of the source."""
        name = self._session_sql.parameter("client_encoding")
        return self._encoding if name is None else ClientEncoding.of(name, self._encoding.server)

    @property
    def _codec(self) -> str:
        name = self._session_sql.parameter("client_encoding")
        client = self._encoding.client if name is None else name
        return ClientEncoding.codec_of(client, self._encoding.server)

    async def _answer(self, answer: Answer, tag: str) -> None:
        parts = []
        if answer.columns:
            parts.append(messages.row_description(answer.columns))
        if answer.row is not None:
            parts.append(messages.data_row(answer.row, self._codec))
        await self._connection.send(*parts, messages.command_complete(tag))

    async def _show(self, commands: Commands, command: Show) -> bool:
        """Have the client's own session say what a setting is; False: there is no such session, and
        there can't be one now, or it need not be opened for that.
        """
        sql = self._session_sql
        if self._kind == "physical" or not commands.may_run_sql:
            return False
        if command.name in FIXED_SETTINGS and not sql.is_open:
            return False
        try:
            await sql.open()
        except WireError:
            return False
        name = ".".join(quote_identifier(part) for part in command.name.split("."))
        if not await sql.run(messages.query(f"SHOW {name}")):
            await commands.drop_temporary()
        return True

    async def _run_plain(self, commands: Commands, body: bytes) -> None:
        """Run what is no replication command."""
        if self._kind == "physical":
            raise WireError(
                "0A000", "cannot execute SQL commands in WAL sender for physical replication"
            )
        sql = self._session_sql
        statement = body[:-1].strip().rstrip(b";").rstrip()
        if not statement and not sql.is_open:
            self._text(body)
            await self._connection.send(messages.empty_query_response())
        elif statement == _SEARCH_PATH_STATEMENT and not sql.is_open:
            # Every libpq client of a walsender begins with it, also while the source is down.
            self._session_settings["search_path"] = sql.settings["search_path"] = ""
            await self._answer(Answer((("set_config", messages.TEXT),), ("",)), "SELECT 1")
        else:
            await self._run_sql(commands, messages.message(b"Q", body))

    async def _run_sql(self, commands: Commands, query: bytes, rest_bytes: int = 0) -> None:
        commands.check_sql()
        places: Places | None = None
        if not rest_bytes and may_speak_of_slots(query) and self._session_sql.status != b"E":
            # What its session says of backslashes counts.
            await self._session_sql.open()
            text = query[_HEAD_BYTES:-1]
            slots = Slots(self._engine, commands, self._session_sql.parameter)
            changed, places = await slots.simple(text)
            query = messages.message(b"Q", changed + b"\0")
        if not await self._session_sql.run(query, rest_bytes, places):
            # As any error of a backend's does (PostgresMain).
            await commands.drop_temporary()

    async def _stream(self, commands: Commands, command: StartLogical) -> None:
        slot = await commands.slot_to_read(command.slot_name, command.start_lsn)
        options = _options(command, slot, commands.major)
        built_in = {plugin.name for plugin in await self._engine.list_plugins() if plugin.built_in}
        prints_by = (
            (await self._printing()).options({**slot.options, **options})
            if slot.plugin in built_in
            else {}
        )
        encoding = self._client_encoding()
        # The first one of an encoding makes its map.
        conversion = await asyncio.to_thread(encoding.conversion, slot.plugin)
        encoded = encoding.plugin_options(slot.plugin, {**slot.options, **options})

        def where(kind: bytes, lsn: Lsn) -> str | None:
            # Of streamed transactions, others fail.
            if "streaming" in options or kind not in _CALLBACKS:
                return None
            return in_callback(slot.slot_name, slot.plugin, _CALLBACKS[kind], lsn)

        # Once its client has ended a stream by CopyDone, a walsender ends the next one as soon as
        # it has begun, without a CopyDone of its own (WalSndLoop).
        is_over = self._has_streamed
        with self._calling():
            async with contextlib.AsyncExitStack() as held:
                try:
                    stream = await held.enter_async_context(
                        opened(
                            lambda: self._engine.stream(
                                command.slot_name,
                                start_lsn=command.start_lsn or None,
                                options={**prints_by, **options, **encoded},
                                batch_bytes=BATCH_BYTES,
                                keep_temporary=commands.is_owned(slot),
                            )
                        )
                    )
                except InvalidOption as error:
                    raise in_startup(error, slot.slot_name, slot.plugin, commands.major) from None
                # As of now: another consumer may have moved it before, and the start set it back.
                begin_lsn = (await self._engine.get_slot(command.slot_name)).confirmed_flush_lsn
                assert begin_lsn is not None
                await self._connection.send(messages.copy_both_response())
                if not is_over:
                    self._is_streaming = True
                    try:
                        copying = CopyStream(
                            self._connection,
                            stream,
                            open_writes_of(slot.plugin, {**slot.options, **options}),
                            self._wal_sender_timeout_s(),
                            begin_lsn,
                            None
                            if conversion is None
                            else ConvertedText(conversion, encoding.failure, where),
                            warns=self._client_min_messages not in _SILENT,
                            heard=commands.keep,
                        )
                        with self.doing("streaming"):
                            await copying.run()
                    except ValueNotRepresentable as error:
                        # Of text within a value: the plugin has found what nobody else looks at.
                        if (character := error.details.get("character")) is None:
                            raise
                        raise encoding.failure(bytes.fromhex(str(character))) from None
                    finally:
                        self._is_streaming = False
        self._has_streamed = True
        await self._connection.send(
            *(() if is_over else (messages.copy_done(),)),
            messages.command_complete("COPY 0"),
            messages.command_complete(command.tag),
        )

    async def _printing(self) -> Printing:
        """Return what the client's session prints by, on the source or, if it has none there, as it
        would begin.
        """
        sql = self._session_sql
        if sql.is_open:
            # While the source is down, or hangs, a slot is read all the same.
            try:
                async with asyncio.timeout(printing.WAIT_S):
                    return printing.of_session(await sql.ask(printing.QUESTION))
            except TimeoutError:
                await sql.close()
            except (UpstreamEnded, WireError):
                pass
        given = {
            name: value for name, value in self._session_settings.items() if name in _TEXT_SETTINGS
        }
        if self._defaults is None and self._streams_of is not None:
            # The source may be back since the client came in.
            self._defaults = await self._all_defaults.of(self._streams_of)
        if "datestyle" in given and self._defaults is not None:
            default = self._defaults.get("DateStyle", "ISO, MDY")
            given["datestyle"] = printing.with_order_of(given["datestyle"], default)
        return Printing(given, self._defaults)

    @property
    def _client_min_messages(self) -> str:
        return self._session_settings.get("client_min_messages", "notice").lower()

    @property
    def _application_name(self) -> str:
        """As given at the start, by its name or in ``options``; empty: it was not."""
        return _set_by(self._parameters).get("application_name", "")

    def _calling(self) -> AbstractContextManager[None]:
        """Work for the client, by the name that it has now: it may have set another one since."""
        given = self._application_name or None
        name = None if self._sql is None else self._sql.parameter("application_name")
        return calling(
            self._address,
            given if name is None else name,
            protocol=POSTGRESQL,
            user=self._parameters.get("user"),
        )

    def _wal_sender_timeout_s(self) -> float:
        """Return what the client has set by ``options='-c wal_sender_timeout=…'``, or the service's
        own.
        """
        match = _DURATION.fullmatch(self._session_settings.get("wal_sender_timeout", ""))
        if match is None:
            return self._timeout_s
        # To whole units of the next smaller kind, and to whole milliseconds: 0 is no timeout.
        unit = match[2] or "ms"
        smaller_s = _SECONDS[_SMALLER_UNITS.get(unit, unit)]
        seconds = round(float(match[1]) * _SECONDS[unit] / smaller_s) * smaller_s
        return round(seconds * 1000) / 1000

    async def leave_source(self) -> None:
        """Close the connection to the source, if there is one."""
        for sql in (self._relay, self._sql):
            if sql is not None:
                await sql.close()


def _clean_ascii(name: str, major: int) -> str:
    """Return an application_name as a server keeps it (GUC_IS_NAME, pg_clean_ascii)."""
    cut = name.encode(errors="surrogateescape")[:_NAME_BYTES_MAX]
    other = "?" if major < _MAJOR_OF_ESCAPED_NAMES else "\\x{:02x}"
    return "".join(chr(byte) if 32 <= byte < 127 else other.format(byte) for byte in cut)


def _set_by(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return what a startup packet sets, names in lower case: parameters by their own names, and
    those in ``options``; by an empty name what is no setting there.
    """
    given = {}
    left = iter(_words(parameters.get("options", "")))
    for word in left:
        if word == "-c":
            setting = next(left, "")
        elif word.startswith(("-c", "--")):
            setting = word[2:]
        else:
            setting = ""
        name, equals, value = setting.partition("=")
        given[name.replace("-", "_").lower() if equals else ""] = value
    return given | {name.lower(): value for name, value in parameters.items() if name != "options"}


def _words(options: str) -> list[str]:
    """Split ``options`` at blanks; a backslash takes what follows as it is, and quotes are none
    (pg_split_opts).
    """
    return [_ESCAPED.sub(r"\1", word) for word in _OPTION_WORD.findall(options)]


def _settings_of(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return those settings of a startup packet that matter here."""
    return {name: value for name, value in _set_by(parameters).items() if name in _WANTED_SETTINGS}


def _is_known(parameters: Mapping[str, str]) -> bool:
    """Whether a startup packet sets nothing but what is known here, to values that it can have."""
    given = _set_by(parameters)
    if not given.keys() <= _WANTED_SETTINGS | _OURS | {"application_name"}:
        return False
    if not _DURATION.fullmatch(given.get("wal_sender_timeout", "0")):
        return False
    try:
        TextSettings.from_options(
            {name: value for name, value in given.items() if name in _TEXT_SETTINGS}, 0
        )
    except InvalidOption:
        return False
    return True


def _options(command: StartLogical, slot: SlotInfo, major: int) -> dict[str, str]:
    """Give the plugin's options; one that is only named is true, where it can be. Of one that is
    given twice test_decoding takes the last, as it takes each when it comes to it; pgoutput refuses
    that.

    Raises:
        WireError: one is there twice, or lacks its value.
    """

    def refused(message: str) -> WireError:
        failure = syntax_error(message)
        failure.context = in_callback(slot.slot_name, slot.plugin, "startup")
        return failure

    options: dict[str, str] = {}
    for name, value in command.options:
        if name in options:
            if slot.plugin != "test_decoding":
                raise refused("conflicting or redundant options")
            if parse_bool(options[name]) is None:
                # It is the first mistake, and does not come so far as to the next.
                continue
        is_origin = slot.plugin == "pgoutput" and name == "origin"
        if value is None and is_origin and major >= _MAJOR_OF_ORIGIN:
            raise refused("origin requires a parameter")
        options[name] = "true" if value is None else value
    return options


async def login_failure(connection: Connection, error: WireError | MetadataError) -> None:
    """Tell a client why it can't come in, if it still listens."""
    if isinstance(error, MetadataError):
        error = WireError(error.sqlstate, error.message, fatal=True)
    with contextlib.suppress(OSError):
        await connection.send(messages.error_response(error))
