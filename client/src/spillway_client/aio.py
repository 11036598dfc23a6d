"""A slot, for asyncio: as :mod:`spillway_client.slot`, with two tasks in place of the threads.

The receiver's task puts into a queue that is bounded by bytes and connects again after a cut; the
other sends feedback. Both run while the loop's body awaits something. A body that blocks the event
loop stops them: gRPC itself still answers the service's pings, so even then the slot is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self, cast

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
from spillway_client.slot import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from spillway_client._v1.change_stream_pb2 import StreamResponse
    from spillway_client.arrow import Batch
    from spillway_client.follower import Item
    from spillway_client.transaction import Progress, Transaction
    from spillway_client.values import Converter


class AsyncSlot:
    """:class:`spillway_client.Slot` for asyncio.

    ::

        async with AsyncSlot("127.0.0.1:50051", "audit", publications=["audit"]) as slot:
            async for tx in slot:
                ...
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
        """Describe what to consume; the arguments are those of :class:`spillway_client.Slot`.

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

    async def open(self) -> Self:
        """Connect, and take the slot; see :meth:`spillway_client.Slot.open`."""
        self._follower.check_process()
        if self._receiver is None:
            self._receiver = _Receiver(self._follower, await self._connect())
            self._follower.is_opened()
        return self

    async def _connect(self) -> _Connection:
        tried = 0
        while True:
            try:
                return await _connect(self._follower)
            except ServiceError as error:
                tried += 1
                if not self._follower.tries_next(error, tried):
                    raise

    async def close(self) -> None:
        """Confirm what is handled, and give the slot back; see
        :meth:`spillway_client.Slot.close`.
        """
        if self._follower.is_inherited:
            return
        receiver, self._receiver = self._receiver, None
        self._loops += 1
        if receiver is not None:
            await receiver.close()
        self._follower.is_closed()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Transaction]:
        return self.transactions()

    def transactions(self) -> AsyncIterator[Transaction]:
        """Give the transactions; see :meth:`spillway_client.Slot.transactions`."""
        return cast("AsyncIterator[Transaction]", self._loop("pgoutput"))

    def events(self) -> AsyncIterator[Transaction | Progress]:
        """Give the transactions, and progress without any; see
        :meth:`spillway_client.Slot.events`.
        """
        return cast(
            "AsyncIterator[Transaction | Progress]", self._loop("pgoutput", wants_progress=True)
        )

    def batches(self) -> AsyncIterator[Batch]:
        """Give Arrow batches; see :meth:`spillway_client.Slot.batches`."""
        return cast("AsyncIterator[Batch]", self._loop("arrow"))

    async def _loop(
        self, plugin: str, *, wants_progress: bool = False
    ) -> AsyncIterator[Transaction | Batch | Progress]:
        receiver = await self._begin_loop(plugin)
        number = self._loops
        follower = self._follower
        while True:
            follower.check_process()
            item = await receiver.queue.get()
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

    async def _begin_loop(self, plugin: str) -> _Receiver:
        self._follower.check_process()
        receiver = self._receiver
        if receiver is None:
            raise InvalidUse(
                "the slot is not open", hint="Write `async with AsyncSlot(...) as slot:`."
            )
        self._follower.check_plugin(plugin)
        self._loops = number = self._loops + 1
        # A stopped one is of an attempt that did not come off: what waits in it is behind what has
        # to come again.
        if self._follower.is_open or receiver.queue.is_failed or receiver.is_stopped:
            await receiver.stop()
            self._follower.rewind()
            connection = await self._reconnect()
            if self._loops != number:
                await connection.close()
                raise loop_is_over()
            receiver = self._receiver = _Receiver(self._follower, connection)
        return receiver

    async def _reconnect(self) -> _Connection:
        while True:
            try:
                return await _connect(self._follower)
            except ServiceError as error:
                await asyncio.sleep(self._follower.delay_after(error))

    def confirm(self, upto: Transaction | Batch | Progress | int) -> None:
        """Count everything up to and with *upto* as handled; see
        :meth:`spillway_client.Slot.confirm`.
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
        self._changed = asyncio.Condition()
        self._failure: BaseException | None = None
        self._is_final = False
        self._is_draining = False

    @property
    def is_empty(self) -> bool:
        return not self._items

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    async def put(self, item: Item) -> None:
        """Add an item; wait for room first. What comes once nobody reads is dropped: it was not
        confirmed.
        """
        size = size_of(item)
        async with self._changed:
            while self._bytes and self._bytes + size > self._limit_bytes and not self._is_draining:
                await self._changed.wait()
            if self._is_draining:
                return
            if isinstance(item, Mark) and self._items and isinstance(self._items[-1][0], Mark):
                self._items.pop()
            self._items.append((item, size))
            self._bytes += size
            self._changed.notify_all()

    async def fail(self, error: BaseException) -> None:
        """Raise *error* once everything is given."""
        async with self._changed:
            self._failure = error
            self._changed.notify_all()

    async def drain(self) -> None:
        """Take no more, and give no more: a loop that waits is over."""
        async with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    async def get(self) -> Item:
        async with self._changed:
            while not self._items or self._is_draining:
                if self._is_draining:
                    raise loop_is_over()
                if self._is_final:
                    return Final_()
                if self._failure is not None:
                    raise self._failure
                await self._changed.wait()
            item, size = self._items.popleft()
            self._bytes -= size
            self._is_final = isinstance(item, Final_)
            self._changed.notify_all()
            return item


