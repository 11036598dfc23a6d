"""What the engine does for the interfaces above it (REST, gRPC, UI).

The interfaces depend on this protocol, not on how the engine does it; their tests may run on
another implementation, production runs on :class:`spillway.service.engine.Engine`. All methods are
called on the event loop and never block it. All raise :class:`spillway.errors.SpillwayError` and
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spillway.service.inventory import TABLES_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from spillway.delivery.model import LiveConsumer
    from spillway.listener_signs import ListenerSigns
    from spillway.pg.lsn import Lsn
    from spillway.receiver.checks import SourceFacts
    from spillway.receiver.table_sizes import TableSize
    from spillway.service.model import (
        Change,
        ChangePage,
        ChangeQuery,
        Consumer,
        DdlChange,
        Obstacle,
        PluginInfo,
        Preview,
        PrimaryCost,
        PublicationInfo,
        SlotInfo,
        SlotSnapshot,
        SlotSpec,
        SlotStats,
        SourceInfo,
        StreamBatch,
        TablePage,
    )
    from spillway.store.rows import Fence


class SlotStream(Protocol):
    """A consumer's hold on a slot, from :meth:`EngineInterface.stream`."""

    async def next_batch(self, timeout_s: float, live: LiveConsumer | None = None) -> StreamBatch:
        """Wait for messages; after *timeout_s* without any, return a batch with none (a keepalive).

        While it waits, *live* may be given the batches that come, in their order, instead of the
        caller; this goes on waiting then, for as long as it would have.

        A batch ends after about the stream's ``batch_bytes`` or as soon as nothing more is ready.
        Of a backlog one batch is made ahead, while the caller has this one, and no more. When the
        caller is cancelled nothing is lost: the next call has it.
        """
        ...

    async def confirm(
        self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, *, beyond: bool = False
    ) -> None:
        """Take standby feedback: the slot's confirmed_flush_lsn advances to *flush_lsn*, never
        backward.

        Nor past what this stream handed out; with *beyond*, as PostgreSQL has it, up to what is
        decoded: a client may have got it in a session before.
        """
        ...

    async def wanted(self) -> None:
        """Wait until somebody who wants the slot asks whether this consumer is there; its client is
        asked then, and :meth:`heard` says that it answered. Who never waits here is never silent.
        """
        ...

    def heard(self) -> None: ...

    async def ended(self) -> None:
        """Wait until somebody ends the session, and raise SessionEnded; for ever if nobody does."""
        ...


