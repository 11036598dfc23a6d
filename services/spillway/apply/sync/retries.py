"""Tables that can't go on now: why, and when each is tried again. Pauses double."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import HINT, SourceTableAltered

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.apply.sync.states import TableName
    from spillway.errors import SpillwayError

FIRST_S: Final = 5.0
MOST_S: Final = 180.0


@dataclass(slots=True)
class _Retry:
    at: float
    pause: float


class Retries:
    """See the module.

    Args:
        tell: is told why.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._retries: dict[TableName, _Retry] = {}
        #: what each table last failed with, in this process
        self.errors: dict[TableName, SpillwayError] = {}

    def may_try(self, key: TableName) -> bool:
        """Say whether a table's pause is over."""
        return key not in self._retries or self._retries[key].at <= time.monotonic()

    def later(self, error: SpillwayError, *tables: TableName) -> str:
        """Have tables tried again after a while; return what is said of them."""
        for key in tables:
            self.errors[key] = error
            if key in self._retries:
                pause = min(max(FIRST_S, self._retries[key].pause * 2), MOST_S)
            else:
                # By a new snapshot it is as it is now.
                pause = 0.0 if isinstance(error, SourceTableAltered) else FIRST_S
            self._retries[key] = _Retry(time.monotonic() + pause, pause)
        text = error.message if not error.hint else f"{error.message}{HINT}{error.hint}"
        self._tell(f"{', '.join('.'.join(key) for key in sorted(tables))}: {text}")
        return text

    def went_well(self, key: TableName) -> None:
        """Begin with short pauses again, should it fail again."""
        self._retries.pop(key, None)
