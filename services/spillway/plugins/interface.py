"""The contract between a slot's reader and an output plugin.

A plugin turns transactions into messages at delivery. It is called per transaction and per chunk of
changes, never per row from Python: the loop over a chunk is in a kernel. A plugin instance serves
one reader, is called from one thread at a time and keeps no state that outlives it.

Call order, repeated in the order of ``header.final_lsn`` (``decoding/transaction.py`` has the kinds
of headers)::

    begin(header, out)         → changes(header, chunk, relations, out)* → commit(header, out)
    begin_prepare(header, out) → changes(…)*                             → prepare(header, out)
    commit_prepared(header, out)  |  rollback_prepared(header, out)
    stream_start(header, out)  → changes(…)*                             → stream_stop(header, out)
    stream_abort(header, out)
    stream_commit(header, out)  |  stream_prepare(header, out)

The second and third line happen only to a plugin whose ``two_phase`` is true, for transactions that
its ``filter_prepare`` does not refuse; the others are given whole, with begin and commit, at COMMIT
PREPARED. The last three lines happen only to a plugin whose ``streaming`` is true. What was not
streamed yet when a streamed transaction ends comes in one more part before stream_commit or
stream_prepare. During ``changes`` within a part, a change's own xid is the subtransaction's.

A transaction that changed tables' definitions has INVALIDATION changes also where its other changes
were handed out before: ``changes`` with nothing else comes then before commit_prepared,
rollback_prepared and stream_abort, and before a stream_commit or stream_prepare with nothing left
to stream, without an opening call.

``transactions(run, out, …)`` stands for the first line, repeated.

``flush(out)`` may come between transactions: emit whatever was held back to make larger messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.messages import Notice


#: How kernels are told that there is no limit on the number of messages.
NO_MESSAGE_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What a plugin may know of its surroundings."""

    slot_name: str
    database: str
    #: PG_VERSION_NUM of the source, 180004 for one
    server_version_num: int
    #: Python's codec of the database's encoding (``pg/encoding.py``). Text in changes is in it,
    #: messages are in UTF-8; a byte that is no character of it passes unchanged.
    encoding: str = "utf-8"
    #: the slot was created with two_phase
    two_phase: bool = False
    #: The source captures only what these publish, so that others' tables are not in the changes;
    #: () for everything.
    captured_publications: tuple[str, ...] = ()


class OutputPlugin(ABC):
    """Base of every output plugin; found by name in ``plugins.registry``."""

    name: ClassVar[str]
    #: true when messages are bytes that only a program reads (REST shows them as ``\\x…``); an
    #: instance's options may decide it
    binary: bool
    #: wants prepared transactions at their PREPARE; the slot and the instance's options decide it
    two_phase: bool = False
    #: wants large transactions while they are in progress; the instance's options decide it
    streaming: bool = False
    #: hears nothing of prepared transactions of which nothing is replayed
    #: (``header.prepared.empty``): the source's release decides it, see ``create_plugin``
    skips_empty_prepared: bool = False

    @abstractmethod
    def __init__(self, options: Mapping[str, str], context: PluginContext) -> None:
        """Check *options*, PostgreSQL's startup callback.

        Raises:
            InvalidOption: an option or its value is not known; the text is PostgreSQL's own.
        """

    @classmethod
    def validate(cls, options: Mapping[str, str], context: PluginContext) -> None:
        """Check options that a slot is to keep, before there is anything to read; a reader's come
        over them.

        A plugin with options that must be given overrides this: they may come with the reader.

        Raises:
            InvalidOption: an option or its value is not known.
        """
        cls(options, context).shutdown()

    @abstractmethod
    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Begin a transaction, or (kind MESSAGE) one non-transactional message."""

    @abstractmethod
    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Encode a chunk of the change format; pass over actions that are not this plugin's matter.

        The same id may mean another descriptor later on: compare the descriptor's identity before
        using what was compiled for an id.
        """

    @abstractmethod
    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """End what ``begin`` began."""

    def transactions(
        self,
        run: TransactionRun,
        out: MessageBuffer,
        batch_bytes: int,
        message_limit: int | None = None,
    ) -> None:
        """Encode ordinary transactions from *run*, begin to commit, until one of them ends with
        enough in *out*.

        Enough are *batch_bytes* of payload, or *message_limit* messages. The same as the three
        calls for each; plugins whose kernel can go through a run by itself override it.
        """
        for transaction in run:
            header = transaction.header
            self.begin(header, out)
            for chunk in transaction.chunks():
                self.changes(header, chunk, transaction.relations, out)
            self.commit(header, out)
            if out.nbytes >= batch_bytes or (
                message_limit is not None and out.count >= message_limit
            ):
                break

    def flush(self, out: MessageBuffer) -> None:  # noqa: B027 - most hold nothing back
        """Emit what was held back."""

    def take_notices(self) -> tuple[Notice, ...]:
        """Return what its consumer is to be warned of, of messages since this was asked last."""
        return ()

    def shutdown(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what was taken; called once, when the reader closes, on every path. Must not
        raise.
        """

    # ---- sharing

    def state(self) -> object | None:
        """Return what the messages of transactions to come depend on, beside options and the
        transactions; None: not known.

        Asked between two transactions, after ``flush``. Two instances with equal options and equal
        states make the same messages of the same transactions, and have equal states afterwards.
        Readers at the same place then need only one of them.
        """
        return None

    def resume(self, state: object) -> None:
        """Go on as an instance that returned *state*; called before anything else, never for
        None.
        """
        raise NotImplementedError

    # ---- two_phase

    def filter_prepare(self, header: TransactionHeader) -> bool:  # noqa: ARG002
        """Say whether to take this prepared transaction only at its COMMIT PREPARED, as
        PostgreSQL's callback.

        Asked at each of its records; the answer may depend on ``header.xid`` and
        ``header.prepared.gid`` alone.
        """
        return False

    def begin_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Begin a prepared transaction."""
        raise NotImplementedError

    def prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """End what ``begin_prepare`` began.

        PostgreSQL 18.0 to 18.4 call it without a beginning for a transaction of which nothing is
        replayed (``header.prepared.empty``), and so do we for a source of these versions.
        """
        raise NotImplementedError

    def commit_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a prepared transaction committed."""
        raise NotImplementedError

    def rollback_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a prepared transaction was rolled back."""
        raise NotImplementedError

    # ---- streaming

    def stream_start(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Begin a part; ``header.streamed.parts == 1`` for a transaction's first."""
        raise NotImplementedError

    def stream_stop(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """End a part."""
        raise NotImplementedError

    def stream_abort(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that ``header.streamed.aborted_xid`` aborted."""
        raise NotImplementedError

    def stream_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a streamed transaction was prepared."""
        raise NotImplementedError

    def stream_commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Say that a streamed transaction committed."""
        raise NotImplementedError
