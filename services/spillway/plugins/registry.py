"""Output plugins by name: the built-in ones, and those that installed packages register.

A package adds a plugin through the entry point group ``spillway.output_plugins``: the entry's name
is the plugin's, its value the class: an :class:`OutputPlugin`, or a :class:`CallbackPlugin`, which
gets its driver here. A built-in name can't be taken over.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, cast

from spillway.errors import InvalidOption, PluginFailed, SpillwayError, UnknownPlugin
from spillway.pg.versions import skips_empty_prepared
from spillway.plugins.callback_driver import CallbackDriver
from spillway.plugins.callbacks import CallbackPlugin
from spillway.plugins.interface import OutputPlugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.plugins.interface import PluginContext

ENTRY_POINT_GROUP: Final = "spillway.output_plugins"

#: name → module and class; imported at first use, so that a slot pays only for its own plugin
_BUILT_IN: Final = {
    "arrow": ("spillway.plugins.arrow", "ArrowPlugin"),
    "pgoutput": ("spillway.plugins.pgoutput", "Pgoutput"),
    "test_decoding": ("spillway.plugins.test_decoding", "TestDecoding"),
    "wal2json": ("spillway.plugins.wal2json", "Wal2Json"),
}


def plugin_names() -> tuple[str, ...]:
    """Return the names that :func:`create_plugin` knows, sorted."""
    return tuple(sorted({*_BUILT_IN, *_registered()}))


def is_built_in(name: str) -> bool:
    """Say whether a plugin is Spillway's own, of which is known that it waits for nothing."""
    return name in _BUILT_IN


def plugin_class(name: str) -> type[OutputPlugin | CallbackPlugin]:
    """Return the class of a plugin.

    Raises:
        UnknownPlugin: no plugin has that name.
        PluginFailed: an installed package has it, but it can't be loaded.
    """
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        return cast("type[OutputPlugin]", getattr(import_module(module), attribute))
    entry = _registered().get(name)
    if entry is None:
        raise UnknownPlugin(
            f'output plugin "{name}" is not known',
            hint=f"Known plugins: {', '.join(plugin_names())}.",
            plugin=name,
        )
    try:
        loaded = entry.load()
    except Exception as error:
        raise _unloadable(entry, repr(error)) from error
    if not (isinstance(loaded, type) and issubclass(loaded, (OutputPlugin, CallbackPlugin))):
        raise _unloadable(entry, "it is neither an OutputPlugin nor a CallbackPlugin")
    return loaded


def _unloadable(entry: EntryPoint, why: str) -> PluginFailed:
    return PluginFailed(
        f'output plugin "{entry.name}" ({entry.value}) can\'t be loaded: {why}',
        hint="Mend or remove the package that registers it.",
        plugin=entry.name,
    )


def create_plugin(name: str, options: Mapping[str, str], context: PluginContext) -> OutputPlugin:
    """Make the plugin instance of one reader, which calls its ``shutdown`` when it is done.

    Raises:
        UnknownPlugin: no plugin has that name.
        InvalidOption: the plugin does not know an option, or not that value of it.
        PluginFailed: it can't be loaded, or its startup failed.
    """
    found = plugin_class(name)
    plugin: OutputPlugin
    if issubclass(found, CallbackPlugin):
        plugin = CallbackDriver(options, context, plugin_name=name, plugin_class=found)
    else:
        with _startup(name):
            plugin = found(options, context)
    plugin.skips_empty_prepared = skips_empty_prepared(context.server_version_num)
    return plugin


def validate_options(name: str, options: Mapping[str, str], context: PluginContext) -> None:
    """Check options that are stored before they are used, when some may still be missing.

    Raises:
        UnknownPlugin: no plugin has that name.
        InvalidOption: the plugin does not know an option, or not that value of it.
        PluginFailed: it can't be loaded, or its startup failed.
    """
    found = plugin_class(name)
    if issubclass(found, CallbackPlugin):
        create_plugin(name, options, context).shutdown()
        return
    with _startup(name):
        found.validate(options, context)


def wants_streaming(name: str, options: Mapping[str, str], context: PluginContext) -> bool:
    """Say whether an instance with *options* takes transactions in progress; not while options are
    missing.

    Raises:
        UnknownPlugin, PluginFailed: as :func:`create_plugin`.
    """
    try:
        plugin = create_plugin(name, options, context)
    except InvalidOption:
        return False
    plugin.shutdown()
    return plugin.streaming


@contextmanager
def _startup(name: str) -> Iterator[None]:
    """Say of what a plugin of another package raises whose it is."""
    try:
        yield
    except SpillwayError:
        raise
    except Exception as error:
        if name in _BUILT_IN:
            raise
        raise PluginFailed(
            f'output plugin "{name}" failed to start: {error!r}',
            hint="Mend the plugin.",
            plugin=name,
            callback="startup",
        ) from error


@cache
def _registered() -> dict[str, EntryPoint]:
    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name not in _BUILT_IN
    }
