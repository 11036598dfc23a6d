"""A service with a user for PostgreSQL's own protocol."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

    Serve = Callable[[Database], AbstractContextManager[tuple[Service, str]]]

PASSWORD = "a password"


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """``with serve(database) as (service, dsn): …``: *dsn* leads to the database over the service's own port."""

    @contextmanager
    def run(database: Database) -> Iterator[tuple[Service, str]]:
        with service_in_process(tmp_path / "data") as service:
            service.create_source(database.cluster.dsn())
            create_user(service, "alice", database.name, manage_slots=True)
            yield service, dsn_of(service, "alice", database.name)

    return run


def create_user(service: Service, name: str, database: str, **rights: object) -> None:
    body = {"name": name, "password": PASSWORD, "databases": [f"main/{database}"], **rights}
    service.call("POST", "/users", json=body)


def dsn_of(service: Service, user: str, database: str, password: str = PASSWORD) -> str:
    return (
        f"host=127.0.0.1 port={service.pg_port} user={user} password='{password}' dbname={database}"
    )
