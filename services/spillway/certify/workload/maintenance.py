"""What runs beside transactions: VACUUM, CLUSTER, REINDEX, ANALYZE of tables and of catalogs,
CHECKPOINT, WAL switches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.certify.workload.scene import Kinds, Scene

#: Catalogs that descriptors are made from, and neighbours.
_CATALOGS: Final = [
    "pg_class", "pg_attribute", "pg_type", "pg_index", "pg_namespace", "pg_enum", "pg_range",
    "pg_inherits", "pg_publication", "pg_publication_rel", "pg_constraint", "pg_attrdef", "pg_proc",
    "pg_class", "pg_attribute",
]  # fmt: skip
_CLUSTERED: Final = {
    "pg_class": "pg_class_oid_index",
    "pg_attribute": "pg_attribute_relid_attnum_index",
    "pg_index": "pg_index_indexrelid_index",
    "pg_type": "pg_type_oid_index",
    "pg_namespace": "pg_namespace_oid_index",
    "pg_enum": "pg_enum_oid_index",
}


def vacuum(scene: Scene) -> list[str] | None:
    """VACUUM of a table, in its variants."""
    table = scene.table("rm", exclusive=True, special=True)
    if table is None or scene.locked_by_others(table):
        return None
    options = scene.random.choice(
        [
            "",
            "",
            " (FREEZE)",
            " (FULL)",
            " (FULL, FREEZE)",
            " (ANALYZE)",
            " (TRUNCATE false)",
            " (INDEX_CLEANUP off)",
        ]
    )
    return [f"VACUUM{options} {table.name}"]


def vacuum_catalog(scene: Scene) -> list[str]:
    """VACUUM of a catalog."""
    if not scene.shared.superuser:
        return ["ANALYZE"]
    catalog = scene.random.choice(_CATALOGS)
    options = scene.random.choice(["", "", "", " (FREEZE)", " (FULL)", " (FULL)"])
    if scene.others_at_work() and "FULL" not in options:
        # To give back the end of a catalog that another transaction has locked, VACUUM tries for
        # five seconds.
        options = scene.random.choice([" (TRUNCATE false)", " (FREEZE, TRUNCATE false)"])
    return [f"VACUUM{options} {catalog}"]


def vacuum_everything(scene: Scene) -> list[str]:
    """VACUUM or ANALYZE of the database."""
    if scene.chance(0.8):
        return ["ANALYZE pg_class"]
    return [
        scene.random.choice(
            ["ANALYZE", "VACUUM (TRUNCATE false)", "VACUUM (ANALYZE, TRUNCATE false)"]
        )
    ]


def cluster(scene: Scene) -> list[str] | None:
    """CLUSTER of a table."""
    table = scene.table("r", exclusive=True, where=lambda t: any(i.clusterable for i in t.indexes))
    if table is None:
        return None
    index = scene.random.choice([i for i in table.indexes if i.clusterable])
    return [f"CLUSTER {table.name} USING {index.name}"]


def cluster_catalog(scene: Scene) -> list[str] | None:
    """CLUSTER of a catalog, in a transaction too: until that ends nobody else can do anything."""
    if not scene.shared.superuser:
        return None
    catalog = scene.random.choice(sorted(_CLUSTERED))
    if not scene.session.idle:
        scene.session.exclusive = True
    return [f"CLUSTER {catalog} USING {_CLUSTERED[catalog]}"]


def reindex(scene: Scene) -> list[str] | None:
    """REINDEX of a table or of a catalog."""
    if scene.shared.superuser and scene.chance(0.3):
        if not scene.session.idle:
            scene.session.exclusive = True
        return [f"REINDEX TABLE {scene.random.choice(_CATALOGS)}"]
    table = scene.table("r", exclusive=True)
    if table is None:
        return None
    concurrently = " CONCURRENTLY" if scene.session.idle and scene.chance(0.1) else ""
    return [f"REINDEX TABLE{concurrently} {table.name}"]


def checkpoint(scene: Scene) -> list[str]:
    """CHECKPOINT, and what else goes to WAL by itself."""
    if not scene.shared.superuser:
        return ["SELECT pg_current_xact_id()"]
    snapshot = "SELECT pg_log_standby_snapshot()" if scene.shared.major >= 16 else "CHECKPOINT"
    return [
        scene.random.choice(
            [
                "CHECKPOINT",
                snapshot,
                "SELECT pg_switch_wal()",
                "SELECT pg_create_restore_point('w')",
            ]
        )
    ]


def empty_transaction(scene: Scene) -> list[str]:
    """An xid without changes; settings of the session."""
    return [
        scene.random.choice(
            [
                "SELECT pg_current_xact_id()",
                "NOTIFY something",
                "SET wal_compression = on" if scene.shared.superuser else "SET DateStyle = ISO",
                "RESET wal_compression" if scene.shared.superuser else "RESET DateStyle",
                "SET default_toast_compression = lz4",
                "RESET default_toast_compression",
                "DISCARD PLANS",
            ]
        )
    ]


#: Not in a transaction block.
ALONE: Kinds = (
    (8, vacuum),
    (5, vacuum_catalog),
    (2, vacuum_everything),
    (3, checkpoint),
    (2, empty_transaction),
)
#: Anywhere.
ANYWHERE: Kinds = ((3, cluster), (2, cluster_catalog), (3, reindex))
