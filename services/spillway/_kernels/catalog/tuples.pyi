from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from spillway.catalog.tuple_store import DependencyKey, Storage

class CatalogTuple:
    storage: Storage
    tid: int
    xmin: int
    xmax: int | None
    infomask2: int
    infomask: int
    hoff: int
    data: bytes | None
    row: Any
    xmin_pending: bool
    deleter: int
    dead: bool
    def __init__(
        self,
        storage: Storage,
        tid: int,
        *,
        xmin: int,
        row: Any,
        xmax: int | None = 0,
        infomask2: int = 0,
        infomask: int = 0,
        hoff: int = 0,
        data: bytes | None = None,
    ) -> None: ...
    @property
    def ctid(self) -> tuple[int, int]: ...
    def visible(self, own_xids: Collection[int]) -> bool: ...
    def forget_row(self) -> None: ...

class Page:
    lsn: int
    physical: bool
    packed: bytes | None
    unpack: Callable[[], None] | None
    def __init__(self, lsn: int = 0, *, physical: bool = True) -> None: ...
    @property
    def tuples(self) -> dict[int, CatalogTuple]: ...

class TupleStorage:
    pages: dict[int, Page]
    stand_ins: dict[int, CatalogTuple]
    unplaced: bool
    indexes: list[dict[Any, CatalogTuple | dict[int, CatalogTuple]]]
    def __init__(
        self,
        catalog_oid: int,
        columns: Sequence[int],
        skips_zero: Sequence[bool],
        places: Sequence[tuple[int, int] | None],
        rewrite: tuple[int, int] | None,
    ) -> None: ...
    def index(self, tup: CatalogTuple) -> None: ...
    def unindex(self, tup: CatalogTuple) -> None: ...
    def indexed(self, number: int, key: Any) -> Sequence[CatalogTuple]: ...
    def touch(self, tup: CatalogTuple) -> None: ...
    def depended(
        self, tup: CatalogTuple, dependents: Mapping[DependencyKey, Any], whole_catalog: int
    ) -> list[DependencyKey]: ...

class CatalogRedo:
    last_lsn: int
    consistent: bool
    def __init__(
        self,
        pending: dict[int, set[CatalogTuple]],
        rewrites: Mapping[int, Any],
        unidentified: Mapping[Any, Any],
    ) -> None: ...
    def set_storages(self, storages: list[Storage | None]) -> None: ...
    def commit(
        self,
        tuples: Iterable[CatalogTuple],
        xid: int,
        dependents: Mapping[DependencyKey, Any],
        whole_catalog: int,
    ) -> list[DependencyKey] | None: ...
    def abort(self, tuples: Iterable[CatalogTuple], xid: int) -> None: ...
    def concerns(
        self,
        dependencies: Iterable[DependencyKey],
        own_xids: Collection[int],
        current: Mapping[int, Storage],
    ) -> bool: ...
