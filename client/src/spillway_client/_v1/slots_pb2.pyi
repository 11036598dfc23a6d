import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateSourceRequest(_message.Message):
    __slots__ = ("name", "dsn", "capture")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DSN_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dsn: str
    capture: Capture
    def __init__(self, name: _Optional[str] = ..., dsn: _Optional[str] = ..., capture: _Optional[_Union[Capture, _Mapping]] = ...) -> None: ...

class Capture(_message.Message):
    __slots__ = ("origin", "tables", "publications")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    publications: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, origin: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., publications: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSourcesResponse(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class GetSourceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AlterSourceRequest(_message.Message):
    __slots__ = ("name", "dsn")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DSN_FIELD_NUMBER: _ClassVar[int]
    name: str
    dsn: str
    def __init__(self, name: _Optional[str] = ..., dsn: _Optional[str] = ...) -> None: ...

class RestartDatabaseRequest(_message.Message):
    __slots__ = ("name", "database")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    database: str
    def __init__(self, name: _Optional[str] = ..., database: _Optional[str] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("source", "database")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ...) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    def __init__(self, tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("schema", "name", "kind", "partition_of", "replica_identity", "primary_key", "identity_columns", "columns", "publications", "captured", "warnings")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITION_OF_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    name: str
    kind: str
    partition_of: _containers.RepeatedScalarFieldContainer[str]
    replica_identity: str
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    identity_columns: _containers.RepeatedScalarFieldContainer[str]
    columns: _containers.RepeatedCompositeFieldContainer[TableColumn]
    publications: _containers.RepeatedScalarFieldContainer[str]
    captured: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schema: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., partition_of: _Optional[_Iterable[str]] = ..., replica_identity: _Optional[str] = ..., primary_key: _Optional[_Iterable[str]] = ..., identity_columns: _Optional[_Iterable[str]] = ..., columns: _Optional[_Iterable[_Union[TableColumn, _Mapping]]] = ..., publications: _Optional[_Iterable[str]] = ..., captured: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class TableColumn(_message.Message):
    __slots__ = ("name", "type", "not_null", "generated")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NOT_NULL_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    not_null: bool
    generated: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., not_null: _Optional[bool] = ..., generated: _Optional[bool] = ...) -> None: ...

class ListPublicationsRequest(_message.Message):
    __slots__ = ("source", "database")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ...) -> None: ...

class ListPublicationsResponse(_message.Message):
    __slots__ = ("publications",)
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    publications: _containers.RepeatedCompositeFieldContainer[Publication]
    def __init__(self, publications: _Optional[_Iterable[_Union[Publication, _Mapping]]] = ...) -> None: ...

class Publication(_message.Message):
    __slots__ = ("name", "all_tables", "publish_insert", "publish_update", "publish_delete", "publish_truncate", "via_root", "tables", "schemas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALL_TABLES_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_INSERT_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_UPDATE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_DELETE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    VIA_ROOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    all_tables: bool
    publish_insert: bool
    publish_update: bool
    publish_delete: bool
    publish_truncate: bool
    via_root: bool
    tables: _containers.RepeatedCompositeFieldContainer[PublishedTable]
    schemas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., all_tables: _Optional[bool] = ..., publish_insert: _Optional[bool] = ..., publish_update: _Optional[bool] = ..., publish_delete: _Optional[bool] = ..., publish_truncate: _Optional[bool] = ..., via_root: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[PublishedTable, _Mapping]]] = ..., schemas: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishedTable(_message.Message):
    __slots__ = ("schema", "name", "columns", "all_columns", "has_row_filter", "row_filter")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ALL_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    HAS_ROW_FILTER_FIELD_NUMBER: _ClassVar[int]
    ROW_FILTER_FIELD_NUMBER: _ClassVar[int]
    schema: str
    name: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    all_columns: bool
    has_row_filter: bool
    row_filter: str
    def __init__(self, schema: _Optional[str] = ..., name: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., all_columns: _Optional[bool] = ..., has_row_filter: _Optional[bool] = ..., row_filter: _Optional[str] = ...) -> None: ...

class ListPluginsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPluginsResponse(_message.Message):
    __slots__ = ("plugins",)
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    plugins: _containers.RepeatedCompositeFieldContainer[Plugin]
    def __init__(self, plugins: _Optional[_Iterable[_Union[Plugin, _Mapping]]] = ...) -> None: ...

