"""Which tables a subscription has, as the stream's options and as a question about a table.

By publications the service leaves out what they do not publish. By names, or for all, it publishes
every captured table (``spillway.all_tables``), and what was not asked for is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spillway.apply.target.own_schema import is_own

if TYPE_CHECKING:
    from spillway.apply.changes import SourceRelation


@dataclass(frozen=True, slots=True)
class Selection:
    """Publications, tables as ``schema.table``, or, with neither, all."""

    publications: tuple[str, ...] | None = None
    tables: frozenset[str] | None = None

    def has(self, schema: str, table: str) -> bool:
        """Say whether a table of the source is one of the subscription's. What a subscription in
        the other direction keeps there is not, whatever publishes it.
        """
        return not is_own(schema, table) and (
            self.publications is not None
            or self.tables is None
            or f"{schema}.{table}" in self.tables
        )

    def should_apply(self, relation: SourceRelation, commit_lsn: int) -> bool:
        """Say whether the changes that commit at *commit_lsn* are written."""
        del commit_lsn
        return self.has(relation.schema, relation.name)

    def plugin_options(
        self,
        *,
        two_phase: bool,
        only_local: bool,
        streaming: bool = False,
        ddl: bool = False,
        whole_prepared: bool = False,
    ) -> dict[str, str]:
        """Return pgoutput's options; with *whole_prepared* prepared transactions come when they
        commit, though the slot tells its stream of them before.

        Protocol 1 has all that is needed for transactions that have ended; 2 brings those in
        progress, 3 prepared ones, from PostgreSQL 15 on.
        """
        options = {"proto_version": "3" if two_phase else "2" if streaming else "1"}
        if self.publications is None:
            options["spillway.all_tables"] = "on"
        else:
            options["publication_names"] = ",".join(_quoted(one) for one in self.publications)
        if two_phase:
            options["two_phase"] = "on"
        if streaming:
            options["streaming"] = "on"
        if only_local:
            options["spillway.origin"] = "none"
        if ddl:
            options["spillway.ddl"] = "on"
        if whole_prepared:
            options["spillway.whole_prepared"] = "on"
        return options


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
