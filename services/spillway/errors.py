"""Every error that Spillway raises on purpose.

One tree, so that a caller can catch at the height it cares about. Each class has a stable ``code``
that outsiders rely on and that maps once to an HTTP status, a gRPC status and a SQLSTATE. The
message says what happened and where (source, slot, LSN, relation), the hint what to do.

::

    SpillwayError                    internal_error
    ├── InvalidRequest               invalid_request          400
    │   ├── InvalidLsn               invalid_lsn
    │   ├── InvalidSlotName          invalid_slot_name
    │   ├── InvalidDsn               invalid_dsn
    │   ├── InvalidOption            invalid_option
    │   ├── InvalidCapture           invalid_capture
    │   ├── ResultTooLarge           result_too_large
    │   ├── ForgedRequest            forged_request           403, of the admin UI
    │   ├── UnsupportedFeature       unsupported_feature
    │   └── UnknownPlugin            unknown_plugin
    ├── NotFound                     not_found                404
    │   ├── UnknownSource            unknown_source
    │   ├── UnknownPublication       unknown_publication
    │   ├── UnknownSubscription      unknown_subscription
    │   ├── UnknownConflict          unknown_conflict
    │   ├── UnknownUser              unknown_user
    │   ├── UnknownAlertRule         unknown_alert_rule
    │   ├── UnknownAlertChannel      unknown_alert_channel
    │   ├── UnknownTable             unknown_table
    │   ├── UnknownSnapshot          unknown_snapshot
    │   └── UnknownSlot              unknown_slot
    ├── Conflict                     conflict                 409
    │   ├── DuplicateName            duplicate_name
    │   ├── SlotActive               slot_active
    │   ├── SessionEnded             session_ended
    │   ├── NoConsumer               no_consumer
    │   ├── SlotInvalidated          slot_invalidated
    │   ├── LsnNotRetained           lsn_not_retained
    │   ├── AdvanceBackward          advance_backward
    │   ├── NotCaptured              not_captured
    │   ├── ConflictingPublications  conflicting_publications
    │   └── LeaseLost                lease_lost
    ├── WalError                     wal_error                500, always with the LSN
    │   ├── CorruptWal               corrupt_wal
    │   ├── UnsupportedWal           unsupported_wal
    │   ├── WalGap                   wal_gap
    │   └── WalNotContiguous         wal_not_contiguous
    ├── DecodingError                decoding_error           500
    │   ├── DatabaseDropped          database_dropped
    │   ├── CatalogAuditFailed       catalog_audit_failed
    │   └── ValueNotRepresentable    value_not_representable
    ├── PluginFailed                 plugin_failed            500, of a third party's output plugin
    ├── SubscriptionFailed           subscription_failed      500, of a subscription's runner
    ├── TransactionLogError          transaction_log_error    500
    │   └── CorruptTransactionLog    corrupt_transaction_log
    ├── DecodingStateLost            decoding_state_lost      500
    ├── SourceError                  source_error             502, the PostgreSQL side
    │   ├── SourceUnreachable        source_unreachable
    │   │   ├── SourceConnectionsExhausted    source_connections_exhausted
    │   │   └── SourceTlsFailed      source_tls_failed
    │   ├── SessionSettingsUnknown   session_settings_unknown
    │   ├── SourceAuthFailed         source_auth_failed
    │   ├── SourceNotPermitted       source_not_permitted
    │   ├── UnknownDatabase          unknown_database
    │   ├── DatabaseRenamed          database_renamed
    │   ├── UnsupportedVersion       unsupported_version
    │   ├── UnsupportedBuild         unsupported_build
    │   ├── WalLevelNotLogical       wal_level_not_logical
    │   ├── MissingReplicationPrivilege    missing_replication_privilege
    │   ├── ReplicationNotAllowedByHba     replication_not_allowed_by_hba
    │   ├── TableNotReadable         table_not_readable
    │   ├── WalSendersExhausted      max_wal_senders_exhausted
    │   ├── ReplicationSlotsExhausted      max_replication_slots_exhausted
    │   ├── SourceInRecovery         source_in_recovery
    │   ├── SystemIdMismatch         system_id_mismatch
    │   ├── TimelineDiverged         timeline_diverged
    │   ├── WalDiverged              wal_diverged
    │   ├── WalRemoved               wal_removed
    │   ├── PhysicalSlotUnusable     physical_slot_unusable
    │   │   └── PhysicalSlotActive   physical_slot_active     409
    │   ├── SourceTableAltered       source_table_altered
    │   └── ReplicationFailed        replication_failed
    ├── TargetError                  target_error             502, a subscription's PostgreSQL
    │   ├── TargetUnavailable        target_unavailable
    │   │   ├── TargetConnectionsExhausted    target_connections_exhausted
    │   │   └── TargetMoved          target_moved
    │   ├── TargetAuthFailed         target_auth_failed
    │   ├── TargetNotPermitted       target_not_permitted
    │   ├── TargetUnsupported        target_unsupported
    │   ├── TargetReadOnly           target_read_only
    │   ├── TargetDiskFull           target_disk_full
    │   ├── TargetOriginsExhausted   target_origins_exhausted
    │   ├── TargetInUse              target_in_use
    │   ├── TargetNotPrepared        target_not_prepared
    │   ├── TargetTableMissing       target_table_missing
    │   ├── TargetColumnsMissing     target_columns_missing
    │   ├── TargetTableUnusable      target_table_unusable
    │   ├── TargetBehindSlot         target_behind_slot
    │   ├── TargetSchemaChange       target_schema_change
    │   └── TargetRefused            target_refused
    │       ├── TargetSerialization  target_serialization
    │       ├── TargetRowRefused     target_row_refused       409
    │       ├── TargetTwoPhaseDisabled    target_two_phase_disabled
    │       ├── TargetTransactionLost     target_transaction_lost    409
    │       └── ApplyConflict        apply_conflict           409
    ├── StorageError                 storage_error            507
    │   ├── DiskFull                 disk_full
    │   │   └── WalStoreFull         wal_store_full
    │   ├── WalFlushFailed           wal_flush_failed
    │   ├── CorruptWalStore          corrupt_wal_store
    │   ├── CorruptSnapshot          corrupt_snapshot
    │   └── WalStoreInUse            wal_store_in_use
    ├── AlertNotDelivered            alert_not_delivered      502, of a channel
    ├── MetadataError                metadata_unavailable     503
    ├── AnswersFull                  answers_full             503
    ├── AddressUnavailable           address_unavailable      500, at start only
    ├── MalformedMessage             malformed_message        500, on a client's side
    ├── Unauthenticated              unauthenticated          401
    ├── TooManyAttempts              too_many_attempts        429
    ├── TooManyConnections           too_many_connections     503
    ├── RequestTimeout               request_timeout          408
    ├── TlsFailed                    tls_failed               502, on a client's side
    ├── NotReady                     not_ready                503
    │   └── CheckpointNotStored      checkpoint_not_stored
    ├── LakeError                    lake_error               500, of the Spark job
    │   ├── JavaMissing              java_missing
    │   ├── JarsMissing              jars_missing
    │   ├── SparkMissing             spark_missing
    │   ├── LakeSchemaConflict       lake_schema_conflict
    │   ├── LakeSchemaChange         lake_schema_change
    │   ├── LakeTableConflict        lake_table_conflict
    │   └── LakeBehindSlot           lake_behind_slot
    └── PrivatePostgresError         private_postgres_error   500, of the demo's own server
"""

