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
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("name", "source", "database", "slot", "tables", "publications", "target", "enabled", "copy_data", "origin", "streaming", "two_phase", "options", "state", "error", "confirmed_flush_lsn", "lag_bytes", "lag_seconds", "rows", "restarts", "pid", "table_states", "created_at")
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
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., database: _Optional[str] = ..., slot: _Optional[str] = ..., tables: _Optional[_Union[Names, _Mapping]] = ..., publications: _Optional[_Union[Names, _Mapping]] = ..., target: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., enabled: _Optional[bool] = ..., copy_data: _Optional[bool] = ..., origin: _Optional[str] = ..., streaming: _Optional[str] = ..., two_phase: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ..., state: _Optional[str] = ..., error: _Optional[_Union[SubscriptionFailure, _Mapping]] = ..., confirmed_flush_lsn: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., rows: _Optional[int] = ..., restarts: _Optional[int] = ..., pid: _Optional[int] = ..., table_states: _Optional[_Iterable[_Union[SubscribedTable, _Mapping]]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SubscriptionFailure(_message.Message):
    __slots__ = ("code", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class SubscribedTable(_message.Message):
    __slots__ = ("table", "state", "changes", "bytes_copied", "bytes_total", "reason")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    table: str
    state: str
    changes: int
    bytes_copied: int
    bytes_total: int
    reason: str
    def __init__(self, table: _Optional[str] = ..., state: _Optional[str] = ..., changes: _Optional[int] = ..., bytes_copied: _Optional[int] = ..., bytes_total: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
