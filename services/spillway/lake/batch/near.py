"""Messages of small tables, brought to the driver, so that no table of them needs a Spark job of
its own.

::

    envelopes, cached ──one job for all of them──▶ messages by table ──decode──▶ rows, in Arrow

A table's part of a batch that Spark writes costs half a second whatever it has: its workers must be
handed a plan, and the JVM what they made of it. A batch that has a row of each of five hundred
tables is some megabytes. So the parts of tables with few bytes come here, where table formats write
them by themselves (``append_plain``, ``merge_plain`` of
:class:`spillway.lake.tables.contract.LakeTables`); what is large, or comes back from quarantine,
stays Spark's, which decodes on all of its cores.

Bound: messages of :data:`_BATCH_BYTES` at once, :data:`_TABLE_BYTES` of one table; a thread decodes
one table's at a time. Tables beyond these are Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spillway.lake.batch.plan import TableBatch

#: Messages of one table, as the plugin made them.
_TABLE_BYTES: Final = 16 << 20
#: Those of all tables that are brought here in a batch.
_BATCH_BYTES: Final = 64 << 20
#: More names than these are not sent along to choose them.
_NAMES_MAX: Final = 1000

#: A table's messages, in the order of its changes; by the table's name.
Near = dict[str, list[pa.Buffer]]


def bring(parts: Sequence[TableBatch], sizes: Mapping[str, int], envelopes: DataFrame) -> Near:
    """Bring the messages of the small ones among *parts* here, the smallest first.

    Args:
        parts: of the batch.
        sizes: the bytes of messages in *envelopes*, by the table's name.
        envelopes: of the batch, cached.
    """
    chosen: list[str] = []
    total = 0
    for name in sorted((p.relation.name for p in parts if p.is_whole), key=lambda n: sizes[n]):
        total += sizes[name]
        if sizes[name] > _TABLE_BYTES or total > _BATCH_BYTES:
            break
        chosen.append(name)
    if not chosen:
        return {}
    rows = envelopes.where(F.col("relation").isNotNull())
    if len(chosen) < len(sizes):
        if len(chosen) > _NAMES_MAX:
            chosen = chosen[:_NAMES_MAX]
        rows = rows.where(F.col("relation").isin(chosen))
    found = rows.select("relation", "first_commit_lsn", "first_seq", "payload").toArrow()
    found = found.sort_by([("first_commit_lsn", "ascending"), ("first_seq", "ascending")])
    near: Near = {}
    for relation, payload in zip(
        found.column("relation").to_pylist(), found.column("payload"), strict=True
    ):
        near.setdefault(relation, []).append(payload.as_buffer())
    return near
