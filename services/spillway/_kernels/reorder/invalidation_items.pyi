from collections.abc import Collection, Iterable, Mapping

class PendingItems:
    own: dict[int, None]
    own_count: int
    distributed: dict[int, None]
    fresh: dict[int, None]
    distributed_count: int
    def __init__(
        self,
        own: Iterable[int] = ...,
        own_count: int = ...,
        distributed: Iterable[int] = ...,
        distributed_count: int = ...,
    ) -> None: ...

class InvalidationParser:
    def __init__(
        self,
        database_oid: int,
        first_normal_oid: int,
        *,
        reset_counts: bool,
        caches: Collection[int],
        catalogs: Collection[int],
        publication_caches: Mapping[int, int],
    ) -> None: ...
    @property
    def pending(self) -> dict[int, PendingItems]: ...
    def parse(self, data: bytes) -> tuple[int, tuple[int, ...]] | None: ...
