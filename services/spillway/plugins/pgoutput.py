"""The output plugin ``pgoutput``: PostgreSQL's logical replication protocol, versions 1 to 4, byte
for byte.

This is what ``CREATE SUBSCRIPTION`` and the change data capture tools consume. Four parts make it:
``pgoutput_options`` reads the options, ``pgoutput_publications`` keeps publications as the server's
caches do, ``pgoutput_relation`` combines them into how one table is published, the kernel
``pgoutput`` encodes changes. Here is what frames them: a message or two at the beginning and the
end of a transaction, of a prepared one, and of each part of one that is streamed while in progress.

Each major version of PostgreSQL has a pgoutput of its own; the source's decides:

- 14 frames every transaction, also those of which nothing is published; later ones hold BEGIN back
  until something is.
- 15 brings prepared transactions, row filters and column lists; 16 parallel streaming and the
  option origin; 18 generated columns, and patience with a publication that is not there (yet).

Beyond PostgreSQL's options, the session settings of ``pg/text_settings.py`` are options too: a slot
has no session to take them from. ``spillway.all_tables`` stands for publications, and with
``spillway.ddl`` DDL comes as logical messages (``ddl_event``), of every captured table.

Source: src/backend/replication/pgoutput/pgoutput.c; src/backend/replication/logical/proto.c
"""

from __future__ import annotations

import dataclasses
import logging
import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from spillway._kernels.encoders.pgoutput.encoder import Encoder
from spillway.decoding.transaction import TransactionKind
from spillway.errors import NotCaptured, UnknownPublication
from spillway.pg.client_text import SQL_ASCII, UTF8, text_rules
from spillway.pg.text_settings import TextSettings
from spillway.pg.versions import Since
from spillway.plugins.ddl_event import PREFIX, DdlEvents, as_json
from spillway.plugins.interface import NO_MESSAGE_LIMIT, OutputPlugin
from spillway.plugins.messages import Notice
from spillway.plugins.pgoutput_options import PgoutputOptions, StreamingMode, parse_options
from spillway.plugins.pgoutput_publications import PublicationCache
from spillway.plugins.pgoutput_relation import Publishing, publishing_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Prepared, TransactionHeader
    from spillway.plugins.interface import PluginContext

log = logging.getLogger(__name__)


_ORIGIN: Final = struct.Struct(">cQ")
_BEGIN_PREPARE: Final = struct.Struct(">cQQqI")
_PREPARE: Final = struct.Struct(">cBQQqI")
_ROLLBACK_PREPARED: Final = struct.Struct(">cBQQqqI")
_STREAM_START: Final = struct.Struct(">cIB")
_STREAM_COMMIT: Final = struct.Struct(">cIBQQq")
_STREAM_ABORT: Final = struct.Struct(">cII")
_ABORT_INFO: Final = struct.Struct(">Qq")
#: Changes of a table after which it may be published as another.
_ANEW: Final = frozenset({"set_schema", "attach_partition", "detach_partition"})
#: The flags of PREPARE, STREAM COMMIT and their like: none are defined.
_NO_FLAGS: Final = 0