from __future__ import annotations

from typing import ClassVar, Final


class SpillwayError(Exception):
    """The base of the tree.

    ``details`` holds machine-readable places (``source``, ``slot``, ``lsn``, ``relation``, …), all
    values JSON-encodable; they travel in REST's problem document and gRPC's error details.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    sqlstate: ClassVar[str] = "XX000"
    #: whoever raises it has it in the log, once for all who meet it
    is_logged: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    @property
    def is_for_the_log(self) -> bool:
        """Whether who answers a request with it logs it: it is none of the caller's, and not in the
        log yet.
        """
        return self.http_status >= 500 and not self.is_logged


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


class InvalidCapture(InvalidRequest):
    """A source's capture filter names what can't be named, or contradicts itself."""

    code = "invalid_capture"


class InvalidOption(InvalidRequest):
    """An output plugin does not know an option, or not that value of it."""

    code = "invalid_option"


class InvalidDsn(InvalidRequest):
    """A connection string can't be parsed."""

    code = "invalid_dsn"


class ResultTooLarge(InvalidRequest):
    """The answer would not fit in memory; limit it or stream it."""

    code = "result_too_large"
    sqlstate = "54000"


class ForgedRequest(InvalidRequest):
    """The request can't be told from one that another site's page made."""

    code = "forged_request"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    sqlstate = "42501"


