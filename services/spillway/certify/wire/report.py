"""What ``spillway certify --wire`` says at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spillway.certify.report import both_sides, workload_lines
from spillway.certify.wire.comparison import WireDifference  # noqa: TC001 - a field's type

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class WireSubjectReport:
    """One subject's comparison."""

    plugin: str
    options: dict[str, str]
    #: "frames", or "transactions" of what is streamed while in progress
    compared_by: str
    transactions: int
    #: or changes of transactions
    frames: int
    bytes: int
    difference: WireDifference | None


@dataclass(frozen=True, slots=True)
class WireReport:
    """The whole run."""

    server_version: str
    database: str
    seconds: float
    #: both sides began here
    start_lsn: str
    end_lsn: str
    interrupted: bool
    subjects: tuple[WireSubjectReport, ...]
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
            f"PostgreSQL {self.server_version}, database {self.database}: {self.seconds:.0f} s, "
            f"{self.start_lsn} to {self.end_lsn}{', interrupted' if self.interrupted else ''}"
        )
        yield from workload_lines(self.workload)
        for subject in self.subjects:
            what = "frames" if subject.compared_by == "frames" else "changes"
            yield (
                f"{subject.plugin}{_listed(subject.options)}: compared "
                f"{subject.transactions:,} transactions, {subject.frames:,} {what}, "
                f"{subject.bytes:,} bytes: "
                f"{'equal' if subject.difference is None else 'DIFFERENT'}"
            )
            if subject.difference is not None:
                yield from _difference(subject.difference, subject.compared_by[:-1])
        if not any(subject.frames for subject in self.subjects):
            yield "nothing was compared: no transaction changed this database meanwhile"


def _difference(difference: WireDifference, unit: str) -> Iterator[str]:
    yield f"  {unit} {difference.number}, before it, on both sides:"
    for line in difference.before:
        yield f"    {line}"
    if difference.byte is not None:
        yield f"  it differs from byte {difference.byte} on"
    yield from both_sides(difference.ours, difference.theirs)


def _listed(options: dict[str, str]) -> str:
    return (
        f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""
    )
