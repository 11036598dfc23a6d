"""Where the target and the slot stand to each other when a program begins.

The target's position is a row that comes and goes with its rows. So a target that is another than
it was (restored from a backup or a dump, failed over to a standby that lacked commits) has its
tables as of just that position, and everything behind it is to be written, once, wherever the slot
is by now. ::

    slot ≤ target              as ever: what the target has already is not sent
    target < slot, retained    the slot is set back to the target: nothing is lost
    target < slot, removed     target_behind_slot: what lies between is gone
    no position, first start   a new target
    no position, begun before  its tables are copied again, if they are empty, else
                               target_behind_slot: rows would be there twice

A table that was being copied has rows as of a place of its own, which may be before the position:
the slot is set back to that. Where that is not retained, the table's copy begins anew.

A slot that stands where it was told to skip to is where the target is to be: whoever skips gives up
what lies before. Once it has moved from there, that was done, and says nothing any more.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from spillway.errors import LsnNotRetained, SlotActive, TargetBehindSlot
from spillway.pg.lsn import Lsn
from spillway.stream.client import get_slot, rewind_slot

if TYPE_CHECKING:
    import threading

    from spillway.apply.settings import ApplySettings
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.target.session import TargetSession

_log = logging.getLogger(__name__)

#: within which the stream of a program that has ended is noticed to have
_SLOT_FREE_S: Final = 10.0
_NAMED: Final = 5


def agree(
    settings: ApplySettings,
    session: TargetSession,
    sync: TableSync | None,
    stopping: threading.Event,
) -> Lsn:
    """Return where the slot is confirmed to, after setting it back to a target that is behind it.

    Raises:
        TargetBehindSlot: the target lacks what the slot does not have any more.
        SpillwayError: the service or a side can't be asked.
    """
    slot = get_slot(settings.grpc, settings.slot, token=settings.token, tls=settings.tls)
    confirmed = Lsn(slot.confirmed_flush_lsn)
    if not session.position:
        if settings.has_begun:
            _check_new(settings, sync, confirmed)
        return confirmed
    held = None if sync is None else sync.states.hold_lsn()
    wanted = session.position if held is None else Lsn(min(session.position, held))
    if confirmed <= wanted or confirmed == settings.skip_to:
        return confirmed
    reached, reason = _set_back(settings, session.position, wanted, confirmed, stopping)
    if reached is None:
        raise _behind(
            settings,
            f"the target has everything before {session.position}, and the slot {settings.slot} "
            f"was confirmed up to {confirmed}: what lies between is gone ({reason})",
            confirmed,
            session.position,
        )
    if sync is not None and reached > wanted:
        sync.copy_anew(reached)
    return reached


def _set_back(
    settings: ApplySettings,
    position: Lsn,
    wanted: Lsn,
    confirmed: Lsn,
    stopping: threading.Event,
) -> tuple[Lsn | None, str]:
    """Set the slot back to *wanted*, or to *position* at least; return where it stands then, or
    None and why not.
    """
    reason = ""
    for lsn in dict.fromkeys((wanted, position)):
        if confirmed <= lsn:
            return confirmed, ""
        try:
            _rewind(settings, lsn, stopping)
        except LsnNotRetained as error:
            reason = error.message
        else:
            _log.warning(
                "the target has everything before %s: it is another than the one that the slot was"
                " confirmed by, up to %s, and the slot is set back to %s",
                position,
                confirmed,
                lsn,
            )
            return lsn, ""
    return None, reason


def _rewind(settings: ApplySettings, lsn: Lsn, stopping: threading.Event) -> None:
    deadline = time.monotonic() + _SLOT_FREE_S
    while True:
        try:
            rewind_slot(settings.grpc, settings.slot, lsn, token=settings.token, tls=settings.tls)
        except SlotActive:
            if time.monotonic() >= deadline or stopping.is_set():
                raise
            stopping.wait(0.05)
        else:
            return


def _check_new(settings: ApplySettings, sync: TableSync | None, confirmed: Lsn) -> None:
    """Refuse a target without a position if the subscription was at work before, and its tables
    can't be copied again.
    """
    unknown = "the target knows nothing of the subscription, which was at work before"
    if settings.copy_data:
        filled = () if sync is None else sync.tables_with_rows()
        if filled:
            names = ", ".join(filled[:_NAMED]) + (", …" if len(filled) > _NAMED else "")
            raise TargetBehindSlot(
                f"{unknown}, and has rows in {names}: its tables would be copied on top of them",
                hint="Was it restored without its schema spillway? Empty the subscription's tables "
                "there (TRUNCATE): they are copied again by themselves then. Or restore it with "
                "that schema.",
                subscription=settings.subscription,
                tables=list(filled),
            )
    elif confirmed != settings.skip_to:
        raise _behind(
            settings,
            f"{unknown}, and the slot {settings.slot} was confirmed up to {confirmed}: what was "
            "before is not there",
            confirmed,
            Lsn(0),
        )


def _behind(
    settings: ApplySettings, message: str, confirmed: Lsn, position: Lsn
) -> TargetBehindSlot:
    return TargetBehindSlot(
        message,
        hint="Was the target restored from a backup, made anew, or failed over to a standby that "
        "lacked commits? A later backup is gone on with by itself, as far as the service keeps "
        "what came since (SPILLWAY_LOG_KEEP_BYTES). Or drop the subscription, empty its tables on "
        "the target, and create it again, to copy them anew; or give up what is missing: spillway "
        f"subscription skip {settings.subscription} {confirmed}",
        subscription=settings.subscription,
        lsn=str(position),
    )