class UnsupportedFeature(InvalidRequest):
    """PostgreSQL can do this, Spillway can't yet."""

    code = "unsupported_feature"
    grpc_status = "UNIMPLEMENTED"
    sqlstate = "0A000"


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


class UnknownPublication(NotFound):
    """A slot's options name a publication that is not there at this point of WAL."""

    code = "unknown_publication"


class UnknownSubscription(NotFound):
    """No subscription has that name."""

    code = "unknown_subscription"

    def __init__(self, name: str) -> None:
        super().__init__(
            f'subscription "{name}" does not exist',
            hint="GET /v1/subscriptions lists what exists; POST /v1/subscriptions makes one.",
            subscription=name,
        )


class UnknownConflict(NotFound):
    """A subscription keeps no such conflict: it had none of that id, or dropped it as one of the
    oldest.
    """

    code = "unknown_conflict"


class UnknownUser(NotFound):
    """No user has that name."""

    code = "unknown_user"

    def __init__(self, name: str) -> None:
        super().__init__(
            f'user "{name}" does not exist',
            hint="GET /v1/users lists what exists; POST /v1/users makes one.",
            user=name,
        )


class UnknownAlertRule(NotFound):
    """No rule of alerts has that name."""

    code = "unknown_alert_rule"

    def __init__(self, name: str) -> None:
        super().__init__(
            f'alert rule "{name}" does not exist',
            hint=f"GET /v1/alerts/rules lists what exists; PUT /v1/alerts/rules/{name} makes it.",
            rule=name,
        )


class UnknownAlertChannel(NotFound):
    """No channel of alerts has that name."""

    code = "unknown_alert_channel"

    def __init__(self, name: str) -> None:
        super().__init__(
            f'alert channel "{name}" does not exist',
            hint="GET /v1/alerts/channels lists what exists; "
            f"PUT /v1/alerts/channels/{name} makes it.",
            channel=name,
        )


class UnknownTable(NotFound):
    """A database has no table of that name, as far as its WAL is decoded."""

    code = "unknown_table"
    sqlstate = "42P01"


class UnknownSnapshot(NotFound):
    """No snapshot of the source is held for a slot, or not any more."""

    code = "unknown_snapshot"


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


class SessionEnded(Conflict):
    """An administrator ended the consumer's session; the slot is another's to take."""

    code = "session_ended"
    sqlstate = "57P01"


class NoConsumer(Conflict):
    """Nobody has the slot, so there is no session to end."""

    code = "no_consumer"


class SlotInvalidated(Conflict):
    """The slot's history was given up; its ``invalidation_reason`` says why."""

    code = "slot_invalidated"


class LsnNotRetained(Conflict):
    """The position is older than what is kept, or newer than what is decoded."""

    code = "lsn_not_retained"
    grpc_status = "OUT_OF_RANGE"


class LeaseLost(Conflict):
    """Another process holds the lease: what this one wants to write, or to give, is that one's to
    write and to give.
    """

    code = "lease_lost"
    grpc_status = "ABORTED"
    sqlstate = "55006"


class AdvanceBackward(Conflict):
    """A slot's position only advances; going back is called rewind."""

    code = "advance_backward"


class NotCaptured(Conflict):
    """A slot asks for what its source's capture filter leaves out."""

    code = "not_captured"


class ConflictingPublications(Conflict):
    """The publications of a slot contradict each other about a table."""

    code = "conflicting_publications"
    sqlstate = "0A000"


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


class WalGap(WalError):
    """WAL that should be there is missing: a segment file is gone or too short."""

    code = "wal_gap"


