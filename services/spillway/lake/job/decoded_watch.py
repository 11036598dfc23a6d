"""How far a slot is decoded while its lake stands still, for the job's metrics.

Spark tells of a trigger when it is over. Of a batch that hangs, of a disk that doesn't answer for
one, it tells nothing, and a lake that had all when the batch began would be told as fresh for as
long as that lasts. So somebody beside it asks the service.

What is decoded is ahead of the lake for a moment all the time, if only by WAL that has no change in
it, and would make a lake of an idle database look old. So an LSN is told of when it has been
decoded for a while: if the lake has it by then, as when the job is at work, nothing comes of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.consumer.slot import SlotClient
    from spillway.lake.metrics import LakeMetrics

_log = logging.getLogger(__name__)

_LOOK_S: Final = 2.0
#: How long the lake may take for what is decoded, beside the time between two batches.
_PATIENCE_S: Final = 10.0


@contextmanager
def decoded_told(
    client: SlotClient, metrics: LakeMetrics, slot_name: str, interval_s: float
) -> Iterator[None]:
    """Tell *metrics*, while the block runs, what has been decoded for a while.

    Args:
        client: the service's.
        metrics: of the job.
        slot_name: the slot.
        interval_s: the time between the starts of two batches.
    """
    over = threading.Event()
    patience_s = _PATIENCE_S + 2 * interval_s

    def look() -> None:
        seen: deque[tuple[float, int]] = deque()
        trouble = ""
        while not over.wait(_LOOK_S):
            try:
                seen.append((time.monotonic(), client.position(slot_name).decoded_lsn))
            except SpillwayError as error:
                # What was decoded before is known all the same; the job says what is amiss.
                if str(error) != trouble:
                    trouble = str(error)
                    _log.debug("how far slot %s is decoded is not known: %s", slot_name, error)
            while seen and time.monotonic() - seen[0][0] >= patience_s:
                metrics.decoded(slot_name, seen.popleft()[1])

    thread = threading.Thread(target=look, name="spillway-lake-decoded")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
