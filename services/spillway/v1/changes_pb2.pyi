import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from spillway.v1 import slots_pb2 as _slots_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindChangesRequest(_message.Message):
    __slots__ = ("source", "database", "table", "key", "op", "xid", "since", "until", "from_lsn", "upto_lsn", "newest_first", "limit", "after", "prefix")
    class KeyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    UPTO_LSN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    table: str
    key: _containers.ScalarMap[str, str]
    op: _containers.RepeatedScalarFieldContainer[str]
    xid: int
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    from_lsn: int
    upto_lsn: int
    newest_first: bool
    limit: int
    after: str
    prefix: str
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ..., table: _Optional[str] = ..., key: _Optional[_Mapping[str, str]] = ..., op: _Optional[_Iterable[str]] = ..., xid: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., from_lsn: _Optional[int] = ..., upto_lsn: _Optional[int] = ..., newest_first: _Optional[bool] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class FindChangesResponse(_message.Message):
    __slots__ = ("changes", "page")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[FoundChange]
    page: ChangesPage
    def __init__(self, changes: _Optional[_Iterable[_Union[FoundChange, _Mapping]]] = ..., page: _Optional[_Union[ChangesPage, _Mapping]] = ...) -> None: ...

class FoundChange(_message.Message):
    __slots__ = ("operation", "schema", "table", "table_oid", "lsn", "commit_lsn", "commit_end_lsn", "xid", "committed_at", "origin", "columns", "position", "message")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_OID_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LSN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_END_LSN_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    operation: str
    schema: str
    table: str
    table_oid: int
    lsn: int
    commit_lsn: int
    commit_end_lsn: int
    xid: int
    committed_at: _timestamp_pb2.Timestamp
    origin: str
    columns: _containers.RepeatedCompositeFieldContainer[ColumnValue]
    position: str
    message: LogicalMessage
    def __init__(self, operation: _Optional[str] = ..., schema: _Optional[str] = ..., table: _Optional[str] = ..., table_oid: _Optional[int] = ..., lsn: _Optional[int] = ..., commit_lsn: _Optional[int] = ..., commit_end_lsn: _Optional[int] = ..., xid: _Optional[int] = ..., committed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., origin: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[ColumnValue, _Mapping]]] = ..., position: _Optional[str] = ..., message: _Optional[_Union[LogicalMessage, _Mapping]] = ...) -> None: ...

class LogicalMessage(_message.Message):
    __slots__ = ("transactional", "prefix", "content")
    TRANSACTIONAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    transactional: bool
    prefix: str
    content: bytes
    def __init__(self, transactional: _Optional[bool] = ..., prefix: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class ColumnValue(_message.Message):
    __slots__ = ("name", "type", "is_key", "old_is", "old", "new_is", "new", "changed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_KEY_FIELD_NUMBER: _ClassVar[int]
    OLD_IS_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_IS_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    is_key: bool
    old_is: str
    old: str
    new_is: str
    new: str
    changed: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., is_key: _Optional[bool] = ..., old_is: _Optional[str] = ..., old: _Optional[str] = ..., new_is: _Optional[str] = ..., new: _Optional[str] = ..., changed: _Optional[bool] = ...) -> None: ...

class LsnRange(_message.Message):
    __slots__ = ("from_lsn", "upto_lsn")
    FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    UPTO_LSN_FIELD_NUMBER: _ClassVar[int]
    from_lsn: int
    upto_lsn: int
    def __init__(self, from_lsn: _Optional[int] = ..., upto_lsn: _Optional[int] = ...) -> None: ...

class ChangesPage(_message.Message):
    __slots__ = ("next", "tables", "looked", "retained_from_lsn", "retained_from", "decoded_lsn", "began_earlier", "timed_out", "undecided", "unreadable", "read_bytes", "passed_over_bytes")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FROM_LSN_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FROM_FIELD_NUMBER: _ClassVar[int]
    DECODED_LSN_FIELD_NUMBER: _ClassVar[int]
    BEGAN_EARLIER_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_BYTES_FIELD_NUMBER: _ClassVar[int]
    next: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    looked: LsnRange
    retained_from_lsn: int
    retained_from: _timestamp_pb2.Timestamp
    decoded_lsn: int
    began_earlier: bool
    timed_out: bool
    undecided: int
    unreadable: _containers.RepeatedCompositeFieldContainer[LsnRange]
    read_bytes: int
    passed_over_bytes: int
    def __init__(self, next: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., looked: _Optional[_Union[LsnRange, _Mapping]] = ..., retained_from_lsn: _Optional[int] = ..., retained_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., decoded_lsn: _Optional[int] = ..., began_earlier: _Optional[bool] = ..., timed_out: _Optional[bool] = ..., undecided: _Optional[int] = ..., unreadable: _Optional[_Iterable[_Union[LsnRange, _Mapping]]] = ..., read_bytes: _Optional[int] = ..., passed_over_bytes: _Optional[int] = ...) -> None: ...

class PrintTransactionRequest(_message.Message):
    __slots__ = ("source", "database", "commit_lsn", "plugin", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LSN_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    commit_lsn: int
    plugin: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ..., commit_lsn: _Optional[int] = ..., plugin: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PrintTransactionResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[_slots_pb2.Change]
    def __init__(self, changes: _Optional[_Iterable[_Union[_slots_pb2.Change, _Mapping]]] = ...) -> None: ...
