"""A streaming standby of a private server, which can take over from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.backup import back_up, give_to_server
from harness.cluster import Cluster
from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from harness.cluster import Database


class Standby(Cluster):
    """Streams from the cluster of *database*, by a slot of its own."""

    def __init__(self, database: Database) -> None:
        super().__init__(
            database.cluster.major,
            primary_conninfo=f"{database.cluster.dsn()} application_name=standby",
            primary_slot_name="standby",
            hot_standby_feedback=True,
        )
        self._of = database

    def initialise(self) -> None:
        """Make the data directory of a base backup."""
        self.make_own_directory()
        self._of.query("SELECT pg_create_physical_replication_slot('standby', true)")
        back_up(self._of, self.data_directory, lambda: None)
        for name in ("pg_wal", "pg_replslot"):
            (self.data_directory / name).mkdir(exist_ok=True)
        (self.data_directory / "standby.signal").touch()
        give_to_server(self)

    def wait_streams(self) -> None:
        """Wait until it has all that its primary has written by now."""
        end = str(self._of.value("SELECT pg_current_wal_lsn()::text"))
        received = "SELECT coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)"
        wait_until("the standby has it", lambda: bool(self.value(received, [end])))

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")
        wait_until("it is a primary", lambda: not self.value("SELECT pg_is_in_recovery()"))
