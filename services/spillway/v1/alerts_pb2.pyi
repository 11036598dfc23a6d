import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from spillway.v1 import subscriptions_pb2 as _subscriptions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAlertsRequest(_message.Message):
    __slots__ = ("state", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: str
    limit: int
    def __init__(self, state: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAlertsResponse(_message.Message):
    __slots__ = ("alerts",)
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    alerts: _containers.RepeatedCompositeFieldContainer[Alert]
    def __init__(self, alerts: _Optional[_Iterable[_Union[Alert, _Mapping]]] = ...) -> None: ...

class Alert(_message.Message):
    __slots__ = ("id", "state", "rule", "code", "subject", "source", "severity", "title", "detail", "remedy", "link", "seen_at", "fired_at", "resolved_at", "told_at", "told")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    FIRED_AT_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_FIELD_NUMBER: _ClassVar[int]
    TOLD_AT_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    id: int
    state: str
    rule: str
    code: str
    subject: str
    source: str
    severity: str
    title: str
    detail: str
    remedy: str
    link: str
    seen_at: _timestamp_pb2.Timestamp
    fired_at: _timestamp_pb2.Timestamp
    resolved_at: _timestamp_pb2.Timestamp
    told_at: _timestamp_pb2.Timestamp
    told: int
    def __init__(self, id: _Optional[int] = ..., state: _Optional[str] = ..., rule: _Optional[str] = ..., code: _Optional[str] = ..., subject: _Optional[str] = ..., source: _Optional[str] = ..., severity: _Optional[str] = ..., title: _Optional[str] = ..., detail: _Optional[str] = ..., remedy: _Optional[str] = ..., link: _Optional[str] = ..., seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resolved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., told_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., told: _Optional[int] = ...) -> None: ...

class ListAlertMessagesRequest(_message.Message):
    __slots__ = ("state", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: str
    limit: int
    def __init__(self, state: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAlertMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[AlertMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[AlertMessage, _Mapping]]] = ...) -> None: ...

class AlertMessage(_message.Message):
    __slots__ = ("id", "message_id", "alert_id", "rule", "channel", "reason", "state", "title", "attempts", "error", "created_at", "finished_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ALERT_ID_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    message_id: str
    alert_id: int
    rule: str
    channel: str
    reason: str
    state: str
    title: str
    attempts: int
    error: str
    created_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[int] = ..., message_id: _Optional[str] = ..., alert_id: _Optional[int] = ..., rule: _Optional[str] = ..., channel: _Optional[str] = ..., reason: _Optional[str] = ..., state: _Optional[str] = ..., title: _Optional[str] = ..., attempts: _Optional[int] = ..., error: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListAlertChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAlertChannelsResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[AlertChannel]
    def __init__(self, channels: _Optional[_Iterable[_Union[AlertChannel, _Mapping]]] = ...) -> None: ...

class GetAlertChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AlertChannel(_message.Message):
    __slots__ = ("name", "kind", "enabled", "ui_url", "url", "host", "port", "security", "user", "sender", "to", "secrets", "created_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    UI_URL_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    enabled: bool
    ui_url: str
    url: str
    host: str
    port: int
    security: str
    user: str
    sender: str
    to: _containers.RepeatedScalarFieldContainer[str]
    secrets: _containers.RepeatedScalarFieldContainer[str]
    created_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., ui_url: _Optional[str] = ..., url: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., security: _Optional[str] = ..., user: _Optional[str] = ..., sender: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., secrets: _Optional[_Iterable[str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PutAlertChannelRequest(_message.Message):
    __slots__ = ("name", "kind", "enabled", "ui_url", "url", "secret", "authorization", "host", "port", "security", "user", "password", "sender", "to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    UI_URL_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    enabled: bool
    ui_url: str
    url: str
    secret: str
    authorization: str
    host: str
    port: int
    security: str
    user: str
    password: str
    sender: str
    to: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., ui_url: _Optional[str] = ..., url: _Optional[str] = ..., secret: _Optional[str] = ..., authorization: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., security: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ..., sender: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ...) -> None: ...

class TestAlertChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TestAlertChannelResponse(_message.Message):
    __slots__ = ("channel", "delivered")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    channel: str
    delivered: bool
    def __init__(self, channel: _Optional[str] = ..., delivered: _Optional[bool] = ...) -> None: ...

class DropAlertChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropAlertChannelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAlertRulesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAlertRulesResponse(_message.Message):
    __slots__ = ("rules", "codes")
    class CodesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RULES_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[AlertRule]
    codes: _containers.ScalarMap[str, str]
    def __init__(self, rules: _Optional[_Iterable[_Union[AlertRule, _Mapping]]] = ..., codes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetAlertRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AlertRule(_message.Message):
    __slots__ = ("name", "enabled", "codes", "sources", "subjects", "severity", "limits", "hold_s", "clear_s", "repeat_s", "quiet", "channels", "created_at")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    CLEAR_S_FIELD_NUMBER: _ClassVar[int]
    REPEAT_S_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    enabled: bool
    codes: _subscriptions_pb2.Names
    sources: _subscriptions_pb2.Names
    subjects: _subscriptions_pb2.Names
    severity: str
    limits: _containers.ScalarMap[str, float]
    hold_s: int
    clear_s: int
    repeat_s: int
    quiet: _struct_pb2.Struct
    channels: _containers.RepeatedScalarFieldContainer[str]
    created_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., enabled: _Optional[bool] = ..., codes: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., sources: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., subjects: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., severity: _Optional[str] = ..., limits: _Optional[_Mapping[str, float]] = ..., hold_s: _Optional[int] = ..., clear_s: _Optional[int] = ..., repeat_s: _Optional[int] = ..., quiet: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., channels: _Optional[_Iterable[str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PutAlertRuleRequest(_message.Message):
    __slots__ = ("name", "enabled", "codes", "sources", "subjects", "severity", "limits", "hold_s", "clear_s", "repeat_s", "quiet", "channels")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    CLEAR_S_FIELD_NUMBER: _ClassVar[int]
    REPEAT_S_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    enabled: bool
    codes: _subscriptions_pb2.Names
    sources: _subscriptions_pb2.Names
    subjects: _subscriptions_pb2.Names
    severity: str
    limits: _containers.ScalarMap[str, float]
    hold_s: int
    clear_s: int
    repeat_s: int
    quiet: _struct_pb2.Struct
    channels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., enabled: _Optional[bool] = ..., codes: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., sources: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., subjects: _Optional[_Union[_subscriptions_pb2.Names, _Mapping]] = ..., severity: _Optional[str] = ..., limits: _Optional[_Mapping[str, float]] = ..., hold_s: _Optional[int] = ..., clear_s: _Optional[int] = ..., repeat_s: _Optional[int] = ..., quiet: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., channels: _Optional[_Iterable[str]] = ...) -> None: ...

class DropAlertRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropAlertRuleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
