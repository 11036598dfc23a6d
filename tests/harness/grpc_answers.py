"""What gRPC says of how things are, held against REST: the same calls, and the same values."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from spillway.pg.lsn import Lsn
from spillway.v1 import alerts_pb2, alerts_pb2_grpc, watch_pb2, watch_pb2_grpc
from spillway.v1.subscriptions_pb2 import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Rest = Callable[..., Any]

#: Fields that have another name here.
_NAMES: Final = {"sender": "from"}


class Answers:
    """AlertService and WatchService of a service."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.channel = grpc.insecure_channel(address)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._stubs = (
            alerts_pb2_grpc.AlertServiceStub(self.channel),  # type: ignore[no-untyped-call]
            watch_pb2_grpc.WatchServiceStub(self.channel),  # type: ignore[no-untyped-call]
        )

    def call(self, method: str, request: Any) -> dict[str, Any]:
        """Call a method; give what came, in REST's form, the parts put together."""
        stub = next(stub for stub in self._stubs if hasattr(stub, method))
        answer = getattr(stub, method)(request, metadata=self._metadata)
        if hasattr(answer, "__iter__"):
            return _joined(as_rest(part) for part in answer)
        found: dict[str, Any] = as_rest(answer)
        return found

    def code(self, method: str, request: Any) -> str:
        """Call a method that is refused; give the error's code."""
        try:
            self.call(method, request)
        except grpc.RpcError as error:
            return str(dict(error.trailing_metadata())["spillway-code"])
        raise AssertionError(method)

    def close(self) -> None:
        self.channel.close()


def check_equal(answers: Answers, rest: Rest) -> None:
    """Insist on it that every list that both have is the same.

    Args:
        answers: gRPC's.
        rest: gets a path below ``/v1``, and parameters.
    """
    for method, request, path in (
        ("ListAlerts", alerts_pb2.ListAlertsRequest(), "/alerts"),
        ("ListAlertMessages", alerts_pb2.ListAlertMessagesRequest(), "/alerts/messages"),
        ("ListAlertChannels", alerts_pb2.ListAlertChannelsRequest(), "/alerts/channels"),
        ("ListAlertRules", alerts_pb2.ListAlertRulesRequest(), "/alerts/rules"),
        ("ListEvents", watch_pb2.ListEventsRequest(), "/events"),
        ("ListSchemaChanges", watch_pb2.ListSchemaChangesRequest(), "/schema-changes"),
    ):
        check_one(answers.call(method, request), rest(path))


def check_one(answer: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Insist on it that *answer*, of gRPC, is what REST *said*."""
    assert answer == _like(said, answer)


def as_rest(message: Any) -> Any:
    """Give a message in REST's form: null for what is not set, times as such, lists as such."""
    if isinstance(message, Timestamp):
        return message.ToDatetime(UTC)
    if isinstance(message, Struct):
        return MessageToDict(message)
    if isinstance(message, Names):
        return list(message.names)
    if isinstance(message, watch_pb2.MetricValues):
        return [as_rest(one)["value"] for one in message.values]
    if not hasattr(message, "DESCRIPTOR"):
        return message
    form: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        name = _NAMES.get(field.name, field.name)
        if field.is_repeated:
            is_map = hasattr(value, "items")
            form[name] = (
                {key: as_rest(value[key]) for key in value} if is_map else list(map(as_rest, value))
            )
        elif field.has_presence and not message.HasField(field.name):
            form[name] = None
        else:
            form[name] = as_rest(value)
    return form


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    every = list(parts)
    return {
        name: list(itertools.chain.from_iterable(part[name] for part in every))
        if isinstance(value, list)
        else value
        for name, value in every[-1].items()
    }


def _like(said: Any, answer: Any) -> Any:
    """Give what REST said with gRPC's types: its texts of times and LSNs, 0 and [] for null."""
    if isinstance(answer, datetime):
        return datetime.fromisoformat(said)
    if said is None and answer in (0, []):
        return answer
    if isinstance(said, str) and isinstance(answer, int):
        return int(Lsn.parse(said))
    if isinstance(said, dict) and isinstance(answer, dict):
        return {key: _like(value, answer.get(key)) for key, value in said.items()}
    if isinstance(said, list) and isinstance(answer, list) and len(said) == len(answer):
        return [_like(*pair) for pair in zip(said, answer, strict=True)]
    return said
