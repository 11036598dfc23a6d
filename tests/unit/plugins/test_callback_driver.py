"""The driver of callback plugins, call by call, without a server."""

from __future__ import annotations

import struct

import pytest

from harness.plugin_output import messages
from harness.remedies import remedy
from spillway._kernels.messages.buffer import MessageBuffer
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.decoding import change_format
from spillway.decoding.transaction import Prepared, Streamed, TransactionHeader, TransactionKind
from spillway.errors import DecodingError, InvalidOption, PluginFailed
from spillway.plugins.callback_driver import CallbackDriver
from spillway.plugins.callbacks import CallbackPlugin
from spillway.plugins.interface import PluginContext

HEADER = TransactionHeader(700, 0x100, 0x300, 0x330, 0)
TABLE = RelationDescriptor(
    16400, "public", "t", "r", "p", "d",
    (ColumnDescriptor(1, "id", 23, -1, 4, True, "i"),
     ColumnDescriptor(2, "v", 23, -1, 4, True, "i", generated="v")),
    identity_columns=(1,),
)  # fmt: skip


def insert(value: int, *, lsn: int = 0x200, xid: int = 700, flags: int = 0) -> bytes:
    section = struct.pack("<HHBBHBi", 1, 0, 24, 0, 0, 0, value)
    padded = section + bytes(-len(section) % 8)
    return (
        struct.pack(
            "<IBBHIIQII",
            change_format.HEADER_SIZE + len(padded), change_format.INSERT,
            change_format.HAS_NEW | flags, 0, 1, xid,
            lsn, len(section), 0,
        )
        + padded
    )  # fmt: skip


class Everything(CallbackPlugin):
    """Has every callback, and says their names."""

    def startup(self, options):
        self.options = options

    def filter_by_origin(self, origin_id, origin_name):
        return origin_id in {7, 0xFFFF}

    def filter_prepare(self, xid, gid):
        return gid == "later"

    def begin(self, txn):
        self.write("begin")

    def change(self, txn, relation, change):
        self.write(f"change {change.xid} {dict(change.new)}")

    def commit(self, txn):
        self.write(b"commit")

    def begin_prepare(self, txn):
        self.write("begin_prepare")

    def prepare(self, txn):
        self.write("prepare")

    def commit_prepared(self, txn):
        self.write("commit_prepared")

    def rollback_prepared(self, txn):
        self.write("rollback_prepared")

    def stream_start(self, txn):
        self.write("stream_start")

    def stream_stop(self, txn):
        self.write("stream_stop")

    def stream_abort(self, txn):
        self.write(f"stream_abort {txn.streamed.aborted_xid}")

    def stream_prepare(self, txn):
        self.write("stream_prepare")

    def stream_commit(self, txn):
        self.write("stream_commit")

    def stream_change(self, txn, relation, change):
        self.write(f"stream_change {change.xid} {change.new['id']}")


def driver(
    plugin: type[CallbackPlugin] = Everything, *, two_phase: bool = True, **options: str
) -> CallbackDriver:
    context = PluginContext("s", "d", 180000, two_phase=two_phase)
    return CallbackDriver(options, context, plugin_name="test", plugin_class=plugin)


def test_two_phase():
    plugin, out = driver(), MessageBuffer()
    assert plugin.two_phase
    assert plugin.streaming
    assert not driver(two_phase=False).two_phase
    header = HEADER._replace(
        kind=TransactionKind.PREPARE, prepared=Prepared("gid", 0x300, 0x330, 0)
    )
    assert not plugin.filter_prepare(header)
    assert plugin.filter_prepare(header._replace(prepared=Prepared("later", 1, 2, 0)))
    plugin.begin_prepare(header, out)
    plugin.changes(header, memoryview(insert(5)), {1: TABLE}, out)
    plugin.prepare(header, out)
    plugin.commit_prepared(header, out)
    plugin.rollback_prepared(header, out)
    assert messages(out.take()) == [
        (0x100, 700, "begin_prepare"),
        (0x200, 700, "change 700 {'id': '5'}"),
        (0x330, 700, "prepare"),
        (0x330, 700, "commit_prepared"),
        (0x330, 700, "rollback_prepared"),
    ]