class WalNotContiguous(WalError):
    """WAL arrived that does not begin where the store ends."""

    code = "wal_not_contiguous"
    sqlstate = "08P01"


class DecodingError(SpillwayError):
    """A record is sound but can't be decoded; ``details['lsn']`` says where."""

    code = "decoding_error"
    grpc_status = "DATA_LOSS"


class DatabaseDropped(DecodingError):
    """The decoded database was dropped on the source; there is nothing to decode after that."""

    code = "database_dropped"
    http_status = 410
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "3D000"


class CatalogAuditFailed(DecodingError):
    """Audit mode found that the catalog mirror is not what the server's NEW_CID records say."""

    code = "catalog_audit_failed"


class ValueNotRepresentable(DecodingError):
    """A value has no form in what an output plugin makes of its type; an option of the slot mends
    it.
    """

    code = "value_not_representable"
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "22003"


class PluginFailed(SpillwayError):
    """An output plugin that an installed package brought can't be loaded, or one of its callbacks
    raised.
    """

    code = "plugin_failed"
    sqlstate = "38000"


class SubscriptionFailed(SpillwayError):
    """A subscription's runner ended, or can't be started, and left no word of why but what its log
    has.
    """

    code = "subscription_failed"
    sqlstate = "58000"


class TransactionLogError(SpillwayError):
    """The transaction log can't be written or read."""

    code = "transaction_log_error"


class CorruptTransactionLog(TransactionLogError):
    """A frame of the transaction log fails its checksum or contradicts itself."""

    code = "corrupt_transaction_log"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class DecodingStateLost(SpillwayError):
    """A transaction log is there, but nothing to go on decoding from without a gap."""

    code = "decoding_state_lost"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class SourceError(SpillwayError):
    """The PostgreSQL side refused, is unreachable or is not set up for this."""

    code = "source_error"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "08000"


class SourceUnreachable(SourceError):
    """No connection to the source: name, network, port, or the server is down or starting."""

    code = "source_unreachable"
    grpc_status = "UNAVAILABLE"
    sqlstate = "08001"


class SourceConnectionsExhausted(SourceUnreachable):
    """All connections that the source, its database or the role may have are taken."""

    code = "source_connections_exhausted"
    sqlstate = "53300"


class SourceTlsFailed(SourceUnreachable):
    """The DSN asks for TLS in a way that the source's server does not satisfy: it has none, or its
    certificate is not what the DSN wants to see.
    """

    code = "source_tls_failed"
    sqlstate = "08001"


class SessionSettingsUnknown(SourceError):
    """What sessions of a source's database print by was never asked, and can't be asked now."""

    code = "session_settings_unknown"
    grpc_status = "UNAVAILABLE"
    sqlstate = "57P03"


class SourceAuthFailed(SourceError):
    """The source does not accept the role or its password."""

    code = "source_auth_failed"
    sqlstate = "28P01"


class SourceNotPermitted(SourceError):
    """The source accepts the password but refuses the connection: pg_hba.conf, CONNECT, NOLOGIN."""

    code = "source_not_permitted"
    sqlstate = "28000"


class UnknownDatabase(SourceError):
    """The source has no database of that name."""

    code = "unknown_database"
    sqlstate = "3D000"


class DatabaseRenamed(SourceError):
    """A database has another name on the source than the one that it is decoded by here."""

    code = "database_renamed"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55000"


class UnsupportedVersion(SourceError):
    """The source is a PostgreSQL that Spillway can't decode."""

    code = "unsupported_version"
    sqlstate = "0A000"


class UnsupportedBuild(SourceError):
    """The source was built with another block size than PostgreSQL's 8 kB."""

    code = "unsupported_build"
    sqlstate = "0A000"


class WalLevelNotLogical(SourceError):
    """The source writes WAL without what decoding needs."""

    code = "wal_level_not_logical"
    sqlstate = "55000"


class MissingReplicationPrivilege(SourceError):
    """The role lacks the REPLICATION attribute."""

    code = "missing_replication_privilege"
    sqlstate = "42501"


class ReplicationNotAllowedByHba(SourceError):
    """The source's pg_hba.conf has no line that lets the role stream WAL."""

    code = "replication_not_allowed_by_hba"
    sqlstate = "28000"


