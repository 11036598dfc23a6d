"""The source's snapshot that tables are copied as of: taken, kept while connections break, found
again by whoever comes after this process, and given up.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from spillway.consumer.snapshots import Source
from spillway.errors import SpillwayError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from spillway.apply.sync.states import TableName, TableState, TableStates
    from spillway.consumer.slot import ExportedSnapshot
    from spillway.consumer.snapshots import SourceSnapshot


class HeldSnapshot:
    """See the module.

    Args:
        source_dsn: a libpq connection string.
        exports: has the service hold a snapshot that is paired with an LSN; None: the server makes
            a temporary slot.
        states: are told what the slot may not be confirmed beyond.
        tell: is told what a person may want to know.
        stopping: ends waiting for one.
    """

    def __init__(
        self,
        source_dsn: str,
        exports: Callable[[], AbstractContextManager[ExportedSnapshot]] | None,
        states: TableStates,
        tell: Callable[[str], None],
        stopping: threading.Event,
    ) -> None:
        self._dsn = source_dsn
        self._exports = exports
        self._states = states
        self._tell = tell
        self._stopping = stopping
        self._source: Source | None = None
        self._held: SourceSnapshot | None = None
        #: by which whoever comes after this process may import it
        self.name = ""
        self._exported_name = ""
        #: gives the service's snapshot up
        self._holding = ExitStack()

    def source(self) -> Source:
        """Return the database; connected to for the first time when it is asked for.

        Raises:
            SourceError: it can't be reached.
        """
        if self._source is None:
            exports = None if self._exports is None else self._exported
            self._source = Source(self._dsn, {}, exports)
        return self._source

    def of(self, begun: Sequence[TableState]) -> tuple[SourceSnapshot | None, set[TableName]]:
        """Return the snapshot by which tables that are begun go on, and which of them do."""
        held = self._held
        if held is not None and held.alive():
            of = {t.key for t in begun if t.snapshot == (self.name, held.contents)}
            if of:
                return held, of
        self.let_go()
        for name, lsn in dict.fromkeys((t.snapshot, t.lsn) for t in begun if t.snapshot):
            assert name is not None
            again = self.source().reopened(*name, lsn, ())
            if again is not None:
                self._held, self.name = again, name[0]
                return again, {t.key for t in begun if t.snapshot == name}
        return None, set()

    def take(self, position: int) -> SourceSnapshot:
        """Take a snapshot, behind all that the slot may be confirmed to.

        Args:
            position: of the worker.

        Raises:
            SourceError: the source gives none.
            NotReady: it was stopped.
        """
        self.let_go()
        self._states.hold(position)
        held = self.source().take(self._tell, self._stopping)
        self._held = held
        self.name = self._exported_name or held.name
        return held

    def let_go(self) -> None:
        """Give the snapshot up. Safe to repeat."""
        if self._held is not None:
            self._held.close()
            self._held = None
        with suppress(SpillwayError):
            self._holding.close()
        self._states.hold(None)

    @contextmanager
    def _exported(self) -> Iterator[ExportedSnapshot]:
        """Have the service hold a snapshot beyond this block, until the copies are done: it is
        there yet when this process was killed.
        """
        assert self._exports is not None
        self._holding.close()
        self._exported_name = ""
        exported = self._holding.enter_context(self._exports())
        self._exported_name = exported.name
        yield exported