def test_streaming():
    plugin, out = driver(), MessageBuffer()
    header = HEADER._replace(kind=TransactionKind.STREAM, streamed=Streamed(1, 0x200))
    plugin.stream_start(header, out)
    plugin.changes(header, memoryview(insert(5, xid=701)), {1: TABLE}, out)
    plugin.stream_stop(header, out)
    plugin.stream_abort(header._replace(streamed=Streamed(1, 0x200, 701)), out)
    plugin.stream_commit(header, out)
    plugin.stream_prepare(header, out)
    assert [text for _, _, text in messages(out.take())] == [
        "stream_start",
        "stream_change 701 5",
        "stream_stop",
        "stream_abort 701",
        "stream_commit",
        "stream_prepare",
    ]


def test_origins():
    plugin, out = driver(), MessageBuffer()
    refused = HEADER._replace(origin_id=7)
    plugin.begin(refused, out)
    plugin.changes(refused, memoryview(insert(1)), {1: TABLE}, out)
    plugin.commit(refused, out)
    assert len(out) == 0
    # A change that came through some origin within a transaction that did not.
    plugin.begin(HEADER, out)
    chunk = insert(1, flags=change_format.FROM_ORIGIN) + insert(2)
    plugin.changes(HEADER, memoryview(chunk), {1: TABLE}, out)
    plugin.commit(HEADER, out)
    assert [text for _, _, text in messages(out.take())] == [
        "begin",
        "change 700 {'id': '2'}",
        "commit",
    ]


def test_a_message_has_no_begin():
    plugin, out = driver(), MessageBuffer()
    header = HEADER._replace(kind=TransactionKind.MESSAGE)
    plugin.begin(header, out)
    plugin.commit(header, out)
    assert len(out) == 0


def test_settings_and_options():
    plugin = driver(timezone="Europe/Berlin", mine="x")
    assert plugin._plugin.options == {"mine": "x"}
    assert plugin._plugin.settings.time_zone == "Europe/Berlin"

    class Strict(CallbackPlugin):
        pass

    with pytest.raises(InvalidOption):
        driver(Strict, mine="x")


def test_rows_may_be_kept():
    kept = []

    class Keeper(CallbackPlugin):
        def change(self, txn, relation, change):
            kept.append(change.new)

    plugin, out = driver(Keeper), MessageBuffer()
    for value in range(3):
        chunk = bytearray(insert(value))
        plugin.changes(HEADER, memoryview(chunk), {1: TABLE}, out)
        chunk[:] = bytes(len(chunk))
    assert [row["id"] for row in kept] == ["0", "1", "2"]
    assert repr(kept[0]) == "Row({'id': '0'})"
    with pytest.raises(KeyError):
        kept[0]["v"]


def test_damage_is_not_the_plugins_failure():
    plugin, out = driver(), MessageBuffer()
    damaged = bytearray(insert(5))
    damaged[change_format.HEADER_SIZE + 4] = 200
    with pytest.raises(DecodingError) as failed:
        plugin.changes(HEADER, memoryview(damaged), {1: TABLE}, out)
    assert failed.value.details == {"lsn": "0/200", "relation": "public.t"}
    with pytest.raises(DecodingError, match="descriptor did not come"):
        plugin.changes(HEADER, memoryview(insert(5)), {}, out)


def test_groups_of_callbacks_are_whole():
    with pytest.raises(TypeError, match="prepare, commit_prepared"):

        class _Half(CallbackPlugin):
            def begin_prepare(self, txn):
                pass

    with pytest.raises(TypeError, match="stream_prepare"):

        class _NoStreamPrepare(Everything):
            stream_prepare = CallbackPlugin.stream_prepare


@pytest.mark.follows_hint("plugin_failed")
def test_messages_have_their_place():
    class Eager(CallbackPlugin):
        def startup(self, options):
            self.write("too early")

    with pytest.raises(PluginFailed, match="between startup and shutdown"):
        driver(Eager)

    class Idle(CallbackPlugin):
        pass

    plugin = driver(Idle)
    with pytest.raises(PluginFailed, match="in callback change at 0/200") as caught:
        plugin.changes(HEADER, memoryview(insert(5)), {1: TABLE}, MessageBuffer())
    assert "mend the plugin and it comes again" in remedy(caught.value, "plugin_failed")
    Idle.change = lambda self, *_: self.write("mended")  # type: ignore[method-assign]
    out = MessageBuffer()
    plugin = driver(Idle)
    plugin.begin(HEADER, out)
    plugin.changes(HEADER, memoryview(insert(5)), {1: TABLE}, out)
    assert "mended" in str(messages(out.take()))


def test_shutdown_comes_once():
    calls = []

    class Counting(CallbackPlugin):
        def shutdown(self):
            calls.append(1)

    plugin = driver(Counting)
    plugin.shutdown()
    plugin.shutdown()
    assert calls == [1]
