"""A closer look at what differs where the target may have later transactions: whether it does, and
with repair its mending. How both are exact stands in :mod:`spillway.apply.verify.run`.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.verify.mending import TRIGGERS_REST, OriginMark, mend, rest_triggers
from spillway.apply.verify.outcomes import SAID_MAX, reason_of
from spillway.apply.verify.pairs import print_alike, speak_alike
from spillway.apply.verify.sides import Altered, is_the_tables_own
from spillway.consumer.row_differences import Difference, differences
from spillway.errors import SpillwayError, TargetError

if TYPE_CHECKING:
    from spillway.apply.sync.published import PublishedTable
    from spillway.apply.verify.outcomes import TableOutcome
    from spillway.apply.verify.pairs import Connection, Key, TablePair
    from spillway.apply.verify.sides import Sides

#: Looks at keys that are written to meanwhile.
_LOOKS: Final = 5
#: Keys that are looked at, and repaired, at once.
_KEYS_AT_ONCE: Final = 1000
#: SQLSTATEs of a row that another one is in the way of
_IN_THE_WAY: Final = frozenset({"23505", "23P01"})
_CLASS_OF_CONSTRAINTS: Final = "23"
_NO_KEY: Final = (
    "nothing tells its rows apart. Leave it out of the subscription, empty it on the target, and "
    "name it again: it is copied anew"
)


class CloserLook:
    """Looks at tables of which the first comparison found something.

    Args:
        sides: the source and the target.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._mark = OriginMark(sides.settings.subscription, sides.tell)

    def decide(
        self,
        table: PublishedTable,
        pair: TablePair,
        outcome: TableOutcome,
        is_inexact: bool,
        *,
        repair: bool,
    ) -> None:
        """Decide about what differs, and with *repair* mend it."""
        differing = outcome.differences
        try:
            if differing and pair.key and (repair or is_inexact):
                keys = list(dict.fromkeys(d.key for d in differing))
                self._by_keys(table, pair, outcome, keys, repair=repair)
                if is_inexact and outcome.more and not outcome.differences:
                    # What was not looked at may have been written meanwhile, too.
                    self._again(table, pair, outcome)
            elif is_inexact:
                self._again(table, pair, outcome)
        except SpillwayError as error:
            if not is_the_tables_own(error):
                raise
            if repair:
                outcome.refused = reason_of(error)
                outcome.differences = differing[:SAID_MAX]
                outcome.more = outcome.more or len(differing) > SAID_MAX
            else:
                # What was found may have been written meanwhile.
                outcome.skipped = reason_of(error)
        if repair and not pair.key and not outcome.equal:
            outcome.refused = _NO_KEY
        limit = self._sides.settings.limit
        outcome.more = outcome.more or len(outcome.differences) > limit
        del outcome.differences[limit:]

    def _again(self, table: PublishedTable, pair: TablePair, outcome: TableOutcome) -> None:
        """Compare a table as a whole, until both sides are as of one LSN, or alike."""
        for _ in range(_LOOKS):
            with ExitStack() as held:
                snapshot = self._sides.snapshot(table.heaps)
                held.callback(snapshot.close)
                if self._sides.altered(snapshot, {pair.name: table}):
                    raise Altered
                self._sides.wait(snapshot.lsn)
                target = held.enter_context(self._sides.target())
                target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                applied, _ = self._sides.applied(target)
                self._sides.check_target(pair, target)
                print_alike(snapshot.connection)
                speak_alike(snapshot.connection, target)
                found = pair.compare(snapshot.connection, target, self._sides.settings.limit)
            outcome.source_rows, outcome.target_rows = found.source_rows, found.target_rows
            outcome.differences, outcome.more = found.differences, found.more
            if not found.differences or 0 <= applied <= snapshot.lsn:
                return
        outcome.undecided = list(dict.fromkeys(d.key for d in outcome.differences))
        outcome.differences, outcome.more = [], False

    def _by_keys(
        self,
        table: PublishedTable,
        pair: TablePair,
        outcome: TableOutcome,
        keys: list[Key],
        *,
        repair: bool,
    ) -> None:
        outcome.differences = []
        at, at_once = 0, _KEYS_AT_ONCE
        while at < len(keys):
            pending = keys[at : at + at_once]
            mended: set[Key] = set()
            for _ in range(_LOOKS):
                try:
                    differing, pending = self._look(table, pair, pending, repair=repair)
                except TargetError as error:
                    if (
                        error.details.get("sqlstate") not in _IN_THE_WAY
                        or len(keys) <= at + at_once
                    ):
                        raise
                    # What is in the way may be a row whose turn is later.
                    at_once = len(keys)
                    pending = keys[at:]
                    continue
                if repair:
                    # What was written is looked at once more.
                    repaired = {d.key for d in differing}
                    mended |= repaired
                    pending += list(repaired)
                else:
                    outcome.differences += differing
                if not pending:
                    break
            at += at_once
            outcome.undecided += pending
            outcome.repaired += len(mended - set(pending))

    def _look(
        self, table: PublishedTable, pair: TablePair, keys: list[Key], *, repair: bool
    ) -> tuple[list[Difference], list[Key]]:
        """Look at *keys* once: how those differ that can be told, which *repair* mends; and those
        that were written to meanwhile.
        """
        with self._sides.target() as target:
            # It is not held while something is waited for: ALTER TABLE would wait for it, and
            # everybody, this session too, for ALTER TABLE.
            with closing(self._sides.snapshot(table.heaps)) as snapshot:
                if self._sides.altered(snapshot, {pair.name: table}):
                    raise Altered
                print_alike(snapshot.connection)
                speak_alike(snapshot.connection, target)
                rows = pair.source_rows(snapshot.connection, keys)
                before = pair.source_versions(snapshot.connection, keys)
            self._sides.wait(snapshot.lsn)
            if not repair:
                self._sides.check_target(pair, target)
                return self._told(table, pair, keys, rows, before, target)
            self._mark.put(target)
            rests = False
            try:
                target.execute("BEGIN")
                rests = rest_triggers(target)
                pair.lock_target_rows(target, keys)
                # Nobody alters it from here on.
                self._sides.check_target(pair, target)
                differing, moved = self._told(table, pair, keys, rows, before, target)
                mend(target, pair, differing, rows, rests=rests)
                target.execute("COMMIT")
            except psycopg.errors.DeadlockDetected:
                # The program writes to these very rows, in an order of its own.
                target.execute("ROLLBACK")
                return [], keys
            except psycopg.Error as error:
                told = self._sides.refused(error, f"rows of {pair.name} can't be repaired")
                if not rests and (error.sqlstate or "").startswith(_CLASS_OF_CONSTRAINTS):
                    told.hint = TRIGGERS_REST
                raise told from error
        return differing, moved

    def _told(
        self,
        table: PublishedTable,
        pair: TablePair,
        keys: list[Key],
        rows: dict[str, list[Any]],
        before: dict[str, str],
        target: Connection,
    ) -> tuple[list[Difference], list[Key]]:
        """Compare *rows*, of which *before* has the versions, with the target's; part those that
        differ from those that were written to since.
        """
        theirs = pair.target_rows(target, keys)
        differing: dict[Key, list[Difference]] = {}
        for key in keys:
            text = pair.key_text(key)
            ours = rows.get(text, [])
            found = differences(
                text, ours, theirs.get(text, []), pair.columns, keyed=True, other="target"
            )
            if told := list(found):
                differing[key] = told
        if not differing:
            return [], []
        # Behind the end of WAL, and so behind all that the target had.
        with closing(self._sides.snapshot(table.heaps)) as snapshot:
            if self._sides.altered(snapshot, {pair.name: table}):
                raise Altered
            print_alike(snapshot.connection)
            speak_alike(snapshot.connection, target)
            after = pair.source_versions(snapshot.connection, list(differing))
        texts = {key: pair.key_text(key) for key in differing}
        moved = [k for k, text in texts.items() if before.get(text) != after.get(text)]
        for key in moved:
            del differing[key]
        return [one for told in differing.values() for one in told], moved
