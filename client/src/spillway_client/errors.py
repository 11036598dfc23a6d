"""Every error that the client raises on purpose.

::

    SpillwayError
    ├── ServiceError          what the service answered; ``code`` is one of its stable codes
    │   ├── Unavailable       not reachable, or not ready, for as long as the client was to try
    │   ├── Unauthenticated, TlsFailed
    │   ├── UnknownSlot, SlotActive, SessionEnded, SlotInvalidated, LsnNotRetained, LeaseLost
    │   ├── InvalidOption, UnknownPublication, ConflictingPublications, ValueNotRepresentable
    ├── SlotAhead             the slot was confirmed past what this consumer has
    ├── WrongPlugin           the slot's plugin gives something else than what was asked for
    ├── TransactionTooLarge   a transaction exceeds ``max_transaction_bytes``
    ├── ConversionFailed      a converter of the user's own refused a value
    ├── MalformedMessage      what came over the stream is none of its messages
    ├── PositionConflict      the stored position isn't what it was: another consumer stored its own
    └── InvalidUse            the program asked for what can't be meant

Each has a ``code`` that stays, a ``message`` that says what and where, a ``hint`` that says what to
do, and ``details``.
"""

from __future__ import annotations

from typing import Final


class SpillwayError(Exception):
    """The base of all of them."""

    code: str = "client_error"

    def __init__(self, message: str, *, hint: str = "", **details: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ServiceError(SpillwayError):
    """What the service answered. ``code`` is its stable code, also of those that have no class
    here.
    """

    code: str = "internal_error"
    #: trying again later, without a change of anything, may well succeed
    is_transient = False


class Unavailable(ServiceError):
    """The service can't be reached, or it, or the decoding of the database, is not ready."""

    code = "not_ready"


class Unauthenticated(ServiceError):
    """The bearer token is missing or wrong."""

    code = "unauthenticated"


class TlsFailed(ServiceError):
    """One side does not trust the other's certificate, or only one of them speaks TLS."""

    code = "tls_failed"


class UnknownSlot(ServiceError):
    """No slot has that name."""

    code = "unknown_slot"


class SlotActive(ServiceError):
    """Another consumer has the slot; one at a time, as in PostgreSQL."""

    code = "slot_active"


class SessionEnded(ServiceError):
    """An administrator ended this consumer's session."""

    code = "session_ended"


class SlotInvalidated(ServiceError):
    """The slot's history was given up."""

    code = "slot_invalidated"


class LsnNotRetained(ServiceError):
    """The position is older than what the service keeps, or newer than what it has."""

    code = "lsn_not_retained"


class LeaseLost(ServiceError):
    """Another service serves this source now."""

    code = "lease_lost"


class InvalidOption(ServiceError):
    """The output plugin does not know an option, or not that value of it."""

    code = "invalid_option"


class UnknownPublication(ServiceError):
    """A publication is not there at this point of WAL."""

    code = "unknown_publication"


class ConflictingPublications(ServiceError):
    """The publications contradict each other about a table."""

    code = "conflicting_publications"


class ValueNotRepresentable(ServiceError):
    """A value has no form in the Arrow type of its column; an option of the slot mends it."""

    code = "value_not_representable"


class SlotAhead(SpillwayError):
    """The slot was confirmed past what this consumer has: changes between are missing here."""

    code = "slot_ahead"


class WrongPlugin(SpillwayError):
    """The slot's output plugin gives something else than what was asked for."""

    code = "wrong_plugin"


class TransactionTooLarge(SpillwayError):
    """A transaction exceeds ``max_transaction_bytes``."""

    code = "transaction_too_large"


class ConversionFailed(SpillwayError):
    """A converter of the user's own refused a value; ``details`` say which."""

    code = "conversion_failed"


class MalformedMessage(SpillwayError):
    """What came over the stream is none of its messages."""

    code = "malformed_message"


class PositionConflict(SpillwayError):
    """The stored position is not what it was when it was read: another consumer stored its own."""

    code = "position_conflict"


class InvalidUse(SpillwayError):
    """The program asked for what can't be meant."""

    code = "invalid_use"


#: code → its class; others are ServiceError
BY_CODE: Final = {error.code: error for error in ServiceError.__subclasses__()}


def service_error(
    code: str, message: str, hint: str = "", *, is_transient: bool = False, **details: str
) -> ServiceError:
    """Make the error of *code*."""
    error = BY_CODE.get(code, ServiceError)(message, hint=hint, **details)
    error.code = code
    error.is_transient = is_transient
    return error
