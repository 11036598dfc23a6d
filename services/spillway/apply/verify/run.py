"""``spillway subscription verify`` and ``repair``: the target against its source while the
subscription runs.

::

    snapshot of the source, as of S ──▶ wait until the slot is confirmed past S
        ──▶ snapshot of the target, which is as of P
    P ≤ S: both are as of S, so every difference is one
    P > S: what differs is looked at again, key by key

The target has every transaction before S by then, and maybe some after it. Where it has some, a key
that differs is decided by a closer look::

    the source's row, as of S' ──▶ wait until S' is confirmed ──▶ the target's row
        ──▶ the source's row, as of S" behind all that the target had

If the source's row is the same version at both ends, nothing that the target applied meanwhile was
about it, and the target's row must equal it. If the versions differ, the key is looked at again, a
few times; a key that is written to all the time stays undecided, and the report says so. S" is a
snapshot at an LSN as S' is, and not what a session sees now: a commit is in WAL, and may be on the
target, before it is seen on the source, for as long as it waits for a synchronous standby.

**What repair guarantees.** It locks the target's row, so that the subscription's program, which may
want to write to it, waits; it checks that the source's row is still of the version that the target
has been brought past; and only then it writes that row and commits. All that was committed to the
row before is thus on the target or overwritten by the source's newest, and what comes after is
applied on top. What it writes has an origin of the subscription's: it is nobody's local row. A row
that the target lacks can't be locked: should the source write to it within the same moment, the
change finds no row and is dropped (``update_missing``), so keys are compared again once they are
repaired, and repaired again if they differ. Repair never touches a row that is equal.

Rows may have swapped what a unique index of the target watches, and one statement that updates them
meets the other's value then. Such rows are deleted and inserted again, all that differ at once,
where nothing else takes effect by that: a foreign key that cascades would take other rows with it.

What a server refuses of a table (its rows may not be read, somebody has it locked) is said of it,
with the remedy, and the other tables are gone on with. What repair was refused stays as it was.

**Tables that are altered meanwhile.** A comparison has the columns of one moment. Where rows are
read or written it is looked first whether the table is defined as it was, under a lock that keeps
it so; if it isn't, all of that table is done anew. Else a row that is missing would be made without
a column that both sides have got since, and nobody would see it. Between two looks no lock of the
source is held.

The slot must move: a subscription that is paused, or stopped by an error, does not pass S.

Source: row versions are compared by xmin and ctid, as heap_fetch finds them
(src/backend/access/heap/heapam.c)
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg

from spillway.apply.tables.matching import match_all
from spillway.apply.verify.closer_look import CloserLook
from spillway.apply.verify.column_types import column_types
from spillway.apply.verify.outcomes import TableOutcome, Verification, reason_of
from spillway.apply.verify.pairs import TablePair, print_alike, speak_alike
from spillway.apply.verify.sides import Altered, Sides, is_the_tables_own
from spillway.consumer.connect import connect, exports_of
from spillway.consumer.snapshots import Source, names_any
from spillway.errors import SpillwayError, UnknownTable
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.apply.sync.published import PublishedTable
    from spillway.apply.verify.pairs import Connection, Found
    from spillway.apply.verify.settings import VerifySettings
    from spillway.consumer.row_checksums import TextForm
    from spillway.consumer.snapshots import SourceSnapshot

#: Keys of a table that may differ only by what was written meanwhile: more are not looked at.
_LOOKED_AT: Final = 10_000
#: Comparisons of a table that is altered meanwhile.
_ANEW_MAX: Final = 4
_ALTERED: Final = (
    "it was altered, or was about to be, each time that it was looked at. Run this again when no "
    "ALTER TABLE is at work on it"
)
#: between two comparisons of such a table, times how many there were
_ANEW_S: Final = 0.1


def verify(
    settings: VerifySettings,
    *,
    repair: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    on_table: Callable[[TableOutcome], None] = lambda _: None,
) -> Verification:
    """Compare the target with its source, and with *repair* bring the keys in order that differ.

    Args:
        settings: see :class:`VerifySettings`; with *repair* its ``limit`` bounds how many keys of a
            table are repaired.
        repair: of tables with a key only.
        tell: told what is being waited for.
        on_table: called with each table's outcome as it is known.

    Raises:
        SourceError: the source gives no snapshot.
        TargetError: the target refuses.
        NotReady: the subscription did not reach the snapshot in time.
    """
    options = {"grpc": settings.grpc, "token": settings.token, **settings.client_options}
    with closing(connect(options)) as client:
        # Values are compared as both servers print them: the slot's options are nothing to that.
        source = Source(settings.source_dsn, {}, exports_of(options, settings.slot))
        return _Run(Sides(settings, client, source, tell)).all(on_table, repair=repair)


class _Run:
    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._look = CloserLook(sides)

    def all(
        self, on_table: Callable[[TableOutcome], None], attempt: int = 1, *, repair: bool
    ) -> Verification:
        wanted = self._sides.wanted()
        outcomes = {name: TableOutcome(name) for name in wanted}
        tables: dict[str, PublishedTable] = {}
        for name, one in wanted.items():
            if isinstance(one, SpillwayError):
                outcomes[name].skipped = reason_of(one)
            else:
                tables[name] = one
        pairs: dict[str, TablePair] = {}
        inexact = []
        with ExitStack() as held:
            snapshot = self._reached_snapshot(tables, outcomes)
            held.callback(snapshot.close)
            target = held.enter_context(self._sides.target())
            target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            applied, states = self._sides.applied(target)
            is_exact = 0 <= applied <= snapshot.lsn
            altered = self._sides.altered(snapshot, tables)
            print_alike(snapshot.connection)
            forms = speak_alike(snapshot.connection, target)
            for name, table in tables.items():
                outcome = outcomes[name]
                if why := states.get(name, ""):
                    outcome.skipped = why
                    continue
                if name in altered:
                    continue
                try:
                    pair, found = self._compared(table, snapshot, target, forms, repair=repair)
                except SpillwayError as error:
                    if not is_the_tables_own(error):
                        raise
                    outcome.skipped = reason_of(error)
                    continue
                pairs[name] = pair
                outcome.source_rows, outcome.target_rows = found.source_rows, found.target_rows
                outcome.differences, outcome.more = found.differences, found.more
                if found.differences and not is_exact:
                    inexact.append(name)
            lsn = Lsn(snapshot.lsn)
        for name, outcome in list(outcomes.items()):
            try:
                if name in altered:
                    raise Altered  # noqa: TRY301 - as who finds it out later
                if name in pairs:
                    self._look.decide(
                        tables[name], pairs[name], outcome, name in inexact, repair=repair
                    )
            except Altered:
                outcomes[name] = self._anew(outcome, attempt, repair=repair)
            on_table(outcomes[name])
        return Verification(lsn, list(outcomes.values()))

    def _anew(self, outcome: TableOutcome, attempt: int, *, repair: bool) -> TableOutcome:
        """Do all of a table again that was altered; return what comes out."""
        if attempt == _ANEW_MAX:
            return replace(
                outcome,
                differences=[],
                more=False,
                undecided=[],
                skipped=outcome.skipped or _ALTERED,
            )
        self._sides.tell(f"{outcome.table} was altered meanwhile: looking at it again")
        time.sleep(_ANEW_S * attempt)
        again = _Run(self._sides.of_table(outcome.table))
        try:
            (anew,) = again.all(lambda _: None, attempt + 1, repair=repair).tables
        except UnknownTable as error:
            anew = TableOutcome(outcome.table, skipped=reason_of(error))
        anew.repaired += outcome.repaired
        return anew

    def _reached_snapshot(
        self, tables: dict[str, PublishedTable], outcomes: Mapping[str, TableOutcome]
    ) -> SourceSnapshot:
        """Take a snapshot of the source, and wait until the target has all that it has. Tables that
        the source refuses are taken out of *tables*, and their outcomes say why.
        """
        while True:
            try:
                snapshot = self._sides.snapshot([h for t in tables.values() for h in t.heaps])
                break
            except SpillwayError as error:
                refused = [
                    name
                    for name, table in tables.items()
                    if names_any(error, [f"{h.schema}.{h.table}" for h in table.heaps])
                ]
                if not refused:
                    raise
                for name in refused:
                    outcomes[name].skipped = reason_of(error)
                    del tables[name]
        try:
            self._sides.wait(snapshot.lsn)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _compared(
        self,
        table: PublishedTable,
        snapshot: SourceSnapshot,
        target: Connection,
        forms: tuple[TextForm, TextForm],
        *,
        repair: bool,
    ) -> tuple[TablePair, Found]:
        """Compare a table's rows as both snapshots have them; what fails ends neither of them."""
        source, relation = snapshot.connection, table.relation
        matched = match_all(target, [relation], self._sides.settings.rename.target_of)[
            relation.relation_id
        ]
        if isinstance(matched, SpillwayError):
            raise matched
        pair = TablePair(table, matched, column_types(source, relation, matched), forms)
        limit = self._sides.settings.limit
        looked = limit if repair or not pair.key else max(limit, _LOOKED_AT)
        try:
            with source.transaction(), target.transaction():
                return pair, pair.compare(source, target, looked)
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._sides.not_permitted(error, target, matched) from error
        except psycopg.Error as error:
            raise self._sides.refused(error, f"rows of {pair.name} can't be compared") from error