class Plugin(_message.Message):
    __slots__ = ("name", "built_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUILT_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    built_in: bool
    def __init__(self, name: _Optional[str] = ..., built_in: _Optional[bool] = ...) -> None: ...

class DropSourceRequest(_message.Message):
    __slots__ = ("name", "keep_slot")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_SLOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep_slot: bool
    def __init__(self, name: _Optional[str] = ..., keep_slot: _Optional[bool] = ...) -> None: ...

class DropSourceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "dsn", "system_id", "server_version_num", "timeline", "wal_segment_size", "slot_name", "state", "received_lsn", "flushed_lsn", "sessions", "created_at", "error", "error_code", "hint", "capture", "since", "heard_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DSN_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_NUM_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    WAL_SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_LSN_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_LSN_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    dsn: str
    system_id: str
    server_version_num: int
    timeline: int
    wal_segment_size: int
    slot_name: str
    state: str
    received_lsn: int
    flushed_lsn: int
    sessions: _containers.RepeatedCompositeFieldContainer[DecodingSession]
    created_at: _timestamp_pb2.Timestamp
    error: str
    error_code: str
    hint: str
    capture: Capture
    since: _timestamp_pb2.Timestamp
    heard_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., dsn: _Optional[str] = ..., system_id: _Optional[str] = ..., server_version_num: _Optional[int] = ..., timeline: _Optional[int] = ..., wal_segment_size: _Optional[int] = ..., slot_name: _Optional[str] = ..., state: _Optional[str] = ..., received_lsn: _Optional[int] = ..., flushed_lsn: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[DecodingSession, _Mapping]]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., error_code: _Optional[str] = ..., hint: _Optional[str] = ..., capture: _Optional[_Union[Capture, _Mapping]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., heard_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DecodingSession(_message.Message):
    __slots__ = ("database", "datoid", "snapshot_state", "decoded_lsn", "restart_lsn", "error", "error_code", "hint", "state", "since", "log_damaged")
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    DATOID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_STATE_FIELD_NUMBER: _ClassVar[int]
    DECODED_LSN_FIELD_NUMBER: _ClassVar[int]
    RESTART_LSN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LOG_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    database: str
    datoid: int
    snapshot_state: str
    decoded_lsn: int
    restart_lsn: int
    error: str
    error_code: str
    hint: str
    state: str
    since: _timestamp_pb2.Timestamp
    log_damaged: bool
    def __init__(self, database: _Optional[str] = ..., datoid: _Optional[int] = ..., snapshot_state: _Optional[str] = ..., decoded_lsn: _Optional[int] = ..., restart_lsn: _Optional[int] = ..., error: _Optional[str] = ..., error_code: _Optional[str] = ..., hint: _Optional[str] = ..., state: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., log_damaged: _Optional[bool] = ...) -> None: ...

class CreateSlotRequest(_message.Message):
    __slots__ = ("slot_name", "source", "database", "plugin", "temporary", "two_phase", "failover", "options", "start_lsn", "export_snapshot")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    FAILOVER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    START_LSN_FIELD_NUMBER: _ClassVar[int]
    EXPORT_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    source: str
    database: str
    plugin: str
    temporary: bool
    two_phase: bool
    failover: bool
    options: _containers.ScalarMap[str, str]
    start_lsn: int
    export_snapshot: bool
    def __init__(self, slot_name: _Optional[str] = ..., source: _Optional[str] = ..., database: _Optional[str] = ..., plugin: _Optional[str] = ..., temporary: _Optional[bool] = ..., two_phase: _Optional[bool] = ..., failover: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ..., start_lsn: _Optional[int] = ..., export_snapshot: _Optional[bool] = ...) -> None: ...

class ListSlotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSlotsResponse(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    def __init__(self, slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ...) -> None: ...

class GetSlotRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class AlterSlotRequest(_message.Message):
    __slots__ = ("slot_name", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, slot_name: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DropSlotRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class DropSlotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Slot(_message.Message):
    __slots__ = ("slot_name", "plugin", "slot_type", "datoid", "database", "temporary", "active", "active_pid", "xmin", "catalog_xmin", "restart_lsn", "confirmed_flush_lsn", "wal_status", "safe_wal_size", "two_phase", "two_phase_at", "inactive_since", "conflicting", "invalidation_reason", "failover", "synced", "source", "options", "decoded_lsn", "retained_bytes", "created_at", "consumer", "decoding", "confirmed_at")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    SLOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATOID_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PID_FIELD_NUMBER: _ClassVar[int]
    XMIN_FIELD_NUMBER: _ClassVar[int]
    CATALOG_XMIN_FIELD_NUMBER: _ClassVar[int]
    RESTART_LSN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FLUSH_LSN_FIELD_NUMBER: _ClassVar[int]
    WAL_STATUS_FIELD_NUMBER: _ClassVar[int]
    SAFE_WAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_AT_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_SINCE_FIELD_NUMBER: _ClassVar[int]
    CONFLICTING_FIELD_NUMBER: _ClassVar[int]
    INVALIDATION_REASON_FIELD_NUMBER: _ClassVar[int]
    FAILOVER_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DECODED_LSN_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_AT_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    plugin: str
    slot_type: str
    datoid: int
    database: str
    temporary: bool
    active: bool
    active_pid: int
    xmin: int
    catalog_xmin: int
    restart_lsn: int
    confirmed_flush_lsn: int
    wal_status: str
    safe_wal_size: int
    two_phase: bool
    two_phase_at: int
    inactive_since: _timestamp_pb2.Timestamp
    conflicting: bool
    invalidation_reason: str
    failover: bool
    synced: bool
    source: str
    options: _containers.ScalarMap[str, str]
    decoded_lsn: int
    retained_bytes: int
    created_at: _timestamp_pb2.Timestamp
    consumer: Consumer
    decoding: Decoding
    confirmed_at: _timestamp_pb2.Timestamp
    def __init__(self, slot_name: _Optional[str] = ..., plugin: _Optional[str] = ..., slot_type: _Optional[str] = ..., datoid: _Optional[int] = ..., database: _Optional[str] = ..., temporary: _Optional[bool] = ..., active: _Optional[bool] = ..., active_pid: _Optional[int] = ..., xmin: _Optional[int] = ..., catalog_xmin: _Optional[int] = ..., restart_lsn: _Optional[int] = ..., confirmed_flush_lsn: _Optional[int] = ..., wal_status: _Optional[str] = ..., safe_wal_size: _Optional[int] = ..., two_phase: _Optional[bool] = ..., two_phase_at: _Optional[int] = ..., inactive_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., conflicting: _Optional[bool] = ..., invalidation_reason: _Optional[str] = ..., failover: _Optional[bool] = ..., synced: _Optional[bool] = ..., source: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., decoded_lsn: _Optional[int] = ..., retained_bytes: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., consumer: _Optional[_Union[Consumer, _Mapping]] = ..., decoding: _Optional[_Union[Decoding, _Mapping]] = ..., confirmed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("kind", "address", "client", "subscription", "since", "last_feedback_at", "sent_lsn", "protocol", "user")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FEEDBACK_AT_FIELD_NUMBER: _ClassVar[int]
    SENT_LSN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    address: str
    client: str
    subscription: str
    since: _timestamp_pb2.Timestamp
    last_feedback_at: _timestamp_pb2.Timestamp
    sent_lsn: int
    protocol: str
    user: str
    def __init__(self, kind: _Optional[str] = ..., address: _Optional[str] = ..., client: _Optional[str] = ..., subscription: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_feedback_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sent_lsn: _Optional[int] = ..., protocol: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class Decoding(_message.Message):
    __slots__ = ("state", "decoded_lsn", "since", "error", "error_code", "hint")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DECODED_LSN_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    state: str
    decoded_lsn: int
    since: _timestamp_pb2.Timestamp
    error: str
    error_code: str
    hint: str
    def __init__(self, state: _Optional[str] = ..., decoded_lsn: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., error_code: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ("slot_name", "consumer")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    consumer: Consumer
    def __init__(self, slot_name: _Optional[str] = ..., consumer: _Optional[_Union[Consumer, _Mapping]] = ...) -> None: ...

class ReadChangesRequest(_message.Message):
    __slots__ = ("slot_name", "upto_lsn", "upto_nchanges", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    UPTO_LSN_FIELD_NUMBER: _ClassVar[int]
    UPTO_NCHANGES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    upto_lsn: int
    upto_nchanges: int
    options: _containers.ScalarMap[str, str]
    def __init__(self, slot_name: _Optional[str] = ..., upto_lsn: _Optional[int] = ..., upto_nchanges: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReadChangesResponse(_message.Message):
    __slots__ = ("changes", "decoding")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    decoding: Decoding
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., decoding: _Optional[_Union[Decoding, _Mapping]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("lsn", "xid", "data", "data_bytes")
    LSN_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    xid: int
    data: str
    data_bytes: bytes
    def __init__(self, lsn: _Optional[int] = ..., xid: _Optional[int] = ..., data: _Optional[str] = ..., data_bytes: _Optional[bytes] = ...) -> None: ...

class AdvanceSlotRequest(_message.Message):
    __slots__ = ("slot_name", "upto_lsn")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    UPTO_LSN_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    upto_lsn: int
    def __init__(self, slot_name: _Optional[str] = ..., upto_lsn: _Optional[int] = ...) -> None: ...

class AdvanceSlotResponse(_message.Message):
    __slots__ = ("slot_name", "end_lsn")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    END_LSN_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    end_lsn: int
    def __init__(self, slot_name: _Optional[str] = ..., end_lsn: _Optional[int] = ...) -> None: ...

class RewindSlotRequest(_message.Message):
    __slots__ = ("slot_name", "lsn")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    lsn: int
    def __init__(self, slot_name: _Optional[str] = ..., lsn: _Optional[int] = ...) -> None: ...

class CopySlotRequest(_message.Message):
    __slots__ = ("slot_name", "new_slot_name")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    new_slot_name: str
    def __init__(self, slot_name: _Optional[str] = ..., new_slot_name: _Optional[str] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("slot_name", "paired_only")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    PAIRED_ONLY_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    paired_only: bool
    def __init__(self, slot_name: _Optional[str] = ..., paired_only: _Optional[bool] = ...) -> None: ...

class GetSnapshotRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class ReleaseSnapshotRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class ReleaseSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("slot_name", "snapshot_name", "consistent_point", "contents", "method", "attempts", "reason", "taken_at", "held_until")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_NAME_FIELD_NUMBER: _ClassVar[int]
    CONSISTENT_POINT_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_UNTIL_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    snapshot_name: str
    consistent_point: int
    contents: str
    method: str
    attempts: int
    reason: str
    taken_at: _timestamp_pb2.Timestamp
    held_until: _timestamp_pb2.Timestamp
    def __init__(self, slot_name: _Optional[str] = ..., snapshot_name: _Optional[str] = ..., consistent_point: _Optional[int] = ..., contents: _Optional[str] = ..., method: _Optional[str] = ..., attempts: _Optional[int] = ..., reason: _Optional[str] = ..., taken_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetSlotStatsRequest(_message.Message):
    __slots__ = ("slot_name",)
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    def __init__(self, slot_name: _Optional[str] = ...) -> None: ...

class SlotStats(_message.Message):
    __slots__ = ("slot_name", "spill_txns", "spill_count", "spill_bytes", "stream_txns", "stream_count", "stream_bytes", "total_txns", "total_bytes", "stats_reset")
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    SPILL_TXNS_FIELD_NUMBER: _ClassVar[int]
    SPILL_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPILL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAM_TXNS_FIELD_NUMBER: _ClassVar[int]
    STREAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    STREAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TXNS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATS_RESET_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    spill_txns: int
    spill_count: int
    spill_bytes: int
    stream_txns: int
    stream_count: int
    stream_bytes: int
    total_txns: int
    total_bytes: int
    stats_reset: _timestamp_pb2.Timestamp
    def __init__(self, slot_name: _Optional[str] = ..., spill_txns: _Optional[int] = ..., spill_count: _Optional[int] = ..., spill_bytes: _Optional[int] = ..., stream_txns: _Optional[int] = ..., stream_count: _Optional[int] = ..., stream_bytes: _Optional[int] = ..., total_txns: _Optional[int] = ..., total_bytes: _Optional[int] = ..., stats_reset: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
