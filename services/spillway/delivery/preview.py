"""What a slot's consumer is given next, as rows that a person reads: beside the consumer, and
bounded.

Whatever the slot's own plugin writes (``arrow`` and ``pgoutput`` are binary), a preview is written
by ``wal2json`` in its format 2: one JSON object a change, which is easily taken apart. It is read
from the transaction log like a peek, but holds nothing: neither is the slot acquired, nor are its
counts touched, so looking never stands in a consumer's way. What the slot's plugin would leave out
by its own options (publications, ``only-local``) is therefore shown.

Bounds: a preview gives *limit* changes, and a few more that end a transaction. The next one begins
behind them: in the same transaction, when that has more, or behind it. A transaction is read from
its beginning each time, so that what was shown of it is made again and thrown away, up to
:data:`_PASSED_OVER_BYTES_MAX`; beyond that the next preview begins behind it only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.delivery.model import Preview
from spillway.delivery.reader import SlotReader, changes_of
from spillway.pg.lsn import Lsn
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from spillway.delivery.decoded_database import DecodedDatabase
    from spillway.delivery.model import Change

_STEP_BYTES: Final = 256 << 10
#: a wide row's JSON may be long: a preview ends here too
_BYTES_MAX: Final = 4 << 20
_PASSED_OVER_BYTES_MAX: Final = 64 << 20
_LAST_CHANGES: Final = 50
_OPTIONS: Final = {"format-version": "2", "include-timestamp": "true", "include-pk": "true"}


def read_preview(
    decoded: DecodedDatabase, slot_name: str, start_lsn: int, limit: int, skip: int = 0
) -> Preview:
    """Read up to *limit* changes that commit at *start_lsn* or later, less the first transaction's
    first *skip*. Blocking.

    Raises:
        LsnNotRetained: the log begins after *start_lsn*.
    """
    context = PluginContext(
        slot_name, decoded.database, decoded.server_version_num, decoded.encoding
    )
    plugin = create_plugin("wal2json", _OPTIONS, context)
    reader = SlotReader.on_log(decoded.log, plugin, start_lsn, None)
    changes: list[Change] = []
    kept_bytes = 0
    # Of the transaction at hand: where its commit record is, and what was made of it so far.
    commit_lsn = made = made_bytes = 0
    try:
        while True:
            if reader.between:
                made = made_bytes = 0
            # One: a step ends with a transaction, if not before.
            step = reader.step(_STEP_BYTES, message_limit=1)
            commit_lsn = commit_lsn if made else reader.first_lsn
            found = changes_of(step.messages, binary=False)
            passed_over = min(len(found), max(0, skip - made))
            # Who has read so much of a transaction is not kept from its last few changes.
            bound = limit + _LAST_CHANGES if reader.between else limit
            room = max(0, bound - len(changes)) if kept_bytes < _BYTES_MAX else 0
            taken = found[passed_over : passed_over + room]
            changes += taken
            kept_bytes += len(step.messages.payload) if taken else 0
            shown = made + passed_over + len(taken)
            made += len(found)
            made_bytes += len(step.messages.payload)
            if step.exhausted:
                return Preview(tuple(changes), Lsn(reader.confirm_lsn), None, more=False)
            if shown < made or (not reader.between and len(changes) >= limit):
                rest = (Lsn(commit_lsn), shown) if made_bytes <= _PASSED_OVER_BYTES_MAX else None
                end_lsn = reader.ends_at or reader.confirm_lsn
                return Preview(tuple(changes), Lsn(end_lsn), rest, more=True, cut=True)
            if reader.between:
                skip = 0
                if len(changes) >= limit or kept_bytes >= _BYTES_MAX:
                    return Preview(tuple(changes), Lsn(reader.confirm_lsn), None, more=True)
    finally:
        reader.close()
