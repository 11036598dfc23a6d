"""``format("spillway")``: a slot as a Spark data source, batch and streaming.

::

    spark.dataSource.register(SpillwayDataSource)
    slot = spark.readStream.format("spillway").option("slot", "shop")
    slot.load()                                     # envelopes
    slot.option("table", "public.orders").load()    # rows

==========================  ========================================================================
option                      meaning
==========================  ========================================================================
``slot``                    the slot; its plugin must be ``arrow``
``grpc``                    the service's host:port; ``https://host:port`` of one with a certificate
``tls_ca``                  the CAs to verify it with, a PEM file on every machine of the cluster;
                            SPILLWAY_TLS_CA of the process that reads when it isn't given.
                            ``tls_client_cert``, ``tls_client_key``, ``tls_server_name`` likewise.
                            The job hands on what its own environment has, for workers that have
                            nothing in theirs
``token``                   bearer token; SPILLWAY_TOKEN when it isn't given, which keeps it out of
                            query plans
``table``                   ``schema.table``: typed rows of that table instead of envelopes
``tables``                  a JSON list of ``schema.table``: envelopes of these tables only
``columns``                 with ``table``, a JSON list of columns, the plugin's own included: only
                            these are read
``filter_pushdown``         with ``table``, batch reads: ``true`` has filters applied here
                            (:mod:`spillway.lake.source.pushdown`); Spark must be told, too:
                            ``spark.sql.python.filterPushdown.enabled``
``start_lsn``               where a new query begins, instead of the slot's confirmed_flush_lsn
``end_lsn``                 batch reads only: where they end, instead of what is decoded
``plugin_options``          a JSON object of options of the plugin, over the slot's own. With
                            ``not_representable`` = ``mark`` a value may be null that is none:
                            :mod:`spillway.plugins.refused_values`. The secret of ``masks`` that
                            hash is taken from SPILLWAY_LAKE_MASK_SECRET of the process that reads,
                            which keeps it out of query plans
``max_bytes_per_batch``     bytes of WAL that a micro-batch may span (256 MiB); a transaction is
                            never cut
``boundaries``              a directory or prefix with LSNs at which a micro-batch must end
                            (:mod:`spillway.lake.state.boundaries`)
``partitions``              parts a micro-batch is read in, at most (2); each spans at least 8 MiB
                            of WAL
==========================  ========================================================================

**Offsets are LSNs**, ``{"lsn": "0/16B3748"}``: everything whose commit record starts before it. A
batch is the range [start, end) of commit LSNs, partitions cut it into equal parts by arithmetic
alone, and so the same offsets always give the same partitions and rows, whichever process asks.
Reading is a peek: it neither moves the slot nor makes it active, and
:meth:`SpillwayStreamReader.commit` confirms nothing, because Spark calls it late and not at all for
the last batch. Whoever writes the rows confirms the slot from its own durable marker
(:mod:`spillway.lake.job.run`). A range before the slot's confirmed position reads as empty: it was
confirmed because it is durable elsewhere.

**Admission control is by WAL bytes**, not by rows: the distance of two LSNs is known without
reading, and bounds what lies between. Rows per LSN are known to nobody before they are read, and
reading twice would cost more than it bounds.

**Envelopes: a row a message, not a row a change.** A slot carries many tables with as many schemas,
and a Spark source has one. Spark moves about 1.5 million rows/s out of Python in Arrow batches of a
million rows, 4 thousand in batches of a thousand; messages of many small tables would be such small
batches, and a union schema of all tables would be mostly nulls. So the source hands out what the
plugin made, up to 1 MiB of Arrow IPC as one binary value, with just enough beside it to route it,
and a table's messages become columns in ``mapInArrow``, in parallel and only for the tables wanted.
The slot is read once for all tables. The last row of each partition has no relation: it says that
[range_start, range_end) was read to its end, so a consumer knows what it has, even if that is
nothing.
"""

from __future__ import annotations

