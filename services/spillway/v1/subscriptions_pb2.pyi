import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Names(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("options",)
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.ScalarMap[str, str]
    def __init__(self, options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateSubscriptionRequest(_message.Message):
    __slots__ = ("name", "source", "database", "slot", "tables", "publications", "target", "enabled", "copy_data", "origin", "streaming", "two_phase", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    COPY_DATA_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    database: str
    slot: str
    tables: Names
    publications: Names
    target: _struct_pb2.Struct
    enabled: bool
    copy_data: bool
    origin: str
    streaming: str
    two_phase: bool
    options: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., database: _Optional[str] = ..., slot: _Optional[str] = ..., tables: _Optional[_Union[Names, _Mapping]] = ..., publications: _Optional[_Union[Names, _Mapping]] = ..., target: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., enabled: _Optional[bool] = ..., copy_data: _Optional[bool] = ..., origin: _Optional[str] = ..., streaming: _Optional[str] = ..., two_phase: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AlterSubscriptionRequest(_message.Message):
    __slots__ = ("name", "tables", "publications", "all_tables", "target", "enabled", "options")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    ALL_TABLES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tables: Names
    publications: Names
    all_tables: bool
    target: _struct_pb2.Struct
    enabled: bool
    options: Options
    def __init__(self, name: _Optional[str] = ..., tables: _Optional[_Union[Names, _Mapping]] = ..., publications: _Optional[_Union[Names, _Mapping]] = ..., all_tables: _Optional[bool] = ..., target: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., enabled: _Optional[bool] = ..., options: _Optional[_Union[Options, _Mapping]] = ...) -> None: ...

class ListSubscriptionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSubscriptionsResponse(_message.Message):
    __slots__ = ("subscriptions",)
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ...) -> None: ...

class GetSubscriptionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropSubscriptionRequest(_message.Message):
    __slots__ = ("name", "keep_slot")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_SLOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep_slot: bool
    def __init__(self, name: _Optional[str] = ..., keep_slot: _Optional[bool] = ...) -> None: ...

class DropSubscriptionResponse(_message.Message):
    __slots__ = ("notes",)
    NOTES_FIELD_NUMBER: _ClassVar[int]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, notes: _Optional[_Iterable[str]] = ...) -> None: ...

class EnableSubscriptionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DisableSubscriptionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RefreshSubscriptionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SkipSubscriptionRequest(_message.Message):
    __slots__ = ("name", "lsn")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    name: str
    lsn: int
    def __init__(self, name: _Optional[str] = ..., lsn: _Optional[int] = ...) -> None: ...

class SubscriptionTableRequest(_message.Message):
    __slots__ = ("name", "table")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    table: str
    def __init__(self, name: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class GetSubscriptionLogRequest(_message.Message):
    __slots__ = ("name", "lines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    lines: int
    def __init__(self, name: _Optional[str] = ..., lines: _Optional[int] = ...) -> None: ...

class SubscriptionLog(_message.Message):
    __slots__ = ("name", "lines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "source", "database", "slot", "tables", "publications", "target", "enabled", "copy_data", "origin", "streaming", "two_phase", "options", "state", "error", "confirmed_flush_lsn", "lag_bytes", "lag_seconds", "rows", "restarts", "pid", "table_states", "created_at", "told_at", "notes", "last_batch", "verification")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    COPY_DATA_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FLUSH_LSN_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TABLE_STATES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    TOLD_AT_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    database: str
    slot: str
    tables: Names
    publications: Names
    target: _struct_pb2.Struct
    enabled: bool
    copy_data: bool
    origin: str
    streaming: str
    two_phase: bool
    options: _containers.ScalarMap[str, str]
    state: str
    error: SubscriptionFailure
    confirmed_flush_lsn: int
    lag_bytes: int
    lag_seconds: float
    rows: int
    restarts: int
    pid: int
    table_states: _containers.RepeatedCompositeFieldContainer[SubscribedTable]
    created_at: _timestamp_pb2.Timestamp
    told_at: _timestamp_pb2.Timestamp
    notes: _containers.RepeatedScalarFieldContainer[str]
    last_batch: LastBatch
    verification: Verification
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., database: _Optional[str] = ..., slot: _Optional[str] = ..., tables: _Optional[_Union[Names, _Mapping]] = ..., publications: _Optional[_Union[Names, _Mapping]] = ..., target: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., enabled: _Optional[bool] = ..., copy_data: _Optional[bool] = ..., origin: _Optional[str] = ..., streaming: _Optional[str] = ..., two_phase: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ..., state: _Optional[str] = ..., error: _Optional[_Union[SubscriptionFailure, _Mapping]] = ..., confirmed_flush_lsn: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., rows: _Optional[int] = ..., restarts: _Optional[int] = ..., pid: _Optional[int] = ..., table_states: _Optional[_Iterable[_Union[SubscribedTable, _Mapping]]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., told_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., last_batch: _Optional[_Union[LastBatch, _Mapping]] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ...) -> None: ...

class VerifySubscriptionRequest(_message.Message):
    __slots__ = ("name", "tables")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("state", "began_at", "ended_at", "lsn", "tables", "error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: str
    began_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    lsn: int
    tables: _containers.RepeatedCompositeFieldContainer[VerifiedTable]
    error: SubscriptionFailure
    def __init__(self, state: _Optional[str] = ..., began_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lsn: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[VerifiedTable, _Mapping]]] = ..., error: _Optional[_Union[SubscriptionFailure, _Mapping]] = ...) -> None: ...

class VerifiedTable(_message.Message):
    __slots__ = ("table", "equal", "source_rows", "target_rows", "differences", "more", "skipped")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    TARGET_ROWS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    table: str
    equal: bool
    source_rows: int
    target_rows: int
    differences: int
    more: bool
    skipped: str
    def __init__(self, table: _Optional[str] = ..., equal: _Optional[bool] = ..., source_rows: _Optional[int] = ..., target_rows: _Optional[int] = ..., differences: _Optional[int] = ..., more: _Optional[bool] = ..., skipped: _Optional[str] = ...) -> None: ...

class LastBatch(_message.Message):
    __slots__ = ("ended_at", "seconds", "changes", "tables", "from_lsn", "to_lsn")
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    TO_LSN_FIELD_NUMBER: _ClassVar[int]
    ended_at: _timestamp_pb2.Timestamp
    seconds: float
    changes: int
    tables: int
    from_lsn: int
    to_lsn: int
    def __init__(self, ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., seconds: _Optional[float] = ..., changes: _Optional[int] = ..., tables: _Optional[int] = ..., from_lsn: _Optional[int] = ..., to_lsn: _Optional[int] = ...) -> None: ...

class SubscriptionFailure(_message.Message):
    __slots__ = ("code", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class TableResync(_message.Message):
    __slots__ = ("state", "asked_at", "ended_at", "lsn", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: str
    asked_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    lsn: int
    reason: str
    def __init__(self, state: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lsn: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SubscribedTable(_message.Message):
    __slots__ = ("table", "state", "changes", "bytes_copied", "bytes_total", "reason", "sync_state", "written_alone", "changes_per_second", "bytes_per_second", "seconds_left", "rows", "files", "bytes", "deleted_rows", "deleted_share", "bytes_rewritten", "figures_at", "newest_change_at", "waiting_since", "resync")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SYNC_STATE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_ALONE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DELETED_SHARE_FIELD_NUMBER: _ClassVar[int]
    BYTES_REWRITTEN_FIELD_NUMBER: _ClassVar[int]
    FIGURES_AT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_CHANGE_AT_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    table: str
    state: str
    changes: int
    bytes_copied: int
    bytes_total: int
    reason: str
    sync_state: str
    written_alone: str
    changes_per_second: float
    bytes_per_second: float
    seconds_left: float
    rows: int
    files: int
    bytes: int
    deleted_rows: int
    deleted_share: float
    bytes_rewritten: int
    figures_at: _timestamp_pb2.Timestamp
    newest_change_at: _timestamp_pb2.Timestamp
    waiting_since: _timestamp_pb2.Timestamp
    resync: TableResync
    def __init__(self, table: _Optional[str] = ..., state: _Optional[str] = ..., changes: _Optional[int] = ..., bytes_copied: _Optional[int] = ..., bytes_total: _Optional[int] = ..., reason: _Optional[str] = ..., sync_state: _Optional[str] = ..., written_alone: _Optional[str] = ..., changes_per_second: _Optional[float] = ..., bytes_per_second: _Optional[float] = ..., seconds_left: _Optional[float] = ..., rows: _Optional[int] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., deleted_rows: _Optional[int] = ..., deleted_share: _Optional[float] = ..., bytes_rewritten: _Optional[int] = ..., figures_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., newest_change_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., waiting_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resync: _Optional[_Union[TableResync, _Mapping]] = ...) -> None: ...

class GetSubscriptionStatsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SubscriptionStats(_message.Message):
    __slots__ = ("subname", "pid", "received_lsn", "last_msg_send_time", "last_msg_receipt_time", "latest_end_lsn", "latest_end_time", "applied_lsn", "flushed_lsn", "lag_bytes", "lag_seconds", "apply_error_count", "sync_error_count", "confl_insert_exists", "confl_update_origin_differs", "confl_update_exists", "confl_update_missing", "confl_delete_origin_differs", "confl_delete_missing", "confl_multiple_unique_conflicts", "conflicts_dropped", "conflicts_missed", "table_conflicts", "tables", "changes_per_second", "told_at", "confl_update_deleted")
    SUBNAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_LSN_FIELD_NUMBER: _ClassVar[int]
    LAST_MSG_SEND_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_MSG_RECEIPT_TIME_FIELD_NUMBER: _ClassVar[int]
    LATEST_END_LSN_FIELD_NUMBER: _ClassVar[int]
    LATEST_END_TIME_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_LSN_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    APPLY_ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    SYNC_ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONFL_INSERT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    CONFL_UPDATE_ORIGIN_DIFFERS_FIELD_NUMBER: _ClassVar[int]
    CONFL_UPDATE_EXISTS_FIELD_NUMBER: _ClassVar[int]
    CONFL_UPDATE_MISSING_FIELD_NUMBER: _ClassVar[int]
    CONFL_DELETE_ORIGIN_DIFFERS_FIELD_NUMBER: _ClassVar[int]
    CONFL_DELETE_MISSING_FIELD_NUMBER: _ClassVar[int]
    CONFL_MULTIPLE_UNIQUE_CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_MISSED_FIELD_NUMBER: _ClassVar[int]
    TABLE_CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TOLD_AT_FIELD_NUMBER: _ClassVar[int]
    CONFL_UPDATE_DELETED_FIELD_NUMBER: _ClassVar[int]
    subname: str
    pid: int
    received_lsn: int
    last_msg_send_time: _timestamp_pb2.Timestamp
    last_msg_receipt_time: _timestamp_pb2.Timestamp
    latest_end_lsn: int
    latest_end_time: _timestamp_pb2.Timestamp
    applied_lsn: int
    flushed_lsn: int
    lag_bytes: int
    lag_seconds: float
    apply_error_count: int
    sync_error_count: int
    confl_insert_exists: int
    confl_update_origin_differs: int
    confl_update_exists: int
    confl_update_missing: int
    confl_delete_origin_differs: int
    confl_delete_missing: int
    confl_multiple_unique_conflicts: int
    conflicts_dropped: int
    conflicts_missed: int
    table_conflicts: _containers.RepeatedCompositeFieldContainer[TableConflicts]
    tables: _containers.RepeatedCompositeFieldContainer[SubscribedTable]
    changes_per_second: float
    told_at: _timestamp_pb2.Timestamp
    confl_update_deleted: int
    def __init__(self, subname: _Optional[str] = ..., pid: _Optional[int] = ..., received_lsn: _Optional[int] = ..., last_msg_send_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_msg_receipt_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., latest_end_lsn: _Optional[int] = ..., latest_end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., applied_lsn: _Optional[int] = ..., flushed_lsn: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., apply_error_count: _Optional[int] = ..., sync_error_count: _Optional[int] = ..., confl_insert_exists: _Optional[int] = ..., confl_update_origin_differs: _Optional[int] = ..., confl_update_exists: _Optional[int] = ..., confl_update_missing: _Optional[int] = ..., confl_delete_origin_differs: _Optional[int] = ..., confl_delete_missing: _Optional[int] = ..., confl_multiple_unique_conflicts: _Optional[int] = ..., conflicts_dropped: _Optional[int] = ..., conflicts_missed: _Optional[int] = ..., table_conflicts: _Optional[_Iterable[_Union[TableConflicts, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[SubscribedTable, _Mapping]]] = ..., changes_per_second: _Optional[float] = ..., told_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., confl_update_deleted: _Optional[int] = ...) -> None: ...

class TableConflicts(_message.Message):
    __slots__ = ("table", "kind", "count")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    table: str
    kind: str
    count: int
    def __init__(self, table: _Optional[str] = ..., kind: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class GetSubscriptionConflictsRequest(_message.Message):
    __slots__ = ("name", "limit", "kind", "table")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    kind: str
    table: str
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ..., kind: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class SubscriptionConflicts(_message.Message):
    __slots__ = ("name", "conflicts", "kept", "dropped", "missed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    conflicts: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    kept: int
    dropped: int
    missed: int
    def __init__(self, name: _Optional[str] = ..., conflicts: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., kept: _Optional[int] = ..., dropped: _Optional[int] = ..., missed: _Optional[int] = ...) -> None: ...