class TableNotReadable(SourceError):
    """The role may not read a table whole, which an initial copy needs; the hint is the SQL that
    grants it.
    """

    code = "table_not_readable"
    sqlstate = "42501"


class WalSendersExhausted(SourceError):
    """All of the source's max_wal_senders are taken."""

    code = "max_wal_senders_exhausted"
    sqlstate = "53300"


class ReplicationSlotsExhausted(SourceError):
    """All of the source's max_replication_slots are taken."""

    code = "max_replication_slots_exhausted"
    sqlstate = "53400"


class SourceInRecovery(SourceError):
    """The source is a standby."""

    code = "source_in_recovery"
    sqlstate = "55000"


class SystemIdMismatch(SourceError):
    """WAL, or a server, of another cluster than the one that this source is."""

    code = "system_id_mismatch"
    sqlstate = "55000"


class TimelineDiverged(SourceError):
    """WAL was received that is not in the history of the source's timeline."""

    code = "timeline_diverged"
    grpc_status = "DATA_LOSS"
    sqlstate = "55000"


class WalDiverged(SourceError):
    """The server has other WAL than what was received: it is a copy of the source that went its own
    way.
    """

    code = "wal_diverged"
    grpc_status = "DATA_LOSS"
    sqlstate = "55000"


class WalRemoved(SourceError):
    """The source has recycled WAL that was not received yet."""

    code = "wal_removed"
    grpc_status = "DATA_LOSS"
    sqlstate = "58P01"


class PhysicalSlotUnusable(SourceError):
    """The physical slot's name is taken by something else, or the slot is in use or invalidated."""

    code = "physical_slot_unusable"
    sqlstate = "55006"


class PhysicalSlotActive(PhysicalSlotUnusable):
    """Another receiver streams from the physical slot: of another Spillway service, or a leftover
    of one.
    """

    code = "physical_slot_active"
    http_status = 409

    def __init__(self, slot: str, active_pid: int | None) -> None:
        process = f"PID {active_pid}" if active_pid else "another process of the source"
        pid = active_pid or "<active_pid of pg_replication_slots>"
        super().__init__(
            f'the physical slot "{slot}" is active for {process}',
            hint="Does another Spillway service have a source of this name on the server? Then "
            "give this one another name. What a killed service left behind ends by itself after "
            f"wal_sender_timeout; at once by SELECT pg_terminate_backend({pid});",
            slot=slot,
            active_pid=active_pid,
        )


class SourceTableAltered(SourceError):
    """A table of the source was altered, truncated, rewritten or dropped while it was copied: a
    snapshot from before does not have its rows any more. It is copied again, by a new one.
    """

    code = "source_table_altered"
    sqlstate = "55000"


class ReplicationFailed(SourceError):
    """The replication connection broke, or the server said what the protocol does not allow."""

    code = "replication_failed"
    grpc_status = "UNAVAILABLE"
    sqlstate = "08006"


class TargetError(SpillwayError):
    """The PostgreSQL that a subscription fills refused, is unreachable or is not set up for it."""

    code = "target_error"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "08000"


class TargetUnavailable(TargetError):
    """No connection to the target: name, network, port, or the server is down, starting or
    ending.
    """

    code = "target_unavailable"
    grpc_status = "UNAVAILABLE"
    sqlstate = "08001"


class TargetConnectionsExhausted(TargetUnavailable):
    """All connections that the target, its database or the role may have are taken."""

    code = "target_connections_exhausted"
    sqlstate = "53300"


class TargetMoved(TargetUnavailable):
    """The target's address leads to another server than before, while a program is at work."""

    code = "target_moved"
    sqlstate = "08006"


class TargetAuthFailed(TargetError):
    """The target does not accept the role or its password."""

    code = "target_auth_failed"
    sqlstate = "28P01"


class TargetNotPermitted(TargetError):
    """The role lacks a right on the target; the hint is the SQL that grants it."""

    code = "target_not_permitted"
    sqlstate = "42501"


class TargetUnsupported(TargetError):
    """The target is a server, or a database, that can't be written to as a subscription needs."""

    code = "target_unsupported"
    sqlstate = "0A000"


