"""Debezium's embedded engine, as an application that keeps what it is given.

The events are in Python before they are acknowledged, so that an engine that is killed leaves what
its application had: after a restart some may come again, as Debezium promises, and none may lack.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.java_clients import Jvm
    from harness.pgjdbc import Door

_TIMEOUT_S = 120.0
#: Of an event, what two engines that read the same WAL don't share: when they made it.
_CLOCK = frozenset({"ts_ms", "ts_us", "ts_ns"})
#: Of the source of a snapshot's row: when, and at which place in WAL and among other rows, it was
#: read.
_READ = _CLOCK | {"lsn", "txId", "sequence", "snapshot"}


@dataclass(frozen=True)
class Event:
    """A change event: its topic, and key and value as JSON made them."""

    topic: str
    key: Any
    value: Any

    @property
    def read(self) -> bool:
        """Whether a snapshot made it."""
        return bool(self.value and self.value.get("op") == "r")

    @property
    def lsn(self) -> int:
        """The LSN of the change, or of the snapshot."""
        return int(self.value["source"]["lsn"])

    def compared(self, *, restarted: bool = False) -> tuple[str, str, str]:
        """What must be equal, whatever server it came from; of an engine that was *restarted* in
        between without what it has of the commit before.
        """
        value = self.value
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if name not in _CLOCK}
            left_out = _READ if self.read else {"sequence"} if restarted else frozenset()
            value["source"] = {
                name: one for name, one in value["source"].items() if name not in left_out
            }
        return self.topic, json.dumps(self.key), json.dumps(value, sort_keys=True)


@dataclass
class Application:
    """Takes the engine's batches; Py4J calls the methods that have Java's names."""

    events: list[Event] = field(default_factory=list)
    failure: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802 - Java's name
        for record in records:
            key, value = record.key(), record.value()
            with self.arrived:
                self.events.append(
                    Event(
                        record.destination(),
                        None if key is None else json.loads(key),
                        None if value is None else json.loads(value),
                    )
                )
                self.arrived.notify_all()
            committer.markProcessed(record)
        committer.markBatchFinished()

    def supportsTombstoneEvents(self) -> bool:  # noqa: N802 - as above
        return True

    def handle(self, success: bool, message: str | None, error: Any) -> None:
        """The engine has ended."""
        if not success:
            self.failure = f"{message}: {error}"
        self.ended.set()
        with self.arrived:
            self.arrived.notify_all()

    class Java:
        implements = (
            "io.debezium.engine.DebeziumEngine$ChangeConsumer",
            "io.debezium.engine.DebeziumEngine$CompletionCallback",
        )


class DebeziumEngine:
    """An engine that runs in *jvm*, and hands its events to *application*."""

    def __init__(
        self, jvm: Jvm, properties: Mapping[str, str], application: Application | None = None
    ) -> None:
        self.application = application or Application()
        self._jvm = jvm
        given = jvm.names.java.util.Properties()
        for name, value in properties.items():
            given.setProperty(name, value)
        self._engine = (
            jvm.names.io.debezium.engine.DebeziumEngine.create(
                jvm.class_named("io.debezium.engine.format.Json")
            )
            .using(given)
            .using(self.application)
            .notifying(self.application)
            .build()
        )
        self._thread = jvm.names.java.lang.Thread(self._engine)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        # One that is at its beginning can't be closed; the JVM's end is enough.
        if failure is None and self._jvm.process.poll() is None:
            self.close()

    @property
    def events(self) -> list[Event]:
        return self.application.events

    def close(self) -> None:
        """Stop it as its API does: what was handed over is confirmed."""
        if not self.application.ended.is_set():
            self._engine.close()
        self._thread.join()

    def wait_until(self, reached: Callable[[list[Event]], bool]) -> None:
        """Wait until the events that are here suffice."""
        deadline = time.monotonic() + _TIMEOUT_S
        with self.application.arrived:
            while not reached(self.application.events):
                assert not self.application.ended.is_set(), self.application.failure
                left = deadline - time.monotonic()
                assert left > 0, f"{len(self.events)} events came: {self.events[-3:]}"
                self.application.arrived.wait(left)


def kept_offsets(directory: Path) -> dict[str, str]:
    """The properties of an embedded engine that a connector in Kafka Connect has not: its offsets
    are kept in *directory*, and its events are plain JSON.
    """
    directory.mkdir(exist_ok=True)
    return {
        "name": "engine",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "200",
        "poll.interval.ms": "50",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }


def properties(door: Door, directory: Path, **more: str) -> dict[str, str]:
    """The configuration of a connector that follows ``public`` by pgoutput; in *more*, names have
    ``_`` for ``.``.
    """
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "shop",
        "database.hostname": door.host,
        "database.port": str(door.port),
        "database.user": door.user,
        "database.password": door.password,
        "database.dbname": door.database,
        "plugin.name": "pgoutput",
        "slot.name": "debezium",
        "snapshot.mode": "initial",
        **kept_offsets(directory),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
