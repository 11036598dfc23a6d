"""What ``spillway certify`` says at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spillway.certify.comparison import Difference  # noqa: TC001 - a field's type

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class SubjectReport:
    """One plugin's comparison."""

    plugin: str
    options: dict[str, str]
    transactions: int
    lines: int
    bytes: int
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Report:
    """The whole run."""

    server_version: str
    database: str
    seconds: float
    wal_bytes: int
    interrupted: bool
    subjects: tuple[SubjectReport, ...]
    #: transactions and bytes of changes that our decoder delivered
    transactions: int
    changes_bytes: int
    tables: tuple[str, ...]
    types: tuple[str, ...]
    #: of the built-in workload: seed, statements, those that failed, by SQLSTATE
    workload: dict[str, Any] | None

    @property
    def equal(self) -> bool:
        """No difference was found."""
        return all(subject.difference is None for subject in self.subjects)

    def as_json(self) -> str:
        """Return one JSON object."""
        return json.dumps({"equal": self.equal, **asdict(self)}, indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        """Return lines for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"PostgreSQL {self.server_version}, database {self.database}: {self.seconds:.0f} s,"
            f" {self.wal_bytes:,} bytes of WAL{', interrupted' if self.interrupted else ''}"
        )
        yield from workload_lines(self.workload)
        yield (
            f"decoded: {self.transactions:,} transactions, {self.changes_bytes:,} bytes of changes"
        )
        yield f"tables: {len(self.tables)}{_listed(self.tables)}"
        yield f"types: {len(self.types)}{_listed(self.types)}"
        for subject in self.subjects:
            yield (
                f"{subject.plugin}: compared {subject.transactions:,} transactions, "
                f"{subject.lines:,} lines, {subject.bytes:,} bytes: "
                f"{'equal' if subject.difference is None else 'DIFFERENT'}"
            )
            if subject.difference is not None:
                yield from _difference(subject.difference)
        if not any(subject.lines for subject in self.subjects):
            yield "nothing was compared: no transaction changed this database meanwhile"


def _difference(difference: Difference) -> Iterator[str]:
    yield f"  line {difference.line}, before it, on both sides:"
    for line in difference.before:
        yield f"    {line}"
    yield from both_sides(difference.ours, difference.theirs)


def workload_lines(workload: dict[str, Any] | None) -> Iterator[str]:
    """Say what the built-in workload did, if it ran."""
    if workload is not None:
        failed = sum(workload["failed"].values())
        yield (
            f"workload: seed {workload['seed']}, {workload['steps']:,} statements, "
            f"{failed:,} of which failed as meant"
        )


def both_sides(ours: str, theirs: str) -> Iterator[str]:
    """Show the place of a difference."""
    yield "  Spillway:"
    yield f"    {ours}"
    yield "  PostgreSQL:"
    yield f"    {theirs}"


def _listed(names: tuple[str, ...], shown: int = 12) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:shown])}{', …' if len(names) > shown else ''})"
