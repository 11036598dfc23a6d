"""Spark's own progress of a query over ``format("spillway")``, as metrics.

A query listener sees each trigger: what its phases took, where the query is, how far the slot is
decoded. The job adds one by itself; a query that you write takes one, too::

    metrics = LakeMetrics()
    spark.streams.addListener(SlotQueryListener(metrics, {"my query's name": "my slot"}))
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from spillway.errors import InvalidLsn
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from spillway.lake.metrics import LakeMetrics


class SlotQueryListener(StreamingQueryListener):
    """Hands the progress of named queries to :class:`~spillway.lake.metrics.LakeMetrics`."""

    def __init__(self, metrics: LakeMetrics, slots: Mapping[str, str]) -> None:
        """Listen to the queries in *slots*: their names, and the slots they read; all others are
        passed over.
        """
        super().__init__()
        self._metrics = metrics
        self._slots = slots

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: what has not run a trigger has no progress."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Note one trigger."""
        progress = event.progress
        slot = self._slots.get(progress.name or "")
        if slot is None:
            return
        self._metrics.phases(slot, dict(progress.durationMs))
        for source in progress.sources:
            if (lsn := _lsn(source.latestOffset)) is not None:
                self._metrics.decoded(slot, lsn)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no progress, no news."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: whoever started the query knows why it ended."""


def _lsn(offset: str | None) -> int | None:
    """Return the LSN of an offset as Spark shows it; None: it is another source's."""
    try:
        found = json.loads(offset or "null")
        return Lsn.parse(found["lsn"])
    except (ValueError, TypeError, KeyError, InvalidLsn):
        return None
