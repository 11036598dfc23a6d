"""The messages of a stream put together: to transactions (pgoutput), or to Arrow batches
(:mod:`spillway_client.arrow`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from spillway_client.errors import TransactionTooLarge
from spillway_client.lsn import Lsn
from spillway_client.pgoutput import (
    POSTGRES_EPOCH,
    Begin,
    Origin,
    Relation,
    malformed,
    message_position,
    read_control,
    read_relation,
    read_type,
    relations_of,
    truncate_of,
)
from spillway_client.transaction import Changes, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway_client._v1.change_stream_pb2 import Changes as Response
    from spillway_client.arrow import Batch
    from spillway_client.values import Converter


class Assembly(Protocol):
    """Puts the messages of a stream together. It outlives a connection."""

    def feed(self, response: Response) -> Sequence[Transaction | Batch]:
        """Take what came; return what is whole now."""
        ...

    def reconnected(self) -> None:
        """Begin with a new connection, which goes on from the last ``confirm_lsn``."""
        ...

    def rewound(self) -> None:
        """Begin with a new connection, which goes on from an earlier position."""
        ...


def messages_of(response: Response) -> Iterator[bytes]:
    """Cut the payload into the plugin's messages."""
    payload = response.payload
    start = 0
    for end in accumulate(response.message_length):
        yield payload[start:end]
        start = end


_CHANGES: Final = frozenset(b"IUDT")
_CONTROL: Final = frozenset(b"BCObPKr")


class TransactionAssembly:
    """Transactions of pgoutput's messages."""

    def __init__(
        self,
        buffer_bytes: int,
        max_transaction_bytes: int | None,
        converters: Mapping[str | int, Converter],
    ) -> None:
        self._buffer_bytes = buffer_bytes
        self._max_bytes = max_transaction_bytes
        self._converters = converters
        # The service tells a new connection of each table and type again, before the first change
        # of it.
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, tuple[str, str]] = {}
        self._begin: Begin | None = None
        self._origin: str | None = None
        self._changes = Changes(buffer_bytes)

    def reconnected(self) -> None:
        self._relations = {}
        self._types = {}
        self._begin = None

    def rewound(self) -> None:
        self.reconnected()

    def feed(self, response: Response) -> list[Transaction]:
        """Take what came; return the transactions that it completes.

        Raises:
            MalformedMessage: it is no message of pgoutput's.
            TransactionTooLarge: the transaction under way exceeds the bound.
        """
        whole = []
        for data in messages_of(response):
            kind = data[0] if data else 0
            if kind in _CHANGES:
                self._add(data)
            elif kind in _CONTROL:
                ended = self._frame(data)
                if ended is not None:
                    whole.append(ended)
            elif kind == ord("R"):
                relation = read_relation(data, self._types, self._converters)
                self._relations[relation.oid] = relation
            elif kind == ord("Y"):
                oid, schema, name = read_type(data)
                self._types[oid] = (schema, name)
            elif kind == ord("M"):
                message = self._message(data)
                if message is not None:
                    whole.append(message)
            else:
                raise malformed(data, "its kind is not known")
        return whole

    def _frame(self, data: bytes) -> Transaction | None:
        control = read_control(data)
        if isinstance(control, Begin):
            self._begin, self._origin = control, None
            self._changes = Changes(self._buffer_bytes)
            return None
        if isinstance(control, Origin):
            self._origin = control.name
            return None
        begin, changes = self._begin, self._changes
        self._begin = None
        if begin is None:
            if control.kind == "commit":
                raise malformed(data, "a COMMIT came without its BEGIN")
            # A prepared transaction's end; or an empty one, which PostgreSQL 18 prepares without a
            # BEGIN.
            changes = Changes(self._buffer_bytes)
        changes.finish()
        return Transaction(
            begin.xid if begin else control.xid,
            control.commit_lsn,
            control.end_lsn,
            control.commit_time,
            changes,
            self._origin if begin else None,
            control.kind,
            control.gid,
        )

    def _add(self, data: bytes) -> None:
        if self._begin is None:
            raise malformed(data, "a change came outside of a transaction")
        for oid in relations_of(data):
            relation = self._relations.get(oid)
            if relation is None:
                raise malformed(data, f"a change came of table {oid}, which was not described")
            self._changes.append(truncate_of(data, oid) if data[:1] == b"T" else data, relation)
        self._check_size(self._begin)

    def _check_size(self, begin: Begin) -> None:
        if self._max_bytes is not None and self._changes.nbytes > self._max_bytes:
            raise TransactionTooLarge(
                f"transaction {begin.xid}, which commits at {begin.commit_lsn}, has more than "
                f"{self._max_bytes} bytes",
                hint="Raise max_transaction_bytes, or set it to None: beyond buffer_bytes a "
                "transaction is kept in a temporary file, not in memory.",
                xid=str(begin.xid),
                lsn=str(begin.commit_lsn),
            )

    def _message(self, data: bytes) -> Transaction | None:
        is_transactional, lsn = message_position(data)
        if is_transactional and self._begin is not None:
            self._changes.append(data, None)
            self._check_size(self._begin)
            return None
        changes = Changes(self._buffer_bytes)
        changes.append(data, None)
        # It is written without a time. One byte on, what starts at its position is passed over.
        return Transaction(0, lsn, Lsn(lsn + 1), POSTGRES_EPOCH, changes, kind="message")
