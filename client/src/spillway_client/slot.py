"""A slot, for programs with threads: an iterator of transactions that survives whatever is cut.

::

    user's loop ◀──get── queue (bounded by bytes) ◀──put── receiver (a thread) ◀── gRPC
         │                                                     └─ connects again after a cut
         └──handled──▶ positions ──▶ requests ──▶ gRPC, whose own thread asks for them: feedback,
                                                  every confirm_seconds

The loop may take its time: the connection is served by the other two. A full queue stops the
receiver, and then HTTP/2's window the service.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import grpc

from spillway_client._v1 import slots_pb2
from spillway_client.errors import InvalidUse, ServiceError
from spillway_client.follower import (
    Final_,
    Follower,
    Mark,
    loop_is_over,
    settings_of,
    size_of,
)
from spillway_client.lsn import Lsn
from spillway_client.service import (
    CALL_TIMEOUT_S,
    Tls,
    ended_early,
    error_of,
    forget,
    get_slot_method,
    stream_method,
    too_late,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway_client._v1.change_stream_pb2 import StreamRequest, StreamResponse
    from spillway_client.arrow import Batch
    from spillway_client.follower import Item
    from spillway_client.transaction import Progress, Transaction
    from spillway_client.values import Converter

#: How long closing waits for the slot to have taken the last feedback.
CLOSE_TIMEOUT_S: Final = 10.0


class Slot:
    """A replication slot that this program consumes; one consumer at a time, as in PostgreSQL.

    ::

        with Slot("127.0.0.1:50051", "audit", publications=["audit"]) as slot:
            for tx in slot:
                for change in tx.changes:
                    print(change.kind, change.table, change.old, change.new)

    A transaction counts as handled when its loop comes back for the next one, and is then confirmed
    by itself. A loop that is left in the middle (``break``, an exception) has not handled the one
    that it was at: the next loop over this slot, or the next program, begins with it again.
    :meth:`confirm` says otherwise.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        name: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        publications: str | Sequence[str] | None = None,
        messages: bool = False,
        options: Mapping[str, str] | None = None,
        start_lsn: int | str | None = None,
        upto_lsn: int | str | None = None,
        feedback: Literal["auto", "manual"] = "auto",
        confirm_seconds: float = 1.0,
        retry_seconds: float | None = 300.0,
        queue_bytes: int = 16 << 20,
        buffer_bytes: int = 16 << 20,
        max_transaction_bytes: int | None = None,
        batch_bytes: int = 0,
        converters: Mapping[str | int, Converter] | None = None,
    ) -> None:
        """Describe what to consume; :meth:`open`, or ``with``, connects.

        Args:
            address: host:port of the service's gRPC, https://host:port of one with a certificate;
                several, where one service stands by for another: they are tried in turn.
            name: the slot.
            token: the service's bearer token.
            tls: what to verify the service with, and to show it.
            publications: whose tables; None: those in the slot's own options. Of a slot with the
                plugin pgoutput.
            messages: give what ``pg_logical_emit_message`` wrote, too.
            options: further options of the slot's plugin, over the slot's own.
            start_lsn: the position that the user stored, 0 for none yet: everything before it is
                done. Then the slot is confirmed only up to what the loop was given, and a slot that
                was confirmed further is refused (SlotAhead). None: the slot's own.
            upto_lsn: end after the last transaction whose commit record starts before this;
                otherwise never.
            feedback: ``auto``, or ``manual``: only :meth:`confirm` confirms.
            confirm_seconds: how often the service is told, at most.
            retry_seconds: for how long to try again after a cut, without success, until the error
                is raised; None: for ever.
            queue_bytes: what may wait for the loop.
            buffer_bytes: what of a transaction is kept in memory; the rest goes to a temporary
                file.
            max_transaction_bytes: a larger transaction is TransactionTooLarge; None: any size.
            batch_bytes: payload after which the service sends a response even if more is ready; 0:
                its default.
            converters: what makes values of a type's text, by the type's name (``jsonb``,
                ``public.mood``) or OID.

        Raises:
            InvalidUse: something of it can't be meant.
        """
        self._follower = Follower(
            settings_of(
                address,
                name,
                token,
                tls,
                publications=publications,
                messages=messages,
                options=dict(options or {}),
                start_lsn=start_lsn,
                upto_lsn=upto_lsn,
                feedback=feedback,
                confirm_seconds=confirm_seconds,
                retry_seconds=retry_seconds,
                queue_bytes=queue_bytes,
                buffer_bytes=buffer_bytes,
                max_transaction_bytes=max_transaction_bytes,
                batch_bytes=batch_bytes,
                converters=dict(converters or {}),
            )
        )
        self._receiver: _Receiver | None = None
        self._loops = 0

    # ---- open and close

    def open(self) -> Self:
        """Connect, and take the slot; of several addresses each is tried once. Fails at once; only
        what is cut later is tried again.

        Raises:
            ServiceError: the service refused it (UnknownSlot, SlotActive, …), or is Unavailable.
            SlotAhead: the slot was confirmed past start_lsn.
            WrongPlugin: the slot's output is not for this client.
            InvalidUse: the slot was opened by the process that this one was forked from.
        """
        self._follower.check_process()
        if self._receiver is None:
            self._receiver = _Receiver(self._follower, self._connect())
            self._follower.is_opened()
        return self

    def _connect(self) -> _Connection:
        tried = 0
        while True:
            connection = _Connection(self._follower)
            try:
                connection.take_slot()
            except ServiceError as error:
                tried += 1
                if not self._follower.tries_next(error, tried):
                    raise
            else:
                return connection

    def close(self) -> None:
        """Confirm what is handled, and give the slot back. It waits for the service to have taken
        that, 10 s at most. In a process that was forked from the one that has the slot open it
        leaves everything as it is.
        """
        if self._follower.is_inherited:
            return
        receiver, self._receiver = self._receiver, None
        self._loops += 1
        if receiver is not None:
            receiver.close()
        self._follower.is_closed()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- loops

    def __iter__(self) -> Iterator[Transaction]:
        return self.transactions()

    def transactions(self) -> Iterator[Transaction]:
        """Give the transactions, in the order of their commits, until ``upto_lsn``.

        Within a loop none is given twice and none is left out, whatever is cut meanwhile.

        Raises:
            SpillwayError: the slot can't be followed any more. A new loop tries again, from what is
                handled.
        """
        return cast("Iterator[Transaction]", self._loop("pgoutput"))

    def events(self) -> Iterator[Transaction | Progress]:
        """Give the transactions, and where the source is when it moves on without any of this
        slot's tables.

        For who stores positions: store an event's ``end_lsn`` whichever it is.

        Raises:
            SpillwayError: as :meth:`transactions`.
        """
        return cast("Iterator[Transaction | Progress]", self._loop("pgoutput", wants_progress=True))

    def batches(self) -> Iterator[Batch]:
        """Give the Arrow batches of a slot with the plugin ``arrow``.

        Raises:
            SpillwayError: as :meth:`transactions`.
        """
        return cast("Iterator[Batch]", self._loop("arrow"))

    def _loop(
        self, plugin: str, *, wants_progress: bool = False
    ) -> Iterator[Transaction | Batch | Progress]:
        receiver = self._begin_loop(plugin)
        number = self._loops
        follower = self._follower
        while True:
            follower.check_process()
            item = receiver.queue.get()
            if isinstance(item, Final_):
                return
            given = follower.give(
                item, wants_progress=wants_progress, is_last=receiver.queue.is_empty
            )
            if given is None:
                continue
            yield given
            if self._loops != number:
                raise loop_is_over()
            follower.came_back()

    def _begin_loop(self, plugin: str) -> _Receiver:
        self._follower.check_process()
        receiver = self._receiver
        if receiver is None:
            raise InvalidUse("the slot is not open", hint="Write `with Slot(...) as slot:`.")
        self._follower.check_plugin(plugin)
        self._loops = number = self._loops + 1
        # A stopped one is of an attempt that did not come off: what waits in it is behind what has
        # to come again.
        if self._follower.is_open or receiver.queue.is_failed or receiver.is_stopped:
            receiver.stop()
            self._follower.rewind()
            connection = self._reconnect()
            if self._loops != number:
                connection.close()
                raise loop_is_over()
            receiver = self._receiver = _Receiver(self._follower, connection)
        return receiver

    def _reconnect(self) -> _Connection:
        while True:
            connection = _Connection(self._follower)
            try:
                connection.take_slot()
            except ServiceError as error:
                time.sleep(self._follower.delay_after(error))
            else:
                return connection

    # ---- positions

    def confirm(self, upto: Transaction | Batch | Progress | int) -> None:
        """Count everything up to and with *upto* as handled: make it durable before. Returns at
        once.

        Raises:
            InvalidUse: the loop was not given it, or the slot is another process's.
        """
        self._follower.check_process()
        self._follower.confirm(upto)

    @property
    def name(self) -> str:
        """The slot's name."""
        return self._follower.settings.name

    @property
    def plugin(self) -> str:
        """The slot's output plugin, once it is open."""
        return self._follower.plugin

    @property
    def handled_lsn(self) -> Lsn:
        """Everything before is handled: what the service is told, at its next feedback."""
        return self._follower.flush_lsn

    @property
    def confirmed_lsn(self) -> Lsn:
        """What the service has last said to have taken of it; 0 before it has."""
        return self._follower.stored_lsn

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and made again."""
        return self._follower.reconnects


class _Queue:
    """What was received and not given, bounded by bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_final = False
        self._is_draining = False

    @property
    def is_empty(self) -> bool:
        return not self._items

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    def put(self, item: Item) -> None:
        """Add an item; wait for room first. What comes once nobody reads is dropped: it was not
        confirmed.
        """
        size = size_of(item)
        with self._changed:
            while self._bytes and self._bytes + size > self._limit_bytes and not self._is_draining:
                self._changed.wait()
            if self._is_draining:
                return
            if isinstance(item, Mark) and self._items and isinstance(self._items[-1][0], Mark):
                self._items.pop()
            self._items.append((item, size))
            self._bytes += size
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise *error* once everything is given."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def drain(self) -> None:
        """Take no more, and give no more: a loop that waits is over."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    def get(self) -> Item:
        with self._changed:
            while not self._items or self._is_draining:
                if self._is_draining:
                    raise loop_is_over()
                if self._is_final:
                    return Final_()
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            item, size = self._items.popleft()
            self._bytes -= size
            self._is_final = isinstance(item, Final_)
            self._changed.notify_all()
            return item


class _Receiver:
    """Receives in a thread, over as many connections as it takes."""

    def __init__(self, follower: Follower, connection: _Connection) -> None:
        self.queue = _Queue(follower.settings.queue_bytes)
        self._follower = follower
        self._connection: _Connection | None = connection
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        #: the service took feedback, or the connection ended
        self._stored = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(
            target=self._run, name=f"spillway-{follower.settings.name}", daemon=True
        )
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._receive()
                except ServiceError as error:
                    self._reconnect(error)
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            self.queue.fail(error)
        finally:
            self._has_ended = True
            self._stored.set()

    def _receive(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            for response in connection.responses():
                for item in self._follower.take(response):
                    connection.is_final |= isinstance(item, Final_)
                    self.queue.put(item)
                if response.HasField("keepalive"):
                    self._stored.set()
                    if response.keepalive.reply_requested:
                        connection.requests.send_now()
        except BaseException:
            connection.close()
            raise
        if not self._stopping.is_set():
            connection.close()
            raise ended_early(connection.address)

    def _reconnect(self, error: ServiceError) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self._follower.delay_after(error))
            if self._stopping.is_set():
                return
            connection = _Connection(self._follower)
            with self._lock:
                # From here on, stopping ends the attempt.
                self._connection = connection
            if self._stopping.is_set():
                connection.close()
                return
            try:
                connection.take_slot()
            except ServiceError as failed:
                error = failed
            else:
                return

    def close(self) -> None:
        """Stop once the service has taken what is handled, if it can within some seconds."""
        connection = self._connection
        wanted = self._follower.flush_lsn
        self.queue.drain()
        if connection is not None and not connection.is_closed:
            deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
            if connection.is_final:
                # The service takes the last feedback before it ends the stream.
                self._stopping.set()
                connection.requests.finish()
                self._thread.join(CLOSE_TIMEOUT_S)
            elif wanted > self._follower.stored_lsn:
                connection.requests.send_now(reply_requested=True)
                while self._follower.stored_lsn < wanted and not self._has_ended:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0 or connection.is_closed:
                        break
                    self._stored.wait(min(left_s, 0.2))
                    self._stored.clear()
        self.stop()

    def stop(self) -> None:
        """Stop at once."""
        self._stopping.set()
        self.queue.drain()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._thread.join()


class _Connection:
    """One connection that has the slot."""

    def __init__(self, follower: Follower) -> None:
        address = self._address = follower.address
        self.address = address.text
        self._follower = follower
        self.is_closed = False
        self.is_final = False
        self._channel: Any = address.open(grpc.insecure_channel, grpc.secure_channel)
        self.requests = _Requests(follower)
        self._call: Any = None
        self._first: list[StreamResponse] = []

    def take_slot(self) -> None:
        """Connect, and take the slot.

        Raises:
            SpillwayError: it can't be taken, or the connection was closed meanwhile.
        """
        follower, address = self._follower, self._address
        get_slot = get_slot_method(self._channel)
        asked = slots_pb2.GetSlotRequest(slot_name=follower.settings.name)
        try:
            follower.found(get_slot(asked, metadata=address.metadata, timeout=CALL_TIMEOUT_S))
            self._call = stream_method(self._channel)(self.requests, metadata=address.metadata)
            self._await_first()
            follower.took(get_slot(asked, metadata=address.metadata, timeout=CALL_TIMEOUT_S))
        except grpc.RpcError as error:
            self.close()
            raise error_of(error, self.address) from None
        except ValueError:
            # So gRPC calls a channel that was closed.
            if self.is_closed:
                raise ended_early(self.address) from None
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _await_first(self) -> None:
        """Wait for the service's first word, which it says when the slot is ours."""
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            self._call.cancel()

        timer = threading.Timer(CALL_TIMEOUT_S, give_up)
        timer.daemon = True
        timer.start()
        try:
            self._first.append(next(self._call))
        except StopIteration:
            raise ended_early(self.address) from None
        except grpc.RpcError:
            if is_late.is_set():
                raise too_late(self.address) from None
            raise
        finally:
            timer.cancel()

    def responses(self) -> Iterator[StreamResponse]:
        """Give what comes.

        Raises:
            ServiceError: the stream broke.
        """
        try:
            if self._first:
                yield self._first.pop()
            yield from self._call
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None

    def close(self) -> None:
        self.is_closed = True
        self.requests.close()
        if self._call is not None:
            self._call.cancel()
        self._channel.close()
        forget(self._channel)


