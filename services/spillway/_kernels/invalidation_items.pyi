from collections.abc import Collection, Mapping

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
    def parse(self, data: bytes) -> tuple[int, tuple[int, ...]] | None: ...
