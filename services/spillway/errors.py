"""Every error that Spillway raises on purpose.

One tree, so that a caller can catch at the height it cares about. Each class has a stable ``code``
that outsiders rely on and that maps once to an HTTP status, a gRPC status and a SQLSTATE. The
message says what happened and where (source, slot, LSN, relation), the hint what to do.

::

    SpillwayError                    internal_error
    ├── InvalidRequest               invalid_request          400
    │   ├── InvalidLsn               invalid_lsn
    │   ├── InvalidSlotName          invalid_slot_name
    │   ├── InvalidOption            invalid_option
    │   └── UnknownPlugin            unknown_plugin
    ├── NotFound                     not_found                404
    │   ├── UnknownSource            unknown_source
    │   └── UnknownSlot              unknown_slot
    ├── Conflict                     conflict                 409
    │   ├── DuplicateName            duplicate_name
    │   ├── SlotActive               slot_active
    │   ├── SlotInvalidated          slot_invalidated
    │   └── LsnNotRetained           lsn_not_retained
    ├── WalError                     wal_error                500, always with the LSN
    │   ├── CorruptWal               corrupt_wal
    │   └── UnsupportedWal           unsupported_wal
    ├── DecodingError                decoding_error           500
    ├── TransactionLogError          transaction_log_error    500
    │   └── CorruptTransactionLog    corrupt_transaction_log
    ├── SourceError                  source_error             502, the PostgreSQL side
    ├── StorageError                 storage_error            507
    │   └── DiskFull                 disk_full
    ├── Unauthenticated              unauthenticated          401
    └── NotReady                     not_ready                503
"""

from __future__ import annotations

from typing import ClassVar


class SpillwayError(Exception):
    """The base of the tree.

    ``details`` holds machine-readable places (``source``, ``slot``, ``lsn``, ``relation``, …), all
    values JSON-encodable; they travel in REST's problem document and gRPC's error details.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    sqlstate: ClassVar[str] = "XX000"

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(SpillwayError):
    """The caller asked for something that can't be meant."""

    code = "invalid_request"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    sqlstate = "22023"


class InvalidLsn(InvalidRequest):
    """A text is not a WAL position."""

    code = "invalid_lsn"
    sqlstate = "22P02"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"invalid LSN: {text!r}",
            hint="An LSN is two hexadecimal numbers with a slash between, 0/16B3748 for one.",
            lsn=text,
        )


class InvalidSlotName(InvalidRequest):
    """A slot name breaks PostgreSQL's rules."""

    code = "invalid_slot_name"
    sqlstate = "42602"


class InvalidOption(InvalidRequest):
    """An output plugin does not know an option, or not that value of it."""

    code = "invalid_option"


class UnknownPlugin(InvalidRequest):
    """No output plugin is registered under that name."""

    code = "unknown_plugin"
    sqlstate = "42704"


class NotFound(SpillwayError):
    """A named thing does not exist."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"
    sqlstate = "42704"


class UnknownSource(NotFound):
    """No source has that name."""

    code = "unknown_source"


class UnknownSlot(NotFound):
    """No slot has that name."""

    code = "unknown_slot"


class Conflict(SpillwayError):
    """The request is well formed but does not fit the present state."""

    code = "conflict"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55000"


class DuplicateName(Conflict):
    """The name is taken."""

    code = "duplicate_name"
    grpc_status = "ALREADY_EXISTS"
    sqlstate = "42710"


class SlotActive(Conflict):
    """Another consumer has the slot; one at a time, as in PostgreSQL."""

    code = "slot_active"
    sqlstate = "55006"


class SlotInvalidated(Conflict):
    """The slot's history was given up; its ``invalidation_reason`` says why."""

    code = "slot_invalidated"


class LsnNotRetained(Conflict):
    """The position is older than what is kept, or newer than what is decoded."""

    code = "lsn_not_retained"
    grpc_status = "OUT_OF_RANGE"


class WalError(SpillwayError):
    """Something is wrong with WAL at a position; ``details['lsn']`` says where."""

    code = "wal_error"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class CorruptWal(WalError):
    """WAL bytes contradict themselves: a checksum, a length, a back-link."""

    code = "corrupt_wal"


class UnsupportedWal(WalError):
    """WAL of a version, or a record, that Spillway does not know."""

    code = "unsupported_wal"
    grpc_status = "UNIMPLEMENTED"
    sqlstate = "0A000"


class DecodingError(SpillwayError):
    """A record is sound but can't be decoded; ``details['lsn']`` says where."""

    code = "decoding_error"
    grpc_status = "DATA_LOSS"


class TransactionLogError(SpillwayError):
    """The transaction log can't be written or read."""

    code = "transaction_log_error"


class CorruptTransactionLog(TransactionLogError):
    """A frame of the transaction log fails its checksum or contradicts itself."""

    code = "corrupt_transaction_log"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class SourceError(SpillwayError):
    """The PostgreSQL side refused, is unreachable or is not set up for this."""

    code = "source_error"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "08000"


class StorageError(SpillwayError):
    """The service's own storage failed."""

    code = "storage_error"
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"
    sqlstate = "58030"


class DiskFull(StorageError):
    """No space is left where the service keeps WAL or transactions."""

    code = "disk_full"
    sqlstate = "53100"


class Unauthenticated(SpillwayError):
    """The bearer token is missing or wrong."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    sqlstate = "28000"


class NotReady(SpillwayError):
    """The service, or a decoding session in it, has not reached the state that this needs."""

    code = "not_ready"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    sqlstate = "57P03"
