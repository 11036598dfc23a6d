"""Output plugins written as PostgreSQL's are: one callback for each thing that happens, one call a
change.

A plugin derives from :class:`CallbackPlugin`, overrides ``change`` and what else it cares for, and
is registered by an entry point (``plugins/registry.py``). ``callback_driver.py`` calls it. Compared
with an :class:`~spillway.plugins.interface.OutputPlugin`, which is handed whole chunks for its
kernel, it is easy to write and slow: every change costs some Python objects and calls, and a row
that is looked at costs a string a value.

Order of calls, repeated for each transaction; in brackets what need not come::

    startup                                                  once, before all others
    begin  (change | truncate | message)*  commit            a committed transaction
    message                                                  non-transactional, between transactions
    begin_prepare  (change | truncate | message)*  prepare   two_phase only
    commit_prepared | rollback_prepared                      two_phase only
    (stream_start  (stream_change | …)*  stream_stop)*       streaming only; then one of
      stream_abort* | stream_prepare | stream_commit
    shutdown                                                 once, after all others, on every path

A callback writes messages with :meth:`CallbackPlugin.write`, any number of them. What it raises
ends the reader with ``plugin_failed``, which names plugin, callback and LSN; nothing of that batch
is confirmed, so that it comes again. Delivery is at least once: after a failure or a restart the
same transactions may come again, to a new instance. All calls of one instance come from one thread
at a time.

Source: struct OutputPluginCallbacks, src/include/replication/output_plugin.h
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from spillway.errors import DecodingError, InvalidOption

if TYPE_CHECKING:
    from spillway._kernels.encoders.row_text import RowPrinter
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.pg.lsn import Lsn
    from spillway.pg.text_settings import TextSettings
    from spillway.plugins.interface import PluginContext

#: What ``filter_by_origin`` is given for a change that came through an origin within a transaction
#: that did not: which one it was is not known. It is PostgreSQL's DoNotReplicateId, which no origin
#: ever has.
UNKNOWN_ORIGIN: Final = 0xFFFF


class Unchanged(Enum):
    """The type of :data:`UNCHANGED_TOAST`."""

    UNCHANGED_TOAST = "unchanged-toast-datum"


#: The value of a column that UPDATE left alone and that is stored out of line: it is not in WAL.
UNCHANGED_TOAST: Final = Unchanged.UNCHANGED_TOAST

#: What a row has for a column: text as the type's output function prints it, None for null.
Value = str | None | Unchanged


class Action(StrEnum):
    """What a change did to its row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Row(Mapping[str, Value]):
    """A row: column → value, in the table's order. Dropped and virtual generated columns are left
    out.

    Nothing is deformed or printed until the first value is asked for; then all are. A row may be
    kept for longer than the callback; it is read by one thread at a time.
    """

    __slots__ = ("_change", "_columns", "_lsn", "_old", "_printer", "_values")

    def __init__(
        self,
        printer: RowPrinter[Unchanged],
        change: bytes,
        lsn: Lsn,
        *,
        old: bool = False,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        """Stand for the new or the *old* row of *change*; with *columns*, for these of it."""
        self._printer = printer
        self._change = change
        self._lsn = lsn
        self._old = old
        self._columns = printer.columns if columns is None else columns
        self._values: dict[str, Value] | None = None

    def _read(self) -> dict[str, Value]:
        if self._values is None:
            try:
                texts = self._printer.texts(self._change, self._old)
            except DecodingError as error:
                relation = f"{self._printer.descriptor.schema}.{self._printer.descriptor.name}"
                raise DecodingError(
                    f"table {relation}, change at {self._lsn}: {error.message}",
                    hint=error.hint,
                    **{"lsn": str(self._lsn), "relation": relation, **error.details},
                ) from error
            every = dict(zip(self._printer.columns, texts, strict=True))
            self._values = {name: every[name] for name in self._columns}
        return self._values

    def __getitem__(self, column: str) -> Value:
        return self._read()[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Row({self._read()!r})"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row."""

    action: Action
    #: start of its WAL record
    lsn: Lsn
    #: the (sub)transaction that made it
    xid: int
    #: the row afterwards; None for DELETE
    new: Row | None
    #: the row before, as far as WAL has it: all of it under REPLICA IDENTITY FULL, the identity's
    #: columns (the primary key's by default) for a DELETE and for an UPDATE that changes them; None
    #: otherwise
    old: Row | None
    #: ``old`` has the replica identity's columns only
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncation:
    """A TRUNCATE of one or more tables."""

    lsn: Lsn
    xid: int
    cascade: bool
    restart_seqs: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What pg_logical_emit_message was given."""

    #: end of its WAL record
    lsn: Lsn
    xid: int
    transactional: bool
    prefix: str
    content: bytes


class CallbackPlugin:
    """Base of output plugins with one callback for each thing that happens; all but ``change`` may
    be left out.

    ``txn`` is a :class:`~spillway.decoding.transaction.TransactionHeader`: xid, LSNs, commit_time,
    origin_id and origin_name, what was said at PREPARE. ``relation`` is a
    :class:`~spillway.catalog.descriptor.RelationDescriptor` as of the change.
    """

    #: set by ``startup``: messages are bytes that only a program reads
    binary: bool = False
    #: the callbacks of two-phase commit are called: all are there, and the slot has two_phase;
    #: ``startup`` may refuse
    two_phase: bool = False
    #: large transactions come while they are in progress: all callbacks are there; ``startup`` may
    #: refuse
    streaming: bool = False

    context: PluginContext
    #: the settings that values are printed under, from the slot's options
    settings: TextSettings

    _TWO_PHASE: ClassVar = ("begin_prepare", "prepare", "commit_prepared", "rollback_prepared")
    _STREAMING: ClassVar = (
        "stream_start", "stream_stop", "stream_abort", "stream_commit", "stream_change",
    )  # fmt: skip

    def __init_subclass__(cls) -> None:
        """Refuse a class that has some callbacks of a group but not all, as PostgreSQL does.

        Raises:
            TypeError: it names what is missing.
        """
        super().__init_subclass__()
        two_phase, streaming = cls._group(cls._TWO_PHASE), cls._group(cls._STREAMING)
        if two_phase and streaming and not cls._has("stream_prepare"):
            raise TypeError(f"{cls.__name__} has two_phase and streams, but no stream_prepare")

    @classmethod
    def _has(cls, callback: str) -> bool:
        return getattr(cls, callback) is not getattr(CallbackPlugin, callback)

    @classmethod
    def _group(cls, callbacks: tuple[str, ...]) -> bool:
        """Say whether the callbacks of a group are there."""
        missing = [name for name in callbacks if not cls._has(name)]
        if missing and len(missing) < len(callbacks):
            raise TypeError(f"{cls.__name__} has {', '.join(callbacks)} only in part: "
                            f"{', '.join(missing)} is missing")  # fmt: skip
        return not missing

    # ---- what a plugin calls

    def write(self, message: str | bytes) -> None:  # noqa: ARG002 - the driver replaces it
        """Send one message; text goes out as UTF-8.

        It bears the LSN and xid that PostgreSQL gives messages of the callback at hand: a change's
        own LSN, the first one of the transaction in begin, the end of the record in commit and its
        like.

        Raises:
            RuntimeError: called in startup, shutdown or a filter.
        """
        raise RuntimeError("messages are written in callbacks between startup and shutdown only")

    # ---- what a plugin overrides

    def startup(self, options: Mapping[str, str]) -> None:
        """Take the slot's options; settings of text output (TimeZone, …) are taken out before.

        Called once an instance. When the slot is created, one instance is made to check the options
        and shut down at once. By default no option is known.

        Raises:
            InvalidOption: an option, or its value, is not known.
        """
        for option, value in options.items():
            raise InvalidOption(
                f'option "{option}" = "{value}" is unknown',
                hint="This plugin knows the settings of text output only: TimeZone, DateStyle and "
                "so on.",
                option=option,
            )

    def shutdown(self) -> None:
        """Let go of what startup took; called once, however the reader ended. What it raises is
        only logged.
        """

    def filter_by_origin(self, origin_id: int, origin_name: str) -> bool:  # noqa: ARG002
        """Say whether to leave out what came through this origin; 0 and '' for what came through
        none.
        """
        return False

    def begin(self, txn: TransactionHeader) -> None:
        """Begin a transaction."""

    def change(self, txn: TransactionHeader, relation: RelationDescriptor, change: Change) -> None:
        """Take a change of one row."""
        raise NotImplementedError

    def truncate(
        self, txn: TransactionHeader, relations: list[RelationDescriptor], truncation: Truncation
    ) -> None:
        """Take a TRUNCATE."""

    def message(self, txn: TransactionHeader, message: LogicalMessage) -> None:
        """Take a logical message; a non-transactional one comes by itself, in a *txn* of kind
        MESSAGE.
        """

    def commit(self, txn: TransactionHeader) -> None:
        """End a transaction."""

    def filter_prepare(self, xid: int, gid: str) -> bool:  # noqa: ARG002
        """Say whether to be given this prepared transaction only when it is committed.

        Asked again at each of its records: the answer must always be the same.
        """
        return False

    def begin_prepare(self, txn: TransactionHeader) -> None:
        """Begin a prepared transaction."""

    def prepare(self, txn: TransactionHeader) -> None:
        """End what ``begin_prepare`` began."""

    def commit_prepared(self, txn: TransactionHeader) -> None:
        """Hear that a prepared transaction was committed."""

    def rollback_prepared(self, txn: TransactionHeader) -> None:
        """Hear that a prepared transaction was rolled back."""

    def stream_start(self, txn: TransactionHeader) -> None:
        """Begin a part of a transaction in progress; ``txn.streamed.parts`` counts them from 1."""

    def stream_stop(self, txn: TransactionHeader) -> None:
        """End the part."""

    def stream_abort(self, txn: TransactionHeader) -> None:
        """Hear that ``txn.streamed.aborted_xid``, the transaction or a subtransaction, aborted."""

    def stream_prepare(self, txn: TransactionHeader) -> None:
        """Hear that a streamed transaction was prepared."""

    def stream_commit(self, txn: TransactionHeader) -> None:
        """Hear that a streamed transaction was committed."""

    def stream_change(
        self, txn: TransactionHeader, relation: RelationDescriptor, change: Change
    ) -> None:
        """Take a change within a part."""

    def stream_message(self, txn: TransactionHeader, message: LogicalMessage) -> None:
        """Take a transactional message within a part."""

    def stream_truncate(
        self, txn: TransactionHeader, relations: list[RelationDescriptor], truncation: Truncation
    ) -> None:
        """Take a TRUNCATE within a part."""
