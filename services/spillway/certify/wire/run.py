"""Both sides of every subject, side by side for a while.

The slots are made on both sides before anything is compared, and all streams begin where the last
of them became consistent: what commits from there on is whole on either side.

Live traffic is compared as it comes. The built-in workload runs to its end first, in a database of
its own, and is compared afterwards: a walsender also hears of tables that are changed while it
runs, and announces them again wherever it is just then. Without that, what it sends is a matter of
the WAL alone, and every announcement can be insisted on.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.certify.load import Load, workload_database
from spillway.certify.rendering import Subject
from spillway.certify.run import CertifySettings
from spillway.certify.wire.comparison import WireComparison, by_transactions
from spillway.certify.wire.connection import SlotConnection
from spillway.certify.wire.report import WireReport, WireSubjectReport
from spillway.errors import SourceError, SystemIdMismatch
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.conninfo import parse_dsn
from spillway.pg.lsn import Lsn
from spillway.pg.versions import release_text
from spillway.receiver.checks import check_source
from spillway.receiver.primary import wal_flush_lsn, with_database
from spillway.receiver.replication_connection import WakeUp
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from spillway.receiver.checks import SourceFacts

_WAIT_S: Final = 0.1
_CATCH_UP_S: Final = 120.0
_MAJOR_OF_TWO_PHASE: Final = 15
_MAJOR_OF_PARALLEL: Final = 16
_PUBLICATION: Final = "spillway_certify"
#: Has the primary stream transactions of any size; what cuts them on our side is the service's.
_STREAMING_SETTINGS: Final = {"logical_decoding_work_mem": "64kB"}


@dataclass(frozen=True, slots=True)
class WireSettings(CertifySettings):
    """What to do, on both sides."""

    #: of the service's port; ``dsn`` is the primary's
    wire_dsn: str


def certify_wire(
    settings: WireSettings, say: Callable[[str], None], stop: threading.Event
) -> WireReport:
    """Compare until the duration is over, the workload is done, a difference is found, or *stop* is
    set.

    Raises:
        SourceError: one of both can't be used, or was lost; what is on it was removed all the same.
    """
    facts = check_source(settings.dsn)
    with contextlib.ExitStack() as stack:
        dsn, wire_dsn, publications = settings.dsn, settings.wire_dsn, settings.publications
        if settings.seed is not None:
            name = stack.enter_context(workload_database(dsn))
            dsn = with_database(dsn, name)
            source, slash, _ = parse_dsn(wire_dsn).get("dbname", "").rpartition("/")
            wire_dsn = with_database(wire_dsn, f"{source}{slash}{name}")
            facts = check_source(dsn)
            if facts.is_superuser:
                _publish(dsn)
                publications = (_PUBLICATION,)
        subjects = subjects_of(facts.server_version_num // 10_000, publications)
        return _Run(settings, dsn, wire_dsn, facts, say, stop).run(stack, subjects)


def subjects_of(major: int, publications: Sequence[str]) -> list[Subject]:
    """Return what is compared on a server of *major*."""
    subjects = [
        Subject("test_decoding", {"include-timestamp": "on"}),
        Subject("test_decoding", {"skip-empty-xacts": "on", "include-xids": "off"}),
    ]
    if not publications:
        return subjects
    names = ",".join(map(quote_identifier, publications))
    newest = {14: "2", 15: "3"}.get(major, "4")
    whole = {"proto_version": newest, "publication_names": names, "messages": "on"}
    parallel = "parallel" if major >= _MAJOR_OF_PARALLEL else "on"
    pgoutput = [
        {"proto_version": "1", "publication_names": names},
        {**whole, "binary": "on"},
        {**whole, "streaming": parallel},
    ]
    if major >= _MAJOR_OF_TWO_PHASE:
        pgoutput.append({**whole, "two_phase": "on"})
        pgoutput.append({**whole, "two_phase": "on", "streaming": "on"})
    if major >= _MAJOR_OF_PARALLEL:
        pgoutput.append({**whole, "origin": "none"})
    return subjects + [Subject("pgoutput", options, binary=True) for options in pgoutput]


def _publish(dsn: str) -> None:
    with source_session(dsn) as connection:
        connection.execute(f"CREATE PUBLICATION {_PUBLICATION} FOR ALL TABLES")


class _Pair(NamedTuple):
    """A subject's slot on both sides."""

    subject: Subject
    slot_name: str
    theirs: SlotConnection
    ours: SlotConnection


