"""What was measured: runs, the medians of runs, and figures that are no throughput."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Final

POSTGRESQL: Final = "PostgreSQL"
SPILLWAY: Final = "Spillway"


class BenchFailed(Exception):
    """The benchmark can't go on, or has nothing to compare."""


@dataclass(frozen=True)
class Run:
    """One contestant, once."""

    wall_s: float
    #: by who used them: server, client, service, decoder
    cpu_s: dict[str, float]
    #: None where they can't be told (pg_recvlogical writes bytes)
    messages: int | None = None
    payload_bytes: int | None = None
    peak_bytes: dict[str, int] = field(default_factory=dict)
    #: it was stopped at the time limit
    timed_out: bool = False


@dataclass(frozen=True)
class Measurement:
    """One contestant on one WAL range, all its runs."""

    wal_range: str
    title: str
    side: str
    #: peek, pg_recvlogical, in process, gRPC, gRPC from the primary
    how: str
    plugin: str
    slots: int
    rows: int
    transactions: int
    wal_bytes: int
    runs: tuple[Run, ...]

    @property
    def timed_out(self) -> bool:
        """Whether it did not end in time; its seconds are then a lower bound."""
        return any(run.timed_out for run in self.runs)

    @property
    def wall_s(self) -> float:
        """The median."""
        return statistics.median(run.wall_s for run in self.runs)

    @property
    def cpu_s(self) -> dict[str, float]:
        """The medians."""
        return {
            who: statistics.median(run.cpu_s[who] for run in self.runs)
            for who in self.runs[0].cpu_s
        }

    @property
    def total_cpu_s(self) -> float:
        """The median of everybody's CPU seconds."""
        return statistics.median(sum(run.cpu_s.values()) for run in self.runs)

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The largest."""
        return {
            who: max(run.peak_bytes[who] for run in self.runs) for who in self.runs[0].peak_bytes
        }

    @property
    def rows_per_s(self) -> float:
        """Rows delivered to all slots a second; an upper bound when it timed out."""
        return self.rows * self.slots / self.wall_s

    @property
    def rows_per_cpu_s(self) -> float:
        """The same a CPU second of everybody."""
        return self.rows * self.slots / self.total_cpu_s

    def as_json(self) -> dict[str, Any]:
        """Return what the JSON file has of it."""
        return {
            **asdict(self),
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "rows_per_s": self.rows_per_s,
            "peak_bytes": self.peak_bytes,
            "timed_out": self.timed_out,
        }


@dataclass
class Results:
    """Everything, in the order in which it was measured."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    #: scenario → its figures
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: what went wrong; what was measured before and after it stands
    failures: list[str] = field(default_factory=list)

    def find(
        self, wal_range: str, side: str, how: str, plugin: str, slots: int = 1
    ) -> Measurement | None:
        """Return a measurement, if it was made."""
        for measurement in self.measurements:
            key = (measurement.wal_range, measurement.side, measurement.how)
            if (
                key == (wal_range, side, how)
                and measurement.plugin == plugin
                and measurement.slots == slots
            ):
                return measurement
        return None

    def as_json(self) -> dict[str, Any]:
        """Return what the JSON file has; the goals are added by who knows them."""
        return {
            "environment": self.environment,
            "settings": self.settings,
            "measurements": [measurement.as_json() for measurement in self.measurements],
            "figures": self.figures,
            "failures": self.failures,
        }