import json
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from spillway.consumer.connect import connect
from spillway.errors import InvalidOption, LakeError, SlotInvalidated
from spillway.lake.shape import payload as payloads
from spillway.lake.shape.payload import ENVELOPE
from spillway.lake.source.pushdown import Pushed, pushed
from spillway.lake.state.boundaries import Limits
from spillway.pg.lsn import Lsn
from spillway.plugins.masks import with_secret
from spillway.plugins.partition_roots import ATTACHED, EMPTIED
from spillway.storage.place import lake_path

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Iterable,
        Iterator,
        Mapping,
        MutableMapping,
        Sequence,
    )

    from pyspark.sql.types import StructType

    from spillway.consumer.slot import SlotPosition

DEFAULT_MAX_BYTES_PER_BATCH: Final = 256 << 20
_DEFAULT_PARTITIONS: Final = 2
#: operations that are of no one row
_NO_ROWS: Final = pa.array(["T", EMPTIED, ATTACHED])
#: Below this much WAL another task costs more than it reads.
_MIN_PARTITION_BYTES: Final = 8 << 20
#: Payload bytes that one Arrow batch carries to the JVM: large enough to amortise the hand-over
#: (about 200 µs), small enough that the JVM's copy of it doesn't matter.
_YIELD_BYTES: Final = 16 << 20


class LsnRange(InputPartition):
    """A part of a batch: commit LSNs in [start, end). Pickled to executors."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class SpillwayDataSource(DataSource):
    """The data source; made on the driver, pickled to the planner and the executors."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options.

        Raises:
            InvalidOption: ``slot`` is missing, or a number isn't one.
        """
        # Spark's mapping is case-insensitive and holds what we don't know of (path, …): leave
        # those.
        self.options = dict(options)
        if not self.options.get("slot"):
            raise InvalidOption(
                "the data source `spillway` needs the option `slot`", hint="option('slot', NAME)"
            )
        self.max_bytes = _positive(self.options, "max_bytes_per_batch", DEFAULT_MAX_BYTES_PER_BATCH)
        self.partitions = _positive(self.options, "partitions", _DEFAULT_PARTITIONS)
        self.tables = frozenset(_names(self.options, "tables"))
        self.columns = _names(self.options, "columns")
        self.plugin_options = _texts(self.options, "plugin_options")
        if self.columns and not self.options.get("table"):
            raise InvalidOption(
                "columns are a table's",
                hint="option('table', 'schema.table') with option('columns', …)",
            )
        for name in ("start_lsn", "end_lsn"):
            if self.options.get(name):
                Lsn.parse(self.options[name])

    @classmethod
    def name(cls) -> str:
        return "spillway"

    def schema(self) -> StructType:
        """Return the envelope's schema, or with ``table`` that of the table's changes.

        Runs in a short-lived Python process when no schema was given to the reader. A table's
        schema is taken from the first message in the slot that is of it.
        """
        if not self.options.get("table"):
            return from_arrow_schema(ENVELOPE)
        with closing(connect(self.options)) as client:
            position = _usable(client.position(self.options["slot"]))
            start = _start_lsn(self.options, position)
            for body in client.read(
                self.options["slot"],
                start,
                position.decoded_lsn,
                options=with_secret(self.plugin_options),
            ):
                message = payloads.parse_message(body)
                if message.relation.name == self.options["table"]:
                    schema = payloads.lake_schema(message.batch.schema)
                    return from_arrow_schema(self._pruned(schema), prefer_timestamp_ntz=True)
        raise LakeError(
            f"slot {self.options['slot']} holds no change of {self.options['table']} to take its "
            "schema from",
            hint="Give the reader a schema, or try again once the table has changed.",
            slot=self.options["slot"],
            relation=self.options["table"],
        )

    def _pruned(self, schema: pa.Schema) -> pa.Schema:
        """Return the wanted columns of a table's schema, in the order in which they were named."""
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise InvalidOption(
                f"{self.options['table']} has no column {missing[0]!r}",
                hint=f"It has {', '.join(schema.names)}.",
            )
        return pa.schema([schema.field(name) for name in self.columns]) if self.columns else schema

    def reader(self, schema: StructType) -> SpillwayBatchReader:
        # A reader that takes filters is refused by Spark while its setting is off, which is its
        # default.
        if self.options.get("table") and self.options.get("filter_pushdown", "").lower() == "true":
            return SpillwayFilteringReader(self, schema)
        return SpillwayBatchReader(self, schema)

    def streamReader(self, schema: StructType) -> SpillwayStreamReader:  # noqa: N802 - Spark's name
        return SpillwayStreamReader(self, schema)