class Pgoutput(OutputPlugin):
    """See :class:`spillway.plugins.interface.OutputPlugin`."""

    name: ClassVar[str] = "pgoutput"

    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        self.binary = True
        settings, parsed = _read(options, context, complete=True)
        self._options = parsed
        self._version = context.server_version_num
        self.streaming = parsed.streaming is not StreamingMode.OFF
        # PostgreSQL 14's pgoutput knows nothing of prepared transactions.
        self.two_phase = (
            self._version >= Since.PGOUTPUT_TWO_PHASE
            and not parsed.whole_prepared
            and (context.two_phase or parsed.two_phase)
        )
        self._publications = PublicationCache(
            parsed.publication_names, self._missing, all_tables=parsed.all_tables
        )
        self._encoder = Encoder(settings, self._rules, self._publications.invalidate, parsed.binary)
        self._encoder.messages = parsed.messages
        self._encoder.only_local = parsed.only_local
        if parsed.ddl:
            self._encoder.schema_message = self._ddl_message
        self._ddl = DdlEvents(self._version, context.encoding)
        self._header: TransactionHeader | None = None
        self._skip = False
        # Transactions in progress that the consumer was told of, where it is not told of all.
        self._begun: set[int] = set()
        # What state() returned last, and as of when.
        self._saved: tuple[object, object] | None = None
        self._saved_at = 0
        self._slot = context.slot_name
        self._encoding = context.encoding
        self._warned: set[str] = set()
        # What the messages at hand go into, and what there is to be said between them.
        self._out: MessageBuffer | None = None
        self._notices: list[Notice] = []

    @classmethod
    def validate(cls, options: Mapping[str, str], context: PluginContext) -> None:
        """Check options that a slot is created with; those that are missing may come with a reader.

        Raises:
            InvalidOption: an option or its value is not known.
            NotCaptured: the source's capture filter leaves out what a publication publishes.
        """
        _read(options, context, complete=False)

    # ---- whole transactions

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write BEGIN, or have it ready for the first change that is published."""
        self._skip = self._filtered(header)
        if self._skip:
            self._encoder.begin_skipped(header.xid)
            return
        if header.kind is TransactionKind.MESSAGE:
            self._encoder.begin_opened(header.xid)
            return
        origin = _origin(header, header.origin_lsn) if header.origin_name else None
        self._encoder.begin(header.xid, header.final_lsn, header.commit_time, origin)
        if self._version < Since.PGOUTPUT_SKIPS_EMPTY:
            self._encoder.open_now(header.first_lsn, out)

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Write the messages of each change.

        Raises:
            DecodingError: a change is malformed; the details have its lsn and relation.
            UnknownPublication: an option names a publication that is not there, before
                PostgreSQL 18.
            ConflictingPublications: publications contradict each other about a table.
        """
        self._header = header
        self._out = out
        self._encoder.changes(chunk, relations, out)

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write COMMIT, if BEGIN was written."""
        if not self._skip and header.kind is not TransactionKind.MESSAGE:
            self._encoder.commit(header.end_lsn, out)

    def transactions(
        self,
        run: TransactionRun,
        out: MessageBuffer,
        batch_bytes: int,
        message_limit: int | None = None,
    ) -> None:
        """Write whole transactions; none of a run has an origin to be filtered by or to be told.

        Raises:
            As :meth:`changes`.
        """
        self._out = out
        limit = NO_MESSAGE_LIMIT if message_limit is None else message_limit
        opened = self._version < Since.PGOUTPUT_SKIPS_EMPTY
        self._encoder.transactions(run, out, batch_bytes, limit, opened)

    def take_notices(self) -> tuple[Notice, ...]:
        """Return the warnings of publications that are not there."""
        notices = tuple(self._notices)
        self._notices.clear()
        return notices

    # ---- sharing

    def state(self) -> object | None:
        """Return what the consumer was told and what caches hold; streamed transactions leave more
        behind.
        """
        if self.streaming:
            return None
        changes = self._encoder.state_changes
        if self._saved is None or self._saved_at != changes:
            self._saved = (self._encoder.save(), self._publications.save())
            self._saved_at = changes
        return self._saved

    def resume(self, state: object) -> None:
        """Go on from there."""
        tables, publications = cast("tuple[tuple[Any, ...], tuple[Any, ...]]", state)
        self._encoder.load(tables)
        self._publications.load(publications)

    # ---- prepared transactions

    def begin_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write BEGIN PREPARE: also of an empty transaction, whose COMMIT PREPARED would otherwise
        surprise.
        """
        self._skip = self._filtered(header)
        if self._skip:
            self._encoder.begin_skipped(header.xid)
            return
        self._encoder.begin_opened(header.xid)
        prepared = _prepared(header)
        message = _BEGIN_PREPARE.pack(
            b"b",
            prepared.prepare_lsn,
            prepared.prepare_end_lsn,
            prepared.prepare_time,
            header.xid,
        )
        out.append(header.first_lsn, header.xid, message + self._gid(prepared))
        if header.origin_name:
            out.append(header.first_lsn, header.xid, _origin(header, header.origin_lsn))

    def prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write PREPARE; of an empty transaction, 18 writes it without a BEGIN PREPARE."""
        if _prepared(header).empty:
            self._skip = self._filtered(header)
        self._end_prepared(b"P", header, header.commit_time, out)

    def commit_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write COMMIT PREPARED."""
        self._skip = self._filtered(header)
        self._end_prepared(b"K", header, header.commit_time, out)

    def rollback_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write ROLLBACK PREPARED."""
        if self._filtered(header):
            return
        prepared = _prepared(header)
        message = _ROLLBACK_PREPARED.pack(
            b"r",
            _NO_FLAGS,
            prepared.prepare_end_lsn,
            header.end_lsn,
            prepared.prepare_time,
            header.commit_time,
            header.xid,
        )
        out.append(header.end_lsn, header.xid, message + self._gid(prepared))

    def _end_prepared(
        self, tag: bytes, header: TransactionHeader, time: int, out: MessageBuffer
    ) -> None:
        if self._skip:
            return
        message = _PREPARE.pack(tag, _NO_FLAGS, header.final_lsn, header.end_lsn, time, header.xid)
        out.append(header.end_lsn, header.xid, message + self._gid(_prepared(header)))

    # ---- transactions in progress

    def stream_start(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write STREAM START, and with a transaction's first part where it came from; or have it
        ready for the first change that is local, where nothing else is wanted.
        """
        self._skip = False
        if self._options.only_local:
            first = header.xid not in self._begun
            self._encoder.begin_part_held_back(header.xid, first)
            return
        self._encoder.begin_part(header.xid)
        assert header.streamed is not None
        first = header.streamed.parts == 1
        lsn = header.streamed.first_lsn
        out.append(lsn, header.xid, _STREAM_START.pack(b"S", header.xid, first))
        if first and header.origin_name:
            # Where in the origin's WAL it ends is not known yet.
            out.append(lsn, header.xid, _origin(header, 0))

    def stream_stop(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write STREAM STOP."""
        assert header.streamed is not None
        if self._encoder.has_begun_part:
            out.append(header.streamed.last_lsn, header.xid, b"E")
            if self._options.only_local:
                self._begun.add(header.xid)

    def stream_abort(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write STREAM ABORT; a consumer that applies in parallel is told when, too."""
        assert header.streamed is not None
        aborted_xid = header.streamed.aborted_xid
        if not self._knows(header.xid, ended=aborted_xid == header.xid):
            return
        self._write_stream_abort(header, aborted_xid, out)

    def _write_stream_abort(
        self, header: TransactionHeader, aborted_xid: int, out: MessageBuffer
    ) -> None:
        message = _STREAM_ABORT.pack(b"A", header.xid, aborted_xid)
        if self._options.streaming is StreamingMode.PARALLEL:
            message += _ABORT_INFO.pack(header.end_lsn, header.commit_time)
        out.append(header.end_lsn, aborted_xid, message)
        # Of the whole transaction, even if only a subtransaction aborted: its announcements come
        # again.
        self._encoder.forget_streamed(header.xid, committed=False)

    def stream_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write STREAM PREPARE; of a transaction that has nothing local, it was not streamed."""
        if self._knows(header.xid):
            self._skip = False
            if self._filtered(header):
                self._write_stream_abort(header, header.xid, out)
            else:
                self._end_prepared(b"p", header, header.commit_time, out)
        else:
            self.begin_prepare(header, out)
            self.prepare(header, out)

    def stream_commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Write STREAM COMMIT; what ends as another's, and is not wanted, is taken back
        (DecodeCommit, ReorderBufferForget).
        """
        if not self._knows(header.xid):
            return
        if self._filtered(header):
            self._write_stream_abort(header, header.xid, out)
            return
        message = _STREAM_COMMIT.pack(
            b"c", header.xid, _NO_FLAGS, header.final_lsn, header.end_lsn, header.commit_time
        )
        out.append(header.end_lsn, header.xid, message)
        self._encoder.forget_streamed(header.xid, committed=True)

    def _knows(self, xid: int, *, ended: bool = True) -> bool:
        """Say whether the consumer was told of streamed transaction *xid*, which it need not be
        where changes from elsewhere are left out.
        """
        if not self._options.only_local:
            return True
        known = xid in self._begun
        if ended:
            self._begun.discard(xid)
        return known

    def _gid(self, prepared: Prepared) -> bytes:
        # It is the database's bytes, in whatever encoding.
        data = prepared.gid.encode(errors="surrogateescape")
        return _string(data.decode(self._encoding, "surrogateescape"))

    # ---- what to publish

    def _ddl_message(self, content: bytes) -> tuple[bytes, bytes, int | None]:
        """Return prefix and content of an event's message, and the oid of a table that is to be
        announced, and its publications looked up, anew after it, 0 for all, None for none.

        Up to 15, ALTER SCHEMA RENAME invalidates no table in pgoutput, which goes on with the old
        name; and 14 goes on with a partition's root when it is a partition no more. Who follows DDL
        has the table by the event's name, and as it is published from there on.
        """
        assert self._header is not None
        event = self._ddl.event(content, self._header)
        anew = None
        if any(one["change"] in _ANEW for one in event["changes"]):
            # Partitions may be published under a partitioned table's name.
            anew = 0 if event["after"]["partitioned"] else event["oid"]
        return PREFIX, as_json(event), anew

    def _filtered(self, header: TransactionHeader) -> bool:
        """PostgreSQL's filter_by_origin callback."""
        return self._options.only_local and header.origin_id != 0

    def _rules(self, descriptor: RelationDescriptor) -> Publishing:
        return publishing_of(descriptor, self._publications.published(descriptor), self._version)

    def _missing(self, name: str) -> None:
        if self._version < Since.PGOUTPUT_MISSING_PUBLICATION_WARNS:
            raise UnknownPublication(
                f'publication "{name}" does not exist',
                hint="It has to exist at this point of the WAL. Create it, and advance the slot to "
                "pg_current_wal_lsn() as it is then: what was written before can't be read by it. "
                "Or name publications that exist here.",
                publication=name,
            )
        self._notices.append(
            Notice(
                0 if self._out is None else self._out.count,
                "55000",
                f'skipped loading publication "{name}"',
                "The publication does not exist at this point in the WAL.",
                "Create the publication if it does not exist.",
            )
        )
        if name not in self._warned:
            self._warned.add(name)
            log.warning(
                "slot %s: publication %s does not exist at this point of the WAL; reading goes on "
                "without it",
                self._slot,
                name,
            )


def _read(
    options: Mapping[str, str], context: PluginContext, *, complete: bool
) -> tuple[TextSettings, PgoutputOptions]:
    settings, rest = TextSettings.from_options(
        options, context.server_version_num, context.encoding
    )
    parsed = parse_options(rest, context.server_version_num, complete=complete)
    if complete and parsed.binary and parsed.send_encoding not in (None, (UTF8, UTF8)):
        # Its rules are made when there is something to be sent, not when options are checked.
        server, client = parsed.send_encoding
        settings = dataclasses.replace(
            settings,
            sent_text=text_rules(server, client),
            # SQL_ASCII is number 0, which is none to xml_send.
            xml_encoding=None if client in (UTF8, SQL_ASCII) else client,
        )
    captured = context.captured_publications
    if captured and (missing := sorted(set(parsed.publication_names) - set(captured))):
        raise NotCaptured(
            f"the source does not capture what {', '.join(missing)} publishes",
            hint=f"Its capture filter names {', '.join(captured)}, and is fixed: name of these, or "
            "drop the source, with its slots, and add it again with a capture that has more.",
            slot=context.slot_name,
            publications=missing,
            captured_publications=list(captured),
        )
    return settings, parsed


def _origin(header: TransactionHeader, origin_lsn: int) -> bytes:
    """The message ORIGIN; there is none for an origin that was dropped since, and so has no
    name.
    """
    return _ORIGIN.pack(b"O", origin_lsn) + _string(header.origin_name)


def _prepared(header: TransactionHeader) -> Prepared:
    assert header.prepared is not None
    return header.prepared


def _string(text: str) -> bytes:
    return text.encode(errors="surrogateescape") + b"\0"
