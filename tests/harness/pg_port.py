"""A service with users for PostgreSQL's own protocol."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

PASSWORD = "a password"


@contextmanager
def serving(database: Database, data_dir: Path, **settings: Any) -> Iterator[tuple[Service, str]]:
    """Run a service with *database*'s cluster as its source; yield it, and the DSN by which alice
    comes in.
    """
    slot_name = ""
    try:
        with service_in_process(data_dir, **settings) as service:
            source = service.create_source(database.cluster.dsn())
            slot_name = source["slot_name"]
            create_user(service, "alice", database.name, manage_slots=True)
            yield service, dsn_of(service, "alice", database.name)
    finally:
        if slot_name and database.cluster.running:
            _drop_physical(database, slot_name)


def _drop_physical(database: Database, slot_name: str) -> None:
    """Drop what the service has left on the cluster, which is other tests', too."""
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    # Its walsender may not have noticed yet that the service has gone.
    for _ in range(100):
        if database.query(active, [slot_name]) != [(True,)]:
            break
        time.sleep(0.1)
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE slot_name = %s AND NOT active",
        [slot_name],
    )


def create_user(service: Service, name: str, database: str, **rights: object) -> None:
    body = {"name": name, "databases": [f"main/{database}"], **rights}
    if "verifier" not in body:
        body["password"] = PASSWORD
    service.call("POST", "/users", json=body)


def dsn_of(service: Service, user: str, database: str, password: str = PASSWORD) -> str:
    return (
        f"host=127.0.0.1 port={service.pg_port} user={user} password='{password}' dbname={database}"
    )
