"""Tables that the target lacks are made there, if the subscription wants that: ``create_tables``.

By the ``pg_dump`` of the source's version, when there is one (:mod:`dump`), else from the source's
catalog (:mod:`definitions`). Which it was, and what could not be made and why, is kept for whoever
asks how the subscription is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.apply.sync import dump
from spillway.apply.sync.definitions import create_missing
from spillway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from spillway.apply.sync.settings import SyncSettings
    from spillway.apply.sync.sides import Sides
    from spillway.apply.sync.states import TableName


class MissingTables:
    """See the module.

    Args:
        sides: both databases.
        settings: the subscription's.
        tell: is told what was made, and what was not.
    """

    def __init__(self, sides: Sides, settings: SyncSettings, tell: Callable[[str], None]) -> None:
        self._sides = sides
        self._settings = settings
        self._tell = tell
        #: what could not be made on the target, and why
        self.not_made: Mapping[str, str] = {}
        #: where definitions were taken from, ``pg_dump 18.1`` or ``catalog``; '' when nothing was
        #: missing
        self.made_by = ""

    def make(self, tables: Collection[TableName]) -> None:
        """Make those of *tables* that the target lacks, with what they need. What can't be made is
        told, and the table's copy says that it is missing.

        Raises:
            SpillwayError: a side can't be reached.
        """
        if not self._settings.create_tables or not tables:
            return
        with self._sides.source_session() as source:
            source.execute("SELECT pg_catalog.set_config('search_path', '', false)")
            with self._sides.target_session() as target:
                target.execute("SELECT pg_catalog.set_config('search_path', '', false)")
                major = source.info.server_version // 10_000
                pg_dump = dump.find(major, Settings.from_environment().pg_dump)
                made = create_missing(source, target, tables, self._settings.rename, pg_dump)
        for name in made.tables:
            self._tell(f"{name} is made on the target")
        for what, reason in made.failed.items():
            self._tell(f"{what} can't be made on the target: {reason}")
        self.made_by = ", ".join(made.by) or self.made_by
        self.not_made = made.failed

    def why(self, key: TableName) -> str:
        """Say why a table was not made; '' if nothing is known of it."""
        return self.not_made.get(f"table {'.'.join(key)}", "")
