"""When tables are announced to a consumer again: pgoutput's RELATION messages, and what our INVALIDATIONs ask for.

Not an encoder: both sides are reduced to lines like ``relation t`` and ``insert t``, so that only where caches
are invalidated is compared.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from harness import changes
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.decoding import change_format
from spillway.decoding.decoder import Decoder
from spillway.decoding.transaction import TransactionKind
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from spillway.catalog.descriptor import PublicationDescriptor
    from spillway.decoding.transaction import Transaction

_ACTIONS = {
    change_format.INSERT: "insert",
    change_format.UPDATE: "update",
    change_format.DELETE: "delete",
}
_MESSAGES = {"I": "insert", "U": "update", "D": "delete", "R": "relation"}


class AnnouncingSink:
    """Says when a consumer of one publication would be told a table's definition."""

    def __init__(self, publication: str) -> None:
        self._publication = publication
        self._announced: set[int] = set()
        # How each table is published, worked out once and kept until an invalidation, as pgoutput does: a transaction that
        # began before ALTER PUBLICATION is told by the newer rules when another one had them worked out before its commit.
        self._rules: dict[int, PublicationDescriptor | None] = {}
        self.lines: list[str] = []
        self.consistent_at: int | None = None

    def consistent(self, lsn: int) -> None:
        if self.consistent_at is None:
            self.consistent_at = lsn

    def transaction(self, transaction: Transaction) -> None:
        whole = transaction.header.kind is not TransactionKind.PREPARE
        for change in changes.parse(transaction.chunks()):
            if change.action == change_format.INVALIDATION and whole:
                assert isinstance(change.new, bytes)
                count, *oids = struct.unpack(f"<{len(change.new) // 4}I", change.new)
                assert count == len(oids) > 0
                if 0 in oids:
                    oids = [*self._rules]
                self._announced.difference_update(oids)
                for oid in oids:
                    self._rules.pop(oid, None)
            elif change.action in _ACTIONS and whole:
                action = _ACTIONS[change.action]
                table = transaction.relations[change.relation]
                if table.oid not in self._rules:
                    published = (p for p in table.publications if p.name == self._publication)
                    self._rules[table.oid] = next(published, None)
                rules = self._rules[table.oid]
                if rules is None or not getattr(rules, action):
                    continue
                if table.oid not in self._announced:
                    self._announced.add(table.oid)
                    self.lines.append(f"relation {table.oid}")
                self.lines.append(f"{action} {table.oid}")

    def progress(self, decoded_lsn: int) -> None:
        pass


class AnnouncingSession:
    """A decoder on *database*'s WAL beside a pgoutput slot; begin it while the server is idle."""

    def __init__(
        self, database: Database, directory: Path, publication: str = "p", sink: Any = None
    ) -> None:
        self.database = database
        self._publication = publication
        # The slot first: it keeps WAL, and a decoder begins at a later running-xacts record.
        self._slot = f"announced_{database.oid}"
        bootstrap = bootstrap_sql(database.dsn)
        self.sink = sink or AnnouncingSink(publication)
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
        self.decoder.close()
        self.decoder = Decoder.restore(
            state,
            self.version,
            self.sink,
            work_mem_bytes=1 << 20,
            spill_dir=self.directory / "spill",
            start_decoding_at=position,
        )

    def server_lines(self) -> list[str]:
        """What pgoutput sends, in the same words."""
        lines = []
        for (data,) in self.database.query(
            "SELECT data FROM pg_logical_slot_peek_binary_changes"
            "(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
            [self._slot, self._publication],
        ):
            if (action := _MESSAGES.get(chr(data[0]))) is not None:
                lines.append(f"{action} {struct.unpack_from('>I', data, 1)[0]}")
        return lines

    def assert_equal_to_server(self) -> list[str]:
        self.decode()
        ours, theirs = self.sink.lines, self.server_lines()
        for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, f"line {i}: {ours[:i]} then {our}, the server says {their}"
        assert ours == theirs
        return ours

    def close(self) -> None:
        self.decoder.close()
        self.database.query("SELECT pg_drop_replication_slot(%s)", [self._slot])
