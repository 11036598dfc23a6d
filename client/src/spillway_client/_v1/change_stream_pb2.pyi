from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamRequest(_message.Message):
    __slots__ = ("start", "feedback")
    START_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    start: Start
    feedback: Feedback
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., feedback: _Optional[_Union[Feedback, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("slot_name", "start_lsn", "upto_lsn", "options", "batch_bytes", "peek")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOT_NAME_FIELD_NUMBER: _ClassVar[int]
    START_LSN_FIELD_NUMBER: _ClassVar[int]
    UPTO_LSN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    slot_name: str
    start_lsn: int
    upto_lsn: int
    options: _containers.ScalarMap[str, str]
    batch_bytes: int
    peek: bool
    def __init__(self, slot_name: _Optional[str] = ..., start_lsn: _Optional[int] = ..., upto_lsn: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ..., batch_bytes: _Optional[int] = ..., peek: _Optional[bool] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("write_lsn", "flush_lsn", "apply_lsn", "reply_requested")
    WRITE_LSN_FIELD_NUMBER: _ClassVar[int]
    FLUSH_LSN_FIELD_NUMBER: _ClassVar[int]
    APPLY_LSN_FIELD_NUMBER: _ClassVar[int]
    REPLY_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    write_lsn: int
    flush_lsn: int
    apply_lsn: int
    reply_requested: bool
    def __init__(self, write_lsn: _Optional[int] = ..., flush_lsn: _Optional[int] = ..., apply_lsn: _Optional[int] = ..., reply_requested: _Optional[bool] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("changes", "keepalive")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_FIELD_NUMBER: _ClassVar[int]
    changes: Changes
    keepalive: Keepalive
    def __init__(self, changes: _Optional[_Union[Changes, _Mapping]] = ..., keepalive: _Optional[_Union[Keepalive, _Mapping]] = ...) -> None: ...

class Changes(_message.Message):
    __slots__ = ("wal_start", "wal_end", "send_time", "confirm_lsn", "final", "payload", "message_length", "message_lsn", "message_xid")
    WAL_START_FIELD_NUMBER: _ClassVar[int]
    WAL_END_FIELD_NUMBER: _ClassVar[int]
    SEND_TIME_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_LSN_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LSN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_XID_FIELD_NUMBER: _ClassVar[int]
    wal_start: int
    wal_end: int
    send_time: int
    confirm_lsn: int
    final: bool
    payload: bytes
    message_length: _containers.RepeatedScalarFieldContainer[int]
    message_lsn: _containers.RepeatedScalarFieldContainer[int]
    message_xid: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, wal_start: _Optional[int] = ..., wal_end: _Optional[int] = ..., send_time: _Optional[int] = ..., confirm_lsn: _Optional[int] = ..., final: _Optional[bool] = ..., payload: _Optional[bytes] = ..., message_length: _Optional[_Iterable[int]] = ..., message_lsn: _Optional[_Iterable[int]] = ..., message_xid: _Optional[_Iterable[int]] = ...) -> None: ...

class Keepalive(_message.Message):
    __slots__ = ("wal_end", "confirm_lsn", "send_time", "reply_requested", "flush_lsn")
    WAL_END_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_LSN_FIELD_NUMBER: _ClassVar[int]
    SEND_TIME_FIELD_NUMBER: _ClassVar[int]
    REPLY_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    FLUSH_LSN_FIELD_NUMBER: _ClassVar[int]
    wal_end: int
    confirm_lsn: int
    send_time: int
    reply_requested: bool
    flush_lsn: int
    def __init__(self, wal_end: _Optional[int] = ..., confirm_lsn: _Optional[int] = ..., send_time: _Optional[int] = ..., reply_requested: _Optional[bool] = ..., flush_lsn: _Optional[int] = ...) -> None: ...
