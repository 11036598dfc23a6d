"""Arrow batches: what a slot with the plugin ``arrow`` gives. Needs pyarrow
(``spillway-client[arrow]``).

A message of the plugin is an Arrow IPC stream with one record batch: changes of one table, in the
order in which they were made. A transaction's rows may be spread over several, and a cut may come
anywhere between. After one, the service goes on from the last position at which all tables were
given; what this consumer had of a table beyond that is left out by the commit's position and the
change's number in it, so no row is given twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spillway_client.assembly import messages_of
from spillway_client.errors import InvalidUse, MalformedMessage
from spillway_client.lsn import Lsn

if TYPE_CHECKING:
    import pyarrow as pa

    from spillway_client._v1.change_stream_pb2 import Changes as Response

_DESCRIPTION: Final = b"spillway.relation"


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one table."""

    schema: str
    table: str
    #: ``_op``, ``_lsn``, ``_commit_lsn``, … first, then ``_old_key``, then the table's own columns
    record_batch: pa.RecordBatch = field(repr=False)
    #: whoever has made everything up to and with this batch durable may confirm this
    end_lsn: Lsn
    primary_key: tuple[str, ...] = ()
    #: the replica identity's columns
    key: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """How many changes these are."""
        rows: int = self.record_batch.num_rows
        return rows


class BatchAssembly:
    """Batches of the plugin's messages."""

    def __init__(self) -> None:
        try:
            import pyarrow.compute  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise InvalidUse(
                "a slot with the plugin arrow gives Arrow batches, and pyarrow is not installed",
                hint="Install the client with its extra `arrow`, or pyarrow itself.",
            ) from error
        self._confirm_lsn = Lsn(0)
        #: by the table's OID: commit record and number of the last change that was given since
        #: confirm_lsn
        self._given: dict[int, tuple[int, int]] = {}
        #: the same as of the last connection: what comes again
        self._again: dict[int, tuple[int, int]] = {}

    def reconnected(self) -> None:
        self._again = dict(self._given)

    def rewound(self) -> None:
        self._given, self._again = {}, {}
        self._confirm_lsn = Lsn(0)

    def feed(self, response: Response) -> list[Batch]:
        """Take what came.

        Raises:
            MalformedMessage: it is no message of the plugin's.
        """
        parsed = [_parse(data) for data in messages_of(response)]
        fresh = []
        for relation, batch in parsed:
            oid = int(relation["oid"])
            rest = self._not_given(oid, batch)
            if rest.num_rows:
                self._given[oid] = _place(rest, rest.num_rows - 1)
                fresh.append((relation, rest))
        before = self._confirm_lsn
        self._confirm_lsn = max(before, Lsn(response.confirm_lsn))
        # What commits before that never comes again.
        self._given = {o: p for o, p in self._given.items() if p[0] >= self._confirm_lsn}
        self._again = {o: p for o, p in self._again.items() if p[0] >= self._confirm_lsn}
        return [
            Batch(
                relation["schema"],
                relation["table"],
                batch,
                self._confirm_lsn if at == len(fresh) else before,
                tuple(relation.get("primary_key") or ()),
                tuple(relation.get("identity_columns") or ()),
            )
            for at, (relation, batch) in enumerate(fresh, 1)
        ]

    def _not_given(self, oid: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of *batch* that come after the last one that was given before the
        cut.
        """
        last = self._again.get(oid)
        if last is None or not batch.num_rows:
            return batch
        if _place(batch, 0) > last:
            return batch
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.compute as pc  # noqa: PLC0415 - an extra

        commits, numbers = batch.column("_commit_lsn"), batch.column("_seq")
        commit, number = (batch.schema.field(n).type for n in ("_commit_lsn", "_seq"))
        at_last = pa.scalar(last[0], commit)
        later = pc.or_(
            pc.greater(commits, at_last),
            pc.and_(pc.equal(commits, at_last), pc.greater(numbers, pa.scalar(last[1], number))),
        )
        return batch.filter(later)


def _place(batch: pa.RecordBatch, row: int) -> tuple[int, int]:
    return batch.column("_commit_lsn")[row].as_py(), batch.column("_seq")[row].as_py()


def _parse(data: bytes) -> tuple[dict[str, Any], pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            described: dict[str, Any] = json.loads(reader.schema.metadata[_DESCRIPTION])
    except (pa.ArrowInvalid, StopIteration, KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(
            f"a message is not an Arrow IPC stream of a table: {error!r}",
            hint="The service is of a release that this client doesn't know; install the client of "
            "that release.",
        ) from error
    return described, batch
