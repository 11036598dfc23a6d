"""Which cached definitions of tables the server throws away while it decodes, and when.

An output plugin that announces tables to its consumer (pgoutput) announces one again after the
server's cache entry for it was invalidated. That is visible in its output, so we follow what
happens to those entries: the messages that the writing session queued, in the order in which the
server's decoding of the same WAL executes them.

- A transaction's own messages are logged at the end of each of its commands, and executed when
  decoding passes that place: INVALIDATION changes between its other changes. Those of a
  subtransaction that aborted go with it.
- When its end has been decoded, all its messages are executed again, the aborted subtransactions'
  too. So they are at the end of one whose changes were decoded before: at COMMIT PREPARED, ROLLBACK
  PREPARED, the abort of a streamed one.
- When a transaction that changed the catalog commits, its messages go to every transaction in
  progress that has changes already, to be executed at that place of it, and at its end again; by
  a consumer that leaves that transaction out, because it came from elsewhere, not at all.
- Messages of a command without a transaction id (VACUUM) are executed when their record is read:
  between transactions. So are those of another database's transaction at its commit; some are for
  all databases.

Of the messages only those count that reach one of the callbacks that pgoutput registers, which
differ between majors (``WalVersion.invalidating_caches`` and its neighbours), or the caches of
publications that it reads through (``WalVersion.publication_caches``). What is left are *items* as
``change_format.py`` has them: oids of tables, or 0 for all, and rows of the catalogs of
publications.

Memory: the distinct items of each transaction in progress that changed the catalog.

Source: ReorderBufferAddInvalidations, ReorderBufferAddDistributedInvalidations,
ReorderBufferProcessTXN, src/backend/replication/logical/reorderbuffer.c;
SnapBuildDistributeSnapshotAndInval, snapbuild.c; LocalExecuteInvalidationMessage,
src/backend/utils/cache/inval.c; init_rel_sync_cache, src/backend/replication/pgoutput/pgoutput.c;
src/include/storage/sinval.h
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spillway._kernels.reorder.invalidation_items import InvalidationParser, PendingItems
from spillway.catalog.descriptor import FIRST_NORMAL_OID
from spillway.decoding.change_format import FROM_OTHER, HAS_NEW, HEADER_SIZE, INVALIDATION
from spillway.errors import CorruptWal
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from spillway.pg.versions import WalVersion

#: the item of an INVALIDATION that means all relations
ALL_RELATIONS: Final = 0
#: where in an item the oid of a catalog stands, and the bit for all of its rows
CATALOG_SHIFT: Final = 32
WHOLE_CATALOG: Final = 1 << 63

_COUNT: Final = struct.Struct("<i")
_MESSAGE_BYTES: Final = 16
#: what :meth:`Invalidations.dump` returns without any
NO_INVALIDATIONS: Final = _COUNT.pack(0)
#: MAX_DISTR_INVAL_MSG_PER_TXN: with more, the server throws away everything at the transaction's
#: end.
_DISTRIBUTED_MESSAGES_MAX: Final = 8 * 1024 * 1024 // _MESSAGE_BYTES

_CHANGE: Final = struct.Struct("<IBBHIIQII")
_SAVED: Final = struct.Struct("<IIIII")


class Executed(NamedTuple):
    """What is invalidated when a transaction's changes have been decoded."""

    #: by its own messages; nothing else where they are left out (ReorderBufferForget)
    own: tuple[int, ...]
    #: by those of others that committed while it was in progress
    from_others: tuple[int, ...]

    def changes(self, xid: int, lsn: int) -> bytes:
        """Return it as a chunk of transaction *xid*; empty for nothing."""
        chunk = b""
        if self.own:
            chunk += invalidation_change(xid, lsn, self.own)
        if self.from_others:
            chunk += invalidation_change(xid, lsn, self.from_others, FROM_OTHER)
        return chunk


class Ending(NamedTuple):
    """What is invalidated when a transaction has committed."""

    #: its own messages: when it was not decoded (another database's; some may be about all
    #: databases), and at the COMMIT PREPARED of one that was decoded at its PREPARE
    own: tuple[int, ...]
    #: when it was
    decoded: Executed


NOTHING_EXECUTED: Final = Executed((), ())
NOTHING: Final = Ending((), NOTHING_EXECUTED)


class ChangeQueue(Protocol):
    """What is needed of the reorder buffer."""

    def add_invalidation(self, xid: int, lsn: int, items: Sequence[int], from_other: bool) -> None:
        """Queue a change in (sub)transaction *xid*; with *from_other* another one has caused it."""
        ...

    def top_xid(self, xid: int) -> int:
        """Return the top-level transaction's xid."""
        ...

    def with_base_snapshot(self) -> list[int]:
        """List the top-level transactions in progress that have changes."""
        ...

    def expect_invalidations(self, xid: int) -> None:
        """Note that the commit of top-level *xid* has to be told here."""
        ...


