"""What was resolved, kept until a catalog row that it was made from changes.

Every look-up made while a resolution is built is noted as a dependency: catalog, index, key. That
includes look-ups that found nothing, so that a row which appears later counts as a change too. The
cache holds the view of those without catalog changes of their own; private views are not cached.

Who was handed a resolution keeps it, and must hear when it may be stale:
:meth:`ResolutionCache.take_dropped`.

Memory: one entry a relation, storage and type that was asked for, and its dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.layout import WHOLE_CATALOG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spillway.catalog.tuple_store import CatalogTuple, DependencyKey

#: what was asked for: ("locator", …), ("oid", …), ("type", …)
EntryKey = tuple[str, Any]


class ResolutionCache:
    """Values by what was asked for, dropped by what they depend on."""

    def __init__(self) -> None:
        self._entries: Final[dict[EntryKey, tuple[Any, frozenset[DependencyKey]]]] = {}
        #: what was made from what: to be looked at only
        self.dependents: Final[dict[DependencyKey, set[EntryKey]]] = {}
        # Whether one was dropped since somebody asked: at a commit, but also by an image, by
        # pruning.
        self._dropped = False
        # Whether one was handed out since then that is cached nowhere: what it was made from is not
        # known.
        self._private = False

    def get(self, key: EntryKey) -> tuple[Any, frozenset[DependencyKey]] | None:
        """Return the value for *key* and what it depends on."""
        return self._entries.get(key)

    def put(self, key: EntryKey, value: Any, dependencies: Iterable[DependencyKey]) -> None:
        """Keep *value* until one of *dependencies* changes."""
        frozen = frozenset(dependencies)
        self._entries[key] = (value, frozen)
        for dependency in frozen:
            self.dependents.setdefault(dependency, set()).add(key)

    def note_private(self) -> None:
        """Say that a resolution was handed out that is not cached: any change of a row may make it
        stale.
        """
        self._private = True

    def take_dropped(self) -> bool:
        """Say whether a resolution handed out since the last call that returned True may be stale
        by now.
        """
        dropped, self._dropped = self._dropped, False
        if dropped:
            self._private = False
        return dropped

    def invalidate(self, dependencies: Iterable[DependencyKey]) -> None:
        """Drop what depends on any of *dependencies*."""
        for dependency in dependencies:
            for key in self.dependents.pop(dependency, ()):
                entry = self._entries.pop(key, None)
                if entry is None:
                    continue
                self._dropped = True
                for other in entry[1]:
                    if other != dependency and other in self.dependents:
                        keys = self.dependents[other]
                        keys.discard(key)
                        if not keys:
                            del self.dependents[other]

    def forget_of(self, tup: CatalogTuple) -> None:
        """Drop what depends on a row that changed."""
        self.forget_changed(tup.storage.depended(tup, self.dependents, WHOLE_CATALOG))

    def forget_changed(self, dependencies: Collection[DependencyKey]) -> None:
        """Drop what depends on rows that changed, which have *dependencies*; maybe none."""
        if self._private:
            self._dropped = True
        if dependencies:
            self.invalidate(dependencies)

    def drop(self, key: EntryKey) -> None:
        """Drop what was kept for *key*."""
        entry = self._entries.pop(key, None)
        for dependency in entry[1] if entry is not None else ():
            keys = self.dependents.get(dependency)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self.dependents[dependency]

    def clear(self) -> None:
        """Drop everything."""
        self._dropped = True
        self._entries.clear()
        self.dependents.clear()

    def __len__(self) -> int:
        return len(self._entries)