class _RangeReader:
    """What batch and streaming share: cutting a range into partitions, reading one."""

    def __init__(self, source: SpillwayDataSource, schema: StructType) -> None:
        self.source = source
        self.options = source.options
        self.slot = source.options["slot"]
        self.output = to_arrow_schema(schema, timezone="UTC")
        self.pushed: Pushed | None = None

    def position(self) -> SlotPosition:
        with closing(connect(self.options)) as client:
            return _usable(client.position(self.slot))

    def cut(self, start: int, end: int) -> list[LsnRange]:
        """Cut [start, end) into equal parts: a function of the range and the options alone."""
        if end <= start:
            return []
        parts = max(1, min(self.source.partitions, (end - start) // _MIN_PARTITION_BYTES))
        bounds = [start + (end - start) * i // parts for i in range(parts)] + [end]
        return [LsnRange(a, b) for a, b in pairwise(bounds)]

    def read_range(self, part: LsnRange) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows; runs on an executor, once per attempt."""
        with closing(connect(self.options)) as client:
            bodies = client.read(
                self.slot, part.start, part.end, options=with_secret(self.source.plugin_options)
            )
            if self.options.get("table"):
                yield from self._rows(bodies, part)
            else:
                yield from envelopes(bodies, part.start, part.end, self.output, self.source.tables)

    def _rows(self, bodies: Iterator[bytes], part: LsnRange) -> Iterator[pa.RecordBatch]:
        for body in bodies:
            message = payloads.parse_message(body)
            if message.relation.name == self.options["table"]:
                rows = payloads.conform(message.batch, self.output, part.start)
                if self.pushed is not None:
                    rows = self.pushed.filter(rows)
                if rows.num_rows:
                    yield rows


class SpillwayBatchReader(_RangeReader, DataSourceReader):
    """``spark.read``: from ``start_lsn`` (or what is confirmed) to ``end_lsn`` (or what is decoded
    now).
    """

    def partitions(self) -> list[InputPartition]:
        """Plan the read; runs in a planner process, once per query."""
        position = self.position()
        end = position.decoded_lsn
        if self.options.get("end_lsn"):
            end = min(end, Lsn.parse(self.options["end_lsn"]))
        start = _start_lsn(self.options, position)
        if self.pushed is not None:
            start = max(start, self.pushed.start or 0)
            end = end if self.pushed.end is None else min(end, self.pushed.end)
        # Spark wants at least one; an empty range reads nothing.
        return [*self.cut(start, end)] or [LsnRange(end, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LsnRange):
            raise LakeError(f"not a partition of this source: {partition!r}")
        return self.read_range(partition) if partition.start < partition.end else iter(())


class SpillwayFilteringReader(SpillwayBatchReader):
    """The same, with Spark's filters applied before rows go to the JVM."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be applied here; Spark applies all of them again."""
        self.pushed = pushed(filters, self.output)
        return filters


class SpillwayStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. The planning methods run in one Python process, which is new at each
    restart: the only state it keeps is AvailableNow's target, which Spark sets anew at each start.
    """

    def __init__(self, source: SpillwayDataSource, schema: StructType) -> None:
        super().__init__(source, schema)
        self._target: int | None = None
        named = self.options.get("boundaries")
        self._limits = Limits(lake_path(named)) if named else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an AvailableNow run: what is decoded now. Runs before
        :meth:`initialOffset`.
        """
        self._target = self.position().decoded_lsn

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Return where a new query begins; may run twice, and not at all when there is a
        checkpoint.
        """
        return _offset(_start_lsn(self.options, self.position()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxBytes(self.source.max_bytes)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; *start* itself when there is nothing new."""
        begin = _lsn(start)
        end = self.position().decoded_lsn if self._target is None else self._target
        max_bytes = getattr(limit, "max_bytes", None)
        if max_bytes is not None:
            end = min(end, begin + max_bytes)
        if self._limits is not None and end > begin:
            end = self._limits.end_of_batch(begin, end, is_last=self._target is not None)
        return _offset(max(begin, end))

    def reportLatestOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return _offset(self.position().decoded_lsn)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return self.cut(_lsn(start), _lsn(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LsnRange):
            raise LakeError(f"not a partition of this source: {partition!r}")
        return self.read_range(partition)

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing: Spark calls this late and not for the last batch. The sink confirms the
        slot.
        """


def envelopes(
    bodies: Iterator[bytes],
    start: int,
    end: int,
    output: pa.Schema,
    tables: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the envelopes of a range's messages, and the row that closes the range.

    Args:
        bodies: the messages of what commits in [*start*, *end*).
        start: see *bodies*.
        end: see *bodies*.
        output: :data:`ENVELOPE`, or Spark's Arrow form of it.
        tables: whose messages; empty: all.
    """
    rows: list[dict[str, Any]] = []
    held = 0
    fingerprints: dict[bytes, str] = {}
    for body in bodies:
        message = payloads.parse_message(body)
        if tables and message.relation.name not in tables:
            continue
        schema = message.batch.schema.serialize().to_pybytes()
        mark = fingerprints.get(schema)
        if mark is None:
            mark = fingerprints[schema] = payloads.fingerprint(message.batch.schema)
        rows.append(
            {
                "relation": message.relation.name,
                "fingerprint": mark,
                "arrow_schema": schema,
                "changes": message.batch.num_rows,
                "first_commit_lsn": message.batch.column("_commit_lsn")[0].as_py(),
                "first_seq": message.batch.column("_seq")[0].as_py(),
                "last_commit_lsn": message.batch.column("_commit_lsn")[-1].as_py(),
                "last_seq": message.batch.column("_seq")[-1].as_py(),
                "first_commit_time": message.batch.column("_commit_time")[0].value,
                "last_commit_time": message.batch.column("_commit_time")[-1].value,
                "special": _special(message.batch),
                "payload": body,
                "range_start": start,
                "range_end": end,
            }
        )
        held += len(body)
        if held >= _YIELD_BYTES:
            yield pa.RecordBatch.from_pylist(rows, schema=output)
            rows, held = [], 0
    rows.append({"changes": 0, "range_start": start, "range_end": end})
    yield pa.RecordBatch.from_pylist(rows, schema=output)


def _special(batch: pa.RecordBatch) -> bool:
    unchanged = pc.any(pc.greater(pc.list_value_length(batch.column("_unchanged_toast")), 0))
    # Of partitions, too (spillway.plugins.partition_roots).
    emptied = pc.is_in(batch.column("_op"), value_set=_NO_ROWS)
    return bool(unchanged.as_py() or pc.any(emptied).as_py())


def _offset(lsn: int) -> dict[str, str]:
    return {"lsn": str(Lsn(lsn))}


def _lsn(offset: Mapping[str, str]) -> int:
    return Lsn.parse(offset["lsn"])


def _start_lsn(options: Mapping[str, str], position: SlotPosition) -> int:
    wanted = Lsn.parse(options["start_lsn"]) if options.get("start_lsn") else 0
    return max(wanted, position.confirmed_flush_lsn)


def _usable(position: SlotPosition) -> SlotPosition:
    """Return *position* if the lake can read such a slot.

    Raises:
        SlotInvalidated: its history was given up.
        LakeError: its plugin is another one.
    """
    if position.invalidation_reason:
        raise SlotInvalidated(
            f"slot {position.slot_name} was invalidated: {position.invalidation_reason}",
            hint="Drop it, create it anew, and load the tables afresh: what it had not delivered "
            "is gone.",
            slot=position.slot_name,
        )
    if position.plugin != "arrow":
        raise LakeError(
            f"slot {position.slot_name} uses the plugin {position.plugin}, and the lake reads "
            "`arrow` only",
            hint="Create a slot for the lake: spillway slot create NAME --plugin arrow.",
            slot=position.slot_name,
        )
    return position


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the names that an option lists."""
    text = options.get(name)
    if not text:
        return ()
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise InvalidOption(
            f"option {name} must be a JSON list of names, not {text!r}", hint='["one", "two"]'
        )
    return tuple(names)


def _texts(options: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the texts by name that an option has."""
    text = options.get(name)
    if not text:
        return {}
    try:
        texts = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
        raise InvalidOption(
            f"option {name} must be a JSON object of texts, not {text!r}",
            hint='{"numeric_as": "text"}',
        )
    return texts


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOption(
            f"option {name} must be a positive number, not {text!r}", hint=f"{default}, for one."
        )
    return int(text)