class Invalidations:
    """The invalidation messages of the transactions in progress in one database."""

    def __init__(self, version: WalVersion, database_oid: int, buffer: ChangeQueue) -> None:
        """Begin with no transaction; changes are queued in *buffer*."""
        self._version: Final = version
        #: the reorder buffer's loop has it take the messages of transactions by itself
        self.parser: Final = InvalidationParser(
            database_oid,
            FIRST_NORMAL_OID,
            reset_counts=version.relcache_reset_counts,
            caches=version.invalidating_caches,
            catalogs=version.invalidating_catalogs,
            publication_caches=version.publication_caches,
        )
        self._buffer: Final = buffer
        self._pending: Final = self.parser.pending

    def record(self, xid: int, data: bytes, lsn: int) -> tuple[int, ...]:
        """Take an XLOG_XACT_INVALIDATIONS record: queue it in its (sub)transaction *xid*.

        With *xid* 0 there is none; then its items are returned, to be invalidated now.

        Raises:
            CorruptWal: it says that it has more messages than fit.
        """
        count, items = self.parse(data, lsn)
        if not xid:
            return items
        pending = self._pending_of(self._buffer.top_xid(xid))
        pending.own_count += count
        if items:
            pending.own.update(dict.fromkeys(items))
            pending.fresh.update(dict.fromkeys(items))
            self._buffer.add_invalidation(xid, lsn, items, False)
        return ()

    def commit(self, xid: int, lsn: int) -> Ending:
        """Take the commit, at *lsn*, of top-level *xid*: its messages go to the others in progress.

        Call it for every commit, before the transaction is taken from the buffer or forgotten; it
        costs nothing for one without messages.
        """
        committed = self._pending.get(xid)
        if committed is None:
            return NOTHING
        items = tuple(committed.own)
        if committed.own_count:
            for other in self._buffer.with_base_snapshot():
                if other == xid:
                    continue
                pending = self._pending_of(other)
                pending.distributed.update(committed.own)
                pending.distributed_count += committed.own_count
                if items:
                    self._buffer.add_invalidation(other, lsn, items, True)
        ending = Ending(items, self.at_end(xid))
        self.forget((xid,))
        return ending

    def _pending_of(self, top_xid: int) -> PendingItems:
        pending = self._pending.get(top_xid)
        if pending is None:
            pending = self._pending[top_xid] = PendingItems()
            self._buffer.expect_invalidations(top_xid)
        return pending

    def parse(self, data: bytes, lsn: int) -> tuple[int, tuple[int, ...]]:
        """Parse the main data of an XLOG_XACT_INVALIDATIONS record at *lsn*.

        Returns how many messages it has, and the items that they invalidate, each once.

        Raises:
            CorruptWal: it says that it has more messages than fit.
        """
        parsed = self.parser.parse(data)
        if parsed is None:
            raise CorruptWal(
                f"the invalidations at {Lsn(lsn)} are cut short",
                hint="Fetch the WAL segment again from the source or the archive.",
                lsn=str(Lsn(lsn)),
            )
        return parsed

    def at_end(self, top_xid: int) -> Executed:
        """Return what is executed when the changes of *top_xid*, read so far, have been decoded."""
        pending = self._pending.get(top_xid)
        if pending is None:
            return NOTHING_EXECUTED
        if pending.distributed_count >= _DISTRIBUTED_MESSAGES_MAX:
            return Executed((), (ALL_RELATIONS,) if self._version.relcache_reset_counts else ())
        others = tuple(item for item in pending.distributed if item not in pending.own)
        return Executed(tuple(pending.own), others)

    def own(self, top_xid: int) -> tuple[int, ...]:
        """Return what *top_xid* itself has invalidated: executed when it is rolled back after it
        was decoded in part.
        """
        pending = self._pending.get(top_xid)
        return tuple(pending.own) if pending else ()

    def take_touched(self, top_xid: int) -> list[int]:
        """Return the oids of relations that *top_xid* itself has invalidated since this was asked
        last.
        """
        pending = self._pending.get(top_xid)
        if pending is None or not pending.fresh:
            return []
        fresh, pending.fresh = pending.fresh, {}
        return [item for item in fresh if ALL_RELATIONS < item < 1 << CATALOG_SHIFT]

    def touch(self, top_xid: int, oids: Iterable[int]) -> None:
        """Have :meth:`take_touched` return relations again."""
        pending = self._pending.get(top_xid)
        if pending is not None:
            pending.fresh.update(dict.fromkeys(oids))

    def invalidated(self) -> dict[int, list[int]]:
        """Return the oids of the relations that each top-level transaction in progress has
        invalidated.
        """
        return {
            top_xid: [item for item in pending.own if ALL_RELATIONS < item < 1 << CATALOG_SHIFT]
            for top_xid, pending in self._pending.items()
        }

    def forget(self, xids: Iterable[int]) -> None:
        """Forget top-level transactions that have ended."""
        for xid in xids:
            self._pending.pop(xid, None)

    def dump(self) -> bytes:
        """Return all of it as bytes, for a serialised decoder."""
        parts = [_COUNT.pack(len(self._pending))]
        for xid, pending in self._pending.items():
            items = (*pending.own, *pending.distributed)
            parts.append(
                _SAVED.pack(
                    xid, len(pending.own), pending.own_count,
                    len(pending.distributed), pending.distributed_count,
                )
            )  # fmt: skip
            parts.append(struct.pack(f"<{len(items)}Q", *items))
        return b"".join(parts)

    def load(self, data: bytes | memoryview) -> None:
        """Reverse :meth:`dump`.

        Raises:
            struct.error: *data* is cut short.
        """
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size
        for _ in range(count):
            xid, own, own_count, distributed, distributed_count = _SAVED.unpack_from(data, at)
            at += _SAVED.size
            items = struct.unpack_from(f"<{own + distributed}Q", data, at)
            at += 8 * len(items)
            self._pending[xid] = PendingItems(
                items[:own], own_count, items[own:], distributed_count
            )


def invalidation_change(xid: int, lsn: int, items: Collection[int], flags: int = 0) -> bytes:
    """Return a chunk with one INVALIDATION of *items*, in the change format; of *flags*, 0 or
    FROM_OTHER.
    """
    section = struct.pack(f"<Q{len(items)}Q", len(items), *items)
    header = _CHANGE.pack(
        HEADER_SIZE + len(section), INVALIDATION, HAS_NEW | flags, 0, 0, xid, lsn, len(section), 0
    )
    return header + section
