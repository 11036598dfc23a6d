"""Drives a :class:`~spillway.plugins.callbacks.CallbackPlugin` as an output plugin.

Chunks come in, are cut into changes, and each becomes one call. What a callback raises becomes
PluginFailed with the plugin's name, the callback's and the LSN; a row that can't be decoded stays a
DecodingError, for that is not the plugin's doing. Memory: the changes of one chunk, copied once.
"""

from __future__ import annotations

import logging
import struct
import traceback
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.encoders.row_text import RowPrinter, new_section, split_changes
from spillway._kernels.values.text.output import TextContext
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionKind
from spillway.errors import DecodingError, PluginFailed, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.pg.text_settings import TextSettings
from spillway.plugins.callbacks import (
    UNCHANGED_TOAST,
    UNKNOWN_ORIGIN,
    Action,
    CallbackPlugin,
    Change,
    LogicalMessage,
    Row,
    Truncation,
    Unchanged,
)
from spillway.plugins.interface import OutputPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway._kernels.messages.buffer import MessageBuffer
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import TransactionHeader
    from spillway.plugins.interface import PluginContext

log = logging.getLogger(__name__)

_ACTIONS: Final = {
    change_format.INSERT: Action.INSERT,
    change_format.UPDATE: Action.UPDATE,
    change_format.DELETE: Action.DELETE,
}
_SECTION_HEADER: Final = struct.Struct("<II")
_TRUNCATE_CASCADE: Final = 1
_TRUNCATE_RESTART_SEQS: Final = 2
#: Compiled relations that are kept; descriptors of the past are never asked for again.
_PRINTERS_MAX: Final = 1024


