"""What a statement is made from: random numbers, a session and what it sees, and what others have
locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from spillway.certify.workload.session import Session, Statement
    from spillway.certify.workload.view import Table, View

#: A kind of statement: makes some, to be executed one after the other while they succeed; None when
#: there is nothing to make them about.
Kind: TypeAlias = Callable[["Scene"], "Sequence[Statement | str] | None"]
#: Kinds with their weights.
Kinds: TypeAlias = "Sequence[tuple[int, Kind]]"

#: Of tables that some kinds of statements need.
SPECIAL_SCHEMA: Final = "w_0"
#: How many tables there may be before more are dropped than created.
TABLES_MAX = 24


@dataclass(slots=True)
class Shared:
    """What all sessions of a workload share."""

    #: prefix of names that the whole cluster shares: prepared transactions, origins
    cluster_prefix: str
    major: int
    superuser: bool
    #: whether unlogged tables may be made
    unlogged: bool = True
    sessions: list[Session] = field(default_factory=list)
    #: gid → tables that the prepared transaction holds locks on
    prepared: dict[str, dict[str, bool]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    counter: int = 0

    def next_number(self) -> int:
        """Return a number that was never returned before."""
        self.counter += 1
        return self.counter


class Scene:
    """One decision: what session *session* executes next."""

    def __init__(self, rng: random.Random, session: Session, shared: Shared) -> None:
        self.random = rng
        self.session = session
        self.shared = shared

    @property
    def view(self) -> View:
        """What the session sees."""
        return self.session.view

    def chance(self, probability: float) -> bool:
        """Toss a coin."""
        return self.random.random() < probability

    def new_name(self, stem: str) -> str:
        """Return a new name, quoted where it must be."""
        number = self.shared.next_number()
        return f'"Odd {stem} {number}"' if self.chance(0.08) else f"{stem}{number}"

    def new_table_name(self, schema: str | None = None) -> str:
        """Return a new table's qualified name."""
        return f"{schema or self.schema()}.{self.new_name('t')}"

    def schema(self) -> str:
        """Choose a schema for something new."""
        return self.random.choice(
            [s for s in self.view.schemas if s != SPECIAL_SCHEMA] or ["public"]
        )

    def others_at_work(self) -> bool:
        """Whether another session is inside of a transaction: it may hold locks on catalogs."""
        return bool(self.shared.prepared) or any(
            not session.idle for session in self.shared.sessions if session is not self.session
        )

    def nobody_remembers_names(self) -> bool:
        """Whether a schema, a type or an enum's label may be renamed, a composite type's attributes
        changed.

        That takes no lock on tables, and so may happen between another transaction's changes.
        PostgreSQL prints for those before it the old name or the new one, depending on what its
        session has in its caches from other transactions that it decoded before: there is no one
        right answer to compare with.
        """
        return self.session.idle and not self.others_at_work()

    def locked_by_others(self, table: Table) -> bool:
        """Whether another transaction holds a lock on *table*."""
        return self._is_locked(self._root(table), exclusive=True)

    def ids(self, count: int) -> tuple[int, int]:
        """Return the first and the last of *count* keys that nobody uses; every fourth is this
        session's.
        """
        first = (self.shared.counter + 1) * 4 + self.session.number % 4
        self.shared.counter += count + 1
        return first, first + 4 * (count - 1)

    def table(
        self,
        kinds: str = "rp",
        *,
        exclusive: bool = False,
        special: bool = False,
        where: Callable[[Table], bool] | None = None,
    ) -> Table | None:
        """Choose a table that can be locked, most likely, and note that this transaction locks it.

        *exclusive*: the lock excludes all others; then the tables that the set-up made are spared,
        unless *special*.
        """
        candidates = [
            table
            for table in self.view.tables
            if table.kind in kinds
            and (where is None or where(table))
            and (not exclusive or special or table.schema != SPECIAL_SCHEMA)
        ]
        if not candidates:
            return None
        free = [
            table
            for table in candidates
            if not self._is_locked(self._root(table), exclusive=exclusive)
        ]
        if free and not self.chance(0.02):
            table = self.random.choice(free)
        elif free or self.chance(0.05):
            table = self.random.choice(candidates)
        else:
            return None
        if not self.session.idle:
            root = self._root(table)
            self.session.locked[root] = exclusive or self.session.locked.get(root, False)
        return table

    def _root(self, table: Table) -> str:
        seen = set()
        while table.parent and table.parent not in seen:
            seen.add(table.parent)
            parent = self.view.table(table.parent)
            if parent is None:
                break
            table = parent
        return table.name

    def _is_locked(self, root: str, *, exclusive: bool) -> bool:
        return any(root in held and (exclusive or held[root]) for held in self._held_by_others())

    def _held_by_others(self) -> Iterator[dict[str, bool]]:
        for session in self.shared.sessions:
            if session is not self.session:
                yield session.locked
        yield from self.shared.prepared.values()

    def mine(self, table: Table) -> str:
        """Return a condition that picks some rows, nearly always ones that only this session
        changes.
        """
        if not table.has_id:
            return (
                (
                    f"ctid IN (SELECT ctid FROM {table.name} ORDER BY ctid LIMIT "
                    f"{self.random.randint(1, 3)})"
                )
                if self.chance(0.7)
                else "false"
            )
        residue = "true" if self.chance(0.03) else f"id % 4 = {self.session.number % 4}"
        match self.random.randrange(4):
            case 0:
                return f"{residue} AND id / 4 % {self.random.randint(2, 9)} = 0"
            case 1:
                return f"id = (SELECT min(id) FROM {table.name} WHERE {residue})"
            case 2:
                return (
                    f"id IN (SELECT id FROM {table.name} WHERE {residue} ORDER BY id DESC LIMIT "
                    f"{self.random.randint(1, 6)})"
                )
            case _:
                return residue


def choose(rng: random.Random, kinds: Kinds) -> Kind:
    """Choose a kind by weight."""
    return rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