class _Requests:
    """The client's side of the stream, as the iterator that gRPC reads in a thread of its own:
    Start, then feedback.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._is_started = False
        self._sent_lsn = Lsn(0)
        self._is_asked = False
        self._asks_reply = False
        self._is_closed = False
        self._is_finishing = False
        self._changed = threading.Condition()

    def send_now(self, *, reply_requested: bool = False) -> None:
        with self._changed:
            self._is_asked = True
            self._asks_reply |= reply_requested
            self._changed.notify()

    def finish(self) -> None:
        """Send what is handled, then end this side."""
        with self._changed:
            self._is_asked = self._is_finishing = True
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamRequest:
        with self._changed:
            if not self._is_started:
                self._is_started = True
                return self._follower.start()
            while not self._is_closed:
                if not self._is_asked and not self._is_finishing:
                    self._changed.wait(self._follower.settings.confirm_seconds)
                is_new = self._follower.flush_lsn > self._sent_lsn
                if not self._is_closed and (is_new or (self._is_asked and self._sent_lsn)):
                    return self._message()
                self._is_asked = False
                if self._is_finishing:
                    break
            raise StopIteration

    def _message(self) -> StreamRequest:
        self._sent_lsn = self._follower.flush_lsn
        reply, self._asks_reply, self._is_asked = self._asks_reply, False, False
        return self._follower.feedback(reply_requested=reply)
