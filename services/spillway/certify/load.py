"""What changes a database while it is compared: the built-in workload in a thread, in a database of
its own.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.certify.workload.driver import Workload
from spillway.errors import SourceError, SourceNotPermitted
from spillway.receiver.primary import with_database
from spillway.receiver.source_session import source_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.receiver.checks import SourceFacts

_POLL_S: Final = 0.05
_RELEASE_S: Final = 30.0


class Load:
    """The built-in workload in a thread; nothing at all when live traffic is followed.

    Args:
        dsn: of the workload's own database.
        facts: of its server.
        seed: what the workload is made from; None: live traffic is followed.
        steps: how many statements.
        prefix: for names that are the whole cluster's.
        interrupted: ends it when set.
    """

    def __init__(
        self,
        dsn: str,
        facts: SourceFacts,
        *,
        seed: int | None,
        steps: int,
        prefix: str,
        interrupted: threading.Event,
    ) -> None:
        self._steps = steps
        self._stop = threading.Event()
        self._interrupted = interrupted
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self.summary: dict[str, Any] | None = None
        if seed is not None:
            self._workload = Workload(
                dsn,
                seed,
                major=facts.server_version_num // 10000,
                superuser=facts.is_superuser,
                cluster_prefix=prefix,
                log=lambda _session, _statement: None,
            )
            self.summary = {"seed": seed, "steps": 0, "failed": {}}
            self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._thread is not None:
            self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the workload has ended; live traffic never does."""
        return self._thread is not None and not self._thread.is_alive()

    def end(self) -> None:
        """End the workload and its transactions; raise what ended it before."""
        self._stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        workload = self._workload
        try:
            workload.setup()
            while workload.steps < self._steps and not self._stop.is_set():
                if self._interrupted.is_set():
                    break
                workload.step()
            workload.finish()
        except Exception as error:  # noqa: BLE001 - raised again by end()
            self._error = error
        self.summary = {
            "seed": (self.summary or {})["seed"],
            "steps": workload.steps,
            "failed": dict(workload.failures),
        }


@contextlib.contextmanager
def workload_database(dsn: str) -> Iterator[str]:
    """Create a database for the workload, and drop it whatever happens."""
    name = f"spillway_certify_{secrets.token_hex(4)}"
    try:
        with source_session(dsn) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name))
            )
    except SourceError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise SourceNotPermitted(
                "the workload needs a database of its own, and the role may not create one",
                hint="ALTER ROLE … CREATEDB; or leave --workload out, to follow live traffic.",
            ) from None
        raise
    try:
        yield name
    finally:
        _drop_database(dsn, name)


def _drop_database(dsn: str, name: str) -> None:
    """Drop the workload's database with what an interrupted workload left prepared in it."""
    with source_session(with_database(dsn, name)) as connection:
        left = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall()
        for (gid,) in left:
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    deadline = time.monotonic() + _RELEASE_S
    with source_session(dsn) as connection:
        while True:
            try:
                connection.execute(drop)
            except psycopg.errors.ObjectInUse:
                # The server notices a moment later that the session of a slot has gone.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return