class _Run:
    def __init__(
        self,
        settings: WireSettings,
        dsn: str,
        wire_dsn: str,
        facts: SourceFacts,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._dsn = dsn
        self._wire_dsn = wire_dsn
        self._facts = facts
        self._say = say
        self._stop = stop

    def run(self, stack: contextlib.ExitStack, subjects: Sequence[Subject]) -> WireReport:
        """Do it all; *stack* closes what is opened."""
        suffix = secrets.token_hex(4)
        started_s = time.monotonic()
        pairs, start_lsn = self._create_slots(stack, subjects, suffix)
        load = Load(
            self._dsn,
            self._facts,
            seed=self._settings.seed,
            steps=self._settings.steps,
            prefix=f"spillway_certify_{suffix}",
            interrupted=self._stop,
        )
        stack.callback(load.end)
        if self._settings.seed is not None:
            self._say("running the workload")
            load.start()
            self._wait_for(load)
            load.end()
        self._say("comparing")
        self._start_streams(stack, pairs, start_lsn)
        if self._settings.seed is None:
            self._follow()
        end_lsn = self._finish()
        return WireReport(
            release_text(self._facts.server_version_num),
            self._facts.database,
            time.monotonic() - started_s,
            str(Lsn(start_lsn)),
            str(Lsn(end_lsn)),
            self._stop.is_set(),
            tuple(_reported(comparison) for comparison in self._comparisons),
            load.summary,
        )

    def _create_slots(
        self, stack: contextlib.ExitStack, subjects: Sequence[Subject], suffix: str
    ) -> tuple[list[_Pair], int]:
        """Create each subject's slots; return them, and where all of them are consistent."""
        wake_up = WakeUp()
        pairs: list[_Pair] = []
        start_lsn = 0
        self._say("creating slots on both sides, where transactions in progress are waited for")
        for number, subject in enumerate(subjects):
            slot_name = f"spillway_certify_{number}_{suffix}"
            settings = _STREAMING_SETTINGS if "streaming" in subject.options else {}
            both = []
            for name, dsn in (("PostgreSQL", self._dsn), ("Spillway", self._wire_dsn)):
                connection = SlotConnection(name, dsn, wake_up, settings)
                stack.callback(connection.close)
                if not number:
                    self._check_system(connection)
                start_lsn = max(start_lsn, connection.create_slot(slot_name, subject))
                both.append(connection)
            pairs.append(_Pair(subject, slot_name, theirs=both[0], ours=both[1]))
        return pairs, start_lsn

    def _start_streams(
        self, stack: contextlib.ExitStack, pairs: Sequence[_Pair], start_lsn: int
    ) -> None:
        is_live = self._settings.seed is None
        self._comparisons = []
        for pair in pairs:
            for connection in (pair.theirs, pair.ours):
                connection.start(pair.slot_name, pair.subject, start_lsn)
                # Before the workload's database is: a slot whose database is gone is another
                # matter.
                stack.callback(connection.drop_slot, pair.slot_name)
            comparison = WireComparison(pair.subject, pair.ours, pair.theirs, is_live=is_live)
            stack.callback(comparison.close)
            self._comparisons.append(comparison)

    def _check_system(self, connection: SlotConnection) -> None:
        found = connection.system_id()
        if found != self._facts.system_id:
            raise SystemIdMismatch(
                f"{connection.name}'s database is of the cluster {found}, and --dsn leads to "
                f"{self._facts.system_id}",
                hint="Write dbname=source/database in --wire, with the source that --dsn is of.",
            )

    def _wait_for(self, load: Load) -> None:
        while not (load.done or self._stop.is_set()):
            self._stop.wait(_WAIT_S)

    def _follow(self) -> None:
        deadline_s = time.monotonic() + self._settings.duration_s
        while not self._stop.is_set() and time.monotonic() < deadline_s and not self._differs():
            self._step()

    def _finish(self) -> Lsn:
        """Compare all that is flushed by now."""
        until = wal_flush_lsn(self._dsn)
        deadline_s = time.monotonic() + _CATCH_UP_S
        while not all(comparison.has_reached(until) for comparison in self._comparisons):
            if time.monotonic() > deadline_s:
                raise SourceError(
                    f"not both streams reached {until} in {_CATCH_UP_S:.0f} s",
                    hint="See that the service's source is healthy: spillway source list. Or "
                    "follow for less long.",
                )
            self._step()
        for comparison in self._comparisons:
            comparison.advance()
            comparison.finish(until)
        return until

    def _differs(self) -> bool:
        return any(one.result.difference is not None for one in self._comparisons)

    def _step(self) -> None:
        anything = False
        for comparison in self._comparisons:
            anything |= comparison.advance()
        if not anything:
            waiting = [one for each in self._comparisons for one in each.waiting_for()]
            select.select(waiting, [], [], _WAIT_S)


def _reported(comparison: WireComparison) -> WireSubjectReport:
    subject, result = comparison.subject, comparison.result
    return WireSubjectReport(
        subject.plugin,
        dict(subject.options),
        "transactions" if by_transactions(subject) else "frames",
        result.transactions,
        result.frames,
        result.bytes,
        result.difference,
    )