class EngineInterface(Protocol):
    """Sources and slots."""

    async def create_source(
        self, name: str, dsn: str, capture: Mapping[str, object] | None = None
    ) -> SourceInfo: ...
    async def list_sources(self) -> list[SourceInfo]: ...
    async def get_source(self, name: str) -> SourceInfo: ...
    async def alter_source(self, name: str, dsn: str) -> SourceInfo:
        """Reach the same cluster by another DSN."""
        ...

    async def drop_source(self, name: str, *, keep_slot: bool = False) -> None: ...
    async def restart_database(self, source: str, database: str) -> SourceInfo:
        """Give the decoding of one database a way on from what has stopped it.

        What ended it is tried again at once. Where trying again can't help (WAL that is damaged or
        gone, a record that can't be decoded, a catalog that went wrong, a database that was dropped
        and made again), decoding begins anew behind that place, from the server's catalog as it is
        then. Returns once that has begun. Slots that missed something are invalidated when the new
        beginning is consistent, with the reason; those that missed nothing go on. What is full,
        unreachable or not permitted never costs anything. When the receiver lost its WAL
        (wal_removed), every database of the source begins anew.

        Raises:
            UnknownSource: there is none of that name.
            UnknownDatabase: it is not decoded, or the cluster has none of that name any more.
            Conflict: nothing has stopped it.
        """
        ...

    async def check_source(self, name: str, dsn: str) -> SourceFacts:
        """Check a cluster as create_source does, and make nothing.

        Raises:
            SourceError: ``details["problems"]`` lists all that is missing, each with what mends it.
        """
        ...

    async def primary_cost(self, name: str) -> PrimaryCost:
        """Ask the source's primary what it keeps for us: a connection and a query."""
        ...

    async def check_readable(
        self, source: str, database: str, tables: Sequence[str] | None
    ) -> None:
        """Check that the source's role may read *tables* (``schema.table``; None: all) whole, as an
        initial copy does.

        Raises:
            TableNotReadable: the hint is the SQL that grants what is missing.
            SourceError: the source can't be asked.
        """
        ...

    async def table_sizes(
        self, source: str, database: str, tables: Sequence[str]
    ) -> Mapping[str, TableSize]:
        """Ask the source how large *tables* (``schema.table``) are; those that it does not know,
        and any beyond the first 1,000, are left out. It takes some seconds at most.

        Raises:
            SourceError: the source can't be asked.
        """
        ...

    async def list_plugins(self) -> list[PluginInfo]: ...
    async def list_tables(
        self, source: str, database: str, after: int = 0, limit: int = TABLES_MAX
    ) -> TablePage:
        """List what could be subscribed to, as of where decoding is; the source is not asked.

        A page comes behind what the page before says follows it, and has at most TABLES_MAX tables.

        Raises:
            NotReady: nothing of the database is decoded yet; a first slot begins that.
        """
        ...

    async def list_publications(self, source: str, database: str) -> list[PublicationInfo]:
        """List the publications, as :meth:`list_tables` does tables."""
        ...

    async def publication_names(self, source: str, database: str) -> frozenset[str]:
        """Give the names of the publications, without a look at any table; raises as
        :meth:`list_tables`.
        """
        ...

    async def create_slot(self, spec: SlotSpec) -> SlotInfo:
        """Create a slot; with ``exports_snapshot``, :meth:`get_snapshot` has its snapshot then.

        Raises:
            Conflict: a snapshot was asked for, and as many are held as there may be.
            NotReady: there is no consistent point, or no snapshot to be had, in time.
        """
        ...

    async def take_snapshot(self, slot_name: str, *, fall_back: bool = True) -> SlotSnapshot:
        """Take an exact snapshot of the source and hold it for a slot, in place of one that is held
        for it; the slot stays where it is.

        With *fall_back* the primary is asked for one, by a temporary logical slot, when an ordinary
        one can't be paired.

        Raises:
            Conflict: as many are held as there may be.
            NotReady: there is none to be had in time.
        """
        ...

    async def get_snapshot(self, slot_name: str) -> SlotSnapshot:
        """Return the snapshot that is held for a slot.

        Raises:
            UnknownSnapshot: there is none, or not any more.
        """
        ...

    async def release_snapshot(self, slot_name: str, snapshot_name: str | None = None) -> None:
        """Give up the snapshot that is held for a slot; nothing, if there is none, or another one
        than *snapshot_name* where that is given.
        """
        ...

    async def list_slots(self) -> list[SlotInfo]: ...
    async def get_slot(self, slot_name: str) -> SlotInfo: ...
    async def drop_slot(self, slot_name: str) -> None: ...

    async def peek(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]: ...
    async def get_changes(
        self,
        slot_name: str,
        upto_lsn: Lsn | None,
        upto_nchanges: int | None,
        options: Mapping[str, str],
    ) -> list[Change]: ...
    async def advance(self, slot_name: str, upto_lsn: Lsn) -> Lsn:
        """Move the slot forward and return where it stands then."""
        ...

    async def rewind(self, slot_name: str, lsn: Lsn) -> SlotInfo: ...
    async def copy_slot(
        self,
        slot_name: str,
        new_name: str,
        *,
        temporary: bool | None = None,
        plugin: str | None = None,
        keeps_properties: bool = True,
    ) -> SlotInfo:
        """Make another slot at the same position: of the same lifetime and plugin where they are
        None. Another plugin has none of the options that the slot's has. Without *keeps_properties*
        it has neither two_phase nor failover.
        """
        ...

    async def slot_stats(self, slot_name: str) -> SlotStats: ...
    async def alter_slot(
        self,
        slot_name: str,
        options: Mapping[str, str] | None = None,
        *,
        failover: bool | None = None,
        two_phase: bool | None = None,
    ) -> SlotInfo:
        """Give an idle slot other plugin options, or properties; its position, and what is None,
        stay.

        With *two_phase* what is prepared from where it stands on comes at PREPARE TRANSACTION.
        """
        ...

    async def make_permanent(self, slot_name: str) -> SlotInfo:
        """Have a temporary slot outlive its session, and the service; whoever has it keeps it."""
        ...

    async def lag_seconds(self, slot_name: str) -> float | None:
        """Return how long ago the first transaction was committed that is not confirmed; 0.0
        without one.

        None while that is not known: nothing is decoded, or the slot is lost.
        """
        ...

    async def preview(
        self, slot_name: str, start_lsn: Lsn | None, limit: int, skip: int = 0
    ) -> Preview:
        """Show up to *limit* changes as JSON, from *start_lsn* or what is confirmed, beside the
        consumer.

        *skip* changes of the first transaction are left out: those that a preview before has shown.
        """
        ...

    async def take_ddl(self) -> list[DdlChange]:
        """Take what DDL did to tables in transactions that were decoded since this was called last,
        in the order of their commits for each database.

        What was decoded is taken once by whoever asks; after a start some of it comes again.
        """
        ...

    async def find_changes(self, source: str, database: str, query: ChangeQuery) -> ChangePage:
        """Look for changes in all that is retained of a database, beside all slots.

        A page ends where it is full or after some seconds; ``following`` goes on. When the caller
        is cancelled the looking ends.

        Raises:
            UnknownSource: there is none of that name.
            NotReady: nothing of the database is decoded yet, or it is not yet known which part of
                the log has which table.
            InvalidRequest: the key has a column that the table has not, or a value that is none of
                its type.
        """
        ...

    async def print_transaction(
        self, source: str, database: str, commit_lsn: Lsn, plugin: str, options: Mapping[str, str]
    ) -> list[Change]:
        """Return what an output plugin makes of the transaction whose commit record starts at
        *commit_lsn*.

        Raises:
            LsnNotRetained: it is before what is retained.
            NotFound: no transaction commits there.
            ResultTooLarge: it is more than an answer may hold.
        """
        ...

    def stream(
        self,
        slot_name: str,
        *,
        start_lsn: Lsn | None = None,
        upto_lsn: Lsn | None = None,
        options: Mapping[str, str] | None = None,
        batch_bytes: int = 512 * 1024,
        peek: bool = False,
        keep_temporary: bool = False,
    ) -> AbstractAsyncContextManager[SlotStream]:
        """Open a stream; the slot is active while it is open.

        Args:
            slot_name: the slot.
            start_lsn: begin with transactions whose commit record starts here or later; the slot's
                confirmed_flush_lsn when it is later than that or None is given. With the slot's
                option ``spillway.start_before_confirmed`` an earlier one sets the slot back.
            upto_lsn: end after the last transaction whose commit record starts before this.
            options: plugin options, over the slot's own.
            batch_bytes: payload bytes after which a batch is handed out; the default when large
                batches are used up.
            peek: read beside the consumer: the slot does not become active, ``confirm`` is refused.
            keep_temporary: a temporary slot outlives the stream: whoever opens it drops it.
        """
        ...

    # For the subscriber, which starts programs that consume slots: never shown.

    def fence(self, source: str) -> Fence | None:
        """Return the proof that this process serves *source*; None while it does not."""
        ...

    def on_taken(self, listener: Callable[[str], Awaitable[None]]) -> None:
        """Have *listener* called with the name of a source that this process begins to serve,
        before it writes anything there.

        Until then another process may have changed whatever is stored of the source. An error of
        *listener* lets the source go again, to be tried later.
        """
        ...

    def conninfo(self, source: str, database: str) -> str:
        """Return the source's DSN, password and all, for *database*."""
        ...

    async def end_session(self, slot_name: str) -> Consumer:
        """End the session of the slot's consumer, and return who that was; the slot is free when it
        returns.

        A stream's ``next_batch`` and ``ended`` raise SessionEnded, whatever its client does
        meanwhile.

        Raises:
            NoConsumer: nobody has the slot.
        """
        ...

    def watch_listener(self, signs: ListenerSigns) -> None:
        """Have a door's listener count among what the service's work needs."""
        ...

    def listeners(self) -> list[ListenerSigns]:
        """Give the signs of the listeners that are watched."""
        ...

    def obstacles(self) -> list[Obstacle]:
        """Give what keeps the service from its work, worst first; none: it is ready."""
        ...

    def warnings(self) -> list[Obstacle]:
        """Give what does not yet, and will if nobody does anything."""
        ...

    def alive(self) -> bool:
        """Say whether every thread and task that should run does: if not, only a restart helps."""
        ...
