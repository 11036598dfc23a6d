"""``spillway certify``: PostgreSQL's decoding and ours on one live server, side by side for a
while.

::

    server ──physical stream, temporary slot──▶ follower: decoder, plugins ──▶ spool ─┐
       └──── temporary logical slot, SQL ─────▶ oracle ─────────────────────▶ comparison ──▶ report

The order at the start matters: the catalog is read first and PostgreSQL's slots are made
afterwards, so that ours is consistent wherever theirs is; only then the WAL is streamed, which our
slot has kept since before.

Everything made on the server is temporary: both slots go with their sessions, however these end.
The workload, if asked for, runs in a database of its own, which is dropped at the end.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.certify.comparison import Comparison
from spillway.certify.follower import Follower
from spillway.certify.load import Load, workload_database
from spillway.certify.oracle import OracleSlot
from spillway.certify.rendering import RenderingSink, Subject
from spillway.certify.report import Report, SubjectReport
from spillway.errors import NotReady, ReplicationSlotsExhausted, SourceError
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.encoding import server_encoding
from spillway.pg.versions import release_text
from spillway.plugins.interface import PluginContext
from spillway.receiver.checks import check_source
from spillway.receiver.primary import wal_flush_lsn, with_database
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from spillway.certify.rendering import Line
    from spillway.receiver.checks import SourceFacts

_POLL_S: Final = 0.2
_CATCH_UP_S: Final = 120.0
#: Every transaction is framed by BEGIN and COMMIT, by which both sides are aligned.
_TEST_DECODING: Final = {"include-timestamp": "on"}


@dataclass(frozen=True, slots=True)
class CertifySettings:
    """What to do."""

    dsn: str
    #: follow live traffic for so long; the workload ends by itself
    duration_s: float
    #: seed of the built-in workload; None follows live traffic
    seed: int | None
    #: statements of the workload
    steps: int
    #: compare pgoutput with these too
    publications: tuple[str, ...]


def certify(settings: CertifySettings, say: Callable[[str], None], stop: threading.Event) -> Report:
    """Compare until the duration is over, the workload is done, a difference is found, or *stop* is
    set.

    Raises:
        SourceError: the server can't be used, or was lost; what is on it was removed all the same.
        DecodingError, WalError: our decoder gave up.
    """
    facts = check_source(settings.dsn)
    with contextlib.ExitStack() as stack:
        dsn = settings.dsn
        if settings.seed is not None:
            name = stack.enter_context(workload_database(dsn))
            dsn = with_database(dsn, name)
            facts = check_source(dsn)
        return _Run(settings, dsn, facts, say, stop).run(stack)


class _Run:
    def __init__(
        self,
        settings: CertifySettings,
        dsn: str,
        facts: SourceFacts,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._dsn = dsn
        self._facts = facts
        self._say = say
        self._stop = stop
        self._subjects = [Subject("test_decoding", _TEST_DECODING)]
        if settings.publications:
            names = ",".join(map(quote_identifier, settings.publications))
            version = "1" if facts.server_version_num < 150000 else "3"
            self._subjects.append(
                Subject(
                    "pgoutput",
                    {"proto_version": version, "publication_names": names, "messages": "true"},
                    binary=True,
                )
            )

    def run(self, stack: contextlib.ExitStack) -> Report:
        """Do it all; *stack* closes what is opened."""
        self._check_free_slots()
        suffix = secrets.token_hex(4)
        started = time.monotonic()
        self._say("reading the catalog")
        follower = stack.enter_context(
            Follower(self._dsn, self._facts, f"spillway_certify_{suffix}")
        )
        follower.prepare(self._say, self._stop)
        self._say("creating PostgreSQL's own slots, which wait for transactions in progress")
        oracles = [
            stack.enter_context(
                OracleSlot(self._dsn, f"spillway_certify_{number}_{suffix}", subject)
            )
            for number, subject in enumerate(self._subjects)
        ]
        self._comparisons = [Comparison(oracle) for oracle in oracles]
        for comparison in self._comparisons:
            stack.callback(comparison.close)
        context = PluginContext(
            "certify",
            self._facts.database,
            self._facts.server_version_num,
            server_encoding(self._facts.server_encoding).codec,
        )
        sink = RenderingSink(
            self._subjects, context, self._deliver, [oracle.start_lsn for oracle in oracles]
        )
        follower.start(sink)
        load = Load(
            self._dsn,
            self._facts,
            seed=self._settings.seed,
            steps=self._settings.steps,
            prefix=f"spillway_certify_{suffix}",
            interrupted=self._stop,
        )
        stack.callback(load.end)
        self._say("comparing")
        load.start()
        self._follow(follower, load)
        load.end()
        self._finish(follower)
        self._check_consistent(sink, oracles)
        seen = sink.seen
        return Report(
            release_text(self._facts.server_version_num),
            self._facts.database,
            time.monotonic() - started,
            follower.position - follower.start_lsn,
            self._stop.is_set(),
            tuple(
                SubjectReport(
                    subject.plugin,
                    dict(subject.options),
                    comparison.result.transactions,
                    comparison.result.lines,
                    comparison.result.bytes,
                    comparison.result.difference,
                )
                for subject, comparison in zip(self._subjects, self._comparisons, strict=True)
            ),
            seen.transactions,
            seen.changes_bytes,
            tuple(sorted(seen.tables)),
            tuple(sorted(seen.types)),
            load.summary,
        )

    def _deliver(self, number: int, lines: list[Line]) -> None:
        self._comparisons[number].spool.put(lines)

    def _check_free_slots(self) -> None:
        needed = 1 + len(self._subjects)
        with source_session(self._dsn) as connection:
            row = connection.execute(
                "SELECT current_setting('max_replication_slots')::int - count(*) FROM "
                "pg_replication_slots"
            ).fetchone()
        assert row is not None
        if row[0] < needed:
            raise ReplicationSlotsExhausted(
                f"{needed} replication slots are needed for the while, {row[0]} are free",
                hint="Drop a slot that nobody uses, or raise max_replication_slots and restart the "
                "server.",
            )

    def _check_consistent(self, sink: RenderingSink, oracles: list[OracleSlot]) -> None:
        """Make sure that nothing was equal only because we had not begun.

        PostgreSQL waited for the transactions that ran when its slot was made, which is after the
        catalog was read; we wait for no more than these.
        """
        first = min(oracle.start_lsn for oracle in oracles)
        if sink.consistent_at is None or sink.consistent_at > first + 1:
            raise NotReady(
                "decoding was not consistent when PostgreSQL's slot was",
                hint="Run certify again, and report this if it happens again.",
            )

    def _follow(self, follower: Follower, load: Load) -> None:
        deadline = time.monotonic() + self._settings.duration_s
        while not self._stop.is_set() and not load.done:
            if self._settings.seed is None and time.monotonic() >= deadline:
                return
            follower.check()
            position = follower.position
            anything = False
            for comparison in self._comparisons:
                anything |= comparison.advance(position)
            if any(comparison.result.difference is not None for comparison in self._comparisons):
                return
            if not anything:
                self._stop.wait(_POLL_S)

    def _finish(self, follower: Follower) -> None:
        """Have ours decode all that is flushed by now, stop it there, and compare the rest."""
        until = wal_flush_lsn(self._dsn)
        deadline = time.monotonic() + _CATCH_UP_S
        while follower.received_lsn < until:
            follower.check()
            if time.monotonic() > deadline:
                raise SourceError(
                    f"the WAL stream did not reach {until} in {_CATCH_UP_S:.0f} s",
                    hint="The connection is too slow for what the server writes; follow it for "
                    "less long.",
                )
            time.sleep(_POLL_S / 4)
        follower.stop()
        follower.check()
        for comparison in self._comparisons:
            comparison.finish(follower.position)