class _Receiver:
    """Receives in a task, over as many connections as it takes."""

    def __init__(self, follower: Follower, connection: _Connection) -> None:
        self.queue = _Queue(follower.settings.queue_bytes)
        self._follower = follower
        self._connection: _Connection | None = connection
        self.is_stopped = False
        #: the service took feedback
        self._stored = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"spillway-{follower.settings.name}")

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._receive()
                except ServiceError as error:
                    await self._reconnect(error)
                else:
                    return
        except Exception as error:  # noqa: BLE001 - the loop raises it
            await self.queue.fail(error)
        finally:
            self._stored.set()

    async def _receive(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            while (response := await connection.read()) is not None:
                for item in self._follower.take(response):
                    connection.is_final |= isinstance(item, Final_)
                    await self.queue.put(item)
                if response.HasField("keepalive"):
                    self._stored.set()
                    if response.keepalive.reply_requested:
                        connection.send_now()
        except BaseException:
            await connection.close()
            raise
        if not connection.is_finishing:
            await connection.close()
            raise ended_early(connection.address)

    async def _reconnect(self, error: ServiceError) -> None:
        self._connection = None
        while True:
            await asyncio.sleep(self._follower.delay_after(error))
            try:
                self._connection = await _connect(self._follower)
            except ServiceError as failed:
                error = failed
            else:
                return

    async def close(self) -> None:
        """Stop once the service has taken what is handled, if it can within some seconds."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._finish()
        except TimeoutError:
            # What was not taken comes again.
            pass
        finally:
            await self.stop()

    async def _finish(self) -> None:
        wanted = self._follower.flush_lsn
        await self.queue.drain()
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        if connection.is_final:
            # The service takes the last feedback before it ends the stream.
            connection.finish()
            await asyncio.wait([self._task])
        elif wanted > self._follower.stored_lsn:
            connection.send_now(reply_requested=True)
            while (
                self._follower.stored_lsn < wanted
                and not self._task.done()
                and not connection.is_closed
            ):
                self._stored.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stored.wait(), 0.2)

    async def stop(self) -> None:
        """Stop at once."""
        self.is_stopped = True
        self._task.cancel()
        try:
            # To await the task itself would raise its cancellation, which looks like one of ours.
            await asyncio.wait([self._task])
        finally:
            await self.queue.drain()
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()


async def _connect(follower: Follower) -> _Connection:
    connection = _Connection(follower)
    try:
        await connection.take_slot()
    except BaseException:
        await connection.close()
        raise
    return connection


class _Connection:
    """One connection that has the slot."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._address = follower.address
        self.address = self._address.text
        self.is_closed = False
        self.is_final = False
        self.is_finishing = False
        self._channel: Any = self._address.open(grpc.aio.insecure_channel, grpc.aio.secure_channel)
        self._call: Any = None
        self._first: StreamResponse | None = None
        self._asked = asyncio.Event()
        self._asks_reply = False
        self._sent_lsn = Lsn(0)
        self._feedback: asyncio.Task[None] | None = None

    async def take_slot(self) -> None:
        """Connect, and take the slot.

        Raises:
            SpillwayError: it can't be taken.
        """
        get_slot = get_slot_method(self._channel)
        asked = slots_pb2.GetSlotRequest(slot_name=self._follower.settings.name)
        metadata = self._address.metadata
        try:
            slot = await get_slot(asked, metadata=metadata, timeout=CALL_TIMEOUT_S)
            self._follower.found(slot)
            self._call = stream_method(self._channel)(metadata=metadata)
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._write(self._follower.start())
                # The service's first word, which it says when the slot is ours.
                self._first = await self.read()
            if self._first is None:
                raise ended_early(self.address)
            slot = await get_slot(asked, metadata=metadata, timeout=CALL_TIMEOUT_S)
            self._follower.took(slot)
        except TimeoutError:
            raise too_late(self.address) from None
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None
        self._feedback = asyncio.create_task(self._send_feedback())

    async def read(self) -> StreamResponse | None:
        """Give the next response; None at the end of the stream.

        Raises:
            ServiceError: the stream broke.
        """
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None
        except asyncio.CancelledError:
            # gRPC raises it, too, when the call was cancelled by other means than this task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ended_early(self.address) from None
        return None if response is grpc.aio.EOF else response

    async def _write(self, message: Any) -> None:
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            # The call is done: reading says why.
            return

    def send_now(self, *, reply_requested: bool = False) -> None:
        self._asks_reply |= reply_requested
        self._asked.set()

    def finish(self) -> None:
        """Send what is handled, then end this side."""
        self.is_finishing = True
        self._asked.set()

    async def _send_feedback(self) -> None:
        follower = self._follower
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), follower.settings.confirm_seconds)
            is_asked = self._asked.is_set()
            self._asked.clear()
            if follower.flush_lsn > self._sent_lsn or (is_asked and self._sent_lsn):
                self._sent_lsn = follower.flush_lsn
                reply, self._asks_reply = self._asks_reply, False
                try:
                    await self._write(follower.feedback(reply_requested=reply))
                except grpc.RpcError:
                    # Reading says why.
                    return
            if self.is_finishing:
                await self._call.done_writing()
                return

    async def close(self) -> None:
        self.is_closed = True
        if self._feedback is not None:
            self._feedback.cancel()
            await asyncio.wait([self._feedback])
            if not self._feedback.cancelled():
                # What ended it reading has said.
                self._feedback.exception()
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()
        forget(self._channel)
