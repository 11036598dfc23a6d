import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListFindingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFindingsResponse(_message.Message):
    __slots__ = ("findings", "unknown")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    unknown: _containers.RepeatedCompositeFieldContainer[UnknownFinding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., unknown: _Optional[_Iterable[_Union[UnknownFinding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("severity", "code", "subject", "source", "slot", "subscription", "title", "detail", "remedy", "page", "since")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    severity: str
    code: str
    subject: str
    source: str
    slot: str
    subscription: str
    title: str
    detail: str
    remedy: str
    page: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, severity: _Optional[str] = ..., code: _Optional[str] = ..., subject: _Optional[str] = ..., source: _Optional[str] = ..., slot: _Optional[str] = ..., subscription: _Optional[str] = ..., title: _Optional[str] = ..., detail: _Optional[str] = ..., remedy: _Optional[str] = ..., page: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UnknownFinding(_message.Message):
    __slots__ = ("code", "subject")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    code: str
    subject: str
    def __init__(self, code: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("kind", "severity", "source", "slot", "subscription", "search", "since", "before", "limit")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    severity: str
    source: str
    slot: str
    subscription: str
    search: str
    since: _timestamp_pb2.Timestamp
    before: int
    limit: int
    def __init__(self, kind: _Optional[str] = ..., severity: _Optional[str] = ..., source: _Optional[str] = ..., slot: _Optional[str] = ..., subscription: _Optional[str] = ..., search: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "next_before")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    next_before: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., next_before: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "at", "kind", "severity", "source", "slot", "subscription", "title", "detail", "caller", "document")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    at: _timestamp_pb2.Timestamp
    kind: str
    severity: str
    source: str
    slot: str
    subscription: str
    title: str
    detail: str
    caller: EventCaller
    document: _struct_pb2.Struct
    def __init__(self, id: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., severity: _Optional[str] = ..., source: _Optional[str] = ..., slot: _Optional[str] = ..., subscription: _Optional[str] = ..., title: _Optional[str] = ..., detail: _Optional[str] = ..., caller: _Optional[_Union[EventCaller, _Mapping]] = ..., document: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class EventCaller(_message.Message):
    __slots__ = ("address", "client", "protocol", "user")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    address: str
    client: str
    protocol: str
    user: str
    def __init__(self, address: _Optional[str] = ..., client: _Optional[str] = ..., protocol: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ("name", "range_s", "step_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANGE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    range_s: int
    step_s: int
    def __init__(self, name: _Optional[str] = ..., range_s: _Optional[int] = ..., step_s: _Optional[int] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("kind", "name", "since", "step_s", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetricValues
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetricValues, _Mapping]] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    since: _timestamp_pb2.Timestamp
    step_s: int
    metrics: _containers.MessageMap[str, MetricValues]
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step_s: _Optional[int] = ..., metrics: _Optional[_Mapping[str, MetricValues]] = ...) -> None: ...

class MetricValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[MetricValue]
    def __init__(self, values: _Optional[_Iterable[_Union[MetricValue, _Mapping]]] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: float
    def __init__(self, value: _Optional[float] = ...) -> None: ...

class ListSchemaChangesRequest(_message.Message):
    __slots__ = ("source", "database", "table", "since", "before", "limit")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    table: str
    since: _timestamp_pb2.Timestamp
    before: int
    limit: int
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ..., table: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchemaChangesResponse(_message.Message):
    __slots__ = ("schema_changes", "next_before")
    SCHEMA_CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    schema_changes: _containers.RepeatedCompositeFieldContainer[SchemaChange]
    next_before: int
    def __init__(self, schema_changes: _Optional[_Iterable[_Union[SchemaChange, _Mapping]]] = ..., next_before: _Optional[int] = ...) -> None: ...

class SchemaChange(_message.Message):
    __slots__ = ("id", "source", "database", "table", "was", "kind", "committed_at", "commit_lsn", "xid", "words", "changes", "more", "outcomes")
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LSN_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    id: int
    source: str
    database: str
    table: str
    was: str
    kind: str
    committed_at: _timestamp_pb2.Timestamp
    commit_lsn: int
    xid: int
    words: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    more: int
    outcomes: _containers.RepeatedCompositeFieldContainer[SchemaChangeOutcome]
    def __init__(self, id: _Optional[int] = ..., source: _Optional[str] = ..., database: _Optional[str] = ..., table: _Optional[str] = ..., was: _Optional[str] = ..., kind: _Optional[str] = ..., committed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., commit_lsn: _Optional[int] = ..., xid: _Optional[int] = ..., words: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., more: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[SchemaChangeOutcome, _Mapping]]] = ...) -> None: ...

class SchemaChangeOutcome(_message.Message):
    __slots__ = ("subscription", "outcome", "detail", "at", "was_paused")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WAS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    outcome: str
    detail: str
    at: _timestamp_pb2.Timestamp
    was_paused: bool
    def __init__(self, subscription: _Optional[str] = ..., outcome: _Optional[str] = ..., detail: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., was_paused: _Optional[bool] = ...) -> None: ...