class CallbackDriver(OutputPlugin):
    """See :class:`spillway.plugins.interface.OutputPlugin`."""

    name = "callbacks"

    def __init__(
        self,
        options: Mapping[str, str],
        context: PluginContext,
        *,
        plugin_name: str,
        plugin_class: type[CallbackPlugin],
    ) -> None:
        """Make an instance of *plugin_class* and start it up.

        Raises:
            InvalidOption: from its startup.
            PluginFailed: anything else from there.
        """
        self._plugin_name = plugin_name
        self._slot_name = context.slot_name
        self._lsn = self._xid = 0
        self._out: MessageBuffer | None = None
        self._skip = False
        self._open = False
        settings, options = TextSettings.from_options(
            options, context.server_version_num, context.encoding
        )
        self._encoding = context.encoding
        self._text = TextContext(settings)
        self._printers: dict[int, tuple[RowPrinter[Unchanged], tuple[str, ...]]] = {}
        has = plugin_class._has  # noqa: SLF001 - one class in two files
        self._filters_origins = has("filter_by_origin")
        plugin = self._call("__init__", plugin_class)
        plugin.context = context
        plugin.settings = settings
        plugin.two_phase = context.two_phase and has("prepare")
        plugin.streaming = has("stream_start")
        plugin.write = self._write
        self._plugin = plugin
        self._open = True
        try:
            self._call("startup", plugin.startup, options)
        except BaseException:
            self.shutdown()
            raise
        self.binary = plugin.binary
        self.two_phase = plugin.two_phase
        self.streaming = plugin.streaming

    def shutdown(self) -> None:
        """Call the plugin's shutdown, once."""
        if not self._open:
            return
        self._open = False
        self._out = None
        try:
            self._plugin.shutdown()
        except Exception:
            # The reader is done with already: nobody is left whom it could fail.
            log.exception(
                'output plugin "%s" failed in callback shutdown, slot "%s"',
                self._plugin_name,
                self._slot_name,
            )

    # ---- whole transactions

    def begin(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call begin; a non-transactional message has none."""
        self._skip = self._filtered(header)
        if header.kind is not TransactionKind.MESSAGE:
            self._event("begin", header.first_lsn, header, out)

    def changes(
        self,
        header: TransactionHeader,
        chunk: memoryview,
        relations: Mapping[int, RelationDescriptor],
        out: MessageBuffer,
    ) -> None:
        """Call change, truncate and message, or their twins for streaming.

        Raises:
            DecodingError: a change is malformed; the details have its lsn and relation.
            PluginFailed: a callback raised.
        """
        if self._skip:
            return
        prefix = "stream_" if header.kind is TransactionKind.STREAM else ""
        for action, flags, relation_id, xid, lsn, change in _split(chunk, header):
            if action in (change_format.INVALIDATION, change_format.SCHEMA_CHANGE):
                continue
            if (
                self._filters_origins
                and flags & change_format.FROM_ORIGIN
                and not header.origin_id
                and self._refuses(UNKNOWN_ORIGIN, "", lsn)
            ):
                continue
            self._at(lsn, header.xid, out)
            where = Lsn(lsn)
            if action == change_format.MESSAGE:
                message = self._message(change, where, xid)
                self._call(prefix + "message", self._bound(prefix + "message"), header, message)
            elif action == change_format.TRUNCATE:
                tables, truncation = self._truncation(change, where, xid, relations)
                callback = prefix + "truncate"
                self._call(callback, self._bound(callback), header, tables, truncation)
            else:
                relation = _relation(relations, relation_id, where)
                row_change = self._row_change(
                    action, flags, relation_id, relation, change, where, xid
                )
                callback = prefix + "change"
                self._call(callback, self._bound(callback), header, relation, row_change)

    def commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call commit; a non-transactional message has none."""
        if header.kind is not TransactionKind.MESSAGE:
            self._event("commit", header.end_lsn, header, out)

    # ---- two_phase

    def filter_prepare(self, header: TransactionHeader) -> bool:
        """Ask the plugin."""
        assert header.prepared is not None
        self._lsn = header.final_lsn
        return bool(
            self._call(
                "filter_prepare", self._plugin.filter_prepare, header.xid, header.prepared.gid
            )
        )

    def begin_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call begin_prepare."""
        self._skip = self._filtered(header)
        self._event("begin_prepare", header.first_lsn, header, out)

    def prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call prepare."""
        assert header.prepared is not None
        if header.prepared.empty:
            self._skip = self._filtered(header)
        self._event("prepare", header.end_lsn, header, out)

    def commit_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call commit_prepared."""
        self._skip = self._filtered(header)
        self._event("commit_prepared", header.end_lsn, header, out)

    def rollback_prepared(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call rollback_prepared."""
        self._skip = self._filtered(header)
        self._event("rollback_prepared", header.end_lsn, header, out)

    # ---- streaming

    def stream_start(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call stream_start."""
        self._skip = self._filtered(header)
        self._event("stream_start", header.first_lsn, header, out)

    def stream_stop(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call stream_stop."""
        self._event("stream_stop", header.end_lsn, header, out)

    def stream_abort(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call stream_abort."""
        self._skip = False
        self._event("stream_abort", header.end_lsn, header, out)

    def stream_prepare(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call stream_prepare."""
        self._skip = False
        self._event("stream_prepare", header.end_lsn, header, out)

    def stream_commit(self, header: TransactionHeader, out: MessageBuffer) -> None:
        """Call stream_commit."""
        self._skip = False
        self._event("stream_commit", header.end_lsn, header, out)

    # ---- calls

    def _at(self, lsn: int, xid: int, out: MessageBuffer) -> None:
        self._lsn, self._xid, self._out = lsn, xid, out

    def _event(
        self, callback: str, lsn: int, header: TransactionHeader, out: MessageBuffer
    ) -> None:
        if not self._skip:
            self._at(lsn, header.xid, out)
            self._call(callback, self._bound(callback), header)

    def _bound(self, callback: str) -> Callable[..., Any]:
        return getattr(self._plugin, callback)  # type: ignore[no-any-return]

    def _call(self, callback: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except DecodingError:
            raise
        except Exception as error:
            if isinstance(error, SpillwayError) and callback == "startup":
                raise
            raise self._failed(callback, error) from error
        finally:
            self._out = None

    def _failed(self, callback: str, error: Exception) -> PluginFailed:
        details: dict[str, object] = {
            "plugin": self._plugin_name,
            "callback": callback,
            "slot": self._slot_name,
        }
        at = ""
        if callback not in {"__init__", "startup"}:
            details["lsn"] = str(Lsn(self._lsn))
            at = f" at {Lsn(self._lsn)}"
        frames = traceback.extract_tb(error.__traceback__)
        if frames:
            details["raised_at"] = f"{frames[-1].filename}:{frames[-1].lineno}"
        return PluginFailed(
            f'output plugin "{self._plugin_name}" failed in callback {callback}{at}: {error!r}',
            hint="Nothing of this batch was confirmed: mend the plugin and it comes again.",
            **details,
        )

    def _write(self, message: str | bytes) -> None:
        if self._out is None:
            raise RuntimeError(
                "messages are written in callbacks between startup and shutdown only"
            )
        data = message.encode(errors="surrogateescape") if isinstance(message, str) else message
        self._out.append(self._lsn, self._xid, data)

    # ---- origins

    def _filtered(self, header: TransactionHeader) -> bool:
        return self._filters_origins and self._refuses(
            header.origin_id, header.origin_name, header.final_lsn
        )

    def _refuses(self, origin_id: int, origin_name: str, lsn: int) -> bool:
        self._lsn = lsn
        return bool(
            self._call("filter_by_origin", self._plugin.filter_by_origin, origin_id, origin_name)
        )

    # ---- what callbacks are given

    def _row_change(
        self,
        action: int,
        flags: int,
        relation_id: int,
        relation: RelationDescriptor,
        change: bytes,
        lsn: Lsn,
        xid: int,
    ) -> Change:
        if action not in _ACTIONS:
            raise DecodingError(
                f"the change at {lsn} has action {action}, which no transaction yields",
                lsn=str(lsn),
            )
        printer, identity = self._printer(relation_id, relation)
        new = old = None
        old_is_key = bool(flags & change_format.OLD_IS_KEY)
        if flags & change_format.HAS_NEW:
            new = Row(printer, change, lsn)
        if flags & change_format.HAS_OLD:
            old = Row(printer, change, lsn, old=True, columns=identity if old_is_key else None)
        return Change(_ACTIONS[action], lsn, xid, new, old, old_is_key)

    def _printer(
        self, relation_id: int, relation: RelationDescriptor
    ) -> tuple[RowPrinter[Unchanged], tuple[str, ...]]:
        """Return what prints rows of *relation*, and the names of its replica identity's
        columns.
        """
        known = self._printers.get(relation_id)
        if known is None or known[0].descriptor is not relation:
            if len(self._printers) >= _PRINTERS_MAX:
                self._printers.clear()
            identity = {relation.columns[attnum - 1].name for attnum in relation.identity_columns}
            printer = RowPrinter(relation, self._text, UNCHANGED_TOAST)
            known = (printer, tuple(name for name in printer.columns if name in identity))
            self._printers[relation_id] = known
        return known

    def _truncation(
        self,
        change: bytes,
        lsn: Lsn,
        xid: int,
        relations: Mapping[int, RelationDescriptor],
    ) -> tuple[list[RelationDescriptor], Truncation]:
        section = new_section(change)
        try:
            flags, count = _SECTION_HEADER.unpack_from(section)
            ids = struct.unpack_from(f"<{count}I", section, _SECTION_HEADER.size)
        except (struct.error, OverflowError) as error:
            raise DecodingError(
                f"the truncation at {lsn} is shorter than it says", lsn=str(lsn)
            ) from error
        return [_relation(relations, relation_id, lsn) for relation_id in ids], Truncation(
            lsn, xid, bool(flags & _TRUNCATE_CASCADE), bool(flags & _TRUNCATE_RESTART_SEQS)
        )

    def _message(self, change: bytes, lsn: Lsn, xid: int) -> LogicalMessage:
        section = new_section(change)
        size = _SECTION_HEADER.size
        if len(section) < size:
            raise DecodingError(
                f"the logical message at {lsn} ends inside its header", lsn=str(lsn)
            )
        transactional, prefix_size = _SECTION_HEADER.unpack_from(section)
        if prefix_size > len(section) - size:
            raise DecodingError(
                f"the logical message at {lsn} ends inside its prefix", lsn=str(lsn)
            )
        prefix = section[size : size + prefix_size].decode(self._encoding, "surrogateescape")
        return LogicalMessage(lsn, xid, bool(transactional), prefix, section[size + prefix_size :])


def _split(
    chunk: memoryview, header: TransactionHeader
) -> list[tuple[int, int, int, int, int, bytes]]:
    try:
        return split_changes(chunk)
    except DecodingError as error:
        lsn = Lsn(header.final_lsn)
        raise DecodingError(
            f"the transaction at {lsn}: {error.message}", lsn=str(lsn), xid=header.xid
        ) from error


def _relation(
    relations: Mapping[int, RelationDescriptor], relation_id: int, lsn: Lsn
) -> RelationDescriptor:
    relation = relations.get(relation_id)
    if relation is None:
        raise DecodingError(
            f"the change at {lsn} is of relation {relation_id}, whose descriptor did not come with "
            "it",
            lsn=str(lsn),
        )
    return relation
