"""Each WAL range: write it, then let all contestants decode it in turn, round after round."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.in_process import InProcess, Job
from bench.postgresql import PLUGINS, create_base_slots, drop_slots, peek, recvlogical
from bench.ranges import PUBLICATION
from bench.results import POSTGRESQL, SPILLWAY, BenchFailed, Measurement, Run
from bench.service import bench_source, deliver
from bench.source import decoding_state, flushed_lsn
from bench.wire import NULL, PG_PORT, null_on_port, null_on_primary, recvlogical_on_port
from spillway.decoding.capture import CaptureFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.ranges import Databases, WalRange
    from bench.service import SleepingService
    from spillway.pg.lsn import Lsn

PEEK: Final = "peek in the server"
RECVLOGICAL: Final = "pg_recvlogical"
IN_PROCESS: Final = "in process"
GRPC: Final = "gRPC"
GRPC_COLD: Final = "gRPC from the primary"

#: what --only knows, of this module
MEASURES: Final = ("peek", "recvlogical", "process", "grpc", "wire", "eight")
_MANY: Final = 8
#: ranges on which many slots are compared
_MANY_ON: Final = ("a", "b", "c")


@dataclass(frozen=True)
class Contestant:
    """Who decodes, how, and to what."""

    side: str
    how: str
    plugin: str
    slots: int
    run: Callable[[], Run]
    once: bool = False


@dataclass(frozen=True)
class Written:
    """A range that was written, and what is needed to decode it."""

    wal_range: WalRange
    begin: Lsn
    end: Lsn
    state: Path
    capture: Mapping[str, Any]


@dataclass
class Throughput:
    """The rounds."""

    on: Databases
    service: SleepingService | None
    scratch: Path
    repeats: int
    measures: frozenset[str]
    time_limit_s: float
    say: Callable[[str], None]
    measurements: list[Measurement] = field(default_factory=list)

    def measure(self, wal_range: WalRange) -> None:
        """Measure one range.

        Raises:
            BenchFailed: both sides did not make the same number of messages and bytes.
        """
        self.say(f"{wal_range.key}: {wal_range.title}")
        plugins = ("pgoutput",) if wal_range.filtered or wal_range.steep else tuple(PLUGINS)
        with ExitStack() as stack:
            self.on.cluster.execute("CHECKPOINT")
            create_base_slots(self.on.bench, plugins)
            stack.callback(drop_slots, self.on.bench)
            slots = stack.enter_context(self._service_slots(wal_range, plugins))
            written = self._write(wal_range)
            contestants = [
                *self._theirs(written, plugins),
                *self._ours_in_process(stack, written, plugins),
                *self._ours_over_grpc(written, slots),
                *self._over_the_wire(written, slots),
            ]
            rounds = self._rounds(contestants)
        measured = [
            Measurement(
                wal_range.key,
                wal_range.title,
                contestant.side,
                contestant.how,
                contestant.plugin,
                contestant.slots,
                wal_range.rows,
                wal_range.transactions,
                written.end - written.begin,
                tuple(runs),
            )
            for contestant, runs in zip(contestants, rounds, strict=True)
            if runs
        ]
        check_same(measured)
        self.measurements += measured

    def _write(self, wal_range: WalRange) -> Written:
        capture = capture_of(wal_range)
        cluster, database = self.on.cluster, self.on.bench
        state = self.scratch / "state"
        state.write_bytes(
            decoding_state(cluster, database, self.scratch / "spill", CaptureFilter.parse(capture))
        )
        begin = flushed_lsn(database)
        wal_range.write(self.on)
        end = flushed_lsn(database)
        self.say(f"   {(end - begin) / 1e6:,.0f} MB of WAL, {wal_range.rows:,} rows")
        return Written(wal_range, begin, end, state, capture)

    def _rounds(self, contestants: Sequence[Contestant]) -> list[list[Run]]:
        rounds: list[list[Run]] = [[] for _ in contestants]
        for number in range(self.repeats):
            for contestant, runs in zip(contestants, rounds, strict=True):
                # Who did not end in time won't next time either.
                if number and (contestant.once or runs[0].timed_out):
                    continue
                run = contestant.run()
                runs.append(run)
                many = f" x {contestant.slots}" if contestant.slots > 1 else ""
                cpu = ", ".join(f"{who} {cpu_s:.2f}" for who, cpu_s in run.cpu_s.items())
                limit = "stopped after " if run.timed_out else ""
                self.say(
                    f"   {contestant.side} {contestant.how}, {contestant.plugin}{many}: "
                    f"{limit}{run.wall_s:.2f} s (CPU: {cpu})"
                )
        return rounds

    # ---- contestants

    def _theirs(self, written: Written, plugins: Sequence[str]) -> Iterator[Contestant]:
        on, end, steep = self.on, written.end, written.wal_range.steep
        limit_s = self.time_limit_s if steep else 10 * self.time_limit_s
        for plugin in plugins:
            if "peek" in self.measures:
                yield Contestant(
                    POSTGRESQL, PEEK, plugin, 1,
                    partial(peek, on.bench, plugin, end, limit_s),
                )  # fmt: skip
            if "recvlogical" in self.measures and not steep:
                yield Contestant(
                    POSTGRESQL, RECVLOGICAL, plugin, 1,
                    partial(recvlogical, on.cluster, on.bench, plugin, end, 1, limit_s),
                )  # fmt: skip
        if "eight" in self.measures and written.wal_range.key in _MANY_ON:
            yield Contestant(
                POSTGRESQL, RECVLOGICAL, "pgoutput", _MANY,
                lambda: recvlogical(on.cluster, on.bench, "pgoutput", end, _MANY, limit_s),
                once=True,
            )  # fmt: skip

    def _ours_in_process(
        self, stack: ExitStack, written: Written, plugins: Sequence[str]
    ) -> Iterator[Contestant]:
        if "process" not in self.measures:
            return
        for plugin in (*plugins, "arrow"):
            job = Job(
                str(written.state),
                str(self.on.cluster.wal_directory),
                self.on.cluster.wal_segment_size,
                written.begin,
                written.end,
                int(self.on.bench.value("SHOW server_version_num")),
                self.on.bench.name,
                plugin,
                PLUGINS[plugin][1] if plugin in PLUGINS else {},
                written.capture,
            )
            if plugin == "arrow":
                with InProcess(job) as checking:
                    rows = checking.rows()
                if rows != written.wal_range.rows:
                    raise BenchFailed(
                        f"{written.wal_range.rows} rows were written, Arrow messages have {rows}"
                    )
            process = stack.enter_context(InProcess(job))
            yield Contestant(SPILLWAY, IN_PROCESS, plugin, 1, process.run)

    @contextmanager
    def _service_slots(
        self, wal_range: WalRange, plugins: Sequence[str]
    ) -> Iterator[dict[str, list[str]]]:
        """Have a source with slots for the length of a ``with``, which gives their names by plugin;
        or none.
        """
        service, database = self.service, self.on.bench
        if service is None or wal_range.steep or not self.measures & {"grpc", "wire", "eight"}:
            yield {}
            return
        many = "eight" in self.measures and wal_range.key in _MANY_ON
        with bench_source(service, database, capture_of(wal_range)):
            with service.awake():
                slots = {
                    plugin: service.create_slots(
                        database, plugin, _MANY if many and plugin == "pgoutput" else 1
                    )
                    for plugin in plugins
                }
            yield slots

    def _ours_over_grpc(
        self, written: Written, slots: Mapping[str, list[str]]
    ) -> Iterator[Contestant]:
        service, cluster, end = self.service, self.on.cluster, written.end
        if service is None or not slots:
            return
        first = slots["pgoutput"][:1]
        if "grpc" in self.measures:
            yield Contestant(
                SPILLWAY, GRPC_COLD, "pgoutput", 1,
                lambda: deliver(service, cluster, first, end),
                once=True,
            )  # fmt: skip
            for plugin, names in slots.items():
                yield Contestant(
                    SPILLWAY, GRPC, plugin, 1,
                    partial(deliver, service, cluster, names[:1], end),
                )  # fmt: skip
        if "eight" in self.measures and len(slots["pgoutput"]) == _MANY:
            if "grpc" not in self.measures:
                deliver(service, cluster, first, end)
            yield Contestant(
                SPILLWAY, GRPC, "pgoutput", _MANY,
                lambda: deliver(service, cluster, slots["pgoutput"], end),
                once=True,
            )  # fmt: skip

    def _over_the_wire(
        self, written: Written, slots: Mapping[str, list[str]]
    ) -> Iterator[Contestant]:
        """PostgreSQL's protocol, from a backlog: what gRPC's client has had before, if there was
        one.
        """
        on, service, end = self.on, self.service, written.end
        if service is None or not slots or "wire" not in self.measures:
            return
        limit_s = 10 * self.time_limit_s
        if "grpc" not in self.measures:
            deliver(service, on.cluster, slots["pgoutput"][:1], end)
        for plugin, names in slots.items():
            yield Contestant(
                SPILLWAY, PG_PORT, plugin, 1,
                partial(
                    recvlogical_on_port,
                    service, on.cluster, on.bench, plugin, names[:1], end, limit_s,
                ),
            )  # fmt: skip
        first = slots["pgoutput"][0]
        yield Contestant(
            POSTGRESQL, NULL, "pgoutput", 1,
            lambda: null_on_primary(on.cluster, on.bench, "pgoutput", end),
        )  # fmt: skip
        yield Contestant(
            SPILLWAY, NULL, "pgoutput", 1,
            lambda: null_on_port(service, on.bench, "pgoutput", first, end),
        )  # fmt: skip
        if len(slots["pgoutput"]) == _MANY:
            yield Contestant(
                SPILLWAY, PG_PORT, "pgoutput", _MANY,
                lambda: recvlogical_on_port(
                    service, on.cluster, on.bench, "pgoutput", slots["pgoutput"], end, limit_s
                ),
                once=True,
            )  # fmt: skip


def capture_of(wal_range: WalRange) -> dict[str, Any]:
    """Return what ours is told to capture."""
    return {"publications": [PUBLICATION]} if wal_range.filtered else {}


def check_same(measured: Sequence[Measurement]) -> None:
    """See that all who printed a plugin's messages printed as many, of as many bytes.

    Arrow is ours alone; its rows were counted. pg_recvlogical tells bytes only, with a newline for
    each message.

    Raises:
        BenchFailed: they differ.
    """
    expected: dict[str, tuple[int, int, str]] = {}
    for measurement in measured:
        name = f"{measurement.side} {measurement.how} x {measurement.slots}"
        for run in measurement.runs:
            if run.timed_out or run.messages is None or run.payload_bytes is None:
                continue
            counts = run.messages // measurement.slots, run.payload_bytes // measurement.slots
            *before, who = expected.setdefault(measurement.plugin, (*counts, name))
            if tuple(before) != counts:
                raise BenchFailed(
                    f"{measurement.plugin}: {who} made {before[0]} messages of {before[1]} bytes,"
                    f" {name} {counts[0]} of {counts[1]}"
                )
    for measurement in measured:
        if measurement.how not in (RECVLOGICAL, PG_PORT) or measurement.plugin not in expected:
            continue
        messages, payload_bytes, who = expected[measurement.plugin]
        for run in measurement.runs:
            written = run.payload_bytes
            if not run.timed_out and written != (messages + payload_bytes) * measurement.slots:
                raise BenchFailed(
                    f"{measurement.plugin}: pg_recvlogical x {measurement.slots} wrote {written}"
                    f" bytes; {who} made {messages} messages of {payload_bytes} bytes, and each "
                    "has a newline"
                )
