"""What repair writes on the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.sync.origins import mark
from spillway.apply.target.session import grant_origins_sql
from spillway.errors import TargetNotPermitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.apply.verify.pairs import Connection, Key, TablePair
    from spillway.consumer.row_differences import Difference

TRIGGERS_REST: Final = (
    "Foreign keys and triggers are in force for this role: repair as a superuser, or from 15 on "
    "GRANT SET ON PARAMETER session_replication_role to it."
)


class OriginMark:
    """Marks what is written as the subscription's.

    Args:
        subscription: whose progress the target has.
        tell: told, once, that it can't be.
    """

    def __init__(self, subscription: str, tell: Callable[[str], None]) -> None:
        self._subscription = subscription
        self._tell = tell
        self._said_unmarked = False

    def put(self, target: Connection) -> None:
        """Have what is written be the subscription's, if what it writes itself is."""
        if not (origin := _origin(target, self._subscription)):
            return
        if not mark(target, origin) and not self._said_unmarked:
            self._said_unmarked = True
            self._tell(
                "what is repaired will be taken for somebody else's, by conflicts and by a "
                "subscription in the other direction: the target has no replication origin for "
                f"the role, or no room for one more. {grant_origins_sql(target.info.user)}"
            )


def _origin(target: Connection, subscription: str) -> str | None:
    row = target.execute(
        "SELECT pg_catalog.to_regclass('spillway.progress') IS NOT NULL"
    ).fetchone()
    if row is None or not row[0]:
        return None
    row = target.execute(
        "SELECT origin FROM spillway.progress WHERE subscription = %s",
        [subscription],
    ).fetchone()
    return None if row is None else row[0]


def rest_triggers(target: Connection) -> bool:
    """Write as the subscription's program does, where the role may; say whether it may."""
    try:
        with target.transaction():
            target.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def mend(
    target: Connection,
    pair: TablePair,
    differing: list[Difference],
    rows: dict[str, list[Any]],
    *,
    rests: bool,
) -> None:
    """Bring the target's rows in order, in the open transaction.

    Args:
        target: whose rows they are.
        pair: their table.
        differing: what differs.
        rows: the source's, by the text of their key.
        rests: triggers and foreign keys are not in force.

    Raises:
        TargetNotPermitted: it would have effects of its own.
        psycopg.Error: the target refuses.
    """

    def texts(only: str) -> dict[Key, list[Any]]:
        """Return the source's rows of those that differ so, by key."""
        keys = dict.fromkeys(d.key for d in differing if d.only == only)
        return {key: [row.texts for row in rows[pair.key_text(key)]] for key in keys}

    extra = [d.key for d in differing if d.only == "target"]
    if extra:
        pair.delete(target, extra)
    missing, changed = texts("source"), texts("")
    # A deletion has effects of its own where these are in force.
    has_effects = not rests and bool(pair.matched.references or pair.matched.fires)
    made_again = {
        key: changed.pop(key)
        for key in dict.fromkeys(
            d.key for d in differing if pair.unsettable.intersection(d.columns)
        )
    }
    if made_again and has_effects:
        raise TargetNotPermitted(
            f"rows of {pair.name} can't be repaired: only who makes a row again gives it "
            f"another value of a column GENERATED ALWAYS AS IDENTITY",
            hint=TRIGGERS_REST,
            sqlstate="428C9",
        )
    target.execute("SAVEPOINT mended")
    try:
        if made_again:
            pair.replace(target, made_again)
        for some, write in ((missing, pair.insert), (changed, pair.update)):
            if some:
                write(target, [one for row in some.values() for one in row])
    except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
        changed |= made_again
        if has_effects or not changed:
            raise
        target.execute("ROLLBACK TO SAVEPOINT mended")
        pair.replace(target, changed)
        if missing:
            pair.insert(target, [one for row in missing.values() for one in row])
