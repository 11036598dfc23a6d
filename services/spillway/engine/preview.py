"""What a slot's consumer is given next, as rows that a person reads: beside the consumer, and bounded.

Whatever the slot's own plugin writes (``arrow`` and ``pgoutput`` are binary), a preview is written by ``wal2json`` in its
format 2: one JSON object a change, which is easily taken apart. It is read from the transaction log like a peek, but
holds nothing: neither is the slot acquired, nor are its counts touched, so looking never stands in a consumer's way.
What the slot's plugin would leave out by its own options (publications, ``only-local``) is therefore shown.

Bounds: a preview gives *limit* changes. Of a transaction that has more, what is left is made and thrown away,
up to :data:`_PASSED_OVER_BYTES_MAX`, so that the next preview can begin behind it; beyond that it can't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.engine.model import Preview
from spillway.engine.reader import SlotReader, changes_of
from spillway.pg.lsn import Lsn
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from spillway.engine.model import Change
    from spillway.engine.session import Session

_STEP_BYTES: Final = 256 << 10
#: a wide row's JSON may be long: a preview ends here too
_BYTES_MAX: Final = 4 << 20
_PASSED_OVER_BYTES_MAX: Final = 64 << 20
_OPTIONS: Final = {"format-version": "2", "include-timestamp": "true", "include-pk": "true"}


def read_preview(session: Session, slot_name: str, start_lsn: int, limit: int) -> Preview:
    """Read up to *limit* changes that commit at *start_lsn* or later. Blocking.

    Raises:
        LsnNotRetained: the log begins after *start_lsn*.
    """
    context = PluginContext(
        slot_name, session.database, session.server_version_num, session.encoding
    )
    plugin = create_plugin("wal2json", _OPTIONS, context)
    reader = SlotReader.on_log(session.log, plugin, start_lsn, None)
    changes: list[Change] = []
    try:
        kept_bytes = passed_over = left_out = 0
        while True:
            step = reader.step(_STEP_BYTES, message_limit=max(1, limit - len(changes)))
            payload_bytes = len(step.messages.payload)
            if len(changes) < limit and kept_bytes < _BYTES_MAX:
                room = limit - len(changes)
                changes += changes_of(step.messages, binary=False)[:room]
                left_out += max(0, step.messages.count - room)
                kept_bytes += payload_bytes
            else:
                left_out += step.messages.count
                passed_over += payload_bytes
            full = len(changes) >= limit or kept_bytes >= _BYTES_MAX
            if step.exhausted:
                return Preview(tuple(changes), Lsn(reader.confirm_lsn), left_out, more=False)
            if full and reader.between:
                return Preview(tuple(changes), Lsn(reader.confirm_lsn), left_out, more=True)
            if passed_over > _PASSED_OVER_BYTES_MAX:
                return Preview(tuple(changes), None, left_out, more=True)
    finally:
        reader.close()
