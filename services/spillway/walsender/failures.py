"""How an error is told on PostgreSQL's wire: severity, SQLSTATE, and texts that clients recognise.

Clients look at these: Debezium matches ``replication slot .* is active``, pg_recvlogical
``already exists``. So errors of the engine whose words are Spillway's own are put into PostgreSQL's
here; what they say beyond that becomes the DETAIL. Hints of the service speak of REST's calls and
stay behind, but for those of a full disk, which a client's log is often the first to show, and of a
source that is down.

Source: src/backend/replication/slot.c, logical.c, walsender.c
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from spillway.errors import (
    InvalidOption,
    InvalidSlotName,
    LsnNotRetained,
    SessionEnded,
    SessionSettingsUnknown,
    SlotActive,
    SlotInvalidated,
    SpillwayError,
    StorageError,
    UnknownPlugin,
)

if TYPE_CHECKING:
    from spillway.pg.lsn import Lsn

#: Why a slot was invalidated, as PostgreSQL 17 and later say it.
_INVALIDATION_DETAIL: Final = "This replication slot has been invalidated due to "
#: What options are refused with that aren't just wrong values, by how the message begins.
_OPTION_SQLSTATES: Final = {
    "unrecognized pgoutput option": "XX000",
    "client sent proto_version=": "0A000",
    "invalid publication_names syntax": "42602",
}
_NO_BOOLEAN: Final = " requires a Boolean value"
_MAJOR_OF_INVALIDATION_CAUSE: Final = 18


#: Above what any backend has (Linux's pid_max), so that a stream is never taken for one.
_FIRST_PID: Final = 1 << 24
_PID_BITS: Final = 0x3FFFFF


def shown_pid(slot_name: str) -> int:
    """Return the number that stands for a slot's stream, in rows and in errors: the same for as
    long as there is the slot, and no backend's of the source.
    """
    return _FIRST_PID + (zlib.crc32(slot_name.encode()) & _PID_BITS)


class WireError(Exception):
    """What is sent as an ErrorResponse. With *fatal* the connection ends after it."""

    def __init__(
        self,
        sqlstate: str,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        context: str | None = None,
        fatal: bool = False,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.detail = detail
        self.hint = hint
        self.context = context
        self.fatal = fatal


def protocol_violation(message: str) -> WireError:
    """Say that the client speaks another language: 08P01, and the connection ends."""
    return WireError("08P01", message, fatal=True)


def not_supported(message: str, hint: str | None = None) -> WireError:
    """Say that what is asked for isn't served: 0A000."""
    return WireError("0A000", message, hint=hint)


def in_callback(slot: str, plugin: str, callback: str, lsn: Lsn | None = None) -> str:
    """Say where an output plugin failed, as the CONTEXT of its error does.

    Source: output_plugin_error_callback (src/backend/replication/logical/logical.c)
    """
    where = f'slot "{slot}", output plugin "{plugin}", in the {callback} callback'
    return where if lsn is None else f"{where}, associated LSN {lsn}"


def in_startup(error: InvalidOption, slot: str, plugin: str, major: int) -> WireError:
    """Put into PostgreSQL's words that an output plugin refuses its options."""
    failure = told(error, major)
    failure.context = in_callback(slot, plugin, "startup")
    return failure


def told(error: SpillwayError, major: int) -> WireError:
    """Put an error of the engine into the words of PostgreSQL's *major*."""
    slot = str(error.details.get("slot", ""))
    match error:
        case SlotActive():
            return WireError(
                error.sqlstate,
                f'replication slot "{slot}" is active for PID {shown_pid(slot)}',
                detail=error.message,
            )
        case SlotInvalidated():
            return _invalidated(error, slot, major)
        case LsnNotRetained():
            return WireError(
                "58P01",
                "requested WAL segment has already been removed",
                detail=error.message,
            )
        case SessionEnded():
            return WireError(
                error.sqlstate,
                "terminating connection due to administrator command",
                detail=error.message,
                fatal=True,
            )
        case UnknownPlugin():
            name = error.details.get("plugin")
            return WireError(
                "58P01",
                f'could not access file "{name}": No such file or directory',
                detail=f"{error.message}. {error.hint or ''}".strip(),
            )
        case InvalidOption():
            found = (
                state for text, state in _OPTION_SQLSTATES.items() if error.message.startswith(text)
            )
            other = "42601" if _NO_BOOLEAN in error.message else error.sqlstate
            return WireError(next(found, other), error.message)
        case InvalidSlotName() if error.message.endswith("invalid character"):
            # This hint is PostgreSQL's.
            return WireError(error.sqlstate, error.message, hint=error.hint)
        case StorageError() | SessionSettingsUnknown():
            # Not the client's doing: whoever reads its log is to know what mends it.
            return WireError(error.sqlstate, error.message, hint=error.hint)
        case _:
            # Among others UnknownSlot, DuplicateName and UnknownDatabase, whose words are
            # PostgreSQL's own.
            return WireError(error.sqlstate, error.message)


def _invalidated(error: SpillwayError, slot: str, major: int) -> WireError:
    if major >= _MAJOR_OF_INVALIDATION_CAUSE:
        reason = error.details.get("invalidation_reason", "wal_removed")
        return WireError(
            error.sqlstate,
            f'can no longer access replication slot "{slot}"',
            detail=f'{_INVALIDATION_DETAIL}"{reason}".',
        )
    return WireError(
        error.sqlstate,
        f'can no longer get changes from replication slot "{slot}"',
        detail=f"This slot has been invalidated: {error.message}.",
    )
