r"""Codecs of types whose text is made in Python: rare types, and those of extensions.

The kernels in ``values/text/`` print the types that matter for speed. What is left comes here,
found by the type's oid when it is built in, and by the name of its output function when it comes
from an extension (an extension's oids differ from database to database, its functions' names do
not).

A codec takes a value's payload (a varlena without its header, detoasted) and the settings, and
returns the text that the type's output function prints. Text is in the database's encoding: decode
and expect ``surrogateescape``, so that bytes which are no UTF-8 pass unchanged. A codec may raise
anything on malformed bytes; the caller turns that into DecodingError.

A package adds codecs through the entry point group ``spillway.type_codecs``: each entry's name is
an output function (``hstore_out``), its value a :data:`TextCodec`.

The send format (binary) of an extension's type is added through the group ``spillway.send_codecs``
likewise: the name of the send function (``hstore_send``), and a :data:`SendCodec`. A column of
a type without one is sent as text.

A type without a codec is printed as ``raw:schema.type:\x…``, the payload in hexadecimal: never a
wrong value, and nothing lost. The log says so once a type.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from spillway.pg.contrib_types import (
    hstore_text,
    lquery_text,
    ltree_text,
    ltxtquery_text,
    query_int_text,
    seg_text,
)
from spillway.pg.object_id import reg_operator_text, reg_text, snapshot_text
from spillway.pg.statistics import dependencies_text, ndistinct_text
from spillway.pg.text_search import tsquery_text, tsvector_text
from spillway.pg.text_settings import TextSettings
from spillway.pg.xml import xml_text
from spillway.plugins.jsonpath import jsonpath_text

if TYPE_CHECKING:
    from spillway.catalog.descriptor import TypeDescriptor

logger = logging.getLogger(__name__)

TextCodec = Callable[[bytes, TextSettings], str]
SendCodec = Callable[[bytes, TextSettings], bytes]

ENTRY_POINT_GROUP: Final = "spillway.type_codecs"
SEND_ENTRY_POINT_GROUP: Final = "spillway.send_codecs"
#: FirstNormalObjectId: below it are the objects that initdb makes, the same everywhere.
_FIRST_NORMAL_OID: Final = 16384


def _plain(codec: Callable[[bytes], str]) -> TextCodec:
    """Make a codec of a function that no setting matters to."""
    return lambda data, _settings: codec(data)


_BUILT_IN: Final[dict[int, TextCodec]] = {
    142: lambda payload, settings: xml_text(payload, settings.xml_encoding),
    2970: _plain(snapshot_text),
    3361: _plain(ndistinct_text),
    3402: _plain(dependencies_text),
    3614: _plain(tsvector_text),
    3615: _plain(tsquery_text),
    4072: jsonpath_text,
    5038: _plain(snapshot_text),
    # regproc, regprocedure, regclass, regtype, regconfig, regdictionary, regnamespace, regrole,
    # regcollation
    **dict.fromkeys((24, 2202, 2205, 2206, 3734, 3769, 4089, 4096, 4191), _plain(reg_text)),
    # regoper, regoperator
    **dict.fromkeys((2203, 2204), _plain(reg_operator_text)),
}
#: Extensions that come with PostgreSQL, by output function. (citext and cube are printed in C.)
_CONTRIB: Final[dict[str, TextCodec]] = {
    "hstore_out": _plain(hstore_text),
    "ltree_out": _plain(ltree_text),
    "lquery_out": _plain(lquery_text),
    "ltxtq_out": _plain(ltxtquery_text),
    "bqarr_out": _plain(query_int_text),
    "seg_out": seg_text,
}
_warned: set[tuple[str, str]] = set()


def find_codec(oid: int, output: str) -> TextCodec | None:
    """Return the codec of a type by its oid and its output function's name, None without one."""
    if oid < _FIRST_NORMAL_OID:
        return _BUILT_IN.get(oid)
    return _of_extensions().get(output)


@cache
def _of_extensions() -> dict[str, TextCodec]:
    installed = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return _CONTRIB | installed


def find_send_codec(send: str) -> SendCodec | None:
    """Return the codec of an extension's type by its send function's name, None without one."""
    return _send_codecs().get(send)


@cache
def _send_codecs() -> dict[str, SendCodec]:
    return {entry.name: entry.load() for entry in entry_points(group=SEND_ENTRY_POINT_GROUP)}


def raw_prefix(type_descriptor: TypeDescriptor | None, oid: int) -> str:
    """Return what comes before the hexadecimal digits of a type without a codec, and log it
    once.
    """
    schema, name = (
        ("pg_type", str(oid))
        if type_descriptor is None
        else (type_descriptor.schema, type_descriptor.name)
    )
    if (schema, name) not in _warned:
        _warned.add((schema, name))
        logger.warning(
            "no text codec for type %s.%s (oid %d): its values are printed as raw bytes; a package "
            "adds one through the entry point group %s",
            schema,
            name,
            oid,
            ENTRY_POINT_GROUP,
        )
    return f"raw:{schema}.{name}:\\x"
