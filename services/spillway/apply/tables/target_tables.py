"""The tables of a subscription, matched, and kept until something changes them.

Three things do: a Relation message (:meth:`TargetTables.learn`), an error that a write met and that
the target's own DDL may explain, and a look from time to time (:meth:`TargetTables.look_again`
for both). DDL between two looks does no harm: statements name tables and columns, so that what no
longer fits fails, and what fits is still right, if slower.

A table that can't be matched raises when it is asked for, and no other is touched by that. It is
matched again at the next look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spillway.apply.tables.matching import match_all, same_name
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.apply.changes import SourceRelation
    from spillway.apply.tables.catalog import Connection
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.tables.matching import Rename


#: REPLICA_IDENTITY_FULL
_FULL: Final = "f"


def _none(table: str) -> bool:
    del table
    return False


class TargetTables:
    """What is known of the target's tables, by the source's relation id.

    Args:
        rename: the name on the target of a (schema, table) of the source.
        merging: whether ``schema.table`` of the target is merged column by column, where the source
            sends whole old rows.
    """

    def __init__(self, rename: Rename = same_name, merging: Callable[[str], bool] = _none) -> None:
        self._rename = rename
        self._merging = merging
        self._relations: dict[int, SourceRelation] = {}
        self._found: dict[int, MatchedTable | SpillwayError] = {}

    def learn(self, relations: Iterable[SourceRelation]) -> None:
        """Take Relation messages; what was known of these tables is forgotten where it differs."""
        for relation in relations:
            known = self._relations.get(relation.relation_id)
            if known is not relation and known != relation:
                self._relations[relation.relation_id] = relation
                self._found.pop(relation.relation_id, None)

    def match(self, connection: Connection, relation_ids: Iterable[int]) -> None:
        """Match all of these that are not matched yet, in one round trip.

        Raises:
            psycopg.Error: the target did not answer.
        """
        wanted = [self._relations[one] for one in set(relation_ids) if one not in self._found]
        if wanted:
            self._found.update(self._match(connection, wanted))

    def match_learned(self, connection: Connection) -> None:
        """Match all that were learned and are not matched yet, in one round trip.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self.match(connection, self._relations)

    def relation(self, relation_id: int) -> SourceRelation:
        """Return the Relation message of a table.

        Raises:
            KeyError: none came.
        """
        return self._relations[relation_id]

    def table(self, connection: Connection, relation_id: int) -> MatchedTable:
        """Return a table, matched now if it was not.

        Raises:
            TargetTableMissing: the target has no such table.
            TargetColumnsMissing: it has, without columns that the source sends.
            TargetTableUnusable: it has, and rows can't be replicated into it.
            psycopg.Error: the target did not answer.
        """
        if relation_id not in self._found:
            self.match(connection, [relation_id])
        found = self._found[relation_id]
        if isinstance(found, SpillwayError):
            raise found
        return found

    def matched(self) -> dict[int, MatchedTable]:
        """Return the tables that are matched, by the source's relation id."""
        return {k: v for k, v in self._found.items() if not isinstance(v, SpillwayError)}

    def failed(self) -> dict[int, SpillwayError]:
        """Return why the others aren't, by the source's relation id."""
        return {k: v for k, v in self._found.items() if isinstance(v, SpillwayError)}

    def forget(self) -> None:
        """Have every table matched again when it is asked for: the target's were changed."""
        self._found.clear()

    def look_again(self, connection: Connection) -> set[int]:
        """Match every table again, in one round trip; return those of which something changed.

        Raises:
            psycopg.Error: the target did not answer; what was known stays.
        """
        known = [self._relations[one] for one in self._found]
        found = self._match(connection, known)
        changed = {one for one in found if _differs(found[one], self._found[one])}
        self._found.update((one, found[one]) for one in changed)
        return changed

    def _match(
        self, connection: Connection, wanted: list[SourceRelation]
    ) -> dict[int, MatchedTable | SpillwayError]:
        found = match_all(connection, wanted, self._rename)
        for relation in wanted:
            table = found[relation.relation_id]
            if isinstance(table, SpillwayError) or relation.replica_identity != _FULL:
                continue
            if self._merging(f"{table.schema}.{table.name}"):
                # A statement for many rows sets the same columns of each.
                why = table.not_groupable or "updates are merged column by column"
                found[relation.relation_id] = replace(
                    table, merges=True, groupable=False, not_groupable=why
                )
        return found


def _differs(one: MatchedTable | SpillwayError, other: MatchedTable | SpillwayError) -> bool:
    if isinstance(one, SpillwayError) and isinstance(other, SpillwayError):
        return one.message != other.message
    return one != other