class TargetReadOnly(TargetError):
    """The target takes no writes: it is a standby, or transactions are read-only there."""

    code = "target_read_only"
    sqlstate = "25006"


class TargetDiskFull(TargetError):
    """The target has no space left."""

    code = "target_disk_full"
    sqlstate = "53100"


class TargetOriginsExhausted(TargetError):
    """The target keeps the progress of as many replication origins as it has room for."""

    code = "target_origins_exhausted"
    sqlstate = "53400"


class TargetInUse(TargetError):
    """Another program applies the same subscription, or another subscription's position is kept
    under this one's name.
    """

    code = "target_in_use"
    http_status = 409
    sqlstate = "55006"


class TargetNotPrepared(TargetError):
    """The target lacks the schema ``spillway``, where a subscription keeps its place, and the role
    may not make it; the hint is the SQL for an owner.
    """

    code = "target_not_prepared"
    sqlstate = "42501"


class TargetTableMissing(TargetError):
    """The target has no table for what the source sends."""

    code = "target_table_missing"
    sqlstate = "42P01"


class TargetColumnsMissing(TargetError):
    """A table of the target lacks columns that the source sends."""

    code = "target_columns_missing"
    sqlstate = "42703"


class TargetTableUnusable(TargetError):
    """A relation of the target can't take changes: it is no table, or has nothing to find rows
    by.
    """

    code = "target_table_unusable"
    sqlstate = "55000"


class TargetBehindSlot(TargetError):
    """The slot was confirmed past what the target has: changes between are gone for it."""

    code = "target_behind_slot"
    http_status = 409
    sqlstate = "55000"


class TargetSchemaChange(TargetError):
    """The next transaction changes a table's definition, and the target's table is not changed by
    itself: the subscription pauses in front of it.
    """

    code = "target_schema_change"
    http_status = 409
    sqlstate = "55000"


class TargetRefused(TargetError):
    """The target refused a statement; ``details['sqlstate']`` is its own code."""

    code = "target_refused"
    sqlstate = "XX000"


class TargetSerialization(TargetRefused):
    """A transaction of the target was the victim of a deadlock, or could not be serialised; it is
    tried again.
    """

    code = "target_serialization"
    sqlstate = "40001"


class TargetRowRefused(TargetRefused):
    """A row that the source sends can't be on the target: a value or a constraint is against it."""

    code = "target_row_refused"
    http_status = 409
    sqlstate = "23000"


class TargetTwoPhaseDisabled(TargetRefused):
    """The target takes no prepared transactions, or no more of them."""

    code = "target_two_phase_disabled"
    sqlstate = "55000"


class TargetTransactionLost(TargetRefused):
    """A prepared transaction that is to be committed is not on the target."""

    code = "target_transaction_lost"
    http_status = 409
    sqlstate = "42704"


class ApplyConflict(TargetRefused):
    """What the source sends and what the target has contradict each other, and the subscription is
    told to stop there.
    """

    code = "apply_conflict"
    http_status = 409
    sqlstate = "23505"


class AddressUnavailable(SpillwayError):
    """The service can't listen where it was told to."""

    code = "address_unavailable"
    sqlstate = "08000"


class StorageError(SpillwayError):
    """The service's own storage failed."""

    code = "storage_error"
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"
    sqlstate = "58030"


class DiskFull(StorageError):
    """No space is left where the service keeps WAL or transactions, or a job its lake."""

    code = "disk_full"
    sqlstate = "53100"


class WalStoreFull(DiskFull):
    """The WAL store has reached the size that it was allowed."""

    code = "wal_store_full"


class WalFlushFailed(StorageError):
    """The kernel could not make written WAL durable; what was not durable before is fetched
    again.
    """

    code = "wal_flush_failed"


class CorruptWalStore(StorageError):
    """The WAL store's state file can't be believed."""

    code = "corrupt_wal_store"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class CorruptSnapshot(StorageError):
    """A serialised decoder state is damaged."""

    code = "corrupt_snapshot"
    grpc_status = "DATA_LOSS"
    sqlstate = "XX001"


class WalStoreInUse(StorageError):
    """Another process has the WAL store open."""

    code = "wal_store_in_use"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55006"


