"""What regclass, regproc and their kin print, and aclitem: the name that an object has at one point
in WAL.

Values of these types are oids, or hold some. Their names are in catalogs that delivery never sees,
so the descriptor of a table with such a column holds the names of *all* objects of the kind, as
(oid, text) of the type, and is made anew when one of them changes. That is some 100 kB for a
version of a table's descriptor, for the few tables that have such columns; no other table pays.

As in PostgreSQL, a name goes without its schema when the search path finds that object by it; the
path is the default one, pg_catalog and public. Left to be printed as the number, which PostgreSQL
reads as the same value: objects that are not there (any more), as it does too, and temporary
tables. Roles are every database's: see ``shared_catalogs``.

Source: regprocout and others (src/backend/utils/adt/regproc.c); FuncnameGetCandidates,
RelationIsVisible and others (src/backend/catalog/namespace.c); format_type_extended
(format_type.c); putid (acl.c)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog import layout as cat
from spillway.pg.encoding import ServerEncoding, server_encoding_number
from spillway.pg.identifier import quote_identifier, quote_qualified_identifier
from spillway.pg.standard_types import SQL_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from spillway.catalog.database_facts import DatabaseFacts
    from spillway.catalog.layout import TrackedCatalog

#: (oid, text), ascending
Names = tuple[tuple[int, str], ...]

_REGPROC, _REGPROCEDURE, _REGOPER, _REGOPERATOR = 24, 2202, 2203, 2204
_REGCLASS, _REGTYPE, _REGNAMESPACE, _REGROLE, _REGCOLLATION = 2205, 2206, 4089, 4096, 4191
_REGCONFIG, _REGDICTIONARY = 3734, 3769
_ACLITEM = 1033
#: The types whose values are printed with names of objects.
NAMING_TYPES: Final = frozenset({
    _ACLITEM, _REGPROC, _REGPROCEDURE, _REGOPER, _REGOPERATOR, _REGCLASS, _REGTYPE, _REGNAMESPACE,
    _REGROLE, _REGCOLLATION,
    _REGCONFIG, _REGDICTIONARY,
})  # fmt: skip

_PG_CATALOG: Final = 11
_PUBLIC: Final = 2200
_ARRAY_SUBSCRIPT_HANDLER: Final = 6179
#: int2vector and oidvector, the arrays of plain storage.
_VECTORS: Final = frozenset({22, 30})
_TEMPORARY_SCHEMAS: Final = ("pg_temp_", "pg_toast_temp_")
#: A role's name that aclitem shows without quotes. Not by its locale: letters beyond ASCII are
#: quoted.
_SAFE_IN_ACL: Final = re.compile(r"[A-Za-z0-9_]*")
#: pg_collation.collencoding of those for any.
_ANY_ENCODING: Final = -1


def object_names(
    type_oid: int, facts: DatabaseFacts, whole: Callable[[TrackedCatalog], list[Any]]
) -> Names:
    """Return what oids in values of the type *type_oid*, one of :data:`NAMING_TYPES`, are printed
    as.

    That is names, and for reg types what InvalidOid is printed as. In an aclitem it may be PUBLIC,
    or no one.

    *whole* gives every visible row of a catalog.
    """
    names = _Names(facts, whole)
    found = dict(names.of(type_oid))
    if type_oid != _ACLITEM:
        found[0] = "0" if type_oid in {_REGOPER, _REGOPERATOR} else "-"
    return tuple(sorted(found.items()))


class _Names:
    """Names of one database's objects, as seen at one point."""

    def __init__(self, facts: DatabaseFacts, whole: Callable[[TrackedCatalog], list[Any]]) -> None:
        self._facts = facts
        self._whole = whole
        self._version = facts.major * 10_000
        self._schemas: dict[int, str] = {}

    def of(self, type_oid: int) -> Iterable[tuple[int, str]]:
        if type_oid in {_REGROLE, _ACLITEM}:
            quoted = self._quoted if type_oid == _REGROLE else _quoted_in_acl
            return [(row.oid, quoted(row.rolname)) for row in self._whole(cat.PG_AUTHID)]
        self._schemas = {row.oid: row.nspname for row in self._whole(cat.PG_NAMESPACE)}
        if type_oid == _REGNAMESPACE:
            return [(oid, self._quoted(name)) for oid, name in self._schemas.items()]
        if type_oid == _REGCLASS:
            rows = [r for r in self._whole(cat.PG_CLASS) if r.relpersistence != "t"]
            return self._plain(rows, "relname", "relnamespace")
        if type_oid == _REGTYPE:
            return self._types().items()
        if type_oid in {_REGPROC, _REGPROCEDURE}:
            return self._functions(with_arguments=type_oid == _REGPROCEDURE)
        if type_oid in {_REGOPER, _REGOPERATOR}:
            return self._operators(with_arguments=type_oid == _REGOPERATOR)
        if type_oid == _REGCOLLATION:
            return self._collations()
        if type_oid == _REGCONFIG:
            return self._plain(self._whole(cat.PG_TS_CONFIG), "cfgname", "cfgnamespace")
        return self._plain(self._whole(cat.PG_TS_DICT), "dictname", "dictnamespace")

    def _quoted(self, name: str) -> str:
        return quote_identifier(name, self._version)

    def _name(self, schema_oid: int, name: str, *, visible: bool) -> str:
        if visible:
            return self._quoted(name)
        return quote_qualified_identifier(self._schemas.get(schema_oid, ""), name, self._version)

    def _plain(self, rows: list[Any], name: str, schema: str) -> list[tuple[int, str]]:
        """Objects that a name and a schema tell apart."""
        visible = _visible((getattr(r, name), getattr(r, schema), r.oid) for r in rows)
        return [
            (r.oid, self._name(getattr(r, schema), getattr(r, name), visible=r.oid in visible))
            for r in rows
        ]

    def _types(self) -> dict[int, str]:
        rows = [
            r
            for r in self._whole(cat.PG_TYPE)
            if not self._schemas.get(r.typnamespace, "").startswith(_TEMPORARY_SCHEMAS)
        ]
        names = dict(self._plain(rows, "typname", "typnamespace"))
        names |= {oid: name for oid, name in SQL_NAMES.items() if oid in names}
        # Elements of true arrays are no arrays themselves.
        arrays = {
            r.oid: names.get(r.typelem, "???") + "[]"
            for r in rows
            if r.typelem and r.typsubscript == _ARRAY_SUBSCRIPT_HANDLER and r.oid not in _VECTORS
        }
        return names | arrays

    def _functions(self, *, with_arguments: bool) -> list[tuple[int, str]]:
        rows = self._whole(cat.PG_PROC)
        visible = _visible(((r.proname, r.proargtypes), r.pronamespace, r.oid) for r in rows)
        if not with_arguments:
            unique = _unique((r.proname, r.oid) for r in rows if r.oid in visible)
            return [
                (r.oid, self._name(r.pronamespace, r.proname, visible=r.oid in unique))
                for r in rows
            ]
        types = self._types()
        return [
            (
                r.oid,
                self._name(r.pronamespace, r.proname, visible=r.oid in visible)
                + f"({','.join(types.get(oid, '???') for oid in r.proargtypes)})",
            )
            for r in rows
        ]

    def _operators(self, *, with_arguments: bool) -> list[tuple[int, str]]:
        rows = self._whole(cat.PG_OPERATOR)
        visible = _visible(
            ((r.oprname, r.oprleft, r.oprright), r.oprnamespace, r.oid) for r in rows
        )
        plain = (
            visible
            if with_arguments
            else _unique((r.oprname, r.oid) for r in rows if r.oid in visible)
        )
        types = self._types() if with_arguments else {}

        def operand(oid: int) -> str:
            return types.get(oid, "???") if oid else "NONE"

        return [
            (
                r.oid,
                (
                    ""
                    if r.oid in plain
                    else self._quoted(self._schemas.get(r.oprnamespace, "")) + "."
                )
                + r.oprname
                + (f"({operand(r.oprleft)},{operand(r.oprright)})" if with_arguments else ""),
            )
            for r in rows
        ]

    def _collations(self) -> list[tuple[int, str]]:
        rows = self._whole(cat.PG_COLLATION)
        # One of the database's encoding comes before one of any; others are not found by their
        # name.
        own = server_encoding_number(
            ServerEncoding(self._facts.encoding, self._facts.encoding_errors)
        )
        usable = sorted(
            (r for r in rows if r.collencoding in {own, _ANY_ENCODING}),
            key=lambda r: r.collencoding == _ANY_ENCODING,
        )
        visible = _visible((r.collname, r.collnamespace, r.oid) for r in usable)
        return [
            (r.oid, self._name(r.collnamespace, r.collname, visible=r.oid in visible)) for r in rows
        ]


def _quoted_in_acl(name: str) -> str:
    return name if _SAFE_IN_ACL.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _visible(objects: Iterable[tuple[Hashable, int, int]]) -> set[int]:
    """Return the oids of those of (key, schema, oid) that the search path finds by their key.

    The first of those with the same key and schema wins.
    """
    found: dict[int, dict[Hashable, int]] = {_PG_CATALOG: {}, _PUBLIC: {}}
    for key, schema, oid in objects:
        if schema in found:
            found[schema].setdefault(key, oid)
    return set((found[_PUBLIC] | found[_PG_CATALOG]).values())


def _unique(objects: Iterable[tuple[Hashable, int]]) -> set[int]:
    """Return the oids of those of (key, oid) whose key no other has."""
    by_key: dict[Hashable, list[int]] = {}
    for key, oid in objects:
        by_key.setdefault(key, []).append(oid)
    return {oids[0] for oids in by_key.values() if len(oids) == 1}
