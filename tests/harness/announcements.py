"""A decoder beside a pgoutput slot on one server's WAL: every message that either sends, byte for
byte.

What pgoutput knows of tables and publications it keeps until the server invalidates it, so a
session that reads everything from the beginning shows where that happens: in what it announces
again, and by which rules it publishes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from harness.decoding_session import RenderingSink
from harness.oracle import OracleChange
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.decoding.decoder import Decoder
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

_KINDS = {"49": "insert", "55": "update", "44": "delete", "52": "relation", "54": "truncate"}


class AnnouncingSession:
    """A decoder on *database*'s WAL beside a pgoutput slot; begin it while the server is idle."""

    def __init__(
        self, database: Database, directory: Path, publications: str = "p", sink: Any = None
    ) -> None:
        self.database = database
        self._options = {"proto_version": "1", "publication_names": publications}
        # A logical slot keeps WAL from where it is made on; the decoder begins before that.
        self._physical_slot = f"kept_{database.oid}"
        database.query(
            "SELECT pg_create_physical_replication_slot(%s, true)", [self._physical_slot]
        )
        self._slot = f"announced_{database.oid}"
        bootstrap = bootstrap_sql(database.dsn)
        context = PluginContext("ours", database.name, bootstrap.server_version)
        self.sink = sink or RenderingSink("pgoutput", self._options, context)
        self.version = version_of_server(bootstrap.server_version)
        self.directory = directory
        self.decoder = Decoder(
            self.version,
            database.oid,
            bootstrap.mirror,
            self.sink,
            spill_dir=directory / "spill",
            work_mem_bytes=1 << 20,
            start=int(bootstrap.redo_lsn),
        )
        database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._slot])
        self._state = b""
        self.decode()
        assert self.sink.consistent_at is not None

    def decode(self) -> None:
        """Decode all that the server has written by now."""
        until = int(Lsn.parse(self.database.cluster.wal_lsn()))
        self.database.query("SELECT pg_logical_emit_message(true, 'flush', '')")
        deadline = time.monotonic() + 30
        while (before := self.decoder.position) < until:
            wal = WalDirectory(self.database.cluster.wal_directory)
            wal.check_from(before)
            for batch in wal.batches(before):
                self.decoder.process(batch)
            assert time.monotonic() < deadline or self.decoder.position > before, (
                f"WAL ends at {Lsn(self.decoder.position)}, before {Lsn(until)}"
            )
        if self.decoder.restart_lsn == self.decoder.position:
            self._state = self.decoder.serialize()

    def restart(self) -> None:
        """Begin again at a state from when no transaction was in progress, as after a crash."""
        state, position = self._state, self.decoder.position
        self.sink.decoded_lsn = 0
        self.decoder.close()
        self.decoder = Decoder.restore(
            state,
            self.version,
            self.sink,
            work_mem_bytes=1 << 20,
            spill_dir=self.directory / "spill",
            start_decoding_at=position,
        )

    def server_lines(self) -> list[OracleChange]:
        """What pgoutput sends."""
        options = [part for option in self._options.items() for part in option]
        rows = self.database.query(
            "SELECT lsn::text, xid::text::int8, data FROM pg_logical_slot_peek_binary_changes"
            "(%s, NULL, NULL, VARIADIC %s::text[])",
            [self._slot, options],
        )
        return [OracleChange(lsn, xid, rf"\x{bytes(data).hex()}") for lsn, xid, data in rows]

    def assert_equal_to_server(self) -> list[str]:
        """Compare every message; return what kinds of messages about tables there were."""
        self.decode()
        ours, theirs = self.sink.lines, self.server_lines()
        for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, (
                f"message {i}: {ours[max(0, i - 10) : i]} then {our}, the server sends {their}"
            )
        assert len(ours) == len(theirs)
        return [_KINDS[line.data[2:4]] for line in ours if line.data[2:4] in _KINDS]

    def close(self) -> None:
        self.decoder.close()
        for slot in (self._slot, self._physical_slot):
            self.database.query("SELECT pg_drop_replication_slot(%s)", [slot])