class AlertNotDelivered(SpillwayError):
    """A channel did not take an alert: who listens there is away, refused it, or took too long."""

    code = "alert_not_delivered"
    http_status = 502
    grpc_status = "UNAVAILABLE"
    sqlstate = "08000"


class MetadataError(SpillwayError):
    """The metadata store can't be reached or does not work."""

    code = "metadata_unavailable"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    sqlstate = "57P03"
    is_logged = True


class MalformedMessage(SpillwayError):
    """What came over the change stream is no message of it."""

    code = "malformed_message"
    sqlstate = "08P01"


class Unauthenticated(SpillwayError):
    """The bearer token is missing or wrong."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    sqlstate = "28000"


class TooManyAttempts(SpillwayError):
    """Too many wrong tokens came from this address; it must wait before the next is looked at."""

    code = "too_many_attempts"
    http_status = 429
    grpc_status = "UNAVAILABLE"
    sqlstate = "28000"


class TooManyConnections(SpillwayError):
    """The service has as many connections as it can have without taking files from its
    receivers.
    """

    code = "too_many_connections"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    sqlstate = "53300"


class RequestTimeout(SpillwayError):
    """A request was begun, and its rest did not come in time."""

    code = "request_timeout"
    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"
    sqlstate = "57014"


class TlsFailed(SpillwayError):
    """A client and the service could not agree on TLS: a certificate is missing, expired, or not
    trusted.
    """

    code = "tls_failed"
    http_status = 502
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "08001"


class AnswersFull(SpillwayError):
    """The answers of other peeks and gets take the memory that there is for answers."""

    code = "answers_full"
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"
    sqlstate = "53200"


class NotReady(SpillwayError):
    """The service, or a decoding session in it, has not reached the state that this needs."""

    code = "not_ready"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    sqlstate = "57P03"


class CheckpointNotStored(NotReady):
    """WAL from the source's last checkpoint on, where decoding of a new database begins, is not
    stored any more.
    """

    code = "checkpoint_not_stored"


class LakeError(SpillwayError):
    """Materialising a slot into lake tables failed."""

    code = "lake_error"


class JavaMissing(LakeError):
    """Spark needs a Java runtime and none was found."""

    code = "java_missing"


class JarsMissing(LakeError):
    """The jars of the table format are absent, or are not the pinned ones."""

    code = "jars_missing"


class SparkMissing(LakeError):
    """PySpark is not installed: it is an extra."""

    code = "spark_missing"


class LakeSchemaConflict(LakeError):
    """A table changed in a way that its lake table can't follow by itself."""

    code = "lake_schema_conflict"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "42804"


class LakeSchemaChange(LakeError):
    """A table's shape changed at the source, and the lake's job was told to stop there."""

    code = "lake_schema_change"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55000"


class LakeTableConflict(LakeError):
    """What stands at a lake table's path was made by something else, or for another slot."""

    code = "lake_table_conflict"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55000"


class LakeBehindSlot(LakeError):
    """The slot was confirmed past what the lake has: changes between are gone for it."""

    code = "lake_behind_slot"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"
    sqlstate = "55000"


class PrivatePostgresError(SpillwayError):
    """A PostgreSQL server of the demo's own can't be made, started or stopped."""

    code = "private_postgres_error"
    sqlstate = "58000"


def error_class(code: str) -> type[SpillwayError]:
    """Find the class of a stable code, so that a client can raise what the service raised.

    A code that this release does not know gives :class:`SpillwayError`.
    """
    unseen: list[type[SpillwayError]] = [SpillwayError]
    while unseen:
        kind = unseen.pop()
        if kind.code == code:
            return kind
        unseen.extend(kind.__subclasses__())
    return SpillwayError


#: between a message and its hint, where one text has both
HINT: Final = " Hint: "


def remote_error(code: str, message: str, *, hint: str = "", **details: object) -> SpillwayError:
    """Make again, on the client's side, the error that a service reported."""
    kind = error_class(code)
    # Not through the class's own constructor, which may compose the message from other arguments.
    error = kind.__new__(kind)
    SpillwayError.__init__(error, message, hint=hint, **details)
    return error
