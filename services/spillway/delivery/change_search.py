"""Looking for changes in all that is retained: what happened to a row, and who did it.

In comes a question (``change_query.py``); the log's table of contents (``txlog/contents.py``) says
which stretches may have an answer, a sieve lets through the changes of the tables that are meant
and that hold the key (``_kernels/reorder/change_search.pyx``), and what is left is taken apart and
looked at (``change_rows.py``). Out goes a page, and what it is true of: the range that was looked
at, where what is retained begins, what can't be read. It holds nothing: neither is a slot needed
nor acquired, and no count is touched.

Bounds: a page has at most ``limit`` changes and takes :data:`SEARCH_S`; it ends earlier then, and
says where the next one goes on. A stretch is read as a whole, of which a large transaction is one;
asked for the newest first, a page takes what that takes. Memory: a stretch's rows that are asked
for, of at most ``limit``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway._kernels.reorder.change_search import OPERATION_BITS, Selector
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.delivery.change_query import ChangePage, Position
from spillway.errors import InvalidRequest, NotReady
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import moment
from spillway.txlog.contents import UNREADABLE, contents_of, is_committed, is_outside, pieces
from spillway.txlog.cursor import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.delivery.change_query import ChangeQuery, FoundChange
    from spillway.delivery.decoded_database import DecodedDatabase
    from spillway.txlog.contents import Block, Contents, TableName
    from spillway.txlog.cursor import LoggedTransaction
    from spillway.txlog.segment import Segment

#: a page's time
SEARCH_S: Final = 10.0
_LSN_MAX: Final = (1 << 64) - 1
_ALL: Final = sum(OPERATION_BITS.values())


class SearchCancelled(Exception):
    """Whoever asked is gone."""


class _Stretch(NamedTuple):
    segment: Segment
    #: where the next one begins
    upto_lsn: int
    is_sealed: bool


class ChangeSearch:
    """One page. For one thread, but for :meth:`cancel`."""

    def __init__(
        self, decoded: DecodedDatabase, query: ChangeQuery, search_s: float = SEARCH_S
    ) -> None:
        from spillway.delivery.change_rows import RowFinder  # noqa: PLC0415 - pyarrow, at a question

        self._decoded = decoded
        self._log = decoded.log
        self._query = query
        self._ends_s = time.monotonic() + search_s
        self._cancelled = threading.Event()
        self._oids: frozenset[int] | None = None
        self._finder = RowFinder(query, decoded.server_version_num, decoded.encoding, self._wants)
        self._operations = sum(OPERATION_BITS[operation] for operation in query.operations) or _ALL
        if query.prefix is not None:
            self._operations = OPERATION_BITS["message"]
        self._selector = Selector(
            self._finder.needle,
            self._operations,
            from_lsn=query.from_lsn or 0,
            upto_lsn=_LSN_MAX if query.upto_lsn is None else query.upto_lsn,
            from_time=query.from_time,
            upto_time=query.upto_time,
            xid=-1 if query.xid is None else query.xid,
        )
        self._found: list[FoundChange] = []
        self._read_bytes = self._passed_over_bytes = 0
        self._unreadable: list[tuple[Lsn, Lsn]] = []

    def cancel(self) -> None:
        """Have :meth:`page` end soon, with SearchCancelled; for any thread."""
        self._cancelled.set()

    def _wants(self, oid: int) -> bool:
        return self._oids is None or oid in self._oids

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise SearchCancelled

    def _check_time(self) -> None:
        self._check()
        if time.monotonic() > self._ends_s:
            raise NotReady(
                "what the transaction log has of which table is not known yet: it is being read",
                hint="Ask again: what was read so far is remembered. It is once written beside the "
                "log soon after a part of it is complete.",
            )

    # -- a page -------------------------------------------------------------------------------

    def page(self) -> ChangePage:
        """Look; blocking.

        Raises:
            InvalidRequest: the key has a column that no such table has, or a value that is none of
                its type.
            NotReady: nothing is decoded yet, or the log's table of contents is still being made.
            SearchCancelled: by :meth:`cancel`.
        """
        visible = self._log.snapshot()
        if visible is None:
            raise NotReady(
                f'nothing of database "{self._decoded.database}" is decoded yet',
                hint="Ask again when its source's page, or spillway source show, says consistent.",
            )
        query = self._query
        start, decoded_lsn = visible.segments[0].start_lsn, visible.decoded_lsn
        stretches = [
            _Stretch(segment, following.start_lsn, is_sealed=True)
            for segment, following in zip(visible.segments, visible.segments[1:], strict=False)
        ]
        stretches.append(
            _Stretch(visible.segments[-1], max(decoded_lsn, start) + 1, is_sealed=False)
        )
        # Of what was visible then.
        stretches[-1] = stretches[-1]._replace(
            upto_lsn=max(visible.segments[-1].last_final_lsn + 1, decoded_lsn)
        )
        contents = self._contents(stretches)
        names = {name for c in contents if c is not None for name in c.names}
        tables = self._resolve(names)
        low = max(start, query.from_lsn or 0)
        high = min(stretches[-1].upto_lsn, _LSN_MAX if query.upto_lsn is None else query.upto_lsn)
        reached = high if query.newest_first else low
        if query.after is not None:
            reached = (
                query.after.commit_lsn if not query.newest_first else query.after.commit_lsn + 1
            )
            reached = min(max(reached, low), high)
        began = reached
        following: Position | None = None
        timed_out = False
        for block in self._blocks(stretches, contents):
            self._check()
            if time.monotonic() > self._ends_s:
                timed_out = True
                following = (
                    Position(block.last_lsn + 1)
                    if query.newest_first
                    else Position.before(block.first_lsn)
                )
                reached = block.last_lsn + 1 if query.newest_first else block.first_lsn
                break
            if not self._may_have(block):
                self._passed_over_bytes += block.nbytes
                continue
            self._read(block)
            if len(self._found) > query.limit:
                break
        else:
            reached = low if query.newest_first else high
        found = self._found
        if len(found) > query.limit:
            del found[query.limit :]
            following, timed_out = found[-1].position, False
            reached = found[-1].commit_lsn + (not query.newest_first)
        self._check_columns(found, has_more=following is not None)
        first = next(
            (
                block
                for c in contents
                if c is not None
                for block in c.blocks
                if block.time_min <= block.time_max
            ),
            None,
        )
        retained_from = None if first is None else moment(first.time_min)
        began_earlier = query.from_lsn is not None and query.from_lsn < start
        if query.since is not None:
            began_earlier |= retained_from is None or query.since < retained_from
        if query.from_lsn is None and query.since is None:
            # All that ever was, as far as it is there.
            began_earlier = False
        return ChangePage(
            tuple(found),
            following,
            tables,
            Lsn(min(began, reached)),
            Lsn(max(began, reached)),
            Lsn(start),
            retained_from,
            Lsn(decoded_lsn),
            began_earlier,
            timed_out,
            self._finder.undecided,
            tuple(self._unreadable),
            self._read_bytes,
            self._passed_over_bytes,
        )

    def _contents(self, stretches: list[_Stretch]) -> list[Contents | None]:
        """Return what each stretch has; None for one that can't be read."""
        known = contents_of(self._log)
        found: list[Contents | None] = []
        for segment, upto_lsn, is_sealed in stretches:
            self._check()
            try:
                if segment.lost:
                    found.append(None)
                    self._note_unreadable(segment.start_lsn, upto_lsn)
                    continue
                found.append(
                    known.of(
                        self._log, segment, upto_lsn, is_sealed=is_sealed, check=self._check_time
                    )
                )
            except UNREADABLE:
                found.append(None)
                self._note_unreadable(segment.start_lsn, upto_lsn)
        return found

    def _note_unreadable(self, from_lsn: int, upto_lsn: int) -> None:
        query = self._query
        low = max(from_lsn, query.from_lsn or 0)
        high = upto_lsn if query.upto_lsn is None else min(upto_lsn, query.upto_lsn)
        if low < high:
            self._unreadable.append((Lsn(low), Lsn(high)))

    def _resolve(self, names: set[TableName]) -> tuple[str, ...]:
        """Find out which tables are meant; return the names that they have in the log."""
        wanted = self._query.table
        if not wanted:
            return ()
        oids = {
            name.oid
            for name in names
            if any(
                wanted in (readable(f"{schema}.{table}"), readable(table))
                for schema, table in ((name.schema, name.name), *name.ancestors)
            )
        }
        self._oids = frozenset(oids)
        return tuple(sorted({readable(f"{n.schema}.{n.name}") for n in names if n.oid in oids}))

    def _blocks(
        self, stretches: list[_Stretch], contents: list[Contents | None]
    ) -> Iterator[Block]:
        """Yield the blocks that are within the bounds of LSN, in the order that is asked for."""
        query = self._query
        low = query.from_lsn or 0
        high = _LSN_MAX if query.upto_lsn is None else query.upto_lsn
        if query.after is not None:
            if query.newest_first:
                high = min(high, query.after.commit_lsn + 1)
            else:
                low = max(low, query.after.commit_lsn)
        order = reversed if query.newest_first else iter
        for (_, upto_lsn, _), one in order(list(zip(stretches, contents, strict=True))):
            for block in order(list(one.blocks) if one is not None else []):
                if block.last_lsn >= low and block.first_lsn < min(high, upto_lsn):
                    yield block

    def _may_have(self, block: Block) -> bool:
        query = self._query
        if query.has_times and not (
            block.time_max >= query.from_time and block.time_min < query.upto_time
        ):
            return False
        if query.xid is not None and not block.xid_min <= query.xid <= block.xid_max:
            return False
        tables = block.tables
        if self._oids is None:
            return any(found.operations & self._operations for found in tables.values())
        return any(tables[oid].operations & self._operations for oid in self._oids if oid in tables)

    def _check_columns(self, found: list[FoundChange], *, has_more: bool) -> None:
        finder = self._finder
        if finder.has_columns is not False or found or has_more:
            return
        missing = ", ".join(sorted(set(self._query.key) - set(finder.other_columns)))
        raise InvalidRequest(
            f'table "{self._query.table}" has no column {missing}',
            hint=f"Its columns are {', '.join(finder.other_columns)}.",
        )

    def _is_asked_for(self, piece: LoggedTransaction) -> bool:
        """Say whether its kind may have what is asked for: a message outside of transactions has no
        time.
        """
        return is_committed(piece) or (is_outside(piece) and not self._query.has_times)

    # -- a block ------------------------------------------------------------------------------

    def _read(self, block: Block) -> None:
        query, limit = self._query, self._query.limit
        self._read_bytes += block.nbytes
        rows: list[FoundChange] = []
        cursor = None
        try:
            cursor = TransactionCursor(self._log, block.first_lsn)
            for some in self._rows(cursor, block.last_lsn + 1):
                rows += some
                if query.newest_first:
                    del rows[: -(limit + 1)]
                elif len(self._found) + len(rows) > limit:
                    break
        except UNREADABLE:
            self._note_unreadable(block.first_lsn, block.last_lsn + 1)
        finally:
            if cursor is not None:
                cursor.close()
        if query.newest_first:
            rows.reverse()
        self._found += rows

    def _rows(self, cursor: TransactionCursor, upto_lsn: int) -> Iterator[list[FoundChange]]:
        """Yield the rows that are asked for before *upto_lsn*, in their order."""
        selector, finder, after = self._selector, self._finder, self._query.after
        for piece in pieces(cursor, upto_lsn):
            self._check()
            relations = piece.relations
            selector.begin(relations)
            if isinstance(piece, TransactionRun):
                some: list[FoundChange] = []
                for header, changes in selector.run(piece):
                    some += finder.gather(header, changes, relations)
                yield some + finder.take()
            elif self._is_asked_for(piece) and selector.takes(piece.header):
                header = piece.header
                from_lsn, last_lsn = 0, _LSN_MAX
                if after is not None and after.commit_lsn == header.final_lsn:
                    # What was shown of it, as far as an LSN tells.
                    if self._query.newest_first:
                        last_lsn = after.lsn
                    else:
                        from_lsn = after.lsn
                for chunk in piece.chunks():
                    self._check()
                    selected = selector.chunk(chunk, from_lsn, last_lsn)
                    if selected is not None:
                        yield finder.gather(header, selected, relations) + finder.take()


def whole_transaction(query: ChangeQuery, commit_lsn: int) -> ChangeQuery:
    """Return the question for all of a transaction."""
    return replace(
        query,
        from_lsn=Lsn(commit_lsn),
        upto_lsn=Lsn(commit_lsn + 1),
        table="",
        key={},
        prefix=None,
    )
