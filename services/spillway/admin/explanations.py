"""What attributes of a slot mean (a column's as it is declared), and states of subscriptions and of
their tables: a sentence each, shown beside them.
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

#: pg_subscription_rel's states
SYNC_STATES: Final[dict[str, str]] = {
    "i": "waits for its copy",
    "d": "is being copied",
    "f": "is copied, and catches up",
    "s": "has caught up, and joins the stream",
    "r": "follows the stream",
}

SUBSCRIPTION_STATES: Final[dict[str, str]] = {
    "initializing": "Its slot is being made, or its program starts.",
    "copying": "It follows its slot while tables are copied.",
    "streaming": "It follows its slot; all tables are copied.",
    "paused": "It is disabled: its slot keeps what commits.",
    "failed": "Its program ended with an error, and is started again after a while.",
}
