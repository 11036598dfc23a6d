"""pgjdbc, to a real server and to the service: what each says is compared."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.java_clients import Jvm

_TIMEOUT_S = 60.0
#: How often the driver reports by itself what it has.
STATUS_INTERVAL_MS = 100


@dataclass(frozen=True)
class Door:
    """What an application changes to read from another server."""

    port: int
    user: str
    database: str
    password: str = "a password"
    host: str = "127.0.0.1"


class Message(NamedTuple):
    """A message of the output plugin, with the LSN that the driver has of it."""

    lsn: str
    data: bytes


class Failure(NamedTuple):
    """What an application sees of an SQLException that a server made."""

    sqlstate: str
    message: str


def connect(jvm: Jvm, door: Door, *, replication: bool = False, **more: str) -> Any:
    """Return a ``java.sql.Connection``; with *replication* it is for ``getReplicationAPI``."""
    asked = {"user": door.user, "password": door.password, **more}
    if replication:
        # As the driver's documentation has it.
        asked |= {
            "replication": "database",
            "assumeMinServerVersion": "9.4",
            "preferQueryMode": "simple",
        }
    return connect_with(jvm, f"jdbc:postgresql://{door.host}:{door.port}/{door.database}", asked)


def connect_with(jvm: Jvm, url: str, asked: Mapping[str, str]) -> Any:
    """Return a ``java.sql.Connection``."""
    properties = jvm.names.java.util.Properties()
    for name, value in asked.items():
        properties.setProperty(name, value)
    return jvm.names.java.sql.DriverManager.getConnection(url, properties)


def stream(
    jvm: Jvm, connection: Any, slot: str, options: Mapping[str, str], start: str | None = None
) -> Any:
    """Begin reading *slot*; without *start* from what is confirmed."""
    builder = connection.getReplicationAPI().replicationStream().logical().withSlotName(slot)
    for name, value in options.items():
        builder = builder.withSlotOption(name, value)
    if start is not None:
        sequence_number = jvm.names.org.postgresql.replication.LogSequenceNumber
        builder = builder.withStartPosition(sequence_number.valueOf(start))
    milliseconds = jvm.names.java.util.concurrent.TimeUnit.MILLISECONDS
    return builder.withStatusInterval(STATUS_INTERVAL_MS, milliseconds).start()


def pending(stream: Any) -> Message | None:
    """Take a message that is there."""
    buffer = stream.readPending()
    if buffer is None:
        return None
    data = bytes(buffer.array())[buffer.arrayOffset() :]
    return Message(stream.getLastReceiveLSN().asString(), data)


def read_until(stream: Any, reached: Callable[[list[Message]], bool]) -> list[Message]:
    """Read until what was read suffices."""
    messages: list[Message] = []
    deadline = time.monotonic() + _TIMEOUT_S
    while not reached(messages):
        assert time.monotonic() < deadline, messages[-3:]
        message = pending(stream)
        if message is None:
            time.sleep(0.005)
        else:
            messages.append(message)
    return messages


def confirm(stream: Any) -> None:
    """Say that all that was read is kept, and ask for an answer."""
    received = stream.getLastReceiveLSN()
    stream.setAppliedLSN(received)
    stream.setFlushedLSN(received)
    stream.forceUpdateStatus()


def rows(connection: Any, sql: str, *parameters: Any) -> list[tuple[str | None, ...]]:
    """Run a query by a prepared statement of the extended protocol; values are text."""
    statement = connection.prepareStatement(sql)
    try:
        for number, value in enumerate(parameters, 1):
            statement.setObject(number, value)
        return all_rows(statement.executeQuery())
    finally:
        statement.close()


def all_rows(result: Any) -> list[tuple[str | None, ...]]:
    """Return what a ``java.sql.ResultSet`` has, as text."""
    width = result.getMetaData().getColumnCount()
    found = []
    while result.next():
        found.append(tuple(result.getString(number) for number in range(1, width + 1)))
    return found


def columns(connection: Any, sql: str, *parameters: Any) -> list[tuple[str, str]]:
    """Return names and types of a query's result, as the driver has them without running it."""
    statement = connection.prepareStatement(sql)
    try:
        for number, value in enumerate(parameters, 1):
            statement.setObject(number, value)
        described = statement.getMetaData()
        return [
            (described.getColumnLabel(number), described.getColumnTypeName(number))
            for number in range(1, described.getColumnCount() + 1)
        ]
    finally:
        statement.close()


def failure(run: Callable[..., Any], *arguments: Any) -> Failure | None:
    """Run something and return the server's error, if it made one."""
    try:
        run(*arguments)
    except Py4JJavaError as error:
        exception = error.java_exception
        message = exception.getServerErrorMessage()
        return Failure(exception.getSQLState(), message.getMessage() if message else "")
    return None
