"""What comes out of a comparison, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.pg.encoding import readable

if TYPE_CHECKING:
    from spillway.apply.verify.pairs import Key
    from spillway.consumer.row_differences import Difference
    from spillway.errors import SpillwayError
    from spillway.pg.lsn import Lsn

#: Keys of a table that are said to be undecided, one by one.
SAID_MAX: Final = 20


@dataclass(slots=True)
class TableOutcome:
    """What came out for one table."""

    table: str
    source_rows: int = 0
    target_rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: there are differences that were not looked for
    more: bool = False
    #: keys that were written to at each look
    undecided: list[Key] = field(default_factory=list)
    repaired: int = 0
    #: why the table was not compared
    skipped: str = ""
    #: why rows of it could not be repaired
    refused: str = ""

    @property
    def equal(self) -> bool:
        return not (self.differences or self.more or self.undecided or self.skipped or self.refused)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.table}: not compared, {self.skipped}"
        said = "equal"
        if self.differences or self.more:
            said = "DIFFERENT"
        elif self.undecided:
            said = "undecided"
        counts = f"{self.source_rows} rows at the source, {self.target_rows} at the target"
        if self.repaired:
            counts += f", {self.repaired} keys repaired"
        lines = [f"{self.table}: {said}, {counts}"]
        lines += [f"  {difference}" for difference in self.differences]
        if self.more:
            lines.append("  and more")
        lines += [
            f"  ({', '.join(map(_said, key))}) is written to too often to be compared"
            for key in self.undecided[:SAID_MAX]
        ]
        if len(self.undecided) > SAID_MAX:
            lines.append(f"  and {len(self.undecided) - SAID_MAX} more")
        if self.refused:
            lines.append(f"  not repaired: {self.refused}")
        return "\n".join(lines)


@dataclass(slots=True)
class Verification:
    """What came out: as of *lsn*, but for what the tables' outcomes say."""

    lsn: Lsn
    tables: list[TableOutcome]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)


def reason_of(error: SpillwayError) -> str:
    """Say what was refused, and what mends it."""
    return f"{error.message}. {error.hint}" if error.hint else error.message


def _said(value: str | None) -> str:
    return "None" if value is None else readable(value)
