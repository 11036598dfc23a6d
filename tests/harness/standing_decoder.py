"""A decoder that lives through many scenarios, compared with the server's slot after each.

Beside what a scenario tests for itself, whatever it leaves behind must not show in the next. That
costs one bootstrap and one slot for a cluster, not one for a scenario.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.decoding_session import DecodingSession
from harness.interleaving import Sessions
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.cluster import Database
    from harness.interleaving import Step
    from harness.oracle import OracleChange
    from spillway.catalog.bootstrap import Bootstrap


class StandingDecoder:
    """Plays scripts in *database*, each in a schema of its own, and compares what came of them."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        *,
        work_mem_bytes: int = 64 << 20,
        bootstrap: Callable[[str], Bootstrap] = bootstrap_sql,
    ) -> None:
        self.database = database
        self._directory = directory
        self._work_mem_bytes = work_mem_bytes
        self._bootstrap = bootstrap
        self._sessions_made = 0
        self._scripts_played = 0
        self._session: DecodingSession | None = None
        self._compared = 0
        self._state = b""

    def play(self, steps: Sequence[Step]) -> list[OracleChange]:
        """Play a script and return what both made of it, line for line.

        Its commands: ``!compare`` compares up to here, ``!state`` serialises the decoder,
        ``!restore`` compares and goes on from that state.

        Raises:
            AssertionError: they differ. The next script begins with a new decoder and slot.
        """
        session = self.session
        self._scripts_played += 1
        schema = f"s{self._scripts_played}"
        start = self._compared
        try:
            self.database.execute(f"CREATE SCHEMA {schema}")
            with Sessions(
                self.database,
                search_path=f"{schema}, public",
                unique=f"{self.database.name}_{self._scripts_played}",
                commands={"compare": self.compare, "state": self._keep, "restore": self._restore},
            ) as sessions:
                sessions.play(steps)
            self.database.execute(f"DROP SCHEMA {schema} CASCADE")
            self.compare()
        except BaseException:
            self._forget()
            raise
        return session.sink.lines[start:]

    @property
    def spill_txns(self) -> int:
        """How many transactions the decoder has spilled."""
        return self.session.decoder.stats.spill_txns

    def close(self) -> None:
        """End the decoder; the slot goes with its database."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def session(self) -> DecodingSession:
        """The decoder and the slot that stand now; made when they are first asked for."""
        if self._session is None:
            self._sessions_made += 1
            self._session = DecodingSession(
                self.database,
                self._directory / str(self._sessions_made),
                work_mem_bytes=self._work_mem_bytes,
                bootstrap=self._bootstrap,
            )
            # Ours and theirs become consistent at records that may differ; both have done so here.
            self._session.decode()
            assert self._session.sink.consistent_at is not None
            self._session.slot.get(upto_lsn=str(Lsn(self._session.decoder.position)))
            self._compared = len(self._session.sink.lines)
        return self._session

    def compare(self) -> None:
        """Compare what was written since the last comparison."""
        session = self.session
        ours = session.decode()[self._compared :]
        self._compared += len(ours)
        # The server's slot reads records until one ends at this position or after it.
        theirs = session.slot.get(upto_lsn=str(Lsn(session.decoder.position)))
        for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, f"line {number} of {len(ours)} and {len(theirs)}"
        assert len(ours) == len(theirs)

    def _keep(self) -> None:
        self.compare()
        self._state = self.session.decoder.serialize()

    def _restore(self) -> None:
        self.compare()
        session = self.session
        session.restart(self._state, session.decoder.position)

    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.decoder.close()
            session.slot.drop()
            session.close()
