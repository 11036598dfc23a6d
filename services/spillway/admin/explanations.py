"""What each attribute of a slot means, in a sentence: shown beside its value; a column's as it is
declared.
"""

from __future__ import annotations

from typing import Final

from spillway.declarations.slot_columns import SLOT_COLUMNS

#: attribute of :class:`spillway.service.model.SlotInfo` or ``SlotStats`` to its meaning
SLOT: Final[dict[str, str]] = {
    **{column.name: column.meaning for column in SLOT_COLUMNS},
    "total_txns": "Transactions delivered since the service started.",
    "total_bytes": "Bytes of messages delivered since the service started.",
    "spill_txns": (
        "Transactions that went to disk while they were decoded; one decoding serves all slots of "
        "a database."
    ),
    "spill_count": "How often that happened.",
    "spill_bytes": "Bytes that went to disk.",
    "stream_txns": "Large transactions that were delivered while in progress.",
    "stream_count": "Parts in which that was done.",
    "stream_bytes": "Bytes of those parts.",
}
